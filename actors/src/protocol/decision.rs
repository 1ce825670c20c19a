//! Decision(s): what a step does, a pure function of its records in chunk order.

use super::log::{CommandLog, LogMark};
use super::record::{Flags, Record};
use super::shared::Shared;
use planaria_base::{ChunkId, NodeId, Step};
pub use planaria_models::loss_scale::{DynamicScale, LossScaleSpec, LossScaler, ScaleState};
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
    /// The power of two that a leaf's loss is multiplied by before backward, without the loss scale,
    /// which is taken out before the sum.
    pub leaf_factor: f64,
    /// The loss scaler before the first step, in fp16.
    pub loss_scale: Option<LossScaler>,
    /// Skips running that stop the run; those that a smaller loss scale may mend do not count.
    pub skips_that_stop: u32,
}

impl StepRule {
    /// The loss scale of the step after `previous`; 1 where there is none.
    #[must_use]
    pub fn scale(&self, previous: Option<&Decision>) -> f32 {
        let first = self.loss_scale.as_ref().map(LossScaler::state);
        let state = previous.map_or(first, |d| d.loss_scale);
        state.map_or(1.0, |s| s.scale().factor)
    }
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
    /// What the reduced gradient is multiplied by, an f32: 1 / (labels · leaf factor), and the clip
    /// factor.
    pub factor: u32,
    /// The learning rate, an f64.
    pub rate: u64,
    /// The loss scaler's state for the next step, in fp16.
    pub loss_scale: Option<ScaleState>,
    /// Elements were not finite at the smallest loss scale: the run stops.
    pub scale_exhausted: bool,
    /// Skips in a row up to this step, but for those that made the loss scale smaller.
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
    let mean = 1.0 / (labels.max(1) as f64 * rule.leaf_factor);
    let norm = sum_of_squares.sqrt() * mean;
    let commit = !flags.any() && norm.is_finite() && labels > 0;
    let updates = previous.map_or(0, |d| d.updates) + u64::from(commit);
    let (loss_scale, scale_exhausted) = next_scale(rule, previous, flags);
    let skips = previous.map_or(0, |d| d.skips);
    let mended = flags == Flags::NOT_FINITE
        && !scale_exhausted
        && rule.loss_scale.as_ref().is_some_and(LossScaler::is_dynamic);
    let named = records.iter().enumerate().filter(|(_, r)| r.flags.any());
    Decision {
        step,
        commit,
        norm: norm.to_bits(),
        factor: ((mean * clip_factor(rule.clip, norm)) as f32).to_bits(),
        rate: (rule.schedule.rate(updates.max(1)) * f64::from(log.rate_factor(step))).to_bits(),
        loss_scale,
        scale_exhausted,
        skips: if commit { 0 } else { skips + u32::from(!mended) },
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

/// DeepSpeed's rule, by whether an element was not finite; a value off the grid is no business of the
/// scaler, which does not see the step. The state, and whether it has nowhere to go.
fn next_scale(
    rule: &StepRule,
    previous: Option<&Decision>,
    flags: Flags,
) -> (Option<ScaleState>, bool) {
    let Some(first) = rule.loss_scale else { return (None, false) };
    let scaler = previous.and_then(|d| d.loss_scale).map_or(first, |state| first.at(state));
    let overflowed = flags.has(Flags::NOT_FINITE);
    if flags.any() && !overflowed {
        return (Some(scaler.state()), false);
    }
    match scaler.after(overflowed) {
        Ok(next) => (Some(next.state()), false),
        Err(_) => (Some(scaler.state()), true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_base::Digest;

    fn rule() -> StepRule {
        StepRule {
            schedule: Arc::new(|update: u64| update as f64),
            clip: Some(1.0),
            leaf_factor: 1.0,
            loss_scale: Some(LossScaler::new(LossScaleSpec::Dynamic(SCALE)).expect("a good spec")),
            skips_that_stop: 8,
        }
    }

    const SCALE: DynamicScale = DynamicScale {
        initial_scale_power: 10,
        loss_scale_window: 2,
        hysteresis: 2,
        consecutive_hysteresis: false,
        min_loss_scale: 256.0,
    };

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
        assert_eq!(f64::from_bits(d.norm), 2.5);
        let clipped = f32::from_bits(d.factor) * 10.0;
        assert!((clipped - 1.0).abs() < 1e-6, "{clipped}");
        assert!(d.commit && d.updates == 1 && d.labels == 4);
    }

    fn run_all(flags: &[Flags]) -> Vec<Decision> {
        let mut all: Vec<Decision> = Vec::new();
        for &f in flags {
            all.push(run(all.last(), &[record(1.0, f)]));
        }
        all
    }

    const GOOD: Flags = Flags(0);
    const INF: Flags = Flags::NOT_FINITE;

    /// A skip advances neither Adam's t nor the schedule; only elements that are not finite move
    /// the loss scale, and only those that it does not mend count towards the stop.
    #[test]
    fn skips_hold_the_schedule() {
        let all = run_all(&[GOOD, INF, INF, Flags::OFF_GRID, Flags::OFF_GRID.or(INF)]);
        let scales: Vec<f32> = (0..all.len()).map(|i| rule().scale(all.get(i))).collect();
        assert_eq!(scales, [1024.0, 1024.0, 512.0, 512.0, 256.0]);
        for skip in &all[1..] {
            assert!(!skip.commit && skip.updates == 1 && skip.rate == all[0].rate);
        }
        assert_eq!(all.iter().map(|d| d.skips).collect::<Vec<_>>(), [0, 0, 0, 1, 2]);
        assert_eq!(all[3].flagged, [ChunkId(0)]);
        assert_eq!(all[3].loss_scale, all[2].loss_scale, "the scaler does not see the step");
    }

    /// The whole state of DeepSpeed's scaler travels: hysteresis, and the window since an overflow.
    #[test]
    fn the_scale_follows_deepspeed() {
        let all = run_all(&[INF, GOOD, GOOD, GOOD, INF, INF]);
        let scales: Vec<f32> = (0..all.len()).map(|i| rule().scale(all.get(i))).collect();
        assert_eq!(scales, [1024.0, 1024.0, 1024.0, 2048.0, 2048.0, 1024.0]);
        assert_eq!(rule().scale(None), 1024.0);
        let left = all[0].loss_scale.map(|s| s.hysteresis_left);
        assert_eq!(left, Some(1));
    }

    /// At the smallest scale the next overflow stops the run, and says so.
    #[test]
    fn an_exhausted_scale_is_told() {
        let all = run_all(&[INF; 4]);
        assert_eq!(
            all.iter().map(|d| d.scale_exhausted).collect::<Vec<_>>(),
            [false, false, false, true]
        );
        assert_eq!(all[3].skips, 1);
    }
}
