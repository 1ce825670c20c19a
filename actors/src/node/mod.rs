//! One process of a run: the actors, their address book, their supervision, and the device queue.
//!
//! Every actor is a [`Shell`] around a machine of [`crate::step`]. Actors do not know one another's
//! addresses: they hand their effects to the [`Node`], which delivers them by logical id. So an
//! actor can be started again, or one day live elsewhere, and nobody else notices. Compute never
//! runs here: it is a command to the device's thread, whose report comes back as a message.

mod book;
pub mod machines;
mod router;
pub mod shell;

use crate::device::{Command, DeviceQueue, Report};
use crate::step::conductor::ConductorEffect;
use crate::step::decision::{Decision, DecisionRule};
use crate::step::schedule::Order;
use crate::step::{Attempt, Op};
use actix::{Actor, AsyncContext, Context, Handler, Message};
use book::Book;
use machines::{ConductorEvent, Effect, PartitionEvent, StageEvent};
use planaria_base::{BlockId, ChunkId, Incarnation, Step};
use shell::{Crashed, Output, Poison};

pub use shell::Shell;

/// A parameter shard's actor.
pub type ParamShard = Shell<crate::step::shard::Shard>;
/// An optimizer partition's actor.
pub type OptimizerPartition = Shell<crate::step::partition::Partition>;
/// A pipeline stage's actor.
pub type PipelineStage = Shell<crate::step::stage::Stage>;
/// The conductor's actor.
pub type ConductorActor = Shell<crate::step::conductor::Conductor>;

/// Restarts of actors in one step before the run stops.
pub const RESTARTS_PER_STEP: u32 = 16;

/// The logical name of an actor: what messages are addressed to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ActorId {
    /// The conductor.
    Conductor,
    /// The pipeline stage.
    Stage,
    /// A chunk's parameter shard.
    Shard(ChunkId),
    /// A chunk's optimizer partition.
    Partition(ChunkId),
}

/// What a node hosts.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// Blocks, not counting the loss block.
    pub blocks: u32,
    /// Leaves of a step.
    pub leaves: u32,
    /// The order in which the stage walks them.
    pub order: Order,
    /// By block (the loss block last): the chunks that it reads.
    pub block_chunks: Vec<Vec<ChunkId>>,
    /// Number of chunks.
    pub chunks: u32,
    /// Constants of the decision.
    pub rule: DecisionRule,
    /// The step whose result the device's memory holds, and updates applied so far.
    pub state: (Step, u64),
}

impl NodePlan {
    /// Messages that can be under way to one actor at once: everything of two attempts.
    #[must_use]
    pub fn mailbox(&self) -> usize {
        let ops = (2 * self.blocks as usize + 4) * self.leaves as usize;
        let gathers: usize = self.block_chunks.iter().map(|c| 2 * c.len()).sum();
        2 * (ops + gathers + 4 * self.chunks as usize) + 64
    }
}

/// What the node tells the driver.
#[derive(Clone, Debug)]
pub enum NodeEvent {
    /// A step is complete.
    Complete(Decision),
    /// An actor crashed and was started again.
    Restarted {
        /// Who.
        id: ActorId,
        /// Its new incarnation.
        incarnation: Incarnation,
        /// The panic's text.
        reason: String,
    },
    /// The run cannot go on.
    Stopped(String),
}

/// The node's actor.
pub struct Node {
    plan: NodePlan,
    book: Option<Book>,
    device: DeviceQueue,
    driver: crossbeam_channel::Sender<NodeEvent>,
    /// Per chunk, the step whose result the device holds.
    states: Vec<Step>,
    /// Gathers under way: by block, chunks still missing.
    gathers: Vec<Option<(Attempt, usize)>>,
    at: Attempt,
    /// The decision on the step under way, once it is made.
    decided: Option<Decision>,
    restarts: u32,
    stopped: bool,
}

impl Node {
    /// A node that hosts `plan` over a device; it tells `driver` what happens.
    #[must_use]
    pub fn new(
        plan: NodePlan,
        device: DeviceQueue,
        driver: crossbeam_channel::Sender<NodeEvent>,
    ) -> Node {
        let states = vec![plan.state.0; plan.chunks as usize];
        let gathers = vec![None; plan.block_chunks.len()];
        Node {
            book: None,
            device,
            driver,
            states,
            gathers,
            at: Attempt { step: plan.state.0, number: 0 },
            decided: None,
            restarts: 0,
            stopped: false,
            plan,
        }
    }

