//! Tokenizers: bytes, characters, tiktoken's vocabularies, and any Hugging Face `tokenizer.json`.
//!
//! Text is text: a literal `<|endoftext|>` in it becomes the ids of its letters. Only
//! [`Tokenizer::encode_control`] reads control tokens, for prompts.

mod bpe;
mod byte_level;
mod split;
mod stream;
#[cfg(test)]
mod tests;
mod tiktoken;

pub use stream::StreamDecoder;
pub use tiktoken::Builtin;

use bpe::Bpe;
use byte_level::ByteLevel;

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
    /// A vocabulary of tiktoken.
    Tiktoken(Box<Tiktoken>),
    /// A Hugging Face tokenizer.
    HuggingFace(Box<HuggingFace>),
}

/// A vocabulary of tiktoken, loaded.
#[derive(Debug)]
pub struct Tiktoken {
    which: Builtin,
    bpe: Bpe,
}

/// A `tokenizer.json`, loaded.
#[derive(Debug)]
pub struct HuggingFace {
    /// Reads control tokens in text as text.
    inner: tokenizers::Tokenizer,
    json: String,
    fast: Option<ByteLevel>,
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
    /// [`Tokenizer::Tiktoken`].
    Tiktoken {
        /// Its name.
        name: Builtin,
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
        let file = serde_json::from_str(&json).map_err(|e| e.to_string())?;
        let mut inner: tokenizers::Tokenizer = json.parse().map_err(|e| format!("{e}"))?;
        // Files carry the truncation and padding of whoever saved them; data has neither.
        inner.with_truncation(None).map_err(|e| format!("{e}"))?.with_padding(None);
        inner.set_encode_special_tokens(true);
        let fast = ByteLevel::new(&file);
        Ok(Tokenizer::HuggingFace(Box::new(HuggingFace { inner, json, fast })))
    }

    /// Loads a vocabulary of tiktoken; takes some tenths of a second.
    ///
    /// # Errors
    /// If the vocabulary that was compiled in is damaged.
    pub fn builtin(which: Builtin) -> Result<Tokenizer, TokenizerError> {
        let file = |reason| TokenizerError::File { path: format!("{which:?}"), reason };
        let bpe = which.load().map_err(file)?;
        Ok(Tokenizer::Tiktoken(Box::new(Tiktoken { which, bpe })))
    }

    /// Makes it again from what a checkpoint stored.
    ///
    /// # Errors
    /// If the stored text is damaged.
    pub fn from_spec(spec: TokenizerSpec) -> Result<Tokenizer, TokenizerError> {
        match spec {
            TokenizerSpec::Byte => Ok(Tokenizer::Byte),
            TokenizerSpec::Char { characters } => Ok(Tokenizer::Char(characters.chars().collect())),
            TokenizerSpec::Tiktoken { name } => Tokenizer::builtin(name),
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
            Tokenizer::Tiktoken(t) => TokenizerSpec::Tiktoken { name: t.which },
            Tokenizer::HuggingFace(t) => TokenizerSpec::HuggingFace { json: t.json.clone() },
        }
    }

    /// Ids are below this.
    #[must_use]
    pub fn vocab(&self) -> usize {
        match self {
            Tokenizer::Byte => 256,
            Tokenizer::Char(set) => set.len(),
            Tokenizer::Tiktoken(t) => t.which.vocab(),
            // Ids may have gaps, so their number is not enough.
            Tokenizer::HuggingFace(t) => {
                let highest = t.inner.get_vocab(true).into_values().max();
                highest.map_or(0, |id| id as usize + 1)
            }
        }
    }

    /// The id that ends a document, where the vocabulary has one.
    #[must_use]
    pub fn end_of_text(&self) -> Option<u32> {
        const NAMES: [&str; 4] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"];
        match self {
            Tokenizer::Byte | Tokenizer::Char(_) => None,
            Tokenizer::Tiktoken(t) => t.which.control().first().map(|c| c.1),
            Tokenizer::HuggingFace(t) => NAMES.iter().find_map(|name| t.inner.token_to_id(name)),
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

    /// Ids of raw bytes. Whatever looks like a control token is text.
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
            Tokenizer::Tiktoken(t) => Ok(t.bpe.encode(text)),
            Tokenizer::HuggingFace(t) => match t.fast.as_ref().and_then(|f| f.encode(text)) {
                Some(ids) => Ok(ids),
                None => crate_encode(&t.inner, text),
            },
        }
    }

    /// Ids of a prompt: names of control tokens become those tokens.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_control(&self, bytes: &[u8]) -> Result<Vec<u32>, TokenizerError> {
        let text = |offset| TokenizerError::Utf8 { offset };
        match self {
            Tokenizer::Byte | Tokenizer::Char(_) => self.encode(bytes),
            Tokenizer::HuggingFace(t) => {
                let prompt = std::str::from_utf8(bytes).map_err(|e| text(e.valid_up_to()))?;
                let mut inner = t.inner.clone();
                inner.set_encode_special_tokens(false);
                crate_encode(&inner, prompt)
            }
            Tokenizer::Tiktoken(t) => {
                let mut rest = std::str::from_utf8(bytes).map_err(|e| text(e.valid_up_to()))?;
                let mut ids = Vec::new();
                let names = t.which.control();
                while let Some((at, name, id)) =
                    names.iter().filter_map(|&(n, id)| Some((rest.find(n)?, n, id))).min()
                {
                    ids.extend(t.bpe.encode(&rest[..at]));
                    ids.push(id);
                    rest = &rest[at + name.len()..];
                }
                ids.extend(t.bpe.encode(rest));
                Ok(ids)
            }
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
            Tokenizer::Tiktoken(t) => ids.iter().flat_map(|&id| t.bytes_of(id)).copied().collect(),
            Tokenizer::HuggingFace(t) => match &t.fast {
                Some(fast) => {
                    let name = |id| t.inner.id_to_token(id).unwrap_or_default().into_bytes();
                    let bytes = |&id: &u32| match fast.bpe.bytes_of(id) {
                        [] => name(id),
                        bytes => bytes.to_vec(),
                    };
                    ids.iter().flat_map(bytes).collect()
                }
                None => t.inner.decode(ids, false).unwrap_or_default().into(),
            },
        }
    }
}

impl Tiktoken {
    fn bytes_of(&self, id: u32) -> &[u8] {
        let name = self.which.control().iter().find(|c| c.1 == id);
        name.map_or_else(|| self.bpe.bytes_of(id), |c| c.0.as_bytes())
    }
}

fn crate_encode(inner: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, TokenizerError> {
    let encoded = inner.encode_fast(text, false);
    encoded.map(|e| e.get_ids().to_vec()).map_err(|e| TokenizerError::Encode(e.to_string()))
}

fn char_id(set: &[char], character: char) -> Result<u32, TokenizerError> {
    set.binary_search(&character)
        .map(|i| i as u32)
        .map_err(|_| TokenizerError::Unknown { character, vocab: set.len() })
}
