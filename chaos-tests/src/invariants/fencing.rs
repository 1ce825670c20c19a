//! Law 4: a frame of another view changes nothing.

use super::Invariant;
use crate::world::{Seen, World};

pub(super) struct Fencing;

impl Invariant for Fencing {
    fn name(&self) -> &'static str {
        "fencing"
    }

    fn observe(&mut self, seen: &Seen, _world: &mut World) -> Result<(), String> {
        match seen {
            Seen::FenceBroken { node, frame } => {
                Err(format!("node {node} was changed by a frame of another view: {frame}"))
            }
            _ => Ok(()),
        }
    }
}
