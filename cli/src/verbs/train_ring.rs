//! `planaria train --listen`: a run that other nodes may join.

use crate::data::{self, Data};
use crate::interrupt;
use crate::machine;
use crate::output::{self, Done, Usage};
use crate::plan;
use crate::ring::{self, CheckpointVault, Ended, RingSession, RunIntro};
use anyhow::Context;
use clap::Args;
use planaria_actors::device::DeviceSetup;
use planaria_actors::protocol::decision::Decision;
use planaria_actors::protocol::log::CommandLog;
use planaria_actors::protocol::spec::Timing;
use planaria_actors::ring::net::NetWire;
use planaria_actors::ring::node::Evaluation;
use planaria_actors::ring::run::{Entry, NodeSetup, RingPlan, Run, Setup};
use planaria_actors::spec::RunSpec;
use planaria_config::RunPlan;
use planaria_config::plan::ModelPlan;
use planaria_models::optimizers::OptimizerSpec;
use planaria_models::partials::loss_from_grid;
use planaria_storage::checkpoint::Checkpoints;
use serde_json::json;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// Skips running that stop a run.
const SKIPS_THAT_STOP: u32 = 8;

/// Options of a run that other nodes may join.
#[derive(Args)]
pub(crate) struct RingOptions {
    /// Let other nodes join at this address (port 0: any free one); they need the ring key
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) listen: Option<String>,
    /// File with the ring key; by default ~/.planaria/ring.key, made if missing
    #[arg(long, requires = "listen")]
    key: Option<PathBuf>,
    /// Copies of each chunk's state, the owner's included
    #[arg(long, default_value_t = 2, requires = "listen")]
    replicas: usize,
}

/// How the verb was asked.
#[derive(Clone, Copy)]
pub(crate) struct How {
    /// From the newest good checkpoint.
    pub(crate) resume: bool,
    /// One JSON object at the end.
    pub(crate) json: bool,
}

/// What ring runs do not take yet is refused by name.
fn refuse(plan: &RunPlan, spec: &RunSpec) -> anyhow::Result<()> {
    let what = match spec.optimizer {
        OptimizerSpec::Lamb(_) => "optimizer LAMB",
        OptimizerSpec::Muon(_) => "optimizer Muon",
        _ if spec.loss_scale.is_some() => "fp16",
        _ if plan.lora.is_some() => "planaria.lora",
        _ if matches!(plan.model, ModelPlan::InitFrom { .. }) => "planaria.model.init_from",
        _ => return Ok(()),
    };
    Err(Usage(format!("{what} is not built for runs that other nodes join; leave --listen out"))
        .into())
}

/// Runs the first node of a ring.
///
/// # Errors
/// If the configuration asks for what rings do not take, or the run stops before its end.
pub(crate) fn run(plan: &RunPlan, options: &RingOptions, how: How) -> anyhow::Result<Done> {
    let dir = std::path::absolute(&plan.run.dir)?;
    let ModelPlan::Fresh(shape) = &plan.model else {
        return Err(Usage(
            "planaria.model.init_from is not built for rings; leave --listen out".into(),
        )
        .into());
    };
    let data = data::prepare(&plan.data, &dir, None)?;
    let model = plan::model_spec(shape, data.vocab)?;
    super::train::check_vocab(&data, model.vocab)?;
    let spec = plan::run_spec(plan, model, (data.digest, None))?;
    refuse(plan, &spec)?;
    let intro = introduction(plan, options, &spec, (&data, &dir));
    let checkpoints = Checkpoints::create(&dir.join("checkpoints"))?;
    let entry = if how.resume { resume(&checkpoints, &spec)? } else { None };
    let (run, ear) = start(plan, options, &intro, (data, entry, checkpoints.clone()), how.json)?;
    interrupt::watch()?;
    let ended = RingSession::new(run, &ear, &intro, how.json).follow()?;
    checkpoints.retain(plan.run.keep_last, plan.run.keep_every)?;
    report(&intro, &ended, how.json);
    Ok(if ended.interrupted { Done::Interrupted } else { Done::All })
}

fn introduction(
    plan: &RunPlan,
    options: &RingOptions,
    spec: &RunSpec,
    (data, dir): (&Data, &std::path::Path),
) -> RunIntro {
    let tokenizer = data.tokenizer.as_ref().map(|t| t.spec());
    RunIntro {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        spec: spec.clone(),
        ring: RingPlan {
            stage: plan.zero.stage,
            replicas: options.replicas,
            checkpoint_every: plan.run.checkpoint_every,
            last_step: plan.run.steps,
            skips_that_stop: SKIPS_THAT_STOP,
        },
        dir: dir.to_owned(),
        data: data.stretch.clone(),
        extra: json!({ "tokenizer": tokenizer, "chat": null, "loss_scale": null }),
    }
}

