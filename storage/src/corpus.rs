//! Text to train on: files in a fixed order, read one by one up to a size.

use std::fs;
use std::io::{self, Read};
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

/// Bytes of a file held at a time by [`stream`].
pub const CHUNK: usize = 1 << 20;

/// Reads a file in chunks of at most [`CHUNK`] bytes, whatever its size and the length of its lines,
/// giving each chunk and its offset to `take`. A byte-order mark at the start is dropped; line ends
/// are kept. A chunk ends before a space or line end between two ASCII letters, where GPT-2's,
/// cl100k's and o200k's patterns cut too, so their ids are those of the whole file; without such a
/// place it ends between two characters. Returns the bytes given.
///
/// # Errors
/// If the file cannot be read or `take` fails.
pub fn stream<E: From<io::Error>>(
    path: &Path,
    mut take: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<u64, E> {
    let mut file = fs::File::open(path)?;
    let (mut held, mut offset, mut total) = (Vec::with_capacity(CHUNK), 0, 0);
    loop {
        let room = (CHUNK - held.len()) as u64;
        let ended = ((&mut file).take(room).read_to_end(&mut held)? as u64) < room;
        if offset == 0 && held.starts_with(b"\xef\xbb\xbf") {
            held.drain(..3);
            offset = 3;
        }
        let end = if ended { held.len() } else { cut(&held) };
        if end > 0 {
            take(offset, &held[..end])?;
        }
        (offset, total) = (offset + end as u64, total + end as u64);
        held.drain(..end);
        if ended {
            return Ok(total);
        }
    }
}

/// Where a chunk ends; never 0.
fn cut(text: &[u8]) -> usize {
    let between = |w: &[u8]| {
        w[0].is_ascii_alphabetic() && matches!(w[1], b' ' | b'\n') && w[2].is_ascii_alphabetic()
    };
    if let Some(at) = text.windows(3).rposition(between) {
        return at + 1;
    }
    let start = |&&at: &&usize| text[at] & 0xc0 != 0x80;
    let ends: Vec<usize> = (text.len().saturating_sub(4).max(1)..text.len()).collect();
    ends.iter().rev().find(start).copied().unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One long line and a file of several chunks come whole, in bounded pieces, cut where it is
    /// safe; a byte-order mark is dropped and counted in the offsets.
    #[test]
    fn a_file_is_streamed_in_bounded_chunks() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("t.txt");
        let words = format!("\u{feff}{}", "word, it's\r\na b ".repeat(200_000));
        let line = "\u{20ac}".repeat(1_000_000);
        for (text, mark) in [(words, 3), (line, 0), (String::new(), 0), ("ab".into(), 0)] {
            fs::write(&path, &text).expect("written");
            let (mut all, mut parts) = (Vec::new(), 0);
            let total = stream::<io::Error>(&path, |offset, part| {
                assert_eq!(offset, all.len() as u64 + mark);
                assert!(part.len() <= CHUNK && std::str::from_utf8(part).is_ok());
                all.extend_from_slice(part);
                parts += 1;
                Ok(())
            });
            assert_eq!(total.expect("read"), all.len() as u64);
            assert_eq!(all, text.as_bytes()[mark as usize..]);
            assert!(parts >= text.len() / CHUNK);
        }
    }

    /// Chunks end before a space between letters, else between characters.
    #[test]
    fn chunks_end_where_tokens_do() {
        assert_eq!(cut(b"one two. 3 \n"), 3);
        assert_eq!(cut(b"a\nb"), 1);
        assert_eq!(cut("\u{20ac}\u{20ac}".as_bytes()), 3);
        assert_eq!(cut(b"\x80\x80\x80\x80\x80"), 5);
    }

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
