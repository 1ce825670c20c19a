//! Carries out effects: each becomes a message to an actor, or a command to the device.

use super::machines::ShardAnswer;
use super::{
    ActorId, Attempt, BlockId, ChunkId, Command, ConductorEffect, ConductorEvent, Node, NodeEvent,
    Op, PartitionEvent, Report, StageEvent,
};
use crate::node::machines::ShardEvent;
use crate::step::partition::PartitionEffect;
use crate::step::shard::Gathered;
use crate::step::stage::StageEffect;
use planaria_base::Step;

impl Node {
    pub(super) fn carry_out_stage(&mut self, effect: StageEffect) {
        match effect {
            StageEffect::Gather(at, block) => self.gather(at, block),
            StageEffect::Submit(at, op) => self.submit(Command::Op(at, op)),
            StageEffect::Finished(at) => self.conductor(ConductorEvent::Finished(at)),
        }
    }

    fn gather(&mut self, at: Attempt, block: BlockId) {
        let chunks = self.plan.block_chunks[block.index()].clone();
        self.gathers[block.index()] = Some((at, chunks.len()));
        let state = Step(at.step.0 - 1);
        for chunk in chunks {
            let sent = self.book().shard(chunk, ShardEvent::Gather(at, block, state));
            self.check(sent);
        }
        self.finish_gather(at, block);
    }

    pub(super) fn carry_out_gather(&mut self, answer: ShardAnswer) {
        let ShardAnswer { at, block, chunk, gathered } = answer;
        if let Gathered::Stale(state) = gathered {
            let reason = format!(
                "chunk {chunk} holds step {state}, step {} needs {}",
                at.step,
                at.step.0 - 1
            );
            return self.conductor(ConductorEvent::Failed(at, reason));
        }
        if let Some((_, missing)) =
            self.gathers[block.index()].as_mut().filter(|(asked, _)| *asked == at)
        {
            *missing -= 1;
            self.finish_gather(at, block);
        }
    }

    fn finish_gather(&mut self, at: Attempt, block: BlockId) {
        if self.gathers[block.index()] == Some((at, 0)) {
            self.gathers[block.index()] = None;
            let sent = self.book().stage(StageEvent::Gathered(at, block));
            self.check(sent);
        }
    }

    pub(super) fn carry_out_partition(&mut self, from: ActorId, effect: PartitionEffect) {
        let ActorId::Partition(chunk) = from else {
            unreachable!("a partition's effects come from a partition")
        };
        match effect {
            PartitionEffect::Recorded(at, record) => {
                self.conductor(ConductorEvent::Recorded(at, record));
            }
            PartitionEffect::Apply(decision) => self.submit(Command::Apply(chunk, decision)),
            PartitionEffect::Complete(step) => self.complete(chunk, step),
        }
    }

    fn complete(&mut self, chunk: ChunkId, step: Step) {
        self.states[chunk.index()] = step;
        let sent = self.book().shard(chunk, ShardEvent::Updated(step));
        self.check(sent);
        self.conductor(ConductorEvent::Complete(step, chunk));
    }

    pub(super) fn carry_out_conductor(&mut self, effect: ConductorEffect) {
        match effect {
            ConductorEffect::Begin(at) => {
                (self.at, self.decided) = (at, None);
                self.submit(Command::Begin(at));
                let sent = self.book().stage(StageEvent::Begin(at));
                self.check(sent);
            }
            ConductorEffect::Decide(decision) => {
                self.decided = Some(decision);
                for chunk in (0..self.plan.chunks).map(ChunkId) {
                    let sent = self.book().partition(chunk, PartitionEvent::Decision(decision));
                    self.check(sent);
                }
            }
            ConductorEffect::Complete(decision) => {
                let _ = self.driver.try_send(NodeEvent::Complete(decision));
            }
            ConductorEffect::Stop(stop) => self.stop(stop.to_string()),
        }
    }

    fn submit(&mut self, command: Command) {
        if let Err(reason) = self.device.submit(command) {
            self.stop(reason);
        }
    }

    pub(super) fn handle_report(&mut self, report: Report) {
        match report {
            Report::Done(at, op) => {
                let sent = self.book().stage(StageEvent::Done(at, op));
                self.check(sent);
            }
            Report::Loss(at, leaf, stats) => {
                self.conductor(ConductorEvent::Loss(at, leaf, stats));
                let sent = self.book().stage(StageEvent::Done(at, Op::Loss(leaf)));
                self.check(sent);
            }
            Report::Record(at, record) => {
                let event = PartitionEvent::Record(at, record);
                let sent = self.book().partition(record.chunk, event);
                self.check(sent);
            }
            Report::Applied(chunk, step) => {
                let sent = self.book().partition(chunk, PartitionEvent::Applied(step));
                self.check(sent);
            }
            Report::Failed(at, reason) => self.conductor(ConductorEvent::Failed(at, reason)),
            Report::Broken(reason) => self.stop(reason),
        }
    }
}
