//! The loops of the exact sum, at memory speed: see [`crate::exact_sum`] for what they mean.

use super::gemm::epilogue::{Out, load, store};
use super::simd::Simd;
use super::{for_rows, row_grain};
use crate::compute::Kit;
use crate::exact_sum::Grid;
use crate::simd_kernel;
use std::sync::atomic::{AtomicBool, Ordering};

/// Scales a piece; values at or past the bound, and NaN, become zero and raise `bad`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn scaled<S: Simd>(grid: Grid, x: S::V, bad: S::V) -> (S::V, S::V) {
    // SAFETY: as the caller promised.
    unsafe {
        let zero = S::splat(0.0);
        let y = S::mul(x, S::splat(grid.scale()));
        let magnitude = S::max(y, S::sub(zero, y));
        let fits = S::lt(magnitude, S::splat(grid.bound()));
        (S::select(fits, y, zero), S::select(fits, bad, S::splat(1.0)))
    }
}

#[inline(always)]
unsafe fn round_span<S: Simd>(grid: Grid, values: &mut [f32]) -> bool {
    // SAFETY: pieces have `n` elements.
    unsafe {
        let mut bad = S::splat(0.0);
        for piece in values.chunks_mut(16) {
            let n = piece.len();
            let (y, b) = scaled::<S>(grid, load::<S, f32>(piece.as_ptr(), n), bad);
            bad = b;
            let rounded = S::mul(S::round(y), S::splat(grid.step()));
            // Adding zero makes a rounded -0 the 0 that the i64 sum would give.
            store::<S, f32>(piece.as_mut_ptr(), S::add(rounded, S::splat(0.0)), n);
        }
        S::hmax(bad) > 0.0
    }
}
simd_kernel!(
    /// Rounds to the grid in place; returns whether any value is flagged.
    pub fn round(grid: Grid, values: &mut [f32]) -> bool = round_span);

#[inline(always)]
unsafe fn unscale_span<S: Simd>(factor: f32, values: &mut [f32]) -> bool {
    // SAFETY: pieces have `n` elements.
    unsafe {
        let mut bad = S::splat(0.0);
        for piece in values.chunks_mut(16) {
            let n = piece.len();
            let x = S::mul(load::<S, f32>(piece.as_ptr(), n), S::splat(factor));
            let magnitude = S::max(x, S::sub(S::splat(0.0), x));
            let finite = S::lt(magnitude, S::splat(f32::INFINITY));
            bad = S::select(finite, bad, S::splat(1.0));
            store::<S, f32>(piece.as_mut_ptr(), x, n);
        }
        S::hmax(bad) > 0.0
    }
}
simd_kernel!(
    /// Multiplies by a power of two; returns whether any value is not finite.
    pub fn unscale(factor: f32, values: &mut [f32]) -> bool = unscale_span);

#[inline(always)]
unsafe fn add_second_span<S: Simd>(sum: &mut [f32], values: &[f32]) {
    for (sum, values) in sum.chunks_mut(16).zip(values.chunks(16)) {
        let n = sum.len();
        // SAFETY: both pieces have `n` elements.
        unsafe {
            let s = S::add(load::<S, f32>(sum.as_ptr(), n), load::<S, f32>(values.as_ptr(), n));
            store::<S, f32>(sum.as_mut_ptr(), s, n);
        }
    }
}
simd_kernel!(
    /// Adds grid values in fp32.
    pub fn add_second(sum: &mut [f32], values: &[f32]) = add_second_span);

#[inline(always)]
unsafe fn accumulate_span<S: Simd>(
    grid: Grid,
    values: &[f32],
    sum: &mut [i64],
    put: impl Fn(&mut i64, i64),
) -> bool {
    // SAFETY: pieces have `n` elements; scaled values are below 2^63 in magnitude.
    unsafe {
        let mut bad = S::splat(0.0);
        let mut lanes = [0.0f32; 16];
        for (values, sum) in values.chunks(16).zip(sum.chunks_mut(16)) {
            let (y, b) = scaled::<S>(grid, load::<S, f32>(values.as_ptr(), values.len()), bad);
            bad = b;
            S::store(lanes.as_mut_ptr(), S::round(y));
            for (sum, y) in sum.iter_mut().zip(&lanes) {
                put(sum, y.to_int_unchecked::<i64>());
            }
        }
        S::hmax(bad) > 0.0
    }
}

#[inline(always)]
unsafe fn put_span<S: Simd>(grid: Grid, values: &[f32], sum: &mut [i64]) -> bool {
    // SAFETY: as the caller promised.
    unsafe { accumulate_span::<S>(grid, values, sum, |sum, y| *sum = y) }
}
simd_kernel!(
    /// Stores grid integers; returns whether any value is flagged.
    pub fn put(grid: Grid, values: &[f32], sum: &mut [i64]) -> bool = put_span);

