//! A view: numbered membership and placement, and how the step in flight is settled in it.

use super::content::content_digest;
use super::decision::Decision;
use super::log::CommandLog;
use super::lots::Lot;
use super::shared::Shared;
use planaria_base::{Digest, Incarnation, NodeId, Step, ViewId};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// A proposal's number; of two with the same number the higher candidate's is the later.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Ballot {
    /// Becomes the view's number.
    pub number: ViewId,
    /// Who proposes.
    pub candidate: NodeId,
}

/// A view's identity: its number and the hash of its content (PROTOCOL.md, rule 7).
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct ViewName {
    /// The number.
    pub number: ViewId,
    /// Of [`View`]'s fields.
    pub content: Digest,
}

/// A node in a view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its stable name.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// The machine it runs on.
    pub host: u64,
    /// Where it listens; `None` in simulations.
    pub at: Option<SocketAddr>,
    /// How much it can hold, relative to others.
    pub capacity: u64,
    /// Its age: the number of the first view it was in.
    pub since: ViewId,
    /// It was asked to leave: it gets no new lots and gives its chunks away.
    pub draining: bool,
}

/// One chunk's holders in a view.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct ChunkSeat {
    /// Owner first, then replicas. Empty: every copy is out of reach, and the ring waits.
    pub holders: Vec<NodeId>,
    /// Copying; they never gate Final.
    pub learners: Vec<NodeId>,
    /// Which holders have the record of the step in flight; none: senders must (re)send.
    pub fixed_at: Vec<NodeId>,
}

impl ChunkSeat {
    /// The owner, if the chunk is within reach.
    #[must_use]
    pub fn owner(&self) -> Option<NodeId> {
        self.holders.first().copied()
    }
}

/// Where a restored chunk comes from.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Durable {
    /// State after this step is on disk for every chunk; step 0 is the initial state.
    pub step: Step,
    /// The decision of that step, unless it is step 0.
    pub decision: Option<Decision>,
}

/// What an Install says.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct View {
    /// Number and author.
    pub ballot: Ballot,
    /// The view before, and those before it, latest first.
    pub ancestry: Vec<ViewName>,
    /// Oldest first; the first is the conductor.
    pub members: Vec<Member>,
    /// By chunk.
    pub seats: Vec<ChunkSeat>,
    /// The step in flight.
    pub step: Step,
    /// The decision before it: holders that have not applied it do so now.
    pub decision: Option<Decision>,
    /// The lots of the step in flight.
    pub lots: Vec<Lot>,
    /// All commands.
    pub log: CommandLog,
    /// Whether this side may take commands that change numbers (PROTOCOL.md, §4).
    pub primary: bool,
    /// The members of the last primary view.
    pub electorate: Vec<NodeId>,
    /// All holders load the durable state: every copy of some chunk was lost.
    pub restored: bool,
    /// How often that has happened in this run.
    pub restores: u32,
    /// The latest state that is on disk everywhere.
    pub durable: Durable,
    /// Leaves of the step in flight whose nodes died, and how many nodes.
    pub deaths: Vec<(u32, u32)>,
    /// Members of the view before that left on purpose or are proved dead: nobody probes them.
    pub departed: Vec<NodeId>,
    /// Former members that may live on another side: the conductor greets them.
    pub former: Vec<NodeId>,
}

impl View {
    /// Ancestors remembered.
    pub const ANCESTRY: usize = 16;

    /// The view's identity.
    ///
    /// # Cost
    /// Hashes the content: once per install.
    #[must_use]
    pub fn name(&self) -> ViewName {
        ViewName { number: self.ballot.number, content: content_digest(self) }
    }

    /// The oldest member.
    #[must_use]
    pub fn conductor(&self) -> NodeId {
        self.members.first().map_or(self.ballot.candidate, |m| m.node)
    }

    /// The member with this name.
    #[must_use]
    pub fn member(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|m| m.node == node)
    }

    /// Members that are to hold chunks: those that are not asked to leave, or all if all are.
    pub fn stayers(&self) -> impl Iterator<Item = &Member> {
        let all = self.members.iter().all(|m| m.draining);
        self.members.iter().filter(move |m| all || !m.draining)
    }

    /// Every chunk is within reach.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.seats.iter().all(|s| !s.holders.is_empty())
    }
}

/// A view and its name, shared.
#[derive(Clone, PartialEq, Debug)]
pub struct NamedView {
    /// Its identity.
    pub name: ViewName,
    /// Its content.
    pub view: Shared<View>,
}
