//! Sixteen fp32 lanes, whatever the processor: the vocabulary in which kernels are written once.
//!
//! A kernel is a generic `#[inline(always)]` function over [`Simd`]; a wrapper per ISA carries the
//! `#[target_feature]`. AVX-512 holds the lanes in one register, AVX2 in two, [`Scalar`] in an
//! array. Each operation is one IEEE operation per lane, and the horizontal sums use one fixed tree,
//! so all three give the same bits.

mod scalar;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use scalar::Scalar;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

use half::{bf16, f16};
use planaria_base::DType;

/// Lanes of a vector, on every ISA.
pub const LANES: usize = 16;

/// Sixteen fp32 lanes and the operations on them.
///
/// # Safety
/// All methods are `unsafe`: the caller runs in a function whose target features include those of
/// the implementation, and pointers are valid for 16 (or `n`) elements, unaligned.
#[allow(missing_docs, clippy::missing_safety_doc)]
pub trait Simd: Copy + 'static {
    type V: Copy;
    type M: Copy;
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// Loads `n < 16` elements, the rest zero.
    unsafe fn load_n(p: *const f32, n: usize) -> Self::V;
    unsafe fn store_n(p: *mut f32, v: Self::V, n: usize);
    unsafe fn load_bf16(p: *const bf16) -> Self::V;
    /// Rounds to nearest even; a NaN stays a NaN.
    unsafe fn store_bf16(p: *mut bf16, v: Self::V);
    unsafe fn load_bf16_n(p: *const bf16, n: usize) -> Self::V;
    unsafe fn store_bf16_n(p: *mut bf16, v: Self::V, n: usize);
    unsafe fn load_f16(p: *const f16) -> Self::V;
    /// Rounds to nearest even; what is too large becomes infinite, a NaN stays a NaN.
    unsafe fn store_f16(p: *mut f16, v: Self::V);
    unsafe fn load_f16_n(p: *const f16, n: usize) -> Self::V;
    unsafe fn store_f16_n(p: *mut f16, v: Self::V, n: usize);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once.
    unsafe fn fnma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `acc + a.hi * b.hi + a.lo * b.lo`, where each lane of `a` and `b` holds the bits of two bf16;
    /// as avx512_bf16 computes it: two fused multiply-adds, the high halves first, denormal inputs
    /// and results flushed to zero.
    unsafe fn dot_bf16(acc: Self::V, a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sqrt(a: Self::V) -> Self::V;
    /// `if a > b { a } else { b }`: x86 semantics, a NaN in either gives `b`.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// Rounds to the nearest integer, ties to even.
    unsafe fn round(a: Self::V) -> Self::V;
    /// `2^a` for integral `a` in -126..=127.
    unsafe fn exp2_int(a: Self::V) -> Self::V;
    /// Lanes where `a < b` (false for NaN).
    unsafe fn lt(a: Self::V, b: Self::V) -> Self::M;
    /// `if m { a } else { b }` per lane.
    unsafe fn select(m: Self::M, a: Self::V, b: Self::V) -> Self::V;
    /// Lane sum in the fixed tree: i + (i+8), then +4, +2, +1.
    unsafe fn sum(a: Self::V) -> f32;
    /// Largest lane, in the same tree.
    unsafe fn hmax(a: Self::V) -> f32;
}

/// An element that activations and weights are stored in; arithmetic is fp32.
///
/// # Safety
/// As for [`Simd`]: pointers are valid for 16 (or `n`) elements, unaligned.
#[allow(missing_docs, clippy::missing_safety_doc)]
pub trait Element: bytemuck::Pod + Send + Sync + Default + std::fmt::Debug {
    const DTYPE: DType;
    fn to_f32(self) -> f32;
    fn from_f32(x: f32) -> Self;
    unsafe fn load<S: Simd>(p: *const Self) -> S::V;
    unsafe fn load_n<S: Simd>(p: *const Self, n: usize) -> S::V;
    unsafe fn store<S: Simd>(p: *mut Self, v: S::V);
    unsafe fn store_n<S: Simd>(p: *mut Self, v: S::V, n: usize);
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::load(p) }
    }
    #[inline(always)]
    unsafe fn load_n<S: Simd>(p: *const f32, n: usize) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::load_n(p, n) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut f32, v: S::V) {
        // SAFETY: as the caller promised.
        unsafe { S::store(p, v) }
    }
    #[inline(always)]
    unsafe fn store_n<S: Simd>(p: *mut f32, v: S::V, n: usize) {
        // SAFETY: as the caller promised.
        unsafe { S::store_n(p, v, n) }
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const bf16) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::load_bf16(p) }
    }
    #[inline(always)]
    unsafe fn load_n<S: Simd>(p: *const bf16, n: usize) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::load_bf16_n(p, n) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut bf16, v: S::V) {
        // SAFETY: as the caller promised.
        unsafe { S::store_bf16(p, v) }
    }
    #[inline(always)]
    unsafe fn store_n<S: Simd>(p: *mut bf16, v: S::V, n: usize) {
        // SAFETY: as the caller promised.
        unsafe { S::store_bf16_n(p, v, n) }
    }
}

impl Element for f16 {
    const DTYPE: DType = DType::F16;
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    fn from_f32(x: f32) -> f16 {
        f16::from_f32(x)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f16) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::load_f16(p) }
    }
    #[inline(always)]
    unsafe fn load_n<S: Simd>(p: *const f16, n: usize) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::load_f16_n(p, n) }
    }
    #[inline(always)]
    unsafe fn store<S: Simd>(p: *mut f16, v: S::V) {
        // SAFETY: as the caller promised.
        unsafe { S::store_f16(p, v) }
    }
    #[inline(always)]
    unsafe fn store_n<S: Simd>(p: *mut f16, v: S::V, n: usize) {
        // SAFETY: as the caller promised.
        unsafe { S::store_f16_n(p, v, n) }
    }
}

/// Makes a function that runs a generic kernel on the ISA it is given.
///
/// `simd_kernel!(pub fn name<A: Element>(x: &[A], y: &mut [A]) = generic)` calls
/// `generic::<S, A>(x, y)`, an `unsafe fn` marked `#[inline(always)]`, inside a function that has
/// the ISA's target features.
#[macro_export]
#[doc(hidden)]
macro_rules! simd_kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$($g:ident: $bound:path),*>)?
        ($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $generic:ident) => {
        $(#[$meta])*
        #[inline]
        $vis fn $name $(<$($g: $bound),*>)? (isa: $crate::kernels::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
            unsafe fn avx512 $(<$($g: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function has the features of `Avx512`.
                unsafe { $generic::<$crate::kernels::simd::Avx512 $(, $($g),*)?>($($arg),*) }
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            unsafe fn avx2 $(<$($g: $bound),*>)? ($($arg: $ty),*) $(-> $ret)? {
                // SAFETY: this function has the features of `Avx2`.
                unsafe { $generic::<$crate::kernels::simd::Avx2 $(, $($g),*)?>($($arg),*) }
            }
            match isa {
                // SAFETY: an `Isa` above `Scalar` is only made where the processor has it.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::Isa::Avx512 => unsafe { avx512 $(::<$($g),*>)? ($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::Isa::Avx2 => unsafe { avx2 $(::<$($g),*>)? ($($arg),*) },
                // SAFETY: `Scalar` needs no feature.
                _ => unsafe { $generic::<$crate::kernels::simd::Scalar $(, $($g),*)?>($($arg),*) },
            }
        }
    };
}
