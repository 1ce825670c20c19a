//! Decision(s): what a step does, a pure function of its records in chunk order.

use super::log::{CommandLog, LogMark};
use super::record::{Flags, Record};
use super::shared::Shared;
use planaria_base::{ChunkId, NodeId, Step};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The learning rate by number of committed updates; implemented over the run's schedule.
pub trait Schedule: Send + Sync {
    /// The rate of update number `update`, counted from 1.
    fn rate(&self, update: u64) -> f64;
}

impl<F: Fn(u64) -> f64 + Send + Sync> Schedule for F {
    fn rate(&self, update: u64) -> f64 {
        self(update)
    }
}

/// The numbers of the run spec that decisions depend on.
#[derive(Clone)]
pub struct StepRule {
    /// Learning rate by update.
    pub schedule: Arc<dyn Schedule>,
    /// Clip the global gradient norm to this.
    pub clip: Option<f64>,
    /// The power of two that a leaf's loss is multiplied by before backward.
    pub leaf_factor: f64,
    /// The loss scale of the first step; 1 when there is none.
    pub initial_scale: f32,
    /// Good steps before the scale doubles; 0 keeps it fixed.
    pub scale_window: u32,
    /// The smallest scale.
    pub min_scale: f32,
    /// Skips running that stop the run.
    pub skips_that_stop: u32,
}

/// What a step does. Scalars travel as bits.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// The step.
    pub step: Step,
    /// Whether the update is applied; else the step is a canonical skip.
    pub commit: bool,
    /// The global gradient norm after the division by labels, an f64.
    pub norm: u64,
    /// What the reduced gradient is multiplied by, an f32: 1 / (labels · leaf factor · loss scale),
    /// and the clip factor.
    pub factor: u32,
    /// The learning rate, an f64.
    pub rate: u64,
    /// The loss scale of the next step, an f32.
    pub scale: u32,
    /// Good steps since the scale last changed.
    pub good_steps: u32,
    /// Skips in a row up to this step.
    pub skips: u32,
    /// Updates applied up to this step: Adam's t.
    pub updates: u64,
    /// Labels of the step.
    pub labels: u64,
    /// The step's loss, an exact sum on the loss grid.
    pub loss: i64,
    /// The commands taken so far.
    pub log: LogMark,
    /// The run ends with this step, before the spec's last: a person asked for it.
    pub ends: bool,
    /// Chunks with a flag, for the message when skips stop the run; eight at most.
    pub flagged: Vec<ChunkId>,
    /// Weights for the next lots. The only part that does not touch the numbers.
    pub weights: Shared<Vec<(NodeId, u32)>>,
}

impl Decision {
    /// Chunks named in [`Decision::flagged`] at most.
    pub const FLAGGED: usize = 8;

    /// Whether two decisions do the same to the numbers.
    #[must_use]
    pub fn same_numbers(&self, other: &Decision) -> bool {
        let with_weights =
            Decision { weights: self.weights.clone(), ends: self.ends, ..other.clone() };
        *self == with_weights
    }
}

/// Everything a decision is made from.
pub struct Inputs<'a> {
    /// The run spec's numbers.
    pub rule: &'a StepRule,
    /// The decision before, if this is not the first step.
    pub previous: Option<&'a Decision>,
    /// One record per chunk, in chunk order.
    pub records: &'a [Record],
    /// The commands.
    pub log: &'a CommandLog,
    /// Weights for the next lots.
    pub weights: Vec<(NodeId, u32)>,
}

/// Decides `step`.
#[must_use]
pub fn decide(step: Step, inputs: Inputs<'_>) -> Decision {
    let Inputs { rule, previous, records, log, weights } = inputs;
    let sum_of_squares: f64 = records.iter().map(|r| f64::from_bits(r.sum_of_squares)).sum();
    let flags = records.iter().fold(Flags::default(), |f, r| f.or(r.flags));
    let labels: u64 = records.iter().map(|r| r.labels).sum();
    let scale = previous.map_or(rule.initial_scale, |d| f32::from_bits(d.scale));
    let mean = 1.0 / (labels.max(1) as f64 * rule.leaf_factor * f64::from(scale));
    let norm = sum_of_squares.sqrt() * mean;
    let commit = !flags.any() && norm.is_finite() && labels > 0;
    let updates = previous.map_or(0, |d| d.updates) + u64::from(commit);
    let (scale, good_steps) = next_scale(rule, previous, scale, flags);
    let named = records.iter().enumerate().filter(|(_, r)| r.flags.any());
    Decision {
        step,
        commit,
        norm: norm.to_bits(),
        factor: ((mean * clip_factor(rule.clip, norm)) as f32).to_bits(),
        rate: (rule.schedule.rate(updates.max(1)) * f64::from(log.rate_factor(step))).to_bits(),
        scale: scale.to_bits(),
        good_steps,
        skips: if commit { 0 } else { previous.map_or(0, |d| d.skips) + 1 },
        updates,
        labels,
        loss: records.iter().fold(0, |sum, r| sum.wrapping_add(r.loss)),
        log: log.mark(step),
        ends: false,
        flagged: named.map(|(i, _)| ChunkId(i as u32)).take(Decision::FLAGGED).collect(),
        weights: Shared::new(weights),
    }
}

