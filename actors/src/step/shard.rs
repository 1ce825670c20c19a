//! A parameter shard: a chunk's working-precision values, and the step that they are as of.

use planaria_base::{ChunkId, Step};

/// Answer to a gather.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gathered {
    /// The values are those after this step, as asked.
    Ready,
    /// The shard is at another step: the asker's view of the run is not ours.
    Stale(Step),
}

/// The shard's machine. The values lie in the device's memory; the shard says what they are.
#[derive(Debug)]
pub struct Shard {
    /// Which chunk.
    pub chunk: ChunkId,
    state: Step,
}

impl Shard {
    /// A shard whose values are those after `state`.
    #[must_use]
    pub fn new(chunk: ChunkId, state: Step) -> Shard {
        Shard { chunk, state }
    }

    /// A gather names the step whose result it wants.
    #[must_use]
    pub fn handle_gather(&self, state: Step) -> Gathered {
        if state == self.state { Gathered::Ready } else { Gathered::Stale(self.state) }
    }

    /// The partition wrote the values after `state`.
    ///
    /// # Panics
    /// If a step was left out: the holder's state is gap-free.
    pub fn handle_updated(&mut self, state: Step) {
        assert_eq!(state.0, self.state.0 + 1, "a shard's states have no gap");
        self.state = state;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A gather for another step is answered Stale, never with the wrong values.
    #[test]
    fn a_gather_names_a_step() {
        let mut shard = Shard::new(ChunkId(0), Step(3));
        assert_eq!(shard.handle_gather(Step(3)), Gathered::Ready);
        assert_eq!(shard.handle_gather(Step(4)), Gathered::Stale(Step(3)));
        shard.handle_updated(Step(4));
        assert_eq!(shard.handle_gather(Step(4)), Gathered::Ready);
    }
}
