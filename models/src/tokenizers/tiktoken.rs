//! The vocabularies of tiktoken, which the crate `tiktoken-rs` carries.

use super::bpe::Bpe;
use super::split::Split;
use serde::{Deserialize, Serialize};

/// A built-in vocabulary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Builtin {
    /// GPT-2's 50,257 ids; tiktoken also calls it r50k_base.
    Gpt2,
    /// GPT-4's 100,277 ids.
    Cl100k,
    /// GPT-4o's 200,019 ids.
    O200k,
}

impl Builtin {
    /// By its name in a configuration or on the command line.
    #[must_use]
    pub fn named(name: &str) -> Option<Builtin> {
        match name {
            "gpt2" | "r50k_base" => Some(Builtin::Gpt2),
            "cl100k" | "cl100k_base" => Some(Builtin::Cl100k),
            "o200k" | "o200k_base" => Some(Builtin::O200k),
            _ => None,
        }
    }

    /// Ids are below this; control tokens are counted.
    #[must_use]
    pub fn vocab(self) -> usize {
        match self {
            Builtin::Gpt2 => 50_257,
            Builtin::Cl100k => 100_277,
            Builtin::O200k => 200_019,
        }
    }

    /// Control tokens, which no text becomes unless asked for. The first ends a document.
    #[must_use]
    pub fn control(self) -> &'static [(&'static str, u32)] {
        match self {
            Builtin::Gpt2 => &[("<|endoftext|>", 50_256)],
            Builtin::Cl100k => &[
                ("<|endoftext|>", 100_257),
                ("<|fim_prefix|>", 100_258),
                ("<|fim_middle|>", 100_259),
                ("<|fim_suffix|>", 100_260),
                ("<|endofprompt|>", 100_276),
            ],
            Builtin::O200k => &[("<|endoftext|>", 199_999), ("<|endofprompt|>", 200_018)],
        }
    }

    /// The vocabulary; takes some tenths of a second.
    pub(super) fn load(self) -> Result<Bpe, String> {
        let (words, core, split) = match self {
            Builtin::Gpt2 => (50_256, tiktoken_rs::r50k_base(), Split::Gpt2),
            Builtin::Cl100k => {
                let split = Split::Cl100k { digits: 3, end_first: true };
                (100_256, tiktoken_rs::cl100k_base(), split)
            }
            Builtin::O200k => (199_998, tiktoken_rs::o200k_base(), Split::O200k),
        };
        let core = core.map_err(|e| e.to_string())?;
        let bytes = (0..words).map(|id| core.decode_bytes(&[id]).map(Vec::into_boxed_slice));
        let bytes = bytes.collect::<Result<Vec<_>, _>>().map_err(|e| e.to_string())?;
        Bpe::from_ranks(split, bytes).ok_or_else(|| "a byte has no id".to_owned())
    }
}
