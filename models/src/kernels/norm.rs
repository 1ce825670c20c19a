//! LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019), forward and backward.
//!
//! Both are `y = (x - mean) * rstd * w + b`, with `mean = 0` and no `b` in RMSNorm. A row's sums run
//! over 16 lanes and the fixed tree; the sums over rows for `dw` and `db` run in blocks of 64 rows,
//! the blocks in order.

use super::gemm::epilogue::{Out, load, store};
use super::simd::{Element, Simd};
use super::{for_rows, row_grain};
use crate::compute::Kit;
use crate::simd_kernel;

/// Rows of one partial of the weight gradients: fixed, so that threads do not show.
const BLOCK_ROWS: usize = 64;

/// Which norm, over rows of which width.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Norm {
    /// Subtract the mean (LayerNorm), or not (RMSNorm).
    pub center: bool,
    /// Elements of a row.
    pub width: usize,
    /// Added to the variance.
    pub eps: f32,
}

/// Weights of a norm.
#[derive(Clone, Copy)]
pub struct NormWeights<'a> {
    /// Scale, `[width]`.
    pub w: &'a [f32],
    /// Shift, `[width]`; LayerNorm only.
    pub b: Option<&'a [f32]>,
}

#[inline(always)]
unsafe fn row_sum<S: Simd>(x: &[f32], f: impl Fn(S::V) -> S::V) -> f32 {
    // SAFETY: pieces are inside the row; a piece's missing lanes are zeroed by `f`'s caller.
    unsafe {
        let mut acc = S::splat(0.0);
        for piece in x.chunks_exact(16) {
            acc = S::add(acc, f(S::load(piece.as_ptr())));
        }
        let tail = x.chunks_exact(16).remainder();
        if !tail.is_empty() {
            let mut lanes = [0.0f32; 16];
            S::store(lanes.as_mut_ptr(), f(S::load_n(tail.as_ptr(), tail.len())));
            lanes[tail.len()..].fill(0.0);
            acc = S::add(acc, S::load(lanes.as_ptr()));
        }
        S::sum(acc)
    }
}

#[inline(always)]
unsafe fn stats_rows<S: Simd>(norm: Norm, x: &[f32], stats: &mut [f32]) {
    for (x, stats) in x.chunks_exact(norm.width).zip(stats.chunks_exact_mut(2)) {
        let count = norm.width as f32;
        // SAFETY: as the caller promised.
        unsafe {
            let mean = if norm.center { row_sum::<S>(x, |v| v) / count } else { 0.0 };
            let square = |v| {
                let d = S::sub(v, S::splat(mean));
                S::mul(d, d)
            };
            let variance = row_sum::<S>(x, square) / count;
            (stats[0], stats[1]) = (mean, 1.0 / (variance + norm.eps).sqrt());
        }
    }
}

#[inline(always)]
unsafe fn apply_rows<S: Simd, A: Element>(
    norm: Norm,
    x: &[f32],
    stats: &[f32],
    weights: NormWeights<'_>,
    y: &mut [A],
) {
    let width = norm.width;
    let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(stats.chunks_exact(2));
    for ((x, y), stats) in rows {
        for j in (0..width).step_by(16) {
            let n = (width - j).min(16);
            // SAFETY: the pieces at `j` have `n` elements in each row.
            unsafe {
                let v = S::sub(load::<S, f32>(x.as_ptr().add(j), n), S::splat(stats[0]));
                let hat = S::mul(v, S::splat(stats[1]));
                let w = load::<S, f32>(weights.w.as_ptr().add(j), n);
                let out = match weights.b {
                    Some(b) => S::fma(hat, w, load::<S, f32>(b.as_ptr().add(j), n)),
                    None => S::mul(hat, w),
                };
                store::<S, A>(y.as_mut_ptr().add(j), out, n);
            }
        }
    }
}

