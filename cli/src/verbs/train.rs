//! `planaria train`: a run, from a configuration or from its last checkpoint.

#![allow(clippy::disallowed_methods, reason = "rates are measured by the clock")]

use super::train_ring::{How, RingOptions};
use crate::cost;
use crate::data::{self, Data};
use crate::folder::{self, ModelFolder};
use crate::interrupt;
use crate::machine;
use crate::output::{self, Done, Usage};
use crate::plan;
use crate::progress::{Progress, Shown};
use crate::records::Recorder;
use crate::save;
use anyhow::Context;
use clap::Args;
use planaria_actors::device::{Device, DeviceSetup};
use planaria_actors::spec::RunSpec;
use planaria_actors::step::decision::{Decision, Skip, Verdict};
use planaria_actors::trainer::Trainer;
use planaria_base::units::format_bytes;
use planaria_config::plan::ModelPlan;
use planaria_config::planner::Candidate;
use planaria_config::{Options, RunPlan};
use planaria_models::anomaly::{self, Watch};
use planaria_models::block::Model;
use planaria_models::compute::Kit;
use planaria_models::families::ModelSpec;
use planaria_models::generate::Sampling;
use planaria_models::lora::{self, LoraSpec};
use planaria_storage::checkpoint::Checkpoints;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Train a model as a configuration says.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  planaria train examples/quickstart/config.json\n  planaria train config.json --steps 100 --set optimizer.params.lr=3e-4\n  planaria train config.json --resume"
)]
pub(crate) struct Train {
    /// A DeepSpeed configuration with a `planaria` block
    config: PathBuf,
    /// Go on from the newest good checkpoint of the run's folder
    #[arg(long)]
    resume: bool,
    /// Optimizer steps, in place of planaria.run.steps
    #[arg(long)]
    steps: Option<u64>,
    /// Compute threads
    #[arg(long)]
    threads: Option<u64>,
    /// Override any key of the configuration (repeatable)
    #[arg(long = "set", value_name = "PATH.TO.KEY=VALUE")]
    overrides: Vec<String>,
    /// Stop at the first NaN or infinity, and name the block, leaf and tensor that it is in
    #[arg(long)]
    detect_anomaly: bool,
    /// Say nothing but one JSON object at the end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    ring: RingOptions,
}

impl Train {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        let plan = self.plan()?;
        if self.ring.listen.is_some() {
            let how = How { resume: self.resume, json: self.json };
            return super::train_ring::run(&plan, &self.ring, how);
        }
        let mut session = Session::prepare(plan, &self)?;
        let done = session.train()?;
        session.report(self.json, done)?;
        Ok(done)
    }

    fn plan(&self) -> anyhow::Result<RunPlan> {
        let bytes = std::fs::read(&self.config)
            .map_err(|e| Usage(format!("cannot read {}: {e}", self.config.display())))?;
        let mut overrides = self.overrides.clone();
        overrides.extend(self.steps.map(|s| format!("planaria.run.steps={s}")));
        overrides.extend(self.threads.map(|t| format!("planaria.compute.threads={t}")));
        let options =
            Options { file: self.config.display().to_string(), overrides, ..Options::default() };
        let read = planaria_config::read(&bytes, &options);
        if !self.json || read.report.has_errors() {
            output::note(&read.report.to_text());
        }
        read.plan.ok_or_else(|| Usage("the configuration was not taken".to_owned()).into())
    }
}

/// A run under way.
struct Session {
    plan: RunPlan,
    spec: RunSpec,
    setup: DeviceSetup,
    data: DataLeft,
    trainer: Trainer,
    checkpoints: Checkpoints,
    saved: Option<PathBuf>,
    watch: Option<Arc<Watch>>,
    progress: Progress,
    recorder: Recorder,
    peak: f64,
    last: Option<Decision>,
    validation: Option<f64>,
    rates: Vec<f64>,
}

/// What of the data is needed once training has begun.
struct DataLeft {
    /// The chat template of the model that the run started from.
    chat: Option<planaria_models::generate::chat::ChatTemplate>,
    tokenizer: Option<planaria_models::tokenizers::Tokenizer>,
    validation: Option<std::sync::Arc<dyn planaria_actors::data::LeafSource>>,
}

fn model_folder(plan: &RunPlan) -> anyhow::Result<Option<ModelFolder>> {
    let ModelPlan::InitFrom { folder } = &plan.model else { return Ok(None) };
    let mut folder = folder::open(Path::new(folder))?;
    (folder.spec, folder.weights) = lora::merge(&folder.spec, std::mem::take(&mut folder.weights));
    folder.notes.iter().for_each(|note| output::note(&format!("note: {note}")));
    Ok(Some(folder))
}

