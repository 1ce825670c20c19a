//! Text to train on: files in a fixed order, read one by one up to a size.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folders below a root at most: a loop of links ends here.
const DEPTH: usize = 32;

/// Files whose names end like this are text for `walk`.
const TEXT: [&str; 3] = ["rs", "md", "txt"];

/// Text files under `root`, sorted by path. A file is itself.
///
/// # Errors
/// If the root cannot be read.
pub fn walk(root: &Path) -> io::Result<Vec<PathBuf>> {
    if root.is_file() {
        return Ok(vec![root.to_owned()]);
    }
    let mut files = Vec::new();
    descend(root, DEPTH, &mut files)?;
    files.sort();
    Ok(files)
}

fn descend(dir: &Path, depth: usize, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let (kind, path) = (entry.file_type()?, entry.path());
        if kind.is_dir() && depth > 0 {
            descend(&path, depth - 1, files)?;
        } else if kind.is_file()
            && path.extension().is_some_and(|e| TEXT.iter().any(|t| e.eq_ignore_ascii_case(t)))
        {
            files.push(path);
        }
    }
    Ok(())
}

/// The source folders of cargo's registry: real Rust code and docs that every Rust machine has.
#[must_use]
pub fn registry(cargo_home: &Path) -> Option<PathBuf> {
    let source = cargo_home.join("registry").join("src");
    source.is_dir().then_some(source)
}

/// Reads files in order until `limit` bytes are read, giving each one's bytes to `take`. A
/// byte-order mark at a file's start is dropped; line ends are kept as they are. Returns the bytes
/// read.
///
/// # Errors
/// If a file cannot be read or `take` fails.
pub fn read<E: From<io::Error>>(
    files: &[PathBuf],
    limit: u64,
    mut take: impl FnMut(&Path, &[u8]) -> Result<(), E>,
) -> Result<u64, E> {
    let mut total = 0;
    for path in files {
        if total >= limit {
            break;
        }
        let bytes = fs::read(path)?;
        let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
        let text = &text[..text.len().min((limit - total) as usize)];
        take(path, text)?;
        total += text.len() as u64;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sorted order, only text, the mark dropped, the limit kept.
    #[test]
    fn a_corpus_is_read_in_a_fixed_order() {
        let dir = tempfile::tempdir().expect("a folder");
        fs::create_dir(dir.path().join("b")).expect("made");
        for (name, text) in [
            ("b/x.rs", "fn x() {}\r\n"),
            ("a.md", "\u{feff}# a"),
            ("c.bin", "no"),
            ("d.txt", "dddd"),
        ] {
            fs::write(dir.path().join(name), text).expect("written");
        }
        let files = walk(dir.path()).expect("walked");
        let mut all = Vec::new();
        let total = read::<io::Error>(&files, 17, |_, text| {
            all.extend_from_slice(text);
            Ok(())
        });
        assert_eq!(total.expect("read"), 17);
        assert_eq!(all, b"# afn x() {}\r\ndd"[..].iter().chain(b"d").copied().collect::<Vec<_>>());
    }
}
