//! The owner's half: add each leaf once, fix the record, see it held, say Final.

use super::{Holder, Role, Scene, Sum};
use crate::protocol::effect::{Effect, Post};
use crate::protocol::lots::{LeafSet, Overlap};
use crate::protocol::message::{Message, PartialKey};
use crate::protocol::record::Record;
use crate::protocol::spec::Mutation;
use planaria_base::{Digest, NodeId, Step};

impl Holder {
    /// A whole, verified partial arrived. Adding it and setting its bits is one act.
    pub fn on_partial(
        &mut self,
        from: NodeId,
        partial: (PartialKey, u32, u32),
        scene: Scene<'_>,
        post: &mut Post,
    ) {
        let (key, start, len) = partial;
        if self.role != Role::Owner || key.step != scene.step {
            return;
        }
        if self.record.is_some_and(|r| r.step == key.step) {
            post.counters.duplicates += 1;
            post.send(from, Message::Added { key });
            return self.tell_if_final(from, post);
        }
        let sum = self.sum.get_or_insert_with(|| Sum {
            step: key.step,
            leaves: LeafSet::new(scene.spec.leaves, self.sites),
            fixing: false,
        });
        match sum.leaves.overlap(key.site.0, start, len) {
            Some(Overlap::Disjoint) => {
                sum.leaves.insert(key.site.0, start, len);
                post.emit(Effect::Add { key, start, len, from });
                post.send(from, Message::Added { key });
            }
            Some(Overlap::Subset) => {
                post.counters.duplicates += 1;
                if scene.spec.has_bug(Mutation::AcceptDuplicates) {
                    post.emit(Effect::Add { key, start, len, from });
                }
                post.send(from, Message::Added { key });
            }
            Some(Overlap::Partial) | None => {
                post.counters.refused += 1;
                post.send(from, Message::Refused { key });
            }
        }
        self.try_fix(post);
    }

    /// A full sum becomes the record, once the state before it is complete.
    pub(super) fn try_fix(&mut self, post: &mut Post) {
        let chunk = self.chunk;
        let state = self.state.map(|m| m.step.0);
        let alone = self.is_alone();
        let Some(sum) = self.sum.as_mut().filter(|s| !s.fixing && s.leaves.is_full()) else {
            return;
        };
        if state == Some(sum.step.0 - 1) {
            sum.fixing = true;
            post.emit(Effect::FixRecord { chunk, step: sum.step, alone });
        }
    }

    /// The shell checked the lanes. Wrong: zero, and everyone sends again (rule 2, in doubt).
    pub fn on_fixed(
        &mut self,
        step: Step,
        record: Option<Record>,
        scene: Scene<'_>,
        post: &mut Post,
    ) {
        if !self.sum.as_ref().is_some_and(|s| s.step == step && s.fixing) {
            return;
        }
        match record {
            Some(record) => {
                self.sum = None;
                self.record = Some(record);
                self.held.clear();
                self.is_final = false;
                self.sent_at = 0;
                self.replicate(scene, post);
            }
            None => self.doubt(step, scene, post),
        }
    }

    fn doubt(&mut self, step: Step, scene: Scene<'_>, post: &mut Post) {
        self.forget_sum(post);
        post.send_all(scene.everyone(), &Message::Again { step, chunk: self.chunk });
    }

    /// Sends the record to those who have not said Held, and Final once all have.
    pub(super) fn replicate(&mut self, scene: Scene<'_>, post: &mut Post) {
        let Some(record) = self.record.filter(|r| r.step == scene.step) else { return };
        if self.is_final || !self.is_at(record.step.0 - 1) {
            return;
        }
        let first = self.sent_at == 0;
        if first || scene.now >= self.sent_at + scene.spec.timing.retry {
            self.sent_at = scene.now.max(1);
            let missing: Vec<NodeId> =
                self.peers.iter().copied().filter(|p| !self.held.contains(p)).collect();
            let learners = self.learners.iter().copied().filter(|_| first);
            let message = Message::Record { chunk: self.chunk, record };
            post.send_all(missing.into_iter().chain(learners), &message);
        }
        self.try_final(scene, post);
    }

    fn try_final(&mut self, scene: Scene<'_>, post: &mut Post) {
        let Some(record) = self.record.filter(|r| r.step == scene.step) else { return };
        let eager = scene.spec.has_bug(Mutation::FinalBeforeHeld);
        if !self.is_final && (eager || self.peers.iter().all(|p| self.held.contains(p))) {
            self.is_final = true;
            let message = Message::Final { chunk: self.chunk, record };
            post.send_all(scene.everyone(), &message);
        }
    }

    /// A replica holds the record and everything before it.
    pub fn on_held(
        &mut self,
        from: NodeId,
        held: (Step, Digest),
        scene: Scene<'_>,
        post: &mut Post,
    ) {
        let mine = self.record.filter(|r| (r.step, r.digest) == held);
        if self.role == Role::Owner && mine.is_some() && self.peers.contains(&from) {
            self.held.insert(from);
            self.try_final(scene, post);
        }
    }

    /// Somebody missed a Final.
    pub fn on_ask_final(&mut self, from: NodeId, step: Step, post: &mut Post) {
        if self.record.is_some_and(|r| r.step == step) {
            self.tell_if_final(from, post);
        }
    }

    fn tell_if_final(&self, to: NodeId, post: &mut Post) {
        if let (true, Some(record)) = (self.is_final, self.record) {
            post.send(to, Message::Final { chunk: self.chunk, record });
        }
    }
}
