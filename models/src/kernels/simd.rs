//! Sixteen fp32 lanes, whatever the processor: the vocabulary in which kernels are written once.
//!
//! A kernel is a generic `#[inline(always)]` function over [`Simd`]; a wrapper per ISA carries the
//! `#[target_feature]`. AVX-512 holds the lanes in one register, AVX2 in two, [`Scalar`] in an
//! array. Each operation is one IEEE operation per lane, and the horizontal sums use one fixed tree,
//! so all three give the same bits.

use half::bf16;

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
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once.
    unsafe fn fnma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
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
