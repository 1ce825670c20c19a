//! The command log: what people told the run to do, and from which step on.

use super::content::content_digest;
use planaria_base::{Digest, Step};
use serde::{Deserialize, Serialize};

/// Commands that change numbers. (Those that do not, such as `stop`, are not in the log.)
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Multiply the learning rate by this f32, as bits, from now on.
    ScaleRate(u32),
    /// A side of a split ring was made primary by a person: a new branch of the log.
    Promote {
        /// Tells promotions apart.
        nonce: u64,
    },
}

/// A command in the log.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Its place, from zero.
    pub index: u32,
    /// The step whose decision takes it.
    pub at: Step,
    /// What to do.
    pub command: Command,
}

/// A log prefix, by length and hash. Frames carry it through the view's name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct LogMark {
    /// Entries.
    pub len: u32,
    /// Of all of them, chained.
    pub hash: Digest,
}

/// The log as one node knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct CommandLog {
    entries: Vec<Entry>,
}

impl CommandLog {
    /// Commands of one run at most.
    pub const LIMIT: usize = 4096;

    /// All entries in order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Adds the next entry; says whether it is in the log now. A gap or a full log refuses.
    pub fn append(&mut self, entry: Entry) -> bool {
        let at = entry.index as usize;
        if at < self.entries.len() {
            return self.entries[at] == entry;
        }
        let room = at == self.entries.len() && at < CommandLog::LIMIT;
        if room {
            self.entries.push(entry);
        }
        room
    }

    /// Forgets entries that nobody may have taken yet.
    pub fn truncate(&mut self, len: usize) {
        self.entries.truncate(len);
    }

    /// The prefix that decisions up to and including `step` have taken.
    #[must_use]
    pub fn taken(&self, step: Step) -> &[Entry] {
        let end = self.entries.partition_point(|e| e.at <= step);
        &self.entries[..end]
    }

    /// Names the prefix that decisions up to and including `step` have taken.
    #[must_use]
    pub fn mark(&self, step: Step) -> LogMark {
        let mut hash = Digest::default();
        for entry in self.taken(step) {
            hash = Digest::of_all([hash, content_digest(entry)]);
        }
        LogMark { len: self.taken(step).len() as u32, hash }
    }

    /// The product of all rate commands taken up to `step`.
    #[must_use]
    pub fn rate_factor(&self, step: Step) -> f32 {
        let factor = |e: &Entry| match e.command {
            Command::ScaleRate(bits) => f32::from_bits(bits),
            Command::Promote { .. } => 1.0,
        };
        self.taken(step).iter().map(factor).product()
    }
}
