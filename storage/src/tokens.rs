//! Token files: memory-mapped token ids, and the fixed windows that samples are.
//!
//! See `docs/formats/tokens.md` for the layout.

use crate::atomic::{ASIDE, sync_dir};
use crate::sys;
use memmap2::Mmap;
use planaria_base::Digest;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MAGIC: [u8; 8] = *b"PLNTOKN1";
const HEADER: usize = 64;

mod foreign;

/// Why a token file was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum TokensError {
    /// The disk refused.
    #[error("cannot read or write {path}: {source}")]
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
        /// What is wrong, and what to do.
        reason: String,
    },
}

/// Bytes of a token on disk.
fn width(vocab: u64) -> usize {
    match vocab {
        0..=256 => 1,
        257..=65_536 => 2,
        _ => 4,
    }
}

/// The folder of a path; a bare name lies in the working folder.
fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes a token file, streaming.
pub struct TokenWriter {
    aside: PathBuf,
    path: PathBuf,
    out: BufWriter<File>,
    hasher: blake3::Hasher,
    vocab: u64,
    count: u64,
}

impl TokenWriter {
    /// A writer of ids below `vocab`. Nothing is at `path` until [`TokenWriter::finish`].
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn create(path: &Path, vocab: u64) -> Result<TokenWriter, TokensError> {
        let io = |source| TokensError::Io { path: path.to_owned(), source };
        let dir = folder(path);
        fs::create_dir_all(dir).map_err(io)?;
        let aside = dir.join(format!("{ASIDE}{}-tokens", std::process::id()));
        let mut out = BufWriter::with_capacity(1 << 20, File::create(&aside).map_err(io)?);
        out.write_all(&[0; HEADER]).map_err(io)?;
        let (hasher, path) = (blake3::Hasher::new(), path.to_owned());
        Ok(TokenWriter { aside, path, out, hasher, vocab, count: 0 })
    }

    /// Appends tokens.
    ///
    /// # Errors
    /// If an id is beyond the vocabulary, or the disk refuses.
    pub fn push(&mut self, tokens: &[u32]) -> Result<(), TokensError> {
        let width = width(self.vocab);
        let mut bytes = Vec::with_capacity(tokens.len() * width);
        for (i, &token) in tokens.iter().enumerate() {
            if u64::from(token) >= self.vocab {
                let at = self.count + i as u64;
                let reason = format!("token {at} is {token}, the vocabulary has {}", self.vocab);
                return Err(TokensError::Invalid { path: self.path.clone(), reason });
            }
            bytes.extend_from_slice(&token.to_le_bytes()[..width]);
        }
        self.hasher.update(&bytes);
        self.count += tokens.len() as u64;
        let io = |source| TokensError::Io { path: self.path.clone(), source };
        self.out.write_all(&bytes).map_err(io)
    }

    /// Writes the header, flushes, and publishes the file.
    ///
    /// # Errors
    /// If the disk refuses; nothing is published then.
    pub fn finish(mut self) -> Result<TokenFile, TokensError> {
        let digest = *self.hasher.finalize().as_bytes();
        let mut header = [0u8; HEADER];
        header[..8].copy_from_slice(&MAGIC);
        header[8..16].copy_from_slice(&self.vocab.to_le_bytes());
        header[16..24].copy_from_slice(&self.count.to_le_bytes());
        header[32..64].copy_from_slice(&digest);
        let dir = folder(&self.path);
        let published = (|| {
            self.out.seek(SeekFrom::Start(0))?;
            self.out.write_all(&header)?;
            self.out.flush()?;
            self.out.get_ref().sync_all()?;
            fs::rename(&self.aside, &self.path)?;
            sync_dir(dir)
        })();
        published.map_err(|source| TokensError::Io { path: self.path.clone(), source })?;
        TokenFile::open(&self.path)
    }
}

impl Drop for TokenWriter {
    fn drop(&mut self) {
        // Gone already if it was published.
        let _ = fs::remove_file(&self.aside);
    }
}

/// A checked token file.
#[derive(Clone, Debug)]
pub struct TokenFile {
    map: Arc<Mmap>,
    path: PathBuf,
    /// Where the tokens begin in the map, and bytes of each.
    first: usize,
    width: usize,
    /// Ids are below this.
    pub vocab: u64,
    /// Number of tokens.
    pub count: u64,
    /// Digest of the tokens as stored.
    pub digest: Digest,
}

