//! Splits a product into strips and tasks, packs, and runs tiles.

use super::epilogue::{Add, Out, Place, Store, Tile};
use super::micro::{GemmElement, TILE_STRIDE, TileSum, kernel, tile_size};
use super::pack::{CHUNK, Source, pack_panels};
use super::plan::strip_columns;
use super::{Dims, Epilogue, MatRef, block_words};
use crate::compute::Kit;
use crate::kernels::Isa;
use crate::kernels::simd::Simd;
use crate::simd_kernel;
use std::ops::Range;

/// Words of packed B that a strip may have: 8 MiB, a quarter of a server's L3.
pub(super) const STRIP_WORDS: usize = 2 << 20;

/// Words of packed A that a task may have: 384 KiB, which leave room for B's panel in L2.
const A_WORDS: usize = 96 << 10;

/// Tasks per thread that the split aims at, so that the last to finish is not far behind.
const TASKS_PER_THREAD: usize = 4;

/// Room for the 16-lane stores of the last step of a panel.
pub(super) const SLACK: usize = 16;

/// Elements of a finished tile.
pub(super) const TILE: usize = super::TILE_ROWS * TILE_STRIDE;

/// One strip of a product, as every task sees it.
#[derive(Clone, Copy)]
pub(super) struct Strip<'a, T> {
    pub(super) isa: Isa,
    pub(super) dims: Dims,
    /// First column of the strip, and its columns.
    pub(super) columns: (usize, usize),
    pub(super) a: MatRef<'a, T>,
    /// For each block of k, for each column panel: `k * width` words.
    pub(super) packed_b: &'a [f32],
}

/// The part of a strip that one task computes: row panels and column panels.
#[derive(Clone, Copy)]
pub(super) struct Part {
    pub(super) rows: (usize, usize),
    pub(super) columns: (usize, usize),
}

/// `C = A·B`, each finished tile given to the epilogue.
///
/// # Panics
/// If a view is too short.
pub fn gemm<T: GemmElement, E: Epilogue>(
    kit: &Kit,
    dims: Dims,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    epilogue: &E,
) {
    a.check(dims.m, dims.k);
    b.check(dims.k, dims.n);
    let (height, width) = tile_size(kit.isa);
    if dims.m <= height {
        return super::thin::gemm(kit, dims, a, b, epilogue);
    }
    let words = dims.k.div_ceil(T::PER_WORD);
    let strip = strip_columns(words, width);
    let mut buffer = kit.packing.shared();
    for first in (0..dims.n).step_by(strip) {
        let columns = (first, strip.min(dims.n - first));
        let packed_b = buffer.get(columns.1.next_multiple_of(width) * words);
        pack_b(kit, dims, b, columns, packed_b);
        run_strip(kit, &Strip { isa: kit.isa, dims, columns, a, packed_b }, epilogue);
    }
}

fn run_strip<T: GemmElement, E: Epilogue>(kit: &Kit, strip: &Strip<'_, T>, epilogue: &E) {
    let (height, width) = tile_size(kit.isa);
    let panels = (strip.dims.m.div_ceil(height), strip.columns.1.div_ceil(width));
    let split = Split::of::<T>((kit.isa, kit.pool.threads()), strip.dims.k, panels);
    kit.packing.reserve(split.a_words + split.sum_words);
    kit.pool.run(split.rows * split.columns, &|task, worker| {
        let part = split.part(task);
        let mut buffer = kit.packing.own(worker);
        let (packed_a, sums) =
            buffer.get(split.a_words + split.sum_words).split_at_mut(split.a_words);
        run_part(strip, part, packed_a, sums, epilogue);
    });
}

/// How a strip is cut into tasks.
pub(super) struct Split {
    panels: (usize, usize),
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) a_words: usize,
    pub(super) sum_words: usize,
}

impl Split {
    /// For an instruction set and so many threads.
    pub(super) fn of<T: GemmElement>(
        (isa, threads): (Isa, usize),
        k: usize,
        panels: (usize, usize),
    ) -> Split {
        let mut split = Split::by_rows::<T>((isa, threads), k, panels);
        let wanted = if threads == 1 { 1 } else { TASKS_PER_THREAD * threads };
        split.columns = wanted.div_ceil(split.rows).clamp(1, panels.1.max(1));
        split.sum_words = split.sums::<T>(k);
        split
    }

