//! Ids against the crates, and what text and control tokens become.

use super::*;
use proptest::prelude::*;
use std::sync::OnceLock;

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

const PAIRS: [Builtin; 3] = [Builtin::Gpt2, Builtin::Cl100k, Builtin::O200k];

fn ours() -> &'static [Tokenizer; 3] {
    static ALL: OnceLock<[Tokenizer; 3]> = OnceLock::new();
    ALL.get_or_init(|| PAIRS.map(|which| Tokenizer::builtin(which).expect("built in")))
}

fn theirs() -> [&'static tiktoken_rs::CoreBPE; 3] {
    [
        tiktoken_rs::r50k_base_singleton(),
        tiktoken_rs::cl100k_base_singleton(),
        tiktoken_rs::o200k_base_singleton(),
    ]
}

/// Text that the patterns find hard: marks, digits, spaces, cases, line ends, contractions.
fn hard() -> impl Strategy<Value = String> {
    let parts = prop::sample::select(vec![
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\u{a0}",
        "\u{3000}",
        "\u{2028}",
        "'",
        "'s",
        "'LL",
        "'\u{17f}",
        "a",
        "B",
        "\u{1c5}",
        "\u{2b0}",
        "\u{aa}",
        "\u{5d0}",
        "\u{301}",
        "\u{93f}",
        "1",
        "23",
        "\u{663}",
        "\u{bd}",
        "/",
        "//",
        ".",
        "!?",
        "\u{1f9a0}",
        "\u{200d}",
        "\u{4e2d}\u{6587}",
        "word",
        "Word",
        "WORD",
        "it's",
        "<|endoftext|>",
        "\0",
        "\u{feff}",
        "don't've",
        "\u{e000}",
        "\u{378}",
    ]);
    prop_oneof![
        prop::collection::vec(parts, 0..40).prop_map(|p| p.concat()),
        ".{0,60}",
        "[a-zA-Z' \\n\\r]{0,60}",
    ]
}

proptest! {
    /// The same ids as tiktoken-rs, whatever the text; and the same text back.
    #[test]
    fn ids_are_those_of_tiktoken(text in hard()) {
        for (ours, theirs) in ours().iter().zip(theirs()) {
            let ids = ours.encode(text.as_bytes()).expect("text");
            prop_assert_eq!(&ids, &theirs.encode_ordinary(&text));
            prop_assert_eq!(ours.decode(&ids), text.as_bytes());
            let control = ours.encode_control(text.as_bytes()).expect("text");
            prop_assert_eq!(control, theirs.encode_with_special_tokens(&text));
        }
    }

    /// Scanning and the heap merge alike.
    #[test]
    fn both_merges_agree(piece in prop::collection::vec(prop_oneof![any::<u8>(), b'a'..=b'e'], 1..300)) {
        let Tokenizer::Tiktoken(t) = &ours()[0] else { panic!("built in") };
        let (scan, heap) = t.bpe.both_merges(&piece);
        prop_assert_eq!(scan, heap);
    }
}

/// A control token's name in training text is its letters, unless asked for.
#[test]
fn control_tokens_in_text_are_text() {
    let gpt2 = &ours()[0];
    let text = b"a<|endoftext|>b";
    assert!(!gpt2.encode(text).expect("text").contains(&50_256));
    assert_eq!(gpt2.encode_control(text).expect("text")[1], 50_256);
    assert_eq!(gpt2.decode(&[50_256]), b"<|endoftext|>");
}

/// Ids that a model has and the tokenizer has not add nothing.
#[test]
fn unknown_ids_decode_to_nothing() {
    for tokenizer in ours().iter().chain([&Tokenizer::Byte]) {
        assert_eq!(tokenizer.decode(&[u32::MAX, 300_000]), b"");
    }
}

