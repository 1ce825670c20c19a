//! Matrix products `C[m,n] = A[m,k] · B[k,n]` in fp32, or of bf16 or fp16 with fp32 accumulation.
//!
//! ```text
//! strip of columns: pack B once ─┬─ task: rows x columns
//!                                │    for each block of k: pack A's rows (L2)
//!                                │      for each B panel, for each A panel: register tile
//!                                └─     last block: tile -> Epilogue
//! ```
//!
//! `k` is cut into blocks of at most [`K_BLOCK`] words (a word is one fp32 or fp16, or two bf16), all of one
//! length but the last: a function of `k` alone. Within a block every element of C is one chain of
//! fused multiply-adds from zero, first to last; blocks are added in order. So the bits do not depend
//! on tile sizes, threads, row splits or (fp32) the ISA. The register tile is 14 x 32 on AVX-512 and
//! 6 x 16 elsewhere; a finished tile goes to an [`Epilogue`], which adds bias, applies an activation,
//! converts, or hands it on, while it is in L1.

mod drive;
pub mod epilogue;
mod micro;
mod pack;
#[cfg(target_arch = "x86_64")]
mod pack_x86;
mod packing;
mod panels;
mod plan;
pub(crate) mod serial;
mod thin;

pub use drive::{gemm, gemm_long};
pub use epilogue::Epilogue;
pub use micro::{GemmElement, TILE_ROWS, TILE_STRIDE};
pub use packing::Packing;
pub use panels::gemm_panels;
pub use plan::{PackedWords, packed_by_gemm, packed_by_panels};

/// Longest chain of multiply-adds, in words.
pub const K_BLOCK: usize = 1024;

/// A matrix view: element `(i, j)` is `data[i * row_stride + j * col_stride]`.
#[derive(Clone, Copy, Debug)]
pub struct MatRef<'a, T> {
    /// All elements that the view may touch.
    pub data: &'a [T],
    /// Elements from one row to the next.
    pub row_stride: usize,
    /// Elements from one column to the next. One of the strides is 1.
    pub col_stride: usize,
}

impl<'a, T> MatRef<'a, T> {
    /// A row-major matrix with rows of `cols` elements.
    #[must_use]
    pub fn rows(data: &'a [T], cols: usize) -> MatRef<'a, T> {
        MatRef { data, row_stride: cols, col_stride: 1 }
    }

    /// The transpose of the view.
    #[must_use]
    pub fn t(self) -> MatRef<'a, T> {
        MatRef { data: self.data, row_stride: self.col_stride, col_stride: self.row_stride }
    }

    /// The view without its first `count` rows.
    #[must_use]
    pub fn skip_rows(self, count: usize) -> MatRef<'a, T> {
        MatRef { data: &self.data[count * self.row_stride..], ..self }
    }

    /// The view without its first `count` columns.
    #[must_use]
    pub fn skip_cols(self, count: usize) -> MatRef<'a, T> {
        MatRef { data: &self.data[count * self.col_stride..], ..self }
    }

    fn check(&self, rows: usize, cols: usize) {
        assert!(self.row_stride == 1 || self.col_stride == 1, "one stride of a matrix is 1");
        if rows > 0 && cols > 0 {
            let last = (rows - 1) * self.row_stride + (cols - 1) * self.col_stride;
            assert!(last < self.data.len(), "a {rows} x {cols} view reaches past its data");
        }
    }
}

/// Sizes of a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Dims {
    /// Rows of C.
    pub m: usize,
    /// Columns of C.
    pub n: usize,
    /// Length of the sums.
    pub k: usize,
}

/// The blocks of a sum of `words` words: how long each is, the last one shorter.
fn block_words(words: usize) -> usize {
    words.div_ceil(words.div_ceil(K_BLOCK).max(1)).next_multiple_of(4).max(1)
}

#[cfg(test)]
mod tests;
