//! What must hold in every simulated run, one file each.

mod agreement;
mod corruption;
mod durability;
mod exactly_once;
mod fencing;
mod hygiene;
mod liveness;
mod replication;
mod trajectory;

use crate::world::{Seen, World};

/// An invariant was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Which.
    pub invariant: &'static str,
    /// How.
    pub what: String,
    /// When, in microseconds of virtual time.
    pub at: u64,
}

/// One invariant.
pub trait Invariant {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Something happened.
    ///
    /// # Errors
    /// What is wrong, if something is.
    fn observe(&mut self, _seen: &Seen, _world: &mut World) -> Result<(), String> {
        Ok(())
    }

    /// Called after every tick of virtual time.
    ///
    /// # Errors
    /// What is wrong, if something is.
    fn after_tick(&mut self, _world: &World) -> Result<(), String> {
        Ok(())
    }

    /// Called once everything has healed, or should have.
    ///
    /// # Errors
    /// What is wrong, if something is.
    fn at_end(&mut self, _world: &World) -> Result<(), String> {
        Ok(())
    }
}

/// One of each; where several see the same, the first in the list is named.
#[must_use]
pub fn all() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(corruption::Corruption::default()),
        Box::new(trajectory::Trajectory),
        Box::new(exactly_once::ExactlyOnce),
        Box::new(agreement::Agreement::default()),
        Box::new(fencing::Fencing),
        Box::new(hygiene::Hygiene),
        Box::new(replication::Replication),
        Box::new(liveness::Liveness),
        Box::new(durability::Durability::default()),
    ]
}
