//! What a run will need and how long a step will take, before anything is allocated.
//!
//! Pure functions of numbers: what the model's own plan says ([`ModelCost`]), what the run is
//! ([`Workload`]), what the machines have ([`Machine`]), and a [`Layout`] to judge.
//! [`memory`] adds up bytes, [`traffic`] bytes on the wire and the drive, [`time`] seconds, and
//! [`recommend`] tries every layout, picks the fastest that fits and says why the others do not.
//!
//! Letters: P parameters, N nodes, L leaves of one node in a step.

mod memory;
mod recommend;
mod report;
mod time;
mod traffic;

pub use memory::{MemoryItem, MemoryPlan, StateBytes, memory, model_states};
pub use recommend::{Candidate, Recommendation, Verdict, evaluate, recommend};
pub use time::{StepTime, time};
pub use traffic::{Traffic, traffic};

use crate::plan::{Precision, RunPlan, Tier, ZeroPlan};
use serde::Serialize;
use std::collections::BTreeMap;

/// Blocks whose gradients are in 64-bit accumulators, and at stage 3 whose parameters are gathered,
/// at once: the one being computed and the one on the wire.
pub const BLOCKS_IN_FLIGHT: u64 = 2;

/// Chunks in staging buffers at once under NVMe offload: one read, one updated, one written.
pub const STAGED_CHUNKS: u64 = 3;

/// One parameter, as far as memory cares.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct ParamCost {
    /// Elements.
    pub elements: u64,
    /// Whether its values are kept in 16 bits in mixed precision.
    pub matrix: bool,
    /// Moments that its optimizer keeps, fp32 each.
    pub moments: u64,
    /// The block after whose backward its gradient is complete.
    pub group: u64,
    /// Whether two blocks emit into its gradient: a tied embedding.
    pub tied: bool,
}

/// What a model and one leaf cost, from the model's own plan; the caller adds up its blocks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ModelCost {
    /// Every parameter.
    pub params: Vec<ParamCost>,
    /// Blocks, the loss block not counted.
    pub blocks: u64,
    /// Bytes of one leaf's token ids and labels.
    pub input_bytes: u64,
    /// Bytes of the residual stream of one leaf.
    pub stream_bytes: u64,
    /// Bytes that all blocks save for backward.
    pub saved_bytes: u64,
    /// Bytes that the block that saves most saves.
    pub largest_saved_bytes: u64,
    /// Bytes of scratch that any block needs at most.
    pub scratch_bytes: u64,
    /// Bytes of packed operands of matrix products.
    pub packing_bytes: u64,
    /// Floating-point operations of forward.
    pub forward_flops: u64,
    /// Floating-point operations of backward.
    pub backward_flops: u64,
    /// Floating-point operations of the optimizer's products: Muon's.
    pub update_flops: u64,
    /// Bytes that the process has besides: program, threads, buffers that the caller knows of.
    pub process_bytes: u64,
}

impl ModelCost {
    /// P.
    #[must_use]
    pub fn params(&self) -> u64 {
        self.sum(|p| p.elements)
    }

    /// A sum over parameters.
    pub(crate) fn sum(&self, of: impl Fn(&ParamCost) -> u64) -> u64 {
        self.params.iter().fold(0, |sum, p| sum.saturating_add(of(p)))
    }

    /// A sum over the block for which it is largest.
    pub(crate) fn largest_group(&self, of: impl Fn(&ParamCost) -> u64) -> u64 {
        let mut groups = BTreeMap::<u64, u64>::new();
        for p in &self.params {
            let sum = groups.entry(p.group).or_default();
            *sum = sum.saturating_add(of(p));
        }
        groups.into_values().max().unwrap_or(0)
    }
}

/// What the run asks for.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Workload {
    /// Leaves of one step, over all nodes.
    pub leaves: u64,
    /// Precision of values.
    pub precision: Precision,
    /// Further copies of each partition.
    pub replicas: u64,
}

impl Workload {
    /// The workload of a run.
    #[must_use]
    pub fn of(plan: &RunPlan) -> Workload {
        Workload { leaves: plan.batch.leaves(), precision: plan.precision, replicas: 0 }
    }

    /// L: leaves of the node that has most.
    #[must_use]
    pub fn local_leaves(&self, nodes: u64) -> u64 {
        self.leaves.div_ceil(nodes.max(1)).max(1)
    }
}

/// The nodes, all alike.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Machine {
    /// N.
    pub nodes: u64,
    /// Bytes where the computation is: the GPU's memory, or the host's if that computes.
    pub device_bytes: u64,
    /// Bytes of host memory beside a device; `None` when the host computes.
    pub host_bytes: Option<u64>,
    /// Bytes of the drive; `None` when there is none to offload to.
    pub disk_bytes: Option<u64>,
    /// Measured rates.
    pub rates: Rates,
}

/// Measured rates of one node.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Rates {
    /// Floating-point operations a second in the run's precision, over a whole step.
    pub flops_per_s: f64,
    /// Bytes of memory read or written a second.
    pub memory_bytes_per_s: f64,
    /// Bytes sent a second, and received at the same time.
    pub wire_bytes_per_s: f64,
    /// Bytes between device and host a second.
    pub host_link_bytes_per_s: f64,
    /// Bytes read or written on the drive a second.
    pub disk_bytes_per_s: f64,
}

/// Where something lives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// Where the computation is.
    Device,
    /// Host memory beside a device.
    Host,
    /// A drive.
    Nvme,
}

/// In which order a node computes its leaves. The numbers are the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// A leaf through all blocks, then the next: activations of one leaf, accumulators of all blocks.
    DepthFirst,
    /// A block for all leaves, then the next: activations of all leaves, accumulators of two blocks,
    /// and at stage 3 each block gathered once a pass.
    BreadthFirst,
}

/// One way to lay out a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub struct Layout {
    /// ZeRO stage.
    pub stage: u8,
    /// Where optimizer states live.
    pub optimizer: Place,
    /// Where parameters live.
    pub parameters: Place,
    /// Recompute each block's activations in backward.
    pub recompute: bool,
    /// Order of leaves and blocks.
    pub order: Order,
}

impl Layout {
    /// Everything on the device, nothing sharded.
    #[must_use]
    pub fn plain() -> Layout {
        Layout {
            stage: 0,
            optimizer: Place::Device,
            parameters: Place::Device,
            recompute: false,
            order: Order::DepthFirst,
        }
    }

    /// What a configuration asks for, in this order of leaves.
    #[must_use]
    pub fn of(zero: &ZeroPlan, recompute: bool, order: Order) -> Layout {
        let place = |tier: &Tier| match tier {
            Tier::Device => Place::Device,
            Tier::Host => Place::Host,
            Tier::Nvme { .. } => Place::Nvme,
        };
        let (optimizer, parameters) = (place(&zero.optimizer), place(&zero.parameters));
        Layout { stage: zero.stage, optimizer, parameters, recompute, order }
    }
}

#[cfg(test)]
mod tests;
