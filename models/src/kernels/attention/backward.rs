//! The backward of causal attention.
//!
//! Per block of queries: scores again, `p = exp(scale s - lse)`, `dp = dout · v^T`,
//! `ds = scale p (dp - delta)` with `delta = sum(dout * out)`; then `dq = ds · k`, and into this head's
//! fp32 sums, block after block, `dk += ds^T · q` and `dv += p^T · dout`.

use super::softmax::{Softmax, SoftmaxBackward, softmax_backward};
use super::{
    AttentionShape, BLOCK, QkvLayout, Steps, below, cut, head, seen_keys, seen_tile, strip_stride,
    words,
};
use crate::compute::Kit;
use crate::kernels::Isa;
use crate::kernels::gemm::epilogue::{Add, Out, Place, Store, Tile, load, pieces, store};
use crate::kernels::gemm::serial::{multiply, pack_a, pack_b};
use crate::kernels::gemm::{Dims, Epilogue, GemmElement, MatRef, TILE_STRIDE};
use crate::kernels::simd::Simd;
use crate::simd_kernel;

/// What attention's backward reads and writes.
pub struct AttentionBackward<'a, T> {
    /// The fused input of forward.
    pub qkv: &'a [T],
    /// Where q, k, v (and their gradients) lie in a row.
    pub layout: QkvLayout,
    /// Forward's output, `[n, h*e]`.
    pub out: &'a [T],
    /// Forward's log-sum-exp, `[n, h]`.
    pub lse: &'a [f32],
    /// Gradient at the output.
    pub dout: &'a [T],
    /// Gradient of the fused input, overwritten.
    pub dqkv: &'a mut [T],
}

/// A worker's buffers for one key/value head.
struct Scratch<'a> {
    k_t: &'a mut [f32],
    v_t: &'a mut [f32],
    k: &'a mut [f32],
    /// A block of q, then of dout, as B.
    b: &'a mut [f32],
    a: &'a mut [f32],
    scores: &'a mut [f32],
    dp: &'a mut [f32],
    dk: &'a mut [f32],
    dv: &'a mut [f32],
}

pub(super) fn scratch_words<T: GemmElement>(isa: Isa, s: AttentionShape) -> usize {
    let (t, e) = (s.length, s.head_dim);
    2 * words::<T>(isa, false, t, e)
        + words::<T>(isa, false, e, t)
        + words::<T>(isa, false, e, BLOCK)
        + a_words::<T>(isa, s)
        + 2 * BLOCK * strip_stride(t)
        + 2 * (t * e).next_multiple_of(16)
}

fn a_words<T: GemmElement>(isa: Isa, s: AttentionShape) -> usize {
    let rows = words::<T>(isa, true, BLOCK, s.length.max(s.head_dim));
    rows.max(words::<T>(isa, true, s.length, BLOCK))
}

fn scratch<T: GemmElement>(isa: Isa, s: AttentionShape, mut rest: &mut [f32]) -> Scratch<'_> {
    let (t, e) = (s.length, s.head_dim);
    Scratch {
        k_t: cut(&mut rest, words::<T>(isa, false, t, e)),
        v_t: cut(&mut rest, words::<T>(isa, false, t, e)),
        k: cut(&mut rest, words::<T>(isa, false, e, t)),
        b: cut(&mut rest, words::<T>(isa, false, e, BLOCK)),
        a: cut(&mut rest, a_words::<T>(isa, s)),
        scores: cut(&mut rest, BLOCK * strip_stride(t)),
        dp: cut(&mut rest, BLOCK * strip_stride(t)),
        dk: cut(&mut rest, t * e),
        dv: cut(&mut rest, t * e),
    }
}

/// Gradients of q, k and v.
///
/// # Panics
/// If a buffer is too short.
pub fn attention_backward<T: GemmElement>(
    kit: &Kit,
    shape: AttentionShape,
    io: AttentionBackward<'_, T>,
) {
    let AttentionBackward { qkv, layout, out, lse, dout, dqkv } = io;
    let (t, e) = (shape.length, shape.head_dim);
    let group = shape.heads / shape.kv_heads;
    let dqkv = Out::new(dqkv, layout.row);
    kit.packing.reserve(scratch_words::<T>(kit.isa, shape));
    kit.pool.run(shape.sequences * shape.kv_heads, &|task, worker| {
        let (sequence, kv) = (task / shape.kv_heads, task % shape.kv_heads);
        let row = sequence * t;
        let mut guard = kit.packing.own(worker);
        let mut s = scratch::<T>(kit.isa, shape, guard.get(scratch_words::<T>(kit.isa, shape)));
        let k = head(qkv, layout.row, row, layout.k + kv * e);
        let v = head(qkv, layout.row, row, layout.v + kv * e);
        pack_b(kit.isa, k.t(), (e, t), s.k_t);
        pack_b(kit.isa, v.t(), (e, t), s.v_t);
        pack_b(kit.isa, k, (t, e), s.k);
        s.dk.fill(0.0);
        s.dv.fill(0.0);
        for h in kv * group..(kv + 1) * group {
            let at = HeadIn {
                q: head(qkv, layout.row, row, layout.q + h * e),
                out: head(out, shape.heads * e, row, h * e),
                dout: head(dout, shape.heads * e, row, h * e),
                lse: &lse[row * shape.heads + h..],
                dq: &dqkv,
                dq_at: (row, layout.q + h * e),
            };
            (0..t).step_by(BLOCK).for_each(|first| block(kit.isa, shape, &at, &mut s, first));
        }
        put::<T>(kit.isa, (&dqkv, row, layout.k + kv * e), s.dk, e);
        put::<T>(kit.isa, (&dqkv, row, layout.v + kv * e), s.dv, e);
    });
}

