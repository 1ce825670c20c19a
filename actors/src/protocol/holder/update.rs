//! Applying a decision: to scratch, hashes compared with the other holders', then the swap.

use super::{Holder, Mark, Role, Scene, Update};
use crate::protocol::effect::{Effect, Line, Post};
use crate::protocol::message::Message;
use crate::protocol::spec::Mutation;
use planaria_base::{Digest, NodeId, Step};

/// Times that all holders compute an update again before the run stops over a disagreement.
const RECOMPUTE_TRIES: u32 = 2;

/// Whether two hashes may be of one state. A holder that had a chunk to itself has not hashed it: its
/// hash is zero, and tells nothing.
fn same(a: Digest, b: Digest) -> bool {
    a == b || a == Digest::default() || b == Digest::default()
}

impl Holder {
    /// Starts the update of a step whose record is here and whose decision is known.
    pub(super) fn try_update(&mut self, scene: Scene<'_>, post: &mut Post) {
        if self.update.is_some() || self.role == Role::Spare {
            return;
        }
        let record = match self.role {
            Role::Learner => self.queue.front().copied(),
            _ => self.record,
        };
        let Some(record) = record.filter(|r| self.is_at(r.step.0 - 1)) else { return };
        let Some(decision) = scene.decisions.get(&record.step) else { return };
        self.update =
            Some(Update { step: record.step, hash: None, tries: 0, verifying: false, sent_at: 0 });
        let decision = Box::new(decision.clone());
        post.emit(Effect::Update { chunk: self.chunk, decision, alone: self.is_alone() });
    }

    /// The holders change while an update is not compared: whoever could have shown that ours is
    /// wrong may be gone. Look at state and record again, and compute again.
    pub(super) fn doubt_update(&mut self, post: &mut Post) {
        if let Some(update) = &mut self.update {
            (update.hash, update.tries, update.sent_at) = (None, 0, 0);
            update.verifying = true;
            post.emit(Effect::Verify { chunk: self.chunk });
        }
    }

    /// Scratch is complete.
    pub fn on_updated(&mut self, step: Step, hash: Digest, scene: Scene<'_>, post: &mut Post) {
        let waits = |u: &&mut Update| u.step == step && !u.verifying && u.hash.is_none();
        let Some(update) = self.update.as_mut().filter(waits) else { return };
        update.hash = Some(hash);
        update.sent_at = 0;
        self.exchange(scene, post);
        self.compare(scene, post);
    }

    /// Tells the other holders the hash, until all have told theirs.
    pub(super) fn exchange(&mut self, scene: Scene<'_>, post: &mut Post) {
        let Some(update) = &mut self.update else { return };
        let Some(hash) = update.hash else { return };
        if update.sent_at != 0 && scene.now < update.sent_at + scene.spec.timing.retry {
            return;
        }
        update.sent_at = scene.now.max(1);
        let (chunk, step, attempt) = (self.chunk, update.step, update.tries);
        let to = match self.role {
            Role::Learner => vec![self.owner],
            _ => self.peers.clone(),
        };
        post.send_all(to, &Message::StateHash { chunk, step, hash, attempt, ask: true });
    }

    /// Another holder's hash; `said` is the mark, at which attempt, and whether it asks for ours.
    pub fn on_state_hash(
        &mut self,
        from: NodeId,
        said: (Mark, u32, bool),
        scene: Scene<'_>,
        post: &mut Post,
    ) {
        let (mark, attempt, ask) = said;
        if !self.peers.contains(&from) && !self.learners.contains(&from) {
            return;
        }
        let mine = self.state.into_iter().chain(self.before).find(|m| m.step == mark.step);
        let mine = mine.or(self.state.filter(|m| m.step > mark.step));
        if let Some(Mark { step, hash }) = mine.filter(|_| ask) {
            let attempt = u32::MAX;
            let ask = false;
            post.send(from, Message::StateHash { chunk: self.chunk, step, hash, attempt, ask });
        }
        if !self.peers.contains(&from) {
            return;
        }
        let newer = |m: &(Mark, u32)| (m.0.step, m.1) <= (mark.step, attempt);
        if self.theirs.get(&from).is_none_or(newer) {
            self.theirs.insert(from, (mark, attempt));
        }
        self.compare(scene, post);
    }

