//! Fused causal attention, forward and backward: no T x T matrix is ever stored.
//!
//! Source: FlashAttention (Dao et al. 2022), for CPUs: a task is one key/value head of one sequence;
//! it walks blocks of [`BLOCK`] queries against the keys that they may see, so a strip of `BLOCK x T`
//! scores lives in the worker's cache. Grouped queries (Ainslie et al. 2023) add their key and value
//! gradients in head order. Backward recomputes the scores from the kept log-sum-exp.
//!
//! Shapes: q and out `[n, h*e]`, k and v `[n, g*e]`, lse `[n, h]` (natural logarithm of the softmax's
//! denominator, scores scaled). Views may lie inside one fused `[n, (h+2g)*e]` buffer.

mod backward;
mod cached;
mod softmax;

pub use backward::{AttentionBackward, attention_backward};
pub use cached::cached_attention;

use super::Isa;
use super::gemm::epilogue::{Out, Place, Store};
use super::gemm::serial::{multiply, pack_a, pack_b, packed_words};
use super::gemm::{Dims, GemmElement, MatRef};
use crate::compute::Kit;
use softmax::{RowScale, Softmax, softmax_rows};
use std::ops::Range;

/// Queries of a block: eight tiles of 14 rows.
pub const BLOCK: usize = 112;

/// Sizes of an attention.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AttentionShape {
    /// Sequences.
    pub sequences: usize,
    /// Positions of each.
    pub length: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Scores are multiplied by this.
    pub scale: f32,
    /// A query sees so many keys at most, itself included; `None` is all before it.
    pub window: Option<usize>,
}

impl AttentionShape {
    /// The first key that query `i` sees.
    fn first_key(&self, i: usize) -> usize {
        self.window.map_or(0, |window| (i + 1).saturating_sub(window))
    }

    /// The first query that no longer sees key `j`.
    fn end_query(&self, j: usize) -> usize {
        self.window.map_or(usize::MAX, |window| j.saturating_add(window))
    }
}

/// Where q, k and v lie in one fused buffer of rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QkvLayout {
    /// Elements of a row.
    pub row: usize,
    /// First element of the queries.
    pub q: usize,
    /// First element of the keys.
    pub k: usize,
    /// First element of the values.
    pub v: usize,
}

impl QkvLayout {
    /// Queries, then keys, then values.
    #[must_use]
    pub fn fused(shape: AttentionShape) -> QkvLayout {
        let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
        QkvLayout { row: q + 2 * kv, q: 0, k: q, v: q + kv }
    }
}

/// One head of one sequence, as a `[length, head_dim]` view of a fused buffer.
fn head<T>(data: &[T], row: usize, first_row: usize, column: usize) -> MatRef<'_, T> {
    MatRef { data: &data[first_row * row + column..], row_stride: row, col_stride: 1 }
}

/// Rows `first..` of a view.
fn below<'a, T>(x: MatRef<'a, T>, first: usize) -> MatRef<'a, T> {
    MatRef { data: &x.data[first * x.row_stride..], ..x }
}

/// A worker's buffers for one key/value head, cut from its words.
struct Scratch<'a> {
    /// k transposed, packed as B: scores = q · k^T.
    k_t: &'a mut [f32],
    /// v packed as B: out = p · v.
    v: &'a mut [f32],
    /// A block of queries (or of p), packed as A.
    a: &'a mut [f32],
    /// Scores of a block, `[BLOCK, stride]`.
    strip: &'a mut [f32],
}

/// Elements from row to row of a strip: a little over the length, so that rows do not alias in L1.
fn strip_stride(length: usize) -> usize {
    length.next_multiple_of(32) + 16
}

fn cut<'a>(words: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    let (head, rest) = std::mem::take(words).split_at_mut(len.next_multiple_of(16));
    *words = rest;
    &mut head[..len]
}

/// Words that a packed `[lanes, k]` operand takes, on a cache line.
fn words<T: GemmElement>(isa: Isa, is_a: bool, lanes: usize, k: usize) -> usize {
    packed_words::<T>(isa, is_a, lanes, k).next_multiple_of(16)
}

fn forward_words<T: GemmElement>(isa: Isa, s: AttentionShape) -> usize {
    words::<T>(isa, false, s.length, s.head_dim)
        + words::<T>(isa, false, s.head_dim, s.length)
        + words::<T>(isa, true, BLOCK, s.length.max(s.head_dim))
        + BLOCK * strip_stride(s.length)
}

/// Words of a worker's packing buffer that forward and backward take.
#[must_use]
pub fn packing_words<T: GemmElement>(isa: Isa, shape: AttentionShape) -> usize {
    forward_words::<T>(isa, shape).max(backward::scratch_words::<T>(isa, shape))
}

