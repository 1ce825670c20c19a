//! The protocol (pure) and the actors that execute it; the trainer.
//!
//! ```text
//!  trainer ──> driver ──> node ──> actors (shells around the machines of `step`)
//!                           │
//!                           └────> device (its own thread: memory, kernels), reports come back
//! ```
//!
//! Read [`step`] first: the protocol as plain structs. Then [`node`]: the actix actors, their
//! address book and supervision. Then [`device`]: the memory of a node and the commands that change
//! it. [`trainer`] puts them together; a run of fixed size is a ring in which nothing happens.
//!
//! [`protocol`] is the ring's own protocol (views, replication, recovery), pure too; the simulator in
//! `chaos-tests` runs it. It is not yet wired into the trainer.

pub mod data;
pub mod device;
pub mod driver;
pub mod layout;
pub mod node;
pub mod protocol;
pub mod ring;
pub mod spec;
pub mod step;
pub mod trainer;
