//! The conductor on one node: begins a step, collects what it needs to decide, decides, and sees
//! the decision applied everywhere.

use super::decision::{Decision, DecisionRule, Evidence, Skip, Verdict, decide};
use super::{Attempt, Record};
use planaria_base::{ChunkId, Leaf, Step};
use planaria_models::block::LossStats;

/// Tries at one step before the run stops.
pub const ATTEMPTS_PER_STEP: u32 = 4;

/// Skips in a row because of overflow before the run stops.
pub const OVERFLOWS_IN_A_ROW: u32 = 8;

/// What the conductor asks for.
#[derive(Clone, PartialEq, Debug)]
pub enum ConductorEffect {
    /// Everybody: the attempt starts.
    Begin(Attempt),
    /// Every partition: this is the decision.
    Decide(Decision),
    /// The step is complete everywhere.
    Complete(Decision),
    /// The run cannot go on.
    Stop(Stop),
}

/// Why the conductor gives up.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum Stop {
    /// The same step failed again and again.
    #[error("step {step} failed {ATTEMPTS_PER_STEP} times, the last time because {reason}; the state after step {} is intact", step.0 - 1)]
    Attempts {
        /// Which step.
        step: Step,
        /// The last failure.
        reason: String,
    },
    /// The gradient overflowed the grid again and again.
    #[error(
        "gradients of chunk {chunk} were not finite or too large for the grid {OVERFLOWS_IN_A_ROW} steps running; lower the learning rate, or raise numerics.grid_max_log2 if large gradients are expected"
    )]
    Overflow {
        /// The chunk of the last overflow.
        chunk: ChunkId,
    },
}

/// The conductor's machine.
#[derive(Debug)]
pub struct Conductor {
    rule: DecisionRule,
    at: Attempt,
    /// Learning rate of the step under way, should it commit.
    learning_rate: f64,
    updates: u64,
    overflows: u32,
    leaves: Vec<Option<LossStats>>,
    records: Vec<Option<Record>>,
    stage_finished: bool,
    decided: Option<Decision>,
    applied: Vec<bool>,
}

impl Conductor {
    /// A conductor of a run that has applied `updates` updates in `state` steps.
    #[must_use]
    pub fn new(
        rule: DecisionRule,
        leaves: u32,
        chunks: u32,
        state: Step,
        updates: u64,
    ) -> Conductor {
        Conductor {
            rule,
            at: Attempt { step: state, number: 0 },
            learning_rate: 0.0,
            updates,
            overflows: 0,
            leaves: vec![None; leaves as usize],
            records: vec![None; chunks as usize],
            stage_finished: false,
            decided: None,
            applied: vec![false; chunks as usize],
        }
    }

    /// Starts the next step.
    pub fn handle_step(&mut self, learning_rate: f64, out: &mut Vec<ConductorEffect>) {
        self.at = Attempt { step: Step(self.at.step.0 + 1), number: 0 };
        self.learning_rate = learning_rate;
        self.decided = None;
        self.applied.fill(false);
        self.begin(out);
    }

    fn begin(&mut self, out: &mut Vec<ConductorEffect>) {
        self.leaves.fill(None);
        self.records.fill(None);
        self.stage_finished = false;
        out.push(ConductorEffect::Begin(self.at));
    }

    /// A leaf's loss is known.
    pub fn handle_loss(&mut self, at: Attempt, leaf: Leaf, stats: LossStats) {
        if at == self.at {
            self.leaves[leaf.index()] = Some(stats);
        }
    }

    /// The stage ran its program to the end.
    pub fn handle_finished(&mut self, at: Attempt, out: &mut Vec<ConductorEffect>) {
        if at == self.at {
            self.stage_finished = true;
            self.decide_if_ready(out);
        }
    }

    /// A chunk's record is final.
    pub fn handle_record(&mut self, at: Attempt, record: Record, out: &mut Vec<ConductorEffect>) {
        if at == self.at {
            self.records[record.chunk.index()] = Some(record);
            self.decide_if_ready(out);
        }
    }

    /// A chunk's state after the step is complete.
    pub fn handle_complete(&mut self, step: Step, chunk: ChunkId, out: &mut Vec<ConductorEffect>) {
        let Some(decision) = self.decided.filter(|d| d.step == step) else { return };
        if !std::mem::replace(&mut self.applied[chunk.index()], true)
            && self.applied.iter().all(|&a| a)
        {
            out.push(ConductorEffect::Complete(decision));
        }
    }

    /// Something failed before the decision: try the step again from the state before it.
    pub fn handle_failed(&mut self, at: Attempt, reason: &str, out: &mut Vec<ConductorEffect>) {
        if at != self.at || self.decided.is_some() {
            return;
        }
        self.at.number += 1;
        if self.at.number == ATTEMPTS_PER_STEP {
            let stop = Stop::Attempts { step: at.step, reason: reason.to_owned() };
            out.push(ConductorEffect::Stop(stop));
        } else {
            self.begin(out);
        }
    }