simd_kernel!(fn stats_isa(norm: Norm, x: &[f32], stats: &mut [f32]) = stats_rows);
simd_kernel!(fn apply_isa<A: Element>(norm: Norm, x: &[f32], stats: &[f32],
    weights: NormWeights<'_>, y: &mut [A]) = apply_rows);

/// Normalises the rows of `x`; keeps each row's mean and reciprocal deviation in `stats [rows, 2]`.
pub fn norm<A: Element>(
    kit: &Kit,
    norm: Norm,
    x: &[f32],
    weights: NormWeights<'_>,
    (y, stats): (&mut [A], &mut [f32]),
) {
    check(norm, x, weights);
    let (y, stats) = (Out::new(y, norm.width), Out::new(stats, 2));
    for_rows(kit, x.len() / norm.width, row_grain(norm.width), &|r| {
        // SAFETY: ranges are disjoint.
        let (y, stats) = unsafe { (y.rows(r.start, r.len()), stats.rows(r.start, r.len())) };
        let x = &x[r.start * norm.width..r.end * norm.width];
        stats_isa(kit.isa, norm, x, stats);
        apply_isa(kit.isa, norm, x, stats, weights, y);
    });
}

/// Normalises again, from the kept `stats`: the same bits.
pub fn norm_again<A: Element>(
    kit: &Kit,
    norm: Norm,
    x: &[f32],
    weights: NormWeights<'_>,
    (y, stats): (&mut [A], &[f32]),
) {
    check(norm, x, weights);
    let y = Out::new(y, norm.width);
    for_rows(kit, x.len() / norm.width, row_grain(norm.width), &|r| {
        // SAFETY: ranges are disjoint.
        let y = unsafe { y.rows(r.start, r.len()) };
        let x = &x[r.start * norm.width..r.end * norm.width];
        apply_isa(kit.isa, norm, x, &stats[2 * r.start..2 * r.end], weights, y);
    });
}

fn check(norm: Norm, x: &[f32], weights: NormWeights<'_>) {
    assert!(x.len().is_multiple_of(norm.width), "whole rows are normalised");
    assert_eq!(weights.w.len(), norm.width, "a norm has one weight per column");
    assert!(weights.b.is_none_or(|b| b.len() == norm.width), "a norm has one shift per column");
}

/// What a norm's backward reads.
#[derive(Clone, Copy)]
pub struct NormBackward<'a, A> {
    /// The input, `[rows, width]`.
    pub x: &'a [f32],
    /// The stats that forward kept.
    pub stats: &'a [f32],
    /// Scale.
    pub w: &'a [f32],
    /// Gradient at the output.
    pub dy: &'a [A],
}

/// Elements of scratch that [`norm_backward`] needs.
#[must_use]
pub fn norm_backward_scratch(rows: usize, width: usize) -> usize {
    rows.div_ceil(BLOCK_ROWS) * 2 * width
}

/// Adds the input's gradient to `dx`, and writes the weights' gradients `dwb [2, width]`: scale, then
/// shift.
///
/// # Panics
/// If `scratch` is shorter than [`norm_backward_scratch`].
pub fn norm_backward<A: Element>(
    kit: &Kit,
    norm: Norm,
    io: NormBackward<'_, A>,
    (dx, dwb): (&mut [f32], &mut [f32]),
    scratch: &mut [f32],
) {
    let (width, rows) = (norm.width, io.x.len() / norm.width);
    let blocks = rows.div_ceil(BLOCK_ROWS);
    let partials = &mut scratch[..blocks * 2 * width];
    {
        let (dx, partials) = (Out::new(dx, width), Out::new(partials, 2 * width));
        kit.pool.run(blocks, &|i, _| {
            let r = i * BLOCK_ROWS..rows.min((i + 1) * BLOCK_ROWS);
            let e = r.start * width..r.end * width;
            // SAFETY: each block has its own rows and partial.
            let (dx, partial) = unsafe { (dx.rows(r.start, r.len()), partials.rows(i, 1)) };
            let stats = &io.stats[2 * r.start..2 * r.end];
            let part = NormBackward { x: &io.x[e.clone()], stats, w: io.w, dy: &io.dy[e] };
            backward_isa(kit.isa, norm, part, dx, partial);
        });
    }
    dwb.fill(0.0);
    for partial in partials.chunks_exact(2 * width) {
        dwb.iter_mut().zip(partial).for_each(|(sum, x)| *sum += x);
    }
}

#[inline(always)]
unsafe fn backward_rows<S: Simd, A: Element>(
    norm: Norm,
    io: NormBackward<'_, A>,
    dx: &mut [f32],
    partial: &mut [f32],
) {
    let width = norm.width;
    partial.fill(0.0);
    let (dw, db) = partial.split_at_mut(width);
    for (i, dx) in dx.chunks_exact_mut(width).enumerate() {
        let (x, dy) = (&io.x[i * width..][..width], &io.dy[i * width..][..width]);
        let (mean, rstd) = (io.stats[2 * i], io.stats[2 * i + 1]);
        // SAFETY: the pieces at `j` have `n` elements in each row; masked lanes load as zero, and a
        // zero `dy` contributes nothing.
        unsafe {
            let (mut dot, mut sum) = (S::splat(0.0), S::splat(0.0));
            for j in (0..width).step_by(16) {
                let n = (width - j).min(16);
                let d = load::<S, A>(dy.as_ptr().add(j), n);
                let v = S::sub(load::<S, f32>(x.as_ptr().add(j), n), S::splat(mean));
                let hat = S::mul(v, S::splat(rstd));
                let g = S::mul(d, load::<S, f32>(io.w.as_ptr().add(j), n));
                dot = S::fma(g, hat, dot);
                sum = S::add(sum, g);
                let (pw, pb) = (dw.as_mut_ptr().add(j), db.as_mut_ptr().add(j));
                store::<S, f32>(pw, S::fma(d, hat, load::<S, f32>(pw, n)), n);
                store::<S, f32>(pb, S::add(load::<S, f32>(pb, n), d), n);
            }
            let c1 = S::splat(S::sum(dot) / width as f32);
            let c2 = S::splat(if norm.center { S::sum(sum) / width as f32 } else { 0.0 });
            for j in (0..width).step_by(16) {
                let n = (width - j).min(16);
                let d = load::<S, A>(dy.as_ptr().add(j), n);
                let v = S::sub(load::<S, f32>(x.as_ptr().add(j), n), S::splat(mean));
                let hat = S::mul(v, S::splat(rstd));
                let g = S::mul(d, load::<S, f32>(io.w.as_ptr().add(j), n));
                let inner = S::sub(S::fnma(hat, c1, g), c2);
                let p = dx.as_mut_ptr().add(j);
                store::<S, f32>(p, S::fma(S::splat(rstd), inner, load::<S, f32>(p, n)), n);
            }
        }
    }
}
simd_kernel!(fn backward_isa<A: Element>(norm: Norm, io: NormBackward<'_, A>, dx: &mut [f32],
    partial: &mut [f32]) = backward_rows);
