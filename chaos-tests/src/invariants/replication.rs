//! A record is Final, and a copy released, only when the view's holders have it; and lost copies
//! are rebuilt.

use super::Invariant;
use crate::world::World;
use planaria_base::{ChunkId, Step};

pub(super) struct Replication;

impl Invariant for Replication {
    fn name(&self) -> &'static str {
        "replication"
    }

    /// If a step is decided in a view, each holder that is in that view has the step's record or
    /// a state that includes it.
    fn after_tick(&mut self, world: &World) -> Result<(), String> {
        for (id, node) in world.running().filter(|(_, n)| !n.is_closed()) {
            let Some(view) = node.view() else { continue };
            let decided = Step(node.step().0 - 1);
            for (index, seat) in view.view.seats.iter().enumerate() {
                if !seat.holders.contains(&planaria_base::NodeId(id)) {
                    continue;
                }
                let chunk = ChunkId(index as u32);
                let Some(holder) = node.holders().get(&chunk) else {
                    return Err(format!("node {id} is a holder of chunk {chunk} without a copy"));
                };
                let has = holder.state.is_none_or(|m| m.step >= decided)
                    || holder.record.is_some_and(|r| r.step == decided);
                if !has {
                    return Err(format!("node {id} lacks step {decided} of chunk {chunk}"));
                }
            }
        }
        Ok(())
    }

    fn at_end(&mut self, world: &World) -> Result<(), String> {
        world.replicated()
    }
}
