//! What nodes say to one another. Numbers (sums, gradients, states) travel as a body beside the
//! message; the protocol never looks inside.

use super::decision::Decision;
use super::log::{CommandLog, Entry, LogMark};
use super::lots::LotId;
use super::record::Record;
use super::shared::Shared;
use super::view::{Ballot, Durable, Member, View, ViewName};
use planaria_base::{ChunkId, Digest, Incarnation, NodeId, RunId, Site, Step};
use serde::{Deserialize, Serialize};

/// A message with what every frame carries (Law 4).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Frame {
    /// The run.
    pub run: RunId,
    /// The sender's installed view.
    pub view: ViewName,
    /// The sender.
    pub from: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// What it says.
    pub message: Message,
}

/// Names a partial: with the frame's run and view, the key of PROTOCOL.md rule 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct PartialKey {
    /// The step.
    pub step: Step,
    /// The chunk.
    pub chunk: ChunkId,
    /// The emission site.
    pub site: Site,
    /// The lot.
    pub lot: LotId,
}

/// Why a peer is accused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Evidence {
    /// Silent, and a probe was not answered.
    Silent,
    /// It is busy and makes no progress.
    Stuck,
    /// Its link closed, and a probe was not answered.
    Closed,
    /// It said or showed that it is in another view.
    Gone,
    /// It was asked to leave, holds nothing and has nothing to do.
    Left,
    /// Its process was seen to exit.
    Exited,
}

/// A side of a split ring, as it presents itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Side {
    /// Its view.
    pub name: ViewName,
    /// The views before.
    pub ancestry: Vec<ViewName>,
    /// Its conductor.
    pub conductor: NodeId,
    /// The commands it has taken.
    pub log: LogMark,
    /// The step it has in flight.
    pub step: Step,
    /// It has a copy of every chunk.
    pub whole: bool,
    /// It is primary.
    pub primary: bool,
}

/// A copy of a chunk, as its node reports it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CopyReport {
    /// The chunk.
    pub chunk: ChunkId,
    /// The state is that after this step.
    pub step: Step,
    /// Of the state.
    pub hash: Digest,
    /// The record of a later step, if held.
    pub record: Option<Record>,
}

/// What a member or joiner has, sent with its promise.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Inventory {
    /// Who reports.
    pub member: Member,
    /// The view it has installed, with content.
    pub installed: Option<Shared<View>>,
    /// The step it has in flight.
    pub step: Step,
    /// The decision before that step.
    pub decision: Option<Decision>,
    /// How often the run had gone back to a checkpoint when it got its copies.
    pub restores: u32,
    /// Its copies.
    pub copies: Vec<CopyReport>,
    /// The commands it knows.
    pub log: CommandLog,
    /// The latest durable state it knows.
    pub durable: Durable,
}

/// What people ask of the ring.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Request {
    /// Multiply the learning rate by this f32, as bits.
    ScaleRate(u32),
    /// A node is to drain and leave.
    Leave(NodeId),
    /// Make this side primary.
    Promote,
    /// Stop this side.
    Stop,
}

