//! The few operations that publishing needs, behind a trait, so that tests can stop or break each.

use crate::sys;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// A file being written.
pub trait DiskFile: Write {
    /// Flushes contents and length to the device. After an error the file is lost: the kernel may
    /// have dropped what it could not write, so a second call proves nothing.
    ///
    /// # Errors
    /// If the device refuses.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file system, as far as publishing uses it.
pub trait Disk: fmt::Debug + Send + Sync {
    /// Makes a folder and those above it.
    ///
    /// # Errors
    /// If the file system refuses.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes an empty file, or empties one.
    ///
    /// # Errors
    /// If the file system refuses.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;

    /// Renames without replacing.
    ///
    /// # Errors
    /// `AlreadyExists` if `to` is there; otherwise if the file system refuses.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a folder and what is in it.
    ///
    /// # Errors
    /// If the file system refuses.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;

    /// Flushes a folder's entries to the device.
    ///
    /// # Errors
    /// If the device refuses.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Bytes that may still be written.
    ///
    /// # Errors
    /// If the file system does not say.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
}

/// The operating system's file systems.
#[derive(Clone, Copy, Debug, Default)]
pub struct LocalDisk;

impl DiskFile for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

impl Disk for LocalDisk {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(File::create(path)?))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        sys::rename_new(from, to)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        crate::atomic::sync_dir(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        sys::free_bytes(path)
    }
}
