//! The row-wise parts of attention: masking, exponentials, and their backward.

use crate::kernels::gemm::Epilogue;
use crate::kernels::gemm::TILE_STRIDE;
use crate::kernels::gemm::epilogue::{Out, Place, Tile, pieces, store};
use crate::kernels::math::exp;
use crate::kernels::simd::{Element, Simd};
use crate::simd_kernel;

/// A block of scores: row `i` is query `first + i`, which sees keys up to `first + i`, the last
/// `window` of them.
#[derive(Clone, Copy)]
pub(super) struct Softmax {
    pub(super) first: usize,
    /// fp32 elements from row to row of the strip.
    pub(super) stride: usize,
    pub(super) scale: f32,
    pub(super) window: Option<usize>,
}

impl Softmax {
    /// The keys that row `i` sees.
    fn keys(&self, i: usize) -> (usize, usize) {
        let end = self.first + i + 1;
        (self.window.map_or(0, |window| end.saturating_sub(window)), end)
    }
}

/// Replaces each row's scores by `exp(scale * s - max)` in `T` (unseen keys up to the block's end by
/// zero), and keeps (max, sum) of each row. The sum is over the rounded values that the product with
/// v will use.
#[inline(always)]
unsafe fn softmax_span<S: Simd, T: Element>(
    s: Softmax,
    strip: &mut [f32],
    sums: &mut [(f32, f32)],
) {
    let keys = s.first + sums.len();
    for (i, sum) in sums.iter_mut().enumerate() {
        let seen = s.keys(i);
        let row = strip[i * s.stride..].as_mut_ptr();
        let out: *mut T = row.cast();
        // SAFETY: a row has `stride >= keys` elements, `stride` a multiple of 16; the bf16 written
        // at 16 j never pass the fp32 still to be read at 16 j and beyond.
        unsafe {
            let low = S::splat(f32::NEG_INFINITY);
            let mut max = low;
            for j in (seen.0 / 16 * 16..seen.1).step_by(16) {
                max = S::max(max, masked::<S>(row.add(j), j, seen, low));
            }
            let max = S::hmax(max) * s.scale;
            let mut acc = S::splat(0.0);
            for j in (0..keys.next_multiple_of(16)).step_by(16) {
                if j >= seen.1 || j + 16 <= seen.0 {
                    T::store::<S>(out.add(j), S::splat(0.0));
                    continue;
                }
                let x = masked::<S>(row.add(j), j, seen, low);
                let e = exp::<S>(S::sub(S::mul(x, S::splat(s.scale)), S::splat(max)));
                T::store::<S>(out.add(j), e);
                acc = S::add(acc, T::load::<S>(out.add(j)));
            }
            *sum = (max, S::sum(acc));
        }
    }
}

/// Loads the piece of a row that starts at key `j`; lanes outside of the keys `seen` become `other`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(super) unsafe fn masked<S: Simd>(
    p: *const f32,
    j: usize,
    (from, end): (usize, usize),
    other: S::V,
) -> S::V {
    const LANE: [f32; 16] = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];
    // SAFETY: as the caller promised.
    unsafe {
        let mut x = S::load(p);
        let before = |lanes: usize| S::lt(S::load(LANE.as_ptr()), S::splat(lanes as f32));
        if end < j + 16 {
            x = S::select(before(end - j), x, other);
        }
        if from > j {
            x = S::select(before(from - j), other, x);
        }
        x
    }
}

simd_kernel!(pub(super) fn softmax_rows<T: Element>(s: Softmax, strip: &mut [f32],
    sums: &mut [(f32, f32)]) = softmax_span);

/// `out[row + i, col + j] = tile[i, j] / sums[i]`.
pub(super) struct RowScale<'a, T> {
    pub(super) out: &'a Out<'a, T>,
    pub(super) row: usize,
    pub(super) col: usize,
    pub(super) sums: &'a [(f32, f32)],
}

impl<T: Element> Epilogue for RowScale<'_, T> {
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, at: Place, tile: &Tile) {
        pieces(at, |i, j, n| {
            let (row, col) = (self.row + at.row + i, self.col + at.col + j);
            // SAFETY: the piece lies in the tile and, checked by `Out::at`, in the output.
            unsafe {
                let x = S::load(tile.as_ptr().add(i * TILE_STRIDE + j));
                let x = S::div(x, S::splat(self.sums[at.row + i].1));
                store::<S, T>(self.out.at(row, col, n), x, n);
            }
        });
    }
}

/// One block of the softmax's backward.
#[derive(Clone, Copy)]
pub(super) struct SoftmaxBackward<'a> {
    pub(super) softmax: Softmax,
    /// Log-sum-exp of each row.
    pub(super) lse: &'a [f32],
    /// `sum(dout * out)` of each row.
    pub(super) delta: &'a [f32],
}

/// In: scores and dp, strips of fp32. Out, in `T`: p, and ds = scale * p * (dp - delta).
#[inline(always)]
unsafe fn softmax_backward_span<S: Simd, T: Element>(
    b: SoftmaxBackward<'_>,
    scores: &mut [f32],
    dp: &mut [f32],
) {
    let s = b.softmax;
    let keys = (s.first + b.lse.len()).next_multiple_of(16);
    for i in 0..b.lse.len() {
        let seen = s.keys(i);
        let (row, drow) = (scores[i * s.stride..].as_mut_ptr(), dp[i * s.stride..].as_mut_ptr());
        let (p_out, ds_out): (*mut T, *mut T) = (row.cast(), drow.cast());
        // SAFETY: as in `softmax_span`.
        unsafe {
            let (lse, delta) = (S::splat(b.lse[i]), S::splat(b.delta[i]));
            let (zero, scale) = (S::splat(0.0), S::splat(s.scale));
            let low = S::splat(f32::NEG_INFINITY);
            for j in (0..keys).step_by(16) {
                if j >= seen.1 || j + 16 <= seen.0 {
                    T::store::<S>(p_out.add(j), zero);
                    T::store::<S>(ds_out.add(j), zero);
                    continue;
                }
                let x = masked::<S>(row.add(j), j, seen, low);
                let p = exp::<S>(S::sub(S::mul(x, scale), lse));
                let d = S::sub(masked::<S>(drow.add(j), j, seen, zero), delta);
                T::store::<S>(p_out.add(j), p);
                T::store::<S>(ds_out.add(j), S::mul(S::mul(p, d), scale));
            }
        }
    }
}
simd_kernel!(pub(super) fn softmax_backward<T: Element>(b: SoftmaxBackward<'_>,
    scores: &mut [f32], dp: &mut [f32]) = softmax_backward_span);
