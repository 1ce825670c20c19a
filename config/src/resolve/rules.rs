//! What does not go together.

use super::{Resolver, build};
use crate::schema::{Status, features};

/// The largest power of two in fp32.
const LARGEST_SCALE: f64 = 170_141_183_460_469_231_731_687_303_715_884_105_728.0;

impl Resolver<'_> {
    pub(super) fn combinations(&mut self) {
        self.precision();
        self.loss_scale();
        self.zero();
        self.offload();
        self.optimizer_rules();
        self.schedule();
        if !self.settings.is_given("gradient_clipping")
            && !self.settings.is_auto("gradient_clipping")
        {
            let text = "gradients are clipped to norm 1.0, DeepSpeed's default; 0 turns it off";
            self.note("default", "gradient_clipping", text);
        }
    }

    fn precision(&mut self) {
        let (fp16, bf16) = (self.settings.bool("fp16.enabled"), self.settings.bool("bf16.enabled"));
        if fp16 && bf16 {
            let message = "`fp16` and `bf16` are both on".to_owned();
            self.error(
                "contradiction",
                "bf16.enabled",
                message,
                "keep one; bf16 needs no loss scale",
            );
        }
        if self.settings.bool("amp.enabled") && (fp16 || bf16) {
            let message = "`amp` is on beside fp16 or bf16".to_owned();
            self.error("contradiction", "amp.enabled", message, "keep one of them");
        }
        let enabled = if bf16 {
            "bf16"
        } else if fp16 {
            "fp16"
        } else {
            "fp32"
        };
        let path = "data_types.param_dtype";
        if let Some(dtype) = self.settings.opt_text(path).filter(|d| *d != enabled) {
            let message = format!("`param_dtype` is {dtype}, and {enabled} is what is enabled");
            let fix = format!("remove it, or turn {dtype} on");
            self.error("contradiction", path, message, fix);
        }
    }

    fn zero(&mut self) {
        let stage = self.settings.u64("zero_optimization.stage");
        let nodes = self.settings.u64("planaria.ring.nodes");
        if stage > 0 && nodes <= 1 {
            let text =
                format!("stage {stage} shards over nodes; on one node it is the same as stage 0");
            self.note("one-node", "zero_optimization.stage", text);
        }
        let sum = self.settings.text("gradient_allreduce_op") == "sum";
        if sum && stage == 3 {
            let message = "`gradient_allreduce_op` sum does not go with stage 3".to_owned();
            self.error("contradiction", "gradient_allreduce_op", message, "use mean");
        }
    }

    fn offload(&mut self) {
        let stage = self.settings.u64("zero_optimization.stage");
        for (block, needed_stage) in [("offload_param", 3), ("offload_optimizer", 1)] {
            let at = |key: &str| format!("zero_optimization.{block}.{key}");
            let device = self.settings.text(&at("device")).to_owned();
            if device.is_empty() || device == "none" {
                continue;
            }
            let needed_stage = if device == "nvme" { 3 } else { needed_stage };
            if stage < needed_stage {
                let message = format!(
                    "`{block}` to {device} needs stage {needed_stage} or more; it is {stage}"
                );
                let fix = format!("set \"stage\": {needed_stage}, or remove `{block}`");
                self.error("contradiction", &at("device"), message, fix);
            }
            if device == "nvme" && self.settings.opt_text(&at("nvme_path")).is_none() {
                let message = format!("`{block}` goes to nvme, and `nvme_path` is not given");
                let fix = "add \"nvme_path\": a folder on the drive";
                self.error("missing", &at("device"), message, fix);
            }
        }
        let path = "zero_optimization.offload_optimizer.ratio";
        let device = self.settings.text("zero_optimization.offload_optimizer.device");
        let split = self.settings.f64(path) < 1.0 && self.settings.is_given(path);
        if split && device != "none" && stage < 3 {
            let message = format!("a `ratio` below 1 needs stage 3; it is {stage}");
            self.error("contradiction", path, message, "set \"stage\": 3, or remove `ratio`");
        }
    }

    fn optimizer_rules(&mut self) {
        let kind = self.settings.text("optimizer.type").to_owned();
        let at = |key: &str| format!("optimizer.params.{key}");
        let coupled = self.settings.opt_bool(&at("adam_w_mode")) == Some(false);
        if kind == "adam" && !coupled {
            let text = "\"adam\" runs AdamW, as in DeepSpeed; \"adam_w_mode\": false is plain Adam";
            self.note("adam", "optimizer.type", text);
        }
        if kind == "adamw" && coupled {
            let message = "\"adamw\" ignores `adam_w_mode`: false, as in DeepSpeed".to_owned();
            self.warn("adam", &at("adam_w_mode"), message, "use \"type\": \"Adam\" for plain Adam");
        }
        if let (true, true, Status::NotBuilt(why)) = (kind == "adam", coupled, features::ADAM_L2) {
            let message = "plain Adam is recognised, but not built".to_owned();
            self.error("not-built", &at("adam_w_mode"), message, why);
        }
        if self.settings.is_given(&at("eps")) && self.settings.f64(&at("eps")) < 1e-8 {
            let message =
                "`eps` is below 1e-8, where the gradient grid is coarser than fp32".to_owned();
            if kind != "adagrad" {
                self.warn("eps", &at("eps"), message, "use 1e-8 or more");
            }
        }
        match kind.as_str() {
            "lamb" if self.settings.f64(&at("min_coeff")) > self.settings.f64(&at("max_coeff")) => {
                let message = "`min_coeff` is above `max_coeff`".to_owned();
                self.error("contradiction", &at("min_coeff"), message, "swap the two");
            }
            "muon" => self.muon(),
            _ => {}
        }
        let nesterov = self.settings.bool(&at("nesterov"));
        let plain =
            self.settings.f64(&at("momentum")) > 0.0 && self.settings.f64(&at("dampening")) == 0.0;
        if kind == "sgd" && nesterov && !plain {
            let message = "Nesterov needs a momentum and zero dampening".to_owned();
            self.error("contradiction", &at("nesterov"), message, "set \"momentum\": 0.9");
        }
    }

    /// Muon has two groups, and most schedules one rate.
    fn muon(&mut self) {
        let at = |key: &str| format!("optimizer.params.{key}");
        let [muon, adam] = build::muon_rates(self.settings);
        let given = |key: &str| self.settings.is_given(&at(key));
        if muon == 0.0 {
            let key = if given("muon_lr") { "muon_lr" } else { "lr" };
            let message =
                "Muon's learning rate is 0, and Adam's is kept as a multiple of it".to_owned();
            return self.error("contradiction", &at(key), message, "set a rate above 0");
        }
        if build::schedule_names_rate(self.settings) && given("adam_lr") {
            let message =
                "the schedule names one learning rate, which both of Muon's groups get, as in \
                 DeepSpeed: `adam_lr` does nothing"
                    .to_owned();
            let fix = "remove `adam_lr`, or use WarmupCosineLR, or WarmupLR without warmup_max_lr";
            return self.warn("schedule", &at("adam_lr"), message, fix);
        }
        let floor = "scheduler.params.warmup_min_lr";
        if muon != adam && self.settings.f64(floor) > 0.0 {
            let message = "`warmup_min_lr` above 0 does not go with two learning rates".to_owned();
            self.error(
                "contradiction",
                floor,
                message,
                "set it to 0, or give both groups one rate",
            );
        }
    }

    /// A loss scale must be a power of two: then it leaves gradients' digits alone.
    fn loss_scale(&mut self) {
        for (key, zero) in [("loss_scale", true), ("min_loss_scale", false)] {
            let path = format!("fp16.{key}");
            let Some(scale) = self.settings.opt_f64(&path).filter(|&s| s > 0.0 || !zero) else {
                continue;
            };
            let below = f64::from_bits(scale.to_bits() >> 52 << 52);
            let nearest = if scale > 1.5 * below { 2.0 * below } else { below };
            let nearest = nearest.clamp(f64::from(f32::MIN_POSITIVE), LARGEST_SCALE);
            if scale != nearest {
                let message = format!("`{key}` {scale} is not a power of two from 2^-126 to 2^127");
                self.error("range", &path, message, format!("use {nearest}"));
            }
        }
        let power = self.settings.u64("fp16.initial_scale_power");
        let least = self.settings.f64("fp16.min_loss_scale");
        let dynamic = self.settings.f64("fp16.loss_scale") == 0.0;
        if dynamic && 2f64.powi(power as i32) < least {
            let message =
                format!("the first loss scale 2^{power} is below `min_loss_scale` {least}");
            let fix = "raise initial_scale_power, or lower min_loss_scale";
            self.error("contradiction", "fp16.min_loss_scale", message, fix);
        }
    }

    fn schedule(&mut self) {
        let kind = self.settings.text("scheduler.type").to_owned();
        let at = |key: &str| format!("scheduler.params.{key}");
        let required: &[&str] = match kind.as_str() {
            "WarmupDecayLR" | "WarmupCosineLR" => &["total_num_steps"],
            "OneCycle" => &["cycle_min_lr", "cycle_max_lr"],
            _ => &[],
        };
        for key in required {
            let path = at(key);
            let unset = self.settings.setting(&path).is_none_or(|s| s.value.is_null());
            if unset && !self.settings.is_refused(&path) && !self.settings.is_auto(&path) {
                let message = format!("{kind} needs `{key}`");
                let fix = if *key == "total_num_steps" { ": a number or \"auto\"" } else { "" };
                self.error("missing", &path, message, format!("add \"{key}\"{fix}"));
            }
        }
        self.schedule_lengths(&kind);
        let (low, high) = (at("cycle_min_lr"), at("cycle_max_lr"));
        if kind == "OneCycle" && self.settings.f64(&low) > self.settings.f64(&high) {
            let message = "`cycle_min_lr` is above `cycle_max_lr`".to_owned();
            self.error("contradiction", &low, message, "swap the two");
        }
        if kind == "OneCycle" && self.settings.bool(&at("cycle_momentum")) {
            self.cycle_momentum();
        }
    }

    fn cycle_momentum(&mut self) {
        let at = |key: &str| format!("scheduler.params.{key}");
        if !build::cycles_momentum(self.settings) {
            let message = "`cycle_momentum` is off: this optimizer has no betas to move".to_owned();
            let fix = "set \"cycle_momentum\": false";
            let given = self.settings.is_given(&at("cycle_momentum"));
            let place = if given { at("cycle_momentum") } else { "scheduler.type".to_owned() };
            return self.warn("schedule", &place, message, fix);
        }
        let number = |key: &str| self.settings.f64(&at(key));
        let (low, high) = (number("cycle_min_mom"), number("cycle_max_mom"));
        if low > high || high >= 1.0 {
            let message = format!("momentum from {low} to {high} is not a range below 1");
            let given = self.settings.is_given(&at("cycle_max_mom"));
            let place = at(if given { "cycle_max_mom" } else { "cycle_min_mom" });
            return self.error("contradiction", &place, message, "use 0.8 and 0.9");
        }
        let first = self.settings.u64(&at("cycle_first_step_size"));
        let second = self.settings.opt_u64(&at("cycle_second_step_size")).unwrap_or(first);
        let (rate, step) = (number("decay_mom_rate"), self.settings.u64(&at("decay_step_size")));
        let Some(steps) = self.settings.opt_u64("planaria.run.steps").filter(|_| step > 0) else {
            return;
        };
        let past = steps.saturating_sub(first.saturating_add(second));
        if high * (1.0 + rate * past as f64 / step as f64) >= 1.0 {
            let message = format!("momentum grows to 1 within the run's {steps} steps");
            self.error("contradiction", &at("decay_mom_rate"), message, "use a smaller rate, or 0");
        }
    }

    fn schedule_lengths(&mut self, kind: &str) {
        let at = |key: &str| format!("scheduler.params.{key}");
        let Some(total) = self.settings.opt_u64(&at("total_num_steps")) else { return };
        let warmup = self.settings.u64(&at("warmup_num_steps"));
        if warmup > total {
            let message = format!("{kind} warms up for {warmup} of {total} steps: it never decays");
            let given = self.settings.is_given(&at("warmup_num_steps"));
            let place = at(if given { "warmup_num_steps" } else { "total_num_steps" });
            self.warn("schedule", &place, message, "set a shorter warmup_num_steps");
        }
        if let Some(steps) = self.settings.opt_u64("planaria.run.steps").filter(|&s| s != total) {
            let message = format!("{kind} is laid out for {total} steps, and the run has {steps}");
            let fix = "set \"total_num_steps\": \"auto\" to follow the run";
            self.warn("schedule", &at("total_num_steps"), message, fix);
        }
    }
}