impl TokenFile {
    /// Opens and checks a token file.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn open(path: &Path) -> Result<TokenFile, TokensError> {
        let io = |source| TokensError::Io { path: path.to_owned(), source };
        let invalid = |reason: &str| TokensError::Invalid {
            path: path.to_owned(),
            reason: reason.to_owned(),
        };
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() < HEADER as u64 {
            return Err(invalid("too short for a token file"));
        }
        let map = sys::map(&file).map_err(io)?;
        if map[..8] != MAGIC {
            return Err(invalid("not a token file: its first 8 bytes are not PLNTOKN1"));
        }
        let word = |at: usize| u64::from_le_bytes(map[at..at + 8].try_into().expect("8 bytes"));
        let (vocab, count) = (word(8), word(16));
        let bytes =
            count.checked_mul(width(vocab) as u64).and_then(|b| b.checked_add(HEADER as u64));
        if bytes != Some(map.len() as u64) {
            let reason = format!("{count} tokens are promised, the file has {} bytes", map.len());
            return Err(invalid(&reason));
        }
        let digest = Digest(map[32..64].try_into().expect("32 bytes"));
        let (map, path, width) = (Arc::new(map), path.to_owned(), width(vocab));
        Ok(TokenFile { map, path, first: HEADER, width, vocab, count, digest })
    }

    /// Whether the tokens still have the digest that the writer stored; reads them all.
    #[must_use]
    pub fn verify(&self) -> bool {
        Digest::of(&self.map[self.first..]) == self.digest
    }

    /// Token `at`.
    ///
    /// # Panics
    /// If it is past the end.
    #[must_use]
    pub fn token(&self, at: u64) -> u32 {
        let width = self.width;
        let first = self.first + at as usize * width;
        let mut bytes = [0; 4];
        bytes[..width].copy_from_slice(&self.map[first..first + width]);
        u32::from_le_bytes(bytes)
    }

    /// Windows of `length` tokens over `start..end`, each with the token that follows as its last
    /// label; they do not overlap.
    ///
    /// # Errors
    /// If there is not one whole window.
    pub fn windows(&self, (start, end): (u64, u64), length: usize) -> Result<Windows, TokensError> {
        let end = end.min(self.count);
        let samples = end.saturating_sub(start + 1) / length as u64;
        if samples == 0 {
            let found = end.saturating_sub(start);
            let reason = format!(
                "{found} tokens are too few for one sequence of {length} and its last label; take a shorter data.sequence_length or more data"
            );
            return Err(TokensError::Invalid { path: self.path.clone(), reason });
        }
        Ok(Windows { file: self.clone(), start, samples, length })
    }
}

/// Fixed windows over a part of a token file.
#[derive(Clone, Debug)]
pub struct Windows {
    file: TokenFile,
    start: u64,
    samples: u64,
    length: usize,
}

impl Windows {
    /// How many.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Fills one window's tokens and shifted labels.
    ///
    /// # Panics
    /// If there is no such window, or the slices have another length.
    pub fn load(&self, sample: u64, tokens: &mut [u32], labels: &mut [i32]) {
        assert!(sample < self.samples, "sample {sample} of {}", self.samples);
        assert!(tokens.len() == self.length && labels.len() == self.length, "whole windows");
        let first = self.start + sample * self.length as u64;
        for (i, (token, label)) in tokens.iter_mut().zip(labels).enumerate() {
            *token = self.file.token(first + i as u64);
            *label = self.file.token(first + i as u64 + 1) as i32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(vocab: u64, tokens: &[u32]) -> (tempfile::TempDir, TokenFile) {
        let dir = tempfile::tempdir().expect("a folder");
        let mut writer = TokenWriter::create(&dir.path().join("t.tokens"), vocab).expect("made");
        tokens.chunks(7).for_each(|t| writer.push(t).expect("pushed"));
        let file = writer.finish().expect("finished");
        (dir, file)
    }

    /// One, two and four bytes a token; windows and their shifted labels.
    #[test]
    fn windows_hold_the_tokens_and_their_successors() {
        for vocab in [256, 60_000, 200_000] {
            let tokens: Vec<u32> = (0..50).map(|i| i * 5 % 251).collect();
            let (_dir, file) = file(vocab, &tokens);
            let windows = file.windows((10, 31), 4).expect("windows");
            assert_eq!(windows.samples(), 5);
            let (mut t, mut l) = ([0; 4], [0; 4]);
            windows.load(4, &mut t, &mut l);
            assert_eq!(t, tokens[26..30]);
            assert_eq!(l.map(|x| x as u32), tokens[27..31]);
        }
    }

    /// Too short for a window, an id beyond the vocabulary, a cut file, another file: clear errors.
    #[test]
    fn bad_token_files_are_refused() {
        let (dir, small) = file(256, &[1, 2, 3]);
        let error = small.windows((0, 3), 3).expect_err("too short").to_string();
        assert!(error.contains("3 tokens are too few"), "{error}");
        let mut writer = TokenWriter::create(&dir.path().join("x"), 4).expect("made");
        let error = writer.push(&[1, 4]).expect_err("beyond").to_string();
        assert!(error.contains("token 1 is 4, the vocabulary has 4"), "{error}");
        let path = dir.path().join("t.tokens");
        let bytes = fs::read(&path).expect("a file");
        fs::write(&path, &bytes[..bytes.len() - 1]).expect("cut");
        let mut flipped = bytes.clone();
        flipped[65] ^= 1;
        fs::write(&path, &flipped).expect("written");
        assert!(!TokenFile::open(&path).expect("its size is right").verify());
        fs::write(&path, &bytes).expect("written");
        assert!(TokenFile::open(&path).expect("whole").verify());
        fs::write(&path, &bytes[..bytes.len() - 1]).expect("cut");
        let error = TokenFile::open(&path).expect_err("cut").to_string();
        assert!(error.contains("3 tokens are promised"), "{error}");
        fs::write(&path, [b'x'; 100]).expect("written");
        assert!(TokenFile::open(&path).expect_err("other").to_string().contains("PLNTOKN1"));
    }
}
