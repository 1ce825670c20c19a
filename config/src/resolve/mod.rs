//! From checked settings to a RunPlan: presets, `"auto"`, the batch equation, combinations.

mod auto;
mod build;
mod model;
mod rules;

use crate::batch::{self, BatchKeys};
use crate::check::{Origin, Settings};
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::plan::{BatchPlan, RunPlan};
use crate::{Need, Options};
use planaria_base::limits::LEAVES_PER_STEP;

/// The micro-batch that `"auto"` stands for when nothing else says it: what Hugging Face's trainer
/// fills in.
const AUTO_MICRO_BATCH: u64 = 8;

/// Resolves everything that follows from other values, reports what does not go together, and
/// builds the plan if the settings say enough for one.
pub(crate) fn resolve(
    settings: &mut Settings,
    options: &Options,
    out: &mut Diagnostics,
) -> Option<RunPlan> {
    let mut resolver = Resolver { settings, options, out };
    resolver.optimizer();
    resolver.model();
    resolver.data();
    resolver.run();
    let batch = resolver.batch();
    resolver.autos();
    resolver.combinations();
    let complete = resolver.is_complete();
    if resolver.out.has_errors() || !complete {
        return None;
    }
    batch.and_then(|batch| build::plan(settings, batch))
}

struct Resolver<'a> {
    settings: &'a mut Settings,
    options: &'a Options,
    out: &'a mut Diagnostics,
}

impl Resolver<'_> {
    fn error(&mut self, rule: &'static str, path: &str, message: String, fix: impl Into<String>) {
        let range = self.settings.range(path);
        self.out.push(Diagnostic::error(rule, path, message).at(range).fix(fix));
    }

    fn warn(&mut self, rule: &'static str, path: &str, message: String, fix: impl Into<String>) {
        let range = self.settings.range(path);
        self.out.push(Diagnostic::warning(rule, path, message).at(range).fix(fix));
    }

    fn note(&mut self, rule: &'static str, path: &str, message: impl Into<String>) {
        let range = self.settings.range(path);
        self.out.push(Diagnostic::note(rule, path, message).at(range));
    }

    /// Something that a run needs and a check does not: an error for the first.
    fn needed(&mut self, path: &str, message: &str, fix: &str) {
        if self.settings.is_refused(path) {
            return;
        }
        let finding = match self.options.need {
            Need::Run => Diagnostic::error("missing", path, message),
            Need::Check => Diagnostic::note("missing", path, message),
        };
        self.out.push(finding.at(self.settings.range(path)).fix(fix));
    }

    /// Nodes in the batch equation: the command line's, else `planaria.ring.nodes`. The world of
    /// the run, not that of the moment (case C03).
    fn nodes(&mut self) -> u64 {
        let path = "planaria.ring.nodes";
        if let Some(nodes) = self.options.nodes {
            self.settings.derive(path, nodes, "the command line");
        }
        self.settings.opt_u64(path).unwrap_or(1).max(1)
    }

    fn batch(&mut self) -> Option<BatchPlan> {
        const KEYS: [&str; 3] =
            ["train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"];
        let nodes = self.nodes();
        if KEYS.iter().any(|key| self.settings.is_refused(key)) {
            return None;
        }
        let [train, micro, accumulation] = KEYS.map(|key| self.settings.opt_u64(key));
        let mut keys = BatchKeys { train, micro, accumulation };
        if train.is_none() && micro.is_none() && KEYS[..2].iter().any(|k| self.settings.is_auto(k))
        {
            keys.micro = Some(AUTO_MICRO_BATCH);
        }
        match batch::derive(keys, nodes) {
            Ok(plan) => {
                self.fill_batch(KEYS, plan);
                self.limit_leaves(plan)
            }
            Err(error) => {
                let given = KEYS.iter().find(|k| self.settings.is_given(k)).unwrap_or(&KEYS[0]);
                self.error("batch", given, error.to_string(), error.fix());
                None
            }
        }
    }

    fn fill_batch(&mut self, keys: [&str; 3], plan: BatchPlan) {
        for (key, value) in keys.into_iter().zip([plan.train, plan.micro, plan.accumulation]) {
            if !self.settings.is_given(key) {
                let why = "train = micro x accumulation x nodes".to_owned();
                let origin = if self.settings.is_auto(key) {
                    Origin::Auto(why)
                } else {
                    Origin::Derived(why)
                };
                self.settings.resolve(key, value, origin);
            }
        }
    }

    fn limit_leaves(&mut self, plan: BatchPlan) -> Option<BatchPlan> {
        let limit = u64::from(LEAVES_PER_STEP);
        if plan.leaves() <= limit {
            return Some(plan);
        }
        let message = format!("a step has {} leaves; {limit} are allowed", plan.leaves());
        let fix = "raise train_micro_batch_size_per_gpu, or lower train_batch_size";
        self.error("batch", "train_batch_size", message, fix);
        None
    }

    /// Whether model, data and length of the run are known.
    fn is_complete(&mut self) -> bool {
        let model = self.settings.opt_text("planaria.model.init_from").is_some()
            || self.settings.opt_u64("planaria.model.layers").is_some();
        let text = !self.settings.texts("planaria.data.text").is_empty();
        let data = text || !self.settings.texts("planaria.data.tokens").is_empty();
        let steps = self.settings.opt_u64("planaria.run.steps").is_some();
        if !self.settings.is_present("planaria") && self.options.need == Need::Check {
            let text = "it says how to train, not what: model, data and steps come from a `planaria` block";
            self.note("missing", "planaria", text);
            return false;
        }
        let example = |inner: &str| format!("add \"planaria\": {{{inner}}}");
        if !model && !self.settings.is_present("planaria.model") {
            let fix = example("\"model\": {\"preset\": \"124m\"}");
            self.needed("planaria.model", "no model is named", &fix);
        }
        if !data {
            let fix = example("\"data\": {\"text\": \"registry\"}");
            self.needed("planaria.data", "no text is named", &fix);
        }
        if !steps {
            let fix = example("\"run\": {\"steps\": 1000}");
            self.needed("planaria.run.steps", "the number of steps is not given", &fix);
        }
        model && data && steps
    }
}
