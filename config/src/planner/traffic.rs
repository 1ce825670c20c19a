//! Bytes that one node moves in one step.

use super::{Layout, Machine, ModelCost, Order, ParamCost, Place, StateBytes, Workload};
use serde::Serialize;

/// Bytes that one node moves in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Traffic {
    /// Sent; as many are received.
    pub wire_bytes: u64,
    /// Of these, gradients on their way to owners.
    pub gradient_bytes: u64,
    /// Of these, parameter values (at stage 0: reduced gradients) on their way to everybody.
    pub value_bytes: u64,
    /// Of these, reduced gradients on their way to replicas.
    pub replica_bytes: u64,
    /// Between device and host.
    pub host_link_bytes: u64,
    /// Read from and written to the drive.
    pub disk_bytes: u64,
}

/// Adds up one step's bytes.
///
/// # Cost
/// With s = (N-1)/N: exact gradients 8Ps. Stage 0 sends reduced gradients back, 4Ps; stages 1 and 2
/// values, 2Ps (fp32: 4Ps); stage 3 the same once in forward and once in backward, times L when
/// leaves go one after another. A replica takes 4P/N. NVMe: 24 bytes a parameter of master and
/// moments, and 8 for its gradient.
#[must_use]
pub fn traffic(cost: &ModelCost, work: &Workload, machine: &Machine, layout: &Layout) -> Traffic {
    let nodes = machine.nodes.max(1);
    let bytes = |p: &ParamCost| StateBytes::ours(work.precision, p);
    let values = cost.sum(|p| p.elements.saturating_mul(bytes(p).value));
    // States read and written once, gradients written and read once.
    let optimizer =
        cost.sum(|p| p.elements.saturating_mul(2 * (bytes(p).optimizer + bytes(p).gradient)));
    let away = |bytes: u64| (u128::from(bytes) * u128::from(nodes - 1) / u128::from(nodes)) as u64;
    let gradient_bytes = away(cost.params().saturating_mul(8));
    let passes = passes(work.local_leaves(nodes), layout);
    let value_bytes = match layout.stage {
        0 => away(cost.params().saturating_mul(4)),
        1 | 2 => away(values),
        _ => away(values).saturating_mul(passes),
    };
    let replicas = if layout.stage == 0 { 0 } else { work.replicas.min(nodes - 1) };
    let replica_bytes = cost.params().saturating_mul(4).div_ceil(nodes).saturating_mul(replicas);
    let shard =
        |bytes: u64, from: u8| if layout.stage >= from { bytes.div_ceil(nodes) } else { bytes };
    let moved = |place: Place| {
        let mut bytes = 0u64;
        if layout.optimizer == place {
            bytes = bytes.saturating_add(shard(optimizer, 1));
        }
        if layout.parameters == place {
            let moves = passes.saturating_add(1);
            bytes = bytes.saturating_add(shard(values, 3).saturating_mul(moves));
        }
        bytes
    };
    Traffic {
        wire_bytes: gradient_bytes.saturating_add(value_bytes).saturating_add(replica_bytes),
        gradient_bytes,
        value_bytes,
        replica_bytes,
        host_link_bytes: moved(Place::Host),
        disk_bytes: moved(Place::Nvme),
    }
}

/// How often a step needs each block's values: once a pass, for each leaf if they go one by one.
fn passes(local_leaves: u64, layout: &Layout) -> u64 {
    match layout.order {
        Order::BreadthFirst => 2,
        Order::DepthFirst => local_leaves.saturating_mul(2),
    }
}
