//! Conversions, fixed-order column sums and sums of squares.

use super::gemm::epilogue::{Out, load, store};
use super::simd::{Element, Simd};
use super::{for_rows, row_grain};
use crate::compute::Kit;
use crate::simd_kernel;

/// Rows of one partial of a column sum: fixed, so that threads do not show.
const SUM_ROWS: usize = 64;

/// Elements of one partial of a sum of squares: fixed for the same reason.
pub const SQUARES_BLOCK: usize = 4096;

#[inline(always)]
unsafe fn convert_span<S: Simd, A: Element, B: Element>(x: &[A], y: &mut [B]) {
    for (x, y) in x.chunks(16).zip(y.chunks_mut(16)) {
        // SAFETY: both pieces have `x.len()` elements.
        unsafe { store::<S, B>(y.as_mut_ptr(), load::<S, A>(x.as_ptr(), x.len()), x.len()) };
    }
}
simd_kernel!(fn convert_isa<A: Element, B: Element>(x: &[A], y: &mut [B]) = convert_span);

/// `y = x` in another dtype, rounded to nearest even.
///
/// # Panics
/// If the lengths differ.
pub fn convert<A: Element, B: Element>(kit: &Kit, x: &[A], y: &mut [B]) {
    assert_eq!(x.len(), y.len(), "a conversion keeps the length");
    let out = Out::new(y, 1);
    for_rows(kit, x.len(), row_grain(1), &|r| {
        // SAFETY: ranges are disjoint.
        let y = unsafe { out.rows(r.start, r.len()) };
        convert_isa(kit.isa, &x[r], y);
    });
}

#[inline(always)]
unsafe fn sum_rows<S: Simd, A: Element>(x: &[A], width: usize, out: &mut [f32]) {
    out.fill(0.0);
    for row in x.chunks_exact(width) {
        for (x, out) in row.chunks(16).zip(out.chunks_mut(16)) {
            // SAFETY: both pieces have `x.len()` elements.
            unsafe {
                let sum = load::<S, f32>(out.as_ptr(), x.len());
                let sum = S::add(sum, load::<S, A>(x.as_ptr(), x.len()));
                store::<S, f32>(out.as_mut_ptr(), sum, x.len());
            }
        }
    }
}
simd_kernel!(fn sum_rows_isa<A: Element>(x: &[A], width: usize, out: &mut [f32]) = sum_rows);

/// Elements of scratch that [`column_sums`] needs.
#[must_use]
pub fn column_sums_scratch(rows: usize, width: usize) -> usize {
    rows.div_ceil(SUM_ROWS) * width
}

/// Sums of the columns of `x [n, width]`: rows added in blocks of 64, the blocks in order.
///
/// # Panics
/// If `scratch` is shorter than [`column_sums_scratch`].
pub fn column_sums<A: Element>(kit: &Kit, x: &[A], out: &mut [f32], scratch: &mut [f32]) {
    let width = out.len();
    let blocks = (x.len() / width).div_ceil(SUM_ROWS);
    let partials = &mut scratch[..blocks * width];
    {
        let partials = Out::new(partials, width);
        kit.pool.run(blocks, &|i, _| {
            // SAFETY: each task has its own partial.
            let partial = unsafe { partials.rows(i, 1) };
            let rows = &x[i * SUM_ROWS * width..x.len().min((i + 1) * SUM_ROWS * width)];
            sum_rows_isa(kit.isa, rows, width, partial);
        });
    }
    sum_rows_isa(kit.isa, partials, width, out);
}

/// Squares of fp32 are exact in f64; sixteen lanes, one fixed tree, blocks in order.
#[allow(clippy::extra_unused_type_parameters, reason = "the ISA is the parameter")]
#[inline(always)]
unsafe fn squares_span<S: Simd>(x: &[f32]) -> f64 {
    let mut total = 0.0;
    for block in x.chunks(SQUARES_BLOCK) {
        let mut lanes = [0.0f64; 16];
        for piece in block.chunks(16) {
            for (lane, &v) in lanes.iter_mut().zip(piece) {
                *lane += f64::from(v) * f64::from(v);
            }
        }
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                lanes[i] += lanes[i + width];
            }
        }
        total += lanes[0];
    }
    total
}
simd_kernel!(
    /// Sum of squares, in f64: blocks of [`SQUARES_BLOCK`] elements, added in order.
    pub fn sum_of_squares(x: &[f32]) -> f64 = squares_span
);

/// Blocks of one task of [`sum_of_squares_parallel`].
const SQUARES_TASK: usize = 16 * SQUARES_BLOCK;

/// Partials that [`sum_of_squares_parallel`] needs for `len` elements.
#[must_use]
pub fn squares_partials(len: usize) -> usize {
    len.div_ceil(SQUARES_TASK)
}

/// [`sum_of_squares`] over all threads: tasks of a fixed length, added in order.
///
/// # Panics
/// If `partials` is shorter than [`squares_partials`].
pub fn sum_of_squares_parallel(kit: &Kit, x: &[f32], partials: &mut [f64]) -> f64 {
    let tasks = squares_partials(x.len());
    {
        let out = Out::new(&mut partials[..tasks], 1);
        kit.pool.run(tasks, &|i, _| {
            let x = &x[i * SQUARES_TASK..x.len().min((i + 1) * SQUARES_TASK)];
            // SAFETY: each task has its own partial.
            let partial = unsafe { out.rows(i, 1) };
            partial[0] = sum_of_squares(kit.isa, x);
        });
    }
    partials[..tasks].iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Isa;
    use half::bf16;

    /// Column sums against f64, and the same bits for every thread count and ISA.
    #[test]
    fn column_sums_are_right_and_invariant() {
        let (rows, width) = (201, 37);
        let x: Vec<f32> = (0..rows * width).map(|i| ((i * 7919) % 1000) as f32 / 999.0).collect();
        let mut want: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            for threads in 1..=3 {
                let kit = Kit::new(threads, isa);
                let mut scratch = vec![0.0; column_sums_scratch(rows, width)];
                let mut out = vec![0.0; width];
                column_sums(&kit, &x, &mut out, &mut scratch);
                let want = want.get_or_insert_with(|| out.clone());
                assert_eq!(&out, want);
            }
        }
        for (j, sum) in want.expect("one run").iter().enumerate() {
            let exact: f64 = (0..rows).map(|i| f64::from(x[i * width + j])).sum();
            assert!((f64::from(*sum) - exact).abs() < 1e-4);
        }
    }

    /// bf16 rounding is that of the `half` crate on every ISA, NaN and ties included.
    #[test]
    fn bf16_rounds_to_nearest_even() {
        let x: Vec<f32> = (0..4096u32)
            .map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9)))
            .chain([f32::NAN, f32::INFINITY, 1.0 + 1.0 / 256.0, 1e-40])
            .collect();
        let want: Vec<u16> = x.iter().map(|&v| bf16::from_f32(v).to_bits()).collect();
        for isa in Isa::available() {
            let mut y = vec![bf16::ZERO; x.len()];
            convert(&Kit::new(2, isa), &x, &mut y);
            let got: Vec<u16> = y.iter().map(|v| v.to_bits()).collect();
            assert_eq!(got, want, "{isa}");
        }
    }
}
