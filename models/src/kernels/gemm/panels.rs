//! Products that are handed over row panel by row panel and never stored: weight gradients.

use super::drive::{SLACK, Split, Strip, pack_b, run_part};
use super::epilogue::{Out, Place, Store, Tile};
use super::micro::{GemmElement, tile_size};
use super::{Dims, Epilogue, MatRef};
use crate::compute::Kit;
use crate::kernels::simd::Simd;

/// `A·B` in fp32, handed over in complete row panels that are never stored as a whole: each call of
/// `take(first_row, panel)` gets `panel.len() / n` rows. Calls come from several threads; the panels
/// are disjoint and cover every row once, and where they are cut depends on the thread count.
///
/// # Cost
/// B packed once, `k * n` elements; per thread one panel of C, at most 224 rows.
pub fn gemm_panels<T: GemmElement>(
    kit: &Kit,
    dims: Dims,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    take: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    a.check(dims.m, dims.k);
    b.check(dims.k, dims.n);
    let (height, width) = tile_size(kit.isa);
    let words = dims.k.div_ceil(T::PER_WORD);
    let columns = (0, dims.n);
    let mut buffer = kit.packing.shared();
    let packed_b = buffer.get(dims.n.next_multiple_of(width) * words);
    pack_b(kit, dims, b, columns, packed_b);
    let strip = Strip { isa: kit.isa, dims, columns, a, packed_b };
    let panels = (dims.m.div_ceil(height), dims.n.div_ceil(width));
    let mut split = Split::by_rows::<T>((kit.isa, kit.pool.threads()), dims.k, panels);
    let rows = panels.0.div_ceil(split.rows);
    let c_words = rows * height * dims.n;
    let sum_words = split.sums::<T>(dims.k);
    split.sum_words = sum_words + c_words + SLACK;
    kit.packing.reserve(split.a_words + split.sum_words);
    kit.pool.run(split.rows, &|task, worker| {
        let part = split.part(task);
        let mut buffer = kit.packing.own(worker);
        let (packed_a, rest) =
            buffer.get(split.a_words + split.sum_words).split_at_mut(split.a_words);
        let (sums, c) = rest.split_at_mut(sum_words);
        let first = part.rows.0 * height;
        let c = &mut c[..((part.rows.1 * height).min(dims.m) - first) * dims.n];
        let store = Shifted { first, inner: Store(Out::new(&mut *c, dims.n)) };
        run_part(&strip, part, packed_a, sums, &store);
        take(first, c);
    });
}

/// An epilogue whose matrix begins at row `first` of C.
struct Shifted<E> {
    first: usize,
    inner: E,
}

impl<E: Epilogue> Epilogue for Shifted<E> {
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, at: Place, tile: &Tile) {
        let at = Place { row: at.row - self.first, ..at };
        // SAFETY: as the caller promised.
        unsafe { self.inner.tile::<S>(at, tile) }
    }
}
