//! A node of a run, put together and started: the one trainer.
//!
//! A run on one node is a ring in which nothing happens: the same actors, the same protocol.

use super::device::{Device, DeviceParts, orders};
use super::leaves::{ActivationPlan, LeafMemory};
use super::node::{Ask, Cast, Evaluation, Inspect, Node, NodePlan, Poison, RunEvent, Status};
use super::shard::ShardCx;
use super::shards::Keeper;
use super::stage::Stage;
use super::values::{Lent, ValuesLayout};
use super::vault::Vault;
use super::wire::Wire;
use super::working::Working;
use crate::data::{LeafSource, SampleOrder};
use crate::layout::Layout;
use crate::protocol::decision::{Decision, StepRule};
use crate::protocol::log::CommandLog;
use crate::protocol::message::Request;
use crate::protocol::spec::{ChunkSpec, Limits, Spec, Timing};
use crate::protocol::{self, Identity};
use crate::spec::RunSpec;
use crate::step::schedule::Order;
use actix::Addr;
use crossbeam_channel::{Receiver, bounded};
use planaria_base::{ChunkId, NodeId, Site, Step};
use planaria_models::block::{LeafShape, LossScale, Model};
use planaria_models::buffer::Buffer;
use planaria_models::compute::{Compute, Kit};
use planaria_models::kernels::Isa;
use planaria_models::kernels::elementwise::squares_partials;
use planaria_models::partials::{LotSums, Part, PartTable, SumPools};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

/// Events that nobody has read yet, at most.
const EVENTS: usize = 1 << 16;

/// Which states are cut up among nodes: DeepSpeed's stages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Zero {
    /// Every node holds every chunk.
    Stage0,
    /// Optimizer states are cut up; a step's gradients wait for their owners.
    Stage1,
    /// Gradients too: partials leave as they come into being, in a bounded window.
    Stage2,
    /// Working values too: gathered block by block.
    Stage3,
}

/// How a node executes a run: nothing here changes a bit of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Compute threads.
    pub threads: usize,
    /// Instruction set.
    pub isa: Isa,
    /// Order of blocks and leaves.
    pub order: Order,
    /// Recompute what backward needs instead of keeping it.
    pub recompute: bool,
}

/// The numbers of a ring beside the run spec; the same on every node.
#[derive(Clone, Copy, PartialEq, Debug, serde::Serialize, serde::Deserialize)]
pub struct RingPlan {
    /// DeepSpeed's stage, 0 to 3.
    pub stage: u8,
    /// Copies of each chunk's state, the owner's included.
    pub replicas: usize,
    /// Steps between checkpoints.
    pub checkpoint_every: u64,
    /// The run ends after this step.
    pub last_step: u64,
    /// Skips running that stop the run.
    pub skips_that_stop: u32,
}

impl RingPlan {
    fn zero(&self) -> Zero {
        match self.stage {
            0 => Zero::Stage0,
            1 => Zero::Stage1,
            2 => Zero::Stage2,
            _ => Zero::Stage3,
        }
    }
}

/// How a node comes in.
pub enum Entry {
    /// It is the first, at the initial state or at this decision's checkpoint, with the commands
    /// taken by then.
    Found(Option<Box<(Decision, CommandLog)>>),
    /// It joins a ring of which it knows some members.
    Join(Vec<NodeId>),
}

/// Everything a node is started with.
pub struct NodeSetup {
    /// The run.
    pub spec: RunSpec,
    /// The ring.
    pub ring: RingPlan,
    /// Times of the protocol.
    pub timing: Timing,
    /// How this node executes it.
    pub setup: Setup,
    /// Who it is.
    pub identity: Identity,
    /// How it comes in.
    pub entry: Entry,
    /// Training samples.
    pub source: Box<dyn LeafSource>,
    /// Validation samples, and when.
    pub validation: Option<(Arc<dyn LeafSource>, Evaluation)>,
    /// First values and checkpoints.
    pub vault: Arc<dyn Vault>,
    /// The way to other nodes.
    pub wire: Arc<dyn Wire>,
}

/// Why a node could not be started, or is gone.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RunError {
    /// A thread could not be started.
    #[error("cannot start the {0} thread: {1}")]
    Thread(&'static str, String),
    /// The node has ended.
    #[error("the node has ended")]
    Ended,
}

/// A node under way.
pub struct Run {
    me: NodeId,
    node: Addr<Node>,
    events: Receiver<RunEvent>,
    system: actix::System,
    device: super::device::Orders,
    threads: Vec<JoinHandle<()>>,
}