/// One query head.
struct HeadIn<'a, T> {
    q: MatRef<'a, T>,
    out: MatRef<'a, T>,
    dout: MatRef<'a, T>,
    /// Every `heads`-th element is a row's.
    lse: &'a [f32],
    dq: &'a Out<'a, T>,
    dq_at: (usize, usize),
}

fn block<T: GemmElement>(
    isa: Isa,
    shape: AttentionShape,
    at: &HeadIn<'_, T>,
    s: &mut Scratch<'_>,
    first: usize,
) {
    let (t, e, stride) = (shape.length, shape.head_dim, strip_stride(shape.length));
    let rows = (t - first).min(BLOCK);
    let keys = first + rows;
    let (q, dout) = (below(at.q, first), below(at.dout, first));
    let square: Steps<'_> = (Dims { m: rows, n: keys, k: e }, &|at| seen_tile(shape, first, at));
    pack_a(isa, q, (rows, e), s.a);
    multiply::<T, _>(isa, square, s.a, (s.k_t, e), &Store(Out::new(&mut *s.scores, stride)));
    pack_a(isa, dout, (rows, e), s.a);
    multiply::<T, _>(isa, square, s.a, (s.v_t, e), &Store(Out::new(&mut *s.dp, stride)));

    let (mut lse, mut delta) = ([0.0; BLOCK], [0.0; BLOCK]);
    lse[..rows].iter_mut().enumerate().for_each(|(i, l)| *l = at.lse[(first + i) * shape.heads]);
    row_dots::<T>(isa, (&dout, &below(at.out, first)), e, &mut delta[..rows]);
    let softmax = Softmax { first, stride, scale: shape.scale, window: shape.window };
    let backward = SoftmaxBackward { softmax, lse: &lse[..rows], delta: &delta[..rows] };
    softmax_backward::<T>(isa, backward, s.scores, s.dp);

    let wide = stride * (size_of::<f32>() / size_of::<T>());
    let p = MatRef::rows(bytemuck::cast_slice::<f32, T>(s.scores), wide);
    let ds = MatRef::rows(bytemuck::cast_slice::<f32, T>(s.dp), wide);
    let seeing = |at: Place| {
        let end = shape.end_query(at.row + at.rows - 1).saturating_sub(first).min(rows);
        at.row.saturating_sub(first) / 2 * 2..end
    };
    let tall: Steps<'_> = (Dims { m: keys, n: e, k: rows }, &seeing);
    pack_a(isa, p.t(), (keys, rows), s.a);
    pack_b(isa, dout, (rows, e), s.b);
    multiply::<T, _>(isa, tall, s.a, (s.b, rows), &Add(Out::new(&mut *s.dv, e)));
    pack_a(isa, ds.t(), (keys, rows), s.a);
    pack_b(isa, q, (rows, e), s.b);
    multiply::<T, _>(isa, tall, s.a, (s.b, rows), &Add(Out::new(&mut *s.dk, e)));
    pack_a(isa, ds, (rows, keys), s.a);
    let dq = At { out: at.dq, row: at.dq_at.0 + first, col: at.dq_at.1 };
    let wide: Steps<'_> = (Dims { m: rows, n: e, k: keys }, &|at| seen_keys(shape, first, at));
    multiply::<T, _>(isa, wide, s.a, (s.k, t), &dq);
}

/// `sum(x[i] * y[i])` of each row, in order, as one chain of fused multiply-adds.
#[inline(always)]
#[allow(clippy::extra_unused_type_parameters, reason = "the ISA's instructions, scalar")]
unsafe fn row_dots_span<S: Simd, T: GemmElement>(
    (x, y): (&MatRef<'_, T>, &MatRef<'_, T>),
    e: usize,
    out: &mut [f32],
) {
    for (i, out) in out.iter_mut().enumerate() {
        let pairs = x.data[i * x.row_stride..][..e].iter().zip(&y.data[i * y.row_stride..][..e]);
        *out = pairs.fold(0.0, |sum: f32, (x, y)| x.to_f32().mul_add(y.to_f32(), sum));
    }
}
simd_kernel!(fn row_dots<T: GemmElement>(rows: (&MatRef<'_, T>, &MatRef<'_, T>), e: usize,
    out: &mut [f32]) = row_dots_span);

/// Writes fp32 rows of `e` elements to their columns, this task's own.
#[inline(always)]
unsafe fn put_span<S: Simd, T: GemmElement>(
    (out, row, col): (&Out<'_, T>, usize, usize),
    x: &[f32],
    e: usize,
) {
    for (i, x) in x.chunks_exact(e).enumerate() {
        let to = out.at(row + i, col, e);
        for j in (0..e).step_by(16) {
            let n = (e - j).min(16);
            // SAFETY: both rows have `e` elements, the piece at `j` has `n`.
            unsafe { store::<S, T>(to.add(j), load::<S, f32>(x.as_ptr().add(j), n), n) };
        }
    }
}
simd_kernel!(fn put<T: GemmElement>(to: (&Out<'_, T>, usize, usize), x: &[f32], e: usize) = put_span);

/// Stores a product at an offset of a larger matrix.
struct At<'a, T> {
    out: &'a Out<'a, T>,
    row: usize,
    col: usize,
}

impl<T: GemmElement> Epilogue for At<'_, T> {
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, at: Place, tile: &Tile) {
        pieces(at, |i, j, n| {
            // SAFETY: the piece lies in the tile and, checked by `Out::at`, in the output.
            unsafe {
                let x = S::load(tile.as_ptr().add(i * TILE_STRIDE + j));
                let to = self.out.at(self.row + at.row + i, self.col + at.col + j, n);
                store::<S, T>(to, x, n);
            }
        });
    }
}
