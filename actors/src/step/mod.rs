//! The step protocol, pure: events in by method, effects out by an out-parameter.
//!
//! ```text
//!  Conductor ── Begin ──> Stage ── Submit(op) ──> device        ops in schedule order, a window deep
//!     ^                     │ Gather(block) ──> Shards          one block ahead of compute
//!     │                     └─ Submit(Reduce(group)) ─> device  when a group's last leaf is in
//!     └─ Recorded <── Partition <── record ── device
//!  Conductor ── Decision ──> Partition ── Submit(Apply) ──> device ── applied ──> Shard, Conductor
//! ```
//!
//! Nothing here knows a clock, a thread or a socket; [`crate::node`] wraps each machine in an actix
//! actor and carries out its effects. Every event carries the [`Attempt`] it belongs to; one of an
//! older attempt changes nothing.

pub mod conductor;
pub mod decision;
pub mod partition;
pub mod schedule;
pub mod shard;
pub mod stage;

use planaria_base::{BlockId, ChunkId, Leaf, Step};

/// One try at one step. A step is tried again, from the same state, when an actor or the device
/// failed in it; the numbers are the same, so only the attempt's number tells them apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Attempt {
    /// The step under way.
    pub step: Step,
    /// 0 for the first try.
    pub number: u32,
}

/// A piece of device work that the stage orders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Read a leaf's samples.
    Load(Leaf),
    /// A block's forward for one leaf.
    Forward(BlockId, Leaf),
    /// The loss block for one leaf: loss and gradients.
    Loss(Leaf),
    /// A block's backward for one leaf.
    Backward(BlockId, Leaf),
    /// All leaves of a chunk group are in the sum: fix the records of its chunks.
    Reduce(BlockId),
}

impl Op {
    /// The block whose parameters the op reads, if any. The loss block comes after the last block.
    #[must_use]
    pub fn block(self, blocks: u32) -> Option<BlockId> {
        match self {
            Op::Forward(b, _) | Op::Backward(b, _) => Some(b),
            Op::Loss(_) => Some(BlockId(blocks)),
            Op::Load(_) | Op::Reduce(_) => None,
        }
    }
}

/// A chunk's fixed result for a step, less the gradient itself, which stays with the holder.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Record {
    /// Whose.
    pub chunk: ChunkId,
    /// Sum of squares of the reduced gradient, in f64, in fixed blocks.
    pub sum_squares: f64,
    /// Some leaf's value was not finite or did not fit the grid.
    pub overflow: bool,
    /// Some leaf's value was not finite; told only where the loss is scaled.
    pub not_finite: bool,
    /// Whether each (leaf, site) was added exactly once.
    pub exactly_once: bool,
}
