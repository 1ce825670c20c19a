//! Bytes of one node.

use super::{BLOCKS_IN_FLIGHT, Layout, Machine, ModelCost, Order, Place, STAGED_CHUNKS, Workload};
use crate::plan::Precision;
use planaria_base::limits::CHUNK_ELEMENTS;
use serde::Serialize;

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

    /// Ours, for matrices and for other parameters.
    #[must_use]
    pub fn ours(work: &Workload) -> [StateBytes; 2] {
        let [matrix, vector] = work.moment_bytes;
        let of = |value, optimizer| StateBytes {
            value,
            gradient: 4,
            optimizer,
            gradients_sharded_from: 1,
        };
        match work.precision {
            Precision::Fp32 => [of(4, matrix), of(4, vector)],
            Precision::Bf16 | Precision::Fp16 => [of(2, 4 + matrix), of(4, 4 + vector)],
        }
    }
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
/// parameter of the blocks in flight, or of all blocks when leaves go one after another.
/// Activations: what one leaf saves, times the leaves that are in memory at once.
#[must_use]
pub fn memory(cost: &ModelCost, work: &Workload, machine: &Machine, layout: &Layout) -> MemoryPlan {
    let mut plan = MemoryPlan::default();
    states(&mut plan, cost, work, (machine.nodes, layout));
    let local = work.local_leaves(machine.nodes);
    let in_flight = cost.largest_block_params.saturating_mul(BLOCKS_IN_FLIGHT).min(cost.params());
    let accumulated = match layout.order {
        Order::DepthFirst if local > 1 => cost.params(),
        _ => in_flight,
    };
    plan.add("64-bit accumulators", Place::Device, accumulated.saturating_mul(8));
    if layout.stage == 3 && machine.nodes > 1 || layout.parameters != Place::Device {
        let value = StateBytes::ours(work)[0].value;
        plan.add("gathered blocks", Place::Device, in_flight.saturating_mul(value));
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
    plan.add("scratch", Place::Device, cost.scratch_bytes);
    plan.add("process", Place::Device, cost.process_bytes);
    plan
}

fn states(
    plan: &mut MemoryPlan,
    cost: &ModelCost,
    work: &Workload,
    (nodes, layout): (u64, &Layout),
) {
    let parts = StateBytes::ours(work);
    let counts = [cost.matrix_params, cost.vector_params];
    let mut sums = [0u64; 3];
    for (bytes, params) in parts.into_iter().zip(counts) {
        let one = model_states(bytes, layout.stage, params, nodes);
        for (sum, bytes) in sums.iter_mut().zip(one) {
            *sum = sum.saturating_add(bytes);
        }
    }
    let [values, gradients, optimizer] = sums;
    plan.add("parameter values", layout.parameters, values);
    plan.add("reduced gradients", layout.optimizer, gradients);
    plan.add("optimizer states", layout.optimizer, optimizer);
    let replicas = work.replicas.min(nodes.saturating_sub(1));
    if layout.stage > 0 {
        let copy = gradients.saturating_add(optimizer);
        plan.add("replicas", layout.optimizer, copy.saturating_mul(replicas));
    }
    let whole = parts[0].optimizer + parts[0].gradient;
    if layout.optimizer == Place::Nvme {
        let staged = STAGED_CHUNKS * CHUNK_ELEMENTS.min(cost.params()) * whole;
        let memory = if layout.parameters == Place::Host { Place::Host } else { Place::Device };
        plan.add("staging buffers", memory, staged);
    }
}
