//! Presets, families and data: the shape of a model from as little as was said.

use super::Resolver;
use crate::diagnostics::Diagnostic;
use serde_json::Value;

/// A known size: family, then layers, width, heads, key heads, MLP width, vocabulary, length.
struct Preset {
    name: &'static str,
    family: &'static str,
    shape: [u64; 7],
    tied: bool,
    rope_theta: f64,
}

const fn preset(name: &'static str, family: &'static str, shape: [u64; 7]) -> Preset {
    Preset { name, family, shape, tied: true, rope_theta: 10_000.0 }
}

/// GPT-2's sizes as published; tiny and small are those of our benchmarks.
const PRESETS: [Preset; 10] = [
    preset("tiny", "gpt2", [4, 128, 4, 4, 512, 256, 256]),
    preset("small", "gpt2", [6, 384, 6, 6, 1536, 50_257, 256]),
    preset("124m", "gpt2", [12, 768, 12, 12, 3072, 50_257, 1024]),
    preset("355m", "gpt2", [24, 1024, 16, 16, 4096, 50_257, 1024]),
    preset("774m", "gpt2", [36, 1280, 20, 20, 5120, 50_257, 1024]),
    preset("1558m", "gpt2", [48, 1600, 25, 25, 6400, 50_257, 1024]),
    preset("llama-tiny", "llama", [4, 128, 4, 2, 352, 256, 256]),
    preset("stories260k", "llama", [5, 64, 8, 4, 172, 512, 512]),
    Preset {
        rope_theta: 100_000.0,
        ..preset("smollm2-135m", "llama", [30, 576, 9, 3, 1536, 49_152, 8192])
    },
    Preset {
        rope_theta: 500_000.0,
        ..preset("llama-1b", "llama", [16, 2048, 32, 8, 8192, 128_256, 131_072])
    },
];

const SHAPE_KEYS: [&str; 7] =
    ["layers", "width", "heads", "kv_heads", "mlp_width", "vocab", "max_length"];

fn model(key: &str) -> String {
    format!("planaria.model.{key}")
}

