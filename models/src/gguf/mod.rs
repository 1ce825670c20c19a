//! GGUF files: llama.cpp's container of one model, read in place.
//!
//! [`Gguf::parse`] checks a whole file without copying it: keys, arrays and tensors borrow its bytes,
//! so that what it allocates is a table of at most [`KEY_LIMIT`] keys and [`TENSOR_LIMIT`] tensors,
//! whatever the file claims. [`import`] makes a [`crate::families::ModelSpec`] of the metadata and finds every
//! parameter's tensor; [`Import::values`] widens them to fp32. [`tokenizer_json`] writes the file's
//! byte-pair tokenizer as a `tokenizer.json`, and [`chat_template`] finds its chat template.
//!
//! Source: the GGUF specification in ggml's `docs/gguf.md`, versions 2 and 3. Read are F32, F16, BF16,
//! Q8_0, Q4_0, Q4_1, Q4_K and Q6_K, and the architectures llama (with Mistral and SmolLM2), qwen2,
//! qwen3 and smollm3. Everything else is refused by name.

mod blocks;
mod model;
mod reader;
mod tokenizer;

pub use blocks::TensorType;
pub use model::{Import, import};
pub use reader::{Array, Value};
pub use tokenizer::{chat_template, tokenizer_json};

use std::collections::BTreeMap;
use thiserror::Error;

/// Metadata keys of a file at most.
pub const KEY_LIMIT: u64 = 1 << 16;

/// Tensors of a file at most.
pub const TENSOR_LIMIT: u64 = 1 << 16;

/// Dimensions of a tensor at most; ggml has no more.
pub const RANK_LIMIT: usize = 4;

/// Why a GGUF file was not read. Nothing was changed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum GgufError {
    /// Another kind of file.
    #[error("not a GGUF file: it begins with {found:?}")]
    Magic {
        /// The first bytes.
        found: Vec<u8>,
    },
    /// A version that is not read.
    #[error("GGUF version {found} is not read; 2 and 3 are (a big-endian file reads as another)")]
    Version {
        /// The file's.
        found: u32,
    },
    /// The file ends too early.
    #[error("truncated: {what} needs {needed} bytes at {at}, {left} are left")]
    Truncated {
        /// What was being read.
        what: String,
        /// Where in the file.
        at: usize,
        /// Bytes that it takes.
        needed: u64,
        /// Bytes that are there.
        left: usize,
    },
    /// Something is not what the format allows.
    #[error("{what}: {reason}")]
    Invalid {
        /// Which key or tensor.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something that is not built.
    #[error("{what} is not supported: {reason}")]
    Unsupported {
        /// Which key or tensor.
        what: String,
        /// What would be needed, or what is read instead.
        reason: String,
    },
    /// A key or tensor that the model needs.
    #[error("the file has no {what}")]
    Missing {
        /// Which.
        what: String,
    },
}

impl GgufError {
    fn invalid(what: &str, reason: impl Into<String>) -> GgufError {
        GgufError::Invalid { what: what.to_owned(), reason: reason.into() }
    }

    fn unsupported(what: &str, reason: impl Into<String>) -> GgufError {
        GgufError::Unsupported { what: what.to_owned(), reason: reason.into() }
    }
}

/// One tensor's place and kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TensorInfo<'a> {
    /// How its elements are stored.
    pub kind: TensorType,
    /// Its bytes, whole blocks.
    pub bytes: &'a [u8],
    dims: [usize; RANK_LIMIT],
    rank: usize,
}

impl TensorInfo<'_> {
    /// Row-major shape: the file's order, reversed.
    #[must_use]
    pub fn shape(&self) -> Vec<usize> {
        self.dims[..self.rank].iter().rev().copied().collect()
    }

    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.dims[..self.rank].iter().product()
    }

    /// Writes the elements as fp32.
    ///
    /// # Panics
    /// If `out` has another length than the tensor.
    pub fn widen(&self, out: &mut [f32]) {
        assert_eq!(out.len(), self.elements(), "the buffer has the tensor's size");
        self.kind.widen(self.bytes, out);
    }
}

/// A checked file.
#[derive(Debug)]
pub struct Gguf<'a> {
    version: u32,
    keys: BTreeMap<&'a str, Value<'a>>,
    tensors: BTreeMap<&'a str, TensorInfo<'a>>,
}

impl<'a> Gguf<'a> {
    /// Checks a whole file.
    ///
    /// # Errors
    /// If it is cut, claims what it does not hold, names a key or tensor twice, or has a tensor of a
    /// kind that is not read, without elements, outside of the file, or over another.
    ///
    /// # Cost
    /// Reads the metadata once; allocates less than 16 MiB, whatever the file claims.
    pub fn parse(file: &'a [u8]) -> Result<Gguf<'a>, GgufError> {
        reader::parse(file)
    }

    /// The format's version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The metadata, by key.
    pub fn keys(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> {
        self.keys.iter().map(|(k, v)| (*k, *v))
    }

    /// One key's value.
    #[must_use]
    pub fn key(&self, name: &str) -> Option<Value<'a>> {
        self.keys.get(name).copied()
    }

    /// The tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = (&'a str, TensorInfo<'a>)> {
        self.tensors.iter().map(|(n, t)| (*n, *t))
    }

    /// One tensor.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<TensorInfo<'a>> {
        self.tensors.get(name).copied()
    }
}

#[cfg(test)]
mod tests;
