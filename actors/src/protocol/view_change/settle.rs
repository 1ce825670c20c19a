//! The content of a new view: a pure function of what everyone reported.

use super::chunk_seats::{Copies, SeatInputs, Sources, seat_chunks};
use crate::protocol::decision::Decision;
use crate::protocol::log::{Command, CommandLog, Entry};
use crate::protocol::lots::{Lot, deal, redeal};
use crate::protocol::message::{Evidence, Inventory};
use crate::protocol::spec::{Mutation, Spec};
use crate::protocol::split::is_primary;
use crate::protocol::view::{Ballot, ChunkSeat, Durable, Member, View};
use planaria_base::{NodeId, Step};
use std::collections::{BTreeMap, BTreeSet};

/// Everything a view is made from.
pub struct Settling<'a> {
    /// The run.
    pub spec: &'a Spec,
    /// The proposal's number.
    pub ballot: Ballot,
    /// By reporter.
    pub reports: &'a BTreeMap<NodeId, Inventory>,
    /// Members left out, and why.
    pub evicted: &'a BTreeMap<NodeId, Evidence>,
    /// Members that are asked to leave.
    pub draining: &'a BTreeSet<NodeId>,
    /// Unreachable copies are given up.
    pub give_up: bool,
    /// A person makes this side primary.
    pub promote: bool,
}

/// What settling came to.
pub enum Settlement {
    /// The view to install, and how many leaves are given out again.
    View(Box<View>, usize),
    /// A reporter has a view without the candidate: it was evicted itself.
    Outdated,
    /// The run must stop.
    Halt(String),
}

/// Makes the view.
#[must_use]
pub fn settle(settling: &Settling<'_>) -> Settlement {
    let Some(base) = base_view(settling) else { return Settlement::Outdated };
    if base.member(settling.ballot.candidate).is_none() {
        return Settlement::Outdated;
    }
    let members = members_of(settling, &base);
    let inside = insiders(settling, &base);
    let (decision, copies) = latest(settling, &base, &inside);
    let point = Point { base: &base, members: &members, decision };
    let step = Step(point.decided().0 + 1);
    let placed = seat_chunks(&SeatInputs {
        spec: settling.spec,
        base: &base,
        members: &members,
        copies: &copies,
        step,
    });
    let seats = match placed {
        Ok(seats) => seats,
        Err(reason) => return Settlement::Halt(reason),
    };
    if settling.give_up && seats.iter().any(|s| s.holders.is_empty()) {
        return fall_back(settling, &point);
    }
    go_on(settling, &point, seats)
}

struct Point<'a> {
    base: &'a View,
    members: &'a [Member],
    decision: Option<Decision>,
}

impl Point<'_> {
    /// The last decided step.
    fn decided(&self) -> Step {
        self.decision.as_ref().map_or(Step(0), |d| d.step)
    }

    fn takers(&self) -> Vec<(NodeId, u32)> {
        let weights: BTreeMap<NodeId, u32> =
            self.decision.iter().flat_map(|d| d.weights.iter().copied()).collect();
        let works: Vec<&Member> = self.members.iter().filter(|m| !m.draining).collect();
        let who = if works.is_empty() { self.members.iter().collect() } else { works };
        who.iter().map(|m| (m.node, weights.get(&m.node).copied().unwrap_or(1))).collect()
    }
}

/// The highest view that any reporter has installed.
fn base_view(settling: &Settling<'_>) -> Option<View> {
    let installed = settling.reports.values().filter_map(|r| r.installed.as_ref());
    installed.max_by_key(|v| v.ballot).map(|v| View::clone(v))
}

/// Reporters that are members of the base view, in the same life.
fn insiders(settling: &Settling<'_>, base: &View) -> BTreeSet<NodeId> {
    let inside = |r: &&Inventory| {
        base.member(r.member.node).is_some_and(|m| m.incarnation == r.member.incarnation)
    };
    settling.reports.values().filter(inside).map(|r| r.member.node).collect()
}

fn members_of(settling: &Settling<'_>, base: &View) -> Vec<Member> {
    let inside = insiders(settling, base);
    let mut members: Vec<Member> = Vec::new();
    for report in settling.reports.values() {
        let node = report.member.node;
        let known = base.member(node).copied().filter(|_| inside.contains(&node));
        let mut member = known.unwrap_or(Member { since: settling.ballot.number, ..report.member });
        member.draining = settling.draining.contains(&node) || (known.is_some() && member.draining);
        members.push(member);
    }
    members.sort_by_key(|m| (m.since, m.node));
    members
}

