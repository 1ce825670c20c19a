//! Law 2: each leaf is in a chunk's sum exactly once.

use super::Invariant;
use crate::world::{Seen, World};

pub(super) struct ExactlyOnce;

impl Invariant for ExactlyOnce {
    fn name(&self) -> &'static str {
        "exactly-once"
    }

    fn observe(&mut self, seen: &Seen, world: &mut World) -> Result<(), String> {
        match seen {
            Seen::Added { node, key, fresh: false } => {
                Err(format!("node {node} added {key:?} twice, or without its numbers"))
            }
            Seen::Fixed { node, chunk, step, leaves } => {
                let sites = usize::from(world.spec.chunks[chunk.index()].sites);
                let all = world.spec.leaves as usize * sites;
                if *leaves == all {
                    return Ok(());
                }
                Err(format!("node {node} fixed chunk {chunk}, step {step} with {leaves} of {all}"))
            }
            _ => Ok(()),
        }
    }
}
