//! Chaos: whole rings of the production protocol in one process, from a seed.
//!
//! A [`world::World`] holds many [`planaria_actors::protocol::Node`] machines, a virtual clock, a
//! network that delays, loses, doubles and reorders, and a toy model ([`toy`]) whose gradients are
//! integers and whose states are hash chains, so that a thousand nodes and thousands of seeds run
//! in seconds. [`invariants`] are checked on every event and after every tick; then the faults stop
//! and the ring must heal. Everything depends on the seed only:
//!
//! ```text
//! cargo run -p planaria-chaos-tests --release -- sim --seed N
//! ```
//!
//! Read [`swarm`] for what a seed draws, [`faults`] for what can go wrong, [`world`] for the rest.

pub mod draw;
pub mod faults;
pub mod invariants;
pub mod network;
pub mod shell;
pub mod swarm;
pub mod toy;
pub mod world;
