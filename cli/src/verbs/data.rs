//! `planaria data`: text to token files.

use crate::output::{self, Done, Usage};
use anyhow::Context;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use planaria_models::tokenizers::{Builtin, Tokenizer, TokenizerError};
use planaria_storage::corpus;
use planaria_storage::tokens::{TokenFile, TokenWriter};
use serde_json::json;
use std::io::{BufRead, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};

/// Longest line of a JSON lines file.
const LINE_LIMIT: u64 = 1 << 28;

/// Turn text into token files.
#[derive(Args)]
pub(crate) struct Data {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Tokenize text, source and JSON lines files into one token file
    Prepare(Prepare),
}

/// What to tokenize, and how.
#[derive(Args)]
#[command(
    after_help = "Example: planaria data prepare docs/ more.jsonl --tokenizer gpt2 --out docs.tokens\n\nEach text file and each line of a .jsonl file is a document; the tokenizer's end-of-text token, if it has one, closes it. Names of control tokens inside text stay text."
)]
struct Prepare {
    /// Files and folders, in order; of a folder .rs, .md and .txt are read, sorted by path
    #[arg(required = true)]
    input: Vec<PathBuf>,
    /// byte, gpt2, cl100k, o200k, or the path of a tokenizer.json
    #[arg(long, default_value = "gpt2")]
    tokenizer: String,
    /// The token file to write; it appears when it is whole
    #[arg(long)]
    out: PathBuf,
    /// Where the text of a .jsonl line is
    #[arg(long, default_value = "text")]
    field: String,
    /// Replace invalid UTF-8 by U+FFFD instead of stopping at it
    #[arg(long)]
    lossy: bool,
    /// End with one JSON object: files, documents, bytes, tokens, vocab, digest
    #[arg(long)]
    json: bool,
}

impl Data {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        let Verb::Prepare(verb) = self.verb;
        verb.run()
    }
}

impl Prepare {
    fn run(self) -> anyhow::Result<Done> {
        let mut files = Vec::new();
        for input in &self.input {
            files.extend(corpus::walk(input).with_context(|| input.display().to_string())?);
        }
        let tokenizer = tokenizer(&self.tokenizer)?;
        let total = files.iter().map(|f| f.metadata().map_or(0, |m| m.len())).sum();
        let mut writing = Writing {
            writer: TokenWriter::create(&self.out, tokenizer.vocab() as u64)?,
            tokenizer,
            lossy: self.lossy,
            bar: bar(total),
            documents: 0,
            bytes: 0,
        };
        for path in &files {
            let written = if path.extension().is_some_and(|e| e == "jsonl") {
                writing.json_lines(path, &self.field)
            } else {
                writing.text(path)
            };
            written.with_context(|| path.display().to_string())?;
        }
        let Writing { writer, bar, documents, bytes, .. } = writing;
        bar.finish_and_clear();
        anyhow::ensure!(bytes > 0, "no text: {} files were read, all empty", files.len());
        self.report(&writer.finish()?, [files.len() as u64, documents, bytes]);
        Ok(Done::All)
    }

    fn report(&self, file: &TokenFile, [files, documents, bytes]: [u64; 3]) {
        if self.json {
            return output::json(&json!({"files": files, "documents": documents, "bytes": bytes,
                "tokens": file.count, "vocab": file.vocab, "digest": file.digest.to_string()}));
        }
        output::line(&format!(
            "{}: {} tokens of {documents} documents in {files} files ({:.2} bytes a token)",
            self.out.display(),
            file.count,
            bytes as f64 / file.count as f64
        ));
    }
}

fn tokenizer(name: &str) -> anyhow::Result<Tokenizer> {
    if let Some(which) = Builtin::named(name) {
        return Ok(Tokenizer::builtin(which)?);
    }
    match name {
        "byte" => Ok(Tokenizer::Byte),
        file if file.ends_with(".json") => Ok(Tokenizer::from_file(Path::new(file))?),
        _ => Err(Usage(format!(
            "--tokenizer {name}: neither byte, gpt2, cl100k, o200k nor a tokenizer.json"
        ))
        .into()),
    }
}

fn bar(total: u64) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{bar:24} {bytes}/{total_bytes} {bytes_per_sec} {eta}");
    ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

struct Writing {
    writer: TokenWriter,
    tokenizer: Tokenizer,
    lossy: bool,
    bar: ProgressBar,
    documents: u64,
    bytes: u64,
}

impl Writing {
    fn text(&mut self, path: &Path) -> anyhow::Result<()> {
        let read = corpus::stream::<anyhow::Error>(path, |offset, part| {
            self.bar.inc(part.len() as u64);
            self.push(offset, part)
        })?;
        if read > 0 { self.end_document() } else { Ok(()) }
    }

    fn json_lines(&mut self, path: &Path, field: &str) -> anyhow::Result<()> {
        let mut lines = BufReader::new(std::fs::File::open(path)?);
        let (mut line, mut offset) = (Vec::new(), 0);
        for number in 1.. {
            line.clear();
            let read = (&mut lines).take(LINE_LIMIT).read_until(b'\n', &mut line)? as u64;
            if read == 0 {
                break;
            }
            anyhow::ensure!(read < LINE_LIMIT, "line {number} is longer than {LINE_LIMIT} bytes");
            self.bar.inc(read);
            let text = match std::str::from_utf8(&line) {
                Err(e) if !self.lossy => return Err(invalid(offset + e.valid_up_to() as u64)),
                _ => String::from_utf8_lossy(&line),
            };
            offset += read;
            let text = text.trim_start_matches('\u{feff}').trim();
            if text.is_empty() {
                continue;
            }
            let value: serde_json::Value =
                serde_json::from_str(text).with_context(|| format!("line {number}"))?;
            let text = value[field].as_str().with_context(|| {
                format!("line {number} has no text in field {field:?}; --field names another")
            })?;
            self.push(0, text.as_bytes())?;
            self.end_document()?;
        }
        Ok(())
    }

    fn push(&mut self, offset: u64, text: &[u8]) -> anyhow::Result<()> {
        self.bytes += text.len() as u64;
        let ids = match self.tokenizer.encode(text) {
            Err(TokenizerError::Utf8 { .. }) if self.lossy => {
                self.tokenizer.encode(String::from_utf8_lossy(text).as_bytes())?
            }
            Err(TokenizerError::Utf8 { offset: within }) => {
                return Err(invalid(offset + within as u64));
            }
            other => other?,
        };
        Ok(self.writer.push(&ids)?)
    }

    fn end_document(&mut self) -> anyhow::Result<()> {
        self.documents += 1;
        let end = self.tokenizer.end_of_text();
        Ok(end.map_or(Ok(()), |id| self.writer.push(&[id]))?)
    }
}

fn invalid(offset: u64) -> anyhow::Error {
    anyhow::anyhow!(
        "invalid UTF-8 at byte {offset}; nothing was written; --lossy replaces such bytes"
    )
}
