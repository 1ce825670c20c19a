//! The data plane of one node: partials, records, decisions, gathers, copies.

use super::{Node, scene};
use crate::protocol::conductor::{reason_to_stop, report_skip};
use crate::protocol::decision::Decision;
use crate::protocol::effect::{Effect, Event, Line, Stop};
use crate::protocol::holder::{Holder, Mark, Role};
use crate::protocol::lots::{Lot, deal};
use crate::protocol::message::{Message, Request};
use crate::protocol::view::Durable;
use planaria_base::{ChunkId, Digest, NodeId, Step};

impl Node {
    /// Takes a data message of the open view.
    pub(super) fn on_data(&mut self, from: NodeId, message: Message) {
        use Message as M;
        match message {
            M::Gather { step, chunks } => self.on_gather(from, step, &chunks),
            M::Params { step, chunk } => {
                self.gather.on_params(chunk, step, &mut self.post);
                self.start_if_gathered();
            }
            M::Stale { step, chunk, .. } => {
                self.gather.on_stale(chunk, step, self.now, self.spec.timing.retry);
            }
            M::Added { key } => self.sender.on_added(key, self.now),
            M::Refused { .. } => {}
            M::Again { step, chunk } => {
                self.sender.on_again(step, chunk, scene!(self), &mut self.post)
            }
            M::Final { chunk, record } => self.on_final(chunk, record),
            M::Decided(decision) => self.on_decided(*decision),
            M::AskDecision { step } => self.on_ask_decision(from, step),
            M::CaughtUp { chunk, .. } => self.on_caught_up(from, chunk),
            M::LotDone { leaves, micros, .. } => self.conductor.on_lot_done(from, leaves, micros),
            M::Persisted { chunk, step, hash } => self.on_persisted_told(chunk, step, hash),
            M::Checkpointed(durable) => self.on_checkpointed(*durable),
            M::Append(entry) => {
                let index = entry.index;
                if self.log.append(*entry) {
                    self.post.send(from, M::Appended { index });
                }
            }
            M::Appended { index } => {
                self.conductor.on_appended(from, index);
                self.try_decide();
            }
            M::Installed => {
                self.conductor.uninstalled.remove(&from);
            }
            holder => self.on_chunk_message(from, holder),
        }
    }

    /// Takes a message about one chunk.
    fn on_chunk_message(&mut self, from: NodeId, message: Message) {
        use Message as M;
        let chunk = match &message {
            M::Partial { key, .. } => key.chunk,
            M::AskFinal { chunk, .. }
            | M::Record { chunk, .. }
            | M::Held { chunk, .. }
            | M::StateHash { chunk, .. }
            | M::CopyRequest { chunk }
            | M::Copy { chunk, .. } => *chunk,
            _ => return,
        };
        let (scene, post) = (scene!(self), &mut self.post);
        let Some(holder) = self.holders.get_mut(&chunk) else { return };
        match message {
            M::Partial { key, start, len } => {
                holder.on_partial(from, (key, start, len), scene, post);
                if key.step > self.step {
                    self.ask_decision();
                }
            }
            M::AskFinal { step, .. } => holder.on_ask_final(from, step, post),
            M::Record { record, .. } => holder.on_record(from, record, scene, post),
            M::Held { step, digest, .. } => holder.on_held(from, (step, digest), scene, post),
            M::StateHash { step, hash, attempt, ask, .. } => {
                let mark = Mark { step, hash };
                holder.on_state_hash(from, (mark, attempt, ask), scene, post);
                self.after_swap(chunk);
            }
            M::CopyRequest { .. } => holder.on_copy_request(from, &mut self.copies_left, post),
            M::Copy { step, hash, .. } => holder.on_copy(step, hash, scene, post),
            _ => {}
        }
    }

    /// The shell finished something.
    pub(super) fn on_done(&mut self, event: Event) {
        let (scene, post) = (scene!(self), &mut self.post);
        match event {
            Event::Computed { key } => self.sender.on_computed(key, scene, post),
            Event::RecordFixed { chunk, step, record } => {
                if let Some(holder) = self.holders.get_mut(&chunk) {
                    holder.on_fixed(step, record, scene, post);
                }
            }
            Event::Updated { chunk, step, hash } => {
                if let Some(holder) = self.holders.get_mut(&chunk) {
                    holder.on_updated(step, hash, scene, post);
                }
                self.after_swap(chunk);
            }
            Event::Verified { chunk, intact } => {
                let holder = self.holders.get_mut(&chunk);
                if holder.is_some_and(|h| h.on_verified(intact, scene, post)) {
                    self.give_up_corrupt(chunk);
                }
            }
            Event::Restored { chunk, step, hash } => {
                if let Some(holder) = self.holders.get_mut(&chunk) {
                    holder.on_restored(Mark { step, hash }, scene, post);
                }
                self.after_swap(chunk);
            }
            Event::Persisted { chunk, step, hash } => {
                let conductor = scene.conductor;
                self.post.send(conductor, Message::Persisted { chunk, step, hash });
            }
            Event::Want { step, chunks } => {
                self.gather.want(step, &chunks);
                self.ask_values();
            }
            _ => {}
        }
    }

