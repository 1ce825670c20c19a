//! The view change: promises and proposals here, the content of the new view in [`settle`]
//! (PROTOCOL.md §3).

mod chunk_seats;
mod settle;
#[cfg(test)]
mod tests;

pub use settle::{Settlement, Settling, settle};

use super::effect::Post;
use super::message::{Evidence, Inventory, Message};
use super::spec::{Mutation, Spec};
use super::view::Ballot;
use planaria_base::{NodeId, ViewId};
use std::collections::BTreeMap;

/// A proposal under way at its candidate.
#[derive(Clone, Debug)]
pub struct Proposal {
    /// Its number.
    pub ballot: Ballot,
    /// Who is to report; true for those who are not members yet.
    pub named: BTreeMap<NodeId, bool>,
    /// Who has.
    pub reports: BTreeMap<NodeId, Inventory>,
    /// Members left out, and why.
    pub evicted: BTreeMap<NodeId, Evidence>,
    started_at: u64,
    sent_at: u64,
}

/// One node's part in view changes.
#[derive(Clone, Debug, Default)]
pub struct ViewChange {
    /// The highest ballot promised.
    pub promised: Ballot,
    /// When.
    pub promised_at: u64,
    /// A promise is given and its view is not installed: no data frame is taken.
    pub closed: bool,
    /// Our own proposal.
    pub proposal: Option<Proposal>,
    /// When folded reports become a proposal.
    pub fold_at: Option<u64>,
    /// The highest number heard of.
    highest: ViewId,
    reopened_at: u64,
}

impl ViewChange {
    /// A number in use somewhere: ours must be higher.
    pub fn saw(&mut self, number: ViewId) {
        self.highest = self.highest.max(number);
    }

    /// A ballot higher than any promised or heard of.
    #[must_use]
    pub fn next_ballot(&self, me: NodeId) -> Ballot {
        let number = ViewId(self.highest.max(self.promised.number).0 + 1);
        Ballot { number, candidate: me }
    }

    /// Proposes to `named`, which includes ourselves.
    pub fn propose(
        &mut self,
        named: BTreeMap<NodeId, bool>,
        evicted: BTreeMap<NodeId, Evidence>,
        now: u64,
        post: &mut Post,
    ) {
        let ballot = self.next_ballot(post.me);
        post.send_all(named.keys().copied(), &Message::Propose { ballot });
        self.fold_at = None;
        let reports = BTreeMap::new();
        self.proposal =
            Some(Proposal { ballot, named, reports, evicted, started_at: now, sent_at: now });
    }

    /// A candidate proposes: promise, unless a higher ballot is promised. Says whether to report.
    pub fn on_propose(&mut self, ballot: Ballot, spec: &Spec, now: u64, post: &mut Post) -> bool {
        self.saw(ballot.number);
        if ballot < self.promised && !spec.has_bug(Mutation::ForgetPromises) {
            post.send(ballot.candidate, Message::Refuse { promised: self.promised });
            return false;
        }
        if self.proposal.as_ref().is_some_and(|p| p.ballot < ballot) {
            self.proposal = None;
        }
        if ballot != self.promised {
            self.promised = ballot;
            self.promised_at = now;
        }
        self.closed = true;
        true
    }

    /// Somebody has promised more: if we still want to, we must go higher.
    pub fn on_refuse(&mut self, promised: Ballot) -> bool {
        self.saw(promised.number);
        self.proposal.take_if(|p| p.ballot < promised).is_some()
    }

    /// A report came in. Says whether all are there.
    pub fn on_report(&mut self, from: NodeId, ballot: Ballot, inventory: Inventory) -> bool {
        let Some(proposal) = self.proposal.as_mut().filter(|p| p.ballot == ballot) else {
            return false;
        };
        if proposal.named.contains_key(&from) {
            proposal.reports.insert(from, inventory);
        }
        proposal.reports.len() == proposal.named.len()
    }

    /// Sends the proposal again to the silent; says whom it waits for. A silent joiner is left
    /// out, a silent member only when it is condemned.
    pub fn tick(
        &mut self,
        now: u64,
        spec: &Spec,
        post: &mut Post,
        waits: &mut Vec<NodeId>,
    ) -> bool {
        let Some(proposal) = &mut self.proposal else { return false };
        if now < proposal.sent_at + spec.timing.retry {
            return false;
        }
        proposal.sent_at = now;
        let silent = |n: &&NodeId| !proposal.reports.contains_key(n);
        let missing: Vec<NodeId> = proposal.named.keys().filter(silent).copied().collect();
        post.send_all(missing.iter().copied(), &Message::Propose { ballot: proposal.ballot });
        let patience = 3 * spec.timing.retry;
        let joiner = |n: &NodeId| proposal.named.get(n) == Some(&true);
        let stuck_on_joiner = now >= proposal.started_at + patience && missing.iter().any(joiner);
        waits.extend(missing);
        stuck_on_joiner
    }

    /// Whether a promise is old enough to ask for another proposal, at most every half second.
    pub fn wants_reopening(&mut self, now: u64, spec: &Spec) -> bool {
        let patience = 3 * spec.timing.retry;
        let due = self.closed
            && self.proposal.is_none()
            && now >= self.promised_at + patience
            && now >= self.reopened_at + patience;
        if due {
            self.reopened_at = now;
        }
        due
    }

    /// Somebody else's proposal is young: do not compete with it.
    #[must_use]
    pub fn is_promised_to_another(&self, me: NodeId, now: u64, spec: &Spec) -> bool {
        self.closed
            && self.promised.candidate != me
            && now < self.promised_at + 3 * spec.timing.retry
    }

    /// A view is installed.
    pub fn install(&mut self, ballot: Ballot) {
        self.saw(ballot.number);
        self.promised = self.promised.max(ballot);
        self.closed = false;
        self.proposal = None;
        self.fold_at = None;
    }
}
