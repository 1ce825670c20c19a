//! What a person sees of a training run.

use crate::machine;
use crate::output;
use indicatif::{ProgressBar, ProgressStyle};
use planaria_base::units::format_bytes;
use std::io::IsTerminal;

/// A progress bar on a terminal, plain lines elsewhere.
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    every: u64,
    steps: u64,
    quiet: bool,
}

/// What is shown of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    /// The step.
    pub(crate) step: u64,
    /// Its loss.
    pub(crate) loss: f64,
    /// The last validation loss.
    pub(crate) validation: Option<f64>,
    /// Tokens a second, lately.
    pub(crate) tokens_per_s: f64,
    /// Share of the machine's measured peak.
    pub(crate) peak_share: f64,
    /// Seconds until the end, by the rate so far.
    pub(crate) eta_s: f64,
}

impl Progress {
    /// Of a run of `steps` steps, from `done` on; lines every `every` steps. `quiet` shows nothing.
    pub(crate) fn new(steps: u64, done: u64, every: u64, quiet: bool) -> Progress {
        let terminal = std::io::stderr().is_terminal() && !quiet;
        let bar = terminal.then(|| {
            let bar = ProgressBar::new(steps).with_position(done);
            let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        });
        Progress { bar, every: every.max(1), steps, quiet }
    }

    /// A step is complete.
    pub(crate) fn step(&self, shown: &Shown) {
        if let Some(bar) = &self.bar {
            bar.set_position(shown.step);
            bar.set_message(text(shown));
        } else if !self.quiet && (shown.step.is_multiple_of(self.every) || shown.step == self.steps)
        {
            output::note(&format!("step {:>6}/{} {}", shown.step, self.steps, text(shown)));
        }
    }

    /// A line between steps.
    pub(crate) fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.println(line),
            None if !self.quiet => output::note(line),
            None => {}
        }
    }

    /// The end.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish();
        }
    }
}

fn text(s: &Shown) -> String {
    let validation = s.validation.map_or(String::new(), |v| format!(" · val {v:.4}"));
    let memory = format_bytes(machine::resident_bytes().0);
    format!(
        "loss {:.4}{validation} · {:.0} tok/s · {:.0} % of peak · {memory} · {} left",
        s.loss,
        s.tokens_per_s,
        100.0 * s.peak_share,
        duration(s.eta_s)
    )
}

/// `1 h 02 m`, `3 m 05 s`, `42 s`.
pub(crate) fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} m {:02} s", s / 60, s % 60),
        _ => format!("{} h {:02} m", s / 3600, s % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        assert_eq!(duration(41.6), "42 s");
        assert_eq!(duration(185.0), "3 m 05 s");
        assert_eq!(duration(3725.0), "1 h 02 m");
    }
}