/// Adds adapters to the model of a folder.
fn adapt(folder: &mut ModelFolder, lora: LoraSpec, plan: &RunPlan) -> anyhow::Result<ModelSpec> {
    folder.spec.lora = Some(lora);
    folder.spec.check().map_err(|reason| Usage(format!("planaria.lora: {reason}")))?;
    let weights = std::mem::take(&mut folder.weights);
    folder.weights = lora::adopt(&folder.spec, weights, plan.run.seed);
    Ok(folder.spec.clone())
}

fn say(json: bool, line: &str) {
    if !json {
        output::note(line);
    }
}

impl Session {
    fn prepare(plan: RunPlan, asked: &Train) -> anyhow::Result<Session> {
        let (resume, json) = (asked.resume, asked.json);
        let dir = PathBuf::from(&plan.run.dir);
        let mut folder = model_folder(&plan)?;
        let from = folder.as_ref().map(|f| f.tokenizer_folder(&dir)).transpose()?;
        let data = data::prepare(&plan.data, &dir, from.as_deref())?;
        let chat = folder.as_ref().and_then(|f| f.chat.clone());
        let model = match (&plan.model, &folder) {
            (ModelPlan::Fresh(shape), _) => plan::model_spec(shape, data.vocab)?,
            (_, Some(folder)) => folder.spec.clone(),
            _ => unreachable!("a model is fresh or from a folder"),
        };
        check_vocab(&data, model.vocab)?;
        let init = folder.as_ref().map(ModelFolder::digest);
        let model = match (&plan.lora, &mut folder) {
            (Some(lora), Some(folder)) => adapt(folder, plan::lora(lora, model.family), &plan)?,
            _ => model,
        };
        let spec = plan::run_spec(&plan, model, (data.digest, init))?;
        let model = spec.model.build();
        let choice = (plan.recompute, plan.compute.memory);
        let (setup, chosen) = cost::choose(&spec, &model, plan::setup(&plan)?, choice)?;
        introduce(&spec, &data, (&model, &chosen), json);
        drop(model);
        let Data { tokenizer, train, validation, .. } = data;
        let mut device = Device::new(&spec, &setup, Box::new(train));
        if let Some(folder) = folder {
            device.load_weights(folder.weights).map_err(anyhow::Error::msg)?;
        }
        let watch = asked.detect_anomaly.then(|| {
            let (model, watch) = anomaly::watch(spec.model.build());
            device.watch((model, Arc::clone(&watch)));
            watch
        });
        let checkpoints = Checkpoints::create(&dir.join("checkpoints"))?;
        let saved = if resume { restore(&checkpoints, &spec, &mut device, json)? } else { None };
        let peak = machine::peak_flops_per_s(&Kit::new(setup.threads, setup.isa), spec.precision);
        let trainer = Trainer::start(spec.clone(), &setup, device)?;
        let done = trainer.state().0.0;
        let board = plan.records.tensorboard.as_ref().map(|t| tensorboard_dir(&dir, t));
        let metrics = plan.records.metrics.then_some(dir.as_path());
        let recorder = Recorder::create(metrics, board.as_deref()).context("records")?;
        let progress = Progress::new(plan.run.steps, done, plan.steps_per_print, json);
        interrupt::watch()?;
        let data = DataLeft { chat, tokenizer, validation };
        let (last, validation, rates) = (None, None, Vec::new());
        Ok(Session {
            plan,
            spec,
            setup,
            data,
            trainer,
            checkpoints,
            saved,
            watch,
            progress,
            recorder,
            peak,
            last,
            validation,
            rates,
        })
    }

    fn train(&mut self) -> anyhow::Result<Done> {
        // What a fine-tuned model is to be compared with.
        if self.spec.init_from.is_some() && self.trainer.state().0.0 == 0 {
            self.evaluate()?;
        }
        while self.trainer.state().0.0 < self.plan.run.steps {
            let start = Instant::now();
            let outcome = self.trainer.step()?;
            let seconds = start.elapsed().as_secs_f64();
            for restart in &outcome.restarts {
                let line = format!("{:?} was started again: {}", restart.id, restart.reason);
                self.progress.say(&line);
            }
            if let Some(anomaly) = self.watch.as_ref().and_then(|w| w.found()) {
                anyhow::bail!("{anomaly}. Nothing was saved; the last checkpoint is as it was");
            }
            self.after_step(outcome.decision, seconds)?;
            if interrupt::requested() {
                self.save()?;
                self.progress.say("stopped by Ctrl-C at a step boundary; go on with --resume");
                return Ok(Done::Interrupted);
            }
        }
        self.progress.finish();
        self.evaluate()?;
        self.save()?;
        Ok(Done::All)
    }

