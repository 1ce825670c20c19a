//! The choice of the next token.

use thiserror::Error;

/// How the next token is chosen; the edges are in [`crate::generate`].
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sampling {
    /// Scores are divided by this; 0 is greedy.
    pub temperature: f64,
    /// Only the most likely so many; 0 is all.
    pub top_k: usize,
    /// Only the most likely, up to this probability; 1 is all.
    pub top_p: f64,
    /// Of the random draws; equal seeds give equal texts.
    pub seed: u64,
}

impl Default for Sampling {
    /// Every token, at temperature 1.
    fn default() -> Sampling {
        Sampling { temperature: 1.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// A setting that has no meaning.
#[derive(Debug, Error, PartialEq)]
pub enum SamplingError {
    /// Negative, infinite or not a number.
    #[error("temperature is {value}; it is 0 (greedy) or a positive number")]
    Temperature {
        /// The value.
        value: f64,
    },
    /// Not a probability.
    #[error("top_p is {value}; it is a probability from 0 to 1")]
    TopP {
        /// The value.
        value: f64,
    },
}

impl Sampling {
    /// Greedy.
    #[must_use]
    pub fn greedy() -> Sampling {
        Sampling { temperature: 0.0, ..Sampling::default() }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// If one has no meaning.
    pub fn check(&self) -> Result<(), SamplingError> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(SamplingError::Temperature { value: self.temperature });
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return Err(SamplingError::TopP { value: self.top_p });
        }
        Ok(())
    }
}

/// Chooses a token for a uniform draw in `[0, 1)`. A score that is not a number is never chosen, unless
/// all are; then it is id 0.
///
/// # Panics
/// If there are no scores.
///
/// # Determinism
/// Probabilities are computed in f64 by libm, in order of likelihood: the same id everywhere.
#[must_use]
pub fn sample(scores: &[f32], sampling: Sampling, uniform: f64) -> u32 {
    assert!(!scores.is_empty(), "a token is chosen from at least one");
    if sampling.temperature == 0.0 || sampling.top_p == 0.0 || sampling.top_k == 1 {
        return greedy(scores);
    }
    let best = f64::from(scores[greedy(scores) as usize]);
    let mut likely: Vec<(f64, u32)> = Vec::with_capacity(scores.len());
    likely.extend(scores.iter().zip(0..).filter(|(s, _)| !s.is_nan()).map(|(&s, id)| {
        let weight = libm::exp((f64::from(s) - best) / sampling.temperature);
        (if weight.is_nan() { 1.0 } else { weight }, id)
    }));
    likely.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    if sampling.top_k > 0 {
        likely.truncate(sampling.top_k);
    }
    let total: f64 = likely.iter().map(|(weight, _)| weight).sum();
    let mut sum = 0.0;
    let enough = |&(weight, _): &(f64, u32)| {
        sum += weight;
        sum >= sampling.top_p * total
    };
    let kept = likely.iter().position(enough).map_or(likely.len(), |last| last + 1);
    pick(&likely[..kept], uniform)
}

fn pick(kept: &[(f64, u32)], uniform: f64) -> u32 {
    let total: f64 = kept.iter().map(|(weight, _)| weight).sum();
    let mut left = uniform * total;
    for &(weight, id) in kept {
        left -= weight;
        if left < 0.0 {
            return id;
        }
    }
    kept.last().map_or(0, |&(_, id)| id)
}

fn greedy(scores: &[f32]) -> u32 {
    let better = |(best, at): (f32, u32), (&score, id): (&f32, u32)| {
        if score > best { (score, id) } else { (best, at) }
    };
    let start = (f32::NEG_INFINITY, 0);
    scores.iter().zip(0..).fold(start, better).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_base::rng::CounterRng;

    const SCORES: [f32; 5] = [0.0, 2.0, 1.0, 2.0, -1.0];

    fn counts(sampling: Sampling, draws: u64) -> [u64; 5] {
        let rng = CounterRng::new(3);
        let mut counts = [0; 5];
        for i in 0..draws {
            counts[sample(&SCORES, sampling, rng.uniform(i)) as usize] += 1;
        }
        counts
    }

    /// Greedy takes the best, and the lowest id among equals; so do top_p 0 and top_k 1.
    #[test]
    fn greedy_is_the_best_and_lowest() {
        for sampling in [
            Sampling::greedy(),
            Sampling { top_p: 0.0, ..Sampling::default() },
            Sampling { top_k: 1, ..Sampling::default() },
        ] {
            assert_eq!(counts(sampling, 100), [0, 100, 0, 0, 0]);
        }
    }

    /// Draws follow the softmax; a high temperature flattens it.
    #[test]
    fn draws_follow_the_softmax() {
        for temperature in [1.0, 5.0] {
            let got = counts(Sampling { temperature, ..Sampling::default() }, 100_000);
            let weights = SCORES.map(|s| (f64::from(s) / temperature).exp());
            let total: f64 = weights.iter().sum();
            for (got, want) in got.iter().zip(weights) {
                assert!((*got as f64 / 1e5 - want / total).abs() < 0.01, "{got} {want}");
            }
        }
    }

    /// top_k and top_p cut the tail; a top_k beyond the vocabulary and top_p 1 cut nothing.
    #[test]
    fn the_tail_is_cut() {
        let got = counts(Sampling { top_k: 3, ..Sampling::default() }, 10_000);
        assert!(got[0] == 0 && got[4] == 0 && got[2] > 0);
        // Each of the two best has 0.38: together they reach 0.7, one alone does not.
        let got = counts(Sampling { top_p: 0.7, ..Sampling::default() }, 10_000);
        assert!(got[1] > 4_000 && got[3] > 4_000 && got[0] + got[2] + got[4] == 0);
        let all = counts(Sampling::default(), 10_000);
        assert_eq!(all, counts(Sampling { top_k: 99, top_p: 1.0, ..Sampling::default() }, 10_000));
        assert!(all.iter().all(|&c| c > 0));
    }

    /// Settings without a meaning are refused; odd scores choose something all the same.
    #[test]
    fn edges_have_a_meaning() {
        for temperature in [-1.0, f64::NAN, f64::INFINITY] {
            assert!(Sampling { temperature, ..Sampling::default() }.check().is_err());
        }
        for top_p in [-0.1, 1.1, f64::NAN] {
            assert!(Sampling { top_p, ..Sampling::default() }.check().is_err());
        }
        assert_eq!(sample(&[f32::NAN, 1.0], Sampling::default(), 0.5), 1);
        assert_eq!(sample(&[f32::NAN, f32::NAN], Sampling::default(), 0.5), 0);
        assert_eq!(sample(&[0.0, f32::INFINITY], Sampling::default(), 0.999), 1);
        assert_eq!(sample(&[1.0, 2.0], Sampling::default(), 0.999_999_999), 0);
    }
}