    /// All hashes equal: swap. One differs: look for the culprit, unless it differs from an attempt
    /// that its node makes again, as we do.
    pub(super) fn compare(&mut self, scene: Scene<'_>, post: &mut Post) {
        let Some(update) = self.update.as_ref().filter(|u| !u.verifying) else { return };
        let (step, tries, Some(hash)) = (update.step, update.tries, update.hash) else { return };
        if scene.spec.has_bug(Mutation::SkipHashExchange) {
            return self.swap(Mark { step, hash }, scene, post);
        }
        if self.role == Role::Learner {
            return self.compare_learner(Mark { step, hash }, scene, post);
        }
        let said = |p: &NodeId| self.theirs.get(p).filter(|m| m.0.step >= step);
        let agrees = |m: &(Mark, u32)| m.0.step > step || same(m.0.hash, hash);
        if self.peers.iter().filter_map(said).any(|m| !agrees(m) && m.1 >= tries) {
            self.update.iter_mut().for_each(|u| u.verifying = true);
            post.emit(Effect::Verify { chunk: self.chunk });
        } else if self.peers.iter().all(|p| said(p).is_some_and(agrees)) {
            self.swap(Mark { step, hash }, scene, post);
        }
    }

    /// A learner goes by the owner's hash; if it differs, or the owner is far ahead, it copies
    /// again.
    fn compare_learner(&mut self, mine: Mark, scene: Scene<'_>, post: &mut Post) {
        match self.theirs.get(&self.owner).map(|t| t.0) {
            Some(theirs) if theirs.step == mine.step && same(theirs.hash, mine.hash) => {
                self.swap(mine, scene, post);
            }
            Some(theirs) if theirs.step >= mine.step => {
                if theirs.step == mine.step {
                    post.emit(Effect::Report(Line::Corrupt(post.me, self.chunk)));
                }
                self.copy_again();
            }
            _ => {}
        }
    }

    /// State and record were hashed again: the holder that differs from what was agreed is the
    /// culprit (true: this one is); if none does, a scratch was wrong and all compute again.
    pub fn on_verified(&mut self, intact: bool, scene: Scene<'_>, post: &mut Post) -> bool {
        let Some(update) = self.update.as_mut().filter(|u| u.verifying) else { return false };
        update.verifying = false;
        if !intact {
            return true;
        }
        update.tries += 1;
        update.hash = None;
        let (step, tries) = (update.step, update.tries);
        if tries > RECOMPUTE_TRIES {
            let reason = format!("holders of chunk {} disagree after step {step}", self.chunk);
            post.send_all(scene.everyone(), &Message::Halt { reason });
        } else if let Some(decision) = scene.decisions.get(&step) {
            let decision = Box::new(decision.clone());
            post.emit(Effect::Update { chunk: self.chunk, decision, alone: self.is_alone() });
        }
        false
    }

    fn swap(&mut self, mark: Mark, scene: Scene<'_>, post: &mut Post) {
        let chunk = self.chunk;
        self.before = self.state;
        self.state = Some(mark);
        self.update = None;
        if self.role == Role::Learner {
            self.queue.pop_front();
        }
        post.emit(Effect::Swap { chunk, step: mark.step });
        let every = scene.spec.checkpoint_every.max(1);
        let due = mark.step.0.is_multiple_of(every) || mark.step == scene.last_step;
        if self.role == Role::Owner && due {
            let log = scene.decisions.get(&mark.step).map_or_else(Default::default, |d| d.log);
            post.emit(Effect::Persist { chunk, step: mark.step, log });
        }
        self.advance(scene, post);
    }
}
