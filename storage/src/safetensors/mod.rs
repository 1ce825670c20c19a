//! Safetensors files and folders of them: a strict reader over a memory map, a streaming writer.
//!
//! What is refused: a file shorter than its header says (truncated), a Git LFS pointer, a header
//! above [`HEADER_LIMIT`] bytes or [`TENSOR_LIMIT`] tensors, a name twice, offsets that are reversed, overlap, leave a gap or do
//! not match the shape, bytes behind the last tensor. Order in the header is free; tensors without
//! elements and scalars are fine.

mod folder;
mod header;
mod shards;
mod write;

pub use folder::Folder;
pub use shards::write_sharded;
pub(crate) use write::file_header;
pub use write::{TensorInfo, write, write_to};

use crate::sys;
use header::{Entry, parse};
use memmap2::Mmap;
use planaria_base::tensor_source::{StoredTensor, TensorSource};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

/// Bytes of a header at most.
pub const HEADER_LIMIT: u64 = 100_000_000;

/// Tensors of a file at most.
pub const TENSOR_LIMIT: usize = 1_000_000;

/// Dimensions of a tensor at most.
pub const RANK_LIMIT: usize = 32;

/// Why a file was not read. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum SafetensorsError {
    /// The system refused.
    #[error("cannot read {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is not what it should be.
    #[error("{path}: {reason}")]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl SafetensorsError {
    pub(crate) fn invalid(path: &Path, reason: impl Into<String>) -> SafetensorsError {
        SafetensorsError::Invalid { path: path.to_owned(), reason: reason.into() }
    }

    fn io(path: &Path, source: io::Error) -> SafetensorsError {
        SafetensorsError::Io { path: path.to_owned(), source }
    }
}

/// A checked file.
#[derive(Debug)]
pub struct SafetensorsFile {
    map: Mmap,
    data: usize,
    entries: BTreeMap<String, Entry>,
}

impl SafetensorsFile {
    /// Opens and checks a file.
    ///
    /// # Errors
    /// Says what is wrong with the file, with expected and found sizes.
    pub fn open(path: &Path) -> Result<SafetensorsFile, SafetensorsError> {
        let file = File::open(path).map_err(|e| SafetensorsError::io(path, e))?;
        let len = file.metadata().map_err(|e| SafetensorsError::io(path, e))?.len();
        if len < 8 {
            let reason = format!("truncated: {len} bytes, a safetensors file has at least 8");
            return Err(SafetensorsError::invalid(path, reason));
        }
        let map = sys::map(&file).map_err(|e| SafetensorsError::io(path, e))?;
        let (data, entries) =
            parse(&map).map_err(|reason| SafetensorsError::invalid(path, reason))?;
        Ok(SafetensorsFile { map, data, entries })
    }
}

impl TensorSource for SafetensorsFile {
    fn names(&self) -> Vec<&str> {
        self.entries.keys().map(String::as_str).collect()
    }

    fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        let entry = self.entries.get(name)?;
        let bytes = &self.map[self.data + entry.range.start..self.data + entry.range.end];
        Some(StoredTensor { dtype: entry.dtype, shape: &entry.shape, bytes })
    }
}