/// Output and log-sum-exp of a causal attention over a fused q, k, v buffer.
///
/// # Panics
/// If a buffer is too short.
pub fn attention<T: GemmElement>(
    kit: &Kit,
    shape: AttentionShape,
    (qkv, layout): (&[T], QkvLayout),
    out: &mut [T],
    lse: &mut [f32],
) {
    kit.packing.reserve(forward_words::<T>(kit.isa, shape));
    let group = shape.heads / shape.kv_heads;
    let out_row = shape.heads * shape.head_dim;
    let (out, lse) = (Out::new(out, out_row), Out::new(lse, shape.heads));
    kit.pool.run(shape.sequences * shape.kv_heads, &|task, worker| {
        let (sequence, kv) = (task / shape.kv_heads, task % shape.kv_heads);
        let first_row = sequence * shape.length;
        let mut guard = kit.packing.own(worker);
        let mut rest = guard.get(forward_words::<T>(kit.isa, shape));
        let (t, e) = (shape.length, shape.head_dim);
        let scratch = Scratch {
            k_t: cut(&mut rest, words::<T>(kit.isa, false, t, e)),
            v: cut(&mut rest, words::<T>(kit.isa, false, e, t)),
            a: cut(&mut rest, words::<T>(kit.isa, true, BLOCK, t.max(e))),
            strip: cut(&mut rest, BLOCK * strip_stride(t)),
        };
        let k = head(qkv, layout.row, first_row, layout.k + kv * e);
        let v = head(qkv, layout.row, first_row, layout.v + kv * e);
        pack_b(kit.isa, k.t(), (e, t), scratch.k_t);
        pack_b(kit.isa, v, (t, e), scratch.v);
        let scratch = &mut { scratch };
        for h in kv * group..(kv + 1) * group {
            let q = head(qkv, layout.row, first_row, layout.q + h * e);
            let to = HeadOut { out: &out, lse: &lse, first_row, head: h };
            forward_head(kit.isa, shape, q, scratch, &to);
        }
    });
}

/// A product, and the steps that each of its tiles needs.
type Steps<'a> = (Dims, &'a dyn Fn(Place) -> Range<usize>);

/// Steps of a tile of scores, queries from `first` by keys: none where no query sees a key.
fn seen_tile(s: AttentionShape, first: usize, at: Place) -> Range<usize> {
    let (query, end) = (first + at.row, first + at.row + at.rows);
    let seen = at.col < end && at.col + at.cols > s.first_key(query);
    if seen { 0..s.head_dim } else { 0..0 }
}

/// The keys that a tile's queries, counted from `first`, see; whole words of packed bf16.
fn seen_keys(s: AttentionShape, first: usize, at: Place) -> Range<usize> {
    s.first_key(first + at.row) / 2 * 2..first + at.row + at.rows
}

/// Where a head's results go.
struct HeadOut<'a, T> {
    out: &'a Out<'a, T>,
    lse: &'a Out<'a, f32>,
    first_row: usize,
    head: usize,
}

fn forward_head<T: GemmElement>(
    isa: Isa,
    shape: AttentionShape,
    q: MatRef<'_, T>,
    scratch: &mut Scratch<'_>,
    to: &HeadOut<'_, T>,
) {
    let (t, e, stride) = (shape.length, shape.head_dim, strip_stride(shape.length));
    let mut sums = [(0.0f32, 0.0f32); BLOCK];
    for first in (0..t).step_by(BLOCK) {
        let rows = (t - first).min(BLOCK);
        let keys = first + rows;
        pack_a(isa, below(q, first), (rows, e), scratch.a);
        let scores = Store(Out::new(&mut *scratch.strip, stride));
        let square: Steps<'_> =
            (Dims { m: rows, n: keys, k: e }, &|at| seen_tile(shape, first, at));
        multiply::<T, _>(isa, square, scratch.a, (scratch.k_t, e), &scores);
        let softmax = Softmax { first, stride, scale: shape.scale, window: shape.window };
        softmax_rows::<T>(isa, softmax, &mut scratch.strip[..rows * stride], &mut sums[..rows]);
        for (i, (max, sum)) in sums[..rows].iter().enumerate() {
            let lse = to.lse.at(to.first_row + first + i, to.head, 1);
            // SAFETY: each (row, head) is written by one task.
            unsafe { lse.write(max + libm::log(f64::from(*sum)) as f32) };
        }
        let p: &[T] = bytemuck::cast_slice(&*scratch.strip);
        let ratio = size_of::<f32>() / size_of::<T>();
        pack_a(isa, MatRef::rows(p, stride * ratio), (rows, keys), scratch.a);
        let epilogue =
            RowScale { out: to.out, row: to.first_row + first, col: to.head * e, sums: &sums };
        let wide: Steps<'_> = (Dims { m: rows, n: e, k: keys }, &|at| seen_keys(shape, first, at));
        multiply::<T, _>(isa, wide, scratch.a, (scratch.v, t), &epilogue);
    }
}

#[cfg(test)]
mod tests;
