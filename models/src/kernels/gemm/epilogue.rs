//! What happens to a finished tile.
//!
//! All outputs are row-major. An epilogue writes each element of C once, from whichever thread
//! finished its tile; tiles are disjoint.

use super::micro::{TILE_ROWS, TILE_STRIDE};
use crate::kernels::simd::{Element, Simd};
use std::marker::PhantomData;

/// A finished tile: row `i` at `i * TILE_STRIDE`.
pub type Tile = [f32; TILE_ROWS * TILE_STRIDE];

/// Where a tile lies in C.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// First row.
    pub row: usize,
    /// First column.
    pub col: usize,
    /// Valid rows.
    pub rows: usize,
    /// Valid columns.
    pub cols: usize,
}

/// Consumes finished tiles.
pub trait Epilogue: Sync {
    /// Takes the tile at `at`.
    ///
    /// # Safety
    /// As for [`Simd`]; `at` lies inside C, and no other tile overlaps it.
    unsafe fn tile<S: Simd>(&self, at: Place, tile: &Tile);

    /// Told before a tile is summed: fetches what [`Epilogue::tile`] will write, so that the sums
    /// hide the way to memory.
    #[inline(always)]
    fn prefetch(&self, at: Place) {
        let _ = at;
    }
}

/// A mutable matrix that several threads write disjoint parts of.
pub struct Out<'a, T> {
    data: *mut T,
    len: usize,
    stride: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: tiles are disjoint, so threads never write the same element.
unsafe impl<T: Send> Sync for Out<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Out<'_, T> {}

impl<'a, T> Out<'a, T> {
    /// A row-major matrix of rows `stride` apart.
    pub fn new(data: &'a mut [T], stride: usize) -> Out<'a, T> {
        Out { data: data.as_mut_ptr(), len: data.len(), stride, life: PhantomData }
    }

    /// Rows `first..first + count` as one slice; for matrices whose rows lie end to end.
    ///
    /// # Safety
    /// No other thread touches these rows while the slice lives.
    ///
    /// # Panics
    /// If they reach past the matrix.
    #[allow(clippy::mut_from_ref, reason = "rows are disjoint, by the caller's promise")]
    pub(crate) unsafe fn rows(&self, first: usize, count: usize) -> &mut [T] {
        let len = count * self.stride;
        // SAFETY: `at` checks the bounds; the caller promises that nobody else has the rows.
        unsafe { std::slice::from_raw_parts_mut(self.at(first, 0, len), len) }
    }

    /// `cols` elements of one row.
    ///
    /// # Safety
    /// No other thread touches these elements while the slice lives.
    ///
    /// # Panics
    /// If they reach past the matrix.
    #[allow(clippy::mut_from_ref, reason = "columns are disjoint, by the caller's promise")]
    pub(crate) unsafe fn columns(&self, row: usize, col: usize, cols: usize) -> &mut [T] {
        let first = self.at(row, col, cols);
        // SAFETY: `at` checks the bounds; the caller promises that nobody else has the elements.
        unsafe { std::slice::from_raw_parts_mut(first, cols) }
    }

    /// Asks for the lines of a tile, to be written.
    #[inline(always)]
    pub(crate) fn prefetch(&self, at: Place) {
        #[cfg(target_arch = "x86_64")]
        for i in 0..at.rows {
            use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
            let row = self.data.wrapping_add((at.row + i) * self.stride + at.col).cast::<i8>();
            for line in (0..at.cols * size_of::<T>()).step_by(64) {
                // SAFETY: a prefetch of any address changes nothing and cannot fault.
                unsafe { _mm_prefetch::<_MM_HINT_ET0>(row.wrapping_add(line)) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = at;
    }

    /// The address of `cols` elements at `(row, col)`.
    ///
    /// # Panics
    /// If they reach past the matrix.
    #[inline(always)]
    pub(crate) fn at(&self, row: usize, col: usize, cols: usize) -> *mut T {
        let first = row * self.stride + col;
        assert!(first + cols <= self.len, "a tile lies inside its matrix");
        // SAFETY: just checked.
        unsafe { self.data.add(first) }
    }
}

/// Calls `f(i, j, valid)` for each 16-lane piece of a tile's valid part.
#[inline(always)]
pub(crate) fn pieces(at: Place, mut f: impl FnMut(usize, usize, usize)) {
    for i in 0..at.rows {
        let mut j = 0;
        while j < at.cols {
            f(i, j, (at.cols - j).min(16));
            j += 16;
        }
    }
}

/// Loads 16 lanes or fewer.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn load<S: Simd, A: Element>(p: *const A, n: usize) -> S::V {
    // SAFETY: as the caller promised.
    unsafe { if n == 16 { A::load::<S>(p) } else { A::load_n::<S>(p, n) } }
}

/// Stores 16 lanes or fewer.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub(crate) unsafe fn store<S: Simd, A: Element>(p: *mut A, v: S::V, n: usize) {
    // SAFETY: as the caller promised.
    unsafe { if n == 16 { A::store::<S>(p, v) } else { A::store_n::<S>(p, v, n) } }
}

/// `C = A·B`, in fp32 or rounded to bf16.
pub struct Store<'a, A: Element>(pub Out<'a, A>);

impl<A: Element> Epilogue for Store<'_, A> {
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, at: Place, tile: &Tile) {
        pieces(at, |i, j, n| {
            // SAFETY: the piece lies in the tile and, checked by `Out::at`, in C.
            unsafe {
                let x = S::load(tile.as_ptr().add(i * TILE_STRIDE + j));
                store::<S, A>(self.0.at(at.row + i, at.col + j, n), x, n);
            }
        });
    }

    #[inline(always)]
    fn prefetch(&self, at: Place) {
        self.0.prefetch(at);
    }
}

