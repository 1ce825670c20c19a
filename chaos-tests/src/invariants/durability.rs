//! Law 3: committed steps are lost only with all copies of a chunk, and then never more than what
//! came after the last checkpoint; a checkpoint that is called durable is all there.

use super::Invariant;
use crate::world::{Seen, World};

#[derive(Default)]
pub(super) struct Durability {
    fallbacks: u64,
}

impl Invariant for Durability {
    fn name(&self) -> &'static str {
        "durability"
    }

    fn observe(&mut self, seen: &Seen, world: &mut World) -> Result<(), String> {
        match seen {
            Seen::Restored { node, chunk, step, found: false } => {
                Err(format!("node {node}: no checkpoint of chunk {chunk} after step {step}"))
            }
            Seen::Published { node, step, missing: Some(chunk) } => {
                Err(format!("node {node} calls step {step} durable without chunk {chunk} on disk"))
            }
            Seen::FellBack { to, lost } => {
                self.fallbacks += 1;
                if world.may_fall_back {
                    return Ok(());
                }
                Err(format!("{lost} steps lost, back to {to}, though copies lived"))
            }
            _ => Ok(()),
        }
    }
}
