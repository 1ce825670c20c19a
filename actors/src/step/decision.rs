//! The decision on a step: commit or skip, and every scalar that the update needs.
//!
//! A pure function of the records in chunk order and the leaves' losses in leaf order, so whoever
//! computes it again gets the same bits.

use super::Record;
use planaria_base::{ChunkId, Step};
use planaria_models::block::LossStats;

/// Why a step changes no parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Skip {
    /// A gradient of this chunk was not finite or did not fit the grid.
    Overflow(ChunkId),
    /// A gradient of this chunk was not finite, and the loss scale shrinks.
    NotFinite(ChunkId),
    /// No position of the whole batch had a label.
    NoLabels,
}

/// Whether a step changes the parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Apply the update.
    Commit,
    /// Advance the data, not the optimizer.
    Skip(Skip),
}

/// What everybody applies.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Decision {
    /// The step decided.
    pub step: Step,
    /// Commit or skip.
    pub verdict: Verdict,
    /// Updates applied once this one is: Adam's `t`.
    pub updates: u64,
    /// What the reduced gradient is multiplied by: 1 / (labels · leaf factor), and the clip factor.
    pub gradient_factor: f32,
    /// L2 norm of the mean gradient, before clipping.
    pub gradient_norm: f64,
    /// Learning rate of this update.
    pub learning_rate: f64,
    /// Mean loss over the batch's labels, in nats.
    pub loss: f64,
    /// Labels in the batch.
    pub labels: u64,
}

impl Decision {
    /// Whether the parameters change.
    #[must_use]
    pub fn is_commit(&self) -> bool {
        self.verdict == Verdict::Commit
    }
}

/// The run's constants that a decision needs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct DecisionRule {
    /// Largest gradient norm; 0 switches clipping off.
    pub clip: f64,
    /// The power of two that a leaf's loss was multiplied by.
    pub leaf_factor: f64,
    /// Whether there is a loss scale that shrinks.
    pub dynamic_scale: bool,
}

/// What is known when the step is decided.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    /// The step.
    pub step: Step,
    /// Updates applied so far.
    pub updates: u64,
    /// One record per chunk, in chunk order.
    pub records: &'a [Record],
    /// One per leaf, in leaf order.
    pub leaves: &'a [LossStats],
    /// Learning rate if this update is applied.
    pub learning_rate: f64,
}

/// Decides.
///
/// Clipping is PyTorch's `clip_grad_norm_`: the factor is `min(1, clip / (norm + 1e-6))`.
#[must_use]
pub fn decide(rule: DecisionRule, evidence: Evidence<'_>) -> Decision {
    let labels: u64 = evidence.leaves.iter().map(|l| l.labels).sum();
    let loss_sum: f64 = evidence.leaves.iter().map(|l| l.loss_sum).sum();
    let mean = 1.0 / (labels.max(1) as f64 * rule.leaf_factor);
    let sum_squares: f64 = evidence.records.iter().map(|r| r.sum_squares).sum();
    let norm = sum_squares.sqrt() * mean;
    let clip = if rule.clip > 0.0 { (rule.clip / (norm + 1e-6)).min(1.0) } else { 1.0 };
    let verdict = verdict(rule, evidence.records, labels);
    Decision {
        step: evidence.step,
        verdict,
        updates: evidence.updates + u64::from(verdict == Verdict::Commit),
        gradient_factor: (mean * clip) as f32,
        gradient_norm: norm,
        learning_rate: evidence.learning_rate,
        loss: loss_sum / labels.max(1) as f64,
        labels,
    }
}

fn verdict(rule: DecisionRule, records: &[Record], labels: u64) -> Verdict {
    if labels == 0 {
        return Verdict::Skip(Skip::NoLabels);
    }
    let shrinks = |r: &&Record| rule.dynamic_scale && r.not_finite;
    if let Some(record) = records.iter().find(shrinks) {
        return Verdict::Skip(Skip::NotFinite(record.chunk));
    }
    match records.iter().find(|r| r.overflow || !r.sum_squares.is_finite()) {
        Some(record) => Verdict::Skip(Skip::Overflow(record.chunk)),
        None => Verdict::Commit,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(chunk: u32, sum_squares: f64) -> Record {
        Record {
            chunk: ChunkId(chunk),
            sum_squares,
            overflow: false,
            not_finite: false,
            exactly_once: true,
        }
    }

    fn evidence<'a>(records: &'a [Record], leaves: &'a [LossStats]) -> Evidence<'a> {
        Evidence { step: Step(1), updates: 0, records, leaves, learning_rate: 0.1 }
    }

    /// The norm is that of the mean over the labels of the whole batch, not a mean of means.
    #[test]
    fn the_norm_is_over_the_global_batch() {
        let leaves =
            [LossStats { loss_sum: 5.0, labels: 5 }, LossStats { loss_sum: 100.0, labels: 50 }];
        let rule = DecisionRule { clip: 0.0, leaf_factor: 0.5, dynamic_scale: false };
        let d = decide(rule, evidence(&[record(0, 9.0), record(1, 16.0)], &leaves));
        assert_eq!(d.labels, 55);
        assert!((d.loss - 105.0 / 55.0).abs() < 1e-15);
        assert!((d.gradient_norm - 5.0 / 27.5).abs() < 1e-15);
        assert_eq!(d.gradient_factor, (1.0 / 27.5) as f32);
    }

    /// Clipping to 0.1 makes the applied gradient's norm 0.1 (within the 1e-6 of the formula).
    #[test]
    fn clipping_bounds_the_norm() {
        let leaves = [LossStats { loss_sum: 1.0, labels: 1 }];
        let rule = DecisionRule { clip: 0.1, leaf_factor: 1.0, dynamic_scale: false };
        let d = decide(rule, evidence(&[record(0, 25.0)], &leaves));
        assert!((f64::from(d.gradient_factor) * 5.0 - 0.1).abs() < 1e-6);
        assert!((d.gradient_norm - 5.0).abs() < 1e-12, "the norm shown is the one before clipping");
    }

    /// Overflow and an empty batch are skips; neither counts as an update.
    #[test]
    fn overflow_and_no_labels_skip() {
        let leaves = [LossStats { loss_sum: 1.0, labels: 1 }];
        let rule = DecisionRule { clip: 1.0, leaf_factor: 1.0, dynamic_scale: false };
        let bad = [record(0, 1.0), Record { overflow: true, ..record(1, 1.0) }];
        let d = decide(rule, evidence(&bad, &leaves));
        assert_eq!(d.verdict, Verdict::Skip(Skip::Overflow(ChunkId(1))));
        assert_eq!(d.updates, 0);
        let scaled = DecisionRule { dynamic_scale: true, ..rule };
        let inf = [record(0, 1.0), Record { not_finite: true, ..bad[1] }];
        for (rule, records, skip) in [
            (scaled, &inf, Skip::NotFinite(ChunkId(1))),
            (scaled, &bad, Skip::Overflow(ChunkId(1))),
            (rule, &inf, Skip::Overflow(ChunkId(1))),
        ] {
            assert_eq!(decide(rule, evidence(records, &leaves)).verdict, Verdict::Skip(skip));
        }
        let none = [LossStats { loss_sum: 0.0, labels: 0 }];
        let d = decide(rule, evidence(&[record(0, 0.0)], &none));
        assert_eq!(d.verdict, Verdict::Skip(Skip::NoLabels));
        assert!(d.loss == 0.0 && d.gradient_factor.is_finite());
    }
}
