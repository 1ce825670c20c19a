//! One pipeline stage: walks the schedule, keeps the device busy, gathers blocks ahead of use.

use super::{Attempt, Op};
use planaria_base::BlockId;
use std::collections::BTreeSet;

/// Ops that may be with the device at once: enough that it never waits for the actor's answer.
pub const OPS_IN_FLIGHT: usize = 8;

/// Blocks whose parameters are asked for before the op that needs them is submitted.
pub const BLOCKS_AHEAD: usize = 2;

/// What the stage asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StageEffect {
    /// Ask the block's shards for its parameters as of the step's start.
    Gather(Attempt, BlockId),
    /// Give the op to the device, behind all earlier ones.
    Submit(Attempt, Op),
    /// Every op is done.
    Finished(Attempt),
}

/// The stage's machine.
#[derive(Debug)]
pub struct Stage {
    program: Vec<Op>,
    blocks: u32,
    at: Attempt,
    /// Ops submitted, and ops done: both are prefixes of the program.
    submitted: usize,
    done: usize,
    asked: BTreeSet<BlockId>,
    gathered: BTreeSet<BlockId>,
    running: bool,
}

impl Stage {
    /// A stage of `blocks` blocks (and the loss block) that runs `program` each step.
    #[must_use]
    pub fn new(program: Vec<Op>, blocks: u32) -> Stage {
        Stage {
            program,
            blocks,
            at: Attempt::default(),
            submitted: 0,
            done: 0,
            asked: BTreeSet::new(),
            gathered: BTreeSet::new(),
            running: false,
        }
    }

    /// Starts an attempt; whatever was under way is forgotten.
    pub fn handle_begin(&mut self, at: Attempt, out: &mut Vec<StageEffect>) {
        self.at = at;
        (self.submitted, self.done, self.running) = (0, 0, true);
        self.asked.clear();
        self.gathered.clear();
        self.advance(out);
    }

    /// A block's parameters are there.
    pub fn handle_gathered(&mut self, at: Attempt, block: BlockId, out: &mut Vec<StageEffect>) {
        if at == self.at && self.running {
            self.gathered.insert(block);
            self.advance(out);
        }
    }

    /// The device finished the oldest op it had from us.
    ///
    /// # Panics
    /// If it finished an op that was not the oldest: the device keeps order.
    pub fn handle_done(&mut self, at: Attempt, op: Op, out: &mut Vec<StageEffect>) {
        if at != self.at || !self.running {
            return;
        }
        assert!(self.done < self.submitted, "the device finished {op:?}, which it was not given");
        assert_eq!(self.program[self.done], op, "the device finishes ops in order");
        self.done += 1;
        if self.done == self.program.len() {
            self.running = false;
            out.push(StageEffect::Finished(self.at));
        } else {
            self.advance(out);
        }
    }

    fn advance(&mut self, out: &mut Vec<StageEffect>) {
        self.gather_ahead(out);
        while self.submitted < self.program.len()
            && self.submitted - self.done < OPS_IN_FLIGHT
            && self.is_ready(self.program[self.submitted])
        {
            out.push(StageEffect::Submit(self.at, self.program[self.submitted]));
            self.submitted += 1;
            self.gather_ahead(out);
        }
    }

    fn is_ready(&self, op: Op) -> bool {
        op.block(self.blocks).is_none_or(|block| self.gathered.contains(&block))
    }

    /// Asks for the next blocks that the program needs and that were not asked for.
    fn gather_ahead(&mut self, out: &mut Vec<StageEffect>) {
        let mut ahead = 0;
        let mut last = None;
        for op in &self.program[self.submitted..] {
            let Some(block) = op.block(self.blocks).filter(|&b| last != Some(b)) else { continue };
            if ahead == BLOCKS_AHEAD {
                break;
            }
            (ahead, last) = (ahead + 1, Some(block));
            if self.asked.insert(block) {
                out.push(StageEffect::Gather(self.at, block));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::schedule::{Order, ops};
    use planaria_base::Step;

    /// Runs a stage against an instant device and instant shards; returns the ops in the order in
    /// which they were submitted.
    fn run(stage: &mut Stage, at: Attempt) -> Vec<Op> {
        let mut queue = Vec::new();
        let mut submitted = Vec::new();
        stage.handle_begin(at, &mut queue);
        while !queue.is_empty() {
            let mut next = Vec::new();
            for effect in queue {
                match effect {
                    StageEffect::Gather(at, block) => stage.handle_gathered(at, block, &mut next),
                    StageEffect::Submit(at, op) => {
                        submitted.push(op);
                        stage.handle_done(at, op, &mut next);
                    }
                    StageEffect::Finished(_) => return submitted,
                }
            }
            queue = next;
        }
        panic!("the stage stopped without finishing");
    }

    /// The device sees the schedule, in order, whatever the order.
    #[test]
    fn a_stage_submits_its_program_in_order() {
        for order in [Order::BreadthFirst, Order::DepthFirst] {
            let program = ops(order, 3, 2);
            let mut stage = Stage::new(program.clone(), 3);
            let at = Attempt { step: Step(1), number: 0 };
            assert_eq!(run(&mut stage, at), program);
        }
    }

    /// No op goes to the device before its block's parameters are there.
    #[test]
    fn an_op_waits_for_its_block() {
        let mut stage = Stage::new(ops(Order::BreadthFirst, 2, 1), 2);
        let at = Attempt { step: Step(1), number: 0 };
        let mut out = Vec::new();
        stage.handle_begin(at, &mut out);
        assert_eq!(
            out.iter()
                .filter(|e| matches!(e, StageEffect::Submit(_, op) if op.block(2).is_some()))
                .count(),
            0
        );
        out.clear();
        stage.handle_gathered(at, BlockId(0), &mut out);
        assert!(
            out.contains(&StageEffect::Submit(at, Op::Forward(BlockId(0), planaria_base::Leaf(0))))
        );
    }

    /// An answer that belongs to an earlier attempt changes nothing.
    #[test]
    fn a_stale_answer_is_ignored() {
        let mut stage = Stage::new(ops(Order::BreadthFirst, 2, 1), 2);
        let old = Attempt { step: Step(1), number: 0 };
        let new = Attempt { step: Step(1), number: 1 };
        let mut out = Vec::new();
        stage.handle_begin(old, &mut out);
        stage.handle_begin(new, &mut out);
        out.clear();
        stage.handle_gathered(old, BlockId(0), &mut out);
        stage.handle_done(old, Op::Load(planaria_base::Leaf(0)), &mut out);
        assert!(out.is_empty());
    }
}
