//! Files that are good, and files as they come when somebody cuts or crafts them.

use super::*;
use proptest::prelude::*;

/// Name, dimensions, type and offset of a tensor.
type Row = (String, Vec<u64>, u32, u64);

/// A file written by hand: metadata, rows of the tensor table, data.
#[derive(Default, Clone)]
struct Writer {
    keys: Vec<(String, Vec<u8>)>,
    rows: Vec<Row>,
    data: Vec<u8>,
}

fn text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

impl Writer {
    fn key(mut self, name: &str, kind: u32, bytes: &[u8]) -> Writer {
        self.keys.push((name.to_owned(), [&kind.to_le_bytes(), bytes].concat()));
        self
    }

    fn size(self, name: &str, value: u32) -> Writer {
        self.key(name, 4, &value.to_le_bytes())
    }

    fn word(self, name: &str, value: &str) -> Writer {
        let mut bytes = Vec::new();
        text(&mut bytes, value);
        self.key(name, 8, &bytes)
    }

    fn words(self, name: &str, values: &[&str]) -> Writer {
        let mut bytes =
            [8u32.to_le_bytes().as_slice(), &(values.len() as u64).to_le_bytes()].concat();
        values.iter().for_each(|v| text(&mut bytes, v));
        self.key(name, 9, &bytes)
    }

    fn types(self, name: &str, values: &[i32]) -> Writer {
        let mut bytes =
            [5u32.to_le_bytes().as_slice(), &(values.len() as u64).to_le_bytes()].concat();
        values.iter().for_each(|v| bytes.extend(v.to_le_bytes()));
        self.key(name, 9, &bytes)
    }

    /// fp32 values, dimensions in the file's order.
    fn tensor(mut self, name: &str, dims: &[u64], values: impl Iterator<Item = f32>) -> Writer {
        let offset = self.data.len().next_multiple_of(32);
        self.data.resize(offset, 0);
        values.for_each(|v| self.data.extend(v.to_le_bytes()));
        self.rows.push((name.to_owned(), dims.to_vec(), 0, offset as u64));
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(3u32.to_le_bytes());
        out.extend((self.rows.len() as u64).to_le_bytes());
        out.extend((self.keys.len() as u64).to_le_bytes());
        for (name, value) in &self.keys {
            text(&mut out, name);
            out.extend(value);
        }
        for (name, dims, kind, offset) in &self.rows {
            text(&mut out, name);
            out.extend((dims.len() as u32).to_le_bytes());
            dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(32), 0);
        out.extend(&self.data);
        out
    }
}

fn count(from: usize, len: u64) -> impl Iterator<Item = f32> {
    (from..from + len as usize).map(|i| i as f32)
}

/// A llama of one layer with heads of four, q and k as converters leave them, and six tokens.
fn tiny() -> Writer {
    let mut w = Writer::default()
        .word("general.architecture", "llama")
        .size("llama.block_count", 1)
        .size("llama.embedding_length", 8)
        .size("llama.attention.head_count", 2)
        .size("llama.attention.head_count_kv", 1)
        .size("llama.feed_forward_length", 3)
        .size("llama.context_length", 16)
        .word("tokenizer.ggml.model", "gpt2")
        .word("tokenizer.ggml.pre", "smollm")
        .words("tokenizer.ggml.tokens", &["<|im_end|>", "a", "b", "ab", "1", "Ġ"])
        .words("tokenizer.ggml.merges", &["a b"])
        .types("tokenizer.ggml.token_type", &[3, 1, 1, 1, 1, 1])
        .size("tokenizer.ggml.eos_token_id", 0)
        .word("tokenizer.chat_template", "{{ messages[0]['content'] }}{{ eos_token }}")
        .tensor("token_embd.weight", &[8, 6], count(0, 48))
        .tensor("output_norm.weight", &[8], count(0, 8));
    let parts: [(&str, &[u64]); 9] = [
        ("attn_q", &[8, 8]),
        ("attn_k", &[8, 4]),
        ("attn_v", &[8, 4]),
        ("attn_output", &[8, 8]),
        ("ffn_gate", &[8, 3]),
        ("ffn_up", &[8, 3]),
        ("ffn_down", &[3, 8]),
        ("attn_norm", &[8]),
        ("ffn_norm", &[8]),
    ];
    for (i, (name, dims)) in parts.into_iter().enumerate() {
        let name = format!("blk.0.{name}.weight");
        w = w.tensor(&name, dims, count(100 * i, dims.iter().product()));
    }
    w
}