/// Everything a node may say. The line above each message names its fields.
#[allow(missing_docs, reason = "the sentence at each message explains its fields")]
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Message {
    // Data plane: taken only in the same view.
    /// Give me these chunks' values after this step.
    Gather { step: Step, chunks: Vec<ChunkId> },
    /// Here they are (body: the values).
    Params { step: Step, chunk: ChunkId },
    /// I am at another step.
    Stale { step: Step, chunk: ChunkId, have: Step },
    /// A lot's sum for a chunk and site (body: the sum and its lanes).
    Partial { key: PartialKey, start: u32, len: u32 },
    /// It is in the sum.
    Added { key: PartialKey },
    /// It overlaps the sum in part: somebody is wrong.
    Refused { key: PartialKey },
    /// The sum was in doubt and is zero now: send yours again.
    Again { step: Step, chunk: ChunkId },
    /// Is it Final?
    AskFinal { step: Step, chunk: ChunkId },
    /// A fixed record (body: the reduced gradient).
    Record { chunk: ChunkId, record: Record },
    /// I hold the record and everything before it.
    Held { step: Step, chunk: ChunkId, digest: Digest },
    /// All replicas hold it.
    Final { chunk: ChunkId, record: Record },
    /// A step is decided.
    Decided(Box<Decision>),
    /// Which decision did this step get?
    AskDecision { step: Step },
    /// My state after this step, computed for the `attempt`th time (or swapped in: the highest
    /// number), hashes to this; `ask`: tell me yours.
    StateHash { chunk: ChunkId, step: Step, hash: Digest, attempt: u32, ask: bool },
    /// Send me the chunk's state.
    CopyRequest { chunk: ChunkId },
    /// Here it is (body: the state).
    Copy { chunk: ChunkId, step: Step, hash: Digest },
    /// My copy keeps up.
    CaughtUp { chunk: ChunkId, step: Step },
    /// I computed my lot in this time.
    LotDone { step: Step, leaves: u32, micros: u64 },
    /// The chunk's state after this step is on disk.
    Persisted { chunk: ChunkId, step: Step, hash: Digest },
    /// All chunks' are.
    Checkpointed(Box<Durable>),
    /// The next command.
    Append(Box<Entry>),
    /// I have commands up to this one.
    Appended { index: u32 },
    /// I have installed the view.
    Installed,

    // Membership plane: taken from any view.
    /// I live; `progress` counts what I finished, `busy` says that I owe work.
    Heartbeat { progress: u64, busy: bool },
    /// Are you there?
    Probe,
    /// I am.
    ProbeAck,
    /// I accuse this life of a node.
    Suspect { target: NodeId, incarnation: Incarnation, evidence: Evidence },
    /// You are not in my view.
    NotMember(Box<Side>),
    /// I want to make the view with this number.
    Propose { ballot: Ballot },
    /// I have promised a higher one.
    Refuse { promised: Ballot },
    /// I promise, and this is what I have.
    Report { ballot: Ballot, inventory: Box<Inventory> },
    /// The view.
    Install { view: Shared<View> },
    /// My promise is old and nothing was installed: propose again.
    Reopen { promised: Ballot },
    /// Let me in.
    Join { member: Member },
    /// You may not come in now.
    JoinRefused { retry_after: u64 },
    /// You have left; your copies are released.
    Released,
    /// From a side of the ring to a former member, passed on to its conductor.
    Hello(Box<Side>),
    /// Our side yields: join that one, at this member.
    Yield { to: NodeId },
    /// What a person asked.
    Ask(Request),
    /// Stop the run: why.
    Halt { reason: String },
}

/// What travels beside a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body {
    /// Nothing.
    None,
    /// A chunk's values.
    Params,
    /// An exact partial sum.
    Partial,
    /// A reduced gradient.
    Record,
    /// A chunk's whole state.
    Copy,
}

impl Message {
    /// Taken only by a node that has the frame's view installed and open.
    #[must_use]
    pub fn is_data(&self) -> bool {
        use Message as M;
        !matches!(
            self,
            M::Heartbeat { .. }
                | M::Probe
                | M::ProbeAck
                | M::Suspect { .. }
                | M::NotMember(_)
                | M::Propose { .. }
                | M::Refuse { .. }
                | M::Report { .. }
                | M::Install { .. }
                | M::Reopen { .. }
                | M::Join { .. }
                | M::JoinRefused { .. }
                | M::Released
                | M::Hello(_)
                | M::Yield { .. }
                | M::Ask(_)
                | M::Halt { .. }
        )
    }

    /// What travels beside it.
    #[must_use]
    pub fn body(&self) -> Body {
        match self {
            Message::Params { .. } => Body::Params,
            Message::Partial { .. } => Body::Partial,
            Message::Record { .. } => Body::Record,
            Message::Copy { .. } => Body::Copy,
            _ => Body::None,
        }
    }
}
