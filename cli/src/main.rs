//! The planaria command line: one file a verb.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "this is the command line")]

mod cost;
mod data;
mod folder;
mod interrupt;
mod machine;
mod output;
mod plan;
mod progress;
mod records;
mod ring;
mod save;
mod verbs;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Elastic training of large models: cut the ring anywhere, and the run ends with the same weights.
#[derive(Parser)]
#[command(
    version,
    about,
    after_help = "Exit codes: 0 done · 1 failed · 2 wrong usage or configuration · 3 stopped by Ctrl-C, state saved"
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    /// What is logged to stderr: off, error, warn, info, debug, or a filter like planaria_actors=debug
    #[arg(long, global = true, default_value = "warn")]
    log: String,
}

#[derive(Subcommand)]
enum Verb {
    /// Train a model as a configuration says
    Train(verbs::train::Train),
    /// Join a run that is under way
    Node(verbs::node::Node),
    /// Show the nodes of a ring and how far its run is
    Status(verbs::ask::Status),
    /// Ask a node to hand its chunks over and leave
    Leave(verbs::ask::Leave),
    /// Stop a run at the end of its step, with a checkpoint
    Stop(verbs::ask::StopRun),
    /// Change a number of a run under way
    Set(verbs::ask::Set),
    /// Continue a prompt with a trained model
    Generate(verbs::generate::Generate),
    /// Talk with a model
    Chat(verbs::chat::Chat),
    /// Write a model as a Hugging Face folder
    Export(verbs::export::Export),
    /// Show what a checkpoint, a folder or a file holds
    Inspect(verbs::inspect::Inspect),
    /// Check or explain a configuration
    Config(verbs::config::Config),
    /// Predict memory, traffic and time of a configuration, for every layout
    Plan(verbs::plan::Plan),
    /// Turn text into token files
    Data(verbs::data::Data),
    /// Measure this machine, or training steps on it
    Bench(verbs::bench::Bench),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::new(&arguments.log))
        .init();
    let outcome = match arguments.verb {
        Verb::Train(verb) => verb.run(),
        Verb::Node(verb) => verb.run(),
        Verb::Status(verb) => verb.run(),
        Verb::Leave(verb) => verb.run(),
        Verb::Stop(verb) => verb.run(),
        Verb::Set(verb) => verb.run(),
        Verb::Generate(verb) => verb.run(),
        Verb::Chat(verb) => verb.run(),
        Verb::Export(verb) => verb.run(),
        Verb::Inspect(verb) => verb.run(),
        Verb::Config(verb) => verb.run(),
        Verb::Plan(verb) => verb.run(),
        Verb::Data(verb) => verb.run(),
        Verb::Bench(verb) => verb.run(),
    };
    output::exit_code(outcome)
}
