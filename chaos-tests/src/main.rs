//! `sim`: replay one seed, or sweep many.
#![allow(clippy::print_stdout, reason = "a command-line tool")]

use anyhow::{Context, bail};
use planaria_chaos_tests::swarm::run_seed;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().map(String::as_str) != Some("sim") {
        bail!("usage: sim [--seed N] [--seeds COUNT] [--verbose]");
    }
    let value = |name: &str| -> anyhow::Result<Option<u64>> {
        let Some(at) = arguments.iter().position(|a| a == name) else { return Ok(None) };
        let text = arguments.get(at + 1).with_context(|| format!("{name} needs a number"))?;
        Ok(Some(text.parse().with_context(|| format!("{name} needs a number, not {text}"))?))
    };
    let first = value("--seed")?;
    let count = value("--seeds")?.unwrap_or(if first.is_some() { 1 } else { 1000 });
    let verbose = arguments.iter().any(|a| a == "--verbose");
    sweep(first.unwrap_or(0), count, verbose)
}

fn sweep(first: u64, count: u64, verbose: bool) -> anyhow::Result<()> {
    let (mut failed, mut events, mut faults, mut time) = (0u64, 0, 0, 0);
    for seed in first..first + count {
        let outcome = run_seed(seed, &[], verbose);
        outcome.lines.iter().for_each(|l| println!("{l}"));
        events += outcome.events;
        faults += outcome.faults;
        time += outcome.time;
        if let Some(v) = outcome.violation {
            failed += 1;
            println!("seed {seed}: {} at {} ms: {}", v.invariant, v.at / 1000, v.what);
            println!(
                "  replay: cargo run -p planaria-chaos-tests --release -- sim --seed {seed} --verbose"
            );
        }
    }
    println!(
        "{count} seeds, {failed} failed, {faults} faults, {events} events, {} s of virtual time",
        time / 1_000_000
    );
    if failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}
