//! Runs of several nodes: what a node is told when it joins, where checkpoints lie, what people see.

mod intro;
mod session;
mod vault;

pub(crate) use intro::{RunIntro, knock, load_key, resolve};
pub(crate) use session::{Ended, RingSession, fresh_name, identity, transport};
pub(crate) use vault::CheckpointVault;