    /// Our copy is not what was agreed: delete it, leave, and come back as a new life.
    fn give_up_corrupt(&mut self, chunk: ChunkId) {
        self.post.emit(Effect::Report(Line::Corrupt(self.identity.node, chunk)));
        self.holders.remove(&chunk);
        self.post.emit(Effect::DropCopy { chunk });
        self.go_outside(Vec::new());
    }

    /// A copy is lost: whoever acts makes a view in which another holder, or the checkpoint, stands
    /// in for it; any other node comes back as a new life.
    pub(super) fn on_copy_lost(&mut self, chunk: ChunkId) {
        if self.holders.remove(&chunk).is_none() {
            return;
        }
        self.post.emit(Effect::DropCopy { chunk });
        if self.acts() {
            self.want_view();
        } else {
            self.go_outside(Vec::new());
        }
    }

    fn on_gather(&mut self, from: NodeId, step: Step, chunks: &[ChunkId]) {
        for chunk in chunks {
            match self.holders.get_mut(chunk) {
                Some(holder) => holder.on_gather(from, step, &mut self.post),
                None => {
                    let have = Step(0);
                    self.post.send(from, Message::Stale { step, chunk: *chunk, have });
                }
            }
        }
    }

    /// A copy may have reached the state that our own lots wait for.
    pub(super) fn after_swap(&mut self, chunk: ChunkId) {
        let Some(holder) = self.holders.get(&chunk) else { return };
        let Some(mark) = holder.state.filter(|_| holder.role != Role::Spare) else { return };
        self.gather.on_local(chunk, mark.step);
        self.start_if_gathered();
        self.finish_if_done();
    }

    pub(super) fn start_if_gathered(&mut self) {
        if self.sender.needs_values() && self.gather.is_complete() {
            self.sender.set_ready(scene!(self), &mut self.post);
        }
    }

    /// The run is over here when the last step is decided and every copy has it; the node stays
    /// to serve others.
    fn finish_if_done(&mut self) {
        let last = self.last_step();
        let has_last =
            |h: &Holder| h.role == Role::Spare || h.state.is_some_and(|m| m.step >= last);
        if self.step > last && !self.finished && self.holders.values().all(has_last) {
            self.finished = true;
            self.post.emit(Effect::Stop(Stop::Finished));
        }
    }

    fn on_final(&mut self, chunk: ChunkId, record: crate::protocol::record::Record) {
        if record.step != self.step {
            return;
        }
        self.sender.on_final(chunk, scene!(self), &mut self.post);
        if self.conducts() {
            self.conductor.on_final(chunk, record, self.step);
            self.try_decide();
        }
    }

    pub(super) fn try_decide(&mut self) {
        if !self.conducts() || self.change.closed {
            return;
        }
        if let Some(decision) = self.conductor.try_decide(scene!(self), &self.log) {
            let others: Vec<NodeId> = self.scene().everyone().collect();
            self.post.send_all(others, &Message::Decided(Box::new(decision)));
        }
    }

    /// A decision: of the step in flight it moves us on; of a later one we miss what is between.
    pub(super) fn on_decided(&mut self, decision: Decision) {
        if decision.step > self.step {
            return self.ask_decision();
        }
        if decision.step < self.step {
            return;
        }
        if self.conducts() {
            report_skip(&decision, &mut self.post);
        }
        if let Some(reason) = reason_to_stop(&decision, self.spec.rule.skips_that_stop) {
            self.post.emit(Effect::Stop(Stop::Halted(reason.clone())));
            self.stopped = Some(Stop::Halted(reason));
            return;
        }
        self.progress += 1;
        self.remember(decision);
        self.begin_step(None);
        for holder in self.holders.values_mut() {
            holder.advance(scene!(self), &mut self.post);
        }
        let chunks: Vec<ChunkId> = self.holders.keys().copied().collect();
        chunks.into_iter().for_each(|c| self.after_swap(c));
        self.at_step_boundary();
    }

    /// Keeps the decision and moves to the step after it.
    pub(super) fn remember(&mut self, decision: Decision) {
        self.step = Step(decision.step.0 + 1);
        self.ended_at = decision.ends.then_some(decision.step);
        self.last_decision = Some(decision.clone());
        self.decisions.insert(decision.step, decision);
        while self.decisions.len() > self.spec.limits.decisions {
            self.decisions.pop_first();
        }
    }

