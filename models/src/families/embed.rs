//! The input block: token embedding, and learned positions where the family has them.

use crate::block::{Backward, Block, BlockPlan, Decode, Forward, GradSink, LeafShape, Precision};
use crate::compute::{Compute, slot_bytes};
use crate::kernels::embedding::{embed, sum_rows_by_token};
use crate::kernels::gemm::GemmElement;
use half::{bf16, f16};
use planaria_base::{ParamId, Site};

/// `y = wte[token] (+ wpe[position])`.
pub(super) struct Embed {
    params: Vec<ParamId>,
    wte: ParamId,
    wpe: Option<ParamId>,
    width: usize,
}

impl Embed {
    pub(super) fn new(wte: ParamId, wpe: Option<ParamId>, width: usize) -> Embed {
        let params = std::iter::once(wte).chain(wpe).collect();
        Embed { params, wte, wpe, width }
    }

    fn forward_as<A: GemmElement>(&self, cx: &mut Compute, io: Forward<'_>) {
        super::check_batch(&io.batch);
        let wpe = self.wpe.map(|id| (io.params.matrix::<A>(id), 0, io.batch.shape.length));
        let wte = io.params.matrix::<A>(self.wte);
        embed(&cx.kit, io.batch.tokens, wte, wpe, (io.y, self.width));
    }
}

impl Block for Embed {
    fn name(&self) -> &str {
        "embed"
    }

    fn params(&self) -> &[ParamId] {
        &self.params
    }

    fn plan(&self, leaf: LeafShape, _: Precision) -> BlockPlan {
        let n = leaf.tokens();
        let scratch = slot_bytes::<f32>(n * self.width) + 3 * slot_bytes::<u32>(n);
        BlockPlan { scratch_bytes: scratch, ..BlockPlan::default() }
    }

    fn forward(&self, cx: &mut Compute, io: Forward<'_>) {
        match cx.precision {
            Precision::F32 => self.forward_as::<f32>(cx, io),
            Precision::Bf16 => self.forward_as::<bf16>(cx, io),
            Precision::F16 => self.forward_as::<f16>(cx, io),
        }
    }

    fn backward(&self, cx: &mut Compute, io: Backward<'_>, sink: &dyn GradSink) {
        let (kit, mut arena) = cx.split();
        let n = io.batch.tokens.len();
        let sums = arena.take::<f32>(n * self.width);
        let (order, rows, starts) = (arena.take(n), arena.take(n), arena.take(n));
        if let Some(wpe) = self.wpe.filter(|&p| sink.wants(p)) {
            let length = io.batch.shape.length;
            let positions = &mut sums[..length * self.width];
            positions.copy_from_slice(&io.dy[..length * self.width]);
            for sequence in io.dy.chunks_exact(length * self.width).skip(1) {
                positions.iter_mut().zip(sequence).for_each(|(sum, d)| *sum += d);
            }
            rows.iter_mut().zip(0..).for_each(|(row, i)| *row = i);
            sink.rows(wpe, Site(0), &rows[..length], positions);
        }
        if sink.wants(self.wte) {
            let scratch = (order, &mut *rows, starts);
            let count = sum_rows_by_token(kit, io.batch.tokens, io.dy, scratch, sums);
            sink.rows(self.wte, Site(0), &rows[..count], &mut sums[..count * self.width]);
        }
    }

    fn decode(&self, cx: &mut Compute, io: Decode<'_>) {
        let wpe = self.wpe.map(|id| (io.params.f32(id), io.position, io.tokens.len()));
        embed(&cx.kit, io.tokens, io.params.f32(self.wte), wpe, (io.y, self.width));
    }
}
