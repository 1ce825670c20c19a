//! The rules that a machine can check: dependencies, sizes, `unsafe`, the pages that people read.

use std::fs;
use std::path::{Path, PathBuf};

const CRATES: [&str; 9] = [
    "base",
    "models",
    "storage",
    "transport",
    "config",
    "actors",
    "cli",
    "examples",
    "chaos-tests",
];
const FILE_LINES: usize = 800;
const FUNCTION_LINES: usize = 70;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a workspace").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn all_sources() -> Vec<PathBuf> {
    let mut out = Vec::new();
    CRATES.iter().for_each(|c| sources(&root().join(c), &mut out));
    assert!(out.len() > 100, "the sources are found");
    out
}

/// ARCHITECTURE.md's dependency table is what the manifests say, to the letter.
#[test]
fn the_dependency_table_is_true() {
    let page = read(&root().join("ARCHITECTURE.md"));
    assert!(page.lines().count() <= 400, "ARCHITECTURE.md has at most 400 lines");
    let table = page.split("## Dependency table").nth(1).expect("a table");
    for name in CRATES {
        let row = format!("| {name} |");
        let row = table.lines().find(|l| l.starts_with(&row)).unwrap_or_else(|| panic!("{name}"));
        let mut listed: Vec<&str> =
            row.split('|').nth(2).expect("a cell").split_whitespace().collect();
        let manifest = read(&root().join(name).join("Cargo.toml"));
        let normal = manifest.split("[dev-dependencies]").next().expect("a part");
        let mut used: Vec<&str> = normal
            .lines()
            .filter_map(|l| l.strip_prefix("planaria-")?.split_whitespace().next())
            .collect();
        listed.sort_unstable();
        used.sort_unstable();
        assert_eq!(listed, used, "{name}");
    }
}

/// The top level holds the crates and little else.
#[test]
fn the_top_level_is_the_house() {
    for name in CRATES {
        assert!(root().join(name).join("Cargo.toml").is_file(), "{name}");
    }
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        assert!(root().join(name).is_file(), "{name}");
    }
}

/// No file over 800 lines.
#[test]
fn files_are_short_enough_to_read() {
    for path in all_sources() {
        let lines = read(&path).lines().count();
        assert!(lines <= FILE_LINES, "{} has {lines} lines", path.display());
    }
}

/// No function over 70 lines: from its `fn` line to the brace that closes it.
#[test]
fn functions_are_short_enough_to_read() {
    for path in all_sources() {
        let text = read(&path);
        let lines: Vec<&str> = text.lines().collect();
        for (start, line) in lines.iter().enumerate() {
            if !is_function(line) {
                continue;
            }
            let indent = " ".repeat(line.len() - line.trim_start().len());
            let closes = |l: &str| l.strip_prefix(&indent) == Some("}");
            let declares = |l: &str| {
                let rest = l.strip_prefix(&indent).unwrap_or(" ");
                !rest.starts_with(' ') && rest.ends_with(';')
            };
            let end = lines[start..].iter().position(|l| closes(l) || declares(l));
            let end = end.unwrap_or_else(|| panic!("{}:{}: no end", path.display(), start + 1));
            assert!(end < FUNCTION_LINES, "{}:{} has {end} lines", path.display(), start + 1);
        }
    }
}

/// Whether a line begins a function whose body, if it has one, ends on another line.
fn is_function(line: &str) -> bool {
    let words = line
        .split_whitespace()
        .take_while(|w| ["const", "unsafe", "async", "pub"].contains(w) || w.starts_with("pub("));
    let skipped = words.count();
    let is_fn = line.split_whitespace().nth(skipped) == Some("fn");
    is_fn && !line.ends_with(';') && !line.ends_with('}')
}

/// `unsafe` stands only below a module named kernels, sys or cuda, and in test allocators.
#[test]
fn unsafe_stands_where_it_may() {
    for path in all_sources() {
        let inner = path.strip_prefix(root()).expect("below the root");
        let shown = inner.display().to_string();
        let may = ["kernels", "sys", "cuda", "sys.rs", "tests", "benches"];
        let allowed = inner.iter().any(|part| may.iter().any(|m| part == std::ffi::OsStr::new(m)));
        let uses = read(&path).lines().any(|l| {
            let code = l.split("//").next().unwrap_or_default();
            code.contains("unsafe {")
                || code.contains("unsafe fn ")
                || code.contains("unsafe impl ")
        });
        assert!(allowed || !uses || shown.ends_with("tidy.rs"), "{shown} uses unsafe");
    }
}
