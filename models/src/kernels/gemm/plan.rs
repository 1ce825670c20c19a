//! What a product packs, before it is computed: the sizes that [`super::drive`] and its siblings ask
//! the packing buffers for.

use super::Dims;
use super::block_words;
use super::drive::{SLACK, STRIP_WORDS, Split};
use super::micro::{GemmElement, tile_size};
use crate::kernels::Isa;

/// Words of packing buffers: the one that is shared, and each worker's own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PackedWords {
    /// Of the shared buffer.
    pub shared: usize,
    /// Of each worker's.
    pub own: usize,
}

impl PackedWords {
    /// Buffers that are large enough for both.
    #[must_use]
    pub fn max(self, other: PackedWords) -> PackedWords {
        PackedWords { shared: self.shared.max(other.shared), own: self.own.max(other.own) }
    }

    /// Bytes of the buffers of `threads` workers.
    #[must_use]
    pub fn bytes(self, threads: usize) -> usize {
        64 * (self.shared.div_ceil(16) + threads.max(1) * self.own.div_ceil(16))
    }
}

/// What [`super::gemm`] packs.
#[must_use]
pub fn packed_by_gemm<T: GemmElement>((isa, threads): (Isa, usize), dims: Dims) -> PackedWords {
    let (height, width) = tile_size(isa);
    let words = dims.k.div_ceil(T::PER_WORD);
    if dims.m <= height {
        let block = block_words(words).min(words.max(1));
        return PackedWords { shared: words * dims.m + SLACK, own: block * width + SLACK };
    }
    let strip = strip_columns(words, width);
    let mut most = PackedWords::default();
    for columns in [strip.min(dims.n), dims.n % strip] {
        let panels = (dims.m.div_ceil(height), columns.div_ceil(width));
        let split = Split::of::<T>((isa, threads), dims.k, panels);
        most = most.max(PackedWords {
            shared: columns.next_multiple_of(width) * words,
            own: split.a_words + split.sum_words,
        });
    }
    most
}

/// Columns of B that are packed at once.
pub(super) fn strip_columns(words: usize, width: usize) -> usize {
    (STRIP_WORDS / words.max(1)).max(8 * width) / width * width
}

/// What [`super::gemm_panels`] packs.
#[must_use]
pub fn packed_by_panels<T: GemmElement>((isa, threads): (Isa, usize), dims: Dims) -> PackedWords {
    let (height, width) = tile_size(isa);
    let words = dims.k.div_ceil(T::PER_WORD);
    let panels = (dims.m.div_ceil(height), dims.n.div_ceil(width));
    let split = Split::by_rows::<T>((isa, threads), dims.k, panels);
    let c_words = panels.0.div_ceil(split.rows) * height * dims.n;
    PackedWords {
        shared: dims.n.next_multiple_of(width) * words,
        own: split.a_words + split.sums::<T>(dims.k) + c_words + SLACK,
    }
}
