//! Swarm mode: the shape of the cluster and the mix of faults are drawn from the seed.

use crate::draw::Draw;
use crate::faults::{Fault, Flip};
use crate::invariants::Violation;
use crate::toy::Toy;
use crate::world::{Place, World};
use planaria_actors::protocol::decision::{DynamicScale, LossScaleSpec, LossScaler, StepRule};
use planaria_actors::protocol::spec::{ChunkSpec, Limits, Mutation, Spec, Timing};
use planaria_base::{RunId, Step};
use std::sync::Arc;

/// After the faults end, the ring must have healed and finished within this virtual time.
const HEAL_WITHIN: u64 = 240_000_000;

/// How a seed ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The first broken invariant.
    pub violation: Option<Violation>,
    /// Lines for people, if asked for.
    pub lines: Vec<String>,
    /// Events handled.
    pub events: u64,
    /// Virtual time, in microseconds.
    pub time: u64,
    /// Faults injected.
    pub faults: usize,
}

/// The numbers of a run that the toy model makes.
#[must_use]
pub fn toy_rule() -> StepRule {
    StepRule {
        schedule: Arc::new(|update: u64| 1.0 / (update as f64 + 1.0)),
        clip: Some(1.0),
        leaf_factor: 1.0,
        loss_scale: Some(toy_scaler()),
        skips_that_stop: 8,
    }
}

/// A dynamic loss scale that moves within a run of the simulator.
fn toy_scaler() -> LossScaler {
    let dynamic = DynamicScale { loss_scale_window: 5, ..DynamicScale::default() };
    LossScaler::new(LossScaleSpec::Dynamic(dynamic)).expect("powers of two")
}

/// A run of the toy model.
#[must_use]
pub fn toy_spec(leaves: u32, chunks: usize, replicas: usize, steps: u64) -> Spec {
    Spec {
        run: RunId([7; 16]),
        leaves,
        chunks: vec![ChunkSpec { bytes: 100, sites: 1 }; chunks],
        emission: Vec::new(),
        eager_gather: true,
        replicas,
        checkpoint_every: 5,
        last_step: Step(steps),
        rule: toy_rule(),
        timing: Timing { lost_after: 10_000_000, ..Timing::default() },
        limits: Limits { deaths_on_leaf: 99, ..Limits::default() },
        bugs: Vec::new(),
    }
}

/// Runs one seed, with known bugs put back if any are named.
#[must_use]
pub fn run_seed(seed: u64, bugs: &[Mutation], verbose: bool) -> Outcome {
    let mut draw = Draw::new(seed);
    let mut world = draw_world(seed, &mut draw, bugs);
    world.verbose = verbose;
    let end = 2_000_000 + draw.between(0, 12_000_000);
    let faults = draw_faults(&mut draw, &mut world, end);
    world.run_until(end);
    world.heal(true);
    world.run_to_convergence(HEAL_WITHIN);
    if verbose && world.violation.is_some() {
        let told: Vec<String> =
            world.running().map(|(id, n)| format!("node {id}: {}", n.describe())).collect();
        world.lines.extend(told);
    }
    let World { violation, lines, events, now, .. } = world;
    Outcome { violation, lines, events, time: now, faults }
}

