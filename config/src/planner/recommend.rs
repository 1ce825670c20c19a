//! Every layout, the fastest that fits, and why the others do not.

use super::{
    Layout, Machine, MemoryPlan, ModelCost, Order, Place, StepTime, Traffic, Workload, memory,
    time, traffic,
};
use crate::schema::{Status, features};
use planaria_base::units::format_bytes;
use serde::Serialize;
use std::cmp::Reverse;

/// One layout, judged.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Candidate {
    /// The layout.
    pub layout: Layout,
    /// Bytes of one node.
    pub memory: MemoryPlan,
    /// Bytes moved in one step.
    pub traffic: Traffic,
    /// Seconds of one step.
    pub time: StepTime,
    /// Whether it fits.
    pub verdict: Verdict,
    /// What this build does not have yet and the layout needs.
    pub not_built: Option<&'static str>,
}

impl Candidate {
    fn fits(&self) -> bool {
        self.verdict == Verdict::Fits
    }
}

/// Whether a layout fits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "verdict", content = "why")]
pub enum Verdict {
    /// It does.
    Fits,
    /// It does not, and why.
    TooLarge(String),
}

/// All layouts for one run on these machines.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Recommendation {
    /// Index of the fastest that fits and is built, or, if none is, of the fastest that fits; of
    /// equals, the one with the fewest parts that move.
    pub best: Option<usize>,
    /// All, simplest first.
    pub candidates: Vec<Candidate>,
}

/// Judges one layout.
#[must_use]
pub fn evaluate(cost: &ModelCost, work: &Workload, machine: &Machine, layout: Layout) -> Candidate {
    let memory = memory(cost, work, machine, &layout);
    let traffic = traffic(cost, work, machine, &layout);
    let time = time(cost, work, machine, (&layout, &traffic));
    let verdict = verdict(&memory, machine);
    let not_built = not_built(&layout, machine.nodes);
    Candidate { layout, memory, traffic, time, verdict, not_built }
}

fn not_built(layout: &Layout, nodes: u64) -> Option<&'static str> {
    let offloads = (layout.optimizer, layout.parameters) != (Place::Device, Place::Device);
    let needs = [(nodes > 1, features::RING), (offloads, features::OFFLOAD)];
    needs.into_iter().find_map(|(needed, status)| match status {
        Status::NotBuilt(why) if needed => Some(why),
        _ => None,
    })
}

/// Judges every layout that these machines allow.
#[must_use]
pub fn recommend(cost: &ModelCost, work: &Workload, machine: &Machine) -> Recommendation {
    let candidates: Vec<Candidate> = layouts(machine, work)
        .into_iter()
        .map(|layout| evaluate(cost, work, machine, layout))
        .collect();
    let fitting = candidates.iter().enumerate().filter(|(_, c)| c.fits());
    let cost = |c: &Candidate| (c.not_built.is_some(), c.time.step_s);
    let best = fitting
        .map(|(index, c)| (index, cost(c)))
        .min_by(|a, b| a.1.0.cmp(&b.1.0).then(a.1.1.total_cmp(&b.1.1)))
        .map(|(index, _)| index);
    Recommendation { best, candidates }
}

/// Simplest first, so that of two equally fast ones the simpler is chosen; leaves side by side before
/// one after another, as the trainer does.
fn layouts(machine: &Machine, work: &Workload) -> Vec<Layout> {
    let mut places = vec![Place::Device];
    if machine.host_bytes.is_some() {
        places.push(Place::Host);
    }
    if machine.disk_bytes.is_some() {
        places.push(Place::Nvme);
    }
    let orders: &[Order] = if work.local_leaves(machine.nodes) > 1 {
        &[Order::DepthFirst, Order::BreadthFirst]
    } else {
        &[Order::BreadthFirst]
    };
    let mut list = Vec::new();
    for recompute in [false, true] {
        for &order in orders {
            for stage in 0..=3 {
                for &optimizer in &places {
                    for &parameters in &places {
                        list.push(Layout { stage, optimizer, parameters, recompute, order });
                    }
                }
            }
        }
    }
    list.retain(|s| is_allowed(s, machine.nodes));
    list.sort_by_key(|s| (s.recompute, s.optimizer, s.parameters, s.stage, Reverse(s.order)));
    list
}

/// DeepSpeed's rules: states move to the host from stage 1, to a drive and with parameters at stage
/// 3. On one node all stages are the same, so 0 and 3 stand for all.
fn is_allowed(layout: &Layout, nodes: u64) -> bool {
    let needed = match (layout.optimizer, layout.parameters) {
        (_, Place::Host | Place::Nvme) | (Place::Nvme, _) => 3,
        (Place::Host, Place::Device) => 1,
        (Place::Device, Place::Device) => 0,
    };
    layout.stage >= needed && (nodes > 1 || layout.stage == needed)
}

fn verdict(memory: &MemoryPlan, machine: &Machine) -> Verdict {
    let room = [
        (Place::Device, "memory", Some(machine.device_bytes)),
        (Place::Host, "host memory", machine.host_bytes),
        (Place::Nvme, "drive", machine.disk_bytes),
    ];
    for (place, name, room) in room {
        let (needs, room) = (memory.bytes(place), room.unwrap_or(0));
        if needs > room {
            let largest = memory.largest(place).map_or(String::new(), |item| {
                let over = format_bytes(needs - room);
                let part = format_bytes(item.bytes);
                format!(", {over} too many; the largest part is {}, {part}", item.name)
            });
            let (needs, room) = (format_bytes(needs), format_bytes(room));
            return Verdict::TooLarge(format!("needs {needs} of {room} {name}{largest}"));
        }
    }
    Verdict::Fits
}