    fn after_step(&mut self, decision: Decision, seconds: f64) -> anyhow::Result<()> {
        let step = decision.step.0;
        if let Verdict::Skip(reason) = decision.verdict {
            self.progress.say(&skip_text(step, reason));
        }
        let per_step =
            u64::from(self.spec.leaves) * (self.spec.sequences * self.spec.length) as u64;
        let rate = per_step as f64 / seconds;
        self.rates.push(rate);
        let recent = &self.rates[self.rates.len().saturating_sub(20)..];
        let tokens_per_s = recent.len() as f64 / recent.iter().map(|r| 1.0 / r).sum::<f64>();
        let flops = self.spec.model.flops_per_token(self.spec.length) as f64;
        self.last = Some(decision);
        let left = (self.plan.run.steps - step) as f64 * per_step as f64 / tokens_per_s;
        self.progress.step(&Shown {
            step,
            loss: decision.loss,
            validation: self.validation,
            tokens_per_s,
            peak_share: flops * tokens_per_s / self.peak,
            eta_s: left,
        });
        self.recorder.record(
            step,
            &[
                ("loss", decision.loss),
                ("learning_rate", decision.learning_rate),
                ("gradient_norm", decision.gradient_norm),
                ("tokens", (step * per_step) as f64),
                ("tokens_per_s", rate),
                ("skipped", f64::from(u8::from(!decision.is_commit()))),
            ],
        )?;
        let run = &self.plan.run;
        let due = |every: u64| every > 0 && step.is_multiple_of(every) && step < run.steps;
        let (evaluate, save) = (due(run.eval_every), due(run.checkpoint_every));
        if evaluate {
            self.evaluate()?;
        }
        if save {
            self.save_or_warn();
        }
        Ok(())
    }

    fn evaluate(&mut self) -> anyhow::Result<()> {
        let Some(source) = self.data.validation.clone() else { return Ok(()) };
        let stats = self.trainer.evaluate(source, self.plan.run.eval_batches.max(1))?;
        if stats.labels > 0 {
            let loss = stats.loss_sum / stats.labels as f64;
            self.validation = Some(loss);
            let step = self.trainer.state().0.0;
            self.progress.say(&format!("step {step}: validation loss {loss:.4}"));
            self.recorder.record(step, &[("validation_loss", loss)])?;
        }
        Ok(())
    }

    /// A disk that is full in the middle of a run does not end it: older checkpoints are untouched.
    fn save_or_warn(&mut self) {
        if let Err(error) = self.save() {
            self.progress.say(&format!("warning: no checkpoint was saved: {error:#}"));
        }
    }

    fn save(&mut self) -> anyhow::Result<()> {
        let tokenizer = self.data.tokenizer.as_ref().map(|t| t.spec());
        let chat = self.data.chat.as_ref();
        let path = save::save(&self.trainer, &self.checkpoints, tokenizer, chat)?;
        self.checkpoints.retain(self.plan.run.keep_last, self.plan.run.keep_every)?;
        self.saved = Some(path);
        Ok(())
    }

    fn report(mut self, json: bool, done: Done) -> anyhow::Result<()> {
        let hash = self.trainer.state_hash()?;
        let (step, _) = self.trainer.state();
        let mut rates = std::mem::take(&mut self.rates);
        rates.sort_by(f64::total_cmp);
        let rate = rates.get(rates.len() / 2).copied();
        let flops = self.spec.model.flops_per_token(self.spec.length) as f64;
        let per_step =
            u64::from(self.spec.leaves) * (self.spec.sequences * self.spec.length) as u64;
        let checkpoint = self.saved.as_ref().map(|p| p.display().to_string());
        let resident = machine::resident_bytes().1;
        if json {
            output::json(&json!({
                "steps": step.0,
                "tokens": step.0 * per_step,
                "train_loss": self.last.map(|d| d.loss),
                "val_loss": self.validation,
                "state_hash": hash,
                "tokens_per_s": rate,
                "flops_per_s": rate.map(|r| r * flops),
                "peak_rss_bytes": resident,
                "checkpoint": checkpoint,
            }));
            return Ok(());
        }
        if let Some(path) = self.saved.as_ref().filter(|_| done == Done::All) {
            self.sample(path)?;
        }
        output::line(&format!("state hash  {hash} after {} steps", step.0));
        output::line(&format!("checkpoint  {}", checkpoint.as_deref().unwrap_or("none")));
        let rate = rate.map_or(String::new(), |r| {
            format!("{r:.0} tokens/s (median), {:.0} % of peak, ", 100.0 * r * flops / self.peak)
        });
        output::line(&format!("speed       {rate}{} at most", format_bytes(resident)));
        Ok(())
    }

