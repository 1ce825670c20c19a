//! Detection and view changes of one node.

use super::Node;
use crate::protocol::effect::Stop;
use crate::protocol::holder::Holder;
use crate::protocol::membership::Jury;
use crate::protocol::message::{CopyReport, Evidence, Inventory, Message};
use crate::protocol::view::{Ballot, Member};
use crate::protocol::view_change::{Settlement, Settling, settle};
use planaria_base::{Incarnation, NodeId};
use std::collections::BTreeMap;

impl Node {
    /// Takes a membership message.
    pub(super) fn on_membership(&mut self, from: NodeId, message: Message) {
        use Message as M;
        match message {
            M::Heartbeat { .. } | M::ProbeAck => {}
            M::Probe => self.post.send(from, M::ProbeAck),
            M::Suspect { target, incarnation, evidence } => {
                self.on_suspect(from, target, incarnation, evidence);
            }
            M::Propose { ballot } => self.on_propose(from, ballot),
            M::Refuse { promised } => {
                if self.change.on_refuse(promised) {
                    self.wait_before_proposing();
                }
            }
            M::Report { ballot, inventory } => {
                if self.change.on_report(from, ballot, *inventory) {
                    self.settle();
                }
            }
            M::Install { view } => self.on_install(from, view),
            M::Reopen { promised } => {
                self.change.saw(promised.number);
                if self.acts() && !self.is_proposing() {
                    self.change.fold_at.get_or_insert(self.now + self.spec.timing.fold);
                }
            }
            M::Halt { reason } => self.stop(Stop::Halted(reason)),
            door => self.on_door(from, door),
        }
    }

    pub(super) fn tick(&mut self) {
        self.post.effects.reserve(4);
        let beat = Message::Heartbeat { progress: self.progress, busy: self.sender.is_busy() };
        let timing = self.spec.timing;
        let accused = self.detector.tick(self.now, beat, &timing, &mut self.post);
        for (target, evidence) in accused {
            self.accuse(target, evidence);
        }
        self.tick_change();
        self.tick_step();
        self.tick_door();
    }

    /// The oldest member that this node neither suspects nor knows to be condemned.
    fn confidant(&self) -> Option<NodeId> {
        let members = &self.view.as_ref()?.view.members;
        let condemned = self.condemned();
        let mut names = members.iter().map(|m| m.node);
        names.find(|&n| !self.detector.suspects(n) && !condemned.contains_key(&n))
    }

    /// Puts an accusation of our own before whoever acts on it.
    pub(super) fn accuse(&mut self, target: NodeId, evidence: Evidence) {
        let Some(view) = &self.view else { return };
        let Some(incarnation) = view.view.member(target).map(|m| m.incarnation) else { return };
        let me = self.identity.node;
        if target == me {
            let next = view.view.members.iter().map(|m| m.node).find(|&n| n != me);
            return self
                .post
                .send(next.unwrap_or(me), Message::Suspect { target, incarnation, evidence });
        }
        self.accusations.accuse(me, target, evidence, self.now);
        if let Some(to) = self.confidant().filter(|&n| n != me) {
            self.post.send(to, Message::Suspect { target, incarnation, evidence });
        }
    }

    /// Somebody accuses a member: look for ourselves, and pass on what is not ours to judge.
    fn on_suspect(
        &mut self,
        from: NodeId,
        target: NodeId,
        incarnation: Incarnation,
        evidence: Evidence,
    ) {
        let Some(view) = &self.view else { return };
        if view.view.member(target).map(|m| m.incarnation) != Some(incarnation) {
            return;
        }
        self.accusations.accuse(from, target, evidence, self.now);
        if target == self.identity.node {
            return;
        }
        if evidence < Evidence::Gone {
            self.detector.check(target, self.now, &mut self.post);
        }
        let confidant = self.confidant();
        let pass_on = confidant.filter(|&n| n != self.identity.node && n != from && n != target);
        if let (Some(to), false) = (pass_on, self.acts()) {
            self.post.send(to, Message::Suspect { target, incarnation, evidence });
        }
    }

    /// A process of this host exited: proof, told to whoever acts.
    pub(super) fn on_exit_seen(&mut self, node: NodeId, incarnation: Incarnation) {
        let known = self.view.as_ref().and_then(|v| v.view.member(node)).map(|m| m.incarnation);
        if known != Some(incarnation) {
            return;
        }
        self.accuse(node, Evidence::Exited);
    }

    pub(super) fn condemned(&self) -> BTreeMap<NodeId, Evidence> {
        let Some(view) = &self.view else { return BTreeMap::new() };
        let (me, members) = (self.identity.node, &view.view.members[..]);
        self.accusations.condemned(Jury { me, members, now: self.now, timing: &self.spec.timing })
    }

    /// Everyone older is condemned: views are ours to propose.
    pub(super) fn acts(&self) -> bool {
        let Some(view) = &self.view else { return false };
        let me = self.identity.node;
        if view.view.conductor() == me {
            return true;
        }
        let condemned = self.condemned();
        let mut older = view.view.members.iter().map(|m| m.node).take_while(|&n| n != me);
        older.all(|n| condemned.contains_key(&n))
    }

    pub(super) fn is_proposing(&self) -> bool {
        self.change.proposal.is_some()
    }

    /// A competing candidate won this round: come back at a time of our own.
    fn wait_before_proposing(&mut self) {
        let jitter = (self.identity.node.0.wrapping_mul(0x9e37_79b9) >> 8) % 8;
        let wait = self.spec.timing.retry * (1 + jitter) / 4;
        self.change.fold_at = Some(self.now + wait);
    }

