//! `planaria data prepare` as a person runs it.

#![allow(clippy::disallowed_methods, reason = "runs the program")]

use std::path::Path;
use std::process::{Command, Output};

fn prepare(dir: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_planaria"));
    command.current_dir(dir).args(["data", "prepare", "--out", "o.tokens"]).args(arguments);
    command.output().expect("it runs")
}

fn error(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Text with a byte-order mark and CRLF, and JSON lines, become documents closed by end-of-text.
#[test]
fn text_and_json_lines_become_tokens() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("a.txt"), "\u{feff}hi\r\n<|endoftext|>").expect("written");
    std::fs::write(dir.path().join("b.jsonl"), "{\"text\": \"hi\"}\n\n{\"text\": \"\"}\n")
        .expect("written");
    let output = prepare(dir.path(), &["a.txt", "b.jsonl", "--tokenizer", "gpt2", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&said["documents"], &said["files"]), (&3.into(), &2.into()));
    let bytes = std::fs::read(dir.path().join("o.tokens")).expect("published");
    let ids: Vec<u16> = bytes[64..].chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
    // tiktoken's ids of "hi", "\r", "\n" and of the letters of "<|endoftext|>".
    let text = [5303, 201, 198, 27, 91, 437, 1659, 5239, 91, 29];
    assert_eq!(ids, [&text[..], &[50_256, 5303, 50_256, 50_256]].concat());
}

/// Invalid UTF-8 is named with file and byte and writes nothing; --lossy goes on. So for empty text
/// and a line without the field.
#[test]
fn what_is_wrong_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("a.txt"), b"\xef\xbb\xbfab\xffc").expect("written");
    std::fs::write(dir.path().join("empty.txt"), b"").expect("written");
    std::fs::write(dir.path().join("c.jsonl"), b"{\"text\": \"x\"}\n{\"body\": \"x\"}\n")
        .expect("written");
    let bad = error(&prepare(dir.path(), &["a.txt"]));
    assert!(bad.contains("a.txt: invalid UTF-8 at byte 5"), "{bad}");
    let left = std::fs::read_dir(dir.path()).expect("a folder").count();
    assert_eq!(left, 3, "nothing is left beside the inputs");
    assert!(error(&prepare(dir.path(), &["empty.txt"])).contains("no text"));
    let bad = error(&prepare(dir.path(), &["c.jsonl"]));
    assert!(bad.contains("c.jsonl: line 2 has no text in field \"text\""), "{bad}");
    std::fs::write(dir.path().join("d.jsonl"), b"{\"text\": \"x\"}\n{\"text\": \"\xff\"}\n")
        .expect("written");
    let bad = error(&prepare(dir.path(), &["d.jsonl"]));
    assert!(bad.contains("d.jsonl: invalid UTF-8 at byte 24"), "{bad}");
    assert!(prepare(dir.path(), &["d.jsonl", "--lossy"]).status.success());
    std::fs::remove_file(dir.path().join("o.tokens")).expect("published");
    assert!(error(&prepare(dir.path(), &["absent"])).contains("absent"));
    assert!(prepare(dir.path(), &["a.txt", "--lossy"]).status.success());
    let byte = prepare(dir.path(), &["a.txt", "--tokenizer", "byte"]);
    assert!(byte.status.success());
    assert!(std::fs::read(dir.path().join("o.tokens")).expect("published").ends_with(b"ab\xffc"));
}
