//! Names of things: small integers and hashes, each its own type, so that they cannot be mixed up.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);

        impl $name {
            /// The id as a table index.
            #[must_use]
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// An optimizer step. Step `s` turns the state after step `s - 1` into the state after `s`;
    /// the initial state is the state after step 0.
    Step(u64)
);
id!(
    /// One micro-batch of a step, `0..V`.
    Leaf(u32)
);
id!(
    /// A parameter of the model, in the order in which the model lists them.
    ParamId(u32)
);
id!(
    /// One of the places of the model that emit a gradient for a parameter. An untied parameter has
    /// site 0 only; a tied embedding has site 0 (the embedding) and site 1 (the head).
    Site(u8)
);
id!(
    /// A model unit with one forward and one backward, in execution order.
    BlockId(u32)
);
id!(
    /// A contiguous range of blocks: the pipeline's unit.
    StageId(u32)
);
id!(
    /// The spans that one shard actor owns, in the order of [`crate::ChunkTable`].
    ChunkId(u32)
);
id!(
    /// One process that hosts actors, for the life of that process.
    NodeId(u64)
);
id!(
    /// The number of a membership and placement. Not an epoch: that is a pass over the data.
    ViewId(u64)
);
id!(
    /// Grows each time an actor or a node is started again under the same name.
    Incarnation(u64)
);

/// A training job: the hash of its run spec.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct RunId(pub [u8; 16]);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}
