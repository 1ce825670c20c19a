//! The passage of one node from a view to the next.

use super::{Node, scene};
use crate::protocol::conductor::Conductor;
use crate::protocol::effect::{Effect, Line};
use crate::protocol::holder::{Holder, Role, role_in};
use crate::protocol::lots::LotId;
use crate::protocol::message::{Evidence, Message};
use crate::protocol::shared::Shared;
use crate::protocol::spec::Mutation;
use crate::protocol::view::{ChunkSeat, NamedView, View};
use planaria_base::{ChunkId, NodeId, Step};
use std::collections::BTreeMap;

impl Node {
    /// A candidate installs the view we promised; a repeated one is acknowledged.
    pub(super) fn on_install(&mut self, from: NodeId, view: Shared<View>) {
        let mine = view.member(self.identity.node).map(|m| m.incarnation);
        if mine != Some(self.identity.incarnation) {
            return;
        }
        let installed = self.view.as_ref().map(|v| v.view.ballot);
        if installed == Some(view.ballot) {
            self.post.send(from, Message::Installed);
        } else if view.ballot == self.change.promised || self.spec.has_bug(Mutation::ForgetPromises)
        {
            self.install(view);
            self.post.send(from, Message::Installed);
        }
    }

    /// Takes a view's content, in this order: the fence, the decision, the copies, the lots.
    pub(super) fn install(&mut self, view: Shared<View>) {
        let before = self.view.take();
        let name = view.name();
        self.post.view = name;
        self.post.emit(Effect::Fence { view: name });
        self.change.install(view.ballot);
        self.note_departures(before.as_ref(), &view);
        self.view = Some(NamedView { name, view: view.clone() });
        self.roster = view.members.iter().map(|m| (m.node, m.incarnation)).collect();
        let own_log = std::mem::replace(&mut self.log, view.log.clone());
        if view.durable.step > self.durable.step || view.restored {
            self.durable = view.durable.clone();
        }
        let me = self.identity.node;
        self.detector.install(&view.members, me, self.spec.limits, self.now);
        self.accusations.install(&view.members);
        if view.conductor() == me {
            self.conductor.install(&view, me);
        } else {
            self.conductor = Conductor::default();
        }
        let newcomer = before.is_none();
        let decided = Step(self.step.min(view.step).0 - 1);
        let other_branch = newcomer && own_log.mark(decided) != view.log.mark(decided);
        let went_back = view.restored || view.restores != self.restores || other_branch;
        self.restores = view.restores;
        self.reach(&view, went_back || newcomer);
        self.seat(&view, went_back, newcomer);
        self.take_lots(&view, went_back || newcomer);
        self.door_installed(&view);
        self.evidence_at = None;
        self.install_sent_at = self.now;
    }

    /// Moves to the view's step in flight.
    fn reach(&mut self, view: &View, afresh: bool) {
        if afresh {
            self.decisions.clear();
            self.last_decision = None;
            self.finished = false;
        }
        match &view.decision {
            Some(decision) if afresh || decision.step >= self.step => {
                self.remember(decision.clone());
            }
            Some(decision) => {
                self.decisions.entry(decision.step).or_insert_with(|| decision.clone());
                self.last_decision.get_or_insert_with(|| decision.clone());
            }
            None => {}
        }
        assert!(
            afresh || self.step <= view.step,
            "a view without going back is never behind a member's step"
        );
        self.step = view.step;
        self.decisions.retain(|s, _| *s < view.step);
    }

    /// Every chunk's place; a copy that is no longer needed is dropped only now, when enough
    /// others hold it (PROTOCOL.md rule 10).
    fn seat(&mut self, view: &View, went_back: bool, newcomer: bool) {
        let me = self.identity.node;
        for (index, seat) in view.seats.iter().enumerate() {
            let chunk = ChunkId(index as u32);
            let role = role_in(seat, me);
            if role == Role::Spare && self.releases(view, seat, went_back) {
                if self.holders.remove(&chunk).is_some() {
                    self.post.emit(Effect::DropCopy { chunk });
                }
                continue;
            }
            if role == Role::Spare && !self.holders.contains_key(&chunk) {
                continue;
            }
            let sites = self.spec.chunks[index].sites;
            let scene = scene!(self);
            let holder = self.holders.entry(chunk).or_insert_with(|| Holder::new(chunk, sites));
            let ahead = holder.state.is_some_and(|m| m.step >= view.step);
            if went_back || (newcomer && role == Role::Learner) || ahead {
                holder.void(&mut self.post);
            }
            holder.install(seat, scene, &mut self.post);
            if view.restored && role != Role::Spare {
                let log = view.decision.as_ref().map_or_else(Default::default, |d| d.log);
                holder.restore(Step(view.step.0 - 1), log, &mut self.post);
            }
        }
    }

    /// Whether this view releases a copy of ours.
    fn releases(&self, view: &View, seat: &ChunkSeat, went_back: bool) -> bool {
        let enough = self.spec.replicas.min(view.members.len());
        went_back || seat.holders.len() >= enough || self.spec.has_bug(Mutation::DropWhenFenced)
    }

    fn take_lots(&mut self, view: &View, went_back: bool) {
        let me = self.identity.node;
        if went_back || self.sender.step() != view.step {
            self.begin_step(Some(&view.lots));
        } else {
            let mine = view.lots.iter().copied().filter(|l| l.node == me);
            self.sender.install(mine, &view.seats, &mut self.post);
            if self.sender.needs_values() && self.gather.is_complete() {
                self.begin_gather();
            }
            self.gather.install();
            self.sender.pump(scene!(self), &mut self.post);
        }
        for chunk in self.holders.keys().copied().collect::<Vec<_>>() {
            self.after_swap(chunk);
        }
    }

    fn note_departures(&mut self, before: Option<&NamedView>, view: &View) {
        let Some(before) = before else { return };
        for node in before.view.members.iter().map(|m| m.node) {
            if view.member(node).is_some() || view.departed.contains(&node) {
                continue;
            }
            self.quarantine.strike(node, self.now);
        }
    }

    pub(super) fn report_view(
        &mut self,
        view: &View,
        evicted: &BTreeMap<NodeId, Evidence>,
        again: usize,
    ) {
        let accused = self.accusations.first_at.unwrap_or(self.now);
        let first =
            self.evidence_at.filter(|_| !evicted.is_empty()).map_or(accused, |e| e.min(accused));
        let ms = (self.now - first) / 1000;
        let proposed = self.change.promised_at.max(first);
        self.post.emit(Effect::Report(Line::View {
            view: view.name(),
            members: view.members.len(),
            detected_ms: (proposed - first) / 1000,
            settled_ms: ms,
            recomputed_leaves: view
                .lots
                .iter()
                .filter(|l| l.id.0 >= LotId::SINGLE)
                .count()
                .min(again),
            evicted: evicted.iter().map(|(n, e)| (*n, *e)).collect(),
        }));
        if view.restored {
            let lost = self.step.0.saturating_sub(view.step.0);
            let chunk = self.door_lost_chunk();
            let to = Step(view.step.0 - 1);
            self.post.emit(Effect::Report(Line::FellBack { chunk, to, lost }));
        }
    }
}
