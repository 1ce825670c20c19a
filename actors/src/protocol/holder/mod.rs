//! The holder of one chunk: its owner, a replica, a learner, or a node whose copy nobody may need.
//!
//! [`owner`] adds partials and fixes the record (PROTOCOL.md rules 1-3), [`replica`] holds records,
//! [`update`] applies decisions to scratch, compares hashes and swaps (§2 and §8), [`learner`]
//! copies and catches up (§6).

mod learner;
mod owner;
mod replica;
#[cfg(test)]
mod tests;
mod update;

use super::effect::{Effect, Post};
use super::log::LogMark;
use super::lots::LeafSet;
use super::message::{CopyReport, Message};
use super::record::Record;
use super::view::ChunkSeat;
use planaria_base::{ChunkId, Digest, NodeId, Step};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What a node is for a chunk in the installed view.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Adds, fixes, forwards.
    Owner,
    /// Holds records and applies them.
    Replica,
    /// Copies and catches up; gates nothing.
    Learner,
    /// Keeps a copy that is not in the view until it is released.
    Spare,
}

/// A chunk's state, without its numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The state is that after this step.
    pub step: Step,
    /// Of the state.
    pub hash: Digest,
}

/// The sum of a step in the making.
#[derive(Clone, Debug)]
struct Sum {
    step: Step,
    leaves: LeafSet,
    fixing: bool,
}

/// A decision being applied.
#[derive(Clone, Debug)]
struct Update {
    step: Step,
    hash: Option<Digest>,
    tries: u32,
    verifying: bool,
    sent_at: u64,
}

/// One chunk on one node.
#[derive(Clone, Debug)]
pub struct Holder {
    chunk: ChunkId,
    sites: u8,
    /// What this node is for the chunk.
    pub role: Role,
    /// The other holders in the view; learners are not among them.
    peers: Vec<NodeId>,
    owner: NodeId,
    learners: Vec<NodeId>,
    /// The state, once it is there.
    pub state: Option<Mark>,
    before: Option<Mark>,
    sum: Option<Sum>,
    /// The fixed record of the step after the state.
    pub record: Option<Record>,
    held: BTreeSet<NodeId>,
    is_final: bool,
    sent_at: u64,
    update: Option<Update>,
    theirs: BTreeMap<NodeId, (Mark, u32)>,
    queue: VecDeque<Record>,
    gathers: BTreeSet<(Step, NodeId)>,
    caught_up: bool,
}

/// What handlers need to know of the node beside its chunk.
#[derive(Clone, Copy)]
pub struct Scene<'a> {
    /// Now, in microseconds.
    pub now: u64,
    /// The run spec.
    pub spec: &'a super::spec::Spec,
    /// The run ends after this step: the spec's last, or earlier if it was asked to stop.
    pub last_step: Step,
    /// The step in flight.
    pub step: Step,
    /// Everyone in the view.
    pub members: &'a [super::view::Member],
    /// Its oldest member.
    pub conductor: NodeId,
    /// Decisions known, by step.
    pub decisions: &'a BTreeMap<Step, super::decision::Decision>,
}

impl Scene<'_> {
    /// Everyone's names.
    pub fn everyone(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.members.iter().map(|m| m.node)
    }
}

impl Holder {
    /// A chunk of which nothing is here yet.
    #[must_use]
    pub fn new(chunk: ChunkId, sites: u8) -> Holder {
        Holder {
            chunk,
            sites,
            role: Role::Spare,
            peers: Vec::new(),
            owner: NodeId(0),
            learners: Vec::new(),
            state: None,
            before: None,
            sum: None,
            record: None,
            held: BTreeSet::new(),
            is_final: false,
            sent_at: 0,
            update: None,
            theirs: BTreeMap::new(),
            queue: VecDeque::new(),
            gathers: BTreeSet::new(),
            caught_up: false,
        }
    }

    /// Takes its place in a new view. A sum of the step in flight survives where this node stays
    /// the owner (PROTOCOL.md rule 8c).
    pub fn install(&mut self, seat: &ChunkSeat, scene: Scene<'_>, post: &mut Post) {
        let was_owner = self.role == Role::Owner;
        self.role = role_in(seat, post.me);
        self.owner = seat.owner().unwrap_or(NodeId(0));
        self.peers = seat.holders.iter().copied().filter(|&n| n != post.me).collect();
        self.learners.clone_from(&seat.learners);
        self.gathers.clear();
        self.theirs.clear();
        self.is_final = false;
        self.sent_at = 0;
        self.caught_up = false;
        self.held = seat.fixed_at.iter().copied().collect();
        let keeps = was_owner && self.role == Role::Owner;
        if !keeps || self.sum.as_ref().is_some_and(|s| s.step != scene.step) {
            self.forget_sum(post);
        }
        self.change_track();
        self.doubt_update(post);
        self.advance(scene, post);
    }

    /// A learner's records queue, a holder's next record stands alone.
    fn change_track(&mut self) {
        match self.role {
            Role::Owner | Role::Replica => {
                let next = self.state.map_or(0, |m| m.step.0 + 1);
                let queued = std::mem::take(&mut self.queue);
                self.record = self.record.or(queued.into_iter().find(|r| r.step.0 == next));
            }
            Role::Learner => {
                self.queue.extend(self.record.take());
                self.update = None;
            }
            Role::Spare => self.update = None,
        }
    }

