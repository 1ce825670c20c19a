//! Rings inside one process: every node with its own actors, memory and compute threads, linked by
//! channels.

use crossbeam_channel::RecvTimeoutError;
use planaria_actors::data::LeafSource;
use planaria_actors::protocol::Identity;
use planaria_actors::protocol::effect::Stop;
use planaria_actors::protocol::message::Request;
use planaria_actors::protocol::spec::Timing;
use planaria_actors::ring::node::RunEvent;
use planaria_actors::ring::run::{Entry, NodeSetup, RingPlan, Run, Setup};
use planaria_actors::ring::vault::SeedVault;
use planaria_actors::ring::wire::LocalNet;
use planaria_actors::spec::{RunSpec, SPEC_VERSION};
use planaria_actors::step::schedule::Order;
use planaria_base::rng::CounterRng;
use planaria_base::{Digest, Incarnation, NodeId, Step};
use planaria_models::block::Precision;
use planaria_models::families::ModelSpec;
use planaria_models::kernels::Isa;
use planaria_models::optimizers::{Adam, OptimizerSpec};
use planaria_models::schedules::{ScheduleSpec, Warmup};
use std::sync::Arc;
use std::time::Duration;

/// A run that makes no progress for this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Text-like samples: each token depends on the one before, so that there is something to learn.
pub(crate) struct Toy;

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

pub(crate) fn spec(leaves: u32, precision: Precision) -> RunSpec {
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

pub(crate) fn setup() -> Setup {
    Setup { threads: 1, isa: Isa::detect(), order: Order::BreadthFirst, recompute: false }
}

/// A ring in this process.
pub(crate) struct Ring {
    pub(crate) spec: RunSpec,
    pub(crate) plan: RingPlan,
    pub(crate) setup: Setup,
    pub(crate) net: LocalNet,
    pub(crate) nodes: Vec<Option<Run>>,
    steps: u64,
}

impl Ring {
    pub(crate) fn new(spec: RunSpec, stage: u8, replicas: usize, steps: u64) -> Ring {
        let plan =
            RingPlan { stage, replicas, checkpoint_every: 0, last_step: steps, skips_that_stop: 8 };
        Ring { spec, plan, setup: setup(), net: LocalNet::default(), nodes: Vec::new(), steps }
    }

    fn start(&mut self, entry: Entry) {
        let id = NodeId(self.nodes.len() as u64 + 1);
        let identity =
            Identity { node: id, incarnation: Incarnation(1), host: id.0, at: None, capacity: 1 };
        let run = Run::start(NodeSetup {
            spec: self.spec.clone(),
            ring: self.plan,
            timing: Timing { retry: 20_000, ..Timing::default() },
            setup: self.setup,
            identity,
            entry,
            source: Box::new(Toy),
            validation: None,
            vault: Arc::new(SeedVault::new(self.spec.model.build().params, self.spec.seed)),
            wire: Arc::new(self.net.clone()),
        })
        .expect("threads start");
        self.net.enter(id, run.node().clone());
        self.nodes.push(Some(run));
    }

    pub(crate) fn found(&mut self) {
        self.start(Entry::Found(None));
    }

    pub(crate) fn join(&mut self) {
        let there = self.nodes.iter().enumerate().filter(|(_, n)| n.is_some());
        let contacts = there.map(|(i, _)| NodeId(i as u64 + 1)).collect();
        self.start(Entry::Join(contacts));
    }

    /// A node ends without a word.
    pub(crate) fn kill(&mut self, node: usize) {
        self.nodes[node] = None;
        self.net.leave(NodeId(node as u64 + 1));
    }

    /// The next event of a node.
    pub(crate) fn next(&self, node: usize) -> RunEvent {
        let run = self.nodes[node].as_ref().expect("the node lives");
        match run.events().recv_timeout(PATIENCE) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => {
                let status = run.status().map(|s| s.details);
                panic!("node {node} makes no progress: {}", status.unwrap_or_default())
            }
            Err(error) => panic!("node {node}: {error}"),
        }
    }

    /// Waits until a node sees so many members and two copies of every chunk, so that a death loses
    /// nothing.
    pub(crate) fn wait_replicated(&self, node: usize, members: usize) {
        let run = self.nodes[node].as_ref().expect("the node lives");
        for _ in 0..20_000 {
            let status = run.status().expect("the node lives");
            let whole = status.view.as_ref().is_some_and(|v| {
                let copies = v.view.seats.iter().map(|s| s.holders.len()).min();
                v.view.members.len() == members && copies >= Some(2)
            });
            if whole {
                return;
            }
            let _ = run.events().recv_timeout(Duration::from_millis(5));
        }
        panic!("the ring is not replicated");
    }

    /// Waits until a node has seen this step decided.
    #[allow(dead_code, reason = "not every test binary waits")]
    pub(crate) fn wait_for(&self, node: usize, step: u64) {
        loop {
            match self.next(node) {
                RunEvent::Decided(decision, _) if decision.step >= Step(step) => return,
                RunEvent::Stopped(why) => panic!("node {node} stopped: {why:?}"),
                _ => {}
            }
        }
    }

    /// Stops the run at the end of a step; returns which, and its state's hash.
    pub(crate) fn stop(&mut self, node: usize) -> (u64, Digest) {
        self.nodes[node].as_ref().expect("the node lives").ask(Request::Stop);
        self.published(None)
    }

    /// Runs to the end; returns the hash of the published last state.
    pub(crate) fn finish(&mut self) -> Digest {
        self.published(Some(self.steps)).1
    }

    fn published(&mut self, wanted: Option<u64>) -> (u64, Digest) {
        let (mut hash, mut at) = (None, 0);
        while hash.is_none() {
            while self.nodes[at % self.nodes.len()].is_none() {
                at += 1;
            }
            let node = at % self.nodes.len();
            let run = self.nodes[node].as_ref().expect("it lives");
            match run.events().recv_timeout(Duration::from_millis(20)) {
                Ok(RunEvent::Published(step, found, done))
                    if wanted.is_none_or(|w| w == step.0) =>
                {
                    done.expect("it is published");
                    hash = Some((step.0, found));
                }
                Ok(RunEvent::Stopped(Stop::Halted(why))) => panic!("node {node}: {why}"),
                Err(RecvTimeoutError::Disconnected) => panic!("node {node} has ended"),
                _ => {}
            }
            at += 1;
            if at > 100 && at.is_multiple_of(1500) {
                let alive = self.nodes.iter().flatten();
                let told: Vec<String> =
                    alive.filter_map(|r| r.status().ok()).map(|s| s.details).collect();
                panic!("no progress: {}", told.join("\n====\n"));
            }
        }
        hash.expect("checked above")
    }
}