    /// Starts the step in flight with our lots: those given, or those dealt by the decision.
    pub(super) fn begin_step(&mut self, given: Option<&[Lot]>) {
        self.asked_decision_at = self.now;
        let me = self.identity.node;
        let over = self.step > self.last_step();
        let dealt = match (&self.last_decision, given) {
            _ if over => Vec::new(),
            (_, Some(lots)) => lots.to_vec(),
            (Some(decision), None) => deal(self.spec.leaves, &decision.weights),
            (None, None) => Vec::new(),
        };
        let mine = dealt.into_iter().filter(|l| l.node == me);
        self.sender.begin(self.step, mine, &mut self.post);
        if let Some(view) = &self.view {
            self.sender.set_owners(&view.view.seats);
        }
        self.begin_gather();
    }

    pub(super) fn begin_gather(&mut self) {
        if !self.sender.has_lots() {
            return self.gather.cancel();
        }
        let before = Step(self.step.0 - 1);
        if !self.spec.eager_gather {
            self.gather.begin(before, 0);
            return self.start_if_gathered();
        }
        self.gather.begin(before, self.spec.chunks.len());
        let here = |h: &Holder| h.role != Role::Spare && h.state.is_some_and(|m| m.step == before);
        let local: Vec<ChunkId> =
            self.holders.iter().filter(|(_, h)| here(h)).map(|(c, _)| *c).collect();
        local.into_iter().for_each(|c| self.gather.on_local(c, before));
        self.ask_values();
        self.start_if_gathered();
    }

    fn ask_values(&mut self) {
        let Some(view) = &self.view else { return };
        let mut waits = Vec::new();
        let scene = scene!(self);
        self.gather.ask(&view.view.seats, scene, &mut self.post, &mut waits);
        waits.into_iter().for_each(|n| self.detector.expect(n, self.now));
    }

    pub(super) fn ask_decision(&mut self) {
        if self.now >= self.asked_decision_at + self.spec.timing.retry / 4 {
            self.asked_decision_at = self.now;
            let conductor = self.scene().conductor;
            self.post.send(conductor, Message::AskDecision { step: self.step });
        }
    }

    fn on_ask_decision(&mut self, from: NodeId, step: Step) {
        let known: Vec<Decision> = self.decisions.range(step..).map(|d| d.1.clone()).collect();
        for decision in known {
            self.post.send(from, Message::Decided(Box::new(decision)));
        }
    }

    fn on_caught_up(&mut self, from: NodeId, chunk: ChunkId) {
        if self.conducts() {
            self.conductor.caught_up.insert((chunk, from));
            self.note_replication();
        }
    }

    fn on_persisted_told(&mut self, chunk: ChunkId, step: Step, hash: Digest) {
        if !self.conducts() || step <= self.durable.step {
            return;
        }
        if let Some((durable, hashes)) =
            self.conductor.on_persisted((chunk, step, hash), scene!(self))
        {
            if let Some(decision) = &durable.decision {
                let decision = Box::new(decision.clone());
                let mut log = self.log.clone();
                log.truncate(log.taken(decision.step).len());
                self.post.emit(Effect::Publish { decision, hashes, log });
            }
            let everyone: Vec<NodeId> = self.scene().everyone().collect();
            self.post.send_all(everyone, &Message::Checkpointed(Box::new(durable)));
        }
    }

    fn on_checkpointed(&mut self, durable: Durable) {
        if durable.step > self.durable.step {
            self.durable = durable;
        }
    }

    /// Sends again what was not answered.
    pub(super) fn tick_step(&mut self) {
        if self.view.is_none() || self.change.closed {
            return;
        }
        if self.now >= self.copies_at + self.spec.timing.retry {
            self.copies_at = self.now;
            self.copies_left = self.spec.limits.copies;
        }
        let mut waits = Vec::new();
        self.sender.tick(scene!(self), &mut self.post, &mut waits);
        for holder in self.holders.values_mut() {
            holder.tick(scene!(self), &mut self.post);
        }
        for chunk in self.holders.keys().copied().collect::<Vec<_>>() {
            self.after_swap(chunk);
        }
        if let (true, Some(view)) = (self.conducts(), &self.view) {
            self.conductor.tick(&view.view, scene!(self), &mut self.post, &mut waits);
            self.try_decide();
        } else if self.step <= self.last_step()
            && self.now >= self.asked_decision_at + 2 * self.spec.timing.retry
        {
            self.ask_decision();
            waits.push(self.scene().conductor);
        }
        waits.into_iter().for_each(|n| self.detector.expect(n, self.now));
        self.ask_values();
    }

    /// Passes a person's request on to the conductor, or grants it.
    pub(super) fn on_request(&mut self, request: Request) {
        let conductor = self.scene().conductor;
        self.post.send(conductor, Message::Ask(request));
    }
}
