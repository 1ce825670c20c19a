//! Bytes at rest: safetensors files, checkpoints, token files, text corpora.
//!
//! ```text
//!  corpus ──> tokens (memory-mapped)          safetensors ──> models (through TensorSource)
//!                                                   ^
//!  checkpoint: folder = safetensors + manifest, published by one rename
//! ```
//!
//! It knows no model and no socket. Every byte that comes from a file is checked before it is used:
//! a bad file is one clear error, never a panic and never an allocation beyond the file's size.
//! Formats are written down in `docs/formats/`.

pub mod atomic;
pub mod checkpoint;
pub mod corpus;
pub mod disk;
pub mod mapped;
pub mod safetensors;
mod sys;
pub mod tokens;
