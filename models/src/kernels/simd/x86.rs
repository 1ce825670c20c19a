//! Sixteen lanes on x86-64: one AVX-512 register, or two AVX2 registers.

// SAFETY (all methods): the caller runs in a function with the implementation's target features, and
// promises pointers valid for the lanes touched; masked loads and stores touch no others.
#![allow(clippy::undocumented_unsafe_blocks, reason = "one promise for all, above")]

use super::{LANES, Simd};
use half::{bf16, f16};
use std::arch::x86_64::*;

/// One 512-bit register.
#[derive(Clone, Copy)]
pub struct Avx512;

/// Two 256-bit registers.
#[derive(Clone, Copy)]
pub struct Avx2;

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

#[inline(always)]
fn mask(n: usize) -> u16 {
    ((1u32 << n) - 1) as u16
}

/// Sum of a 256-bit register in the fixed tree.
#[inline(always)]
unsafe fn tree8(v: __m256, f: impl Fn(__m128, __m128) -> __m128) -> f32 {
    unsafe {
        let four = f(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = f(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(f(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

#[inline(always)]
unsafe fn halves(v: __m512) -> (__m256, __m256) {
    unsafe { (_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v)) }
}

impl Simd for Avx512 {
    type V = __m512;
    type M = __mmask16;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> __m512 {
        unsafe { _mm512_maskz_loadu_ps(mask(n), p) }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: __m512, n: usize) {
        unsafe { _mm512_mask_storeu_ps(p, mask(n), v) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> __m512 {
        unsafe { widen(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: __m512) {
        unsafe { _mm256_storeu_si256(p.cast(), narrow(v)) }
    }
    #[inline(always)]
    unsafe fn load_bf16_n(p: *const bf16, n: usize) -> __m512 {
        unsafe { widen(_mm256_maskz_loadu_epi16(mask(n), p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_bf16_n(p: *mut bf16, v: __m512, n: usize) {
        unsafe { _mm256_mask_storeu_epi16(p.cast(), mask(n), narrow(v)) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: __m512) {
        unsafe { _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<NEAREST>(v)) }
    }
    #[inline(always)]
    unsafe fn load_f16_n(p: *const f16, n: usize) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(n), p.cast())) }
    }
    #[inline(always)]
    unsafe fn store_f16_n(p: *mut f16, v: __m512, n: usize) {
        unsafe { _mm256_mask_storeu_epi16(p.cast(), mask(n), _mm512_cvtps_ph::<NEAREST>(v)) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn fnma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn dot_bf16(acc: __m512, a: __m512, b: __m512) -> __m512 {
        let pairs = |x| unsafe { std::mem::transmute::<__m512, __m512bh>(x) };
        unsafe { _mm512_dpbf16_ps(acc, pairs(a), pairs(b)) }
    }
    #[inline(always)]
    unsafe fn sqrt(a: __m512) -> __m512 {
        unsafe { _mm512_sqrt_ps(a) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn round(a: __m512) -> __m512 {
        unsafe { _mm512_roundscale_ps::<NEAREST>(a) }
    }
    #[inline(always)]
    unsafe fn exp2_int(a: __m512) -> __m512 {
        unsafe {
            let exponent = _mm512_add_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(exponent))
        }
    }
    #[inline(always)]
    unsafe fn lt(a: __m512, b: __m512) -> __mmask16 {
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) }
    }
    #[inline(always)]
    unsafe fn select(m: __mmask16, a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mask_blend_ps(m, b, a) }
    }
    #[inline(always)]
    unsafe fn sum(a: __m512) -> f32 {
        unsafe {
            let (lo, hi) = halves(a);
            tree8(_mm256_add_ps(lo, hi), |x, y| _mm_add_ps(x, y))
        }
    }
    #[inline(always)]
    unsafe fn hmax(a: __m512) -> f32 {
        unsafe {
            let (lo, hi) = halves(a);
            tree8(_mm256_max_ps(lo, hi), |x, y| _mm_max_ps(x, y))
        }
    }
}

#[inline(always)]
unsafe fn widen(x: __m256i) -> __m512 {
    unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x))) }
}

/// Rounds to nearest even, a NaN to a quiet NaN with its sign and high payload: as the software
/// conversion does, denormals included, which the processor's own conversion flushes.
#[inline(always)]
unsafe fn narrow(v: __m512) -> __m256i {
    unsafe {
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
        let picked = _mm512_mask_blend_epi32(nan, rounded, quiet);
        _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(picked))
    }
}

#[inline(always)]
unsafe fn mask8(n: usize) -> __m256i {
    const ONES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    unsafe { _mm256_loadu_si256(ONES.as_ptr().add(8 - n).cast()) }
}

#[inline(always)]
unsafe fn widen8(x: __m128i) -> __m256 {
    unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(x))) }
}

#[inline(always)]
unsafe fn narrow8(v: __m256) -> __m128i {
    unsafe {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let picked = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
        let packed = _mm256_packus_epi32(picked, picked);
        _mm256_castsi256_si128(_mm256_permute4x64_epi64::<0b1000>(packed))
    }
}

/// Denormals become zeros of the same sign.
#[inline(always)]
unsafe fn flush8(x: __m256) -> __m256 {
    unsafe {
        let sign = _mm256_set1_ps(-0.0);
        let normal = _mm256_set1_ps(f32::MIN_POSITIVE);
        let small = _mm256_cmp_ps::<_CMP_LT_OQ>(_mm256_andnot_ps(sign, x), normal);
        _mm256_blendv_ps(x, _mm256_and_ps(x, sign), small)
    }
}

#[inline(always)]
unsafe fn dot8(acc: __m256, a: __m256, b: __m256) -> __m256 {
    unsafe {
        let high = _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000_u32 as i32));
        let hi = |x| flush8(_mm256_and_ps(x, high));
        let lo = |x| flush8(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_castps_si256(x))));
        let first = flush8(_mm256_fmadd_ps(hi(a), hi(b), flush8(acc)));
        flush8(_mm256_fmadd_ps(lo(a), lo(b), first))
    }
}

