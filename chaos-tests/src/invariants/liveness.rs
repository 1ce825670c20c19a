//! With the faults off, the ring heals and the run ends.

use super::Invariant;
use crate::world::{Seen, World};
use planaria_actors::protocol::effect::Stop;

pub(super) struct Liveness;

impl Invariant for Liveness {
    fn name(&self) -> &'static str {
        "liveness"
    }

    fn observe(&mut self, seen: &Seen, world: &mut World) -> Result<(), String> {
        match seen {
            Seen::Stopped { node, why: Stop::Halted(reason) } if !world.may_halt => {
                Err(format!("node {node} stopped the run: {reason}"))
            }
            _ => Ok(()),
        }
    }

    fn at_end(&mut self, world: &World) -> Result<(), String> {
        world.converged()
    }
}
