//! A chunk's fixed result for one step, without its numbers: those stay with the shell.

use planaria_base::{Digest, Step};
use serde::{Deserialize, Serialize};

/// What went wrong in some leaf of a chunk, OR-ed over leaves.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Flags(pub u8);

impl Flags {
    /// An element was not finite: the loss scale may be at fault.
    pub const NOT_FINITE: Flags = Flags(1);
    /// An element did not fit the grid: the loss scale is not at fault.
    pub const OFF_GRID: Flags = Flags(2);

    /// Both sets of flags.
    #[must_use]
    pub fn or(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Whether a flag of `other` is set here.
    #[must_use]
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether any flag is set: the step is skipped.
    #[must_use]
    pub fn any(self) -> bool {
        self.0 != 0
    }
}

/// The words about a record: which step, and what the decision needs of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The step whose gradient this is.
    pub step: Step,
    /// Of the reduced gradient's bits.
    pub digest: Digest,
    /// OR over the leaves.
    pub flags: Flags,
    /// The sum of squares of the reduced gradient, an f64 as bits.
    pub sum_of_squares: u64,
    /// Labels counted by this chunk's label lane (zero for all chunks but the one that has it).
    pub labels: u64,
    /// The loss lane: an exact sum on the loss grid.
    pub loss: i64,
}