type Start = Option<Box<(Decision, CommandLog)>>;

fn resume(checkpoints: &Checkpoints, spec: &RunSpec) -> anyhow::Result<Start> {
    let (checkpoint, bad) = checkpoints.newest_good()?;
    bad.iter().for_each(|b| output::note(&format!("warning: {b}; the one before is taken")));
    let manifest = &checkpoint.manifest;
    if manifest.spec != serde_json::to_value(spec)? {
        let reason = format!("{} belongs to another run", checkpoint.path.display());
        return Err(Usage(reason).into());
    }
    let decision = &manifest.extra["decision"];
    if decision.is_null() {
        let reason = format!(
            "{} was not written by a ring; go on without --listen",
            checkpoint.path.display()
        );
        return Err(Usage(reason).into());
    }
    let decision = serde_json::from_value(decision.clone()).context("the manifest's decision")?;
    let log =
        serde_json::from_value(manifest.extra["log"].clone()).context("the manifest's log")?;
    output::note(&format!("resuming at step {} from {}", manifest.step, checkpoint.path.display()));
    Ok(Some(Box::new((decision, log))))
}

fn start(
    plan: &RunPlan,
    options: &RingOptions,
    intro: &RunIntro,
    (data, entry, checkpoints): (Data, Start, Checkpoints),
    quiet: bool,
) -> anyhow::Result<(Run, planaria_actors::ring::net::Ear)> {
    let listen = options.listen.as_deref().unwrap_or("127.0.0.1:0");
    let node = ring::fresh_name()?;
    let key = ring::load_key(options.key.as_deref())?;
    let (transport, ear) = ring::transport(key, node, ring::resolve(listen)?[0])?;
    // Where packets to the wide world would leave from is where others find this node.
    let wide: SocketAddr = ([192, 0, 2, 1], 9).into();
    let local = transport.local().at;
    let at = transport.address_towards(wide).unwrap_or(local);
    if !quiet {
        output::note(&format!(
            "run {}; to add a node:\n  planaria node --join {at}",
            intro.spec.run_id()
        ));
    }
    let DeviceSetup { threads, isa, order, recompute } = plan::setup(plan)?;
    let evaluation =
        Evaluation { every: plan.run.eval_every, batches: plan.run.eval_batches.max(1) };
    let wire = NetWire::new(transport, &[]);
    let run = Run::start(NodeSetup {
        spec: intro.spec.clone(),
        ring: intro.ring,
        timing: Timing::default(),
        setup: Setup { threads, isa, order, recompute },
        identity: ring::identity(Some(at), node),
        entry: Entry::Found(entry),
        source: Box::new(data.train),
        validation: data.validation.map(|v| (v, evaluation)),
        vault: Arc::new(CheckpointVault::new(intro.clone(), checkpoints)),
        wire: Arc::new(wire),
    })?;
    Ok((run, ear))
}

fn report(intro: &RunIntro, ended: &Ended, json: bool) {
    let step = ended.last.as_ref().map_or(0, |d| d.step.0);
    let loss = ended.last.as_ref().map(|d| loss_from_grid(d.loss) / d.labels.max(1) as f64);
    let spec = &intro.spec;
    let tokens = u64::from(spec.leaves) * (spec.sequences * spec.length) as u64;
    let mut seconds = ended.seconds.clone();
    seconds.sort_by(f64::total_cmp);
    let rate = seconds.get(seconds.len() / 2).map(|s| tokens as f64 / s);
    let resident = machine::resident_bytes().1;
    let hash = ended.hash.filter(|h| h.0.0 == step).map(|h| h.1);
    if json {
        output::json(&json!({
            "steps": step,
            "tokens": step * tokens,
            "train_loss": loss,
            "val_loss": ended.validation,
            "state_hash": hash,
            "tokens_per_s": rate,
            "peak_rss_bytes": resident,
        }));
        return;
    }
    let hash = hash.map_or("published by another node".to_owned(), |h| h.to_string());
    output::line(&format!("state hash  {hash} after {step} steps"));
    let rate = rate.map_or(String::new(), |r| format!("{r:.0} tokens/s (median), "));
    let resident = planaria_base::units::format_bytes(resident);
    output::line(&format!("speed       {rate}{resident} at most"));
}
