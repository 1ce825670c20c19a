//! Law 1: the state after a step is a function of the run spec and the step, whatever executes it.

use planaria_actors::data::LeafSource;
use planaria_actors::device::{Device, DeviceSetup, MemoryPlan};
use planaria_actors::node::ActorId;
use planaria_actors::spec::{RunSpec, SPEC_VERSION};
use planaria_actors::step::decision::{Skip, Verdict};
use planaria_actors::step::schedule::Order;
use planaria_actors::trainer::Trainer;
use planaria_base::rng::CounterRng;
use planaria_base::{ChunkId, Digest};
use planaria_models::block::Precision;
use planaria_models::families::ModelSpec;
use planaria_models::kernels::Isa;
use planaria_models::loss_scale::{DynamicScale, LossScaleSpec};
use planaria_models::optimizers::{Adagrad, Adam, Lamb, Lion, Muon, OptimizerSpec, Sgd};
use planaria_models::schedules::{CycleMomentum, ScheduleSpec, Warmup};

/// Text-like samples: each token depends on the one before, so that there is something to learn.
struct Toy;

impl LeafSource for Toy {
    fn samples(&self) -> u64 {
        23
    }

    fn load(&self, sample: u64, tokens: &mut [u32], labels: &mut [i32]) -> Result<(), String> {
        let rng = CounterRng::new(7).fork(sample);
        let mut at = rng.below(0, 61) as u32;
        for (i, (token, label)) in tokens.iter_mut().zip(labels).enumerate() {
            *token = at;
            at = (at * 3 + rng.below(i as u64 + 1, 4) as u32) % 61;
            *label = if i % 11 == 10 { -100 } else { at as i32 };
        }
        Ok(())
    }
}

fn spec(leaves: u32, precision: Precision) -> RunSpec {
    RunSpec {
        version: SPEC_VERSION,
        model: ModelSpec::gpt2(3, 32, 4, 61, 40),
        init_from: None,
        data: Digest::of(b"toy"),
        sequences: 2,
        length: 40,
        leaves,
        seed: 1,
        precision,
        loss_scale: None,
        optimizer: OptimizerSpec::Adam(Adam {
            betas: [0.9, 0.95],
            eps: 1e-8,
            weight_decay: 0.1,
            decoupled: true,
            bias_correction: true,
        }),
        schedule: ScheduleSpec::WarmupCosine {
            rate: 3e-3,
            min_ratio: 0.0,
            cos_min_ratio: 0.1,
            warmup: 5,
            total: 50,
            shape: Warmup::Linear,
        },
        clip: 1.0,
        grid_max_log2: 8,
        chunk_elements: 5_000,
    }
}

fn setup() -> DeviceSetup {
    let order = Order::BreadthFirst;
    DeviceSetup { threads: 2, isa: Isa::detect(), order, recompute: false }
}

fn trainer(spec: &RunSpec, setup: &DeviceSetup) -> Trainer {
    let device = Device::new(spec, setup, Box::new(Toy));
    Trainer::start(spec.clone(), setup, device).expect("threads start")
}

fn hash_after(spec: &RunSpec, setup: &DeviceSetup, steps: u64) -> Digest {
    let mut trainer = trainer(spec, setup);
    for _ in 0..steps {
        trainer.step().expect("a step");
    }
    trainer.state_hash().expect("a hash")
}

/// Fifty steps with one, two and three threads; breadth first and depth first; with and without
/// recomputation; AVX2 and AVX-512: one hash.
#[test]
fn how_a_run_is_executed_does_not_show() {
    for leaves in [1, 3] {
        let spec = spec(leaves, Precision::F32);
        let want = hash_after(&spec, &setup(), 50);
        let mut setups =
            vec![DeviceSetup { threads: 1, ..setup() }, DeviceSetup { threads: 3, ..setup() }];
        setups.push(DeviceSetup { order: Order::DepthFirst, ..setup() });
        setups.push(DeviceSetup { recompute: true, ..setup() });
        setups.push(DeviceSetup { order: Order::DepthFirst, recompute: true, ..setup() });
        setups.extend(
            Isa::available().filter(|&i| i > Isa::Scalar).map(|isa| DeviceSetup { isa, ..setup() }),
        );
        for setup in setups {
            assert_eq!(hash_after(&spec, &setup, 50), want, "{leaves} leaves, {setup:?}");
        }
    }
}

