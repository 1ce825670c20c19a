//! A file as bytes in memory, read as they are needed.

use crate::sys;
use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;

/// A whole file, mapped for reading; the reader of its format checks what is in it.
#[derive(Debug)]
pub struct MappedFile(Mmap);

impl MappedFile {
    /// Maps a file.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn open(path: &Path) -> io::Result<MappedFile> {
        Ok(MappedFile(sys::map(&File::open(path)?)?))
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}
