//! A pipeline stage's machine: walks the programs of its lots, keeps the device busy, gathers blocks
//! ahead of use and lets go of them after it.
//!
//! A lot's program is made by [`ops`]; a block's sums leave the device ([`DeviceOp::Close`]) once the
//! protocol has asked for each of its parts, so a full window of partials makes the device wait
//! instead of filling memory.

use crate::protocol::lots::LotId;
use crate::protocol::message::PartialKey;
use crate::step::Op;
use crate::step::schedule::{Order, ops};
use planaria_base::{BlockId, Leaf, Step};
use planaria_models::partials::Part;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Ops that may be with the device at once: enough that it never waits for the actor's answer.
pub const OPS_IN_FLIGHT: usize = 8;

/// Blocks whose values are asked for before the op that needs them is submitted.
pub const BLOCKS_AHEAD: usize = 2;

/// A piece of device work. Leaves are numbered inside the lot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DeviceOp {
    /// A lot of a step starts: leaves `start..start + len`.
    Begin {
        /// The step.
        step: Step,
        /// Its first leaf.
        start: u32,
        /// How many.
        len: u32,
        /// How often lots had been abandoned before: tells what is void apart.
        generation: u64,
    },
    /// Read a leaf's samples.
    Load(Leaf),
    /// A block's forward for one leaf.
    Forward(BlockId, Leaf),
    /// The loss block for one leaf: loss and gradients.
    Loss(Leaf),
    /// A block's backward for one leaf.
    Backward(BlockId, Leaf),
    /// The lot's sums of a block are whole: these parts leave, the others are dropped.
    Close(BlockId, Vec<(Part, PartialKey)>),
    /// Read a batch of the validation data into a slot.
    EvaluateLoad(u64, Leaf),
    /// The loss of the batch in a slot.
    EvaluateLoss(Leaf),
    /// All batches are done: report.
    EvaluateEnd(Step),
}

impl DeviceOp {
    fn block(&self, blocks: u32) -> Option<BlockId> {
        match self {
            DeviceOp::Forward(b, _) | DeviceOp::Backward(b, _) => Some(*b),
            DeviceOp::Loss(_) | DeviceOp::EvaluateLoss(_) => Some(BlockId(blocks)),
            _ => None,
        }
    }
}

/// What the stage asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StageEffect {
    /// A block's values after a step, for this epoch.
    Need(u64, Step, BlockId),
    /// Give the op to the device behind all earlier ones; then let go of the block.
    Submit(u64, DeviceOp, Option<BlockId>),
    /// The lot under way is void: the device drops what it has of it.
    Cancel(u64),
}

/// A block's values are with the device.
#[derive(actix::Message, Clone, Copy, PartialEq, Eq, Debug)]
#[rtype(result = "()")]
pub struct Gathered {
    /// For whom they were asked.
    pub epoch: u64,
    /// The block.
    pub block: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Task {
    Lot { step: Step, lot: LotId, start: u32, len: u32 },
    Evaluate { step: Step, batches: u64 },
}

#[derive(Debug)]
struct Program {
    task: Task,
    ops: Vec<(DeviceOp, bool)>,
    submitted: usize,
    done: usize,
    asked: BTreeSet<BlockId>,
    gathered: BTreeSet<BlockId>,
}

/// The stage's machine.
#[derive(Debug)]
pub struct Stage {
    order: Order,
    /// Blocks before the loss block.
    blocks: u32,
    /// By block, the loss block last.
    emits: Vec<Vec<Part>>,
    /// Batches that an evaluation has in flight at once.
    width: u32,
    epoch: u64,
    generation: u64,
    queue: VecDeque<Task>,
    current: Option<Program>,
    credits: BTreeMap<LotId, BTreeSet<Part>>,
    delivered: BTreeMap<LotId, BTreeSet<Part>>,
    /// Parts that nobody needs: their records are fixed.
    freed: BTreeMap<LotId, BTreeSet<Part>>,
}

impl Stage {
    /// A stage of the blocks that emit `emits` (the loss block last).
    #[must_use]
    pub fn new(order: Order, emits: Vec<Vec<Part>>, width: u32) -> Stage {
        Stage {
            order,
            blocks: emits.len() as u32 - 1,
            emits,
            width: width.max(1),
            epoch: 0,
            generation: 0,
            queue: VecDeque::new(),
            current: None,
            credits: BTreeMap::new(),
            delivered: BTreeMap::new(),
            freed: BTreeMap::new(),
        }
    }

