//! Which sample is whose: a pure function of (seed, step, leaf, row), computed by anybody.

use planaria_base::permutation::Permutation;
use planaria_base::{Leaf, Step};

/// Samples of fixed length, by index. Reading one never changes another.
pub trait LeafSource: Send + Sync {
    /// Samples of one epoch.
    fn samples(&self) -> u64;

    /// Fills one sequence.
    ///
    /// # Errors
    /// If the sample cannot be read: the run stops, since another sample in its place would be
    /// another run.
    fn load(&self, sample: u64, tokens: &mut [u32], labels: &mut [i32]) -> Result<(), String>;
}

/// The order of samples: a keyed permutation of each epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampleOrder {
    /// The run's seed.
    pub seed: u64,
    /// Samples of one epoch.
    pub samples: u64,
    /// Leaves of a step.
    pub leaves: u32,
    /// Sequences of a leaf.
    pub sequences: u32,
}

impl SampleOrder {
    /// The sample at row `row` of `leaf` of `step` (the first step is 1).
    ///
    /// Rows are numbered on through all steps; row `i` is sample `i mod samples` of epoch
    /// `i / samples`, so every epoch holds every sample once, also across a step that spans two.
    #[must_use]
    pub fn sample(&self, step: Step, leaf: Leaf, row: u32) -> u64 {
        let rows_per_step = u64::from(self.leaves) * u64::from(self.sequences);
        let in_step = u64::from(leaf.0) * u64::from(self.sequences) + u64::from(row);
        let index = (step.0 - 1) * rows_per_step + in_step;
        let epoch = index / self.samples;
        Permutation::new(self.seed, epoch, self.samples).at(index % self.samples)
    }

    /// The epoch that a step begins in.
    #[must_use]
    pub fn epoch(&self, step: Step) -> u64 {
        (step.0 - 1) * u64::from(self.leaves) * u64::from(self.sequences) / self.samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// 37 samples, 4 leaves of 2: three epochs hold each sample three times, in different orders,
    /// though steps and epochs do not divide.
    #[test]
    fn every_epoch_covers_every_sample_once() {
        let order = SampleOrder { seed: 5, samples: 37, leaves: 4, sequences: 2 };
        let rows = (1..).flat_map(|step| {
            (0..4).flat_map(move |leaf| (0..2).map(move |row| (Step(step), Leaf(leaf), row)))
        });
        let drawn: Vec<u64> =
            rows.take(3 * 37).map(|(step, leaf, row)| order.sample(step, leaf, row)).collect();
        let mut counts = BTreeMap::new();
        drawn.iter().for_each(|&s| *counts.entry(s).or_insert(0) += 1);
        assert_eq!(counts.len(), 37);
        assert!(counts.values().all(|&n| n == 3));
        assert_ne!(drawn[..37], drawn[37..74]);
    }
}
