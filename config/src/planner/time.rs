//! How long a step will take, from measured rates.

use super::{Layout, Machine, ModelCost, ParamCost, StateBytes, Traffic, Workload};
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
    /// The optimizer's pass over its states, and its products.
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
    // Each leaf's gradient is read and written once: as 64-bit words, or in place where one leaf of
    // one node is the whole step.
    let word = if machine.nodes <= 1 && work.leaves <= 1 { 4.0 } else { 8.0 };
    let sum_s = local * cost.params() as f64 * 2.0 * word / rates.memory_bytes_per_s;
    let wire_s = traffic.wire_bytes as f64 / rates.wire_bytes_per_s;
    let owners = if layout.stage >= 1 { machine.nodes.max(1) } else { 1 };
    let pass_s = optimizer_bytes(cost, work) / rates.memory_bytes_per_s;
    let optimizer_s = (pass_s + cost.update_flops as f64 / rates.flops_per_s) / owners as f64;
    let offload_s = traffic.host_link_bytes as f64 / rates.host_link_bytes_per_s
        + traffic.disk_bytes as f64 / rates.disk_bytes_per_s;
    let step_s = (compute_s + sum_s).max(wire_s) + optimizer_s.max(offload_s);
    StepTime { compute_s, sum_s, wire_s, optimizer_s, offload_s, step_s }
}

/// Bytes of memory that an update touches: states read and written, the gradient read, the working
/// value written (in fp32 it is the master, which is read too).
fn optimizer_bytes(cost: &ModelCost, work: &Workload) -> f64 {
    let each = |p: &ParamCost| {
        let b = StateBytes::ours(work.precision, p);
        let master = if b.value == 4 { 4 } else { 0 };
        p.elements as f64 * (2 * b.optimizer + b.gradient + b.value + master) as f64
    };
    cost.params.iter().map(each).sum()
}
