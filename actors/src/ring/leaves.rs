//! Memory of the leaves in flight: inputs, the residual stream at every block, saved slots.

use crate::step::schedule::Order;
use planaria_base::{BlockId, Leaf};
use planaria_models::block::{Batch, LeafShape, Model, Precision};
use planaria_models::buffer::Buffer;

/// How activations are held; none of it changes a bit of the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ActivationPlan {
    /// The order of blocks and leaves.
    pub order: Order,
    /// Keep only the stream at each block and recompute what backward needs.
    pub recompute: bool,
    /// Shape of each leaf.
    pub shape: LeafShape,
}

/// One leaf's memory.
pub(super) struct Slot {
    tokens: Buffer<u32>,
    labels: Buffer<i32>,
    /// `[block]`: the stream that the block puts out, `[tokens, width]`.
    pub(super) streams: Vec<Buffer<f32>>,
    /// `[block]`: what its backward needs; empty under recomputation.
    pub(super) saved: Vec<Buffer<u8>>,
    /// The gradient of the stream, `[tokens, width]`.
    pub(super) gradient: Buffer<f32>,
}

impl Slot {
    /// Token ids, to be filled.
    pub(super) fn inputs(&mut self) -> (&mut [u32], &mut [i32]) {
        (&mut self.tokens, &mut self.labels)
    }

    /// The leaf's inputs.
    pub(super) fn batch(&self, shape: LeafShape) -> Batch<'_> {
        batch(&self.tokens, &self.labels, shape)
    }

    /// Everything a block's forward or backward touches, borrowed apart.
    pub(super) fn parts(&mut self, block: BlockId, shape: LeafShape) -> Parts<'_> {
        let (before, rest) = self.streams.split_at_mut(block.index());
        Parts {
            batch: batch(&self.tokens, &self.labels, shape),
            x: before.last().map_or(&[], |stream| stream),
            y: rest.first_mut().map_or(&mut [], |stream| stream),
            saved: self.saved.get_mut(block.index()).map_or(&mut [], |saved| saved),
            gradient: &mut self.gradient,
        }
    }
}

fn batch<'a>(tokens: &'a [u32], labels: &'a [i32], shape: LeafShape) -> Batch<'a> {
    Batch { shape, tokens, labels, positions: None, documents: None, fields: &[] }
}

/// A slot's pieces around one block.
pub(super) struct Parts<'a> {
    pub(super) batch: Batch<'a>,
    /// The stream coming in; empty at the input block.
    pub(super) x: &'a [f32],
    /// The stream going out; empty at the loss block.
    pub(super) y: &'a mut [f32],
    pub(super) saved: &'a mut [u8],
    pub(super) gradient: &'a mut [f32],
}

/// All slots, and what they share.
pub(super) struct LeafMemory {
    pub(super) plan: ActivationPlan,
    slots: Vec<Slot>,
    /// One block's saved arena for recomputation; empty without it.
    pub(super) recomputed: Buffer<u8>,
    /// `[block]`: bytes that a leaf saves.
    saved: Vec<usize>,
    width: usize,
}

impl LeafMemory {
    /// No slots yet: they are made when a lot needs them, and stay.
    pub(super) fn new(model: &Model, precision: Precision, plan: ActivationPlan) -> LeafMemory {
        let saved: Vec<usize> =
            model.blocks.iter().map(|b| b.plan(plan.shape, precision).saved_bytes).collect();
        let largest = saved.iter().copied().max().unwrap_or(0);
        LeafMemory {
            plan,
            slots: Vec::new(),
            recomputed: Buffer::zeroed(if plan.recompute { largest } else { 0 }),
            saved,
            width: model.width,
        }
    }

    /// Makes room for `leaves` leaves at once, as the order needs it.
    pub(super) fn reserve(&mut self, leaves: u32) {
        let wanted = match self.plan.order {
            Order::BreadthFirst => leaves as usize,
            Order::DepthFirst => 1,
        };
        let n = self.plan.shape.tokens();
        while self.slots.len() < wanted {
            let saved = if self.plan.recompute { &[][..] } else { &self.saved };
            self.slots.push(Slot {
                tokens: Buffer::zeroed(n),
                labels: Buffer::zeroed(n),
                streams: self.saved.iter().map(|_| Buffer::zeroed(n * self.width)).collect(),
                saved: saved.iter().map(|&bytes| Buffer::zeroed(bytes)).collect(),
                gradient: Buffer::zeroed(n * self.width),
            });
        }
    }

    /// The slot that a leaf's activations lie in.
    pub(super) fn slot(&mut self, leaf: Leaf) -> (&mut Slot, &mut Buffer<u8>) {
        let index = leaf.index() % self.slots.len();
        (&mut self.slots[index], &mut self.recomputed)
    }
}
