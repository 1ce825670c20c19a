//! Products inside a task: one thread, operands packed by the caller, one chain over all of `k`.

use super::drive::{SLACK, TILE, finish};
use super::epilogue::Place;
use super::micro::{GemmElement, TileSum, kernel, tile_size};
use super::pack::{Source, pack_panels};
use super::{Dims, Epilogue, MatRef};
use crate::kernels::Isa;
use std::ops::Range;

/// Words that a packed operand of `lanes` rows (of A) or columns (of B) takes.
#[must_use]
pub(crate) fn packed_words<T: GemmElement>(isa: Isa, is_a: bool, lanes: usize, k: usize) -> usize {
    let (rows, cols) = tile_size(isa);
    let width = if is_a { rows } else { cols };
    lanes.next_multiple_of(width) * k.div_ceil(T::PER_WORD) + SLACK
}

/// Packs B `[k, n]` into `out`.
pub(crate) fn pack_b<T: GemmElement>(
    isa: Isa,
    b: MatRef<'_, T>,
    (k, n): (usize, usize),
    out: &mut [f32],
) {
    let width = tile_size(isa).1;
    pack(isa, b.t(), (n, k), (width, false), out);
}

/// Packs A `[m, k]` into `out`.
pub(crate) fn pack_a<T: GemmElement>(
    isa: Isa,
    a: MatRef<'_, T>,
    (m, k): (usize, usize),
    out: &mut [f32],
) {
    let height = tile_size(isa).0;
    pack(isa, a, (m, k), (height, true), out);
}

/// Panels of `width` lanes; a last panel that is `ragged` has only the lanes that exist.
fn pack<T: GemmElement>(
    isa: Isa,
    x: MatRef<'_, T>,
    (lanes, k): (usize, usize),
    (width, ragged): (usize, bool),
    out: &mut [f32],
) {
    x.check(lanes, k);
    let source = Source { x, lanes: (0, lanes), steps: (0, k) };
    // SAFETY: the view was just checked, and a kit's ISA is the processor's.
    unsafe { pack_panels(isa, &source, (width, ragged), out) };
}

/// `C = A·B` of packed operands, over the steps of k that a tile needs: outside of them A is zero. A
/// tile that needs none is skipped, and its elements stay as they were. B may have been packed with
/// more steps of k than `dims.k`: pass how many as `b_steps`.
///
/// # Panics
/// If an operand is too short.
pub(crate) fn multiply<T: GemmElement, E: Epilogue>(
    isa: Isa,
    (dims, steps): (Dims, &dyn Fn(Place) -> Range<usize>),
    a: &[f32],
    (b, b_steps): (&[f32], usize),
    epilogue: &E,
) {
    let (height, width) = tile_size(isa);
    let k = dims.k.div_ceil(T::PER_WORD);
    let b_panel = b_steps.div_ceil(T::PER_WORD) * width;
    assert!(b_panel >= k * width, "B is packed with at least the steps of the product");
    let mut tile = [0.0; TILE];
    for j in 0..dims.n.div_ceil(width) {
        for i in 0..dims.m.div_ceil(height) {
            let (row, col) = (i * height, j * width);
            let rows = height.min(dims.m - row);
            let at = Place { row, col, rows, cols: width.min(dims.n - col) };
            let steps = steps(at);
            if steps.is_empty() {
                continue;
            }
            let (from, end) = (steps.start / T::PER_WORD, steps.end.div_ceil(T::PER_WORD).min(k));
            let a = &a[row * k + from * rows..][..(end - from) * rows];
            let b = &b[j * b_panel + from * width..][..(end - from) * width];
            let (a, b) = (a.as_ptr(), b.as_ptr());
            let sum = TileSum { a, b, k: end - from, out: tile.as_mut_ptr(), add: false };
            // SAFETY: both panels hold the steps, `tile` is a tile, and the ISA is the processor's.
            unsafe { kernel::<T>(isa, rows)(sum) };
            finish::<E>(isa, at, &tile, epilogue);
        }
    }
}
