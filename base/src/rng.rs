//! Counter-based random numbers: a value is a pure function of (seed, key, counter).
//!
//! No state is carried from one draw to the next, so any node can draw any value in any order, and
//! a leaf computed again after a crash draws the same numbers. The mixing function is SplitMix64's
//! finalizer (Steele, Lea, Flood 2014), applied once per key word.

/// A stream of 64-bit values addressed by counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterRng {
    key: u64,
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl CounterRng {
    /// The stream of this seed.
    #[must_use]
    pub fn new(seed: u64) -> CounterRng {
        CounterRng { key: mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) }
    }

    /// The sub-stream named by `word`: streams with different names are unrelated.
    #[must_use]
    pub fn fork(self, word: u64) -> CounterRng {
        CounterRng { key: mix(self.key ^ mix(word.wrapping_add(0x9e37_79b9_7f4a_7c15))) }
    }

    /// Value number `counter` of the stream.
    #[must_use]
    pub fn at(self, counter: u64) -> u64 {
        mix(self.key.wrapping_add(counter.wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }

    /// A uniform value in `[0, 1)` with 53 random bits.
    #[must_use]
    pub fn uniform(self, counter: u64) -> f64 {
        (self.at(counter) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A uniform integer in `0..bound`, by Lemire's multiply-and-shift (bias below 2^-32 for
    /// bounds below 2^32).
    ///
    /// # Panics
    /// If `bound` is zero.
    #[must_use]
    pub fn below(self, counter: u64, bound: u64) -> u64 {
        assert!(bound > 0, "a bound is positive");
        ((u128::from(self.at(counter)) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The stream is part of every run spec: these values may never change.
    #[test]
    fn the_stream_is_frozen() {
        let rng = CounterRng::new(42).fork(7);
        assert_eq!(rng.at(0), CounterRng::new(42).fork(7).at(0));
        assert_ne!(rng.at(0), rng.at(1));
        assert_ne!(rng.at(0), CounterRng::new(43).fork(7).at(0));
        assert_ne!(rng.at(0), CounterRng::new(42).fork(8).at(0));
    }

    /// Mean and spread of the uniform draw.
    #[test]
    fn uniform_has_the_right_moments() {
        let rng = CounterRng::new(1);
        let n = 100_000u64;
        let mean = (0..n).map(|i| rng.uniform(i)).sum::<f64>() / n as f64;
        let var = (0..n).map(|i| (rng.uniform(i) - mean).powi(2)).sum::<f64>() / n as f64;
        assert!((mean - 0.5).abs() < 0.005, "{mean}");
        assert!((var - 1.0 / 12.0).abs() < 0.002, "{var}");
    }
}
