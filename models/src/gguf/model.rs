//! From a GGUF file's metadata and tensors to a model of ours.

use super::{Gguf, GgufError, TensorInfo, Value};
use crate::block::{Model, ParamSpec};
use crate::families::{Family, ModelSpec};
use crate::kernels::rope::RopeScaling;
use std::collections::BTreeSet;

/// Largest layer count, context and other size that a file may name.
const LAYERS_MAX: u64 = 1 << 12;
const LENGTH_MAX: u64 = 1 << 22;
const SIZE_MAX: u64 = 1 << 24;

/// Names listed in one error at most.
const LISTED: usize = 8;

/// A GGUF model whose tensors were found and checked.
pub struct Import<'a> {
    /// Its shape.
    pub spec: ModelSpec,
    /// The model.
    pub model: Model,
    /// What a person should know.
    pub notes: Vec<String>,
    /// By parameter id: its tensor, and the heads whose rows must be put back in order.
    tensors: Vec<(TensorInfo<'a>, Option<usize>)>,
}

/// The metadata under an architecture's name.
struct Keys<'a, 'b> {
    file: &'b Gguf<'a>,
    arch: &'a str,
}

/// Keys under the architecture's name that are obeyed, or say nothing that the tensors do not.
const KNOWN: [&str; 19] = [
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_used_count",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "vocab_size",
];

impl<'a> Keys<'a, '_> {
    fn name(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    fn value(&self, key: &str) -> Option<Value<'a>> {
        self.file.key(&self.name(key))
    }

    fn wrong(&self, key: &str, expected: &str, found: Value<'_>) -> GgufError {
        let found = match found {
            Value::Array(list) => format!("a list of {}", list.len()),
            other => format!("{other:?}"),
        };
        GgufError::invalid(&self.name(key), format!("{expected} is expected, not {found}"))
    }

    fn opt_size(&self, key: &str, limit: u64) -> Result<Option<usize>, GgufError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match value {
            Value::Unsigned(n) if (1..=limit).contains(&n) => Ok(Some(n as usize)),
            Value::Signed(n) if n >= 1 && n as u64 <= limit => Ok(Some(n as usize)),
            other => Err(self.wrong(key, &format!("a size from 1 to {limit}"), other)),
        }
    }

    fn size(&self, key: &str, limit: u64) -> Result<usize, GgufError> {
        let missing = || GgufError::Missing { what: format!("key {}", self.name(key)) };
        self.opt_size(key, limit)?.ok_or_else(missing)
    }

    fn positive_or(&self, key: &str, default: f64) -> Result<f64, GgufError> {
        match self.value(key) {
            None => Ok(default),
            Some(Value::Float(x)) if x.is_finite() && x > 0.0 => Ok(x),
            Some(other) => Err(self.wrong(key, "a positive number", other)),
        }
    }

    fn scaling(&self) -> Result<RopeScaling, GgufError> {
        match self.value("rope.scaling.type") {
            None | Some(Value::Text("none")) => Ok(RopeScaling::Default),
            Some(Value::Text("linear")) => {
                Ok(RopeScaling::Linear { factor: self.positive_or("rope.scaling.factor", 1.0)? })
            }
            Some(Value::Text(other)) => {
                let name = self.name("rope.scaling.type");
                Err(GgufError::unsupported(&name, format!("it is {other:?}; linear is read")))
            }
            Some(other) => Err(self.wrong("rope.scaling.type", "a string", other)),
        }
    }
}