/// PyTorch's `clip_grad_norm_`: `min(1, clip / (norm + 1e-6))`.
fn clip_factor(clip: Option<f64>, norm: f64) -> f64 {
    clip.map_or(1.0, |limit| (limit / (norm + 1e-6)).min(1.0))
}

/// Halves on elements that are not finite, doubles after a window of good steps; a value off the
/// grid changes nothing.
fn next_scale(
    rule: &StepRule,
    previous: Option<&Decision>,
    scale: f32,
    flags: Flags,
) -> (f32, u32) {
    let good = previous.map_or(0, |d| d.good_steps);
    if rule.scale_window == 0 {
        return (scale, 0);
    }
    if flags.has(Flags::NOT_FINITE) {
        return ((scale * 0.5).max(rule.min_scale), 0);
    }
    if flags.any() {
        return (scale, good);
    }
    if good + 1 >= rule.scale_window { (scale * 2.0, 0) } else { (scale, good + 1) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_base::Digest;

    fn rule() -> StepRule {
        StepRule {
            schedule: Arc::new(|update: u64| update as f64),
            clip: Some(1.0 / 1024.0),
            leaf_factor: 1.0,
            initial_scale: 1024.0,
            scale_window: 2,
            min_scale: 1.0,
            skips_that_stop: 8,
        }
    }

    fn record(square: f64, flags: Flags) -> Record {
        Record {
            step: Step(1),
            digest: Digest::default(),
            flags,
            sum_of_squares: square.to_bits(),
            labels: 2,
            loss: 0,
        }
    }

    fn run(previous: Option<&Decision>, records: &[Record]) -> Decision {
        let log = CommandLog::default();
        let step = Step(previous.map_or(0, |d| d.step.0) + 1);
        decide(step, Inputs { rule: &rule(), previous, records, log: &log, weights: Vec::new() })
    }

    /// The norm is over all chunks and divided by the labels; clipping brings it to the limit.
    #[test]
    fn norms_combine_and_clip() {
        let d = run(None, &[record(36.0, Flags::default()), record(64.0, Flags::default())]);
        assert_eq!(f64::from_bits(d.norm), 2.5 / 1024.0);
        let clipped = f32::from_bits(d.factor) * 10.0;
        assert!((clipped - 1.0 / 1024.0).abs() < 1e-6, "{clipped}");
        assert!(d.commit && d.updates == 1 && d.labels == 4);
    }

    /// A skip advances neither Adam's t nor the schedule; only elements that are not finite move
    /// the loss scale.
    #[test]
    fn skips_hold_the_schedule() {
        let good = run(None, &[record(1.0, Flags::default())]);
        let inf = run(Some(&good), &[record(1.0, Flags::NOT_FINITE)]);
        assert!(!inf.commit && inf.skips == 1 && inf.updates == 1 && inf.rate == good.rate);
        assert_eq!(f32::from_bits(inf.scale), 512.0);
        let grid = run(Some(&inf), &[record(1.0, Flags::OFF_GRID)]);
        assert_eq!((f32::from_bits(grid.scale), grid.skips), (512.0, 2));
        assert_eq!(grid.flagged, [ChunkId(0)]);
    }

    /// The scale doubles after a window of good steps.
    #[test]
    fn the_scale_grows() {
        let one = run(None, &[record(1.0, Flags::default())]);
        let two = run(Some(&one), &[record(1.0, Flags::default())]);
        assert_eq!(f32::from_bits(two.scale), 2048.0);
    }
}
