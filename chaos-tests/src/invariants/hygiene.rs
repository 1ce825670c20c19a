//! Tables are bounded by the nodes that live and the chunks, whatever has happened before.

use super::Invariant;
use crate::world::World;

pub(super) struct Hygiene;

/// Entries that a node may keep for each pair of a place and a chunk.
const PER_PAIR: usize = 8;
/// Entries that a node may keep for each place.
const PER_PLACE: usize = 16;

impl Invariant for Hygiene {
    fn name(&self) -> &'static str {
        "hygiene"
    }

    fn after_tick(&mut self, world: &World) -> Result<(), String> {
        let places = world.slots.len();
        let bound = places * world.spec.chunks.len() * PER_PAIR + places * PER_PLACE;
        for (id, node) in world.running() {
            let size = node.table_sizes();
            if size > bound {
                return Err(format!("node {id} keeps {size} table entries, over {bound}"));
            }
            let limit = world.spec.limits.decisions;
            if node.decisions().len() > limit {
                return Err(format!("node {id} keeps more than {limit} decisions"));
            }
        }
        Ok(())
    }

    fn at_end(&mut self, world: &World) -> Result<(), String> {
        for (id, node) in world.running() {
            let Some(view) = node.view() else { continue };
            let inside = view.view.members.len();
            let former = node.former_members();
            if let Some(other) = former.iter().find(|n| view.view.member(**n).is_some()) {
                return Err(format!("node {id} still probes member {other} of {inside} as former"));
            }
        }
        Ok(())
    }
}