    /// Words of partial sums that a task keeps: none where one block holds all of k.
    pub(super) fn sums<T: GemmElement>(&self, k: usize) -> usize {
        let words = k.div_ceil(T::PER_WORD);
        let tiles = self.panels.0.div_ceil(self.rows) * self.panels.1.div_ceil(self.columns);
        if words > block_words(words) { tiles * TILE } else { 0 }
    }

    /// Row blocks alone, as even as can be: each fits L2, and there are as many for every thread.
    pub(super) fn by_rows<T: GemmElement>(
        (isa, threads): (Isa, usize),
        k: usize,
        panels: (usize, usize),
    ) -> Split {
        let height = tile_size(isa).0;
        let block = block_words(k.div_ceil(T::PER_WORD));
        let fit = (A_WORDS / (block * height)).clamp(1, 16);
        let rows = panels.0.div_ceil(fit).next_multiple_of(threads).clamp(1, panels.0.max(1));
        let a_words = panels.0.div_ceil(rows) * block * height + SLACK;
        Split { panels, rows, columns: 1, a_words: a_words.next_multiple_of(16), sum_words: 0 }
    }

    pub(super) fn part(&self, task: usize) -> Part {
        let cut = |i: usize, parts: usize, all: usize| (all * i / parts, all * (i + 1) / parts);
        Part {
            rows: cut(task / self.columns, self.rows, self.panels.0),
            columns: cut(task % self.columns, self.columns, self.panels.1),
        }
    }
}

/// Packs the columns of a strip, all of k. A task packs a run of k for all columns where a step's
/// columns are neighbours, so that memory is read in order; else one panel.
pub(super) fn pack_b<T: GemmElement>(
    kit: &Kit,
    dims: Dims,
    b: MatRef<'_, T>,
    columns: (usize, usize),
    packed: &mut [f32],
) {
    let panels = columns.1.div_ceil(tile_size(kit.isa).1);
    let words = dims.k.div_ceil(T::PER_WORD);
    let block = block_words(words);
    let pack = PackB { isa: kit.isa, dims, b, columns, out: Out::new(packed, 0) };
    if b.col_stride == 1 {
        let runs = block.div_ceil(CHUNK);
        kit.pool.run(words.div_ceil(block) * runs, &|task, _| {
            let first = task / runs * block;
            let k = block.min(words - first);
            let run = (task % runs * CHUNK).min(k)..((task % runs + 1) * CHUNK).min(k);
            (0..panels).for_each(|j| pack.run((first, k), j, run.clone()));
        });
    } else {
        kit.pool.run(panels, &|j, _| {
            for first in (0..words).step_by(block) {
                let k = block.min(words - first);
                pack.run((first, k), j, 0..k);
            }
        });
    }
}

struct PackB<'a, T> {
    isa: Isa,
    dims: Dims,
    b: MatRef<'a, T>,
    columns: (usize, usize),
    out: Out<'a, f32>,
}

impl<T: GemmElement> PackB<'_, T> {
    /// Packs some words of panel `j` in the block of `k` words from `first`.
    fn run(&self, (first, k): (usize, usize), j: usize, run: Range<usize>) {
        if run.is_empty() {
            return;
        }
        let width = tile_size(self.isa).1;
        let panels = self.columns.1.div_ceil(width);
        let at = first * panels * width + (j * k + run.start) * width;
        let len = run.len() * width;
        // SAFETY: the runs of a panel are disjoint, and each belongs to one task.
        let out = unsafe { std::slice::from_raw_parts_mut(self.out.at(0, at, len), len) };
        let from = (first + run.start) * T::PER_WORD;
        let steps = (from, (run.len() * T::PER_WORD).min(self.dims.k - from));
        let lane = self.columns.0 + j * width;
        let lanes = (lane, (lane + width).min(self.columns.0 + self.columns.1));
        let source = Source { x: self.b.t(), lanes, steps };
        // SAFETY: the view was checked to hold the columns and all of k.
        unsafe { pack_panels(self.isa, &source, (width, false), out) };
    }
}

