//! Tokenizes a file and says how fast: `cargo run --release -p planaria-models --example tokenize --
//! gpt2|cl100k|o200k|tokenizer.json TEXT [IDS]`. IDS receives one id a line, to compare with Python.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a measuring program")]

use planaria_models::tokenizers::{Builtin, Tokenizer};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, text, out @ ..] = arguments.as_slice() else {
        return Err("usage: tokenize gpt2|cl100k|o200k|tokenizer.json TEXT [IDS]".into());
    };
    let tokenizer = match Builtin::named(name) {
        Some(which) => Tokenizer::builtin(which)?,
        None => Tokenizer::from_file(Path::new(name))?,
    };
    let text = std::fs::read(text)?;
    for pass in 1..=3 {
        let start = std::time::Instant::now();
        let ids = tokenizer.encode(&text)?;
        let megabytes_per_s = text.len() as f64 / 1e6 / start.elapsed().as_secs_f64();
        println!("pass {pass}: {} ids, {megabytes_per_s:.1} MB/s on one core", ids.len());
        if let ([out], 3) = (out, pass) {
            let lines: Vec<String> = ids.iter().map(u32::to_string).collect();
            std::fs::write(out, lines.join("\n"))?;
        }
    }
    Ok(())
}
