//! Publishing: write aside, flush to disk, rename.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Name prefix of what is not published yet. Its writer holds an advisory lock on it, so that what a
/// crash left can be told from what another process is writing right now; the former is removed when
/// the folder is next opened for writing.
pub const ASIDE: &str = ".aside-";

/// Flushes a folder's entries to disk.
///
/// # Errors
/// If the folder cannot be opened or flushed.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// Writes a whole file so that its name holds either the old or the new contents.
///
/// # Errors
/// If the new contents cannot be written; the old stay.
pub fn write_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    let (dir, name) = parts(path)?;
    let aside = dir.join(format!("{ASIDE}{}-{name}", std::process::id()));
    let written = (|| {
        let mut file = File::create(&aside)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&aside, path)?;
        sync_dir(&dir)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written
}

/// The lock that tells others that what lies aside is alive. The kernel drops it with the process.
#[derive(Debug)]
pub struct Alive {
    _locked: File,
}

impl Alive {
    /// Locks a file or folder aside.
    ///
    /// # Errors
    /// If it cannot be opened, or another writer holds it.
    pub fn lock(aside: &Path) -> io::Result<Alive> {
        let file = File::open(aside)?;
        file.try_lock()?;
        Ok(Alive { _locked: file })
    }
}

/// Removes what earlier writers left unpublished in a folder, but not what a living one holds.
///
/// # Errors
/// If the folder cannot be read or an entry not removed.
pub fn remove_leftovers(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(ASIDE) {
            let Ok(_dead) = Alive::lock(&entry.path()) else { continue };
            if entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            } else {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

fn parts(path: &Path) -> io::Result<(PathBuf, String)> {
    let name = path.file_name().ok_or_else(|| io::Error::other("a path without a file name"))?;
    let dir = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok((dir.to_owned(), name.to_string_lossy().into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a dead writer left goes, what a living one holds stays.
    #[test]
    fn only_dead_leftovers_are_removed() {
        let dir = tempfile::tempdir().expect("a folder");
        let aside = |name: &str| dir.path().join(format!("{ASIDE}{name}"));
        fs::create_dir(aside("dead")).expect("made");
        fs::write(aside("dead-file"), b"x").expect("written");
        fs::create_dir(aside("alive")).expect("made");
        let alive = Alive::lock(&aside("alive")).expect("locked");
        remove_leftovers(dir.path()).expect("cleaned");
        assert!(aside("alive").is_dir() && !aside("dead").exists() && !aside("dead-file").exists());
        drop(alive);
        remove_leftovers(dir.path()).expect("cleaned");
        assert!(!aside("alive").exists());
    }

    /// A file is replaced whole, and a failed write leaves the old one.
    #[test]
    fn a_file_is_replaced_whole() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("f");
        write_file(&path, b"old").expect("written");
        write_file(&path, b"new").expect("written");
        assert_eq!(fs::read(&path).expect("read"), b"new");
        assert!(write_file(&dir.path().join("none/f"), b"x").is_err());
        assert_eq!(fs::read_dir(dir.path()).expect("a folder").count(), 1);
    }
}
