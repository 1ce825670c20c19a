//! Words every crate shares: ids, spans, chunks, random streams, dtypes, limits.
//!
//! Nothing here touches a clock, a socket, a file or a thread. Read [`ids`] for the vocabulary of
//! the project, then [`span`] for how a model's parameters are cut into the chunks that actors own,
//! then [`rng`] and [`permutation`] for where every random decision of a run comes from.

pub mod dtype;
pub mod hash;
pub mod ids;
pub mod limits;
pub mod permutation;
pub mod rng;
pub mod span;
pub mod tensor_source;
pub mod units;

pub use dtype::DType;
pub use hash::Digest;
pub use ids::{
    BlockId, ChunkId, Incarnation, Leaf, NodeId, ParamId, RunId, Site, StageId, Step, ViewId,
};
pub use span::{Chunk, ChunkTable, Span};
