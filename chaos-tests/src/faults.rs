//! What may go wrong.

/// What a bit flip hits, just before a holder updates its chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flip {
    /// The state.
    State,
    /// The record.
    Record,
    /// The new state in scratch.
    Scratch,
}

/// A fault, or its end.
#[derive(Clone, PartialEq, Debug)]
pub enum Fault {
    /// The process dies; its links close, its host sees the exit.
    Kill(u64),
    /// The process is started again, empty.
    Restart(u64),
    /// The process stands still for this long.
    Pause(u64, u64),
    /// The process wakes.
    Resume(u64),
    /// A group is cut off; true: in both directions, false: only outwards.
    Cut(Vec<u64>, bool),
    /// Frames are lost and duplicated with these probabilities, in thousandths.
    Lossy(u64, u64),
    /// All cuts and losses end.
    HealNetwork,
    /// One bit flips at a node.
    Flip(u64, Flip),
    /// The node's compute never ends any more, until it is restarted.
    Wedge(u64),
    /// Whoever computes this leaf of this step dies.
    Poison(u64, u32),
    /// A person asks a node to leave.
    Leave(u64),
    /// A person scales the learning rate, asking at this node.
    ScaleRate(u64),
    /// So many recorded frames, of this view or of earlier ones, arrive again.
    Replay(u64),
    /// Two links close although both ends live.
    CloseLink(u64, u64),
}
