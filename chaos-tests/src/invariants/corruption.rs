//! A flipped bit is caught before it becomes anybody's state.

use super::Invariant;
use crate::world::{Seen, World};

#[derive(Default)]
pub(super) struct Corruption {
    flips: u64,
    caught: u64,
}

impl Invariant for Corruption {
    fn name(&self) -> &'static str {
        "no silent corruption"
    }

    fn observe(&mut self, seen: &Seen, world: &mut World) -> Result<(), String> {
        match seen {
            Seen::Swapped { node, chunk, step, state } if self.flips > 0 => {
                let golden = world.golden_state(*node, *chunk, *step);
                return match golden {
                    Some(golden) if golden != *state => {
                        Err(format!("a flipped bit became node {node}'s state of chunk {chunk}"))
                    }
                    _ => Ok(()),
                };
            }
            Seen::Flipped { .. } => self.flips += 1,
            Seen::Caught { .. } => self.caught += 1,
            _ => {}
        }
        Ok(())
    }

    fn at_end(&mut self, world: &World) -> Result<(), String> {
        if world.spec.replicas > 1 && world.kills == 0 && self.flips > 0 && self.caught == 0 {
            return Err(format!("{} bits flipped and no holder noticed", self.flips));
        }
        Ok(())
    }
}