/// The last decision, and the copies that are at it or can be rolled forward to it. A newcomer's
/// later decision counts if every chunk can follow it: it then is the step in flight, told to one
/// node before its conductor died.
fn latest(
    settling: &Settling<'_>,
    base: &View,
    inside: &BTreeSet<NodeId>,
) -> (Option<Decision>, Copies) {
    let of = |known: bool| {
        let chosen = settling.reports.iter().filter(move |r| inside.contains(r.0) == known);
        chosen.filter_map(|r| r.1.decision.as_ref()).max_by_key(|d| d.step).cloned()
    };
    let ours = of(true).or_else(|| base.decision.clone());
    let log = longest_log(settling, base, inside);
    let (reports, chunks) = (settling.reports, settling.spec.chunks.len());
    let sources = Sources { reports, base, inside, log: &log, chunks };
    let ours_step = ours.as_ref().map_or(Step(0), |d| d.step);
    let next = |d: &Decision| d.step.0 == ours_step.0 + 1 && d.log == log.mark(d.step);
    if let Some(theirs) = of(false).filter(next) {
        let with_theirs = Copies::at(&sources, Some(&theirs));
        if with_theirs.is_whole() {
            return (Some(theirs), with_theirs);
        }
    }
    let mine = Copies::at(&sources, ours.as_ref());
    (ours, mine)
}

/// The step in flight goes on: live lots stay, leaves in none become lots of one.
fn go_on(settling: &Settling<'_>, point: &Point<'_>, seats: Vec<ChunkSeat>) -> Settlement {
    let spec = settling.spec;
    let step = Step(point.decided().0 + 1);
    let known = standing_lots(spec, point, step);
    let same_life = |n: NodeId| {
        let was = point.base.member(n).map(|m| m.incarnation);
        was.is_some() && point.members.iter().any(|m| m.node == n && Some(m.incarnation) == was)
    };
    let (live, dead): (Vec<Lot>, Vec<Lot>) = known.into_iter().partition(|l| same_life(l.node));
    let deaths = count_deaths(settling, point, step, &dead);
    if let Some((leaf, n)) = deaths.iter().find(|d| d.1 >= spec.limits.deaths_on_leaf) {
        return Settlement::Halt(format!("{n} nodes died on leaf {leaf} of step {step}"));
    }
    let before = live.len();
    let lots = if spec.has_bug(Mutation::LoseDeadLots) || step > spec.last_step {
        live
    } else {
        redeal(spec.leaves, &live, &point.takers())
    };
    let again = lots.len() - before;
    let view = View {
        seats,
        step,
        decision: point.decision.clone(),
        lots,
        deaths,
        ..frame_of(settling, point)
    };
    Settlement::View(Box::new(view), again)
}

/// The lots of `step` as the base view's members know them.
fn standing_lots(spec: &Spec, point: &Point<'_>, step: Step) -> Vec<Lot> {
    if step > spec.last_step {
        return Vec::new();
    }
    match &point.decision {
        Some(decision) if point.base.step != step => deal(spec.leaves, &decision.weights),
        _ => point.base.lots.clone(),
    }
}

fn count_deaths(
    settling: &Settling<'_>,
    point: &Point<'_>,
    step: Step,
    dead: &[Lot],
) -> Vec<(u32, u32)> {
    let mut deaths: BTreeMap<u32, u32> = BTreeMap::new();
    if point.base.step == step {
        deaths.extend(point.base.deaths.iter().copied());
    }
    let died =
        |n: &NodeId| matches!(settling.evicted.get(n), Some(Evidence::Closed | Evidence::Exited));
    for leaf in dead.iter().filter(|l| died(&l.node)).flat_map(Lot::leaves) {
        *deaths.entry(leaf).or_default() += 1;
    }
    deaths.into_iter().collect()
}

