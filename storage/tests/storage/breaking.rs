//! A disk that fails from its n-th operation on, as a crash or with an error of the system.

use planaria_storage::disk::{Disk, DiskFile, LocalDisk};
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// What happens at the n-th operation.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// This and all later operations fail, and what was not flushed is cut to nothing.
    Crash,
    /// This one operation fails with this code; a write first writes half.
    Errno(i32),
}

#[derive(Debug)]
struct State {
    operations: usize,
    at: usize,
    fault: Fault,
    unflushed: BTreeSet<PathBuf>,
}

impl State {
    fn step(&mut self) -> io::Result<()> {
        let now = self.operations;
        self.operations += 1;
        match self.fault {
            Fault::Crash if now >= self.at => {
                for path in std::mem::take(&mut self.unflushed) {
                    if let Ok(file) = OpenOptions::new().write(true).open(path) {
                        file.set_len(0)?;
                    }
                }
                Err(io::Error::other("the machine is off"))
            }
            Fault::Errno(code) if now == self.at => Err(io::Error::from_raw_os_error(code)),
            _ => Ok(()),
        }
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct BreakingDisk(Arc<Mutex<State>>);

impl BreakingDisk {
    /// Fails at operation `at`, counted from 0.
    pub(crate) fn new(at: usize, fault: Fault) -> BreakingDisk {
        let unflushed = BTreeSet::new();
        BreakingDisk(Arc::new(Mutex::new(State { operations: 0, at, fault, unflushed })))
    }

    /// Operations so far.
    pub(crate) fn operations(&self) -> usize {
        self.0.lock().expect("state").operations
    }

    fn step(&self) -> io::Result<()> {
        self.0.lock().expect("state").step()
    }
}

struct BreakingFile {
    inner: Box<dyn DiskFile>,
    path: PathBuf,
    disk: BreakingDisk,
}

impl Write for BreakingFile {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.disk.step() {
            self.inner.write_all(&buf[..buf.len() / 2])?;
            return Err(error);
        }
        self.inner.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl DiskFile for BreakingFile {
    fn sync(&mut self) -> io::Result<()> {
        self.disk.step()?;
        self.disk.0.lock().expect("state").unflushed.remove(&self.path);
        self.inner.sync()
    }
}

impl Disk for BreakingDisk {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        LocalDisk.make_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.step()?;
        self.0.lock().expect("state").unflushed.insert(path.to_owned());
        let inner = LocalDisk.create(path)?;
        Ok(Box::new(BreakingFile { inner, path: path.to_owned(), disk: self.clone() }))
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step()?;
        LocalDisk.rename_new(from, to)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        LocalDisk.remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.step()?;
        LocalDisk.sync_dir(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        self.step()?;
        LocalDisk.free_bytes(path)
    }
}
