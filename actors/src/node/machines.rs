//! What each machine may be told, and what it may ask for: the message types of the actors.

use crate::step::conductor::{Conductor, ConductorEffect};
use crate::step::decision::Decision;
use crate::step::partition::{Partition, PartitionEffect};
use crate::step::shard::{Gathered, Shard};
use crate::step::stage::{Stage, StageEffect};
use crate::step::{Attempt, Op, Record};
use planaria_base::{BlockId, ChunkId, Leaf, Step};
use planaria_models::block::LossStats;
use std::fmt::Debug;

/// A pure state machine that an actor can host.
pub trait Machine: Debug + Unpin + 'static {
    /// What it may be told.
    type Event: Debug + Send + 'static;
    /// What it may ask for.
    type Effect: Debug + Send + 'static;

    /// One step of the machine, run to its end.
    fn handle(&mut self, event: Self::Event, out: &mut Vec<Self::Effect>);

    /// One effect, labelled with the kind of machine that asked for it.
    fn effect(effect: Self::Effect) -> Effect;
}

/// Any machine's effect, as the node receives it.
#[derive(Debug)]
pub enum Effect {
    /// A stage's.
    Stage(StageEffect),
    /// A shard's.
    Shard(ShardAnswer),
    /// A partition's.
    Partition(PartitionEffect),
    /// The conductor's.
    Conductor(ConductorEffect),
}

/// Told to a pipeline stage.
#[derive(Clone, Copy, Debug)]
pub enum StageEvent {
    /// The attempt starts.
    Begin(Attempt),
    /// A block's parameters are there.
    Gathered(Attempt, BlockId),
    /// The device finished an op.
    Done(Attempt, Op),
}

impl Machine for Stage {
    type Event = StageEvent;
    type Effect = StageEffect;

    fn handle(&mut self, event: StageEvent, out: &mut Vec<StageEffect>) {
        match event {
            StageEvent::Begin(at) => self.handle_begin(at, out),
            StageEvent::Gathered(at, block) => self.handle_gathered(at, block, out),
            StageEvent::Done(at, op) => self.handle_done(at, op, out),
        }
    }

    fn effect(effect: StageEffect) -> Effect {
        Effect::Stage(effect)
    }
}

/// Told to a parameter shard.
#[derive(Clone, Copy, Debug)]
pub enum ShardEvent {
    /// A stage wants the values after this step, for this block and attempt.
    Gather(Attempt, BlockId, Step),
    /// The values are now those after this step.
    Updated(Step),
}

/// Asked by a parameter shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShardAnswer {
    /// The gather's attempt.
    pub at: Attempt,
    /// The gather's block.
    pub block: BlockId,
    /// The shard's chunk.
    pub chunk: ChunkId,
    /// The answer.
    pub gathered: Gathered,
}

impl Machine for Shard {
    type Event = ShardEvent;
    type Effect = ShardAnswer;

    fn handle(&mut self, event: ShardEvent, out: &mut Vec<ShardAnswer>) {
        match event {
            ShardEvent::Gather(at, block, state) => {
                let gathered = self.handle_gather(state);
                out.push(ShardAnswer { at, block, chunk: self.chunk, gathered });
            }
            ShardEvent::Updated(state) => self.handle_updated(state),
        }
    }

    fn effect(effect: ShardAnswer) -> Effect {
        Effect::Shard(effect)
    }
}

/// Told to an optimizer partition.
#[derive(Clone, Copy, Debug)]
pub enum PartitionEvent {
    /// The device fixed the chunk's record.
    Record(Attempt, Record),
    /// The conductor decided.
    Decision(Decision),
    /// The device wrote the state after this step.
    Applied(Step),
}

impl Machine for Partition {
    type Event = PartitionEvent;
    type Effect = PartitionEffect;

    fn handle(&mut self, event: PartitionEvent, out: &mut Vec<PartitionEffect>) {
        match event {
            PartitionEvent::Record(at, record) => self.handle_record(at, record, out),
            PartitionEvent::Decision(decision) => self.handle_decision(decision, out),
            PartitionEvent::Applied(step) => self.handle_applied(step, out),
        }
    }

    fn effect(effect: PartitionEffect) -> Effect {
        Effect::Partition(effect)
    }
}

/// Told to the conductor.
#[derive(Clone, Debug)]
pub enum ConductorEvent {
    /// Run the next step, at this learning rate.
    Step {
        /// Learning rate of the update, should the step commit.
        learning_rate: f64,
    },
    /// A leaf's loss is known.
    Loss(Attempt, Leaf, LossStats),
    /// The stage finished its program.
    Finished(Attempt),
    /// A chunk's record is final.
    Recorded(Attempt, Record),
    /// A chunk's state after the step is complete.
    Complete(Step, ChunkId),
    /// Something failed.
    Failed(Attempt, String),
}

impl Machine for Conductor {
    type Event = ConductorEvent;
    type Effect = ConductorEffect;

    fn handle(&mut self, event: ConductorEvent, out: &mut Vec<ConductorEffect>) {
        match event {
            ConductorEvent::Step { learning_rate } => self.handle_step(learning_rate, out),
            ConductorEvent::Loss(at, leaf, stats) => self.handle_loss(at, leaf, stats),
            ConductorEvent::Finished(at) => self.handle_finished(at, out),
            ConductorEvent::Recorded(at, record) => self.handle_record(at, record, out),
            ConductorEvent::Complete(step, chunk) => self.handle_complete(step, chunk, out),
            ConductorEvent::Failed(at, reason) => self.handle_failed(at, &reason, out),
        }
    }

    fn effect(effect: ConductorEffect) -> Effect {
        Effect::Conductor(effect)
    }
}
