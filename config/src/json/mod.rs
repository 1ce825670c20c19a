//! A small JSON parser that remembers where every value stood.
//!
//! It accepts what people write in configuration files beyond JSON (comments, trailing commas, a
//! byte-order mark), each with a note, and refuses what makes a file ambiguous: a key given twice
//! is always an error. It never panics and never allocates more than a small multiple of its input,
//! which is itself limited: see [`limits`].

mod node;
mod number;
mod parser;
mod text;

pub use node::{Member, Node, Value};
pub use number::{Number, NumberError};
pub use parser::{parse, parse_value};
pub use text::{Position, Source, SourceId, Sources, TextRange};

/// What a file may hold at most.
pub mod limits {
    /// Bytes of one file.
    pub const FILE_BYTES: usize = 4 << 20;
    /// Arrays and objects inside one another.
    pub const DEPTH: usize = 64;
    /// Values of one file, every array element and object member counted.
    pub const VALUES: usize = 100_000;
}