/// Finds a model's parameters in a file.
///
/// # Errors
/// If the architecture, a key or a tensor asks for what is not built, or a tensor is missing, has no
/// place in the model, or has another shape than the metadata gives it.
pub fn import<'a>(file: &Gguf<'a>) -> Result<Import<'a>, GgufError> {
    let arch = match file.key("general.architecture") {
        Some(Value::Text(arch @ ("llama" | "qwen2" | "qwen3" | "smollm3"))) => arch,
        Some(Value::Text(other)) => {
            let reason = format!("it is {other:?}; read are llama, qwen2, qwen3 and smollm3");
            return Err(GgufError::unsupported("general.architecture", reason));
        }
        _ => return Err(GgufError::Missing { what: "key general.architecture".to_owned() }),
    };
    let keys = Keys { file, arch };
    let spec = spec(&keys)?;
    spec.check().map_err(|reason| GgufError::invalid("the metadata", reason))?;
    let layers = file.tensors().filter(|(name, _)| name.ends_with("attn_q.weight")).count();
    if layers != spec.layers {
        let reason = format!("it says {} layers, the tensors are of {layers}", spec.layers);
        return Err(GgufError::invalid(&keys.name("block_count"), reason));
    }
    let model = spec.build();
    let tensors = locate(file, arch, &spec, &model)?;
    let prefix = format!("{arch}.");
    let unknown = file.keys().filter_map(|(key, _)| key.strip_prefix(&prefix));
    let unknown: Vec<&str> = unknown.filter(|key| !KNOWN.contains(key)).collect();
    let mut notes = Vec::new();
    if !unknown.is_empty() {
        notes.push(format!("keys of {arch} that are not known: {}", unknown.join(", ")));
    }
    Ok(Import { spec, model, notes, tensors })
}

fn spec(keys: &Keys<'_, '_>) -> Result<ModelSpec, GgufError> {
    if let Some(Value::Unsigned(1..)) = keys.value("expert_count") {
        let reason = "mixtures of experts are not built";
        return Err(GgufError::unsupported(&keys.name("expert_count"), reason));
    }
    let has = |name: &str| keys.file.tensor(name).is_some();
    let embedding = "token_embd.weight";
    let table = keys.file.tensor(embedding);
    let table = table.ok_or_else(|| GgufError::Missing { what: format!("tensor {embedding}") })?;
    let (width, heads) =
        (keys.size("embedding_length", SIZE_MAX)?, keys.size("attention.head_count", SIZE_MAX)?);
    let vocab = table.shape().first().copied().unwrap_or(0);
    let max_length = keys.size("context_length", LENGTH_MAX)?;
    let layers = keys.size("block_count", LAYERS_MAX)?;
    let head_dim = keys.opt_size("attention.key_length", SIZE_MAX)?.unwrap_or(width / heads);
    for key in ["attention.value_length", "rope.dimension_count"] {
        if keys.opt_size(key, SIZE_MAX)?.is_some_and(|size| size != head_dim) {
            let reason = format!("it differs from the head's width {head_dim}");
            return Err(GgufError::unsupported(&keys.name(key), reason));
        }
    }
    let bias = has("blk.0.attn_q.bias");
    let spec = ModelSpec::gpt2(layers, width, heads, vocab, max_length);
    Ok(ModelSpec {
        family: Family::Llama,
        kv_heads: keys.opt_size("attention.head_count_kv", SIZE_MAX)?.unwrap_or(heads),
        head_dim,
        mlp_width: keys.size("feed_forward_length", SIZE_MAX)?,
        tied: !has("output.weight"),
        norm_eps: keys.positive_or("attention.layer_norm_rms_epsilon", 1e-5)? as f32,
        rope_theta: keys.positive_or("rope.freq_base", 10_000.0)?,
        rope_scaling: keys.scaling()?,
        attention_bias: bias,
        bias_qkv_only: bias && !has("blk.0.attn_output.bias"),
        mlp_bias: has("blk.0.ffn_gate.bias"),
        qk_norm: has("blk.0.attn_q_norm.weight"),
        window: keys.opt_size("attention.sliding_window", LENGTH_MAX)?,
        // The format has no key for it; llama.cpp, too, knows SmolLM3's interval.
        no_rope: if keys.arch == "smollm3" {
            (0..layers).filter(|i| (i + 1).is_multiple_of(4)).collect()
        } else {
            Vec::new()
        },
        ..spec
    })
}

