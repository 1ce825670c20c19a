//! What a run's protocol needs to know, and the named times and limits.

use super::decision::StepRule;
use planaria_base::{ChunkId, RunId, Site, Step};

/// One chunk, as far as the protocol cares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkSpec {
    /// Bytes of state, for placement.
    pub bytes: u64,
    /// Emission sites of its parameters (two for a tied weight).
    pub sites: u8,
}

/// The run spec, as far as the protocol cares. The same on every node.
#[derive(Clone)]
pub struct Spec {
    /// The run.
    pub run: RunId,
    /// Leaves of a step.
    pub leaves: u32,
    /// By id.
    pub chunks: Vec<ChunkSpec>,
    /// Every (chunk, site) in the order in which backward produces partials; empty: by chunk.
    pub emission: Vec<(ChunkId, Site)>,
    /// Whether every chunk's values are gathered as soon as a step begins (ZeRO 0 to 2), or only
    /// those that the shell wants, when it wants them (ZeRO 3).
    pub eager_gather: bool,
    /// Copies of each chunk's state, the owner's included.
    pub replicas: usize,
    /// Steps between checkpoints.
    pub checkpoint_every: u64,
    /// The run ends after this step.
    pub last_step: Step,
    /// How decisions are made.
    pub rule: StepRule,
    /// Times.
    pub timing: Timing,
    /// Limits.
    pub limits: Limits,
    /// Known bugs put back, for tests of the invariants; empty in production.
    pub bugs: Vec<Mutation>,
}

impl Spec {
    /// Every (chunk, site) in the order in which partials are produced.
    #[must_use]
    pub fn parts(&self) -> Vec<(ChunkId, Site)> {
        if !self.emission.is_empty() {
            return self.emission.clone();
        }
        let chunk_ids = (0..self.chunks.len() as u32).map(ChunkId);
        let sites_of = |c: ChunkId| (0..self.chunks[c.index()].sites).map(move |s| (c, Site(s)));
        chunk_ids.flat_map(sites_of).collect()
    }

    /// Partials of one lot that may be under way: at least one whole chunk's, or none would ever
    /// become Final.
    #[must_use]
    pub fn window(&self) -> usize {
        let sites = self.chunks.iter().map(|c| usize::from(c.sites)).max().unwrap_or(1);
        self.limits.window.max(sites)
    }

    /// Whether a known bug is put back.
    #[must_use]
    pub fn has_bug(&self, bug: Mutation) -> bool {
        self.bugs.contains(&bug)
    }
}

/// Times of the protocol in microseconds (PROTOCOL.md, §5).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// Between heartbeats.
    pub heartbeat: u64,
    /// Silence that makes a watcher probe.
    pub suspect: u64,
    /// Further silence before a node alone accuses all others.
    pub alone: u64,
    /// An answer to a probe comes within this.
    pub probe: u64,
    /// Reports this close are folded into one view change.
    pub fold: u64,
    /// An edge broken this long costs its younger end the membership.
    pub edge: u64,
    /// A gap between own ticks that means we were not running.
    pub own_gap: u64,
    /// No progress while busy for this long is stuck.
    pub stuck: u64,
    /// Before a request is sent again.
    pub retry: u64,
    /// Unreachable copies are given up after this.
    pub lost_after: u64,
    /// Between greetings to former members.
    pub hello: u64,
    /// The second eviction within a minute keeps a node out this long; each further doubles it.
    pub quarantine: u64,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            heartbeat: 100_000,
            suspect: 1_500_000,
            alone: 1_500_000,
            probe: 200_000,
            fold: 20_000,
            edge: 2_000_000,
            own_gap: 250_000,
            stuck: 30_000_000,
            retry: 200_000,
            lost_after: 600_000_000,
            hello: 1_000_000,
            quarantine: 1_000_000,
        }
    }
}

/// Limits of queues and tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Partials of one lot that are computed and not Final.
    pub window: usize,
    /// Records that queue for a learner's chunk.
    pub queued_records: usize,
    /// Decisions everyone keeps.
    pub decisions: usize,
    /// Successors that each node watches.
    pub watched: usize,
    /// Copies that a donor sends within one retry interval.
    pub copies: usize,
    /// Joiners admitted by one view change.
    pub joiners: usize,
    /// Nodes dead on one leaf that stop the run.
    pub deaths_on_leaf: u32,
    /// Former members that are remembered.
    pub former: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            window: 8,
            queued_records: 4,
            decisions: 64,
            watched: 4,
            copies: 8,
            joiners: 64,
            deaths_on_leaf: 2,
            former: 256,
        }
    }
}

/// Known bugs that the simulator puts back to see that its invariants live.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mutation {
    /// An owner adds a partial it already has.
    AcceptDuplicates,
    /// Frames of another view are taken.
    SkipFence,
    /// An owner says Final before its replicas hold the record.
    FinalBeforeHeld,
    /// States are swapped without comparing hashes.
    SkipHashExchange,
    /// Copies are deleted as soon as a view does not list their node.
    DropWhenFenced,
    /// Tables about former members are never pruned.
    NeverPrune,
    /// Nobody rebuilds lost replicas.
    NoRereplication,
    /// A promise does not stop later, lower proposals.
    ForgetPromises,
    /// Leaves of dead nodes are not dealt again.
    LoseDeadLots,
    /// The decision takes the fastest chunks' order instead of chunk order.
    DecideInArrivalOrder,
    /// A command is taken at once, before the other members have heard of it.
    TakeCommandsUnheard,
    /// Checkpoints are called durable before all chunks are written.
    DurableTooEarly,
}
