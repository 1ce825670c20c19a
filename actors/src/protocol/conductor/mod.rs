//! The conductor's step commit: all chunks Final, then one decision, told to everyone.
//!
//! A role, not a machine: the oldest member plays it, and a successor computes the same bits.

mod commands;

use super::decision::{Decision, Inputs, decide};
use super::effect::{Effect, Line, Post};
use super::holder::Scene;
use super::log::CommandLog;
use super::message::Message;
use super::record::Record;
use super::spec::Mutation;
use super::view::{Durable, View};
use planaria_base::{ChunkId, Digest, NodeId, Step};
use std::collections::{BTreeMap, BTreeSet};

/// Weight of a member that reported no speed yet.
const UNKNOWN_WEIGHT: u32 = 1000;

/// What the oldest member keeps for one view.
#[derive(Clone, Debug, Default)]
pub struct Conductor {
    finals: BTreeMap<ChunkId, Record>,
    arrival: Vec<Record>,
    /// Leaves per second, smoothed.
    speeds: BTreeMap<NodeId, u32>,
    /// Learners that keep up.
    pub caught_up: BTreeSet<(ChunkId, NodeId)>,
    /// Members whose Installed is missing.
    pub uninstalled: BTreeSet<NodeId>,
    persisted: BTreeMap<Step, BTreeMap<ChunkId, Digest>>,
    /// A person asked to stop: the next decision is the last.
    pub stops: bool,
    pending: commands::Pending,
    asked_at: u64,
}

impl Conductor {
    /// The conductor of a new view; speeds outlive views.
    pub fn install(&mut self, view: &View, me: NodeId) {
        let speeds = std::mem::take(&mut self.speeds);
        let alive = |n: &NodeId| view.member(*n).is_some();
        *self = Conductor {
            speeds: speeds.into_iter().filter(|s| alive(&s.0)).collect(),
            uninstalled: view.members.iter().map(|m| m.node).filter(|&n| n != me).collect(),
            ..Conductor::default()
        };
    }

    /// A chunk is Final; the last one decides the step.
    pub fn on_final(&mut self, chunk: ChunkId, record: Record, step: Step) {
        if record.step == step && self.finals.insert(chunk, record).is_none() {
            self.arrival.push(record);
        }
    }

    /// The decision of the step in flight, once every chunk is Final and every command that it
    /// takes is known to all.
    pub fn try_decide(&mut self, scene: Scene<'_>, log: &CommandLog) -> Option<Decision> {
        let step = scene.step;
        let complete = self.finals.len() == scene.spec.chunks.len() && step <= scene.last_step;
        if !complete || !self.pending.is_clear_up_to(step) {
            return None;
        }
        let in_order: Vec<Record> = self.finals.values().copied().collect();
        let arrived = scene.spec.has_bug(Mutation::DecideInArrivalOrder);
        let previous = scene.decisions.get(&Step(step.0 - 1));
        let weights = self.weights(scene);
        let records = if arrived { &self.arrival } else { &in_order };
        let inputs = Inputs { rule: &scene.spec.rule, previous, records, log, weights };
        let mut decision = decide(step, inputs);
        decision.ends = std::mem::take(&mut self.stops);
        self.next_step();
        Some(decision)
    }

    fn next_step(&mut self) {
        self.finals.clear();
        self.arrival.clear();
        self.asked_at = 0;
    }

    fn weights(&self, scene: Scene<'_>) -> Vec<(NodeId, u32)> {
        let known: Vec<u32> = self.speeds.values().copied().collect();
        let usual = match known.len() {
            0 => UNKNOWN_WEIGHT,
            n => (known.iter().map(|&s| u64::from(s)).sum::<u64>() / n as u64) as u32,
        };
        let weight = |n: NodeId| self.speeds.get(&n).copied().unwrap_or(usual).max(1);
        let works = scene.members.iter().filter(|m| !m.draining);
        works.map(|m| (m.node, weight(m.node))).collect()
    }

    /// A member computed a lot: its speed, smoothed by halves, weighs the next lots.
    pub fn on_lot_done(&mut self, from: NodeId, leaves: u32, micros: u64) {
        let speed = (u64::from(leaves) * 1_000_000_000 / micros.max(1)).clamp(1, 1 << 24) as u32;
        let smooth = self.speeds.get(&from).map_or(speed, |s| s / 2 + speed / 2);
        self.speeds.insert(from, smooth.max(1));
    }

    /// Asks the owners of chunks that are not Final; says whom it waits for.
    pub fn tick(
        &mut self,
        view: &View,
        scene: Scene<'_>,
        post: &mut Post,
        waits: &mut Vec<NodeId>,
    ) {
        self.pending.tick(scene, post);
        if self.asked_at == 0 {
            self.asked_at = scene.now;
        }
        let overdue = scene.now >= self.asked_at + 2 * scene.spec.timing.retry;
        if !overdue || scene.step > scene.last_step {
            return;
        }
        self.asked_at = scene.now;
        for (index, seat) in view.seats.iter().enumerate() {
            let chunk = ChunkId(index as u32);
            if let (false, Some(owner)) = (self.finals.contains_key(&chunk), seat.owner()) {
                waits.push(owner);
                post.send(owner, Message::AskFinal { step: scene.step, chunk });
            }
        }
    }

    /// A chunk's state is on disk; the last one makes the step durable.
    pub fn on_persisted(
        &mut self,
        (chunk, step, hash): (ChunkId, Step, Digest),
        scene: Scene<'_>,
    ) -> Option<(Durable, Vec<Digest>)> {
        let written = self.persisted.entry(step).or_default();
        written.insert(chunk, hash);
        let needed =
            if scene.spec.has_bug(Mutation::DurableTooEarly) { 1 } else { scene.spec.chunks.len() };
        if written.len() < needed {
            return None;
        }
        let decision = scene.decisions.get(&step)?.clone();
        let hashes = written.values().copied().collect();
        self.persisted = self.persisted.split_off(&Step(step.0 + 1));
        Some((Durable { step, decision: Some(decision) }, hashes))
    }

    /// Entries in its tables.
    #[must_use]
    pub fn table_sizes(&self) -> usize {
        self.finals.len() + self.speeds.len() + self.caught_up.len() + self.persisted.len()
    }
}

/// Why a decision stops the run, if it does: skips in a row, or a loss scale that cannot go lower;
/// with the chunks named.
#[must_use]
pub fn reason_to_stop(decision: &Decision, skips_that_stop: u32) -> Option<String> {
    let names: Vec<String> = decision.flagged.iter().map(ToString::to_string).collect();
    let (skips, step, names) = (decision.skips, decision.step, names.join(", "));
    if decision.scale_exhausted {
        return Some(format!(
            "gradients are not finite at the smallest loss scale at step {step}; chunks {names}"
        ));
    }
    (skips >= skips_that_stop)
        .then(|| format!("{skips} steps skipped in a row up to step {step}; chunks {names}"))
}

/// The line for a skipped step.
pub fn report_skip(decision: &Decision, post: &mut Post) {
    if !decision.commit {
        post.emit(Effect::Report(Line::Skipped(decision.step, decision.flagged.clone())));
    }
}
