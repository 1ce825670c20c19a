//! System calls: memory maps, free disk space, a rename that does not replace.

use memmap2::Mmap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Maps a file for reading.
///
/// Files that we map are immutable once published; one that another program truncates meanwhile
/// would end the process with SIGBUS, as with any map.
pub(crate) fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the map is read-only and its file is not changed while it lives, by the rule above.
    unsafe { Mmap::map(file) }
}

/// Bytes that an unprivileged process may still write to the file system of `path`.
pub(crate) fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = c_path(path)?;
    let mut stats = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` is a C string and `stats` has room for the result.
    if unsafe { libc::statvfs(path.as_ptr(), stats.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so the result is written.
    let stats = unsafe { stats.assume_init() };
    Ok(stats.f_bavail * stats.f_frsize)
}

/// Renames, unless `to` is there. Where the file system does not know `RENAME_NOREPLACE`, looks
/// first and renames then: two writers of one name may then both win, which is harmless for twins.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    let (c_from, c_to) = (c_path(from)?, c_path(to)?);
    let flags = libc::RENAME_NOREPLACE;
    // SAFETY: both paths are C strings that live until the call returns.
    let result = unsafe {
        libc::renameat2(libc::AT_FDCWD, c_from.as_ptr(), libc::AT_FDCWD, c_to.as_ptr(), flags)
    };
    if result == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EINVAL | libc::ENOSYS) => rename_looking_first(from, to),
        _ => Err(error),
    }
}

fn rename_looking_first(from: &Path, to: &Path) -> io::Result<()> {
    if to.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    fs::rename(from, to)
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ways of renaming move a folder once and never replace.
    #[test]
    fn a_rename_does_not_replace() {
        for rename in [rename_new, rename_looking_first] {
            let dir = tempfile::tempdir().expect("a folder");
            let (a, b) = (dir.path().join("a"), dir.path().join("b"));
            fs::create_dir(&a).expect("made");
            rename(&a, &b).expect("renamed");
            fs::create_dir(&a).expect("made");
            let error = rename(&a, &b).expect_err("b is there");
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
            assert!(a.is_dir() && b.is_dir());
        }
    }
}