    fn book(&self) -> &Book {
        self.book.as_ref().expect("the book is made when the node starts")
    }

    fn stop(&mut self, reason: String) {
        if !std::mem::replace(&mut self.stopped, true) {
            let _ = self.driver.try_send(NodeEvent::Stopped(reason));
        }
    }

    fn conductor(&mut self, event: ConductorEvent) {
        let sent = self.book().conductor(event);
        self.check(sent);
    }

    /// Before the decision the step is tried again; after it, the decision is all that a partition
    /// needs to go on.
    fn recover(&mut self, id: ActorId, reason: &str) {
        match (self.decided, id) {
            (None, _) => {
                self.conductor(ConductorEvent::Failed(self.at, format!("{id:?}: {reason}")))
            }
            (Some(decision), ActorId::Partition(chunk)) => {
                let sent = self.book().partition(chunk, PartitionEvent::Decision(decision));
                self.check(sent);
            }
            (Some(_), _) => {}
        }
    }

    /// A full mailbox is a broken bound; a closed one belongs to an actor that is being replaced.
    fn check(&mut self, sent: Result<(), book::Undelivered>) {
        if let Err(book::Undelivered::Full(id)) = sent {
            self.stop(format!("the mailbox of {id:?} is full: its bound is wrong"));
        }
    }
}

impl Actor for Node {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.set_mailbox_capacity(4 * self.plan.mailbox());
        self.book = Some(Book::start(&self.plan, ctx.address()));
    }
}

impl Handler<Output> for Node {
    type Result = ();

    fn handle(&mut self, output: Output, _: &mut Context<Self>) {
        if !self.book().is_current(output.from) {
            return;
        }
        for effect in output.effects {
            match effect {
                Effect::Stage(effect) => self.carry_out_stage(effect),
                Effect::Shard(answer) => self.carry_out_gather(answer),
                Effect::Partition(effect) => self.carry_out_partition(output.from.0, effect),
                Effect::Conductor(effect) => self.carry_out_conductor(effect),
            }
        }
    }
}

impl Handler<Crashed> for Node {
    type Result = ();

    fn handle(&mut self, crash: Crashed, ctx: &mut Context<Self>) {
        if !self.book().is_current(crash.from) || self.stopped {
            return;
        }
        self.restarts += 1;
        let id = crash.from.0;
        if self.restarts > RESTARTS_PER_STEP || id == ActorId::Conductor {
            // The conductor's own state is rebuilt by starting the run from the device's memory.
            return self.stop(format!("{id:?} failed: {}", crash.reason));
        }
        let state = match id {
            ActorId::Shard(chunk) | ActorId::Partition(chunk) => self.states[chunk.index()],
            ActorId::Stage | ActorId::Conductor => self.plan.state.0,
        };
        let node = ctx.address();
        let plan = &self.plan;
        let incarnation = self.book.as_mut().map(|book| book.restart(plan, id, state, node));
        if let Some(incarnation) = incarnation {
            let reason = crash.reason.clone();
            let _ = self.driver.try_send(NodeEvent::Restarted { id, incarnation, reason });
        }
        self.recover(id, &crash.reason);
    }
}

/// Asks the node to run the next step.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "()")]
pub struct RunStep {
    /// Learning rate of the update, should it commit.
    pub learning_rate: f64,
}

impl Handler<RunStep> for Node {
    type Result = ();

    fn handle(&mut self, step: RunStep, _: &mut Context<Self>) {
        self.restarts = 0;
        self.conductor(ConductorEvent::Step { learning_rate: step.learning_rate });
    }
}

/// Makes an actor panic at its next event: a drill.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "()")]
pub struct Drill(pub ActorId);

impl Handler<Drill> for Node {
    type Result = ();

    fn handle(&mut self, drill: Drill, _: &mut Context<Self>) {
        self.book().poison(drill.0, Poison);
    }
}

impl Handler<Report> for Node {
    type Result = ();

    fn handle(&mut self, report: Report, _: &mut Context<Self>) {
        self.handle_report(report);
    }
}