/// The tables that follow from a run spec.
struct Tables {
    model: Model,
    layout: Arc<Layout>,
    values: Arc<ValuesLayout>,
    parts: Arc<PartTable>,
    emission: Vec<(ChunkId, Site)>,
    carrier: Part,
    /// Optimizer states of each chunk.
    states: usize,
}

impl Tables {
    fn new(spec: &RunSpec) -> Tables {
        let model = spec.model.build();
        let layout = Layout::of(&model, spec.chunk_elements, &spec.optimizer);
        let values = ValuesLayout::new(&model, &layout, spec.precision);
        let parts = PartTable::new(&model, &layout.table, spec.leaves, spec.grid_max_log2);
        let emission: Vec<_> = parts.in_emission_order().map(|(_, p)| (p.chunk, p.site)).collect();
        let (chunk, site) = emission[0];
        Tables {
            carrier: Part { chunk, site },
            states: spec.optimizer.state_names(&model.params[0]).len(),
            emission,
            model,
            layout: Arc::new(layout),
            values: Arc::new(values),
            parts: Arc::new(parts),
        }
    }

    /// Partials of one lot that may be under way.
    fn window(&self, zero: Zero) -> usize {
        let largest = self.parts.emits.iter().map(Vec::len).max().unwrap_or(1);
        if zero < Zero::Stage2 { self.emission.len() } else { 2 * largest.max(1) }
    }
}

fn protocol_spec(setup: &NodeSetup, tables: &Tables) -> Spec {
    let (spec, ring) = (&setup.spec, &setup.ring);
    let zero = ring.zero();
    let states = 1 + tables.states as u64;
    let chunks = tables.parts.chunks.iter();
    let schedule = spec.schedule;
    Spec {
        run: spec.run_id(),
        leaves: spec.leaves,
        chunks: chunks
            .map(|c| ChunkSpec { bytes: 4 * states * c.len as u64, sites: c.emitted.len() as u8 })
            .collect(),
        emission: tables.emission.clone(),
        eager_gather: zero < Zero::Stage3,
        replicas: if zero == Zero::Stage0 { usize::MAX } else { ring.replicas.max(1) },
        checkpoint_every: if ring.checkpoint_every == 0 { u64::MAX } else { ring.checkpoint_every },
        last_step: Step(ring.last_step),
        rule: StepRule {
            schedule: Arc::new(move |update: u64| schedule.rate(update - 1)),
            clip: Some(spec.clip).filter(|&c| c > 0.0),
            leaf_factor: f64::from(spec.leaf_factor()),
            loss_scale: None,
            skips_that_stop: ring.skips_that_stop,
        },
        timing: setup.timing,
        limits: Limits { window: tables.window(zero), ..Limits::default() },
        bugs: Vec::new(),
    }
}

fn shape(spec: &RunSpec) -> LeafShape {
    LeafShape { sequences: spec.sequences, length: spec.length }
}

fn scratch_bytes(spec: &RunSpec, model: &Model) -> usize {
    let (shape, precision) = (shape(spec), spec.precision);
    let blocks = model.blocks.iter().map(|b| b.plan(shape, precision).scratch_bytes);
    blocks.chain([model.head.plan(shape, precision).scratch_bytes]).max().unwrap_or(0)
}

