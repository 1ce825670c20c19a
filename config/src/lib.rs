//! DeepSpeed-compatible JSON to a [`RunPlan`]; the memory and time planner.
//!
//! ```text
//!  file ──json──> tree ──overrides──> tree ──check──> settings ──resolve──> RunPlan
//!                  (every value with its place)  │      (every value with its origin)
//!                                          schema: one table
//!  everything that is wrong goes into one Report, and all of it is told at once
//! ```
//!
//! It reads no file, no clock and no environment: bytes in, a [`Configuration`] out. It runs
//! nothing and knows no model, no kernel and no socket; what a model needs is handed to the planner
//! as numbers. It is deliberately not lenient: an unknown key is an error everywhere, and a key that
//! is known but not built is an error that says so.
//!
//! Read [`schema`] first (the table), then [`check`] (the table against a file), then the private
//! `resolve` (presets, `"auto"`, the batch equation, combinations), then [`plan`] (what the trainer
//! gets).

pub mod batch;
pub mod check;
pub mod diagnostics;
pub mod explain;
pub mod json;
mod json_schema;
mod overrides;
pub mod plan;
pub mod planner;
mod reference;
mod resolve;
pub mod schema;

pub use check::{Origin, Setting, Settings};
pub use diagnostics::{Diagnostic, Diagnostics, Report, Severity};
pub use json_schema::json_schema;
pub use plan::RunPlan;
pub use reference::markdown;

use json::Sources;

/// What a configuration is read for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Need {
    /// To train: model, data and steps must be there.
    #[default]
    Run,
    /// To check: a plain DeepSpeed file is fine.
    Check,
}

/// How to read a configuration.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The file's path, for messages and for the run's name.
    pub file: String,
    /// `path.to.key=value`, in order.
    pub overrides: Vec<String>,
    /// Nodes of the run, if the command line says it.
    pub nodes: Option<u64>,
    /// The width of the model that `init_from` names, if the caller has looked.
    pub width: Option<u64>,
    /// What it is read for.
    pub need: Need,
}

impl Options {
    /// The file's name without `.json`; for a `config.json`, its folder's name.
    pub(crate) fn run_name(&self) -> String {
        let mut parts = self.file.rsplit(['/', '\\']);
        let file = parts.next().unwrap_or("");
        let stem = file.strip_suffix(".json").unwrap_or(file);
        let folder = parts.next().filter(|f| !f.is_empty() && *f != "." && *f != "..");
        let name = if stem == "config" { folder.unwrap_or(stem) } else { stem };
        if name.is_empty() { "run".to_owned() } else { name.to_owned() }
    }
}

/// A configuration that was read.
#[derive(Clone, Debug)]
pub struct Configuration {
    /// Everything there is to say about it.
    pub report: Report,
    /// Every value and where it came from.
    pub settings: Settings,
    /// What to run; `None` if there are errors, or the file does not name a model, data and steps.
    pub plan: Option<RunPlan>,
}

/// Reads a configuration: parses, applies overrides, checks against the table, resolves.
///
/// # Cost
/// Time and memory linear in the file, whose size is limited ([`json::limits`]).
#[must_use]
pub fn read(bytes: &[u8], options: &Options) -> Configuration {
    let (mut sources, mut out) = (Sources::default(), Diagnostics::default());
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let valid = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = 1 + valid.iter().filter(|&&b| b == b'\n').count();
            let message = format!("byte {} (line {line}) is not UTF-8", error.valid_up_to());
            out.push(Diagnostic::error("encoding", "", message).fix("save the file as UTF-8"));
            ""
        }
    };
    let file = sources.add(options.file.as_str(), text);
    let tree = if out.has_errors() { None } else { json::parse(file, text, &mut out) };
    let (mut settings, mut plan) = (Settings::default(), None);
    if let Some(mut tree) = tree {
        overrides::apply(&mut tree, &options.overrides, &mut sources, &mut out);
        settings = check::check(tree, file, &mut out);
        if !settings.is_refused("") {
            plan = resolve::resolve(&mut settings, options, &mut out);
        }
    }
    out.sort();
    Configuration { report: Report { sources, diagnostics: out }, settings, plan }
}