    /// Generates the sample that the configuration asks for.
    fn sample(&self, path: &Path) -> anyhow::Result<()> {
        let (Some(sample), Some(tokenizer)) = (&self.plan.run.sample, &self.data.tokenizer) else {
            return Ok(());
        };
        let folder = folder::open(path)?;
        let mut decoder = folder.decoder(self.setup.threads);
        let prompt = tokenizer.encode_control(sample.prompt.as_bytes())?;
        let (temperature, top_p, seed) = (sample.temperature, sample.top_p, self.plan.run.seed);
        let sampling = Sampling { temperature, top_p, seed, ..Sampling::default() };
        let mut ids = prompt.clone();
        decoder.generate(&prompt, sample.tokens as usize, sampling, |id| {
            ids.push(id);
            true
        })?;
        output::line("--- a sample ---");
        output::line(&String::from_utf8_lossy(&tokenizer.decode(&ids)));
        output::line("----------------");
        Ok(())
    }
}

pub(super) fn check_vocab(data: &Data, vocab: usize) -> anyhow::Result<()> {
    let found = data.vocab;
    if found > vocab {
        let reason = format!("the data's ids go up to {found}, the model's vocabulary has {vocab}");
        return Err(Usage(reason).into());
    }
    Ok(())
}

fn introduce(spec: &RunSpec, data: &Data, (model, chosen): (&Model, &Candidate), json: bool) {
    let params: usize = model.params.iter().map(|p| p.elements()).sum();
    say(json, &format!("data   {}", data.note));
    say(
        json,
        &format!(
            "model  {:.2} M parameters, {} leaves of {} x {} tokens a step",
            params as f64 / 1e6,
            spec.leaves,
            spec.sequences,
            spec.length
        ),
    );
    let trained = model.params.iter().filter(|p| !p.frozen).map(|p| p.elements()).sum::<usize>();
    if trained < params {
        let (trained, share) = (trained as f64 / 1e6, 100.0 * trained as f64 / params as f64);
        say(json, &format!("lora   {trained:.2} M parameters are trained, {share:.2} %"));
    }
    let (memory, layout) = (format_bytes(cost::bytes(chosen)), &chosen.layout);
    let how = if layout.recompute { ", recomputing activations" } else { "" };
    say(json, &format!("memory {memory} planned{how}; run {}", spec.run_id()));
}

fn tensorboard_dir(dir: &Path, plan: &planaria_config::plan::TensorboardPlan) -> PathBuf {
    let folder = plan.folder.as_ref().map_or_else(|| dir.join("tensorboard"), PathBuf::from);
    plan.job_name.as_ref().map_or(folder.clone(), |job| folder.join(job))
}

fn restore(
    checkpoints: &Checkpoints,
    spec: &RunSpec,
    device: &mut Device,
    json: bool,
) -> anyhow::Result<Option<PathBuf>> {
    let (checkpoint, bad) = checkpoints.newest_good()?;
    bad.iter().for_each(|b| say(json, &format!("warning: {b}; the one before is taken")));
    let manifest = &checkpoint.manifest;
    if manifest.spec != serde_json::to_value(spec)? {
        let path = checkpoint.path.display();
        let reason = format!(
            "{path} belongs to another run: its spec differs ({}); start without --resume or restore the configuration",
            differences(&manifest.spec, &serde_json::to_value(spec)?)
        );
        return Err(Usage(reason).into());
    }
    let state = checkpoint.state()?;
    device.restore(&state, manifest.step, manifest.updates).map_err(anyhow::Error::msg)?;
    if let Some(scale) = manifest.extra.get("loss_scale").filter(|s| !s.is_null()) {
        device.restore_loss_scale(serde_json::from_value(scale.clone()).context("loss scale")?);
    }
    let hash = device.state_hash();
    anyhow::ensure!(
        hash == manifest.state_hash,
        "{}: the restored state's hash is {hash}, the manifest says {}",
        checkpoint.path.display(),
        manifest.state_hash
    );
    say(json, &format!("resumed at step {} from {}", manifest.step, checkpoint.path.display()));
    Ok(Some(checkpoint.path))
}

fn differences(a: &serde_json::Value, b: &serde_json::Value) -> String {
    let keys = a.as_object().into_iter().flatten().filter(|(k, v)| b[k.as_str()] != **v);
    keys.map(|(k, _)| k.as_str()).collect::<Vec<_>>().join(", ")
}

fn skip_text(step: u64, reason: Skip) -> String {
    match reason {
        Skip::NotFinite(chunk) => format!(
            "step {step}: skipped, a gradient of chunk {chunk} is not finite at this loss scale"
        ),
        Skip::NoLabels => format!("step {step}: skipped, no tokens are counted in the batch"),
        Skip::Overflow(chunk) => {
            format!("step {step}: skipped, a gradient of chunk {chunk} is not finite or too large")
        }
    }
}
