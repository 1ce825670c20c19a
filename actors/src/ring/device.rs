//! The device of a node: its compute thread, which runs the leaves.
//!
//! It owns activations and the sums of the lot under way; working values are lent to it. It executes
//! what the stage submits, in order. A GPU takes this place behind the same ops.

use super::leaves::LeafMemory;
use super::node::{Computed, DeviceLost, Evaluated, Node};
use super::stage::DeviceOp;
use super::stage_actor::{StageActor, StageEvent};
use super::values::{Lent, Values};
use crate::data::{LeafSource, SampleOrder};
use crate::node::shell::panic_text;
use crate::protocol::message::PartialKey;
use actix::Addr;
use crossbeam_channel::{Receiver, Sender, bounded};
use planaria_base::{BlockId, Leaf, Step};
use planaria_models::block::{
    Backward, Forward, IGNORED_LABEL, LossGrad, LossScale, LossStats, Model, Params,
};
use planaria_models::compute::Compute;
use planaria_models::partials::{LotSums, Part, PartTable};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Commands that are on their way to the device at most.
const QUEUE: usize = 4096;

/// A block's groups, on loan.
pub struct Lend {
    /// The stage's epoch.
    pub epoch: u64,
    /// The groups and their values.
    pub groups: Vec<(usize, Arc<Values>)>,
}

enum Command {
    Lend(Lend),
    Op(u64, DeviceOp, Option<BlockId>),
    Cancel,
    Call(Box<dyn FnOnce(&mut Device) + Send>),
    End,
}

/// Gives orders to the device.
#[derive(Clone)]
pub struct Orders {
    commands: Sender<Command>,
    epoch: Arc<AtomicU64>,
}

/// The device's end of its orders.
pub struct Inbox {
    commands: Receiver<Command>,
    epoch: Arc<AtomicU64>,
}

/// A queue of orders.
#[must_use]
pub fn orders() -> (Orders, Inbox) {
    let (sender, receiver) = bounded(QUEUE);
    let epoch = Arc::new(AtomicU64::new(0));
    (Orders { commands: sender, epoch: epoch.clone() }, Inbox { commands: receiver, epoch })
}

impl Orders {
    fn send(&self, command: Command) {
        // The device lives as long as its node; if it has ended, the node knows.
        let _ = self.commands.send(command);
    }

    /// Lends a block.
    pub fn lend(&self, lend: Lend) {
        self.send(Command::Lend(lend));
    }

    /// Queues an op; after it, the block is given back.
    pub fn submit(&self, epoch: u64, op: DeviceOp, release: Option<BlockId>) {
        self.send(Command::Op(epoch, op, release));
    }

    /// Ops of earlier epochs are void, queued or not.
    pub fn cancel(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Release);
        self.send(Command::Cancel);
    }

    /// Runs anything on the device.
    pub fn call(&self, call: Box<dyn FnOnce(&mut Device) + Send>) {
        self.send(Command::Call(call));
    }

    /// Ends the device's thread.
    pub fn end(&self) {
        self.send(Command::End);
    }
}

/// What a device is made of.
pub struct DeviceParts {
    /// The model.
    pub model: Model,
    /// Threads, precision, scratch.
    pub compute: Compute,
    /// Training samples.
    pub source: Box<dyn LeafSource>,
    /// Which sample is whose.
    pub samples: SampleOrder,
    /// Validation samples, if this node evaluates.
    pub validation: Option<Arc<dyn LeafSource>>,
    /// The loss's constant factor.
    pub scale: LossScale,
    /// Where gradients lie.
    pub parts: Arc<PartTable>,
    /// The sums of a lot.
    pub sums: LotSums,
    /// The values that are lent.
    pub lent: Lent,
    /// The part that carries labels and loss.
    pub carrier: Part,
    /// Partials leave this node: keep the checksum lane.
    pub checked: Arc<AtomicBool>,
}

