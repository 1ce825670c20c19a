//! The processor's multiply-add peak: what a matrix product is measured against.

use super::Isa;
use super::simd::{LANES, Simd};
use crate::block::Precision;
use crate::simd_kernel;
use std::hint::black_box;

/// Steps of [`multiply_adds`] between two looks at its result.
const STEPS: usize = 1000;

/// Runs `rounds` times a thousand steps of independent multiply-adds in registers on the calling
/// thread, and returns the floating-point operations done. The caller times it.
#[must_use]
pub fn multiply_adds(isa: Isa, precision: Precision, rounds: usize) -> u64 {
    for _ in 0..rounds {
        match (precision, isa) {
            (Precision::F32 | Precision::F16, Isa::Avx512) => wide_f32(isa),
            (Precision::Bf16, Isa::Avx512) => wide_bf16(isa),
            (Precision::F32 | Precision::F16, _) => narrow_f32(isa),
            (Precision::Bf16, _) => narrow_bf16(isa),
        }
    }
    let chains = if isa == Isa::Avx512 { WIDE } else { NARROW };
    let flops = if precision == Precision::Bf16 { 4 } else { 2 };
    (rounds * STEPS * chains * LANES * flops) as u64
}

/// Independent chains that fill the registers: 24 of 32, or 12 of 16 (two registers each).
const WIDE: usize = 24;
const NARROW: usize = 6;

simd_kernel!(fn wide_f32() = chain_f32_wide);
simd_kernel!(fn wide_bf16() = chain_bf16_wide);
simd_kernel!(fn narrow_f32() = chain_f32_narrow);
simd_kernel!(fn narrow_bf16() = chain_bf16_narrow);

macro_rules! chains {
    ($name:ident, $count:expr, $step:expr) => {
        #[inline(always)]
        unsafe fn $name<S: Simd>() {
            // SAFETY: register arithmetic alone, on the caller's ISA.
            unsafe {
                let (a, b) = (S::splat(black_box(1.0)), S::splat(black_box(1e-9)));
                let mut acc = [S::splat(black_box(0.0)); $count];
                for _ in 0..STEPS {
                    for c in &mut acc {
                        *c = $step(*c, a, b);
                    }
                }
                let sum = acc.into_iter().fold(S::splat(0.0), |x, y| S::add(x, y));
                black_box(S::sum(sum));
            }
        }
    };
}
chains!(chain_f32_wide, WIDE, |c, a, b| S::fma(a, b, c));
chains!(chain_bf16_wide, WIDE, |c, a, b| S::dot_bf16(c, a, b));
chains!(chain_f32_narrow, NARROW, |c, a, b| S::fma(a, b, c));
chains!(chain_bf16_narrow, NARROW, |c, a, b| S::dot_bf16(c, a, b));

#[cfg(test)]
mod tests {
    use super::*;

    /// The count is that of the loop: rounds x steps x chains x lanes x 2.
    #[test]
    fn operations_are_counted() {
        for isa in Isa::available() {
            let chains = if isa == Isa::Avx512 { 24 } else { 6 };
            let f32 = multiply_adds(isa, Precision::F32, 3);
            assert_eq!(f32, 3 * 1000 * chains * 16 * 2);
            assert_eq!(multiply_adds(isa, Precision::Bf16, 3), 2 * f32);
            assert_eq!(multiply_adds(isa, Precision::F16, 3), f32, "widened, then as fp32");
        }
    }
}
