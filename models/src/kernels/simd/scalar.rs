//! Sixteen lanes in an array: the oracle, and the fallback of processors without AVX2.

#![allow(clippy::needless_range_loop, reason = "lane loops read alike on both sides")]

use super::{LANES, Simd};
use half::{bf16, f16};

/// Portable lanes.
#[derive(Clone, Copy)]
pub struct Scalar;

type V = [f32; LANES];

#[inline(always)]
fn map2(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    std::array::from_fn(|i| f(a[i], b[i]))
}

#[inline(always)]
fn tree(mut a: V, f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            a[i] = f(a[i], a[i + width]);
        }
        width /= 2;
    }
    a[0]
}

// SAFETY (all methods): the caller promises pointers valid for the lanes touched.
#[allow(clippy::undocumented_unsafe_blocks, reason = "one promise for all, above")]
impl Simd for Scalar {
    type V = V;
    type M = [bool; LANES];

    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> V {
        std::array::from_fn(|i| unsafe { p.add(i).read() })
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: V) {
        (0..LANES).for_each(|i| unsafe { p.add(i).write(v[i]) });
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize) -> V {
        std::array::from_fn(|i| if i < n { unsafe { p.add(i).read() } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_n(p: *mut f32, v: V, n: usize) {
        (0..n).for_each(|i| unsafe { p.add(i).write(v[i]) });
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> V {
        std::array::from_fn(|i| unsafe { p.add(i).read() }.to_f32())
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: V) {
        (0..LANES).for_each(|i| unsafe { p.add(i).write(bf16::from_f32(v[i])) });
    }
    #[inline(always)]
    unsafe fn load_bf16_n(p: *const bf16, n: usize) -> V {
        std::array::from_fn(|i| if i < n { unsafe { p.add(i).read() }.to_f32() } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_bf16_n(p: *mut bf16, v: V, n: usize) {
        (0..n).for_each(|i| unsafe { p.add(i).write(bf16::from_f32(v[i])) });
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> V {
        std::array::from_fn(|i| unsafe { p.add(i).read() }.to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(p: *mut f16, v: V) {
        (0..LANES).for_each(|i| unsafe { p.add(i).write(f16::from_f32(v[i])) });
    }
    #[inline(always)]
    unsafe fn load_f16_n(p: *const f16, n: usize) -> V {
        std::array::from_fn(|i| if i < n { unsafe { p.add(i).read() }.to_f32() } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_f16_n(p: *mut f16, v: V, n: usize) {
        (0..n).for_each(|i| unsafe { p.add(i).write(f16::from_f32(v[i])) });
    }
    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        map2(a, b, |x, y| x + y)
    }
    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        map2(a, b, |x, y| x - y)
    }
    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        map2(a, b, |x, y| x * y)
    }
    #[inline(always)]
    unsafe fn div(a: V, b: V) -> V {
        map2(a, b, |x, y| x / y)
    }
    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn fnma(a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| (-a[i]).mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn dot_bf16(acc: V, a: V, b: V) -> V {
        let flush = |x: f32| if x.is_subnormal() { 0.0f32.copysign(x) } else { x };
        let hi = |x: f32| flush(f32::from_bits(x.to_bits() & 0xffff_0000));
        let lo = |x: f32| flush(f32::from_bits(x.to_bits() << 16));
        std::array::from_fn(|i| {
            let first = flush(hi(a[i]).mul_add(hi(b[i]), flush(acc[i])));
            flush(lo(a[i]).mul_add(lo(b[i]), first))
        })
    }
    #[inline(always)]
    unsafe fn sqrt(a: V) -> V {
        a.map(f32::sqrt)
    }
    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        map2(a, b, |x, y| if x > y { x } else { y })
    }
    #[inline(always)]
    unsafe fn min(a: V, b: V) -> V {
        map2(a, b, |x, y| if x < y { x } else { y })
    }
    #[inline(always)]
    unsafe fn round(a: V) -> V {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    unsafe fn exp2_int(a: V) -> V {
        a.map(|x| f32::from_bits(((x as i32 + 127) << 23) as u32))
    }
    #[inline(always)]
    unsafe fn lt(a: V, b: V) -> [bool; LANES] {
        std::array::from_fn(|i| a[i] < b[i])
    }
    #[inline(always)]
    unsafe fn select(m: [bool; LANES], a: V, b: V) -> V {
        std::array::from_fn(|i| if m[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    unsafe fn sum(a: V) -> f32 {
        tree(a, |x, y| x + y)
    }
    #[inline(always)]
    unsafe fn hmax(a: V) -> f32 {
        tree(a, |x, y| if x > y { x } else { y })
    }
}
