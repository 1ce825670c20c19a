//! Who holds each chunk in a new view (PROTOCOL.md rule 8, a to d, and rule 9).

use crate::protocol::decision::Decision;
use crate::protocol::log::CommandLog;
use crate::protocol::message::{CopyReport, Inventory};
use crate::protocol::placement::{Seat, place};
use crate::protocol::spec::{Mutation, Spec};
use crate::protocol::view::{ChunkSeat, Member, View};
use planaria_base::{Digest, NodeId, Step};
use std::collections::{BTreeMap, BTreeSet};

/// One usable copy.
#[derive(Clone, Copy, Debug)]
struct Usable {
    node: NodeId,
    /// Of the state after the last decision, unless that is still to be applied.
    hash: Option<Digest>,
    /// It has the record of the step in flight.
    fixed: bool,
}

/// Where copies are looked for.
pub(super) struct Sources<'a> {
    pub(super) reports: &'a BTreeMap<NodeId, Inventory>,
    pub(super) base: &'a View,
    /// Reporters that are members of the base view.
    pub(super) inside: &'a BTreeSet<NodeId>,
    /// The longest log that one of them knows.
    pub(super) log: &'a CommandLog,
    pub(super) chunks: usize,
}

/// The usable copies of every chunk.
pub(super) struct Copies(Vec<Vec<Usable>>);

impl Copies {
    /// Copies whose state is that after the decision, or that hold what is missing to get there.
    /// A newcomer's count only if it took the same commands.
    pub(super) fn at(source: &Sources<'_>, decision: Option<&Decision>) -> Copies {
        let decided = decision.map_or(Step(0), |d| d.step);
        let mut copies = Copies(vec![Vec::new(); source.chunks]);
        for (node, report) in source.reports {
            let common = Step(decided.0.min(report.step.0.saturating_sub(1)));
            let same_branch =
                source.inside.contains(node) || report.log.mark(common) == source.log.mark(common);
            if report.restores != source.base.restores || !same_branch {
                continue;
            }
            for copy in report.copies.iter().filter(|c| c.chunk.index() < source.chunks) {
                copies.0[copy.chunk.index()].extend(usable(*node, copy, decided));
            }
        }
        copies
    }

    /// Every chunk has one.
    pub(super) fn is_whole(&self) -> bool {
        self.0.iter().all(|c| !c.is_empty())
    }
}

fn usable(node: NodeId, copy: &CopyReport, decided: Step) -> Option<Usable> {
    let has = |step: u64| copy.record.is_some_and(|r| r.step.0 == step);
    if copy.step == decided {
        return Some(Usable { node, hash: Some(copy.hash), fixed: has(decided.0 + 1) });
    }
    let one_behind = copy.step.0 + 1 == decided.0 && has(decided.0);
    one_behind.then_some(Usable { node, hash: None, fixed: false })
}

/// What seats depend on.
pub(super) struct SeatInputs<'a> {
    pub(super) spec: &'a Spec,
    pub(super) base: &'a View,
    pub(super) members: &'a [Member],
    pub(super) copies: &'a Copies,
    pub(super) step: Step,
}

/// Seats all chunks; copies that disagree about one state stop the run.
pub(super) fn seat_chunks(inputs: &SeatInputs<'_>) -> Result<Vec<ChunkSeat>, String> {
    let current: Vec<Vec<NodeId>> = (inputs.base.seats.iter().zip(&inputs.copies.0))
        .map(|(seat, copies)| in_preference(seat, copies))
        .collect();
    let target = targets(inputs.spec, inputs.members, &current);
    let mut seats = Vec::with_capacity(target.len());
    for (chunk, copies) in inputs.copies.0.iter().enumerate() {
        let mut hashes: Vec<Digest> = copies.iter().filter_map(|c| c.hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        if hashes.len() > 1 {
            let step = inputs.step.0 - 1;
            return Err(format!("copies of chunk {chunk} differ after step {step}"));
        }
        seats.push(seat_chunk(inputs, chunk, &target[chunk], &current[chunk]));
    }
    Ok(seats)
}

/// Seats for a run that starts from the durable state: everyone loads.
pub(super) fn fresh_seats(spec: &Spec, base: &View, members: &[Member]) -> Vec<ChunkSeat> {
    let current: Vec<Vec<NodeId>> = base.seats.iter().map(|s| s.holders.clone()).collect();
    let holders = targets(spec, members, &current).into_iter();
    holders.map(|holders| ChunkSeat { holders, ..ChunkSeat::default() }).collect()
}

/// Usable copies: the present holders in their order, then the rest.
fn in_preference(seat: &ChunkSeat, copies: &[Usable]) -> Vec<NodeId> {
    let has = |n: &&NodeId| copies.iter().any(|c| c.node == **n);
    let mut order: Vec<NodeId> = seat.holders.iter().filter(has).copied().collect();
    let rest = copies.iter().map(|c| c.node).filter(|n| !seat.holders.contains(n));
    order.extend(rest.collect::<Vec<_>>());
    order
}

fn targets(spec: &Spec, members: &[Member], current: &[Vec<NodeId>]) -> Vec<Vec<NodeId>> {
    let stays: Vec<&Member> = members.iter().filter(|m| !m.draining).collect();
    let who = if stays.is_empty() { members.iter().collect() } else { stays };
    let seat = |m: &&Member| Seat { node: m.node, host: m.host, capacity: m.capacity };
    let nodes: Vec<Seat> = who.iter().map(seat).collect();
    let bytes: Vec<u64> = spec.chunks.iter().map(|c| c.bytes).collect();
    place(&bytes, &nodes, spec.replicas, current)
}

/// Holders: the copies that are where they should be, and as many others as replication needs;
/// the owner has the record if anyone has, else stays, else is the first. Learners: the rest of
/// the target.
fn seat_chunk(
    inputs: &SeatInputs<'_>,
    chunk: usize,
    target: &[NodeId],
    current: &[NodeId],
) -> ChunkSeat {
    let copies = &inputs.copies.0[chunk];
    let fixed = |n: &NodeId| copies.iter().any(|c| c.node == *n && c.fixed);
    let (mut holders, others): (Vec<NodeId>, Vec<NodeId>) =
        current.iter().copied().partition(|n| target.contains(n));
    let record = others.iter().copied().find(|n| fixed(n) && !holders.iter().any(fixed));
    holders.extend(record);
    let more = others.into_iter().filter(|n| Some(*n) != record);
    holders.extend(more.take(target.len().saturating_sub(holders.len())));
    let was_owner = inputs.base.seats[chunk].owner();
    let rank = |n: &NodeId| (!fixed(n), Some(*n) != target.first().copied(), Some(*n) != was_owner);
    let sum_lives = was_owner.filter(|n| holders.contains(n));
    let best = holders.iter().copied().min_by_key(rank);
    let owner = match (best, sum_lives) {
        (Some(best), Some(live)) if !fixed(&best) && inputs.base.step == inputs.step => Some(live),
        (best, _) => best,
    };
    if let Some(at) = owner.and_then(|o| holders.iter().position(|n| *n == o)) {
        holders[..=at].rotate_right(1);
    }
    let mut learners: Vec<NodeId> =
        target.iter().copied().filter(|n| !holders.contains(n)).collect();
    if holders.is_empty() || inputs.spec.has_bug(Mutation::NoRereplication) {
        learners.clear();
    }
    let fixed_at = holders.iter().copied().filter(fixed).collect();
    ChunkSeat { holders, learners, fixed_at }
}
