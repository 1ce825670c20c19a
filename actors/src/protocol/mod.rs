//! The ring's protocol: membership, view changes, step commit, replication and recovery.
//!
//! Pure: events go in by method, effects come out through an out-parameter; time is an argument,
//! and there is no randomness, no clock, no socket, no task. It decides about *words*: which leaf is
//! in which sum, who holds which record. The numbers (sums, gradients, states) are the shell's; the
//! effects say what to do with them, and [`message::Message::body`] says which message carries some.
//!
//! It is deliberately not a transport, not a model, not a checkpoint format, and it never waits.
//!
//! Read [`view`] and [`message`] for the words, [`effect`] for the boundary, then [`lots`],
//! [`placement`] and [`decision`], the pure functions on which everybody agrees without talking;
//! then [`holder`], [`sender`] and [`conductor`], the three parts of a step; then [`membership`],
//! [`view_change`] and [`split`]; last [`node`], which puts them together.

pub mod conductor;
mod content;
pub mod decision;
pub mod effect;
pub mod holder;
pub mod log;
pub mod lots;
pub mod membership;
pub mod message;
pub mod node;
pub mod placement;
pub mod record;
pub mod sender;
pub mod shared;
pub mod spec;
pub mod split;
pub mod view;
pub mod view_change;

pub use effect::{Effect, Event};
pub use node::{Identity, Node};
pub use spec::Spec;
