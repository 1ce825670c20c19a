//! One leaf through a whole model: buffers planned ahead, one block at a time or depth first.
//!
//! [`LeafPlan`] says what a leaf costs, to the byte. [`LeafBuffers`] is that memory: each block's
//! output stream, each block's saved slots (or, with recomputation, one set of slots for all blocks),
//! and the gradient stream. [`Leaf`] runs blocks over it. A breadth-first trainer holds one
//! [`LeafBuffers`] per leaf and calls the per-block steps; [`Leaf::forward`] and [`Leaf::backward`]
//! are the depth-first loops over the same steps.

use crate::block::{
    Backward, Batch, BlockPlan, Forward, GradSink, LeafShape, LossGrad, LossScale, LossStats,
    Model, Params, Precision,
};
use crate::buffer::Buffer;
use crate::compute::{Compute, slot_bytes};

/// What one leaf costs in a model, exactly.
#[derive(Clone, Debug)]
pub struct LeafPlan {
    /// Sequences and their length.
    pub shape: LeafShape,
    /// Of products and activations.
    pub precision: Precision,
    /// Whether saved slots are dropped after forward and computed again before backward.
    pub recompute: bool,
    /// Each block's cost.
    pub blocks: Vec<BlockPlan>,
    /// The loss block's.
    pub head: BlockPlan,
    width: usize,
}

impl LeafPlan {
    /// Asks every block.
    #[must_use]
    pub fn new(model: &Model, shape: LeafShape, precision: Precision, recompute: bool) -> LeafPlan {
        let blocks = model.blocks.iter().map(|b| b.plan(shape, precision)).collect();
        let head = model.head.plan(shape, precision);
        LeafPlan { shape, precision, recompute, blocks, head, width: model.width }
    }

    /// Bytes of one stream buffer, `[tokens, width]` in fp32.
    #[must_use]
    pub fn stream_bytes(&self) -> usize {
        slot_bytes::<f32>(self.shape.tokens() * self.width)
    }

    /// Bytes of all saved slots.
    #[must_use]
    pub fn saved_bytes(&self) -> usize {
        let bytes = self.blocks.iter().map(|b| b.saved_bytes);
        if self.recompute { bytes.max().unwrap_or(0) } else { bytes.sum() }
    }

    /// Bytes that [`LeafBuffers`] holds: a stream per block, the gradient stream, the saved slots.
    #[must_use]
    pub fn buffer_bytes(&self) -> usize {
        (self.blocks.len() + 1) * self.stream_bytes() + self.saved_bytes()
    }

    /// Bytes of scratch that a [`Compute`] needs to run this leaf.
    #[must_use]
    pub fn scratch_bytes(&self) -> usize {
        self.blocks.iter().chain([&self.head]).map(|b| b.scratch_bytes).max().unwrap_or(0)
    }

    /// Floating-point operations of a forward and backward, without recomputation.
    #[must_use]
    pub fn flops(&self) -> u64 {
        let all = self.blocks.iter().chain([&self.head]);
        all.map(|b| b.forward_flops + b.backward_flops).sum()
    }
}

/// A leaf's memory; reused for one leaf after another.
pub struct LeafBuffers {
    recompute: bool,
    streams: Vec<Buffer<f32>>,
    gradient: Buffer<f32>,
    saved: Vec<Buffer<u8>>,
}

/// A leaf's memory around one block.
struct Around<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
    saved: &'a mut [u8],
    gradient: &'a mut [f32],
}

impl LeafBuffers {
    /// The memory that a plan asks for.
    #[must_use]
    pub fn new(plan: &LeafPlan) -> LeafBuffers {
        let stream = || Buffer::zeroed(plan.shape.tokens() * plan.width);
        let saved = if plan.recompute {
            vec![Buffer::zeroed(plan.saved_bytes())]
        } else {
            plan.blocks.iter().map(|b| Buffer::zeroed(b.saved_bytes)).collect()
        };
        let streams = plan.blocks.iter().map(|_| stream()).collect();
        LeafBuffers { recompute: plan.recompute, streams, gradient: stream(), saved }
    }

    /// The stream that block `block` put out.
    #[must_use]
    pub fn stream(&self, block: usize) -> &[f32] {
        &self.streams[block]
    }

    /// The gradient stream: after a block's backward, the gradient at its input.
    pub fn gradient(&mut self) -> &mut [f32] {
        &mut self.gradient
    }

    fn around(&mut self, block: usize) -> Around<'_> {
        let (before, after) = self.streams.split_at_mut(block);
        Around {
            x: before.last().map_or(&[], |x| x),
            y: &mut after[0],
            saved: &mut self.saved[if self.recompute { 0 } else { block }],
            gradient: &mut self.gradient,
        }
    }
}

/// One leaf on its way through a model.
#[derive(Clone, Copy)]
pub struct Leaf<'a> {
    /// The model.
    pub model: &'a Model,
    /// Working values; those of the block that runs are gathered.
    pub params: Params<'a>,
    /// The leaf's inputs.
    pub batch: Batch<'a>,
}

impl Leaf<'_> {
    /// The forward of one block; the blocks before it have run.
    pub fn forward_block(&self, block: usize, cx: &mut Compute, buffers: &mut LeafBuffers) {
        let Around { x, y, saved, .. } = buffers.around(block);
        let io = Forward { params: self.params, batch: self.batch, x, y, saved };
        self.model.blocks[block].forward(cx, io);
    }

    /// The backward of one block; the blocks after it have run. With recomputation, its forward runs
    /// once more first, and gives the same bits.
    pub fn backward_block(
        &self,
        block: usize,
        cx: &mut Compute,
        buffers: &mut LeafBuffers,
        sink: &dyn GradSink,
    ) {
        if buffers.recompute {
            self.forward_block(block, cx, buffers);
        }
        let Around { x, saved, gradient: dy, .. } = buffers.around(block);
        let io = Backward { params: self.params, batch: self.batch, x, saved, dy };
        self.model.blocks[block].backward(cx, io, sink);
    }

    /// The loss and the gradient at the last block's output; all blocks have run forward.
    pub fn loss_and_grad(
        &self,
        cx: &mut Compute,
        buffers: &mut LeafBuffers,
        scale: LossScale,
        sink: &dyn GradSink,
    ) -> LossStats {
        let Around { y: x, gradient: dx, .. } = buffers.around(self.model.blocks.len() - 1);
        let io = LossGrad { params: self.params, batch: self.batch, x, dx, scale };
        self.model.head.loss_and_grad(cx, io, sink)
    }

    /// The loss alone; all blocks have run forward.
    pub fn loss(&self, cx: &mut Compute, buffers: &LeafBuffers) -> LossStats {
        let x = buffers.stream(self.model.blocks.len() - 1);
        self.model.head.loss(cx, self.params, self.batch, x)
    }

    /// All blocks forward; `before` is told of each block before it runs.
    pub fn forward(
        &self,
        cx: &mut Compute,
        buffers: &mut LeafBuffers,
        before: &mut dyn FnMut(usize),
    ) {
        for block in 0..self.model.blocks.len() {
            before(block);
            self.forward_block(block, cx, buffers);
        }
    }

    /// All blocks backward, last first; `after` is told of each block when its gradients are out.
    pub fn backward(
        &self,
        cx: &mut Compute,
        buffers: &mut LeafBuffers,
        sink: &dyn GradSink,
        after: &mut dyn FnMut(usize),
    ) {
        for block in (0..self.model.blocks.len()).rev() {
            self.backward_block(block, cx, buffers, sink);
            after(block);
        }
    }
}
