//! `planaria bench plan`: what the planner predicts beside what processes take.

use crate::output;
use anyhow::Context;
use clap::Args;
use planaria_base::units::format_bytes;
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// Sizes, precisions, recomputation, several leaves, optimizers.
const CASES: &[&[&str]] = &[
    &["tiny"],
    &["tiny", "--dtype", "bf16"],
    &["tiny", "--dtype", "f16", "--recompute"],
    &["tiny", "--recompute"],
    &["tiny", "--leaves", "4"],
    &["tiny", "--leaves", "4", "--recompute", "--optimizer", "lion"],
    &["small"],
    &["small", "--dtype", "bf16"],
    &["small", "--dtype", "f16", "--recompute"],
    &["small", "--leaves", "2", "--optimizer", "muon"],
    &["small", "--dtype", "bf16", "--leaves", "3", "--recompute", "--optimizer", "lamb"],
    &["124m", "--dtype", "bf16"],
    &["124m", "--recompute", "--optimizer", "sgd"],
];

/// Prediction and measurement may differ by so much.
const BOUND: f64 = 0.1;

/// Plans beside what processes really take.
#[derive(Args)]
pub(crate) struct BenchPlan {
    /// Only the small configurations: seconds instead of minutes
    #[arg(long)]
    quick: bool,
}

/// One configuration, planned and measured in a process of its own.
struct Row {
    name: String,
    found: Value,
}

impl Row {
    fn measure(case: &[&str]) -> anyhow::Result<Row> {
        let program = std::env::current_exe()?;
        let size = [&["bench", "step", "--json", "--steps", "1", "--size"], case].concat();
        let child = Command::new(program).args(&size).stderr(Stdio::inherit()).output()?;
        let text = String::from_utf8_lossy(&child.stdout);
        let name = case.join(" ").replace("--", "");
        let last = text.lines().last().unwrap_or_default();
        let found = serde_json::from_str(last).with_context(|| format!("{name}: {text}"))?;
        Ok(Row { name, found })
    }

    fn number(&self, key: &str) -> f64 {
        self.found[key].as_f64().unwrap_or(0.0)
    }

    /// Planned bytes less measured ones, over the measured.
    fn error(&self) -> f64 {
        self.number("planned_bytes") / self.number("peak_rss_bytes") - 1.0
    }

    fn line(&self) -> String {
        let bytes = |key| format_bytes(self.number(key) as u64);
        format!(
            "{:<56} {:>10} {:>10} {:>+6.1} % {:>8.3} s {:>8.3} s",
            self.name,
            bytes("planned_bytes"),
            bytes("peak_rss_bytes"),
            100.0 * self.error(),
            self.number("planned_step_s"),
            self.number("step_s"),
        )
    }
}

impl BenchPlan {
    /// Runs every configuration and prints the table.
    ///
    /// # Errors
    /// If a process fails, or a prediction is off by more than the bound.
    pub(super) fn run(&self, json: bool) -> anyhow::Result<()> {
        let cases = CASES.iter().filter(|c| !self.quick || c[0] == "tiny");
        let head = ("configuration", "planned", "resident", "off", "planned", "step");
        if !json {
            let (a, b, c, d, e, f) = head;
            output::line(&format!("{a:<56} {b:>10} {c:>10} {d:>8} {e:>10} {f:>10}"));
        }
        let mut rows = Vec::new();
        for case in cases {
            let row = Row::measure(case)?;
            if !json {
                output::line(&row.line());
            }
            rows.push(row);
        }
        let worst = rows.iter().map(|r| r.error().abs()).fold(0.0, f64::max);
        if json {
            let all: Vec<Value> = rows
                .iter()
                .map(|r| json!({ "name": r.name, "error": r.error(), "found": r.found }))
                .collect();
            output::json(&json!({ "worst": worst, "rows": all }));
        }
        anyhow::ensure!(worst <= BOUND, "a plan is off by {:.1} %", 100.0 * worst);
        Ok(())
    }
}