/// Metadata to spec, names, and the rows of q and k back from pairs to halves.
#[test]
fn a_llama_is_found() {
    let bytes = tiny().bytes();
    let file = Gguf::parse(&bytes).expect("good");
    let import = import(&file).expect("a llama");
    assert!(import.spec.tied && import.notes.is_empty(), "{:?}", import.notes);
    assert_eq!((import.spec.kv_heads, import.spec.head_dim, import.spec.vocab), (1, 4, 6));
    let value = |end: &str| {
        let param =
            import.model.params.iter().find(|p| p.name.ends_with(end)).expect("a parameter");
        import.value(param)
    };
    let rows: Vec<f32> = value("q_proj.weight").chunks(8).map(|row| row[0] / 8.0).collect();
    assert_eq!(rows, [0., 2., 1., 3., 4., 6., 5., 7.]);
    let rows: Vec<f32> =
        value("k_proj.weight").chunks(8).map(|row| (row[0] - 100.0) / 8.0).collect();
    assert_eq!(rows, [0., 2., 1., 3.]);
    assert_eq!(value("v_proj.weight")[..3], [200., 201., 202.]);
    // Qwen's converters leave the rows as they are.
    let mut qwen = tiny();
    for (name, value) in &mut qwen.keys {
        *name = name.replace("llama.", "qwen2.");
        if name == "general.architecture" {
            *value = Writer::default().word("", "qwen2").keys.remove(0).1;
        }
    }
    let bytes = qwen.bytes();
    let file = Gguf::parse(&bytes).expect("good");
    let import = super::import(&file).expect("a qwen2");
    let rows: Vec<f32> = import.values()[1].chunks(8).map(|row| row[0] / 8.0).collect();
    assert_eq!(rows, [0., 1., 2., 3., 4., 5., 6., 7.]);
}

/// The file's tokens and merges, its special tokens whole, its chat template.
#[test]
fn the_tokenizer_comes_along() {
    use crate::generate::chat::Message;
    use crate::tokenizers::{Tokenizer, TokenizerSpec};
    let bytes = tiny().bytes();
    let file = Gguf::parse(&bytes).expect("good");
    let json = tokenizer_json(&file).expect("known").expect("a tokenizer");
    let tokenizer = Tokenizer::from_spec(TokenizerSpec::HuggingFace { json }).expect("read");
    assert_eq!(
        tokenizer.encode_control(b"aba 11<|im_end|>b").expect("encoded"),
        [3, 1, 5, 4, 4, 0, 2]
    );
    let chat = chat_template(&file).expect("good").expect("a template");
    assert_eq!(chat.render(&[Message::new("user", "ab")]).expect("rendered"), "ab<|im_end|>");
    let refused = |w: Writer| {
        let bytes = w.bytes();
        tokenizer_json(&Gguf::parse(&bytes).expect("good")).expect_err("refused").to_string()
    };
    let with = |name: &str, value: Writer| {
        let mut w = tiny();
        w.keys.retain(|(n, _)| n != name);
        w.keys.extend(value.keys);
        refused(w)
    };
    let none = Writer::default;
    let key = "tokenizer.ggml.pre";
    assert!(with(key, none().word(key, "tekken")).contains("tekken"));
    assert!(with(key, none()).contains("smollm"));
    let key = "tokenizer.ggml.model";
    assert!(with(key, none().word(key, "llama")).contains("llama"));
    let key = "tokenizer.ggml.tokens";
    assert!(with(key, none().words(key, &["a", "a"])).contains("stands twice"));
    let key = "tokenizer.ggml.token_type";
    assert!(with(key, none().types(key, &[1])).contains("1 types of 6 tokens"));
    let key = "tokenizer.ggml.merges";
    assert!(with(key, none().words(key, &["ab"])).contains("no pair"));
    let bare = Writer::default().bytes();
    assert_eq!(tokenizer_json(&Gguf::parse(&bare).expect("good")), Ok(None));
}

