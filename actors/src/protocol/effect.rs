//! What goes into a node's machine and what comes out.

use super::decision::Decision;
use super::log::{CommandLog, LogMark};
use super::message::PartialKey;
use super::message::{Evidence, Frame, Message, Request};
use super::record::Record;
use super::view::ViewName;
use planaria_base::{ChunkId, Digest, Incarnation, NodeId, RunId, Step};
use std::collections::VecDeque;

/// Something happened.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Time passed. At least every 20 ms.
    Tick,
    /// A peer's frame arrived whole and verified.
    Frame(Box<Frame>),
    /// A partial that [`Effect::Compute`] asked for is ready.
    Computed {
        /// Which.
        key: PartialKey,
    },
    /// The end of [`Effect::FixRecord`].
    RecordFixed {
        /// The chunk.
        chunk: ChunkId,
        /// The step.
        step: Step,
        /// The record; nothing if a lane was wrong.
        record: Option<Record>,
    },
    /// The end of [`Effect::Update`]: the next state lies in scratch.
    Updated {
        /// The chunk.
        chunk: ChunkId,
        /// The scratch holds the state after this step.
        step: Step,
        /// Of the scratch.
        hash: Digest,
    },
    /// The end of [`Effect::Verify`].
    Verified {
        /// The chunk.
        chunk: ChunkId,
        /// State and record hash to what was agreed.
        intact: bool,
    },
    /// The end of [`Effect::Restore`].
    Restored {
        /// The chunk.
        chunk: ChunkId,
        /// The state is that after this step.
        step: Step,
        /// Of the state.
        hash: Digest,
    },
    /// The end of [`Effect::Persist`].
    Persisted {
        /// The chunk.
        chunk: ChunkId,
        /// The state on disk is that after this step.
        step: Step,
        /// Of the state.
        hash: Digest,
    },
    /// The shell wants values of the state after this step.
    Want {
        /// Which step.
        step: Step,
        /// Which chunks.
        chunks: Vec<ChunkId>,
    },
    /// This node's copy of a chunk is lost, though the node lives.
    CopyLost(ChunkId),
    /// A bulk link closed.
    LinkClosed(NodeId),
    /// A process of this host exited.
    ExitSeen(NodeId, Incarnation),
    /// A person asks something of this node.
    Ask(Request),
}

/// Something is to be done. Effects on one chunk are carried out in order.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Send a frame; [`Message::body`] says what goes with it.
    Send {
        /// To whom.
        to: NodeId,
        /// What.
        frame: Box<Frame>,
    },
    /// Compute a lot's partial for a chunk and site. Given in order, so a backward pass may start
    /// at the first and must pause before a part for which this has not come.
    Compute {
        /// Which.
        key: PartialKey,
        /// The first leaf.
        start: u32,
        /// How many.
        len: u32,
    },
    /// The partial is no longer needed, or not at all: a backward pass does not pause for it.
    Free {
        /// Which.
        key: PartialKey,
    },
    /// Stop computing lots and forget all partials and gathered values.
    AbandonLots,
    /// Add a partial (the body that came with the frame, or our own) to the sum.
    Add {
        /// Which.
        key: PartialKey,
        /// The first leaf, for the tag lane.
        start: u32,
        /// How many.
        len: u32,
        /// Who made it.
        from: NodeId,
    },
    /// Zero the sum and lanes.
    ZeroSum {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Check the lanes and turn the sum into the record.
    FixRecord {
        /// The chunk.
        chunk: ChunkId,
        /// The step.
        step: Step,
        /// Nobody else holds or copies the chunk: nobody will compare the record's digest.
        alone: bool,
    },
    /// Keep the record that came with the frame.
    StoreRecord {
        /// The chunk.
        chunk: ChunkId,
        /// Its words.
        record: Record,
    },
    /// Compute the next state into scratch, from the state and the record.
    Update {
        /// The chunk.
        chunk: ChunkId,
        /// How.
        decision: Box<Decision>,
        /// Nobody else holds or copies the chunk: nobody will compare the hash, and the state may
        /// be changed in place.
        alone: bool,
    },
    /// Hash state and record again and compare with what was agreed.
    Verify {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Make scratch the state, drop the record.
    Swap {
        /// The chunk.
        chunk: ChunkId,
        /// The state is now that after this step.
        step: Step,
    },
    /// Keep the state that came with the frame.
    StoreCopy {
        /// The chunk.
        chunk: ChunkId,
        /// The state is that after this step.
        step: Step,
        /// Of the state.
        hash: Digest,
    },
    /// Keep the values that came with the frame until the step is over.
    StoreParams {
        /// The chunk.
        chunk: ChunkId,
        /// Of the state after this step.
        step: Step,
    },
    /// Delete everything kept for the chunk; a lot that reads its values keeps those until
    /// [`Effect::AbandonLots`].
    DropCopy {
        /// The chunk.
        chunk: ChunkId,
    },
    /// Load the chunk from the checkpoint of this step; step 0 is the initial state. What was
    /// under way for the chunk is void.
    Restore {
        /// The chunk.
        chunk: ChunkId,
        /// The step.
        step: Step,
        /// The commands taken: part of the checkpoint's name.
        log: LogMark,
    },
    /// Write the chunk's state to the checkpoint of this step.
    Persist {
        /// The chunk.
        chunk: ChunkId,
        /// The step.
        step: Step,
        /// The commands taken: part of the checkpoint's name.
        log: LogMark,
    },
    /// The checkpoint is complete: publish it with this decision.
    Publish {
        /// What to publish.
        decision: Box<Decision>,
        /// By chunk: the hash of its state.
        hashes: Vec<Digest>,
        /// The commands taken by then.
        log: CommandLog,
    },
    /// Close all bulk links of the old view; later ones belong to this view.
    Fence {
        /// The new view, once it is installed.
        view: ViewName,
    },
    /// A line for people.
    Report(Line),
    /// The run is over on this node.
    Stop(Stop),
}

/// Why a run or a node ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The last step is done and this node's copies have it.
    Finished,
    /// This node left and its copies are released.
    Left,
    /// A person or the protocol stopped the run.
    Halted(String),
}

