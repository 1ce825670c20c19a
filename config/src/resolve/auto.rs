//! What `"auto"` becomes, and values that follow from others.

use super::Resolver;
use crate::check::Origin;
use crate::schema::Auto;
use serde_json::Value;

/// What Hugging Face's trainer fills in for a learning rate left to it.
const FINE_TUNING_RATE: f64 = 5e-5;

impl Resolver<'_> {
    /// Gives every `"auto"` a stated value, in the table's order, and reports all of them.
    pub(super) fn autos(&mut self) {
        let mut told = Vec::new();
        for (path, rule) in self.settings.autos() {
            if let Some((value, why)) = self.auto(&path, rule) {
                self.settings.resolve(&path, value, Origin::Auto(why.to_owned()));
            }
            let value = self.settings.setting(&path).map_or(Value::Null, |s| s.value.clone());
            if !value.is_null() {
                told.push(format!("{path} = {value}"));
            }
        }
        if !told.is_empty() {
            self.note("auto", "", format!("\"auto\" stands for: {}", told.join(", ")));
        }
    }

    /// The value and the rule; `None` leaves the default.
    fn auto(&mut self, path: &str, rule: Auto) -> Option<(Value, &'static str)> {
        let steps = self.settings.opt_u64("planaria.run.steps");
        match rule {
            Auto::Default | Auto::Batch | Auto::Planner => None,
            Auto::WidthSquaredTenths(tenths) => {
                let width = self.width(path)?;
                let why = if tenths == 10 { "width squared" } else { "0.9 x width squared" };
                Some(((width.saturating_mul(width).saturating_mul(tenths) / 10).into(), why))
            }
            Auto::TenWidths => Some((self.width(path)?.saturating_mul(10).into(), "10 x width")),
            Auto::PreferBf16 => {
                let fp16 = self.settings.bool("fp16.enabled");
                let why = if fp16 { "fp16 is on" } else { "bf16 unless fp16 is on" };
                Some(((!fp16).into(), why))
            }
            Auto::LearningRate => {
                let rate = self.learning_rate();
                Some((rate.into(), "the optimizer's learning rate"))
            }
            Auto::FineTuningRate => {
                self.settings.opt_text("planaria.model.init_from")?;
                Some((FINE_TUNING_RATE.into(), "Hugging Face's rate for trained weights"))
            }
            Auto::RunSteps => self.filled(path, steps.map(|n| (n.into(), "planaria.run.steps"))),
            Auto::TenthOfRun => {
                let tenth = steps.map(|n| ((n / 10).max(2).into(), "a tenth of the run's steps"));
                self.filled(path, tenth)
            }
        }
    }

    fn width(&mut self, path: &str) -> Option<u64> {
        let width = self.settings.opt_u64("planaria.model.width").or(self.options.width);
        if width.is_none() {
            let message = format!("`{path}` is \"auto\", and the model's width is not known here");
            let fix = "the default is taken; give a number, or planaria.model";
            self.warn("auto", path, message, fix);
        }
        width
    }

    fn filled(
        &mut self,
        path: &str,
        value: Option<(Value, &'static str)>,
    ) -> Option<(Value, &'static str)> {
        if value.is_none() {
            let message = format!("`{path}` is \"auto\", and the run's steps are not known here");
            self.needed(path, &message, "give a number, or planaria.run.steps");
        }
        value
    }

    pub(super) fn learning_rate(&self) -> f64 {
        let at = |name: &str| self.settings.opt_f64(&format!("optimizer.params.{name}"));
        at("muon_lr").or(at("lr")).unwrap_or(0.0)
    }

    /// AdamW when the file names no optimizer.
    pub(super) fn optimizer(&mut self) {
        if self.settings.setting("optimizer.type").is_some()
            || self.settings.is_present("optimizer")
        {
            return;
        }
        let adamw = crate::schema::OPTIMIZERS.list[0];
        self.settings.resolve("optimizer.type", adamw.name, Origin::Default);
        for key in adamw.keys {
            let path = format!("optimizer.params.{}", key.name);
            self.settings.resolve(&path, key.default_value(), Origin::Default);
        }
        self.note("default", "optimizer", "no optimizer is given: AdamW, lr 0.001");
    }

    /// Values of `planaria.run` that follow from others.
    pub(super) fn run(&mut self) {
        let steps = self.settings.opt_u64("planaria.run.steps");
        if let (None, Some(steps)) = (self.settings.opt_u64("planaria.run.eval_every"), steps) {
            let every = (steps / 10).max(1);
            self.settings.derive("planaria.run.eval_every", every, "a tenth of the run");
        }
        if self.settings.opt_text("planaria.run.dir").is_none() {
            let dir = format!("runs/{}", self.options.run_name());
            self.settings.derive("planaria.run.dir", dir, "the configuration's name");
        }
        if self.settings.opt_u64("steps_per_print").is_none() {
            self.settings.derive("steps_per_print", 10, "DeepSpeed's documented default");
        }
        let recompute = "planaria.compute.recompute";
        let open = self.settings.opt_bool(recompute).is_none();
        if open && !self.settings.is_auto(recompute) {
            let on = self.settings.is_present("activation_checkpointing");
            let why = "whether there is an activation_checkpointing block";
            self.settings.derive(recompute, on, why);
        }
    }
}