    /// The protocol asks for a partial of leaves `start..start + len`.
    pub fn handle_credit(
        &mut self,
        key: PartialKey,
        (start, len): (u32, u32),
        out: &mut Vec<StageEffect>,
    ) {
        let part = Part { chunk: key.chunk, site: key.site };
        let task = Task::Lot { step: key.step, lot: key.lot, start, len };
        self.freed.entry(key.lot).or_default().remove(&part);
        let known = self.credits.contains_key(&key.lot);
        self.credits.entry(key.lot).or_default().insert(part);
        let again = self.delivered.get(&key.lot).is_some_and(|d| d.contains(&part));
        if (!known || again) && !self.queue.contains(&task) {
            self.queue.push_back(task);
        }
        self.advance(out);
    }

    /// A part of a lot is not needed, at present at least.
    pub fn handle_free(&mut self, key: PartialKey, out: &mut Vec<StageEffect>) {
        let part = Part { chunk: key.chunk, site: key.site };
        self.freed.entry(key.lot).or_default().insert(part);
        self.advance(out);
    }

    /// The validation loss of the state after `step` is wanted, before any lot that waits.
    pub fn handle_evaluate(&mut self, step: Step, batches: u64, out: &mut Vec<StageEffect>) {
        self.queue.push_front(Task::Evaluate { step, batches });
        self.advance(out);
    }

    /// All lots are void, for the `generation`th time.
    pub fn handle_abandon(&mut self, generation: u64, out: &mut Vec<StageEffect>) {
        self.generation = generation;
        self.queue.retain(|t| matches!(t, Task::Evaluate { .. }));
        self.credits.clear();
        self.delivered.clear();
        self.freed.clear();
        if self.current.as_ref().is_some_and(|p| matches!(p.task, Task::Lot { .. })) {
            self.current = None;
            self.epoch += 1;
            out.push(StageEffect::Cancel(self.epoch));
        }
        self.advance(out);
    }

    /// A block's values are with the device.
    pub fn handle_gathered(&mut self, gathered: Gathered, out: &mut Vec<StageEffect>) {
        if gathered.epoch == self.epoch
            && let Some(program) = &mut self.current
        {
            program.gathered.insert(BlockId(gathered.block as u32));
            self.advance(out);
        }
    }

    /// The device finished the oldest op it had from us.
    pub fn handle_done(&mut self, epoch: u64, out: &mut Vec<StageEffect>) {
        let Some(program) = self.current.as_mut().filter(|_| epoch == self.epoch) else { return };
        assert!(program.done < program.submitted, "the device finished an op it was not given");
        program.done += 1;
        if program.done == program.ops.len() {
            self.current = None;
        }
        self.advance(out);
    }

    fn advance(&mut self, out: &mut Vec<StageEffect>) {
        if self.current.is_none()
            && let Some(task) = self.queue.pop_front()
        {
            self.epoch += 1;
            self.current = Some(self.program(task));
        }
        self.gather_ahead(out);
        while let Some((op, release)) = self.next_op() {
            out.push(StageEffect::Submit(self.epoch, op, release));
            self.gather_ahead(out);
        }
    }

    /// The next op, if it may go to the device now.
    fn next_op(&mut self) -> Option<(DeviceOp, Option<BlockId>)> {
        let blocks = self.blocks;
        let program = self.current.as_ref()?;
        let (op, release) = program.ops.get(program.submitted)?;
        let block = op.block(blocks);
        let gathered = block.is_none_or(|b| program.gathered.contains(&b));
        if program.submitted - program.done >= OPS_IN_FLIGHT || !gathered {
            return None;
        }
        let release = block.filter(|_| *release);
        let op = match (op, program.task) {
            (DeviceOp::Close(b, _), Task::Lot { step, lot, .. }) => {
                DeviceOp::Close(*b, self.deliver(*b, step, lot)?)
            }
            (op, _) => op.clone(),
        };
        let program = self.current.as_mut()?;
        program.submitted += 1;
        if let Some(block) = release {
            program.asked.remove(&block);
            program.gathered.remove(&block);
        }
        Some((op, release))
    }

    /// The parts of a block that were asked for; nothing if some part was never asked for yet.
    fn deliver(
        &mut self,
        block: BlockId,
        step: Step,
        lot: LotId,
    ) -> Option<Vec<(Part, PartialKey)>> {
        let parts = &self.emits[block.index()];
        let credits = self.credits.entry(lot).or_default();
        let delivered = self.delivered.entry(lot).or_default();
        let freed = self.freed.entry(lot).or_default();
        let settled = |p: &Part| credits.contains(p) || delivered.contains(p) || freed.contains(p);
        if !parts.iter().all(settled) {
            return None;
        }
        let wanted: Vec<Part> = parts.iter().copied().filter(|p| credits.remove(p)).collect();
        delivered.extend(&wanted);
        let key = |p: Part| (p, PartialKey { step, chunk: p.chunk, site: p.site, lot });
        Some(wanted.into_iter().map(key).collect())
    }

