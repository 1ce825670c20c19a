//! How long a step will take, from measured rates.

use super::{Layout, Machine, ModelCost, StateBytes, Traffic, Workload};
use serde::Serialize;

/// Seconds of one step.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct StepTime {
    /// Matrix products of the node that has most leaves.
    pub compute_s: f64,
    /// Adding gradients into the accumulators, which competes with the products for cores.
    pub sum_s: f64,
    /// The wire, overlapped with both.
    pub wire_s: f64,
    /// The optimizer's pass over its states.
    pub optimizer_s: f64,
    /// Moving states to and from host or drive, overlapped with the optimizer.
    pub offload_s: f64,
    /// All of it.
    pub step_s: f64,
}

/// Predicts a step: compute and sums beside the wire, then the optimizer beside its states' moves.
#[must_use]
pub fn time(
    cost: &ModelCost,
    work: &Workload,
    machine: &Machine,
    (layout, traffic): (&Layout, &Traffic),
) -> StepTime {
    let rates = &machine.rates;
    let local = work.local_leaves(machine.nodes) as f64;
    let forwards = if layout.recompute { 2.0 } else { 1.0 };
    let flops = cost.forward_flops as f64 * forwards + cost.backward_flops as f64;
    let compute_s = local * flops / rates.flops_per_s;
    // Each leaf's gradient is read and written once as 64-bit words.
    let sum_s = local * cost.params() as f64 * 16.0 / rates.memory_bytes_per_s;
    let wire_s = traffic.wire_bytes as f64 / rates.wire_bytes_per_s;
    let owners = if layout.stage >= 1 { machine.nodes.max(1) } else { 1 };
    let optimizer_s = optimizer_bytes(cost, work) / owners as f64 / rates.memory_bytes_per_s;
    let offload_s = traffic.host_link_bytes as f64 / rates.host_link_bytes_per_s
        + traffic.disk_bytes as f64 / rates.disk_bytes_per_s;
    let step_s = (compute_s + sum_s).max(wire_s) + optimizer_s.max(offload_s);
    StepTime { compute_s, sum_s, wire_s, optimizer_s, offload_s, step_s }
}

/// Bytes of memory that an update touches: states read and written, the gradient read, the working
/// value written.
fn optimizer_bytes(cost: &ModelCost, work: &Workload) -> f64 {
    let each = |params: u64, b: StateBytes| {
        params as f64 * (2 * b.optimizer + b.gradient + b.value) as f64
    };
    let [matrix, vector] = StateBytes::ours(work);
    each(cost.matrix_params, matrix) + each(cost.vector_params, vector)
}
