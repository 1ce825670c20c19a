//! What a node's shell does in the simulator: it keeps the toy numbers and carries out effects.

use crate::toy::{Sum, Toy};
use planaria_actors::protocol::decision::Decision;
use planaria_actors::protocol::message::{Body, Message, PartialKey};
use planaria_actors::protocol::record::Record;
use planaria_actors::protocol::spec::Spec;
use planaria_base::{ChunkId, Step};
use std::collections::{BTreeMap, BTreeSet};

/// What travels beside a frame.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Load {
    /// Nothing.
    None,
    /// A chunk's values or whole state.
    State(u64),
    /// A partial.
    Partial(Sum),
    /// A reduced gradient.
    Gradient(i64),
}

/// The sum in the making of one chunk, and which (site, leaf) the simulator saw added.
#[derive(Clone, Debug, Default)]
pub struct Accumulator {
    /// The lanes.
    pub sum: Sum,
    /// What is in it.
    pub added: BTreeSet<(u8, u32)>,
}

/// One node's numbers.
#[derive(Clone, Debug, Default)]
pub struct Shell {
    /// States by chunk.
    pub states: BTreeMap<ChunkId, (Step, u64)>,
    scratch: BTreeMap<ChunkId, (Step, u64)>,
    gradients: BTreeMap<(ChunkId, Step), i64>,
    /// Sums by chunk.
    pub sums: BTreeMap<ChunkId, Accumulator>,
    partials: BTreeMap<PartialKey, Sum>,
    params: BTreeMap<ChunkId, (Step, u64)>,
    agreed: BTreeMap<ChunkId, u64>,
    digests: BTreeMap<(ChunkId, Step), i64>,
    /// Grows when what is under way for a chunk becomes void.
    pub voids: BTreeMap<ChunkId, u64>,
    /// Grows when all lots are abandoned.
    pub lots: u64,
}

impl Shell {
    /// The load of a message that this node sends; nothing if it has not got it any more, or if
    /// it does not hash to what it should.
    #[must_use]
    pub fn load(&self, message: &Message) -> Option<Load> {
        match (message.body(), message) {
            (
                Body::Params | Body::Copy,
                Message::Params { chunk, step } | Message::Copy { chunk, step, .. },
            ) => {
                let at_step = self.states.get(chunk).filter(|s| s.0 == *step);
                let intact = at_step.filter(|s| self.agreed.get(chunk) == Some(&s.1));
                intact.map(|s| Load::State(s.1))
            }
            (Body::Partial, Message::Partial { key, .. }) => {
                self.partials.get(key).map(|s| Load::Partial(*s))
            }
            (Body::Record, Message::Record { chunk, record }) => {
                let key = (*chunk, record.step);
                let intact = self.gradients.get(&key).filter(|g| self.digests.get(&key) == Some(g));
                intact.map(|g| Load::Gradient(*g))
            }
            _ => Some(Load::None),
        }
    }

    /// Computes a partial from gathered or own values.
    pub fn compute(&mut self, toy: &Toy, key: PartialKey, start: u32, len: u32) -> bool {
        let before = Step(key.step.0 - 1);
        let own = self.states.get(&key.chunk).filter(|s| s.0 == before);
        let Some(state) = self.params.get(&key.chunk).filter(|s| s.0 == before).or(own) else {
            return false;
        };
        let sum = toy.partial((key.step, key.chunk, key.site.0), state.1, start, len);
        self.partials.insert(key, sum);
        true
    }

    /// Forgets a partial.
    pub fn free(&mut self, key: PartialKey) {
        self.partials.remove(&key);
    }

    /// Forgets all lots.
    pub fn abandon_lots(&mut self) {
        self.lots += 1;
        self.partials.clear();
        self.params.clear();
    }

    /// Adds a partial; false if one of its leaves was in the sum already.
    pub fn add(&mut self, key: PartialKey, range: (u32, u32), load: Load) -> bool {
        let sum = match load {
            Load::Partial(sum) => Some(sum),
            _ => self.partials.get(&key).copied(),
        };
        let Some(sum) = sum else { return false };
        let accumulator = self.sums.entry(key.chunk).or_default();
        accumulator.sum.add(sum);
        let before = accumulator.added.len();
        accumulator.added.extend((range.0..range.0 + range.1).map(|leaf| (key.site.0, leaf)));
        accumulator.added.len() == before + range.1 as usize
    }