/// A node's compute.
pub struct Device {
    has: DeviceParts,
    leaves: LeafMemory,
    step: Step,
    start: u32,
    len: u32,
    generation: u64,
    evaluated: LossStats,
}

impl Device {
    /// A device; it allocates activations when the first lot needs them.
    pub(super) fn new(has: DeviceParts, leaves: LeafMemory) -> Device {
        let (step, start, len) = (Step(0), 0, 0);
        Device { has, leaves, step, start, len, generation: 0, evaluated: LossStats::default() }
    }

    /// Executes orders until it is told to end. A panic ends it, and the node is told.
    pub(super) fn run(mut self, inbox: &Inbox, node: &Addr<Node>, stage: &Addr<StageActor>) {
        let ended = catch_unwind(AssertUnwindSafe(|| self.serve(inbox, node, stage)));
        if let Err(panic) = ended {
            node.do_send(DeviceLost(panic_text(&*panic)));
        }
    }

    fn serve(&mut self, inbox: &Inbox, node: &Addr<Node>, stage: &Addr<StageActor>) {
        while let Ok(command) = inbox.commands.recv() {
            let valid = |epoch: u64| epoch >= inbox.epoch.load(Ordering::Acquire);
            match command {
                Command::Lend(lend) if valid(lend.epoch) => self.has.lent.lend(lend.groups),
                Command::Op(epoch, op, release) if valid(epoch) => {
                    self.op(op, release, node);
                    stage.do_send(StageEvent::Done(epoch));
                }
                Command::Lend(_) | Command::Op(..) => {}
                Command::Cancel => self.has.lent.clear(),
                Command::Call(call) => call(self),
                Command::End => return,
            }
        }
    }

    fn op(&mut self, op: DeviceOp, release: Option<BlockId>, node: &Addr<Node>) {
        match op {
            DeviceOp::Begin { step, start, len, generation } => {
                self.generation = generation;
                self.begin(step, start, len);
            }
            DeviceOp::Load(leaf) => self.load(leaf),
            DeviceOp::Forward(block, leaf) => self.forward(block, leaf),
            DeviceOp::Backward(block, leaf) => self.backward(block, leaf),
            DeviceOp::Loss(leaf) => self.loss(leaf),
            DeviceOp::Close(block, wanted) => self.close(block, &wanted, node),
            DeviceOp::EvaluateLoad(batch, slot) => self.load_batch(batch, slot),
            DeviceOp::EvaluateLoss(slot) => self.evaluate_loss(slot),
            DeviceOp::EvaluateEnd(step) => {
                let stats = std::mem::take(&mut self.evaluated);
                node.do_send(Evaluated { step, stats });
            }
        }
        if let Some(block) = release {
            self.has.lent.release(block.index());
        }
    }

    fn begin(&mut self, step: Step, start: u32, len: u32) {
        (self.step, self.start, self.len) = (step, start, len);
        self.leaves.reserve(len);
        self.has.sums.begin(len);
    }

    /// A leaf's number in the step.
    fn global(&self, leaf: Leaf) -> Leaf {
        Leaf(self.start + leaf.0)
    }

    fn load(&mut self, leaf: Leaf) {
        let (length, global) = (self.leaves.plan.shape.length, self.global(leaf));
        let (tokens, labels) = self.leaves.slot(leaf).0.inputs();
        let rows = tokens.chunks_mut(length).zip(labels.chunks_mut(length));
        for (row, (tokens, labels)) in rows.enumerate() {
            let sample = self.has.samples.sample(self.step, global, row as u32);
            if let Err(reason) = self.has.source.load(sample, tokens, labels) {
                panic!("sample {sample} cannot be read: {reason}");
            }
        }
    }

