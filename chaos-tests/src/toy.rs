//! A model small enough for thousands of seeds: a chunk's state is one word, a leaf's gradient one
//! integer drawn from (step, state, chunk, site, leaf), an update a hash.

use planaria_actors::protocol::decision::{Decision, Inputs, decide};
use planaria_actors::protocol::log::CommandLog;
use planaria_actors::protocol::record::{Flags, Record};
use planaria_actors::protocol::spec::Spec;
use planaria_base::rng::CounterRng;
use planaria_base::{ChunkId, Digest, Step};
use std::collections::BTreeMap;

/// An exact partial sum with its tag lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// The gradient lane.
    pub value: i64,
    /// The tag lane.
    pub tags: u64,
    /// OR of the leaves' flags.
    pub flags: Flags,
}

impl Sum {
    /// Adds another partial.
    pub fn add(&mut self, other: Sum) {
        self.value = self.value.wrapping_add(other.value);
        self.tags = self.tags.wrapping_add(other.tags);
        self.flags = self.flags.or(other.flags);
    }
}

/// The toy model of one run.
#[derive(Clone, Debug)]
pub struct Toy {
    seed: u64,
    /// One leaf in this many is not finite; zero: none.
    pub bad_leaf_in: u64,
}

fn digest(word: u64) -> Digest {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&word.to_le_bytes());
    Digest(bytes)
}

impl Toy {
    /// The model of this seed.
    #[must_use]
    pub fn new(seed: u64, bad_leaf_in: u64) -> Toy {
        Toy { seed, bad_leaf_in }
    }

    /// A chunk's state before the first step.
    #[must_use]
    pub fn initial(&self, chunk: ChunkId) -> u64 {
        CounterRng::new(self.seed).fork(0x1417).at(u64::from(chunk.0))
    }

    /// The sum of some leaves' gradients for a chunk and site.
    #[must_use]
    pub fn partial(&self, at: (Step, ChunkId, u8), state: u64, start: u32, len: u32) -> Sum {
        let (step, chunk, site) = at;
        let place =
            CounterRng::new(self.seed).fork(step.0).fork(u64::from(chunk.0)).fork(u64::from(site));
        let (values, tags) = (place.fork(state), place.fork(0x7a67));
        let mut sum = Sum::default();
        for leaf in (start..start + len).map(u64::from) {
            let flags = self.flags(step, leaf);
            sum.add(Sum { value: values.at(leaf) as i64 >> 16, tags: tags.at(leaf), flags });
        }
        sum
    }

    fn flags(&self, step: Step, leaf: u64) -> Flags {
        let bad = self.bad_leaf_in > 0
            && CounterRng::new(self.seed).fork(0xbad).fork(step.0).below(leaf, self.bad_leaf_in)
                == 0;
        if bad { Flags::NOT_FINITE } else { Flags::default() }
    }

    /// What the tag lane of a whole chunk must come to.
    #[must_use]
    pub fn all_tags(&self, spec: &Spec, step: Step, chunk: ChunkId) -> u64 {
        let sites = spec.chunks[chunk.index()].sites;
        let all = (0..sites).map(|s| self.partial((step, chunk, s), 0, 0, spec.leaves).tags);
        all.fold(0, u64::wrapping_add)
    }

    /// The record that a full sum becomes.
    #[must_use]
    pub fn record(&self, spec: &Spec, step: Step, chunk: ChunkId, sum: Sum) -> Record {
        let value = (sum.value as f64) / (1u64 << 40) as f64;
        Record {
            step,
            digest: digest(sum.value as u64),
            flags: sum.flags,
            sum_of_squares: (value * value).to_bits(),
            labels: if chunk.0 == 0 { u64::from(spec.leaves) } else { 0 },
            loss: if chunk.0 == 0 { sum.value >> 8 } else { 0 },
        }
    }

    /// The next state.
    #[must_use]
    pub fn update(&self, state: u64, gradient: i64, decision: &Decision) -> u64 {
        let scale = decision.loss_scale.map_or(0, |s| s.scale);
        let base = CounterRng::new(state).fork(u64::from(scale));
        if !decision.commit {
            return base.at(0);
        }
        let scalars = u64::from(decision.factor).rotate_left(32) ^ decision.rate;
        base.fork(gradient as u64).fork(scalars).at(decision.updates)
    }

    /// A state's or scratch's hash.
    #[must_use]
    pub fn hash(&self, state: u64) -> Digest {
        digest(state)
    }
}

/// The trajectory that every simulated run must follow, computed without any protocol.
pub struct Golden {
    toy: Toy,
    spec: Spec,
    known: BTreeMap<(Step, Digest), (Vec<u64>, Option<Decision>)>,
}

impl Golden {
    /// The trajectory of a run.
    #[must_use]
    pub fn new(toy: Toy, spec: Spec) -> Golden {
        Golden { toy, spec, known: BTreeMap::new() }
    }

    /// All chunks' states after `step`, and the decision of that step, given the commands.
    pub fn at(&mut self, step: Step, log: &CommandLog) -> (Vec<u64>, Option<Decision>) {
        let key = (step, log.mark(step).hash);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let made = if step.0 == 0 {
            let chunks = 0..self.spec.chunks.len() as u32;
            (chunks.map(|c| self.toy.initial(ChunkId(c))).collect(), None)
        } else {
            self.next(step, log)
        };
        self.known.insert(key, made.clone());
        made
    }

    fn next(&mut self, step: Step, log: &CommandLog) -> (Vec<u64>, Option<Decision>) {
        let (states, previous) = self.at(Step(step.0 - 1), log);
        let spec = &self.spec;
        let sum = |c: usize| {
            let chunk = ChunkId(c as u32);
            let mut sum = Sum::default();
            for site in 0..spec.chunks[c].sites {
                sum.add(self.toy.partial((step, chunk, site), states[c], 0, spec.leaves));
            }
            sum
        };
        let sums: Vec<Sum> = (0..states.len()).map(sum).collect();
        let records: Vec<Record> = (sums.iter().enumerate())
            .map(|(c, s)| self.toy.record(spec, step, ChunkId(c as u32), *s))
            .collect();
        let previous = previous.as_ref();
        let inputs =
            Inputs { rule: &spec.rule, previous, records: &records, log, weights: Vec::new() };
        let decision = decide(step, inputs);
        let next = states.iter().zip(&sums).map(|(s, g)| self.toy.update(*s, g.value, &decision));
        (next.collect(), Some(decision))
    }
}