    /// Zeroes a sum.
    pub fn zero(&mut self, chunk: ChunkId) {
        self.void(chunk);
        self.sums.remove(&chunk);
    }

    fn void(&mut self, chunk: ChunkId) {
        *self.voids.entry(chunk).or_default() += 1;
    }

    /// Turns a sum whose lanes are right into the record.
    pub fn fix(&mut self, toy: &Toy, spec: &Spec, chunk: ChunkId, step: Step) -> Option<Record> {
        let accumulator = self.sums.remove(&chunk)?;
        if accumulator.sum.tags != toy.all_tags(spec, step, chunk) {
            return None;
        }
        let value = accumulator.sum.value;
        self.gradients.insert((chunk, step), value);
        self.digests.insert((chunk, step), value);
        Some(toy.record(spec, step, chunk, accumulator.sum))
    }

    /// Keeps a record that came with a frame.
    pub fn store_record(&mut self, chunk: ChunkId, step: Step, load: Load) {
        if let Load::Gradient(value) = load {
            self.gradients.insert((chunk, step), value);
            self.digests.insert((chunk, step), value);
        }
    }

    /// Computes the next state into scratch.
    pub fn update(&mut self, toy: &Toy, chunk: ChunkId, decision: &Decision) -> Option<u64> {
        let state = self.states.get(&chunk).filter(|s| s.0.0 + 1 == decision.step.0)?;
        let gradient = self.gradients.get(&(chunk, decision.step))?;
        let next = toy.update(state.1, *gradient, decision);
        self.scratch.insert(chunk, (decision.step, next));
        Some(next)
    }

    /// State and record are what was agreed.
    #[must_use]
    pub fn verify(&self, chunk: ChunkId) -> bool {
        let Some((step, state)) = self.states.get(&chunk) else { return false };
        let record = (chunk, Step(step.0 + 1));
        self.agreed.get(&chunk) == Some(state)
            && self.gradients.get(&record) == self.digests.get(&record)
    }

    /// Scratch becomes the state.
    pub fn swap(&mut self, chunk: ChunkId, step: Step) -> Option<u64> {
        let scratch = self.scratch.remove(&chunk).filter(|s| s.0 == step)?;
        self.set_state(chunk, step, scratch.1);
        Some(scratch.1)
    }

    /// Sets a state that is agreed.
    pub fn set_state(&mut self, chunk: ChunkId, step: Step, state: u64) {
        self.states.insert(chunk, (step, state));
        self.agreed.insert(chunk, state);
        self.gradients.retain(|k, _| k.0 != chunk || k.1 > step);
        self.digests.retain(|k, _| k.0 != chunk || k.1 > step);
    }

    /// Keeps gathered values.
    pub fn store_params(&mut self, chunk: ChunkId, step: Step, load: Load) {
        if let Load::State(state) = load {
            self.params.insert(chunk, (step, state));
        }
    }

    /// Deletes a copy.
    pub fn drop_copy(&mut self, chunk: ChunkId) {
        self.void(chunk);
        if let Some(state) = self.states.remove(&chunk) {
            // A lot that reads the values keeps them until it is abandoned.
            self.params.entry(chunk).or_insert(state);
        }
        self.scratch.remove(&chunk);
        self.sums.remove(&chunk);
        self.gradients.retain(|k, _| k.0 != chunk);
        self.digests.retain(|k, _| k.0 != chunk);
    }

    /// A bit flips in scratch; returns what it is now.
    pub fn flip_scratch(&mut self, chunk: ChunkId, bit: u64) -> u64 {
        let Some(scratch) = self.scratch.get_mut(&chunk) else { return 0 };
        scratch.1 ^= 1 << (bit % 64);
        scratch.1
    }

    /// A bit flips in a state at rest.
    pub fn flip_state(&mut self, chunk: ChunkId, bit: u64) -> bool {
        self.states.get_mut(&chunk).map(|s| s.1 ^= 1 << (bit % 64)).is_some()
    }

    /// A bit flips in a record at rest.
    pub fn flip_record(&mut self, chunk: ChunkId, bit: u64) -> bool {
        let mut of_chunk = self.gradients.iter_mut().filter(|(k, _)| k.0 == chunk);
        of_chunk.next().map(|(_, g)| *g ^= 1 << (bit % 64)).is_some()
    }
}
