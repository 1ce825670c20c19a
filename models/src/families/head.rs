//! The loss block: final norm, vocabulary head, cross-entropy.

use crate::block::{
    Batch, BlockPlan, GradSink, LeafShape, LossBlock, LossGrad, LossStats, Params, Precision,
};
use crate::compute::{Compute, slot_bytes};
use crate::kernels::gemm::epilogue::{Out, Store};
use crate::kernels::gemm::{Dims, GemmElement, MatRef, gemm};
use crate::kernels::head_loss::{HeadInput, HeadShape, head_loss, head_loss_grad};
use crate::ops::NormLayer;
use half::{bf16, f16};
use planaria_base::{ParamId, Site};

/// Norm, head, loss.
pub(super) struct Head {
    params: Vec<ParamId>,
    norm: NormLayer,
    weights: ParamId,
    /// Which emission of the weights this is: 1 if the embedding emits too.
    site: Site,
    vocab: usize,
}

impl Head {
    pub(super) fn new(norm: NormLayer, weights: ParamId, site: Site, vocab: usize) -> Head {
        let params = [norm.w, weights].into_iter().chain(norm.b).collect();
        Head { params, norm, weights, site, vocab }
    }

    fn width(&self) -> usize {
        self.norm.norm.width
    }

    fn shape(&self, tokens: usize) -> HeadShape {
        HeadShape { tokens, width: self.width(), vocab: self.vocab }
    }

    fn scratch_bytes<A: GemmElement>(&self, n: usize) -> usize {
        let streams = slot_bytes::<A>(n * self.width())
            + slot_bytes::<f32>(n * self.width())
            + slot_bytes::<f32>(2 * n);
        streams + self.shape(n).scratch_bytes::<A>().max(self.norm.scratch_bytes(n))
    }

    fn loss_as<A: GemmElement>(
        &self,
        cx: &mut Compute,
        params: Params<'_>,
        batch: Batch<'_>,
        x: &[f32],
    ) -> LossStats {
        let (kit, mut arena) = cx.split();
        let n = batch.tokens.len();
        let hidden = arena.take::<A>(n * self.width());
        let stats = arena.take(2 * n);
        self.norm.forward(kit, params, x, (hidden, stats));
        let weights = params.matrix::<A>(self.weights);
        let input = HeadInput { hidden, weights, labels: batch.labels, factor: 1.0 };
        head_loss(kit, self.shape(n), input, &mut arena)
    }

    fn grad_as<A: GemmElement>(
        &self,
        cx: &mut Compute,
        io: LossGrad<'_>,
        sink: &dyn GradSink,
    ) -> LossStats {
        let (kit, mut arena) = cx.split();
        let n = io.batch.tokens.len();
        let hidden = arena.take::<A>(n * self.width());
        let dh = arena.take::<f32>(n * self.width());
        let stats = arena.take(2 * n);
        self.norm.forward(kit, io.params, io.x, (hidden, stats));
        let weights = io.params.matrix::<A>(self.weights);
        let input = HeadInput { hidden, weights, labels: io.batch.labels, factor: io.scale.factor };
        let shape = self.shape(n);
        let mut loss = LossStats::default();
        if sink.wants(self.weights) {
            let len = self.vocab * self.width();
            sink.in_place(kit, (self.weights, self.site), len, &mut |dw| {
                loss = head_loss_grad(kit, shape, input, (dh, Some(dw)), &mut arena.child());
            });
        } else {
            loss = head_loss_grad(kit, shape, input, (dh, None), &mut arena.child());
        }
        io.dx.fill(0.0);
        self.norm.backward(kit, io.params, (io.x, stats, dh), io.dx, (&mut arena, sink));
        loss
    }
}

impl LossBlock for Head {
    fn name(&self) -> &str {
        "head"
    }

    fn params(&self) -> &[ParamId] {
        &self.params
    }

    fn plan(&self, leaf: LeafShape, precision: Precision) -> BlockPlan {
        let n = leaf.tokens();
        let product = 2 * (n * self.width() * self.vocab) as u64;
        BlockPlan {
            saved_bytes: 0,
            scratch_bytes: match precision {
                Precision::F32 => self.scratch_bytes::<f32>(n),
                Precision::Bf16 => self.scratch_bytes::<bf16>(n),
                Precision::F16 => self.scratch_bytes::<f16>(n),
            },
            forward_flops: product,
            backward_flops: 2 * product,
        }
    }

    fn logits(&self, cx: &mut Compute, params: Params<'_>, x: &[f32], logits: &mut [f32]) {
        let (kit, mut arena) = cx.split();
        let n = x.len() / self.width();
        let hidden = arena.take::<f32>(x.len());
        let stats = arena.take(2 * n);
        self.norm.forward(kit, params, x, (hidden, stats));
        let dims = Dims { m: n, n: self.vocab, k: self.width() };
        let weights = MatRef::rows(params.f32(self.weights), self.width()).t();
        let epilogue = Store(Out::new(logits, self.vocab));
        gemm(kit, dims, MatRef::rows(hidden, self.width()), weights, &epilogue);
    }

    fn loss(&self, cx: &mut Compute, params: Params<'_>, batch: Batch<'_>, x: &[f32]) -> LossStats {
        match cx.precision {
            Precision::F32 => self.loss_as::<f32>(cx, params, batch, x),
            Precision::Bf16 => self.loss_as::<bf16>(cx, params, batch, x),
            Precision::F16 => self.loss_as::<f16>(cx, params, batch, x),
        }
    }

    fn loss_and_grad(&self, cx: &mut Compute, io: LossGrad<'_>, sink: &dyn GradSink) -> LossStats {
        match cx.precision {
            Precision::F32 => self.grad_as::<f32>(cx, io, sink),
            Precision::Bf16 => self.grad_as::<bf16>(cx, io, sink),
            Precision::F16 => self.grad_as::<f16>(cx, io, sink),
        }
    }
}