/// Every kind of block, as the gguf package widens it (`tests/golden/make_gguf.py`).
#[test]
fn every_kind_is_widened_as_ggml_does() {
    let bytes = include_bytes!("../../tests/golden/gguf/kinds.gguf");
    let wide = include_bytes!("../../tests/golden/gguf/kinds.safetensors");
    let wide = safetensors::SafeTensors::deserialize(wide).expect("safetensors");
    let file = Gguf::parse(bytes).expect("good");
    assert_eq!(file.tensors().count(), 8);
    for (name, tensor) in file.tensors() {
        let want = wide.tensor(name).expect("a golden");
        assert_eq!((tensor.kind.name(), &tensor.shape()[..]), (name, want.shape()));
        let want =
            want.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
        let mut got = vec![0.0; tensor.elements()];
        tensor.widen(&mut got);
        for (got, want) in got.iter().zip(want) {
            assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{name}: {got} {want}");
        }
    }
}

/// Crafted containers seen in public (offsets far outside, zero dimensions, products that wrap), cut
/// ones, doubled names: one clear error each.
#[test]
fn bad_files_are_refused_by_name() {
    let with = |change: &dyn Fn(&mut Writer)| {
        let mut w = tiny();
        change(&mut w);
        Gguf::parse(&w.bytes()).expect_err("refused").to_string()
    };
    let row = |at: usize, change: &dyn Fn(&mut Row)| with(&|w| change(&mut w.rows[at]));
    let cases: Vec<(String, &str)> = vec![
        (row(0, &|r| r.3 = 1 << 62), "token_embd.weight: truncated, or its offset is wrong"),
        (row(0, &|r| r.3 = u64::MAX - 31), "token_embd.weight: truncated, or its offset is wrong"),
        (row(0, &|r| r.3 = 1), "no multiple of 32"),
        (row(1, &|r| r.3 = 0), "shares bytes with"),
        (row(2, &|r| r.1 = vec![8, 0]), "blk.0.attn_q.weight: a dimension is 0"),
        (row(2, &|r| r.1 = vec![1 << 32, 1 << 32, 1 << 32]), "more elements"),
        (row(2, &|r| r.1 = vec![1 << 62]), "more bytes"),
        (row(2, &|r| r.1 = vec![]), "0 dimensions"),
        (row(2, &|r| r.1 = vec![1; 5]), "5 dimensions"),
        (row(2, &|r| r.2 = 3), "not whole blocks of 32"),
        (row(2, &|r| r.2 = 6), "Q5_0"),
        (row(2, &|r| r.2 = 999), "type 999"),
        (row(2, &|r| r.0 = "token_embd.weight".into()), "the name stands twice"),
        (with(&|w| w.data.truncate(100)), "truncated, or its offset is wrong"),
        (with(&|w| w.keys[1].0 = w.keys[0].0.clone()), "the key stands twice"),
        (with(&|w| w.keys[0].1[0] = 77), "unknown type 77"),
        (with(&|w| w.keys[0].1[4] = 255), "truncated"),
        (with(&|w| *w = w.clone().key("x", 7, &[2])), "a flag is 2"),
        (with(&|w| *w = w.clone().key("x", 9, &[9; 12])), "a list of type"),
        (
            with(&|w| *w = w.clone().key("x", 9, &[8, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0])),
            "truncated",
        ),
        (with(&|w| *w = w.clone().size("general.alignment", 3)), "general.alignment"),
    ];
    for (found, want) in cases {
        assert!(found.contains(want), "{found} should say {want}");
    }
    let good = tiny().bytes();
    let patched = |at: usize, bytes: &[u8]| {
        let mut file = good.clone();
        file[at..at + bytes.len()].copy_from_slice(bytes);
        Gguf::parse(&file).expect_err("refused").to_string()
    };
    assert!(patched(0, b"GGML").contains("not a GGUF file"));
    assert!(patched(4, &1u32.to_le_bytes()).contains("version 1"));
    assert!(patched(8, &(1u64 << 60).to_le_bytes()).contains("tensors, the limit is"));
    assert!(patched(16, &(1u64 << 60).to_le_bytes()).contains("keys, the limit is"));
    for cut in 0..good.len() {
        let error = Gguf::parse(&good[..cut]).expect_err("a cut file");
        assert!(cut < 4 || error.to_string().contains("truncated"), "cut at {cut}: {error}");
    }
}

