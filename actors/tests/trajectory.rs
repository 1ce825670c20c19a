//! Law 1: the state after a step is a function of the run spec and the step, whatever executes it.

use planaria_actors::data::LeafSource;
use planaria_actors::device::{Device, DeviceSetup};
use planaria_actors::node::ActorId;
use planaria_actors::spec::{RunSpec, SPEC_VERSION};
use planaria_actors::step::schedule::Order;
use planaria_actors::trainer::Trainer;
use planaria_base::rng::CounterRng;
use planaria_base::{ChunkId, Digest};
use planaria_models::block::Precision;
use planaria_models::families::ModelSpec;
use planaria_models::kernels::Isa;
use planaria_models::optimizers::{Adam, OptimizerSpec};
use planaria_models::schedules::{ScheduleSpec, Warmup};

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

/// bf16 compute is as deterministic on one ISA.
#[test]
fn bf16_does_not_depend_on_threads_or_order() {
    let spec = spec(3, Precision::Bf16);
    let want = hash_after(&spec, &setup(), 50);
    for (threads, order, recompute) in [
        (1, Order::BreadthFirst, false),
        (3, Order::DepthFirst, false),
        (2, Order::DepthFirst, true),
    ] {
        let setup = DeviceSetup { threads, order, recompute, ..setup() };
        assert_eq!(hash_after(&spec, &setup, 50), want, "{setup:?}");
    }
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