/// The name that a parameter has in GGUF.
fn gguf_name(name: &str) -> String {
    match name {
        "model.embed_tokens.weight" => return "token_embd.weight".to_owned(),
        "model.norm.weight" => return "output_norm.weight".to_owned(),
        "lm_head.weight" => return "output.weight".to_owned(),
        _ => {}
    }
    const PARTS: [(&str, &str); 11] = [
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ];
    let name = name.replacen("model.layers.", "blk.", 1);
    let part = PARTS.iter().find(|(ours, _)| name.contains(&format!(".{ours}.")));
    part.map_or(name.clone(), |(ours, theirs)| name.replacen(ours, theirs, 1))
}

/// Heads whose rows lie pairwise: converters of LLaMA reorder q and k for a rotation of neighbours.
fn paired_heads(arch: &str, spec: &ModelSpec, name: &str) -> Option<usize> {
    if !matches!(arch, "llama" | "smollm3") {
        return None;
    }
    let is = |part: &str| name.contains(part);
    if is("q_proj") {
        Some(spec.heads)
    } else if is("k_proj") {
        Some(spec.kv_heads)
    } else {
        None
    }
}

fn locate<'a>(
    file: &Gguf<'a>,
    arch: &str,
    spec: &ModelSpec,
    model: &Model,
) -> Result<Vec<(TensorInfo<'a>, Option<usize>)>, GgufError> {
    let mut used = BTreeSet::new();
    let mut found = Vec::new();
    for param in &model.params {
        let name = gguf_name(&param.name);
        let missing = || GgufError::Missing { what: format!("tensor {name}") };
        let tensor = file.tensor(&name).ok_or_else(missing)?;
        if tensor.shape() != param.shape {
            let (shape, want) = (tensor.shape(), &param.shape);
            let reason = format!("its shape is {shape:?}; the metadata makes it {want:?}");
            return Err(GgufError::invalid(&format!("tensor {name}"), reason));
        }
        found.push((tensor, paired_heads(arch, spec, &param.name)));
        used.insert(name);
    }
    let extra = file.tensors().map(|(name, _)| name).filter(|name| !used.contains(*name));
    let mut extra: Vec<&str> = extra.collect();
    if extra.contains(&"rope_freqs.weight") {
        let reason = "Llama 3.1's scaled positions are read from a Hugging Face folder only";
        return Err(GgufError::unsupported("tensor rope_freqs.weight", reason));
    }
    if extra.is_empty() {
        return Ok(found);
    }
    let count = extra.len();
    extra.truncate(LISTED);
    let reason = format!("the model has no place for {count}: {}", extra.join(", "));
    Err(GgufError::invalid("the tensors", reason))
}

impl Import<'_> {
    /// The values of one parameter, in the order that Hugging Face has.
    #[must_use]
    pub fn value(&self, param: &ParamSpec) -> Vec<f32> {
        let (tensor, heads) = self.tensors[param.id.index()];
        let mut values = vec![0.0; tensor.elements()];
        tensor.widen(&mut values);
        match heads {
            Some(heads) => halves(&values, (heads, self.spec.head_dim)),
            None => values,
        }
    }

    /// All values, by parameter id.
    #[must_use]
    pub fn values(&self) -> Vec<Vec<f32>> {
        self.model.params.iter().map(|p| self.value(p)).collect()
    }
}

/// Undoes the converter's order: row `2 i + t` of a head goes back to row `t * head_dim / 2 + i`.
fn halves(values: &[f32], (heads, head_dim): (usize, usize)) -> Vec<f32> {
    let cols = values.len() / (heads * head_dim);
    let mut out = Vec::with_capacity(values.len());
    for head in values.chunks_exact(head_dim * cols) {
        for row in (0..head_dim).step_by(2).chain((1..head_dim).step_by(2)) {
            out.extend_from_slice(&head[row * cols..(row + 1) * cols]);
        }
    }
    out
}
