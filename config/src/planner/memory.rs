//! Bytes of one node.

use super::{
    BLOCKS_IN_FLIGHT, Layout, Machine, ModelCost, Order, ParamCost, Place, STAGED_CHUNKS, Workload,
};
use crate::plan::Precision;
use planaria_base::limits::CHUNK_ELEMENTS;
use serde::Serialize;
use std::collections::BTreeMap;

/// Buffers are whole cache lines.
const LINE: u64 = 64;

/// Bytes of the states of one parameter.
///
/// # Source
/// Rajbhandari et al. 2020 (ZeRO), section 3.1: 2 + 2 + 12 in mixed precision. We keep the reduced
/// gradient in fp32 until the decision, since clipping needs the global norm: 2 + 4 + 12; and in fp32
/// the value is its own master: 4 + 4 + 8.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateBytes {
    /// The working value.
    pub value: u64,
    /// The reduced gradient.
    pub gradient: u64,
    /// Master and moments.
    pub optimizer: u64,
    /// The first ZeRO stage that shards gradients: 2 in the paper; 1 here, where a gradient is
    /// reduced block by block and only its owner keeps it.
    pub gradients_sharded_from: u8,
}

impl StateBytes {
    /// The paper's.
    pub const PAPER: StateBytes =
        StateBytes { value: 2, gradient: 2, optimizer: 12, gradients_sharded_from: 2 };

    /// Ours, for one parameter: vectors, and everything in fp32, are their own masters.
    #[must_use]
    pub fn ours(precision: Precision, param: &ParamCost) -> StateBytes {
        let half = precision != Precision::Fp32 && param.matrix;
        StateBytes {
            value: if half { 2 } else { 4 },
            gradient: 4,
            optimizer: 4 * param.moments + if half { 4 } else { 0 },
            gradients_sharded_from: 1,
        }
    }
}

/// Bytes of a buffer.
fn buffer(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(LINE).unwrap_or(u64::MAX)
}

/// Bytes of values, gradients and optimizer states on one node, for `params` parameters.
#[must_use]
pub fn model_states(bytes: StateBytes, stage: u8, params: u64, nodes: u64) -> [u64; 3] {
    let shard = |bytes: u64, sharded: bool| {
        let all = params.saturating_mul(bytes);
        if sharded { all.div_ceil(nodes.max(1)) } else { all }
    };
    [
        shard(bytes.value, stage >= 3),
        shard(bytes.gradient, stage >= bytes.gradients_sharded_from),
        shard(bytes.optimizer, stage >= 1),
    ]
}

/// Bytes of one kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MemoryItem {
    /// What they hold.
    pub name: &'static str,
    /// Where they lie.
    pub place: Place,
    /// How many.
    pub bytes: u64,
}

/// All bytes of one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Default)]
pub struct MemoryPlan {
    /// By kind; none is zero.
    pub items: Vec<MemoryItem>,
}

impl MemoryPlan {
    /// Bytes in one place.
    #[must_use]
    pub fn bytes(&self, place: Place) -> u64 {
        let here = self.items.iter().filter(|i| i.place == place);
        here.fold(0, |sum, item| sum.saturating_add(item.bytes))
    }

    /// The kind that takes most in one place.
    #[must_use]
    pub fn largest(&self, place: Place) -> Option<&MemoryItem> {
        self.items.iter().filter(|i| i.place == place).max_by_key(|i| i.bytes)
    }

    fn add(&mut self, name: &'static str, place: Place, bytes: u64) {
        if bytes > 0 {
            self.items.push(MemoryItem { name, place, bytes });
        }
    }
}