/// A line for people, as data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Line {
    /// A view was installed.
    View {
        /// Which.
        view: ViewName,
        /// How many members.
        members: usize,
        /// From the first evidence to the proposal.
        detected_ms: u64,
        /// From the first evidence to the install.
        settled_ms: u64,
        /// Leaves given out again.
        recomputed_leaves: usize,
        /// Who was evicted, and why.
        evicted: Vec<(NodeId, Evidence)>,
    },
    /// Copies of a chunk are out of reach; the ring waits.
    Waiting(ChunkId),
    /// All copies of a chunk are lost; the run goes back to this step.
    FellBack {
        /// The chunk.
        chunk: ChunkId,
        /// The durable step.
        to: Step,
        /// Committed steps lost.
        lost: u64,
    },
    /// A holder's copy was not what was agreed.
    Corrupt(NodeId, ChunkId),
    /// This node found itself evicted and rejoins.
    Fenced,
    /// A step was skipped, because of flags in these chunks (the first few).
    Skipped(Step, Vec<ChunkId>),
    /// A request was refused.
    RequestRefused(String),
}

/// Counts of frames that changed nothing, and why.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Of another run.
    pub foreign: u64,
    /// Of another view, or while no view is open.
    pub stale: u64,
    /// From an earlier life of a node, or one not in the view.
    pub unknown: u64,
    /// Membership frames sent.
    pub membership_sent: u64,
    /// Data frames sent.
    pub data_sent: u64,
    /// Partials refused because they overlap.
    pub refused: u64,
    /// Partials acknowledged and not added.
    pub duplicates: u64,
}

/// The way out: stamps messages and collects effects; messages to oneself come back in order.
#[derive(Default)]
pub struct Post {
    /// The run.
    pub run: RunId,
    /// This node.
    pub me: NodeId,
    /// This life of it.
    pub incarnation: Incarnation,
    /// The installed view.
    pub view: ViewName,
    /// Effects so far.
    pub effects: Vec<Effect>,
    /// Messages to oneself.
    pub local: VecDeque<Message>,
    /// What was sent and what was dropped.
    pub counters: Counters,
}

impl Post {
    /// Sends a message.
    pub fn send(&mut self, to: NodeId, message: Message) {
        if to == self.me {
            self.local.push_back(message);
            return;
        }
        if message.is_data() {
            self.counters.data_sent += 1;
        } else if !matches!(message, Message::Heartbeat { .. }) {
            self.counters.membership_sent += 1;
        }
        let (run, view, from) = (self.run, self.view, self.me);
        let frame = Frame { run, view, from, incarnation: self.incarnation, message };
        self.effects.push(Effect::Send { to, frame: Box::new(frame) });
    }

    /// Sends the same to many.
    pub fn send_all(&mut self, to: impl IntoIterator<Item = NodeId>, message: &Message) {
        for node in to {
            self.send(node, message.clone());
        }
    }

    /// Asks the shell for something.
    pub fn emit(&mut self, effect: Effect) {
        self.effects.push(effect);
    }
}
