//! Tokenizers: bytes, characters, and any Hugging Face `tokenizer.json`.

use planaria_base::Digest;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Why a tokenizer was not made, or a text not encoded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The file is not a tokenizer that we can read.
    #[error("{path}: not a tokenizer.json that can be read: {reason}")]
    File {
        /// Which file.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A character that the vocabulary does not have.
    #[error("character {character:?} is not in the vocabulary of {vocab} characters")]
    Unknown {
        /// It.
        character: char,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// Encoding failed.
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
    /// Bytes that are not text, where text is needed.
    #[error(
        "invalid UTF-8 at byte {offset}: this tokenizer needs text; the byte tokenizer takes anything"
    )]
    Utf8 {
        /// Where.
        offset: usize,
    },
}

/// A tokenizer.
#[derive(Debug)]
pub enum Tokenizer {
    /// 256 ids, one per byte.
    Byte,
    /// One id per character, ascending: nanoGPT's character recipe.
    Char(Vec<char>),
    /// A Hugging Face tokenizer, with the text of its file.
    HuggingFace(Box<tokenizers::Tokenizer>, String),
}

/// A tokenizer as a checkpoint stores it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TokenizerSpec {
    /// [`Tokenizer::Byte`].
    Byte,
    /// [`Tokenizer::Char`].
    Char {
        /// The characters, ascending.
        characters: String,
    },
    /// [`Tokenizer::HuggingFace`].
    HuggingFace {
        /// The text of `tokenizer.json`.
        json: String,
    },
}

impl Tokenizer {
    /// The characters of `text`, sorted.
    #[must_use]
    pub fn characters_of(text: &str) -> Tokenizer {
        let set: std::collections::BTreeSet<char> = text.chars().collect();
        Tokenizer::Char(set.into_iter().collect())
    }

    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// If the file is not one.
    pub fn from_file(path: &Path) -> Result<Tokenizer, TokenizerError> {
        let file =
            |reason: String| TokenizerError::File { path: path.display().to_string(), reason };
        let json = std::fs::read_to_string(path).map_err(|e| file(e.to_string()))?;
        Tokenizer::from_json(json).map_err(file)
    }

    fn from_json(json: String) -> Result<Tokenizer, String> {
        let inner: tokenizers::Tokenizer = json.parse().map_err(|e| format!("{e}"))?;
        Ok(Tokenizer::HuggingFace(Box::new(inner), json))
    }

    /// Makes it again from what a checkpoint stored.
    ///
    /// # Errors
    /// If the stored text is damaged.
    pub fn from_spec(spec: TokenizerSpec) -> Result<Tokenizer, TokenizerError> {
        match spec {
            TokenizerSpec::Byte => Ok(Tokenizer::Byte),
            TokenizerSpec::Char { characters } => Ok(Tokenizer::Char(characters.chars().collect())),
            TokenizerSpec::HuggingFace { json } => Tokenizer::from_json(json)
                .map_err(|reason| TokenizerError::File { path: "checkpoint".into(), reason }),
        }
    }

    /// What a checkpoint stores of it.
    #[must_use]
    pub fn spec(&self) -> TokenizerSpec {
        match self {
            Tokenizer::Byte => TokenizerSpec::Byte,
            Tokenizer::Char(set) => TokenizerSpec::Char { characters: set.iter().collect() },
            Tokenizer::HuggingFace(_, json) => TokenizerSpec::HuggingFace { json: json.clone() },
        }
    }

    /// Ids are below this.
    #[must_use]
    pub fn vocab(&self) -> usize {
        match self {
            Tokenizer::Byte => 256,
            Tokenizer::Char(set) => set.len(),
            Tokenizer::HuggingFace(inner, _) => inner.get_vocab_size(true),
        }
    }

    /// A digest that two tokenizers share only if they are the same.
    ///
    /// # Panics
    /// Never: the spec is plain data.
    #[must_use]
    pub fn fingerprint(&self) -> Digest {
        Digest::of(&serde_json::to_vec(&self.spec()).expect("plain data"))
    }

    /// Ids of raw bytes.
    ///
    /// # Errors
    /// If the bytes are not text and the tokenizer needs text, or a character is not known.
    pub fn encode(&self, bytes: &[u8]) -> Result<Vec<u32>, TokenizerError> {
        if let Tokenizer::Byte = self {
            return Ok(bytes.iter().map(|&b| u32::from(b)).collect());
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|e| TokenizerError::Utf8 { offset: e.valid_up_to() })?;
        match self {
            Tokenizer::Byte => unreachable!("handled above"),
            Tokenizer::Char(set) => text.chars().map(|c| char_id(set, c)).collect(),
            Tokenizer::HuggingFace(inner, _) => inner
                .encode(text, false)
                .map(|e| e.get_ids().to_vec())
                .map_err(|e| TokenizerError::Encode(e.to_string())),
        }
    }

    /// The bytes of ids; an id that stands for nothing adds nothing.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> Vec<u8> {
        match self {
            Tokenizer::Byte => ids.iter().filter_map(|&i| u8::try_from(i).ok()).collect(),
            Tokenizer::Char(set) => {
                let text: String = ids.iter().filter_map(|&i| set.get(i as usize)).collect();
                text.into_bytes()
            }
            Tokenizer::HuggingFace(inner, _) => inner.decode(ids, false).unwrap_or_default().into(),
        }
    }
}

fn char_id(set: &[char], character: char) -> Result<u32, TokenizerError> {
    set.binary_search(&character)
        .map(|i| i as u32)
        .map_err(|_| TokenizerError::Unknown { character, vocab: set.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every byte survives the byte tokenizer.
    #[test]
    fn bytes_round_trip() {
        let all: Vec<u8> = (0..=255).collect();
        let ids = Tokenizer::Byte.encode(&all).expect("encoded");
        assert_eq!(Tokenizer::Byte.decode(&ids), all);
    }

    /// Characters are numbered in order; one that is not known is named; so is a bad byte.
    #[test]
    fn characters_round_trip() {
        let t = Tokenizer::characters_of("hello wörld");
        let ids = t.encode("wörld".as_bytes()).expect("encoded");
        assert_eq!(t.decode(&ids), "wörld".as_bytes());
        assert_eq!(t.vocab(), 9);
        assert!(matches!(t.encode(b"x"), Err(TokenizerError::Unknown { character: 'x', .. })));
        assert_eq!(t.encode(b"he\xff"), Err(TokenizerError::Utf8 { offset: 2 }));
        let again = Tokenizer::from_spec(t.spec()).expect("stored");
        assert_eq!(again.fingerprint(), t.fingerprint());
    }
}