    fn tick_change(&mut self) {
        if self.view.is_none() {
            self.change.proposal = None;
            return;
        }
        self.accusations.lapse(self.now, &self.spec.timing);
        let mut waits = Vec::new();
        let give_up_on_joiners = self.change.tick(self.now, &self.spec, &mut self.post, &mut waits);
        waits.into_iter().for_each(|n| self.detector.expect(n, self.now));
        if give_up_on_joiners {
            self.door.joiners.clear();
            return self.propose();
        }
        self.resend_install();
        self.reopen_if_stranded();
        if self.change.is_promised_to_another(self.identity.node, self.now, &self.spec) {
            return;
        }
        self.consider_proposing();
    }

    /// Folds what came in within 20 ms, then proposes.
    fn consider_proposing(&mut self) {
        let quiet = self.accusations.table_sizes() == 0;
        if (quiet && self.change.fold_at.is_none() && self.door.wants_view.is_none())
            || !self.acts()
        {
            return;
        }
        let condemned = self.condemned();
        let news = match &self.change.proposal {
            Some(proposal) => condemned.keys().any(|n| proposal.named.contains_key(n)),
            None => !condemned.is_empty() || self.door.wants_view.is_some_and(|at| self.now >= at),
        };
        if news && self.change.fold_at.is_none() {
            self.change.fold_at = Some(self.now + self.spec.timing.fold);
        }
        if self.change.fold_at.is_some_and(|at| self.now >= at) {
            self.propose();
        }
    }

    /// Names everyone who is not condemned, and the newcomers, and asks for promises.
    pub(super) fn propose(&mut self) {
        let Some(view) = &self.view else { return };
        let condemned = self.condemned();
        let out = |n: NodeId| condemned.contains_key(&n);
        let members = view.view.members.iter().map(|m| m.node).filter(|&n| !out(n));
        let mut named: BTreeMap<NodeId, bool> = members.map(|n| (n, false)).collect();
        let room = self.spec.limits.joiners;
        for &node in self.door.joiners.keys().take(room) {
            named.entry(node).or_insert(true);
        }
        named.insert(self.identity.node, false);
        self.door.wants_view = None;
        self.change.propose(named, condemned, self.now, &mut self.post);
    }

    /// A candidate asks for our promise. Members listen to members of their view; outsiders to
    /// anyone.
    fn on_propose(&mut self, from: NodeId, ballot: Ballot) {
        if self.change.on_propose(ballot, &self.spec, self.now, &mut self.post) {
            let inventory = Box::new(self.inventory());
            self.post.send(from, Message::Report { ballot, inventory });
        }
    }

    fn inventory(&self) -> Inventory {
        let identity = self.identity;
        let since =
            self.view.as_ref().map_or(self.change.promised.number, |v| v.view.ballot.number);
        let mine = self.view.as_ref().and_then(|v| v.view.member(identity.node));
        let member = Member {
            node: identity.node,
            incarnation: identity.incarnation,
            host: identity.host,
            at: identity.at,
            capacity: identity.capacity,
            since: mine.map_or(since, |m| m.since),
            draining: mine.is_some_and(|m| m.draining),
        };
        let copies: Vec<CopyReport> = self.holders.values().filter_map(Holder::report).collect();
        Inventory {
            member,
            installed: self.view.as_ref().map(|v| v.view.clone()),
            step: self.step,
            decision: self.last_decision.clone(),
            restores: self.restores,
            copies,
            log: self.log.clone(),
            durable: self.durable.clone(),
        }
    }

    /// All reports are in: make the view and install it everywhere, here first.
    fn settle(&mut self) {
        let Some(proposal) = self.change.proposal.take() else { return };
        if proposal.ballot < self.change.promised {
            return;
        }
        let outcome = settle(&Settling {
            spec: &self.spec,
            ballot: proposal.ballot,
            reports: &proposal.reports,
            evicted: &proposal.evicted,
            draining: &self.door.draining,
            give_up: self.door.give_up,
            promote: std::mem::take(&mut self.door.promote),
        });
        match outcome {
            Settlement::View(view, again) => {
                let others = view.members.iter().map(|m| m.node);
                let others: Vec<NodeId> = others.filter(|&n| n != self.identity.node).collect();
                let view = crate::protocol::shared::Shared::new(*view);
                self.report_view(&view, &proposal.evicted, again);
                let install = Message::Install { view: view.clone() };
                self.install(view);
                self.post.send_all(others, &install);
                let left = proposal.evicted.iter().filter(|e| *e.1 == Evidence::Left);
                self.post.send_all(left.map(|e| *e.0), &Message::Released);
            }
            Settlement::Outdated => self.go_outside(Vec::new()),
            Settlement::Halt(reason) => {
                let named: Vec<NodeId> = proposal.named.keys().copied().collect();
                self.post.send_all(named, &Message::Halt { reason });
            }
        }
    }

    fn resend_install(&mut self) {
        let due = self.now >= self.install_sent_at + self.spec.timing.retry;
        let Some(view) = self.view.as_ref().filter(|_| due && !self.change.closed) else { return };
        if self.conductor.uninstalled.is_empty() || view.view.conductor() != self.identity.node {
            return;
        }
        self.install_sent_at = self.now;
        let message = Message::Install { view: view.view.clone() };
        let missing: Vec<NodeId> = self.conductor.uninstalled.iter().copied().collect();
        self.post.send_all(missing.iter().copied(), &message);
        missing.into_iter().for_each(|n| self.detector.expect(n, self.now));
    }

    /// We promised, and nothing came of it: whoever acts shall propose again.
    fn reopen_if_stranded(&mut self) {
        if !self.change.wants_reopening(self.now, &self.spec) {
            return;
        }
        let promised = self.change.promised;
        let Some(to) = self.confidant() else { return };
        self.detector.expect(to, self.now);
        self.post.send(to, Message::Reopen { promised });
    }
}