/// All tiles of a part: for each block of k, each B panel, held in L2, against all A panels. `sums`
/// keeps the part's tiles between blocks, and is empty where one block holds all of k.
pub(super) fn run_part<T: GemmElement, E: Epilogue>(
    strip: &Strip<'_, T>,
    part: Part,
    packed_a: &mut [f32],
    sums: &mut [f32],
    epilogue: &E,
) {
    let words = strip.dims.k.div_ceil(T::PER_WORD);
    let block = block_words(words);
    let mut single = [0.0; TILE];
    let mut first = 0;
    loop {
        let k = block.min(words - first);
        pack_a(strip, part.rows, (first, k), packed_a);
        let last = first + k == words;
        let mut kept = sums.chunks_exact_mut(TILE);
        for j in part.columns.0..part.columns.1 {
            for i in part.rows.0..part.rows.1 {
                let out = if words > block { kept.next() } else { None };
                let out = out.unwrap_or(&mut single);
                let at = strip.place(i, j);
                if last {
                    epilogue.prefetch(at);
                }
                let a = &packed_a[(i - part.rows.0) * tile_size(strip.isa).0 * k..][..at.rows * k];
                strip.sum(at, a, strip.b_panel(first, k, j), (out, first > 0));
                if last {
                    let out = out.first_chunk::<TILE>().expect("a chunk is a tile");
                    finish::<E>(strip.isa, at, out, epilogue);
                }
            }
        }
        first += k;
        if last {
            return;
        }
    }
}

impl<T> Strip<'_, T> {
    /// Where the tile of row panel `i` and column panel `j` lies.
    fn place(&self, i: usize, j: usize) -> Place {
        let (height, width) = tile_size(self.isa);
        let (row, col) = (i * height, j * width);
        let rows = height.min(self.dims.m - row);
        Place { row, col: self.columns.0 + col, rows, cols: width.min(self.columns.1 - col) }
    }

    /// B's panel `j` in the block of `k` words from `first`.
    fn b_panel(&self, first: usize, k: usize, j: usize) -> &[f32] {
        let width = tile_size(self.isa).1;
        let panels = self.columns.1.div_ceil(width);
        &self.packed_b[first * panels * width + j * k * width..][..k * width]
    }
}

impl<T: GemmElement> Strip<'_, T> {
    /// Sums one tile over one block of k; `out` is the tile and whether to add to it.
    fn sum(&self, at: Place, a: &[f32], b: &[f32], (out, add): (&mut [f32], bool)) {
        let k = a.len() / at.rows;
        assert!(b.len() == k * tile_size(self.isa).1 && out.len() == TILE, "panels of one block");
        let sum = TileSum { a: a.as_ptr(), b: b.as_ptr(), k, out: out.as_mut_ptr(), add };
        // SAFETY: both panels hold `k` steps, `out` is a tile, and the ISA is the kit's.
        unsafe { kernel::<T>(self.isa, at.rows)(sum) }
    }
}

simd_kernel!(pub(super) fn finish<E: Epilogue>(at: Place, tile: &Tile, epilogue: &E) = finish_tile);

#[inline(always)]
unsafe fn finish_tile<S: Simd, E: Epilogue>(at: Place, tile: &Tile, epilogue: &E) {
    // SAFETY: as the caller promised.
    unsafe { epilogue.tile::<S>(at, tile) }
}

/// Packs the row panels of a part, for one block of k.
pub(super) fn pack_a<T: GemmElement>(
    strip: &Strip<'_, T>,
    rows: (usize, usize),
    (first, k): (usize, usize),
    packed: &mut [f32],
) {
    let height = tile_size(strip.isa).0;
    let from = first * T::PER_WORD;
    let steps = (from, (k * T::PER_WORD).min(strip.dims.k - from));
    let lanes = (rows.0 * height, (rows.1 * height).min(strip.dims.m));
    let source = Source { x: strip.a, lanes, steps };
    // SAFETY: the view was checked to hold the rows and all of k.
    unsafe { pack_panels(strip.isa, &source, (height, true), packed) };
}

/// `C = A·B` in fp32 for sums of any length: where B would not fit a strip of useful width, one
/// block of `k` after another. The bits are those of [`gemm`].
pub fn gemm_long<T: GemmElement>(
    kit: &Kit,
    dims: Dims,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    c: &mut [f32],
) {
    let words = dims.k.div_ceil(T::PER_WORD);
    if words * dims.n <= 2 * STRIP_WORDS {
        return gemm(kit, dims, a, b, &Store(Out::new(c, dims.n)));
    }
    let step = block_words(words) * T::PER_WORD;
    for first in (0..dims.k).step_by(step) {
        let part = Dims { k: step.min(dims.k - first), ..dims };
        let (a, b) = (a.skip_cols(first), b.skip_rows(first));
        if first == 0 {
            gemm(kit, part, a, b, &Store(Out::new(c, dims.n)));
        } else {
            gemm(kit, part, a, b, &Add(Out::new(c, dims.n)));
        }
    }
}
