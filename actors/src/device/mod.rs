//! The device: a node's memory, and the commands that change it.
//!
//! One thread owns all of it and executes commands in order, each parallel over the compute pool; so
//! a buffer in flight cannot be written by anybody else, by type. Actors decide what happens and
//! when; the device only does it. A GPU takes this place behind the same commands.

mod leaves;
mod memory;
mod queue;
mod state;

pub use leaves::ActivationPlan;
pub use queue::{Command, DeviceQueue, Report, run};
pub use state::{DeviceSetup, MemoryPlan, TensorExport};

use crate::data::{LeafSource, SampleOrder};
use crate::layout::Layout;
use crate::step::decision::Decision;
use crate::step::{Attempt, Op, Record};
use leaves::LeafMemory;
use memory::ParamsMemory;
use planaria_base::{BlockId, ChunkId, Leaf, Step};
use planaria_models::anomaly::Watch;
use planaria_models::block::{
    Backward, Forward, IGNORED_LABEL, LossGrad, LossScale, LossStats, Model, Params,
};
use planaria_models::buffer::Buffer;
use planaria_models::compute::Compute;
use planaria_models::gradients::{Gradients, SumOutcome};
use planaria_models::kernels::elementwise::sum_of_squares_parallel;
use planaria_models::loss_scale::LossScaler;
use planaria_models::optimizers::OptimizerSpec;
use planaria_models::schedules::ScheduleSpec;
use std::sync::Arc;

/// A node's memory and compute.
pub struct Device {
    model: Model,
    layout: Layout,
    compute: Compute,
    source: Box<dyn LeafSource>,
    samples: SampleOrder,
    /// What a leaf's loss is multiplied by, the loss scale apart.
    scale: LossScale,
    /// The loss scale, in fp16.
    scaler: Option<LossScaler>,
    optimizer: OptimizerSpec,
    schedule: ScheduleSpec,
    params: ParamsMemory,
    gradients: Gradients,
    /// Partial sums of squares, one per fixed piece of a chunk.
    squares: Buffer<f64>,
    /// By parameter: what its sum came to.
    outcomes: Vec<SumOutcome>,
    leaves: LeafMemory,
    /// Per chunk, the step whose result its buffers hold.
    states: Vec<Step>,
    updates: u64,
    at: Attempt,
    watch: Option<Arc<Watch>>,
}