impl Resolver<'_> {
    pub(super) fn model(&mut self) {
        self.lora();
        if self.settings.opt_text("planaria.model.init_from").is_some() {
            self.no_shape_beside_weights();
            return;
        }
        self.preset();
        let refused = self.settings.is_refused("planaria.model");
        if refused || !self.settings.is_present("planaria.model") {
            return;
        }
        self.family();
        if !self.settings.is_refused("planaria.model.preset") {
            self.geometry();
        }
    }

    /// Adapters have a rank, and a model that they adapt.
    fn lora(&mut self) {
        let (rank, from) = ("planaria.lora.rank", "planaria.model.init_from");
        let given = |key: &str| self.settings.is_given(&format!("planaria.lora.{key}"));
        if (given("alpha") || given("targets")) && self.settings.opt_u64(rank).is_none() {
            let message = "the adapters have no rank".to_owned();
            self.error("missing", rank, message, "give lora.rank, for example 8");
        }
        if self.settings.is_given(rank) && self.settings.opt_text(from).is_none() {
            let message = "adapters of a model with random weights";
            let fix = "give model.init_from, or remove the lora block";
            self.error("contradiction", rank, message.to_owned(), fix);
        }
    }

    /// A folder of weights says the shape itself.
    fn no_shape_beside_weights(&mut self) {
        let keys = SHAPE_KEYS.into_iter().chain(["preset", "family", "head_dim", "tied", "bias"]);
        for key in keys.chain(["rope_theta", "norm_eps"]) {
            let path = model(key);
            if self.settings.is_given(&path) {
                let message =
                    format!("`{key}` is given beside `init_from`, whose config.json says it");
                self.error("contradiction", &path, message, format!("remove `{key}`"));
            }
        }
    }

    fn unset(&self, key: &str) -> bool {
        let path = model(key);
        !self.settings.is_given(&path) && !self.settings.is_refused(&path)
    }

    fn fill(&mut self, key: &str, value: impl Into<Value>, why: &str) {
        if self.unset(key) {
            self.settings.derive(&model(key), value, why);
        }
    }

    fn preset(&mut self) {
        let Some(name) = self.settings.opt_text("planaria.model.preset").map(str::to_owned) else {
            return;
        };
        let Some(preset) = PRESETS.iter().find(|p| p.name == name) else { return };
        let why = format!("preset {name}");
        let width_changed = self.settings.is_given(&model("width"));
        for (key, value) in SHAPE_KEYS.into_iter().zip(preset.shape) {
            let follows_width = matches!(key, "heads" | "kv_heads" | "mlp_width");
            if !(width_changed && follows_width) {
                self.fill(key, value, &why);
            }
        }
        self.fill("family", preset.family, &why);
        self.fill("tied", preset.tied, &why);
        if preset.family != "gpt2" {
            self.fill("rope_theta", preset.rope_theta, &why);
        }
    }

    fn family(&mut self) {
        let family = self.settings.opt_text(&model("family")).unwrap_or("gpt2").to_owned();
        if self.settings.opt_text(&model("family")).is_none() {
            self.fill("family", "gpt2", "the default family");
        }
        let gpt2 = family == "gpt2";
        let why = format!("as {family} has it");
        let mut default = |key: &str, value: Value| {
            if self.settings.setting(&model(key)).is_none_or(|s| s.value.is_null()) {
                self.fill(key, value, &why);
            }
        };
        default("tied", gpt2.into());
        default("bias", (gpt2 || family == "qwen2").into());
        default(
            "norm_eps",
            if family == "qwen2" || family == "qwen3" { 1e-6 } else { 1e-5 }.into(),
        );
        if gpt2 {
            for key in ["rope_theta", "rope_scaling", "window"] {
                if self.settings.is_given(&model(key)) || self.settings.is_present(&model(key)) {
                    let message = format!("`{key}` is given, and gpt2 has learned positions");
                    let fix = "set \"family\": \"llama\", or remove the key";
                    self.error("contradiction", &model(key), message, fix);
                }
            }
        } else {
            default("rope_theta", 10_000.0.into());
        }
    }

    /// Heads, widths and lengths: filled in, then checked against one another.
    fn geometry(&mut self) {
        for key in ["layers", "width"] {
            if self.number(key).is_none() && self.unset(key) {
                let message = format!("the model has no `{key}`");
                let fix = format!("give `{key}`, or a \"preset\"");
                self.error("missing", &model(key), message, fix);
            }
        }
        if let Some(width) = self.number("width") {
            self.heads(width);
            self.mlp(width);
        }
        if self.number("max_length").is_some() {
            return;
        }
        if let Some(length) = self.settings.opt_u64("planaria.data.sequence_length") {
            self.fill("max_length", length, "data.sequence_length");
        } else if self.unset("max_length") {
            let (path, fix) = (model("max_length"), "give it, or data.sequence_length");
            self.error("missing", &path, "the longest sequence is not given".to_owned(), fix);
        }
    }

    fn number(&self, key: &str) -> Option<u64> {
        self.settings.opt_u64(&model(key))
    }

    fn heads(&mut self, width: u64) {
        if self.number("heads").is_none() {
            let (heads, why) = if width.is_multiple_of(64) {
                (width / 64, "width / 64")
            } else {
                (1, "width is no multiple of 64")
            };
            self.fill("heads", heads, why);
        }
        let heads = self.number("heads").unwrap_or(1);
        if self.number("kv_heads").is_none() {
            self.fill("kv_heads", heads, "as many as heads");
        }
        if self.number("head_dim").is_none() {
            self.fill("head_dim", (width / heads).max(1), "width / heads");
            if !width.is_multiple_of(heads) {
                let message = format!("width {width} is no multiple of heads {heads}");
                let (below, above) = (width / heads * heads, width.div_ceil(heads) * heads);
                let below = if below == 0 { String::new() } else { format!("{below} or ") };
                let fix = format!("set width {below}{above}");
                self.error("contradiction", &model("width"), message, fix);
            }
        }
        self.check_heads(heads);
    }

    fn mlp(&mut self, width: u64) {
        if self.number("mlp_width").is_some() {
            return;
        }
        let (mlp, why) = if self.settings.text(&model("family")) == "gpt2" {
            (width * 4, "4 x width")
        } else {
            ((width * 8).div_ceil(3).next_multiple_of(32), "8/3 x width, rounded up to 32")
        };
        self.fill("mlp_width", mlp, why);
    }

    fn check_heads(&mut self, heads: u64) {
        let gpt2 = self.settings.text(&model("family")) == "gpt2";
        let kv_heads = self.settings.u64(&model("kv_heads")).max(1);
        if !heads.is_multiple_of(kv_heads) {
            let message = format!("heads {heads} is no multiple of kv_heads {kv_heads}");
            let fix = "make kv_heads a divisor of heads";
            self.error("contradiction", &model("kv_heads"), message, fix);
        } else if gpt2 && kv_heads != heads {
            let message = "gpt2 has as many key heads as heads".to_owned();
            let fix = "remove kv_heads, or set \"family\": \"llama\"";
            self.error("contradiction", &model("kv_heads"), message, fix);
        }
        let head_dim = self.settings.u64(&model("head_dim"));
        if !gpt2 && head_dim % 2 == 1 {
            let message = format!("RoPE needs an even head_dim; it is {head_dim}");
            self.error("contradiction", &model("head_dim"), message, "make it even");
        }
        let given = self.settings.is_given(&model("head_dim"));
        if gpt2 && given && head_dim.saturating_mul(heads) != self.settings.u64(&model("width")) {
            let message = format!("gpt2 has width = heads x head_dim; {heads} x {head_dim} is not");
            self.error("contradiction", &model("head_dim"), message, "remove head_dim");
        }
    }

    pub(super) fn data(&mut self) {
        let (text, tokens) = ("planaria.data.text", "planaria.data.tokens");
        if self.settings.is_given(text) && self.settings.is_given(tokens) {
            let message = "both text and token files are given".to_owned();
            self.error("contradiction", tokens, message, "keep one of the two");
        }
        let fresh = self.settings.opt_text("planaria.model.init_from").is_none();
        self.tokenizer(fresh);
        let path = "planaria.data.sequence_length";
        let longest = self.settings.opt_u64(&model("max_length"));
        match (self.settings.opt_u64(path), longest) {
            (None, Some(longest)) => self.settings.derive(path, longest, "the model's max_length"),
            (None, None) if !fresh => {
                self.needed(path, "the sequence length is not given", "give data.sequence_length");
            }
            (Some(length), Some(longest)) if length > longest => {
                let message = format!("sequences of {length} tokens; the model takes {longest}");
                let fix = format!("set sequence_length {longest}, or max_length {length}");
                self.error("contradiction", path, message, fix);
            }
            _ => {}
        }
    }

    fn tokenizer(&mut self, fresh: bool) {
        const WORDS: [&str; 5] = ["byte", "char", "gpt2", "cl100k", "o200k"];
        let path = "planaria.data.tokenizer";
        let has_tokens = self.settings.is_given("planaria.data.tokens");
        let Some(name) = self.settings.opt_text(path).map(str::to_owned) else {
            if fresh && !has_tokens {
                self.settings.derive(path, "byte", "the default for a new model");
            }
            return;
        };
        if WORDS.contains(&name.as_str()) || name.ends_with(".json") || name.contains('/') {
            return;
        }
        let message =
            format!("{name:?} is neither byte, char, gpt2, cl100k, o200k nor a tokenizer.json");
        let finding = Diagnostic::error("choice", path, message).at(self.settings.range(path));
        self.out.push(finding.nearest_of(&name, WORDS));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The schema's list of names and the sizes behind them are the same.
    #[test]
    fn every_preset_name_has_a_size() {
        let mut names = Vec::new();
        crate::schema::for_each_key(&mut |path, key| {
            if let ("planaria.model.preset", crate::schema::Kind::Choice(words)) = (path, key.kind)
            {
                names.extend_from_slice(words);
            }
        });
        let sizes: Vec<&str> = PRESETS.iter().map(|p| p.name).collect();
        assert_eq!(names, sizes);
    }
}