/// The scalar kernels give the same bits too (few steps: they are slow).
#[test]
fn scalar_kernels_give_the_same_bits() {
    let spec = spec(2, Precision::F32);
    let scalar = DeviceSetup { isa: Isa::Scalar, ..setup() };
    assert_eq!(hash_after(&spec, &setup(), 3), hash_after(&spec, &scalar, 3));
}

/// A few other ways of execution give the same hash.
fn check_ways(spec: &RunSpec, steps: u64) -> Digest {
    let want = hash_after(spec, &setup(), steps);
    for (threads, order, recompute) in [
        (1, Order::BreadthFirst, false),
        (3, Order::DepthFirst, false),
        (2, Order::DepthFirst, true),
    ] {
        let setup = DeviceSetup { threads, order, recompute, ..setup() };
        assert_eq!(hash_after(spec, &setup, steps), want, "{setup:?}");
    }
    want
}

/// bf16 compute is as deterministic on one ISA.
#[test]
fn bf16_does_not_depend_on_threads_or_order() {
    check_ways(&spec(3, Precision::Bf16), 50);
}

/// fp16 with a first loss scale of 2^`power`.
fn fp16(leaves: u32, power: u32, min_loss_scale: f32) -> RunSpec {
    let dynamic = DynamicScale {
        initial_scale_power: power,
        loss_scale_window: 10,
        min_loss_scale,
        ..DynamicScale::default()
    };
    let loss_scale = Some(LossScaleSpec::Dynamic(dynamic));
    RunSpec { loss_scale, ..spec(leaves, Precision::F16) }
}

/// fp16, with overflows at the start and doublings after: one hash on every ISA too.
#[test]
fn fp16_does_not_depend_on_threads_order_or_isa() {
    for leaves in [1, 3] {
        let spec = fp16(leaves, 26, 1.0);
        let want = check_ways(&spec, 30);
        for isa in Isa::available().filter(|&i| i > Isa::Scalar) {
            assert_eq!(hash_after(&spec, &DeviceSetup { isa, ..setup() }, 30), want, "{isa}");
        }
    }
    assert_ne!(
        hash_after(&fp16(1, 12, 1.0), &setup(), 1),
        hash_after(&fp16(1, 13, 1.0), &setup(), 1)
    );
}

/// The first overflow uses the hysteresis, then the scale halves; skipped steps advance neither the
/// updates nor the schedule, and the model learns once the scale fits.
#[test]
fn the_loss_scale_finds_its_size() {
    let mut trainer = trainer(&fp16(2, 30, 1.0), &setup());
    let scale = |t: &Trainer| t.call(|d| d.loss_scale()).expect("a call").expect("fp16").scale();
    let (mut updates, mut skipped, mut losses) = (0, 0, Vec::new());
    for step in 0..80 {
        let before = scale(&trainer).factor;
        let decision = trainer.step().expect("a step").decision;
        if let Verdict::Skip(Skip::NotFinite(_)) = decision.verdict {
            if updates == 0 {
                let expected = if skipped == 0 { before } else { before / 2.0 };
                assert_eq!(scale(&trainer).factor, expected, "step {step}");
                skipped += 1;
            }
        } else {
            assert_eq!(decision.learning_rate, trainer.spec().schedule.rate(updates));
            updates += 1;
            losses.push(decision.loss);
        }
        assert_eq!(decision.updates, updates);
    }
    assert!(skipped > 3 && updates > 50, "{skipped} skips before {updates} updates");
    assert!(losses[0] > 3.9 && losses[losses.len() - 1] < 3.3, "{losses:?}");
}