    /// The decision for the step under way, if it was made: what a restarted actor is told.
    #[must_use]
    pub fn decision(&self) -> Option<Decision> {
        self.decided
    }

    /// The attempt under way.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.at
    }

    fn decide_if_ready(&mut self, out: &mut Vec<ConductorEffect>) {
        if self.decided.is_some() || !self.stage_finished {
            return;
        }
        let records: Option<Vec<Record>> = self.records.iter().copied().collect();
        let leaves: Option<Vec<LossStats>> = self.leaves.iter().copied().collect();
        let (Some(records), Some(leaves)) = (records, leaves) else { return };
        let decision = decide(
            self.rule,
            Evidence {
                step: self.at.step,
                updates: self.updates,
                records: &records,
                leaves: &leaves,
                learning_rate: self.learning_rate,
            },
        );
        self.decided = Some(decision);
        self.updates = decision.updates;
        self.count_overflows(decision.verdict, out);
        out.push(ConductorEffect::Decide(decision));
    }

    fn count_overflows(&mut self, verdict: Verdict, out: &mut Vec<ConductorEffect>) {
        let Verdict::Skip(Skip::Overflow(chunk)) = verdict else {
            self.overflows = 0;
            return;
        };
        self.overflows += 1;
        if self.overflows == OVERFLOWS_IN_A_ROW {
            out.push(ConductorEffect::Stop(Stop::Overflow { chunk }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conductor() -> Conductor {
        let rule = DecisionRule { clip: 1.0, leaf_factor: 1.0, dynamic_scale: false };
        Conductor::new(rule, 2, 2, Step(0), 0)
    }

    fn record(chunk: u32, overflow: bool) -> Record {
        Record {
            chunk: ChunkId(chunk),
            sum_squares: 1.0,
            overflow,
            not_finite: false,
            exactly_once: true,
        }
    }

    fn run_step(c: &mut Conductor, overflow: bool) -> Vec<ConductorEffect> {
        let mut out = Vec::new();
        c.handle_step(0.1, &mut out);
        let at = c.attempt();
        for leaf in 0..2 {
            c.handle_loss(at, Leaf(leaf), LossStats { loss_sum: 1.0, labels: 4 });
        }
        c.handle_record(at, record(0, overflow), &mut out);
        c.handle_finished(at, &mut out);
        c.handle_record(at, record(1, false), &mut out);
        c.handle_complete(at.step, ChunkId(1), &mut out);
        c.handle_complete(at.step, ChunkId(1), &mut out);
        c.handle_complete(at.step, ChunkId(0), &mut out);
        out
    }

    /// One step: begin, decide once everything is there, complete once every chunk is.
    #[test]
    fn a_step_begins_decides_and_completes() {
        let mut c = conductor();
        let out = run_step(&mut c, false);
        assert!(matches!(
            out.as_slice(),
            [ConductorEffect::Begin(_), ConductorEffect::Decide(_), ConductorEffect::Complete(d)]
                if d.is_commit() && d.updates == 1 && d.labels == 8
        ));
    }

    /// A failure starts the step again under a new attempt, and the old one's events are void.
    #[test]
    fn a_failure_tries_again_and_gives_up_at_the_limit() {
        let mut c = conductor();
        let mut out = Vec::new();
        c.handle_step(0.1, &mut out);
        let first = c.attempt();
        c.handle_failed(first, "a panic", &mut out);
        assert_eq!(c.attempt().number, 1);
        c.handle_record(first, record(0, false), &mut out);
        assert!(c.records[0].is_none(), "an event of the failed attempt is void");
        for number in 1..ATTEMPTS_PER_STEP {
            assert_eq!(c.attempt().number, number);
            c.handle_failed(c.attempt(), "a panic", &mut out);
        }
        assert!(matches!(out.last(), Some(ConductorEffect::Stop(Stop::Attempts { .. }))));
    }

    /// Eight overflow skips in a row stop the run and name the chunk; a good step resets the count.
    #[test]
    fn eight_overflows_in_a_row_stop_the_run() {
        let mut c = conductor();
        for _ in 0..7 {
            run_step(&mut c, true);
        }
        assert!(!run_step(&mut c, false).iter().any(|e| matches!(e, ConductorEffect::Stop(_))));
        let mut last = Vec::new();
        for _ in 0..8 {
            last = run_step(&mut c, true);
        }
        assert!(last.contains(&ConductorEffect::Stop(Stop::Overflow { chunk: ChunkId(0) })));
    }
}
