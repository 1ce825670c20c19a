//! A stateless keyed permutation of `0..n`: the order in which samples are visited.
//!
//! A balanced Feistel network over the smallest even number of bits that holds `n`, walked until
//! the value falls inside `0..n` (Black and Rogaway 2002, "cycle walking"; under four walks on
//! average). Sample `i` of an epoch is `Permutation::new(seed, epoch, n).at(i)`: no shuffle buffer,
//! no state to save, any node can ask for any index.

use crate::rng::CounterRng;

const ROUNDS: u64 = 6;

/// A permutation of `0..n`.
#[derive(Clone, Copy, Debug)]
pub struct Permutation {
    rng: CounterRng,
    half_bits: u32,
    n: u64,
}

impl Permutation {
    /// The permutation of epoch `epoch` of a run with this seed.
    ///
    /// # Panics
    /// If `n` is zero or above 2^62.
    #[must_use]
    pub fn new(seed: u64, epoch: u64, n: u64) -> Permutation {
        assert!(n > 0 && n <= 1 << 62, "a permutation has between 1 and 2^62 elements");
        let bits = (64 - (n - 1).leading_zeros()).max(2);
        let rng = CounterRng::new(seed).fork(0x7065_726d).fork(epoch);
        Permutation { rng, half_bits: bits.div_ceil(2), n }
    }

    /// Where index `i` goes.
    ///
    /// # Panics
    /// If `i` is not below `n`.
    #[must_use]
    pub fn at(&self, i: u64) -> u64 {
        assert!(i < self.n, "index {i} of a permutation of {}", self.n);
        let mut x = self.walk(i);
        while x >= self.n {
            x = self.walk(x);
        }
        x
    }

    fn walk(&self, x: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let (mut l, mut r) = (x >> self.half_bits, x & mask);
        for round in 0..ROUNDS {
            let f = self.rng.fork(round).at(r) & mask;
            (l, r) = (r, l ^ f);
        }
        (l << self.half_bits) | r
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every index is hit exactly once.
        #[test]
        fn it_is_a_permutation(seed in any::<u64>(), epoch in 0u64..5, n in 1u64..3000) {
            let p = Permutation::new(seed, epoch, n);
            let mut seen = vec![false; n as usize];
            for i in 0..n {
                prop_assert!(!std::mem::replace(&mut seen[p.at(i) as usize], true));
            }
        }
    }

    /// Epochs differ from one another and from the identity.
    #[test]
    fn epochs_differ() {
        let order = |epoch| {
            let p = Permutation::new(3, epoch, 100);
            (0..100).map(|i| p.at(i)).collect::<Vec<_>>()
        };
        assert_ne!(order(0), order(1));
        assert_ne!(order(0), (0..100).collect::<Vec<_>>());
    }
}
