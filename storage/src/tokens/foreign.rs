//! Token files that other programs wrote: nanoGPT, llm.c, Megatron.

use super::{TokenFile, TokensError};
use crate::sys;
use planaria_base::Digest;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Bytes of llm.c's header: 256 words.
const LLM_C_HEADER: usize = 1024;

/// Start of a Megatron index: magic, version, element code, two counts.
const MEGATRON_MAGIC: &[u8; 9] = b"MMIDIDX\0\0";
const MEGATRON_HEADER: usize = 34;

/// Where the tokens lie in a file.
struct Layout {
    first: usize,
    width: usize,
}

impl TokenFile {
    /// Maps a token file of nanoGPT, llm.c or Megatron (told by its header, or by an index beside
    /// it), whose ids are below `vocab`. Reads it once, to check every id and to make the digest.
    ///
    /// # Errors
    /// Says what is wrong with it: empty, cut, an id beyond the vocabulary.
    pub fn import(path: &Path, vocab: u64) -> Result<TokenFile, TokensError> {
        let io = |source| TokensError::Io { path: path.to_owned(), source };
        let invalid = |reason| TokensError::Invalid { path: path.to_owned(), reason };
        let file = File::open(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() == 0 {
            return Err(invalid("empty: not one token".to_owned()));
        }
        let map = sys::map(&file).map_err(io)?;
        let index = path.with_extension("idx");
        let layout = if index.is_file() {
            let index = File::open(&index).and_then(|f| sys::map(&f)).map_err(io)?;
            megatron(&index, map.len())
        } else {
            headed(&map)
        };
        let Layout { first, width } = layout.map_err(invalid)?;
        let tokens = &map[first..];
        if tokens.is_empty() || !tokens.len().is_multiple_of(width) {
            let reason =
                format!("{} bytes are no whole number of {width}-byte tokens", tokens.len());
            return Err(invalid(reason));
        }
        let (count, digest) = ((tokens.len() / width) as u64, Digest::of(tokens));
        let path = path.to_owned();
        let file = TokenFile { map: Arc::new(map), path, first, width, vocab, count, digest };
        match (0..count).find(|&at| u64::from(file.token(at)) >= vocab) {
            Some(at) => Err(invalid(format!(
                "token {at} is {}, the vocabulary has {vocab}",
                file.token(at)
            ))),
            None => Ok(file),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

/// llm.c by its header, else nanoGPT's bare 2-byte tokens.
fn headed(file: &[u8]) -> Result<Layout, String> {
    if file.len() < LLM_C_HEADER {
        return Ok(Layout { first: 0, width: 2 });
    }
    let width = match (word(file, 0), word(file, 4)) {
        (20_240_520, 1) => 2,
        (20_240_801, 7) => 4,
        _ => return Ok(Layout { first: 0, width: 2 }),
    };
    let (count, bytes) = (word(file, 8) as usize, file.len() - LLM_C_HEADER);
    if count * width != bytes {
        return Err(format!("its header promises {count} tokens of {width} bytes, {bytes} follow"));
    }
    Ok(Layout { first: LLM_C_HEADER, width })
}

fn megatron(index: &[u8], tokens: usize) -> Result<Layout, String> {
    if index.len() < MEGATRON_HEADER || !index.starts_with(MEGATRON_MAGIC) {
        return Err("the .idx beside it is not a Megatron index".to_owned());
    }
    let version = u64::from_le_bytes(index[9..17].try_into().expect("8 bytes"));
    let width = match (version, index[17]) {
        (1, 1) => 1,
        (1, 8) => 2,
        (1, 4) => 4,
        (1, code) => return Err(format!("its .idx has element code {code}, not 1, 4 or 8")),
        _ => return Err(format!("its .idx has version {version}, not 1")),
    };
    let sequences = u64::from_le_bytes(index[18..26].try_into().expect("8 bytes"));
    let lengths = usize::try_from(sequences)
        .ok()
        .and_then(|n| n.checked_mul(4))
        .and_then(|n| index.get(MEGATRON_HEADER..)?.get(..n))
        .ok_or_else(|| format!("its .idx is cut: it promises {sequences} sequences"))?;
    let total: u64 = lengths.chunks_exact(4).map(|b| u64::from(word(b, 0))).sum();
    if total * width as u64 != tokens as u64 {
        return Err(format!("its .idx counts {total} tokens of {width} bytes, {tokens} are there"));
    }
    Ok(Layout { first: 0, width })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import(bytes: &[u8], index: Option<&[u8]>, vocab: u64) -> Result<Vec<u32>, String> {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("t.bin");
        std::fs::write(&path, bytes).expect("written");
        if let Some(index) = index {
            std::fs::write(path.with_extension("idx"), index).expect("written");
        }
        let file = TokenFile::import(&path, vocab).map_err(|e| e.to_string())?;
        Ok((0..file.count).map(|i| file.token(i)).collect())
    }

    fn llm_c(magic: u32, version: u32, count: u32, tokens: &[u8]) -> Vec<u8> {
        let mut file: Vec<u8> =
            [magic, version, count].iter().flat_map(|w| w.to_le_bytes()).collect();
        file.resize(LLM_C_HEADER, 0);
        [file, tokens.to_vec()].concat()
    }

    fn index(code: u8, lengths: &[u32]) -> Vec<u8> {
        let count = (lengths.len() as u64).to_le_bytes();
        let head = [&MEGATRON_MAGIC[..], &1u64.to_le_bytes(), &[code], &count, &count].concat();
        [head, lengths.iter().flat_map(|l| l.to_le_bytes()).collect()].concat()
    }

    /// Each kind reads as its tokens.
    #[test]
    fn files_of_others_are_read() {
        assert_eq!(import(&[1, 0, 2, 1], None, 500), Ok(vec![1, 258]));
        assert_eq!(import(&llm_c(20_240_520, 1, 2, &[1, 0, 2, 1]), None, 500), Ok(vec![1, 258]));
        assert_eq!(
            import(&llm_c(20_240_801, 7, 1, &[1, 0, 2, 0]), None, 200_000),
            Ok(vec![131_073])
        );
        assert_eq!(import(&[1, 0, 2, 1], Some(&index(8, &[1, 1])), 500), Ok(vec![1, 258]));
        assert_eq!(import(&[7, 8, 9], Some(&index(1, &[2, 1])), 500), Ok(vec![7, 8, 9]));
    }

    /// Each fault is one clear error.
    #[test]
    fn bad_files_of_others_are_refused() {
        type Case = (Vec<u8>, Option<Vec<u8>>, &'static str);
        let cases: [Case; 8] = [
            (vec![], None, "not one token"),
            (vec![1, 0, 2], None, "no whole number"),
            (vec![1, 0, 2, 9], None, "token 1 is 2306, the vocabulary has 500"),
            (llm_c(20_240_520, 1, 3, &[1, 0]), None, "promises 3 tokens"),
            (vec![1, 0], Some(b"x".to_vec()), "not a Megatron index"),
            (vec![1, 0], Some(index(6, &[1])), "element code 6"),
            (vec![1, 0], Some(index(8, &[2])), "counts 2 tokens"),
            (vec![1, 0], Some(index(8, &[1])[..36].to_vec()), "is cut"),
        ];
        for (bytes, index, want) in cases {
            let error = import(&bytes, index.as_deref(), 500).expect_err(want);
            assert!(error.contains(want), "{error} should say {want}");
        }
    }
}