    /// The node left its view: the copy stays, its place does not.
    pub fn leave(&mut self, post: &mut Post) {
        self.role = Role::Spare;
        self.peers.clear();
        self.learners.clear();
        self.gathers.clear();
        self.theirs.clear();
        self.update = None;
        self.forget_sum(post);
    }

    /// Forgets the copy: the run went back to a checkpoint.
    pub fn void(&mut self, post: &mut Post) {
        self.forget_sum(post);
        *self = Holder::new(self.chunk, self.sites);
    }

    /// Drops everything and waits for the durable state.
    pub fn restore(&mut self, step: Step, log: LogMark, post: &mut Post) {
        let (chunk, sites, role) = (self.chunk, self.sites, self.role);
        let seat =
            (std::mem::take(&mut self.peers), self.owner, std::mem::take(&mut self.learners));
        *self = Holder::new(chunk, sites);
        self.role = role;
        (self.peers, self.owner, self.learners) = seat;
        post.emit(Effect::Restore { chunk, step, log });
    }

    /// The durable state is loaded.
    pub fn on_restored(&mut self, mark: Mark, scene: Scene<'_>, post: &mut Post) {
        if self.state.is_none() {
            self.state = Some(mark);
            self.advance(scene, post);
        }
    }

    /// Does whatever has become possible: applies a known decision, fixes a full sum, answers
    /// waiting gathers.
    pub fn advance(&mut self, scene: Scene<'_>, post: &mut Post) {
        self.drop_old_record();
        self.compare(scene, post);
        if self.role == Role::Learner {
            self.advance_learner(scene, post);
        }
        self.try_update(scene, post);
        self.answer_gathers(post);
        if self.role == Role::Owner {
            self.try_fix(post);
            self.replicate(scene, post);
        }
    }

    /// Sends again what was not answered.
    pub fn tick(&mut self, scene: Scene<'_>, post: &mut Post) {
        match self.role {
            Role::Owner => self.replicate(scene, post),
            Role::Learner => self.ask_copy(scene, post),
            Role::Replica | Role::Spare => {}
        }
        self.exchange(scene, post);
        self.compare(scene, post);
    }

    /// A member wants the values after `step`: now, when they are there, or Stale.
    pub fn on_gather(&mut self, from: NodeId, step: Step, post: &mut Post) {
        let have = self.state.map_or(Step(0), |m| m.step);
        if self.state.is_some_and(|m| m.step == step) {
            post.send(from, Message::Params { step, chunk: self.chunk });
        } else if self.role != Role::Spare && step.0 == have.0 + 1 {
            self.gathers.insert((step, from));
        } else {
            post.send(from, Message::Stale { step, chunk: self.chunk, have });
        }
    }

    fn answer_gathers(&mut self, post: &mut Post) {
        let Some(mark) = self.state else { return };
        if self.gathers.iter().any(|g| g.0 <= mark.step) {
            for (step, node) in std::mem::take(&mut self.gathers) {
                self.on_gather(node, step, post);
            }
        }
    }

    /// What to say of this copy in a report; nothing if there is no state.
    #[must_use]
    pub fn report(&self) -> Option<CopyReport> {
        let mark = self.state?;
        let next = self.record.filter(|r| r.step.0 == mark.step.0 + 1);
        let record =
            next.or_else(|| self.queue.front().copied()).filter(|r| r.step.0 == mark.step.0 + 1);
        Some(CopyReport { chunk: self.chunk, step: mark.step, hash: mark.hash, record })
    }

    /// A number that changes whenever a data frame has changed something here.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let sum = self.sum.as_ref().map_or(0, |s| s.step.0 * 1_000 + u64::from(s.leaves.count()));
        let state = self.state.map_or(0, |m| m.step.0 + 1);
        let record = self.record.map_or(0, |r| r.step.0 + 1);
        let few = self.held.len() + self.theirs.len() * 64 + self.queue.len() * 4096;
        sum + (state << 32)
            + (record << 48)
            + ((few as u64) << 16)
            + (u64::from(self.is_final) << 63)
    }

    /// Other holders have the same state: a flipped bit here is noticed.
    #[must_use]
    pub fn is_replicated(&self) -> bool {
        !self.peers.is_empty()
    }

    /// Nobody else holds or copies the chunk.
    fn is_alone(&self) -> bool {
        self.peers.is_empty() && self.learners.is_empty()
    }

    /// Entries in this chunk's tables.
    #[must_use]
    pub fn table_sizes(&self) -> usize {
        self.held.len() + self.theirs.len() + self.queue.len() + self.gathers.len()
    }

    fn forget_sum(&mut self, post: &mut Post) {
        if self.sum.take().is_some() {
            post.emit(Effect::ZeroSum { chunk: self.chunk });
        }
    }

    fn drop_old_record(&mut self) {
        let Some(mark) = self.state else { return };
        if self.record.is_some_and(|r| r.step <= mark.step) {
            self.record = None;
            self.held.clear();
            self.is_final = false;
        }
    }

    /// The state is that after `step`.
    fn is_at(&self, step: u64) -> bool {
        self.state.is_some_and(|m| m.step.0 == step)
    }
}

/// What `me` is in a seat.
#[must_use]
pub fn role_in(seat: &ChunkSeat, me: NodeId) -> Role {
    if seat.owner() == Some(me) {
        Role::Owner
    } else if seat.holders.contains(&me) {
        Role::Replica
    } else if seat.learners.contains(&me) {
        Role::Learner
    } else {
        Role::Spare
    }
}