    fn forward(&mut self, block: BlockId, leaf: Leaf) {
        let shape = self.leaves.plan.shape;
        let (slot, recomputed) = self.leaves.slot(leaf);
        let parts = slot.parts(block, shape);
        let saved = if parts.saved.is_empty() { recomputed } else { parts.saved };
        let io = Forward {
            params: Params::of(&self.has.lent),
            batch: parts.batch,
            x: parts.x,
            y: parts.y,
            saved,
        };
        self.has.model.blocks[block.index()].forward(&mut self.has.compute, io);
    }

    fn loss(&mut self, leaf: Leaf) {
        let (shape, global) = (self.leaves.plan.shape, self.global(leaf));
        let head = BlockId(self.has.model.blocks.len() as u32);
        let parts = self.leaves.slot(leaf).0.parts(head, shape);
        let io = LossGrad {
            params: Params::of(&self.has.lent),
            batch: parts.batch,
            x: parts.x,
            dx: parts.gradient,
            scale: self.has.scale,
        };
        let sink = self.has.sums.sink(global);
        let stats = self.has.model.head.loss_and_grad(&mut self.has.compute, io, &sink);
        self.has.sums.add_loss(stats);
    }

    fn backward(&mut self, block: BlockId, leaf: Leaf) {
        if self.leaves.plan.recompute {
            self.forward(block, leaf);
        }
        let (shape, global) = (self.leaves.plan.shape, self.global(leaf));
        let (slot, recomputed) = self.leaves.slot(leaf);
        let parts = slot.parts(block, shape);
        let saved = if parts.saved.is_empty() { recomputed } else { parts.saved };
        let io = Backward {
            params: Params::of(&self.has.lent),
            batch: parts.batch,
            x: parts.x,
            saved,
            dy: parts.gradient,
        };
        let sink = self.has.sums.sink(global);
        self.has.model.blocks[block.index()].backward(&mut self.has.compute, io, &sink);
    }

    /// Takes a block's finished sums out and hands on those that are wanted.
    fn close(&mut self, block: BlockId, wanted: &[(Part, PartialKey)], node: &Addr<Node>) {
        let checked = self.has.checked.load(Ordering::Relaxed);
        let mut computed = Vec::with_capacity(wanted.len());
        for &part in &self.has.parts.emits[block.index()] {
            let partial = self.has.sums.take(part, part == self.has.carrier, checked);
            if let Some((_, key)) = wanted.iter().find(|w| w.0 == part) {
                computed.push((*key, partial));
            }
        }
        node.do_send(Computed { generation: self.generation, partials: computed });
    }

    /// Fills a slot with validation rows; rows past the end have no labels.
    fn load_batch(&mut self, batch: u64, slot: Leaf) {
        self.leaves.reserve(slot.0 + 1);
        let shape = self.leaves.plan.shape;
        let Some(source) = self.has.validation.clone() else { return };
        let (tokens, labels) = self.leaves.slot(slot).0.inputs();
        let rows = tokens.chunks_mut(shape.length).zip(labels.chunks_mut(shape.length));
        let first = batch * shape.sequences as u64;
        for ((tokens, labels), row) in rows.zip(first..) {
            if row >= source.samples() {
                labels.fill(IGNORED_LABEL);
            } else if let Err(reason) = source.load(row, tokens, labels) {
                panic!("validation sample {row} cannot be read: {reason}");
            }
        }
    }

    fn evaluate_loss(&mut self, slot: Leaf) {
        let shape = self.leaves.plan.shape;
        let slot = self.leaves.slot(slot).0;
        let x = slot.streams.last().expect("a model has blocks");
        let params = Params::of(&self.has.lent);
        let head = &self.has.model.head;
        let stats = head.loss(&mut self.has.compute, params, slot.batch(shape), x);
        self.evaluated.loss_sum += stats.loss_sum;
        self.evaluated.labels += stats.labels;
    }

    /// Bytes that matrix products use for packing at present.
    #[must_use]
    pub fn packing_bytes(&self) -> usize {
        self.has.compute.kit.packing.bytes()
    }
}
