//! Sixteen lanes at a time with AVX-512: transposes, copies and interleaves. Data is only moved (fp16
//! widened, which is exact), so the bits are those of the word-by-word packer.

use super::micro::GemmElement;
use super::pack::Source;
use crate::kernels::simd::Avx512;
use std::arch::x86_64::*;

/// Packs as many whole steps of `lanes` lanes (16 or fewer) as it can, and returns how many words that
/// were. `part.lanes.1` is the number of lanes that exist, at least one; the others become zero.
///
/// # Safety
/// The processor has AVX-512 F, BW and VL; the view holds the lanes and steps.
///
/// # Panics
/// If a step does not lie in `out`.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn pack<T: GemmElement>(
    part: &Source<'_, T>,
    (lanes, width): (usize, usize),
    out: &mut [f32],
) -> usize {
    let words = part.steps.1 / T::PER_WORD;
    if words == 0 {
        return 0;
    }
    let end = (words - 1) * width + lanes;
    assert!(out.len() >= end, "every step's lanes lie in the panel");
    assert!(words == 1 || lanes == 16 || lanes == width, "what is written past a step is its next");
    let mask = |n: usize| ((1u32 << n) - 1) as u16;
    let masks = (mask(part.lanes.1), mask(lanes));
    // SAFETY: as the caller promised, and just checked.
    unsafe {
        if part.x.col_stride == 1 {
            transpose(&part.lane_starts(), words, masks, width, out.as_mut_ptr());
        } else if T::PER_WORD == 1 {
            copy(part, words, masks, width, out.as_mut_ptr());
        } else {
            interleave(part, words, masks, width, out.as_mut_ptr());
        }
    }
    words
}

/// Steps that neighbouring lanes are fetched ahead of use.
const STEPS_AHEAD: usize = 16;

/// Words that a row is fetched ahead of use: four lines.
const AHEAD: usize = 64;

/// Lanes are rows of contiguous words: blocks of 16 x 16, a whole cache line of each row at a time,
/// since rows a multiple of 4 KiB apart share one set of L1.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn transpose<T: GemmElement>(
    rows: &[*const T; 16],
    words: usize,
    (mask, lanes): (u16, u16),
    width: usize,
    out: *mut f32,
) {
    for k in (0..words).step_by(16) {
        let count = (words - k).min(16);
        // SAFETY: `count` words at `k` of each row exist, and the panel takes 16 words at each step.
        unsafe {
            for row in &rows[..] {
                let ahead = row.wrapping_add((k + AHEAD) * T::PER_WORD);
                _mm_prefetch::<_MM_HINT_T0>(ahead.cast());
            }
            let load = |i: usize| words_of(rows[i].add(k * T::PER_WORD), count);
            let steps = transpose16(std::array::from_fn(load));
            for (i, &v) in steps.iter().enumerate().take(count) {
                let to = out.add((k + i) * width);
                put(to, _mm512_maskz_mov_ps(mask, v), k + i + 1 == words, lanes);
            }
        }
    }
}

/// The first `count` words of neighbouring elements, the rest zero.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn words_of<T: GemmElement>(p: *const T, count: usize) -> __m512 {
    // SAFETY: the elements of `count` words exist.
    unsafe {
        if T::PER_WORD == 1 {
            return T::load_n::<Avx512>(p, count);
        }
        _mm512_maskz_loadu_ps(((1u32 << count) - 1) as u16, p.cast())
    }
}

/// Transposes 16 registers of 16 words: pairs, then pairs of pairs, then quarters, then halves.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn transpose16(r: [__m512; 16]) -> [__m512; 16] {
    let pd = |x, y, hi: bool| {
        let (x, y) = (_mm512_castps_pd(x), _mm512_castps_pd(y));
        _mm512_castpd_ps(if hi { _mm512_unpackhi_pd(x, y) } else { _mm512_unpacklo_pd(x, y) })
    };
    // q[g][c]: quarter l holds column 4 * l + c of rows 4 * g .. 4 * g + 4.
    let q: [[__m512; 4]; 4] = std::array::from_fn(|g| {
        let [a, b, c, d] = [r[4 * g], r[4 * g + 1], r[4 * g + 2], r[4 * g + 3]];
        let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
        let (ef, gh) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
        [pd(ab, cd, false), pd(ab, cd, true), pd(ef, gh, false), pd(ef, gh, true)]
    });
    let mut out = [_mm512_setzero_ps(); 16];
    for c in 0..4 {
        let (x, y) = (q[0][c], q[1][c]);
        let (z, w) = (q[2][c], q[3][c]);
        let (xy, zw) = (_mm512_shuffle_f32x4::<0x44>(x, y), _mm512_shuffle_f32x4::<0x44>(z, w));
        let (xy2, zw2) = (_mm512_shuffle_f32x4::<0xee>(x, y), _mm512_shuffle_f32x4::<0xee>(z, w));
        out[c] = _mm512_shuffle_f32x4::<0x88>(xy, zw);
        out[4 + c] = _mm512_shuffle_f32x4::<0xdd>(xy, zw);
        out[8 + c] = _mm512_shuffle_f32x4::<0x88>(xy2, zw2);
        out[12 + c] = _mm512_shuffle_f32x4::<0xdd>(xy2, zw2);
    }
    out
}

/// Stores a step's lanes: all 16 where a later step overwrites the excess, else those of the panel.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn put(to: *mut f32, v: __m512, last: bool, lanes: u16) {
    // SAFETY: the panel takes 16 words at each step but the last, and its own lanes there.
    unsafe { if last { _mm512_mask_storeu_ps(to, lanes, v) } else { _mm512_storeu_ps(to, v) } }
}

/// Lanes are neighbouring elements of a step, a word each.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn copy<T: GemmElement>(
    part: &Source<'_, T>,
    words: usize,
    (mask, lanes): (u16, u16),
    width: usize,
    out: *mut f32,
) {
    for k in 0..words {
        // SAFETY: the step holds the masked lanes; the panel takes 16 words.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(part.step_start(k + STEPS_AHEAD).cast());
            let v = T::load_n::<Avx512>(part.step_start(k), mask.count_ones() as usize);
            put(out.add(k * width), v, k + 1 == words, lanes);
        }
    }
}

/// Lanes are neighbouring bf16 elements of a step; a word takes those of two steps.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn interleave<T: GemmElement>(
    part: &Source<'_, T>,
    words: usize,
    (mask, lanes): (u16, u16),
    width: usize,
    out: *mut f32,
) {
    for k in 0..words {
        // SAFETY: both steps hold the masked lanes; the panel takes 16 words.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(part.step_start(2 * k + STEPS_AHEAD).cast());
            _mm_prefetch::<_MM_HINT_T0>(part.step_start(2 * k + 1 + STEPS_AHEAD).cast());
            let lo = _mm256_maskz_loadu_epi16(mask, part.step_start(2 * k).cast());
            let hi = _mm256_maskz_loadu_epi16(mask, part.step_start(2 * k + 1).cast());
            let hi = _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(hi));
            let v = _mm512_or_si512(hi, _mm512_cvtepu16_epi32(lo));
            put(out.add(k * width), _mm512_castsi512_ps(v), k + 1 == words, lanes);
        }
    }
}
