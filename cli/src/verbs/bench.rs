//! `planaria bench`: the machine's peaks, and training steps beside them.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use crate::cost;
use crate::machine;
use crate::output::{self, Done, Usage};
use clap::{Args, Subcommand, ValueEnum};
use planaria_actors::data::LeafSource;
use planaria_actors::device::{Device, DeviceSetup};
use planaria_actors::spec::{RunSpec, SPEC_VERSION};
use planaria_actors::step::schedule::Order;
use planaria_actors::trainer::Trainer;
use planaria_base::Digest;
use planaria_base::limits::CHUNK_ELEMENTS;
use planaria_base::rng::CounterRng;
use planaria_base::units::format_bytes;
use planaria_config::planner::{self, Candidate, Layout};
use planaria_models::block::Precision;
use planaria_models::compute::Kit;
use planaria_models::families::ModelSpec;
use planaria_models::kernels::Isa;
use planaria_models::loss_scale::{DynamicScale, LossScaleSpec};
use planaria_models::optimizers::{Adam, Lamb, Lion, Muon, OptimizerSpec, Sgd};
use planaria_models::schedules::ScheduleSpec;
use serde_json::json;
use std::time::Instant;

/// Measure this machine, or training steps on it.
#[derive(Args)]
pub(crate) struct Bench {
    #[command(subcommand)]
    what: Option<What>,
    /// End with one JSON object
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum What {
    /// Whole training steps on random tokens
    Step(Step),
    /// Plans beside what processes really take, over a dozen configurations; fails above 10 %
    Plan(super::bench_plan::BenchPlan),
}

#[derive(Args, Clone)]
struct Step {
    /// Model: tiny, small (30 M parameters) or 124m
    #[arg(long, default_value = "small")]
    size: String,
    /// Arithmetic of matrix products
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
    /// Compute threads
    #[arg(long, default_value_t = machine::cores() as u64, value_parser = clap::value_parser!(u64).range(1..))]
    threads: u64,
    /// Steps to measure, after two to warm up
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Leaves of a step
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    leaves: u32,
    /// Recompute activations
    #[arg(long)]
    recompute: bool,
    /// Optimizer
    #[arg(long, value_enum, default_value_t = Kind::Adamw)]
    optimizer: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Adamw,
    Lamb,
    Lion,
    Muon,
    Sgd,
}

impl Kind {
    fn spec(self) -> OptimizerSpec {
        match self {
            Kind::Adamw => OptimizerSpec::Adam(Adam { weight_decay: 0.1, ..Adam::default() }),
            Kind::Lamb => OptimizerSpec::Lamb(Lamb::default()),
            Kind::Lion => OptimizerSpec::Lion(Lion::default()),
            Kind::Muon => OptimizerSpec::Muon(Muon::default()),
            Kind::Sgd => OptimizerSpec::Sgd(Sgd::default()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Dtype {
    F32,
    Bf16,
    F16,
}

impl Bench {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        match self.what {
            None => peaks(self.json),
            Some(What::Step(step)) => bench_step(&step, self.json)?,
            Some(What::Plan(plan)) => plan.run(self.json)?,
        }
        Ok(Done::All)
    }
}

fn peaks(json: bool) {
    let threads = machine::cores();
    let kit = Kit::new(threads, Isa::detect());
    let f32_peak = machine::peak_flops_per_s(&kit, Precision::F32);
    let bf16_peak = machine::peak_flops_per_s(&kit, Precision::Bf16);
    if json {
        return output::json(&json!({
            "threads": threads,
            "isa": kit.isa.to_string(),
            "f32_flops_per_s": f32_peak,
            "bf16_flops_per_s": bf16_peak,
        }));
    }
    output::line(&format!("{threads} threads, {}", kit.isa));
    output::line(&format!("f32  fused multiply-add peak {:8.1} GFLOP/s", f32_peak / 1e9));
    output::line(&format!("bf16 dot-product peak       {:8.1} GFLOP/s", bf16_peak / 1e9));
}

/// Random tokens: what the step costs does not depend on them.
struct RandomTokens {
    vocab: u64,
}

impl LeafSource for RandomTokens {
    fn samples(&self) -> u64 {
        1 << 20
    }

    fn load(&self, sample: u64, tokens: &mut [u32], labels: &mut [i32]) -> Result<(), String> {
        let rng = CounterRng::new(0).fork(sample);
        for (i, (t, l)) in tokens.iter_mut().zip(labels).enumerate() {
            *t = rng.below(2 * i as u64, self.vocab) as u32;
            *l = rng.below(2 * i as u64 + 1, self.vocab) as i32;
        }
        Ok(())
    }
}

fn spec(step: &Step) -> anyhow::Result<RunSpec> {
    let model = ModelSpec::preset(&step.size)
        .ok_or_else(|| Usage(format!("no size {}; there are tiny, small and 124m", step.size)))?;
    let sequences = match step.size.as_str() {
        "tiny" => 8,
        "small" => 4,
        _ => 2,
    };
    Ok(RunSpec {
        version: SPEC_VERSION,
        init_from: None,
        data: Digest::of(b"random tokens"),
        sequences,
        length: model.max_length,
        leaves: step.leaves,
        seed: 0,
        precision: match step.dtype {
            Dtype::F32 => Precision::F32,
            Dtype::Bf16 => Precision::Bf16,
            Dtype::F16 => Precision::F16,
        },
        loss_scale: (step.dtype == Dtype::F16)
            .then(|| LossScaleSpec::Dynamic(DynamicScale::default())),
        optimizer: step.optimizer.spec(),
        schedule: ScheduleSpec::Constant { rate: 3e-4 },
        clip: 1.0,
        grid_max_log2: 8,
        chunk_elements: CHUNK_ELEMENTS,
        model,
    })
}

fn bench_step(step: &Step, json: bool) -> anyhow::Result<()> {
    let spec = spec(step)?;
    let setup = DeviceSetup {
        threads: step.threads as usize,
        isa: Isa::detect(),
        order: if step.leaves > 1 { Order::BreadthFirst } else { Order::DepthFirst },
        recompute: step.recompute,
    };
    let planned = planned(&spec, &setup);
    let source = RandomTokens { vocab: spec.model.vocab as u64 };
    // Before and after: a neighbour's burst must not pass for the processor's peak.
    let peak = || machine::peak_flops_per_s(&Kit::new(setup.threads, setup.isa), spec.precision);
    let before = peak();
    let device = Device::new(&spec, &setup, Box::new(source));
    let mut trainer = Trainer::start(spec.clone(), &setup, device)?;
    let mut seconds = Vec::new();
    for i in 0..step.steps + 2 {
        let start = Instant::now();
        trainer.step()?;
        if i >= 2 {
            seconds.push(start.elapsed().as_secs_f64());
        }
    }
    drop(trainer);
    report(&spec, seconds, &planned, before.max(peak()), json);
    Ok(())
}

/// What the planner says of the step, at rates measured now.
fn planned(spec: &RunSpec, setup: &DeviceSetup) -> Candidate {
    let cost = cost::model_cost(spec, &spec.model.build(), setup);
    let kit = Kit::new(setup.threads, setup.isa);
    let mut machine = cost::this_node(u64::MAX);
    machine.rates.flops_per_s = cost::flops_per_s(&kit, spec);
    machine.rates.memory_bytes_per_s = machine::memory_bytes_per_s(&kit);
    let order = match setup.order {
        Order::BreadthFirst => planner::Order::BreadthFirst,
        Order::DepthFirst => planner::Order::DepthFirst,
    };
    let layout = Layout { recompute: setup.recompute, order, ..Layout::plain() };
    planner::evaluate(&cost, &cost::workload(spec), &machine, layout)
}

fn report(spec: &RunSpec, mut seconds: Vec<f64>, planned: &Candidate, peak: f64, json: bool) {
    seconds.sort_by(f64::total_cmp);
    let tokens = (spec.leaves as usize * spec.sequences * spec.length) as f64;
    let rate = |s: f64| tokens / s;
    let (fastest, median, slowest) =
        (seconds[0], seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
    let flops = rate(median) * spec.model.flops_per_token(spec.length) as f64;
    let resident = machine::resident_bytes().1;
    let planned_bytes = cost::bytes(planned);
    if json {
        return output::json(&json!({
            "tokens_per_s": { "min": rate(slowest), "median": rate(median), "max": rate(fastest) },
            "flops_per_s": flops,
            "peak_flops_per_s": peak,
            "peak_rss_bytes": resident,
            "planned_bytes": planned_bytes,
            "plan": planned.memory,
            "step_s": median,
            "planned_step_s": planned.time.step_s,
        }));
    }
    output::line(&format!(
        "{:.0} tokens/s ({:.0} to {:.0}) · {:.1} GFLOP/s, {:.1} % of the peak of {:.1}",
        rate(median),
        rate(slowest),
        rate(fastest),
        flops / 1e9,
        100.0 * flops / peak,
        peak / 1e9
    ));
    output::line(&format!(
        "memory at most {} resident; planned {}",
        format_bytes(resident),
        format_bytes(planned_bytes)
    ));
}
