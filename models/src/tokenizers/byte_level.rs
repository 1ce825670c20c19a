//! The fast path for a byte-level `tokenizer.json`: GPT-2, Llama 3, Qwen 2 and SmolLM kinds.
//!
//! What is not recognised in the file leaves the text to the `tokenizers` crate.

use super::bpe::Bpe;
use super::split::Split;
use serde_json::Value;
use std::collections::HashMap;

pub(super) const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
pub(super) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// A `tokenizer.json` that our own encoder reads.
#[derive(Debug)]
pub(super) struct ByteLevel {
    pub(super) bpe: Bpe,
    /// Added tokens that are text, not control: a text with one goes to the crate.
    added: Vec<String>,
    nfc: bool,
}

impl ByteLevel {
    /// `None` if the file asks for anything that is not built here.
    pub(super) fn new(file: &Value) -> Option<ByteLevel> {
        let nfc = match &file["normalizer"] {
            Value::Null => false,
            normalizer => (normalizer["type"] == "NFC").then_some(true)?,
        };
        let model = &file["model"];
        let plain =
            |key: &str| matches!(&model[key], Value::Null | Value::Bool(false)) || model[key] == "";
        let plain = [
            "dropout",
            "unk_token",
            "continuing_subword_prefix",
            "end_of_word_suffix",
            "byte_fallback",
        ]
        .iter()
        .all(|key| plain(key));
        if model["type"] != "BPE" || !plain {
            return None;
        }
        let split = split(&file["pre_tokenizer"])?;
        let (bytes, ids) = vocabulary(model)?;
        let merges: Option<Vec<_>> =
            model["merges"].as_array()?.iter().map(|m| merge(m, &ids)).collect();
        let whole_first = model["ignore_merges"] == true;
        let bpe = Bpe::from_merges(split, bytes, &merges?, whole_first)?;
        let added = file["added_tokens"].as_array().into_iter().flatten();
        let added = added
            .filter(|t| t["special"] != true)
            .map(|t| t["content"].as_str().map(str::to_owned))
            .collect::<Option<Vec<_>>>()?;
        Some(ByteLevel { bpe, added, nfc })
    }

    /// Ids, if the text has nothing that only the crate knows to treat.
    pub(super) fn encode(&self, text: &str) -> Option<Vec<u32>> {
        let composed = !self.nfc || text.chars().all(stays_in_nfc);
        let plain = composed && !self.added.iter().any(|t| text.contains(t.as_str()));
        plain.then(|| self.bpe.encode(text))
    }
}

/// Characters that NFC leaves as they are whatever stands before them; many others would stay too.
fn stays_in_nfc(c: char) -> bool {
    matches!(u32::from(c), 0..=0x2ff | 0x400..=0x482 | 0x2010..=0x2027 | 0x3041..=0x3096
        | 0x30a1..=0x30fa | 0x4e00..=0x9fff | 0xac00..=0xd7a3 | 0xff01..=0xff5e
        | 0x1f300..=0x1faff)
}

fn split(pre: &Value) -> Option<Split> {
    let byte_level = |part: &Value, regex: bool| {
        part["type"] == "ByteLevel"
            && part["add_prefix_space"] == false
            && part["use_regex"].as_bool().unwrap_or(true) == regex
    };
    if byte_level(pre, true) {
        return Some(Split::Gpt2);
    }
    let parts = pre["pretokenizers"].as_array().filter(|_| pre["type"] == "Sequence")?;
    match parts.as_slice() {
        [digits, level]
            if digits["type"] == "Digits"
                && digits["individual_digits"] == true
                && byte_level(level, true) =>
        {
            Some(Split::Gpt2Digits)
        }
        [cut, level]
            if cut["type"] == "Split"
                && cut["behavior"] == "Isolated"
                && cut["invert"] != true
                && byte_level(level, false) =>
        {
            match cut["pattern"]["Regex"].as_str()? {
                LLAMA3 => Some(Split::Cl100k { digits: 3, end_first: false }),
                QWEN2 => Some(Split::Cl100k { digits: 1, end_first: false }),
                GPT2 => Some(Split::Gpt2),
                _ => None,
            }
        }
        _ => None,
    }
}

type Vocabulary<'a> = (Vec<Box<[u8]>>, HashMap<&'a str, u32>);

fn vocabulary(model: &Value) -> Option<Vocabulary<'_>> {
    let alphabet: HashMap<char, u8> = (0..=255).map(|b| (byte_char(b), b)).collect();
    let words = model["vocab"].as_object()?;
    let mut ids = HashMap::with_capacity(words.len());
    // Ids with gaps would make the table longer than the file: the crate has such files.
    let mut bytes = vec![Box::default(); words.len()];
    for (word, id) in words {
        let id = id.as_u64()?;
        // A word outside the alphabet is a control token kept in the vocabulary; no text reaches it.
        let spelled: Option<Vec<u8>> = word.chars().map(|c| alphabet.get(&c).copied()).collect();
        let spelled = spelled.unwrap_or_else(|| word.as_bytes().to_vec());
        *bytes.get_mut(usize::try_from(id).ok()?)? = spelled.into_boxed_slice();
        ids.insert(word.as_str(), id as u32);
    }
    Some((bytes, ids))
}

/// `"a b"` or `["a", "b"]`.
fn merge(merge: &Value, ids: &HashMap<&str, u32>) -> Option<(u32, u32, u32)> {
    let (a, b) = match merge {
        Value::String(text) => text.split_once(' ')?,
        Value::Array(pair) => (pair.first()?.as_str()?, pair.get(1)?.as_str()?),
        _ => return None,
    };
    let id = |word: &str| ids.get(word).copied();
    Some((id(a)?, id(b)?, id(&format!("{a}{b}"))?))
}

/// GPT-2's printable stand-in for a byte.
pub(super) fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&b| !printable(b)).count() as u32;
    char::from_u32(256 + rank).unwrap_or_default()
}