#[inline(always)]
unsafe fn add_span<S: Simd>(grid: Grid, values: &[f32], sum: &mut [i64]) -> bool {
    // SAFETY: as the caller promised.
    unsafe { accumulate_span::<S>(grid, values, sum, |sum, y| *sum = sum.wrapping_add(y)) }
}
simd_kernel!(
    /// Adds grid integers; returns whether any value is flagged.
    pub fn add(grid: Grid, values: &[f32], sum: &mut [i64]) -> bool = add_span);

/// `as` from i64 to fp32 is one correctly rounded conversion on every ISA (`vcvtqq2ps` on AVX-512).
#[allow(clippy::extra_unused_type_parameters, reason = "the ISA is the parameter")]
#[inline(always)]
unsafe fn reduce_span<S: Simd>(grid: Grid, sum: &[i64], gradient: &mut [f32]) {
    let step = grid.step();
    for (g, &s) in gradient.iter_mut().zip(sum) {
        *g = s as f32 * step;
    }
}
simd_kernel!(
    /// Converts sums to fp32, rounding once.
    pub fn reduce(grid: Grid, sum: &[i64], gradient: &mut [f32]) = reduce_span);

#[allow(clippy::extra_unused_type_parameters, reason = "the ISA is the parameter")]
#[inline(always)]
unsafe fn add_wide_span<S: Simd>(sum: &mut [i64], values: &[i64]) {
    for (sum, &v) in sum.iter_mut().zip(values) {
        *sum = sum.wrapping_add(v);
    }
}
simd_kernel!(
    /// Adds grid integers to grid integers.
    pub fn add_wide(sum: &mut [i64], values: &[i64]) = add_wide_span);

#[allow(clippy::extra_unused_type_parameters, reason = "the ISA is the parameter")]
#[inline(always)]
unsafe fn weigh_span<S: Simd>(first: u64, words: &[i64]) -> u64 {
    let weighted = words.iter().zip(first..).map(|(&w, i)| (w as u64).wrapping_mul(2 * i + 1));
    weighted.fold(0, u64::wrapping_add)
}
simd_kernel!(
    /// Words weighted by 2i + 1 and added modulo 2^64, the first being number `first`.
    pub fn weigh(first: u64, words: &[i64]) -> u64 = weigh_span);

#[allow(clippy::extra_unused_type_parameters, reason = "the ISA is the parameter")]
#[inline(always)]
unsafe fn weigh_single_span<S: Simd>(grid: Grid, first: u64, values: &[f32]) -> u64 {
    let scale = grid.scale();
    let weighted = values
        .iter()
        .zip(first..)
        .map(|(&v, i)| ((v * scale) as i64 as u64).wrapping_mul(2 * i + 1));
    weighted.fold(0, u64::wrapping_add)
}
simd_kernel!(
    /// [`weigh`] of the integers of values that are rounded to the grid.
    pub fn weigh_single(grid: Grid, first: u64, values: &[f32]) -> u64 = weigh_single_span);

/// [`round`] over all threads.
pub fn round_parallel(kit: &Kit, grid: Grid, values: &mut [f32]) -> bool {
    let flagged = AtomicBool::new(false);
    let (len, out) = (values.len(), Out::new(values, 1));
    for_rows(kit, len, row_grain(1), &|r| {
        // SAFETY: ranges are disjoint.
        let values = unsafe { out.rows(r.start, r.len()) };
        if round(kit.isa, grid, values) {
            flagged.store(true, Ordering::Relaxed);
        }
    });
    flagged.into_inner()
}

/// [`unscale`] over all threads.
pub fn unscale_parallel(kit: &Kit, factor: f32, values: &mut [f32]) -> bool {
    let bad = AtomicBool::new(false);
    let (len, out) = (values.len(), Out::new(values, 1));
    for_rows(kit, len, row_grain(1), &|r| {
        // SAFETY: ranges are disjoint.
        if unscale(kit.isa, factor, unsafe { out.rows(r.start, r.len()) }) {
            bad.store(true, Ordering::Relaxed);
        }
    });
    bad.into_inner()
}

/// [`put`] (if `first`) or [`add`] over all threads.
pub fn accumulate_parallel(
    kit: &Kit,
    grid: Grid,
    values: &[f32],
    sum: &mut [i64],
    first: bool,
) -> bool {
    let flagged = AtomicBool::new(false);
    let out = Out::new(sum, 1);
    for_rows(kit, values.len(), row_grain(1), &|r| {
        // SAFETY: ranges are disjoint.
        let sum = unsafe { out.rows(r.start, r.len()) };
        let values = &values[r];
        let bad =
            if first { put(kit.isa, grid, values, sum) } else { add(kit.isa, grid, values, sum) };
        if bad {
            flagged.store(true, Ordering::Relaxed);
        }
    });
    flagged.into_inner()
}

/// [`reduce`] over all threads.
pub fn reduce_parallel(kit: &Kit, grid: Grid, sum: &[i64], gradient: &mut [f32]) {
    let out = Out::new(gradient, 1);
    for_rows(kit, sum.len(), row_grain(1), &|r| {
        // SAFETY: ranges are disjoint.
        let gradient = unsafe { out.rows(r.start, r.len()) };
        reduce(kit.isa, grid, &sum[r], gradient);
    });
}
