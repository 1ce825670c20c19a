//! The address book: which actor answers to which logical id, and under which incarnation.

use super::machines::{ConductorEvent, PartitionEvent, ShardEvent, StageEvent};
use super::shell::{Deliver, Poison};
use super::{
    ActorId, ConductorActor, Node, NodePlan, OptimizerPartition, ParamShard, PipelineStage, Shell,
};
use crate::step::conductor::Conductor;
use crate::step::partition::Partition;
use crate::step::schedule;
use crate::step::shard::Shard;
use crate::step::stage::Stage;
use actix::prelude::SendError;
use actix::{Actor, Addr};
use planaria_base::{ChunkId, Incarnation, Step};

/// Why a message was not put into a mailbox.
#[derive(Clone, Copy, Debug)]
pub(super) enum Undelivered {
    /// The mailbox is full.
    Full(ActorId),
    /// The actor has ended.
    Closed,
}

struct Entry<A: Actor> {
    address: Addr<A>,
    incarnation: Incarnation,
}

/// All actors of a node.
pub(super) struct Book {
    conductor: Entry<ConductorActor>,
    stage: Entry<PipelineStage>,
    shards: Vec<Entry<ParamShard>>,
    partitions: Vec<Entry<OptimizerPartition>>,
}

fn start<M: super::machines::Machine>(
    machine: M,
    id: ActorId,
    incarnation: Incarnation,
    (node, mailbox): (&Addr<Node>, usize),
) -> Entry<Shell<M>> {
    let shell = Shell::new(machine, (id, incarnation), node.clone(), mailbox);
    Entry { address: shell.start(), incarnation }
}

fn stage(plan: &NodePlan) -> Stage {
    Stage::new(schedule::ops(plan.order, plan.blocks, plan.leaves), plan.blocks)
}

impl Book {
    /// Starts every actor of the plan.
    pub(super) fn start(plan: &NodePlan, node: Addr<Node>) -> Book {
        let first = Incarnation(1);
        let at = (&node, plan.mailbox());
        let (state, updates) = plan.state;
        let conductor = Conductor::new(plan.rule, plan.leaves, plan.chunks, state, updates);
        let chunks = || (0..plan.chunks).map(ChunkId);
        Book {
            conductor: start(conductor, ActorId::Conductor, first, at),
            stage: start(stage(plan), ActorId::Stage, first, at),
            shards: chunks()
                .map(|c| start(Shard::new(c, state), ActorId::Shard(c), first, at))
                .collect(),
            partitions: chunks()
                .map(|c| start(Partition::new(c, state), ActorId::Partition(c), first, at))
                .collect(),
        }
    }

    /// Starts an actor again from the committed `state`, under the next incarnation.
    pub(super) fn restart(
        &mut self,
        plan: &NodePlan,
        id: ActorId,
        state: Step,
        node: Addr<Node>,
    ) -> Incarnation {
        let next = Incarnation(self.incarnation(id).0 + 1);
        let at = (&node, plan.mailbox());
        match id {
            ActorId::Conductor => unreachable!("a lost conductor ends the run on one node"),
            ActorId::Stage => self.stage = start(stage(plan), id, next, at),
            ActorId::Shard(c) => {
                self.shards[c.index()] = start(Shard::new(c, state), id, next, at);
            }
            ActorId::Partition(c) => {
                self.partitions[c.index()] = start(Partition::new(c, state), id, next, at);
            }
        }
        next
    }

    fn incarnation(&self, id: ActorId) -> Incarnation {
        match id {
            ActorId::Conductor => self.conductor.incarnation,
            ActorId::Stage => self.stage.incarnation,
            ActorId::Shard(c) => self.shards[c.index()].incarnation,
            ActorId::Partition(c) => self.partitions[c.index()].incarnation,
        }
    }

    /// Whether this is the living incarnation of the actor: another one's messages are dropped.
    pub(super) fn is_current(&self, from: (ActorId, Incarnation)) -> bool {
        self.incarnation(from.0) == from.1
    }

    pub(super) fn conductor(&self, event: ConductorEvent) -> Result<(), Undelivered> {
        let sent = self.conductor.address.try_send(Deliver(event));
        sent.map_err(|e| undelivered(ActorId::Conductor, &e))
    }

    pub(super) fn stage(&self, event: StageEvent) -> Result<(), Undelivered> {
        let sent = self.stage.address.try_send(Deliver(event));
        sent.map_err(|e| undelivered(ActorId::Stage, &e))
    }

    pub(super) fn shard(&self, chunk: ChunkId, event: ShardEvent) -> Result<(), Undelivered> {
        let sent = self.shards[chunk.index()].address.try_send(Deliver(event));
        sent.map_err(|e| undelivered(ActorId::Shard(chunk), &e))
    }

    pub(super) fn partition(
        &self,
        chunk: ChunkId,
        event: PartitionEvent,
    ) -> Result<(), Undelivered> {
        let sent = self.partitions[chunk.index()].address.try_send(Deliver(event));
        sent.map_err(|e| undelivered(ActorId::Partition(chunk), &e))
    }

    /// Delivers a drill; an actor that is gone needs none.
    pub(super) fn poison(&self, id: ActorId, poison: Poison) {
        let _ = match id {
            ActorId::Conductor => self.conductor.address.try_send(poison),
            ActorId::Stage => self.stage.address.try_send(poison),
            ActorId::Shard(c) => self.shards[c.index()].address.try_send(poison),
            ActorId::Partition(c) => self.partitions[c.index()].address.try_send(poison),
        };
    }
}

fn undelivered<T>(id: ActorId, error: &SendError<T>) -> Undelivered {
    match error {
        SendError::Full(_) => Undelivered::Full(id),
        SendError::Closed(_) => Undelivered::Closed,
    }
}
