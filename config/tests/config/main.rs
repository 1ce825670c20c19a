//! Configurations as a user gives them: what is accepted, what is refused, and in which words.

mod examples;
mod fuzz;
mod optimizers;
mod snapshots;
mod sys;
mod table;

use planaria_config::{Configuration, Need, Options, read};

/// Reads a text as `planaria config check run.json` would.
fn check(text: &str, nodes: Option<u64>) -> Configuration {
    let file = "run.json".to_owned();
    read(text.as_bytes(), &Options { file, nodes, need: Need::Check, ..Options::default() })
}