/// Adds up one node's bytes.
///
/// # Cost
/// States: values 2P (fp32: 4P), gradient 4P, master and moments 12P (fp32: 8P) for Adam; of these,
/// stages 1 and 2 divide all but the values by N, stage 3 all. Accumulators: 8 bytes for each
/// parameter of the blocks in flight, or of all blocks when leaves go one after another; none where
/// one leaf of one node is the whole step. Activations: what one leaf saves, times the leaves that
/// are in memory at once. On one node this is what is allocated, to the byte.
#[must_use]
pub fn memory(cost: &ModelCost, work: &Workload, machine: &Machine, layout: &Layout) -> MemoryPlan {
    let mut plan = MemoryPlan::default();
    states(&mut plan, cost, work, (machine.nodes, layout));
    let local = work.local_leaves(machine.nodes);
    plan.add("64-bit accumulators", Place::Device, accumulators(cost, work, machine.nodes, layout));
    if layout.stage == 3 && machine.nodes > 1 || layout.parameters != Place::Device {
        let value = |p: &ParamCost| p.elements.saturating_mul(ours(work, p).value);
        let gathered = cost.largest_group(value).saturating_mul(BLOCKS_IN_FLIGHT);
        plan.add("gathered blocks", Place::Device, gathered.min(cost.sum(value)));
    }
    let leaves = if layout.order == Order::BreadthFirst { local } else { 1 };
    let saved = if layout.recompute {
        cost.largest_saved_bytes
    } else {
        cost.saved_bytes.saturating_mul(leaves)
    };
    plan.add("saved activations", Place::Device, saved);
    let streams = (cost.blocks + 1).saturating_mul(leaves);
    plan.add("residual streams", Place::Device, cost.stream_bytes.saturating_mul(streams));
    plan.add("tokens and labels", Place::Device, cost.input_bytes.saturating_mul(leaves));
    plan.add("scratch", Place::Device, cost.scratch_bytes);
    plan.add("packed operands", Place::Device, cost.packing_bytes);
    plan.add("process", Place::Device, cost.process_bytes);
    plan
}

fn ours(work: &Workload, param: &ParamCost) -> StateBytes {
    StateBytes::ours(work.precision, param)
}

/// Bytes of 64-bit sums. A sum is used again for a parameter of its length only.
fn accumulators(cost: &ModelCost, work: &Workload, nodes: u64, layout: &Layout) -> u64 {
    let sum = |p: &ParamCost| buffer(p.elements.saturating_mul(8));
    if nodes <= 1 && work.leaves <= 1 {
        return 0;
    }
    if layout.order == Order::DepthFirst && work.local_leaves(nodes) > 1 {
        return cost.sum(sum);
    }
    let tied = cost.sum(|p| if p.tied { sum(p) } else { 0 });
    let mut counts = BTreeMap::<(u64, u64), u64>::new();
    for p in cost.params.iter().filter(|p| !p.tied) {
        *counts.entry((sum(p), p.group)).or_default() += 1;
    }
    let mut most = BTreeMap::<u64, u64>::new();
    for ((bytes, _), count) in counts {
        let most = most.entry(bytes).or_default();
        *most = count.max(*most);
    }
    // With other nodes, the block before is still on the wire.
    let in_flight = if nodes > 1 { BLOCKS_IN_FLIGHT } else { 1 };
    let own = most.iter().fold(0u64, |s, (bytes, n)| s.saturating_add(bytes.saturating_mul(*n)));
    let all = cost.sum(|p| if p.tied { 0 } else { sum(p) });
    own.saturating_mul(in_flight).min(all).saturating_add(tied)
}

fn states(
    plan: &mut MemoryPlan,
    cost: &ModelCost,
    work: &Workload,
    (nodes, layout): (u64, &Layout),
) {
    let values = cost.sum(|p| buffer(p.elements.saturating_mul(ours(work, p).value)));
    let words = cost.sum(|p| buffer(p.elements.saturating_mul(4)));
    let optimizer = cost.sum(|p| {
        let buffers = ours(work, p).optimizer / 4;
        buffer(p.elements.saturating_mul(4)).saturating_mul(buffers)
    });
    let shard = |bytes: u64, from: u8| {
        if layout.stage >= from { bytes.div_ceil(nodes.max(1)) } else { bytes }
    };
    let (values, gradients, optimizer) = (shard(values, 3), shard(words, 1), shard(optimizer, 1));
    plan.add("parameter values", layout.parameters, values);
    plan.add("reduced gradients", layout.optimizer, gradients);
    plan.add("optimizer states", layout.optimizer, optimizer);
    let replicas = work.replicas.min(nodes.saturating_sub(1));
    if layout.stage > 0 {
        let copy = gradients.saturating_add(optimizer);
        plan.add("replicas", layout.optimizer, copy.saturating_mul(replicas));
    }
    if layout.optimizer == Place::Nvme {
        let whole = cost.params.iter().map(|p| ours(work, p)).map(|b| b.optimizer + b.gradient);
        let staged = STAGED_CHUNKS * CHUNK_ELEMENTS.min(cost.params()) * whole.max().unwrap_or(0);
        let memory = if layout.parameters == Place::Host { Place::Host } else { Place::Device };
        plan.add("staging buffers", memory, staged);
    }
}