fn draw_world(seed: u64, draw: &mut Draw, bugs: &[Mutation]) -> World {
    let nodes = draw.between(1, 9);
    let hosts = draw.between(1, nodes + 1);
    let leaves = draw.between(1, 25) as u32;
    let chunks = draw.between(1, 9) as usize;
    let replicas = draw.between(1, 4) as usize;
    let mut spec = toy_spec(leaves, chunks, replicas, draw.between(5, 60));
    for chunk in &mut spec.chunks {
        *chunk = ChunkSpec { bytes: draw.between(50, 150), sites: 1 + u8::from(draw.chance(0.2)) };
    }
    spec.checkpoint_every = draw.between(1, 10);
    spec.limits.window = draw.between(1, 5) as usize;
    spec.bugs = bugs.to_vec();
    let mixed = draw.chance(0.3);
    let base = draw.between(500, 20_000) / chunks as u64;
    let places: Vec<Place> = (0..nodes)
        .map(|i| Place {
            host: i % hosts,
            capacity: if mixed { draw.between(1, 4) } else { 1 },
            leaf_time: if mixed { base * draw.between(1, 5) } else { base },
        })
        .collect();
    let bad = if draw.chance(0.2) { 200 } else { 0 };
    let mut world = World::new(spec, Toy::new(seed, bad), &places, seed);
    world.network.delay = draw.between(20, 2_000);
    world.network.jitter = draw.between(10, 5_000);
    world.found(0);
    let stampede = draw.chance(0.3);
    for id in 1..nodes {
        let at = if stampede { 0 } else { draw.between(0, 2_000_000) };
        world.schedule_fault(at, Fault::Restart(id));
    }
    world
}

/// Which kinds of faults a seed has: each is on or off.
struct Mix(Vec<u64>);

fn draw_faults(draw: &mut Draw, world: &mut World, end: u64) -> usize {
    let mut kinds = (0..11).filter(|_| draw.chance(0.4)).collect::<Vec<u64>>();
    if kinds.contains(&5) && draw.chance(0.5) {
        // A flip and the death of the only other holder are two faults on one chunk.
        kinds.retain(|k| [4, 5, 7, 10].contains(k));
    } else {
        kinds.retain(|k| *k != 5);
    }
    let mix = Mix(kinds);
    let gap = draw.between(100_000, 3_000_000);
    let mut at = draw.between(0, 1_000_000);
    let mut count = 0;
    while at < end {
        if let Some(kind) = draw.pick(&mix.0) {
            inject(kind, at, draw, world);
            count += 1;
        }
        at += draw.between(1, 2 * gap);
    }
    count
}

fn inject(kind: u64, at: u64, draw: &mut Draw, world: &mut World) {
    let nodes = world.slots.len() as u64;
    let node = draw.between(0, nodes);
    let length = [300_000, 1_000_000, 2_500_000, 5_000_000][draw.between(0, 4) as usize];
    match kind {
        0 => world.schedule_fault(at, Fault::Kill(node)),
        1 => {
            world.schedule_fault(at, Fault::Kill(node));
            world.schedule_fault(at + draw.between(1, 3_000_000), Fault::Restart(node));
        }
        2 => world.schedule_fault(at, Fault::Pause(node, length)),
        3 => {
            let group: Vec<u64> = (0..nodes).filter(|_| draw.chance(0.4)).collect();
            world.schedule_fault(at, Fault::Cut(group, draw.chance(0.6)));
            world.schedule_fault(at + length, Fault::HealNetwork);
        }
        4 => {
            world.schedule_fault(at, Fault::Lossy(draw.between(0, 200), draw.between(0, 300)));
            world.schedule_fault(at + length, Fault::HealNetwork);
        }
        5 => {
            let what = [Flip::State, Flip::Record, Flip::Scratch][draw.between(0, 3) as usize];
            world.schedule_fault(at, Fault::Flip(node, what));
        }
        6 => world.schedule_fault(at, Fault::Leave(node)),
        7 => world.schedule_fault(at, Fault::ScaleRate(node)),
        10 => world.schedule_fault(at, Fault::Replay(draw.between(1, 20))),
        8 => world.schedule_fault(at, Fault::CloseLink(node, (node + 1) % nodes)),
        _ => {
            for id in (0..nodes).filter(|_| draw.chance(0.5)).collect::<Vec<_>>() {
                world.schedule_fault(at + draw.between(0, 30_000), Fault::Kill(id));
                world.schedule_fault(at + draw.between(1_000_000, 2_000_000), Fault::Restart(id));
            }
        }
    }
}