/// Every chunk goes back to the durable state; the lots are dealt afresh.
fn fall_back(settling: &Settling<'_>, point: &Point<'_>) -> Settlement {
    let durable = durable_of(settling, point.base, Step(u64::MAX));
    let seats = super::chunk_seats::fresh_seats(settling.spec, point.base, point.members);
    let step = Step(durable.step.0 + 1);
    let lots = if step > settling.spec.last_step {
        Vec::new()
    } else {
        deal(settling.spec.leaves, &point.takers())
    };
    let view = View {
        seats,
        step,
        decision: durable.decision.clone(),
        lots,
        restored: true,
        restores: point.base.restores + 1,
        durable,
        ..frame_of(settling, point)
    };
    Settlement::View(Box::new(view), 0)
}

/// What does not depend on whether the step goes on.
fn frame_of(settling: &Settling<'_>, point: &Point<'_>) -> View {
    let base = point.base;
    let names: Vec<NodeId> = point.members.iter().map(|m| m.node).collect();
    let gone = settling.evicted.iter().filter(|e| *e.1 >= Evidence::Left);
    let departed: Vec<NodeId> = gone.map(|e| *e.0).collect();
    let electorate: Vec<NodeId> =
        base.electorate.iter().copied().filter(|n| !departed.contains(n)).collect();
    let primary = settling.promote || is_primary(&electorate, &names);
    let ancestry = std::iter::once(base.name()).chain(base.ancestry.iter().copied());
    View {
        ballot: settling.ballot,
        ancestry: ancestry.take(View::ANCESTRY).collect(),
        members: point.members.to_vec(),
        seats: Vec::new(),
        step: Step(0),
        decision: None,
        lots: Vec::new(),
        log: merged_log(settling, base, point.decided(), primary),
        primary,
        electorate: if primary { names } else { electorate },
        former: former_of(settling, point),
        restored: false,
        restores: base.restores,
        durable: durable_of(settling, base, point.decided()),
        deaths: Vec::new(),
        departed,
    }
}

/// Members of this view's ancestors that may live on another side.
fn former_of(settling: &Settling<'_>, point: &Point<'_>) -> Vec<NodeId> {
    let gone = settling.evicted.iter().filter(|e| *e.1 < Evidence::Left).map(|e| *e.0);
    let mut former: Vec<NodeId> = point.base.former.iter().copied().chain(gone).collect();
    let bug = settling.spec.has_bug(Mutation::NeverPrune);
    former.retain(|n| bug || !point.members.iter().any(|m| m.node == *n));
    former.retain(|n| settling.evicted.get(n).is_none_or(|e| *e < Evidence::Left));
    former.sort_unstable();
    former.dedup();
    former.truncate(settling.spec.limits.former);
    former
}

/// The latest durable state up to `limit` that an insider knows.
fn durable_of(settling: &Settling<'_>, base: &View, limit: Step) -> Durable {
    let inside = insiders(settling, base);
    let known = settling.reports.iter().filter(|r| inside.contains(r.0)).map(|r| &r.1.durable);
    let known = known.chain(std::iter::once(&base.durable)).filter(|d| d.step <= limit);
    known.max_by_key(|d| d.step).unwrap_or(&base.durable).clone()
}

/// The longest log an insider knows. A side that is not primary drops entries which some member
/// lacks: nobody was told that they hold. A promotion starts a branch of its own.
fn merged_log(settling: &Settling<'_>, base: &View, decided: Step, primary: bool) -> CommandLog {
    let inside = insiders(settling, base);
    let mut log = longest_log(settling, base, &inside);
    if !primary {
        let logs = settling.reports.iter().filter(|r| inside.contains(r.0)).map(|r| &r.1.log);
        let common = logs.map(|l| l.entries().len()).min().unwrap_or(0);
        log.truncate(common.max(log.taken(decided).len()));
    }
    if settling.promote {
        let after = log.entries().last().map_or(Step(0), |e| e.at);
        let at = Step(decided.0 + 1).max(after);
        let command = Command::Promote { nonce: settling.ballot.number.0 };
        log.append(Entry { index: log.entries().len() as u32, at, command });
    }
    log
}

fn longest_log(settling: &Settling<'_>, base: &View, inside: &BTreeSet<NodeId>) -> CommandLog {
    let logs = settling.reports.iter().filter(|r| inside.contains(r.0)).map(|r| &r.1.log);
    logs.max_by_key(|l| l.entries().len()).unwrap_or(&base.log).clone()
}
