//! Feeds damaged model files to their readers: no panic, and no more memory than the file's size, as
//! fp32, and [`LIMIT`].
//!
//!     cargo run --release -p planaria-models --example fuzz -- safetensors|gguf|index [SECONDS] [CASE]
//!
//! A case that fails is named; giving its number runs it again first.

#![allow(clippy::print_stdout, clippy::disallowed_methods, reason = "a program run by hand")]

mod sys;

use planaria_base::rng::CounterRng;
use planaria_models::gguf::{self, Gguf};
use planaria_models::hf;
use planaria_storage::safetensors::{Folder, SafetensorsFile};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[global_allocator]
static COUNTING: sys::Counting = sys::Counting;

/// Bytes that a reader may hold beyond eight times the file: a block of 18 bytes is 32 fp32 values.
const LIMIT: usize = 16 << 20;

/// Numbers that break sums and products.
const EVIL: [u64; 8] = [0, 1, 7, 1 << 31, 1 << 32, 1 << 60, u64::MAX >> 1, u64::MAX];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// One damaged copy: bytes changed, numbers replaced, a part removed, doubled or cut off. Most damage
/// falls into the first part, where the tables are.
fn damage(good: &[u8], case: u64) -> Vec<u8> {
    let rng = CounterRng::new(case);
    let mut drawn = 0;
    let mut draw = |below: usize| {
        drawn += 1;
        (rng.uniform(drawn) * below.max(1) as f64) as usize
    };
    let mut bytes = good.to_vec();
    for _ in 0..=draw(4) {
        let reach = if draw(3) == 0 { bytes.len() } else { bytes.len().min(3000) };
        let at = draw(reach);
        let len = (1 + draw(64)).min(bytes.len() - at);
        match draw(6) {
            0 => bytes.truncate(at),
            1 => drop(bytes.drain(at..at + len)),
            2 => {
                let part = bytes[at..at + len].to_vec();
                bytes.splice(at..at, part);
            }
            3 if bytes.len() - at >= 8 => {
                let number = EVIL[draw(EVIL.len())].to_le_bytes();
                bytes[at..at + 8].copy_from_slice(&number);
            }
            _ if at < bytes.len() => bytes[at] = draw(256) as u8,
            _ => {}
        }
    }
    bytes
}

/// Reads a file; whether it was taken.
type Read = dyn Fn(&[u8]) -> bool;

/// A reader of one format, and a good file.
struct Target {
    good: Vec<u8>,
    read: Box<Read>,
}

fn target(format: &str, dir: &Path) -> Option<Target> {
    let read = |path: PathBuf| std::fs::read(path).expect("a golden file");
    let config = read(golden("mistral/config.json"));
    let weights = golden("mistral/model.safetensors");
    let path = dir.join("model.safetensors");
    match format {
        "gguf" => {
            Some(Target { good: read(golden("gguf/mistral.gguf")), read: Box::new(read_gguf) })
        }
        "safetensors" => {
            let all = move |bytes: &[u8]| {
                std::fs::write(&path, bytes).expect("written");
                let Ok(file) = SafetensorsFile::open(&path) else { return false };
                hf::import(&config, &file).map(|import| import.values(&file)).is_ok()
            };
            Some(Target { good: read(weights), read: Box::new(all) })
        }
        "index" => {
            std::fs::copy(&weights, dir.join("part-1.safetensors")).expect("copied");
            let names = SafetensorsFile::open(&weights).expect("a golden file");
            let names = planaria_base::tensor_source::TensorSource::names(&names);
            let map: serde_json::Map<String, serde_json::Value> =
                names.into_iter().map(|n| (n.to_owned(), "part-1.safetensors".into())).collect();
            let good = serde_json::json!({ "weight_map": map }).to_string().into_bytes();
            let dir = dir.to_owned();
            let all = move |bytes: &[u8]| {
                std::fs::write(dir.join("model.safetensors.index.json"), bytes).expect("written");
                Folder::open(&dir).is_ok_and(|folder| hf::import(&config, &folder).is_ok())
            };
            Some(Target { good, read: Box::new(all) })
        }
        _ => None,
    }
}

fn read_gguf(bytes: &[u8]) -> bool {
    let Ok(file) = Gguf::parse(bytes) else { return false };
    let words = gguf::tokenizer_json(&file).is_ok() && gguf::chat_template(&file).is_ok();
    gguf::import(&file).map(|import| import.values()).is_ok() && words
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let format = arguments.first().map_or("", String::as_str);
    let number = |i: usize, or: u64| arguments.get(i).and_then(|a| a.parse().ok()).unwrap_or(or);
    let (seconds, first) = (number(1, 60), number(2, 0));
    let dir = tempfile::tempdir().expect("a folder");
    let Some(Target { good, read }) = target(format, dir.path()) else {
        println!("usage: fuzz safetensors|gguf|index [SECONDS] [CASE]");
        std::process::exit(2);
    };
    assert!(read(&good), "the undamaged file is read");
    let end = Instant::now() + Duration::from_secs(seconds);
    let (mut case, mut taken, mut most) = (first, 0u64, 0);
    while Instant::now() < end {
        let bytes = damage(&good, case);
        let mut outcome = Ok(false);
        let held = sys::peak_of(|| {
            outcome = catch_unwind(std::panic::AssertUnwindSafe(|| read(&bytes)));
        });
        let allowed = 8 * bytes.len() + LIMIT;
        if outcome.is_err() || held > allowed {
            println!("case {case}: panic {}, {held} bytes held of {allowed}", outcome.is_err());
            std::process::exit(1);
        }
        (case, taken, most) =
            (case + 1, taken + u64::from(outcome.unwrap_or(false)), most.max(held));
    }
    println!(
        "{format}: {} damaged files, {taken} still read, {most} bytes held at most",
        case - first
    );
}
