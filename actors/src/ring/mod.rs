//! A node of a ring, in numbers: the actors that carry out what [`crate::protocol`] decides.
//!
//! ```text
//!            frames                      ops
//!  wire <──────────> node ──> stage ───────────> device (compute thread: leaves, lot sums)
//!                     │ jobs    │ needs             ▲ working values, on loan
//!                     ▼         ▼                   │
//!                   keeper ──> shards ──────────────┘      (memory thread: one actor per chunk)
//! ```
//!
//! Read [`node`] for how effects become jobs, [`shard`] for what a chunk's numbers go through,
//! [`stage`] for the order of compute, [`values`] and [`working`] for what is gathered and lent,
//! [`run`] for how it is put together.

#![allow(
    clippy::disallowed_methods,
    reason = "actors of one node trust one another; what is under way between them is bounded by the \
              protocol's windows, and a full mailbox must not lose a report"
)]

pub mod device;
mod leaves;
pub mod net;
pub mod node;
pub mod run;
pub mod shard;
pub mod shards;
pub mod stage;
pub mod stage_actor;
pub mod values;
pub mod vault;
pub mod wire;
pub mod working;

pub use leaves::ActivationPlan;
