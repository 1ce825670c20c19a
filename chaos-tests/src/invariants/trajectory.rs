//! Law 1: every state that any node ever has is the one-node run's state of that step, given the
//! commands.

use super::Invariant;
use crate::world::{Seen, World};

pub(super) struct Trajectory;

impl Invariant for Trajectory {
    fn name(&self) -> &'static str {
        "trajectory"
    }

    fn observe(&mut self, seen: &Seen, world: &mut World) -> Result<(), String> {
        let Seen::Swapped { node, chunk, step, state } = seen else { return Ok(()) };
        match world.golden_state(*node, *chunk, *step) {
            Some(golden) if golden != *state => Err(format!(
                "node {node}: chunk {chunk} after step {step} is not the one-node run's"
            )),
            _ => Ok(()),
        }
    }
}
