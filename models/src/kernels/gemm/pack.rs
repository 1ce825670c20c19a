//! Lays operands out as the register tile reads them: panels of words, one step of `k` after another.

use super::MatRef;
use super::micro::GemmElement;
use crate::kernels::Isa;

/// A panel to pack: lanes are rows of `x`, steps are words of its columns.
///
/// For B, pass its transpose: its lanes are B's columns.
#[derive(Clone, Copy)]
pub(super) struct Source<'a, T> {
    pub(super) x: MatRef<'a, T>,
    /// First row, and rows that exist.
    pub(super) lanes: (usize, usize),
    /// First column, a multiple of [`GemmElement::PER_WORD`], and columns to pack.
    pub(super) steps: (usize, usize),
}

impl<T: GemmElement> Source<'_, T> {
    /// Address of element `(lane, step)`.
    fn at(&self, lane: usize, step: usize) -> *const T {
        let row = (self.lanes.0 + lane) * self.x.row_stride;
        // `wrapping`: the end of a row may lie past the data.
        self.x.data.as_ptr().wrapping_add(row + (self.steps.0 + step) * self.x.col_stride)
    }

    /// The word of step `k` (in elements) of a lane; a missing second element is zero.
    ///
    /// # Safety
    /// The view was checked to hold the lane and the step.
    unsafe fn word(&self, lane: usize, k: usize) -> f32 {
        // SAFETY: as the caller promised; the second element is read only where it exists.
        unsafe {
            let second = T::PER_WORD == 2 && k + 1 < self.steps.1;
            let hi = if second { *self.at(lane, k + 1) } else { T::default() };
            T::word(*self.at(lane, k), hi)
        }
    }
}

/// Steps of a panel packed before its neighbour's, in words: where a step's lanes are neighbours, the
/// lines that two panels share are then still in L1.
pub(super) const CHUNK: usize = 32;

/// Packs all lanes of a source as panels of `width` lanes, one panel after another. The last one is
/// padded with zeros, or, if `ragged`, only as wide as the lanes that exist.
///
/// # Safety
/// The view holds the rows and columns named, and the processor has the ISA.
pub(super) unsafe fn pack_panels<T: GemmElement>(
    isa: Isa,
    source: &Source<'_, T>,
    (width, ragged): (usize, bool),
    out: &mut [f32],
) {
    let words = source.steps.1.div_ceil(T::PER_WORD);
    let chunk = if source.x.col_stride == 1 { words.max(1) } else { CHUNK };
    let (first, end) = source.lanes;
    for k in (0..words).step_by(chunk) {
        let from = k * T::PER_WORD;
        let count = (chunk * T::PER_WORD).min(source.steps.1 - from);
        let steps = (source.steps.0 + from, count);
        for (i, lane) in (first..end).step_by(width).enumerate() {
            let here = if ragged { width.min(end - lane) } else { width };
            let part = Source { lanes: (lane, end), steps, ..*source };
            let to = &mut out[i * words * width + k * here..];
            // SAFETY: as the caller promised.
            unsafe { pack_panel(isa, &part, here, to) };
        }
    }
}

/// Packs `width` lanes: word `(k, lane)` goes to `out[k * width + lane]`; lanes at or past the last
/// row are zero.
///
/// # Safety
/// The view holds the rows and columns named, and the processor has the ISA.
unsafe fn pack_panel<T: GemmElement>(
    isa: Isa,
    source: &Source<'_, T>,
    width: usize,
    out: &mut [f32],
) {
    let words = source.steps.1.div_ceil(T::PER_WORD);
    for first in (0..width).step_by(16) {
        let lanes = (width - first).min(16);
        let count = source.lanes.1.saturating_sub(source.lanes.0 + first).min(lanes);
        let part = Source { lanes: (source.lanes.0 + first, count), ..*source };
        let out = &mut out[first..];
        let done = match isa {
            // SAFETY: as the caller promised.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if count > 0 => unsafe {
                super::pack_x86::pack(&part, (lanes, width), out)
            },
            _ => 0,
        };
        // SAFETY: as the caller promised.
        unsafe { pack_scalar(&part, (done, words), (lanes, width), out) };
    }
}

/// The steps `from..words`, word by word, in blocks of 16 so that reads and writes stay in a few
/// lines. Of `part.lanes`, the second is the count.
///
/// # Safety
/// As for [`pack_panel`].
unsafe fn pack_scalar<T: GemmElement>(
    part: &Source<'_, T>,
    (from, words): (usize, usize),
    (lanes, width): (usize, usize),
    out: &mut [f32],
) {
    for block in (from..words).step_by(16) {
        for lane in 0..lanes {
            for step in block..words.min(block + 16) {
                let valid = lane < part.lanes.1;
                // SAFETY: the lane exists, and the step is one of the view's.
                let word = if valid { unsafe { part.word(lane, step * T::PER_WORD) } } else { 0.0 };
                out[step * width + lane] = word;
            }
        }
    }
}

/// The AVX-512 packer's view of a part: raw addresses and strides in bytes.
impl<T: GemmElement> Source<'_, T> {
    /// Addresses of 16 lanes at the first step, those past the count repeating the last.
    pub(super) fn lane_starts(&self) -> [*const T; 16] {
        std::array::from_fn(|lane| self.at(lane.min(self.lanes.1 - 1), 0))
    }

    /// Address of the first lane at a step.
    pub(super) fn step_start(&self, step: usize) -> *const T {
        self.at(0, step)
    }
}