    /// Asks for the next blocks that the program needs and that were not asked for.
    fn gather_ahead(&mut self, out: &mut Vec<StageEffect>) {
        let (epoch, blocks) = (self.epoch, self.blocks);
        let Some(program) = &mut self.current else { return };
        let step = match program.task {
            Task::Lot { step, .. } => Step(step.0 - 1),
            Task::Evaluate { step, .. } => step,
        };
        let (mut ahead, mut last) = (0, None);
        for (op, _) in &program.ops[program.submitted..] {
            let Some(block) = op.block(blocks).filter(|&b| last != Some(b)) else { continue };
            if ahead == BLOCKS_AHEAD {
                break;
            }
            (ahead, last) = (ahead + 1, Some(block));
            if program.asked.insert(block) {
                out.push(StageEffect::Need(epoch, step, block));
            }
        }
    }

    fn program(&self, task: Task) -> Program {
        let list = match task {
            Task::Lot { step, start, len, .. } => self.lot(step, start, len),
            Task::Evaluate { step, batches } => self.evaluation(step, batches),
        };
        let ops = with_releases(list, self.blocks);
        let (asked, gathered) = (BTreeSet::new(), BTreeSet::new());
        Program { task, ops, submitted: 0, done: 0, asked, gathered }
    }

    fn lot(&self, step: Step, start: u32, len: u32) -> Vec<DeviceOp> {
        let generation = self.generation;
        let mut list = vec![DeviceOp::Begin { step, start, len, generation }];
        list.extend(ops(self.order, self.blocks, len).into_iter().map(|op| match op {
            Op::Load(leaf) => DeviceOp::Load(leaf),
            Op::Forward(b, leaf) => DeviceOp::Forward(b, leaf),
            Op::Loss(leaf) => DeviceOp::Loss(leaf),
            Op::Backward(b, leaf) => DeviceOp::Backward(b, leaf),
            Op::Reduce(b) => DeviceOp::Close(b, Vec::new()),
        }));
        list
    }

