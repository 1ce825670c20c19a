//! Copying a chunk while the run goes on: a step-stamped copy, then the stream of records.

use super::{Holder, Mark, Role, Scene};
use crate::protocol::effect::{Effect, Post};
use crate::protocol::message::Message;
use crate::protocol::record::Record;
use planaria_base::{Digest, NodeId, Step};

impl Holder {
    /// Asks the owner for the state if there is none, now and then, or says again that it keeps up.
    pub(super) fn ask_copy(&mut self, scene: Scene<'_>, post: &mut Post) {
        let due = self.sent_at == 0 || scene.now >= self.sent_at + scene.spec.timing.retry;
        if !due {
            return;
        }
        self.sent_at = scene.now.max(1);
        if !self.keeps_up(scene) {
            post.send(self.owner, Message::CopyRequest { chunk: self.chunk });
        } else if self.caught_up {
            let (chunk, step) = (self.chunk, scene.step);
            post.send(scene.conductor, Message::CaughtUp { chunk, step });
        }
    }

    /// The copy is, or with queued records will be, the state before the step in flight.
    fn keeps_up(&self, scene: Scene<'_>) -> bool {
        let Some(mark) = self.state else { return false };
        let next = self.queue.front().filter(|r| r.step.0 == mark.step.0 + 1);
        let applies = next.is_some_and(|r| scene.decisions.contains_key(&r.step));
        mark.step.0 + 1 >= scene.step.0 || applies
    }

    /// A member wants to copy; `budget` is what this donor may still send in this interval.
    pub fn on_copy_request(&mut self, from: NodeId, budget: &mut usize, post: &mut Post) {
        let Some(mark) = self.state.filter(|_| *budget > 0 && self.role == Role::Owner) else {
            return;
        };
        *budget -= 1;
        let (chunk, step, hash) = (self.chunk, mark.step, mark.hash);
        post.send(from, Message::Copy { chunk, step, hash });
        if let Some(record) = self.record {
            post.send(from, Message::Record { chunk, record });
        }
    }

    /// The copy arrived; an older one than we have changes nothing.
    pub fn on_copy(&mut self, step: Step, hash: Digest, scene: Scene<'_>, post: &mut Post) {
        let newer = self.state.is_none_or(|m| m.step < step);
        if self.role != Role::Learner || !newer || self.update.is_some() {
            return;
        }
        self.state = Some(Mark { step, hash });
        self.before = None;
        self.queue.retain(|r| r.step > step);
        post.emit(Effect::StoreCopy { chunk: self.chunk, step, hash });
        self.advance(scene, post);
    }

    /// Queues a record in order; a gap or an overflow means copying again.
    pub(super) fn queue_record(&mut self, record: Record, scene: Scene<'_>, post: &mut Post) {
        let next = match (self.queue.back(), self.state) {
            (Some(last), _) => last.step.0 + 1,
            (None, Some(mark)) => mark.step.0 + 1,
            (None, None) => return,
        };
        if record.step.0 != next {
            return;
        }
        if self.queue.len() >= scene.spec.limits.queued_records {
            return self.copy_again();
        }
        self.queue.push_back(record);
        post.emit(Effect::StoreRecord { chunk: self.chunk, record });
        self.advance(scene, post);
    }

    /// Forgets the copy; the next tick asks for another.
    pub(super) fn copy_again(&mut self) {
        self.state = None;
        self.before = None;
        self.update = None;
        self.queue.clear();
        self.sent_at = 0;
    }

    pub(super) fn advance_learner(&mut self, scene: Scene<'_>, post: &mut Post) {
        if let Some(mark) = self.state {
            while self.queue.front().is_some_and(|r| r.step <= mark.step) {
                self.queue.pop_front();
            }
        }
        let current = self.state.is_some_and(|m| m.step.0 + 1 == scene.step.0);
        if current && !self.caught_up {
            self.caught_up = true;
            let (chunk, step) = (self.chunk, Step(scene.step.0 - 1));
            post.send(scene.conductor, Message::CaughtUp { chunk, step });
        }
    }
}
