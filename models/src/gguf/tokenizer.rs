//! The tokenizer and the chat template that a GGUF file carries.

use super::{Array, Gguf, GgufError, Value};
use crate::generate::chat::ChatTemplate;
use serde_json::{Map, Value as Json, json};

/// The pre-tokenizers that are known, and how each splits text before byte pairs.
const PRE: [&str; 6] = ["gpt-2", "gpt2", "smollm", "llama-bpe", "llama3", "qwen2"];

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Token types of the format.
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

fn list<'a>(file: &Gguf<'a>, key: &str) -> Result<Array<'a>, GgufError> {
    match file.key(key) {
        Some(Value::Array(list)) => Ok(list),
        Some(other) => Err(GgufError::invalid(key, format!("a list is expected, not {other:?}"))),
        None => Err(GgufError::Missing { what: format!("key {key}") }),
    }
}

fn texts<'a>(file: &Gguf<'a>, key: &'a str) -> Result<Vec<&'a str>, GgufError> {
    let text = |value| match value? {
        Value::Text(text) => Ok(text),
        other => Err(GgufError::invalid(key, format!("a string is expected, not {other:?}"))),
    };
    list(file, key)?.iter().map(text).collect()
}

/// The text of a `tokenizer.json` that splits and numbers as the file says; `None` if it carries no
/// tokenizer.
///
/// # Errors
/// If it is of a kind other than byte pairs, splits text by rules that are not known here, names a
/// token twice, or its lists do not fit together.
pub fn tokenizer_json(file: &Gguf<'_>) -> Result<Option<String>, GgufError> {
    match file.key("tokenizer.ggml.model") {
        None | Some(Value::Text("none" | "no_vocab")) => return Ok(None),
        Some(Value::Text("gpt2")) => {}
        Some(other) => {
            let reason = format!("it is {other:?}; read is gpt2 (byte pairs)");
            return Err(GgufError::unsupported("tokenizer.ggml.model", reason));
        }
    }
    let key = "tokenizer.ggml.tokens";
    let tokens = texts(file, key)?;
    let mut vocab = Map::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        if vocab.insert((*token).to_owned(), id.into()).is_some() {
            return Err(GgufError::invalid(key, format!("token {token:?} stands twice")));
        }
    }
    let merges: Vec<Json> = texts(file, "tokenizer.ggml.merges")?
        .into_iter()
        .map(|pair| match pair.split_once(' ') {
            Some((left, right)) => Ok(json!([left, right])),
            None => {
                Err(GgufError::invalid("tokenizer.ggml.merges", format!("{pair:?} is no pair")))
            }
        })
        .collect::<Result<_, _>>()?;
    let rules = rules(file)?;
    let model = json!({
        "type": "BPE",
        "vocab": vocab,
        "merges": merges,
        "ignore_merges": rules.ignore_merges,
    });
    let byte_level = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true });
    let json = json!({
        "version": "1.0",
        "added_tokens": added(file, &tokens)?,
        "normalizer": rules.normalizer,
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": rules.split },
        "decoder": byte_level,
        "model": model,
    });
    Ok(Some(json.to_string()))
}

/// How text is split before byte pairs.
struct Rules {
    split: Vec<Json>,
    normalizer: Json,
    ignore_merges: bool,
}

fn rules(file: &Gguf<'_>) -> Result<Rules, GgufError> {
    let bytes = |use_regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex });
    let by = |pattern: &str| {
        let split = json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
        vec![split, bytes(false)]
    };
    let plain = Rules { split: vec![bytes(true)], normalizer: Json::Null, ignore_merges: false };
    match file.key("tokenizer.ggml.pre") {
        Some(Value::Text("gpt-2" | "gpt2")) => Ok(plain),
        Some(Value::Text("smollm")) => {
            let digits = json!({ "type": "Digits", "individual_digits": true });
            Ok(Rules { split: vec![digits, bytes(true)], ..plain })
        }
        Some(Value::Text("llama-bpe" | "llama3")) => {
            Ok(Rules { split: by(LLAMA3), ignore_merges: true, ..plain })
        }
        Some(Value::Text("qwen2")) => {
            Ok(Rules { split: by(QWEN2), normalizer: json!({ "type": "NFC" }), ..plain })
        }
        other => {
            let reason = format!("it is {other:?}; known are {}", PRE.join(", "));
            Err(GgufError::unsupported("tokenizer.ggml.pre", reason))
        }
    }
}

/// Tokens that are found whole before text is split.
fn added(file: &Gguf<'_>, tokens: &[&str]) -> Result<Vec<Json>, GgufError> {
    let key = "tokenizer.ggml.token_type";
    let types = list(file, key)?;
    if types.len() != tokens.len() {
        let reason = format!("{} types of {} tokens", types.len(), tokens.len());
        return Err(GgufError::invalid(key, reason));
    }
    let mut added = Vec::new();
    for (id, (kind, token)) in types.iter().zip(tokens).enumerate() {
        let kind = match kind? {
            Value::Unsigned(kind) => kind,
            Value::Signed(kind) => kind as u64,
            other => return Err(GgufError::invalid(key, format!("a type is {other:?}"))),
        };
        if kind == CONTROL || kind == USER_DEFINED {
            added.push(json!({
                "id": id, "content": token, "special": kind == CONTROL, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            }));
        }
    }
    Ok(added)
}

/// The chat template, with the texts of the tokens that begin and end; `None` if there is none.
///
/// # Errors
/// If a special token's id is not one of the tokens.
pub fn chat_template(file: &Gguf<'_>) -> Result<Option<ChatTemplate>, GgufError> {
    let Some(Value::Text(template)) = file.key("tokenizer.chat_template") else { return Ok(None) };
    let tokens = texts(file, "tokenizer.ggml.tokens")?;
    let token = |key: &str| match file.key(key) {
        None => Ok(String::new()),
        Some(Value::Unsigned(id)) if (id as usize) < tokens.len() => {
            Ok(tokens[id as usize].to_owned())
        }
        Some(other) => Err(GgufError::invalid(key, format!("{other:?} is no token"))),
    };
    Ok(Some(ChatTemplate {
        template: template.to_owned(),
        bos_token: token("tokenizer.ggml.bos_token_id")?,
        eos_token: token("tokenizer.ggml.eos_token_id")?,
    }))
}