/// `C += A·B`, in fp32.
pub struct Add<'a>(pub Out<'a, f32>);

impl Epilogue for Add<'_> {
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, at: Place, tile: &Tile) {
        pieces(at, |i, j, n| {
            let c = self.0.at(at.row + i, at.col + j, n);
            // SAFETY: the piece lies in the tile and, checked by `Out::at`, in C.
            unsafe {
                let x = S::load(tile.as_ptr().add(i * TILE_STRIDE + j));
                store::<S, f32>(c, S::add(load::<S, f32>(c, n), x), n);
            }
        });
    }

    #[inline(always)]
    fn prefetch(&self, at: Place) {
        self.0.prefetch(at);
    }
}

/// `C += scale · A·B`, in fp32 or rounded to bf16.
pub struct AddScaled<'a, A: Element> {
    /// C.
    pub out: Out<'a, A>,
    /// The factor.
    pub scale: f32,
}

impl<A: Element> Epilogue for AddScaled<'_, A> {
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, at: Place, tile: &Tile) {
        pieces(at, |i, j, n| {
            let c = self.out.at(at.row + i, at.col + j, n);
            // SAFETY: the piece lies in the tile and, checked by `Out::at`, in C.
            unsafe {
                let x = S::load(tile.as_ptr().add(i * TILE_STRIDE + j));
                store::<S, A>(c, S::fma(x, S::splat(self.scale), load::<S, A>(c, n)), n);
            }
        });
    }

    #[inline(always)]
    fn prefetch(&self, at: Place) {
        self.out.prefetch(at);
    }
}

/// `C = A·B + bias`.
pub struct Bias<'a, A: Element> {
    /// C.
    pub out: Out<'a, A>,
    /// One value per column.
    pub bias: &'a [f32],
}

impl<A: Element> Epilogue for Bias<'_, A> {
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, at: Place, tile: &Tile) {
        assert!(at.col + at.cols <= self.bias.len(), "a bias has one value per column");
        pieces(at, |i, j, n| {
            // SAFETY: the piece lies in the tile, in the bias (just checked), and in C.
            unsafe {
                let x = S::load(tile.as_ptr().add(i * TILE_STRIDE + j));
                let b = load::<S, f32>(self.bias.as_ptr().add(at.col + j), n);
                store::<S, A>(self.out.at(at.row + i, at.col + j, n), S::add(x, b), n);
            }
        });
    }

    #[inline(always)]
    fn prefetch(&self, at: Place) {
        self.out.prefetch(at);
    }
}

/// `C = residual + (A·B + bias)`, in fp32; a missing bias is zero.
pub struct Residual<'a> {
    /// C.
    pub out: Out<'a, f32>,
    /// Row-major, as many columns as C.
    pub residual: &'a [f32],
    /// Columns of C.
    pub cols: usize,
    /// One value per column.
    pub bias: Option<&'a [f32]>,
}

impl Epilogue for Residual<'_> {
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, at: Place, tile: &Tile) {
        let last = (at.row + at.rows - 1) * self.cols + at.col + at.cols;
        assert!(last <= self.residual.len(), "the residual has the shape of C");
        assert!(self.bias.is_none_or(|b| at.col + at.cols <= b.len()), "one bias per column");
        pieces(at, |i, j, n| {
            // SAFETY: the piece lies in the tile, the residual and the bias (just checked), and C.
            unsafe {
                let mut x = S::load(tile.as_ptr().add(i * TILE_STRIDE + j));
                if let Some(bias) = self.bias {
                    x = S::add(x, load::<S, f32>(bias.as_ptr().add(at.col + j), n));
                }
                let r = self.residual.as_ptr().add((at.row + i) * self.cols + at.col + j);
                x = S::add(load::<S, f32>(r, n), x);
                store::<S, f32>(self.out.at(at.row + i, at.col + j, n), x, n);
            }
        });
    }

    #[inline(always)]
    fn prefetch(&self, at: Place) {
        self.out.prefetch(at);
    }
}