type Pair = [__m256; 2];

macro_rules! both {
    ($f:ident, $($x:expr),+) => {
        unsafe { [$f($($x[0]),+), $f($($x[1]),+)] }
    };
}

impl Simd for Avx2 {
    type V = Pair;
    type M = Pair;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Pair {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Pair {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Pair) {
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> Pair {
        unsafe {
            let lo = _mm256_maskload_ps(p, mask8(n.min(8)));
            let hi = _mm256_maskload_ps(p.wrapping_add(8), mask8(n.saturating_sub(8)));
            [lo, hi]
        }
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: Pair, n: usize) {
        unsafe {
            _mm256_maskstore_ps(p, mask8(n.min(8)), v[0]);
            _mm256_maskstore_ps(p.wrapping_add(8), mask8(n.saturating_sub(8)), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Pair {
        unsafe {
            let lo = _mm_loadu_si128(p.cast());
            [widen8(lo), widen8(_mm_loadu_si128(p.add(8).cast()))]
        }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: Pair) {
        unsafe {
            _mm_storeu_si128(p.cast(), narrow8(v[0]));
            _mm_storeu_si128(p.add(8).cast(), narrow8(v[1]));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_n(p: *const bf16, n: usize) -> Pair {
        let mut lanes = [bf16::ZERO; LANES];
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
            Self::load_bf16(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_bf16_n(p: *mut bf16, v: Pair, n: usize) {
        let mut lanes = [bf16::ZERO; LANES];
        unsafe {
            Self::store_bf16(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Pair {
        unsafe {
            let lo = _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
            [lo, _mm256_cvtph_ps(_mm_loadu_si128(p.add(8).cast()))]
        }
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: Pair) {
        unsafe {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(p.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
        }
    }
    #[inline(always)]
    unsafe fn load_f16_n(p: *const f16, n: usize) -> Pair {
        let mut lanes = [f16::ZERO; LANES];
        unsafe {
            std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n);
            Self::load_f16(lanes.as_ptr())
        }
    }
    #[inline(always)]
    unsafe fn store_f16_n(p: *mut f16, v: Pair, n: usize) {
        let mut lanes = [f16::ZERO; LANES];
        unsafe {
            Self::store_f16(lanes.as_mut_ptr(), v);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n);
        }
    }
    #[inline(always)]
    unsafe fn add(a: Pair, b: Pair) -> Pair {
        both!(_mm256_add_ps, a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: Pair, b: Pair) -> Pair {
        both!(_mm256_sub_ps, a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: Pair, b: Pair) -> Pair {
        both!(_mm256_mul_ps, a, b)
    }
    #[inline(always)]
    unsafe fn div(a: Pair, b: Pair) -> Pair {
        both!(_mm256_div_ps, a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: Pair, b: Pair, c: Pair) -> Pair {
        both!(_mm256_fmadd_ps, a, b, c)
    }
    #[inline(always)]
    unsafe fn fnma(a: Pair, b: Pair, c: Pair) -> Pair {
        both!(_mm256_fnmadd_ps, a, b, c)
    }
    #[inline(always)]
    unsafe fn dot_bf16(acc: Pair, a: Pair, b: Pair) -> Pair {
        unsafe { [dot8(acc[0], a[0], b[0]), dot8(acc[1], a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn sqrt(a: Pair) -> Pair {
        both!(_mm256_sqrt_ps, a)
    }
    #[inline(always)]
    unsafe fn max(a: Pair, b: Pair) -> Pair {
        both!(_mm256_max_ps, a, b)
    }
    #[inline(always)]
    unsafe fn min(a: Pair, b: Pair) -> Pair {
        both!(_mm256_min_ps, a, b)
    }
    #[inline(always)]
    unsafe fn round(a: Pair) -> Pair {
        unsafe { [_mm256_round_ps::<NEAREST>(a[0]), _mm256_round_ps::<NEAREST>(a[1])] }
    }
    #[inline(always)]
    unsafe fn exp2_int(a: Pair) -> Pair {
        a.map(|x| unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
        })
    }
    #[inline(always)]
    unsafe fn lt(a: Pair, b: Pair) -> Pair {
        unsafe {
            let lo = _mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]);
            [lo, _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])]
        }
    }
    #[inline(always)]
    unsafe fn select(m: Pair, a: Pair, b: Pair) -> Pair {
        both!(_mm256_blendv_ps, b, a, m)
    }
    #[inline(always)]
    unsafe fn sum(a: Pair) -> f32 {
        unsafe { tree8(_mm256_add_ps(a[0], a[1]), |x, y| _mm_add_ps(x, y)) }
    }
    #[inline(always)]
    unsafe fn hmax(a: Pair) -> f32 {
        unsafe { tree8(_mm256_max_ps(a[0], a[1]), |x, y| _mm_max_ps(x, y)) }
    }
}