/// A byte-level file with some merges, cut by `pre`.
fn byte_level_file(pre: &serde_json::Value, pairs: bool, normalizer: &serde_json::Value) -> String {
    const MERGES: [(&str, &str); 7] =
        [("i", "t"), ("w", "o"), ("Ġ", "w"), ("wo", "r"), ("Ġ", "Ġ"), ("l", "l"), ("2", "3")];
    // SmolLM's vocabulary lacks some bytes too.
    let bytes = (0..=255u8).filter(|b| !matches!(b, 0 | 0xcc));
    let alphabet = bytes.map(|b| byte_level::byte_char(b).to_string());
    let words = alphabet.chain(MERGES.map(|(a, b)| format!("{a}{b}")));
    let vocab: serde_json::Map<_, _> = words.enumerate().map(|(id, w)| (w, id.into())).collect();
    let merges: Vec<serde_json::Value> = MERGES
        .iter()
        .map(|(a, b)| if pairs { serde_json::json!([a, b]) } else { format!("{a} {b}").into() })
        .collect();
    let special = |id, special, content| {
        serde_json::json!({"id": id, "content": content, "special": special, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
    };
    serde_json::json!({"version": "1.0", "truncation": {"direction": "Right", "max_length": 8,
        "strategy": "LongestFirst", "stride": 0}, "padding": null,
        "added_tokens": [special(261, true, "<|endoftext|>"), special(262, false, "WORD")],
        "normalizer": normalizer, "pre_tokenizer": pre, "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true,
            "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": merges}})
    .to_string()
}

fn kinds() -> Vec<serde_json::Value> {
    let level = |regex: bool| {
        serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": regex})
    };
    let cut = |regex: &str| {
        serde_json::json!({"type": "Sequence", "pretokenizers": [{"type": "Split",
            "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false}, level(false)]})
    };
    let digits = serde_json::json!({"type": "Digits", "individual_digits": true});
    let smol = serde_json::json!({"type": "Sequence", "pretokenizers": [digits, level(true)]});
    vec![level(true), smol, cut(byte_level::LLAMA3), cut(byte_level::QWEN2)]
}

proptest! {
    /// Every kind that our encoder reads gives the ids of the tokenizers crate.
    #[test]
    fn ids_are_those_of_the_tokenizers_crate(text in hard()) {
        for (kind, normalizer) in kinds().iter().zip([serde_json::Value::Null,
            serde_json::Value::Null, serde_json::Value::Null, serde_json::json!({"type": "NFC"})])
        {
            let file = byte_level_file(kind, true, &normalizer);
            let made = Tokenizer::from_json(file).expect("a tokenizer");
            let Tokenizer::HuggingFace(t) = &made else { panic!("of Hugging Face") };
            prop_assert!(t.fast.is_some());
            let ids = made.encode(text.as_bytes()).expect("text");
            prop_assert_eq!(&ids, &crate_encode(&t.inner, &text).expect("text"));
            if normalizer.is_null() && text.is_ascii() && !text.contains('\0') {
                prop_assert_eq!(made.decode(&ids), text.as_bytes());
            }
        }
    }
}

/// Merges as "a b" and as pairs are the same; a control token in text is text; a damaged file says so.
#[test]
fn tokenizer_files_are_read() {
    let [a, b] = [true, false].map(|pairs| {
        let file = byte_level_file(&kinds()[0], pairs, &serde_json::Value::Null);
        Tokenizer::from_json(file).expect("a tokenizer")
    });
    let text = b"it will work <|endoftext|> WORD";
    assert_eq!(a.encode(text).expect("text"), b.encode(text).expect("text"));
    assert!(!a.encode(text).expect("text").contains(&261));
    assert!(a.encode_control(text).expect("text").contains(&261));
    assert_eq!((a.vocab(), a.end_of_text()), (263, Some(261)));
    assert!(Tokenizer::from_json("{\"model\": {\"type\": \"Odd\"}}".into()).is_err());
}

/// The ids that Python's tiktoken gives (`tests/golden/tokenizers/make.py`).
#[test]
fn ids_are_those_of_python() {
    const TEXT: &str = include_str!("../../tests/golden/tokenizers/text.txt");
    const IDS: &str = include_str!("../../tests/golden/tokenizers/ids.json");
    let want: std::collections::BTreeMap<String, Vec<u32>> =
        serde_json::from_str(IDS).expect("the golden");
    for (ours, name) in ours().iter().zip(["gpt2", "cl100k", "o200k"]) {
        assert_eq!(ours.encode(TEXT.as_bytes()).expect("text"), want[name], "{name}");
    }
}