    /// Batches in passes of `width`, each pass block by block.
    fn evaluation(&self, step: Step, batches: u64) -> Vec<DeviceOp> {
        let mut list = Vec::new();
        for first in (0..batches).step_by(self.width as usize) {
            let n = u64::from(self.width).min(batches - first) as u32;
            let slots = || (0..n).map(Leaf);
            list.extend(slots().map(|s| DeviceOp::EvaluateLoad(first + u64::from(s.0), s)));
            for b in (0..self.blocks).map(BlockId) {
                list.extend(slots().map(|s| DeviceOp::Forward(b, s)));
            }
            list.extend(slots().map(DeviceOp::EvaluateLoss));
        }
        list.push(DeviceOp::EvaluateEnd(step));
        list
    }
}

/// Marks the ops after which a block is not read for a while: not by any of the next
/// [`BLOCKS_AHEAD`] blocks' ops.
fn with_releases(list: Vec<DeviceOp>, blocks: u32) -> Vec<(DeviceOp, bool)> {
    let of: Vec<Option<BlockId>> = list.iter().map(|op| op.block(blocks)).collect();
    let releases: Vec<bool> = (0..list.len())
        .map(|at| {
            let Some(block) = of[at] else { return false };
            let (mut others, mut last) = (0, block);
            for next in of[at + 1..].iter().flatten().copied() {
                if next == block {
                    return false;
                }
                if next != last {
                    (others, last) = (others + 1, next);
                }
                if others > BLOCKS_AHEAD {
                    break;
                }
            }
            true
        })
        .collect();
    list.into_iter().zip(releases).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_base::{ChunkId, Site};

    fn part(chunk: u32) -> Part {
        Part { chunk: ChunkId(chunk), site: Site(0) }
    }

    /// Three blocks and the loss block; each emits into one chunk.
    fn stage(order: Order) -> Stage {
        Stage::new(order, (0..4).map(|b| vec![part(b)]).collect(), 2)
    }

    fn key(lot: u32, chunk: u32) -> PartialKey {
        PartialKey { step: Step(1), chunk: ChunkId(chunk), site: Site(0), lot: LotId(lot) }
    }

    /// Runs to a standstill with an instant device and instant gathers; returns what was submitted.
    fn settle(stage: &mut Stage, mut queue: Vec<StageEffect>) -> Vec<DeviceOp> {
        let mut submitted = Vec::new();
        let mut held = BTreeSet::new();
        let fresh = stage.current.as_ref().is_none_or(|p| p.submitted <= OPS_IN_FLIGHT);
        while !queue.is_empty() {
            let mut next = Vec::new();
            for effect in queue {
                match effect {
                    StageEffect::Need(epoch, _, block) => {
                        held.insert(block);
                        let block = block.index();
                        stage.handle_gathered(Gathered { epoch, block }, &mut next);
                    }
                    StageEffect::Submit(epoch, op, release) => {
                        let gathered = op.block(3).is_none_or(|b| held.contains(&b));
                        assert!(gathered || !fresh, "{op:?}");
                        if let Some(block) = release {
                            held.remove(&block);
                        }
                        submitted.push(op);
                        stage.handle_done(epoch, &mut next);
                    }
                    StageEffect::Cancel(_) => held.clear(),
                }
            }
            queue = next;
        }
        submitted
    }

    fn closed(ops: &[DeviceOp]) -> Vec<(u32, usize)> {
        let close = |op: &DeviceOp| match op {
            DeviceOp::Close(b, parts) => Some((b.0, parts.len())),
            _ => None,
        };
        ops.iter().filter_map(close).collect()
    }

    /// All parts are asked for: the whole program runs, closing from the loss block down.
    #[test]
    fn a_lot_runs_to_its_end() {
        for order in [Order::BreadthFirst, Order::DepthFirst] {
            let mut stage = stage(order);
            let mut out = Vec::new();
            (0..4).rev().for_each(|c| stage.handle_credit(key(0, c), (4, 2), &mut out));
            let ops = settle(&mut stage, out);
            let begin = DeviceOp::Begin { step: Step(1), start: 4, len: 2, generation: 0 };
            assert_eq!(ops[0], begin);
            assert_eq!(closed(&ops), [(3, 1), (2, 1), (1, 1), (0, 1)]);
            assert_eq!(ops.iter().filter(|o| matches!(o, DeviceOp::Backward(..))).count(), 6);
        }
    }

    /// A part that was not asked for holds the program before its block's sums leave.
    #[test]
    fn a_missing_credit_makes_the_device_wait() {
        let mut stage = stage(Order::BreadthFirst);
        let mut out = Vec::new();
        stage.handle_credit(key(0, 3), (0, 1), &mut out);
        let first = settle(&mut stage, out);
        assert_eq!(closed(&first), [(3, 1)]);
        let mut out = Vec::new();
        (0..3).rev().for_each(|c| stage.handle_credit(key(0, c), (0, 1), &mut out));
        assert_eq!(closed(&settle(&mut stage, out)), [(2, 1), (1, 1), (0, 1)]);
    }

    /// A part whose record is fixed already is never asked for, and holds nothing up.
    #[test]
    fn a_part_that_nobody_needs_holds_nothing_up() {
        let mut stage = stage(Order::BreadthFirst);
        let mut out = Vec::new();
        [3, 0].iter().for_each(|&c| stage.handle_free(key(0, c), &mut out));
        [2, 1].iter().for_each(|&c| stage.handle_credit(key(0, c), (0, 1), &mut out));
        assert_eq!(closed(&settle(&mut stage, out)), [(3, 0), (2, 1), (1, 1), (0, 0)]);
        assert!(stage.current.is_none());
    }

    /// A part that is asked for again is computed again, and only it leaves.
    #[test]
    fn a_lost_part_is_computed_again() {
        let mut stage = stage(Order::BreadthFirst);
        let mut out = Vec::new();
        (0..4).rev().for_each(|c| stage.handle_credit(key(0, c), (0, 1), &mut out));
        settle(&mut stage, out);
        let mut out = Vec::new();
        stage.handle_credit(key(0, 1), (0, 1), &mut out);
        assert_eq!(closed(&settle(&mut stage, out)), [(3, 0), (2, 0), (1, 1), (0, 0)]);
    }

    /// Abandoning cancels the lot under way; what the device still says of it changes nothing. An
    /// evaluation goes on.
    #[test]
    fn an_abandoned_lot_is_void_and_an_evaluation_is_not() {
        let mut stage = stage(Order::BreadthFirst);
        let mut out = Vec::new();
        stage.handle_credit(key(0, 3), (0, 1), &mut out);
        let old = stage.epoch;
        out.clear();
        stage.handle_abandon(1, &mut out);
        assert_eq!(out, [StageEffect::Cancel(old + 1)]);
        out.clear();
        stage.handle_done(old, &mut out);
        stage.handle_gathered(Gathered { epoch: old, block: 0 }, &mut out);
        assert!(out.is_empty());
        stage.handle_evaluate(Step(7), 3, &mut out);
        stage.handle_abandon(2, &mut out);
        let ops = settle(&mut stage, out);
        assert_eq!(ops.last(), Some(&DeviceOp::EvaluateEnd(Step(7))));
        let losses = ops.iter().filter(|o| matches!(o, DeviceOp::EvaluateLoss(_))).count();
        assert_eq!(losses, 3);
    }
}
