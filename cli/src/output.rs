//! What the binary says and how it ends.

use std::io::Write;
use std::process::ExitCode;

/// How a verb ended well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Done {
    /// Everything was done.
    All,
    /// Ctrl-C: stopped at a step boundary, state saved.
    Interrupted,
}

/// A failure of usage or configuration: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// The process's exit code; a failure is one line on stderr.
pub(crate) fn exit_code(outcome: anyhow::Result<Done>) -> ExitCode {
    match outcome {
        Ok(Done::All) => ExitCode::SUCCESS,
        Ok(Done::Interrupted) => ExitCode::from(3),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
        }
    }
}

/// Writes a line to stderr; where nobody reads it, the verb goes on.
pub(crate) fn note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", text.trim_end_matches('\n'));
}

/// Writes a line to stdout; a closed pipe ends the process quietly.
pub(crate) fn line(text: &str) {
    if writeln!(std::io::stdout(), "{text}").is_err() {
        std::process::exit(0);
    }
}

/// The last line of a verb under `--json`.
pub(crate) fn json(value: &serde_json::Value) {
    line(&value.to_string());
}