impl Run {
    /// Starts a node: its actors, its memory thread, its compute.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(setup: NodeSetup) -> Result<Run, RunError> {
        let tables = Tables::new(&setup.spec);
        let machine = machine(&setup, &tables);
        let me = setup.identity.node;
        let (sender, events) = bounded(EVENTS);
        let checked = Arc::new(AtomicBool::new(false));
        let pools = SumPools::default();
        let (queue, inbox) = orders();
        let width = setup.spec.leaves.min(8);
        let stage = Stage::new(setup.setup.order, tables.parts.emits.clone(), width);
        let (cx, working) = memory(&setup, &tables, &pools);
        let plan = NodePlan {
            evaluation: setup.validation.as_ref().map(|v| v.1),
            vault: setup.vault.clone(),
            checked: checked.clone(),
            events: sender,
        };
        let (device, cast) = {
            let leaves = LeafMemory::new(&tables.model, setup.spec.precision, activations(&setup));
            let wire = setup.wire.clone();
            let parts = device_parts(setup, tables, pools, checked);
            let cast = Cast { machine, me, stage, device: queue.clone(), wire };
            (Device::new(parts, leaves), cast)
        };
        let (ready, started) = bounded(1);
        let actors = spawn("node", move || {
            let runner = actix::System::new();
            let memory = actix::Arbiter::new();
            let handle = memory.handle();
            let addresses = runner.block_on(async {
                cast.start(&handle, plan, move |links| Keeper::new(cx, working, links))
            });
            let _ = ready.send((addresses, actix::System::current()));
            if let Err(error) = runner.run() {
                tracing::error!(%error, "the actor system ended with an error");
            }
            memory.stop();
            let _ = memory.join();
        })?;
        let ((node, stage), system) = started.recv().map_err(|_| RunError::Ended)?;
        let for_device = node.clone();
        let compute = spawn("device", move || device.run(&inbox, &for_device, &stage))?;
        Ok(Run { me, node, events, system, device: queue, threads: vec![actors, compute] })
    }

    /// What happens.
    #[must_use]
    pub fn events(&self) -> &Receiver<RunEvent> {
        &self.events
    }

    /// The node's address.
    #[must_use]
    pub fn node(&self) -> &Addr<Node> {
        &self.node
    }

    /// The node's name.
    #[must_use]
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Where the node's actors run.
    #[must_use]
    pub fn arbiter(&self) -> actix::ArbiterHandle {
        self.system.arbiter().clone()
    }

    /// Asks something of the ring.
    pub fn ask(&self, request: Request) {
        self.node.do_send(Ask(request));
    }

    /// What the ring looks like from here; waits for the node's answer.
    ///
    /// # Errors
    /// If the node has ended.
    pub fn status(&self) -> Result<Status, RunError> {
        let (sender, receiver) = bounded(1);
        let node = self.node.clone();
        let asked = self.system.arbiter().spawn(async move {
            if let Ok(status) = node.send(Inspect).await {
                let _ = sender.send(status);
            }
        });
        if !asked {
            return Err(RunError::Ended);
        }
        receiver.recv().map_err(|_| RunError::Ended)
    }

    /// A chunk's shard panics at its next job: a drill.
    pub fn poison(&self, chunk: ChunkId) {
        self.node.do_send(Poison(chunk));
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.device.end();
        self.system.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn machine(setup: &NodeSetup, tables: &Tables) -> protocol::Node {
    let spec = Arc::new(protocol_spec(setup, tables));
    match &setup.entry {
        Entry::Found(start) => {
            protocol::Node::founding(spec, setup.identity, start.as_deref().cloned())
        }
        Entry::Join(contacts) => protocol::Node::joining(spec, setup.identity, contacts.clone()),
    }
}

fn activations(setup: &NodeSetup) -> ActivationPlan {
    let Setup { order, recompute, .. } = setup.setup;
    ActivationPlan { order, recompute, shape: shape(&setup.spec) }
}

fn memory(setup: &NodeSetup, tables: &Tables, pools: &SumPools) -> (ShardCx, Working) {
    let spec = &setup.spec;
    let resident = setup.ring.zero() < Zero::Stage3;
    let single = spec.precision == planaria_models::block::Precision::F32;
    let cx = ShardCx {
        layout: tables.layout.clone(),
        parts: tables.parts.clone(),
        values: tables.values.clone(),
        kit: Kit::new(setup.setup.threads, setup.setup.isa),
        pools: pools.clone(),
        optimizer: spec.optimizer,
        schedule: spec.schedule,
        states: tables.states,
        vault: setup.vault.clone(),
        master_in_working: resident && single,
        squares: Buffer::zeroed(squares_partials(spec.chunk_elements as usize)),
        spare: Vec::new(),
    };
    (cx, Working::new(tables.values.clone(), resident))
}

fn device_parts(
    setup: NodeSetup,
    tables: Tables,
    pools: SumPools,
    checked: Arc<AtomicBool>,
) -> DeviceParts {
    let spec = &setup.spec;
    let samples = SampleOrder {
        seed: spec.seed,
        samples: setup.source.samples(),
        leaves: spec.leaves,
        sequences: spec.sequences as u32,
    };
    let Setup { threads, isa, .. } = setup.setup;
    let scratch = scratch_bytes(spec, &tables.model);
    DeviceParts {
        compute: Compute::new(threads, isa, spec.precision, scratch),
        samples,
        validation: setup.validation.map(|v| v.0),
        scale: LossScale { factor: spec.leaf_factor() },
        sums: LotSums::new(tables.parts.clone(), isa, pools),
        lent: Lent::new(tables.values.clone()),
        parts: tables.parts,
        carrier: tables.carrier,
        checked,
        source: setup.source,
        model: tables.model,
    }
}

fn spawn(
    name: &'static str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, RunError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|e| RunError::Thread(name, e.to_string()))
}
