//! Products of a few rows, as in decoding: bound by reading B once.
//!
//! B's panels are used by one task only, so each task packs its own, a few KiB at a time, and uses
//! it while it is in L1: memory sees one pass over B and nothing else. The chains over `k` continue
//! block by block exactly as in the general product, so a row has the same bits in both.

use super::drive::{SLACK, TILE, finish};
use super::epilogue::{Place, Tile};
use super::micro::{GemmElement, TileSum, kernel, tile_size};
use super::pack::{Source, pack_panels};
use super::{Dims, Epilogue, MatRef, block_words};
use crate::compute::Kit;

/// `C = A·B` for at most a tile's height of rows.
pub(super) fn gemm<T: GemmElement, E: Epilogue>(
    kit: &Kit,
    dims: Dims,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    epilogue: &E,
) {
    if dims.m == 0 {
        return;
    }
    let words = dims.k.div_ceil(T::PER_WORD);
    let width = tile_size(kit.isa).1;
    let mut buffer = kit.packing.shared();
    let packed_a = buffer.get(words * dims.m + SLACK);
    let source = Source { x: a, lanes: (0, dims.m), steps: (0, dims.k) };
    // SAFETY: the view was checked to hold the rows and all of k.
    unsafe { pack_panels(kit.isa, &source, (dims.m, true), packed_a) };
    let thin = Thin { kit, dims, a: packed_a, b, words };
    let block = block_words(words).min(words.max(1));
    kit.packing.reserve(block * width + SLACK);
    kit.pool.run(dims.n.div_ceil(width), &|j, worker| thin.panel(j, worker, epilogue));
}

struct Thin<'a, T> {
    kit: &'a Kit,
    dims: Dims,
    a: &'a [f32],
    b: MatRef<'a, T>,
    words: usize,
}

impl<T: GemmElement> Thin<'_, T> {
    fn panel<E: Epilogue>(&self, j: usize, worker: usize, epilogue: &E) {
        let (isa, dims, width) = (self.kit.isa, self.dims, tile_size(self.kit.isa).1);
        let block = block_words(self.words);
        let mut tile: Tile = [0.0; TILE];
        let mut buffer = self.kit.packing.own(worker);
        for first in (0..self.words).step_by(block) {
            let k = block.min(self.words - first);
            let packed = buffer.get(k * width + SLACK);
            let from = first * T::PER_WORD;
            let steps = (from, (k * T::PER_WORD).min(dims.k - from));
            let source = Source {
                x: self.b.t(),
                lanes: (j * width, (j * width + width).min(dims.n)),
                steps,
            };
            let a = self.a[first * dims.m..].as_ptr();
            let out = tile.as_mut_ptr();
            // SAFETY: the view was checked; the panels hold `k` steps; the ISA is the kit's.
            unsafe {
                pack_panels(isa, &source, (width, false), packed);
                let b = packed.as_ptr();
                kernel::<T>(isa, dims.m)(TileSum { a, b, k, out, add: first > 0 });
            }
        }
        let cols = width.min(dims.n - j * width);
        finish::<E>(isa, Place { row: 0, col: j * width, rows: dims.m, cols }, &tile, epilogue);
    }
}
