//! Random draws of a simulation: a counter on top of the project's counter generator.

use planaria_base::rng::CounterRng;

/// A sequence of draws that depends on its seed only.
#[derive(Clone, Debug)]
pub struct Draw {
    rng: CounterRng,
    count: u64,
}

impl Draw {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Draw {
        Draw { rng: CounterRng::new(seed), count: 0 }
    }

    /// A value in `low..high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        self.count += 1;
        low + self.rng.below(self.count, high.saturating_sub(low).max(1))
    }

    /// True once in `1 / p` times.
    pub fn chance(&mut self, p: f64) -> bool {
        self.count += 1;
        p > 0.0 && self.rng.uniform(self.count) < p
    }

    /// One of them.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> Option<T> {
        let last = of.len() as u64;
        (last > 0).then(|| of[self.between(0, last) as usize])
    }
}