impl Device {
    /// Number of chunks.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.layout.table.chunks.len()
    }

    /// Computes with a watched twin of the model from here on, and tells the watch which leaf runs.
    pub fn watch(&mut self, (model, watch): (Model, Arc<Watch>)) {
        (self.model, self.watch) = (model, Some(watch));
    }

    pub(crate) fn attempt(&self) -> Attempt {
        self.at
    }

    pub(crate) fn begin(&mut self, at: Attempt) {
        self.at = at;
        self.gradients.set_loss_scale(self.scaler.map(|s| s.scale()));
        self.gradients.begin();
    }

    /// Executes one op of the attempt under way.
    pub(crate) fn op(&mut self, op: Op, reports: &mut Vec<Report>) {
        let at = self.at;
        if let (Some(watch), Op::Forward(_, leaf) | Op::Backward(_, leaf) | Op::Loss(leaf)) =
            (&self.watch, op)
        {
            watch.at(at.step.0, leaf.0);
        }
        match op {
            Op::Load(leaf) => self.load(leaf),
            Op::Forward(block, leaf) => self.forward(block, leaf),
            Op::Backward(block, leaf) => self.backward(block, leaf),
            Op::Loss(leaf) => {
                let stats = self.loss(leaf);
                return reports.push(Report::Loss(at, leaf, stats));
            }
            Op::Reduce(group) => self.reduce(group, reports),
        }
        reports.push(Report::Done(at, op));
    }

    fn load(&mut self, leaf: Leaf) {
        let length = self.leaves.plan.shape.length;
        let (tokens, labels) = self.leaves.slot(leaf).0.inputs();
        let rows = tokens.chunks_mut(length).zip(labels.chunks_mut(length));
        for (row, (tokens, labels)) in rows.enumerate() {
            let sample = self.samples.sample(self.at.step, leaf, row as u32);
            if let Err(reason) = self.source.load(sample, tokens, labels) {
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
            params: Params::of(&self.params),
            batch: parts.batch,
            x: parts.x,
            y: parts.y,
            saved,
        };
        self.model.blocks[block.index()].forward(&mut self.compute, io);
    }

    fn loss(&mut self, leaf: Leaf) -> LossStats {
        let shape = self.leaves.plan.shape;
        let loss_scale = self.scaler.map_or(1.0, |s| s.scale().factor);
        let parts = self.leaves.slot(leaf).0.parts(BlockId(self.model.blocks.len() as u32), shape);
        let io = LossGrad {
            params: Params::of(&self.params),
            batch: parts.batch,
            x: parts.x,
            dx: parts.gradient,
            scale: LossScale { factor: self.scale.factor * loss_scale },
        };
        let sink = self.gradients.sink(leaf);
        self.model.head.loss_and_grad(&mut self.compute, io, &sink)
    }

    fn backward(&mut self, block: BlockId, leaf: Leaf) {
        if self.leaves.plan.recompute {
            self.forward(block, leaf);
        }
        let shape = self.leaves.plan.shape;
        let (slot, recomputed) = self.leaves.slot(leaf);
        let parts = slot.parts(block, shape);
        let saved = if parts.saved.is_empty() { recomputed } else { parts.saved };
        let io = Backward {
            params: Params::of(&self.params),
            batch: parts.batch,
            x: parts.x,
            saved,
            dy: parts.gradient,
        };
        let sink = self.gradients.sink(leaf);
        self.model.blocks[block.index()].backward(&mut self.compute, io, &sink);
    }

    /// Ends the sums of a group's parameters, and fixes the records of its chunks.
    fn reduce(&mut self, group: BlockId, reports: &mut Vec<Report>) {
        for &param in &self.layout.groups[group.index()] {
            self.outcomes[param.index()] = self.gradients.finish(&self.compute.kit, param);
        }
        for &chunk in self.layout.group(group) {
            let mut record = Record {
                chunk,
                sum_squares: 0.0,
                overflow: false,
                not_finite: false,
                exactly_once: true,
            };
            for span in &self.layout.table.chunk(chunk).spans {
                let gradient = &self.gradients.gradient(span.param)[span.range()];
                let kit = &self.compute.kit;
                record.sum_squares += sum_of_squares_parallel(kit, gradient, &mut self.squares);
                let outcome = self.outcomes[span.param.index()];
                record.overflow |= outcome.flagged;
                record.not_finite |= outcome.not_finite;
                record.exactly_once &= outcome.exactly_once;
            }
            reports.push(Report::Record(self.at, record));
        }
    }

    /// Applies a committed decision to a chunk; a chunk that already holds the result is left alone.
    pub(crate) fn apply(&mut self, chunk: ChunkId, decision: &Decision, reports: &mut Vec<Report>) {
        let state = self.states[chunk.index()];
        if state.0 + 1 == decision.step.0 {
            self.update(chunk, decision);
            self.states[chunk.index()] = decision.step;
            self.updates = decision.updates;
        }
        reports.push(Report::Applied(chunk, decision.step));
    }

    /// Losses over the first rows of `source`, by the same forward as in training.
    ///
    /// # Errors
    /// If a sample cannot be read.
    pub fn evaluate(&mut self, source: &dyn LeafSource, batches: u64) -> Result<LossStats, String> {
        let shape = self.leaves.plan.shape;
        let mut total = LossStats::default();
        let rows = source.samples().min(batches * shape.sequences as u64);
        for first in (0..rows).step_by(shape.sequences) {
            self.load_rows(source, first, rows)?;
            for block in 0..self.model.blocks.len() as u32 {
                self.forward(BlockId(block), Leaf(0));
            }
            let slot = self.leaves.slot(Leaf(0)).0;
            let x = slot.streams.last().expect("a model has blocks");
            let (head, params) = (&self.model.head, Params::of(&self.params));
            let stats = head.loss(&mut self.compute, params, slot.batch(shape), x);
            total.loss_sum += stats.loss_sum;
            total.labels += stats.labels;
        }
        Ok(total)
    }

    /// Fills slot 0 with rows from `first`; rows at or past `end` have no labels.
    fn load_rows(&mut self, source: &dyn LeafSource, first: u64, end: u64) -> Result<(), String> {
        let length = self.leaves.plan.shape.length;
        let (tokens, labels) = self.leaves.slot(Leaf(0)).0.inputs();
        let rows = tokens.chunks_mut(length).zip(labels.chunks_mut(length));
        for ((tokens, labels), row) in rows.zip(first..) {
            if row < end {
                source.load(row, tokens, labels)?;
            } else {
                labels.fill(IGNORED_LABEL);
            }
        }
        Ok(())
    }
}