/// Metadata and tensors that make no model of ours: refused by name.
#[test]
fn what_is_no_model_is_refused() {
    let refused = |change: &dyn Fn(&mut Writer)| {
        let mut w = tiny();
        change(&mut w);
        let bytes = w.bytes();
        let file = Gguf::parse(&bytes).expect("a good container");
        import(&file).map(|_| ()).expect_err("refused").to_string()
    };
    let set = |name: &'static str, value: u32| {
        refused(&move |w| {
            w.keys.retain(|(n, _)| n != name);
            *w = w.clone().size(name, value);
        })
    };
    let without = |name: &'static str| {
        refused(&move |w| {
            w.keys.retain(|(n, _)| n != name);
            w.rows.retain(|r| r.0 != name);
        })
    };
    let extra =
        |name: &'static str| refused(&move |w| *w = w.clone().tensor(name, &[2], count(0, 2)));
    let word = |name: &'static str, value: &'static str| {
        refused(&move |w| {
            w.keys.retain(|(n, _)| n != name);
            *w = w.clone().word(name, value);
        })
    };
    let cases = [
        (word("general.architecture", "mamba"), "mamba"),
        (without("general.architecture"), "no key general.architecture"),
        (without("llama.block_count"), "no key llama.block_count"),
        (set("llama.block_count", 0), "llama.block_count"),
        (set("llama.block_count", 4096), "it says 4096 layers, the tensors are of 1"),
        (set("llama.block_count", 1 << 30), "a size from 1 to 4096"),
        (set("llama.attention.head_count_kv", 3), "2 query heads"),
        (set("llama.rope.dimension_count", 2), "llama.rope.dimension_count"),
        (set("llama.expert_count", 8), "mixtures of experts"),
        (word("llama.rope.scaling.type", "yarn"), "yarn"),
        (without("blk.0.ffn_up.weight"), "no tensor blk.0.ffn_up.weight"),
        (without("token_embd.weight"), "no tensor token_embd.weight"),
        (set("llama.feed_forward_length", 4), "the metadata makes it [4, 8]"),
        (extra("rope_freqs.weight"), "rope_freqs.weight"),
        (extra("blk.0.attn_sinks.weight"), "blk.0.attn_sinks.weight"),
    ];
    for (found, want) in cases {
        assert!(found.contains(want), "{found} should say {want}");
    }
}

proptest! {
    /// One byte changed anywhere: read or refused, never a panic.
    #[test]
    fn changed_files_never_panic(at in 0usize..4096, to in 0u8..=255) {
        let mut bytes = tiny().bytes();
        let at = at % bytes.len();
        bytes[at] = to;
        if let Ok(file) = Gguf::parse(&bytes) {
            let _ = (tokenizer_json(&file), chat_template(&file));
            if let Ok(import) = import(&file) {
                let _ = import.values();
            }
        }
    }
}
