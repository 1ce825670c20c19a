//! One file a verb.

pub(crate) mod ask;
pub(crate) mod bench;
pub(crate) mod bench_plan;
pub(crate) mod chat;
pub(crate) mod config;
pub(crate) mod data;
pub(crate) mod export;
pub(crate) mod generate;
pub(crate) mod inspect;
pub(crate) mod node;
pub(crate) mod plan;
pub(crate) mod train;
pub(crate) mod train_ring;
