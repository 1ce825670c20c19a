//! `planaria bench`: the machine's peaks, and training steps beside them.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use crate::machine;
use crate::output::{self, Done, Usage};
use clap::{Args, Subcommand, ValueEnum};
use planaria_actors::data::LeafSource;
use planaria_actors::device::{Device, DeviceSetup, MemoryPlan};
use planaria_actors::spec::{RunSpec, SPEC_VERSION};
use planaria_actors::step::schedule::Order;
use planaria_actors::trainer::Trainer;
use planaria_base::Digest;
use planaria_base::limits::CHUNK_ELEMENTS;
use planaria_base::rng::CounterRng;
use planaria_base::units::format_bytes;
use planaria_models::block::Precision;
use planaria_models::compute::Kit;
use planaria_models::families::ModelSpec;
use planaria_models::kernels::Isa;
use planaria_models::optimizers::{Adam, OptimizerSpec};
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
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Dtype {
    F32,
    Bf16,
}

impl Bench {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        match self.what {
            None => peaks(self.json),
            Some(What::Step(step)) => bench_step(&step, self.json)?,
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
        leaves: 1,
        seed: 0,
        precision: if step.dtype == Dtype::F32 { Precision::F32 } else { Precision::Bf16 },
        loss_scale: None,
        optimizer: OptimizerSpec::Adam(Adam {
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.1,
            decoupled: true,
            bias_correction: true,
        }),
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
        order: Order::DepthFirst,
        recompute: false,
    };
    let plan = MemoryPlan::of(&spec, &spec.model.build(), &setup);
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
    let packing = trainer.call(|device| device.packing_bytes())?;
    drop(trainer);
    report(&spec, seconds, (plan, packing), before.max(peak()), json);
    Ok(())
}

fn report(
    spec: &RunSpec,
    mut seconds: Vec<f64>,
    (plan, packing): (MemoryPlan, usize),
    peak: f64,
    json: bool,
) {
    seconds.sort_by(f64::total_cmp);
    let tokens = (spec.sequences * spec.length) as f64;
    let rate = |s: f64| tokens / s;
    let (fastest, median, slowest) =
        (seconds[0], seconds[seconds.len() / 2], seconds[seconds.len() - 1]);
    let flops = rate(median) * spec.model.flops_per_token(spec.length) as f64;
    let resident = machine::resident_bytes().1;
    let planned = plan.total() as u64;
    if json {
        return output::json(&json!({
            "tokens_per_s": { "min": rate(slowest), "median": rate(median), "max": rate(fastest) },
            "flops_per_s": flops,
            "peak_flops_per_s": peak,
            "peak_rss_bytes": resident,
            "planned_bytes": planned,
            "plan": plan,
            "packing_bytes": packing,
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
        format_bytes(planned)
    ));
}