/// Under a scale that fits, fp16's steps are fp32's but for rounding.
#[test]
fn fp16_follows_fp32() {
    let (mut half, mut single) =
        (trainer(&fp16(2, 12, 1.0), &setup()), trainer(&spec(2, Precision::F32), &setup()));
    for _ in 0..20 {
        let (a, b) =
            (half.step().expect("a step").decision, single.step().expect("a step").decision);
        assert!((a.loss - b.loss).abs() < 2e-3, "step {}: {} {}", a.step, a.loss, b.loss);
        assert!((a.gradient_norm / b.gradient_norm - 1.0).abs() < 0.02, "step {}", a.step);
    }
}

/// A loss scale that may not shrink to where the gradients fit: the run stops, naming parameters.
#[test]
fn an_overflow_at_the_smallest_scale_stops_the_run() {
    let mut trainer = trainer(&fp16(1, 30, 2f32.powi(29)), &setup());
    let stopped = (0..4).find_map(|_| trainer.step().err()).expect("the third overflow stops it");
    let text = stopped.to_string();
    assert!(text.contains("step 3: ") && text.contains("smallest loss scale"), "{text}");
    assert!(text.contains("infinite in ") && text.contains(".weight"), "{text}");
}

/// A step that is skipped leaves the run able to go on: the next update is applied.
#[test]
fn updates_go_on_after_a_skip() {
    let mut trainer = trainer(&fp16(1, 26, 1.0), &setup());
    let mut hash = trainer.state_hash().expect("a hash");
    for _ in 0..25 {
        let decision = trainer.step().expect("a step").decision;
        let now = trainer.state_hash().expect("a hash");
        assert_ne!(now, hash, "the step is part of the state");
        hash = now;
        assert_eq!(trainer.call(|d| d.state()).expect("a call"), (decision.step, decision.updates));
    }
    assert!(trainer.state().1 > 10, "{:?}", trainer.state());
}

/// LAMB and Muon, whose chunks hold whole parameters, and the elementwise ones: one hash each, and all
/// of them learn.
#[test]
fn every_optimizer_is_deterministic_and_learns() {
    for (optimizer, rate) in [
        (OptimizerSpec::Lamb(Lamb::default()), 2e-2),
        (OptimizerSpec::Muon(Muon { adam_rate: 0.2, ..Muon::default() }), 2e-2),
        (OptimizerSpec::Lion(Lion::default()), 1e-3),
        (OptimizerSpec::Adagrad(Adagrad::default()), 2e-2),
        (OptimizerSpec::Sgd(Sgd { momentum: 0.9, ..Sgd::default() }), 0.3),
    ] {
        let schedule = ScheduleSpec::Constant { rate };
        let spec = RunSpec { optimizer, schedule, ..spec(2, Precision::F32) };
        check_ways(&spec, 6);
        let scalar = DeviceSetup { isa: Isa::Scalar, ..setup() };
        assert_eq!(hash_after(&spec, &scalar, 2), hash_after(&spec, &setup(), 2), "{optimizer:?}");
        let mut trainer = trainer(&spec, &setup());
        let mut losses = Vec::new();
        for _ in 0..60 {
            losses.push(trainer.step().expect("a step").decision.loss);
        }
        assert!(
            losses[0] > 3.9 && losses[59] < 3.4,
            "{optimizer:?}: {} to {}",
            losses[0],
            losses[59]
        );
    }
}

/// A schedule that cycles momentum reaches the optimizer, from the first update on.
#[test]
fn cycled_momentum_reaches_the_update() {
    let cycle = |momentum| {
        let (rates, steps, stairs) = ([1e-3, 1e-2], [3, 3], [0, 0]);
        let (decay_rate, decay_step) = (0.0, 0);
        let schedule =
            ScheduleSpec::OneCycle { rates, steps, stairs, decay_rate, decay_step, momentum };
        RunSpec { schedule, ..spec(1, Precision::F32) }
    };
    let bounds = |low, high| Some(CycleMomentum { bounds: [low, high], decay_rate: 0.0 });
    let after = |momentum| hash_after(&cycle(momentum), &setup(), 1);
    assert_ne!(after(bounds(0.5, 0.9)), after(None));
    assert_ne!(after(bounds(0.5, 0.9)), after(bounds(0.6, 0.9)));
    check_ways(&cycle(bounds(0.5, 0.9)), 4);
}

