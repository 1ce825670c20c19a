//! An optimizer partition: a chunk's master values, moments and reduced gradient.
//!
//! It fixes one record per step, holds it until the decision, and applies a committed step once. Its
//! state never has a gap, and step `s - 1` is not overwritten before the decision for `s` is known.

use super::decision::Decision;
use super::{Attempt, Record};
use planaria_base::{ChunkId, Step};

/// Where the partition is in the step.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Phase {
    /// Holds the state after `Partition::state` and nothing of the next step.
    Idle,
    /// Holds the record of the attempt.
    Recorded(Attempt),
    /// The device is writing the next state.
    Applying(Step),
}

/// What the partition asks for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum PartitionEffect {
    /// Tell the conductor that the record is final.
    Recorded(Attempt, Record),
    /// Let the device apply the decision to the chunk.
    Apply(Decision),
    /// The state after this step is complete: tell the shard and the conductor.
    Complete(Step),
}

/// The partition's machine.
#[derive(Debug)]
pub struct Partition {
    /// Which chunk.
    pub chunk: ChunkId,
    state: Step,
    phase: Phase,
}

impl Partition {
    /// A partition that holds the state after `state`.
    #[must_use]
    pub fn new(chunk: ChunkId, state: Step) -> Partition {
        Partition { chunk, state, phase: Phase::Idle }
    }

    /// The step whose result it holds.
    #[must_use]
    pub fn state(&self) -> Step {
        self.state
    }

    /// The device fixed the chunk's record. A record of a later attempt replaces an earlier one: the
    /// bits are the same.
    ///
    /// # Panics
    /// If some leaf was not added exactly once (law 2).
    pub fn handle_record(&mut self, at: Attempt, record: Record, out: &mut Vec<PartitionEffect>) {
        let next = at.step.0 == self.state.0 + 1;
        let newer = match self.phase {
            Phase::Idle => true,
            Phase::Recorded(held) => at >= held,
            Phase::Applying(_) => false,
        };
        if next && newer {
            assert!(record.exactly_once, "law 2: a leaf of {} was not added once", self.chunk);
            self.phase = Phase::Recorded(at);
            out.push(PartitionEffect::Recorded(at, record));
        }
    }

    /// The conductor decided. A skip completes the step without touching the state.
    ///
    /// A partition that was started again after its record was final is told the decision too: the
    /// reduced gradient lies in the device's memory, so the decision is all that it needs.
    pub fn handle_decision(&mut self, decision: Decision, out: &mut Vec<PartitionEffect>) {
        let next = decision.step.0 == self.state.0 + 1;
        if !next || matches!(self.phase, Phase::Applying(_)) {
            return;
        }
        if decision.is_commit() {
            self.phase = Phase::Applying(decision.step);
            out.push(PartitionEffect::Apply(decision));
        } else {
            self.complete(decision.step, out);
        }
    }

    /// The device wrote the state after `step`.
    pub fn handle_applied(&mut self, step: Step, out: &mut Vec<PartitionEffect>) {
        if self.phase == Phase::Applying(step) {
            self.complete(step, out);
        }
    }

    fn complete(&mut self, step: Step, out: &mut Vec<PartitionEffect>) {
        (self.state, self.phase) = (step, Phase::Idle);
        out.push(PartitionEffect::Complete(step));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::decision::{DecisionRule, Evidence, decide};
    use planaria_models::block::LossStats;

    fn record() -> Record {
        Record {
            chunk: ChunkId(0),
            sum_squares: 1.0,
            overflow: false,
            not_finite: false,
            exactly_once: true,
        }
    }

    fn decision(step: u64, labels: u64) -> Decision {
        let rule = DecisionRule { clip: 0.0, leaf_factor: 1.0, dynamic_scale: false };
        let leaves = [LossStats { loss_sum: 1.0, labels }];
        let step = Step(step);
        decide(
            rule,
            Evidence { step, updates: 0, records: &[], leaves: &leaves, learning_rate: 1.0 },
        )
    }

    const FIRST: Attempt = Attempt { step: Step(1), number: 0 };

    /// Record, decision, applied: the state moves by one, once.
    #[test]
    fn a_committed_step_is_applied_once() {
        let (mut p, mut out) = (Partition::new(ChunkId(0), Step(0)), Vec::new());
        p.handle_record(FIRST, record(), &mut out);
        p.handle_decision(decision(1, 1), &mut out);
        p.handle_decision(decision(1, 1), &mut out);
        assert_eq!(p.state(), Step(0), "the old state stands until the device is done");
        p.handle_applied(Step(1), &mut out);
        p.handle_applied(Step(1), &mut out);
        p.handle_decision(decision(1, 1), &mut out);
        assert_eq!(p.state(), Step(1));
        let applies = out.iter().filter(|e| matches!(e, PartitionEffect::Apply(_))).count();
        assert_eq!((applies, out.len()), (1, 3));
    }

    /// A skip completes the step and applies nothing.
    #[test]
    fn a_skip_applies_nothing() {
        let (mut p, mut out) = (Partition::new(ChunkId(0), Step(0)), Vec::new());
        p.handle_record(FIRST, record(), &mut out);
        p.handle_decision(decision(1, 0), &mut out);
        assert_eq!(out.last(), Some(&PartitionEffect::Complete(Step(1))));
        assert!(!out.iter().any(|e| matches!(e, PartitionEffect::Apply(_))));
    }

    /// A decision for any step but the next changes nothing: no gap, no replay.
    #[test]
    fn a_partition_with_a_gap_does_not_apply() {
        let (mut p, mut out) = (Partition::new(ChunkId(0), Step(0)), Vec::new());
        p.handle_record(Attempt { step: Step(2), number: 0 }, record(), &mut out);
        p.handle_decision(decision(2, 1), &mut out);
        assert!(out.is_empty());
    }

    /// Law 2: a record that did not see each leaf once is never accepted.
    #[test]
    #[should_panic(expected = "law 2")]
    fn a_leaf_added_twice_is_refused() {
        let (mut p, mut out) = (Partition::new(ChunkId(0), Step(0)), Vec::new());
        p.handle_record(FIRST, Record { exactly_once: false, ..record() }, &mut out);
    }
}