/// Only what its optimizer needs whole is left uncut, and the plan of memory knows each state.
#[test]
fn chunks_and_memory_follow_the_optimizer() {
    let at = |optimizer| {
        let spec = RunSpec { optimizer, ..spec(2, Precision::F32) };
        let device = Device::new(&spec, &setup(), Box::new(Toy));
        let largest = device.layout().table.chunks.iter().map(|c| c.elements()).max();
        (largest.expect("chunks"), MemoryPlan::of(&spec, device.model(), &setup()).parameters)
    };
    let (adam, muon, lamb) = (
        at(OptimizerSpec::Adam(Adam::default())),
        at(OptimizerSpec::Muon(Muon::default())),
        at(OptimizerSpec::Lamb(Lamb::default())),
    );
    assert_eq!((adam.0, lamb.0), (5_000, 4_096 + 256), "a matrix, and vectors that fit beside it");
    assert!(lamb.1 == adam.1 && muon.1 < adam.1);
    let matrices = 3 * (32 * 96 + 32 * 32 + 2 * 32 * 128);
    assert_eq!(adam.1 - muon.1, 4 * matrices, "one state less for each matrix in a block");
}

/// The model learns: the loss falls well below that of guessing.
#[test]
fn the_loss_falls() {
    let mut trainer = trainer(&spec(2, Precision::F32), &setup());
    let first = trainer.step().expect("a step").decision.loss;
    let mut last = first;
    for _ in 0..60 {
        last = trainer.step().expect("a step").decision.loss;
    }
    assert!(first > 3.9 && last < 3.3, "{first} {last}");
}

/// A partition, a shard and the stage crash in the middle of a step: each is started again, and the
/// run ends with the same hash.
#[test]
fn a_crashed_actor_is_started_again() {
    let spec = spec(2, Precision::F32);
    let want = hash_after(&spec, &setup(), 8);
    let mut trainer = trainer(&spec, &setup());
    let victims = [ActorId::Partition(ChunkId(1)), ActorId::Shard(ChunkId(0)), ActorId::Stage];
    let mut restarts = 0;
    for step in 0..8 {
        if let Some(&victim) = victims.get(step / 2).filter(|_| step % 2 == 0) {
            trainer.drill(victim).expect("the node lives");
        }
        let outcome = trainer.step().expect("a step");
        restarts += outcome.restarts.len();
    }
    assert_eq!(restarts, victims.len());
    assert_eq!(trainer.state_hash().expect("a hash"), want);
}

/// What grows in the first step is planned to the byte: packing buffers, and i64 sums.
#[test]
fn what_a_step_allocates_is_as_planned() {
    let llama = ModelSpec {
        family: planaria_models::families::Family::Llama,
        kv_heads: 2,
        mlp_width: 88,
        vocab: 301,
        tied: false,
        ..ModelSpec::gpt2(2, 48, 4, 61, 40)
    };
    for (model, precision, threads) in [
        (ModelSpec::gpt2(2, 32, 4, 61, 40), Precision::F32, 1),
        (ModelSpec::gpt2(1, 200, 4, 5000, 40), Precision::Bf16, 2),
        (llama.clone(), Precision::F16, 3),
        (llama, Precision::F32, 2),
    ] {
        for (isa, order) in Isa::available()
            .filter(|&i| i > Isa::Scalar)
            .flat_map(|i| [(i, Order::BreadthFirst), (i, Order::DepthFirst)])
        {
            let optimizer = OptimizerSpec::Muon(Muon::default());
            let spec = RunSpec { model: model.clone(), optimizer, ..spec(2, precision) };
            let setup = DeviceSetup { threads, isa, order, ..setup() };
            let device = Device::new(&spec, &setup, Box::new(Toy));
            let planned = MemoryPlan::of(&spec, device.model(), &setup);
            let mut trainer = Trainer::start(spec.clone(), &setup, device).expect("threads start");
            trainer.step().expect("a step");
            let found = trainer.call(|d| (d.packing_bytes(), d.sum_bytes())).expect("a call");
            assert_eq!(found, (planned.packing, planned.sums), "{spec:?}, {setup:?}");
        }
    }
}
