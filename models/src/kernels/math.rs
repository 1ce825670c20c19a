//! Elementary functions over sixteen lanes: polynomials of fused multiply-adds, so that every ISA
//! gives the same bits. Never the platform's.

use super::simd::Simd;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts (Cody and Waite): the first has trailing zeros, so `n * LN2_HI` is exact.
const LN2_HI: f32 = 0.693_359_4;
const LN2_LO: f32 = -2.121_944_4e-4;
/// Below this, `exp` is zero: the result would be subnormal.
const EXP_LOW: f32 = -87.336_54;
const EXP_HIGH: f32 = 88.376_26;

/// `e^x`, within 2 ulp; 0 below -87.3, the largest finite results saturate at 88.37.
///
/// Source: Cephes `expf` (Moshier), degree 5 on [-ln 2 / 2, ln 2 / 2].
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub unsafe fn exp<S: Simd>(x: S::V) -> S::V {
    // SAFETY: as the caller promised.
    unsafe {
        let under = S::lt(x, S::splat(EXP_LOW));
        let x = S::min(S::splat(EXP_HIGH), S::max(S::splat(EXP_LOW), x));
        let n = S::round(S::mul(x, S::splat(LOG2_E)));
        let r = S::fnma(n, S::splat(LN2_HI), x);
        let r = S::fnma(n, S::splat(LN2_LO), r);
        let mut p = S::splat(1.987_569_1e-4);
        for c in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
            p = S::fma(p, r, S::splat(c));
        }
        let y = S::fma(S::mul(r, r), p, S::add(r, S::splat(1.0)));
        S::select(under, S::splat(0.0), S::mul(y, S::exp2_int(n)))
    }
}

/// `1 / (1 + e^-x)`.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub unsafe fn sigmoid<S: Simd>(x: S::V) -> S::V {
    // SAFETY: as the caller promised.
    unsafe {
        let e = exp::<S>(S::sub(S::splat(0.0), x));
        S::div(S::splat(1.0), S::add(S::splat(1.0), e))
    }
}

/// The error function, within 6e-7: `sign(x) * (1 - poly(t) * e^(-x^2))`, `t = 1 / (1 + p |x|)`.
///
/// Source: Abramowitz and Stegun 7.1.26.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
pub unsafe fn erf<S: Simd>(x: S::V) -> S::V {
    // SAFETY: as the caller promised.
    unsafe {
        let zero = S::splat(0.0);
        let negative = S::lt(x, zero);
        let a = S::max(x, S::sub(zero, x));
        let t = S::div(S::splat(1.0), S::fma(S::splat(0.327_591_1), a, S::splat(1.0)));
        let mut p = S::splat(1.061_405_4);
        for c in [-1.453_152_1, 1.421_413_8, -0.284_496_72, 0.254_829_6] {
            p = S::fma(p, t, S::splat(c));
        }
        let e = exp::<S>(S::sub(zero, S::mul(a, a)));
        let y = S::fnma(S::mul(p, t), e, S::splat(1.0));
        S::select(negative, S::sub(zero, y), y)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Isa;
    use crate::simd_kernel;

    #[inline(always)]
    unsafe fn each<S: Simd>(which: usize, x: &[f32], y: &mut [f32]) {
        for (x, y) in x.chunks_exact(16).zip(y.chunks_exact_mut(16)) {
            // SAFETY: both pieces have 16 elements.
            unsafe {
                let v = S::load(x.as_ptr());
                let r = match which {
                    0 => exp::<S>(v),
                    1 => sigmoid::<S>(v),
                    _ => erf::<S>(v),
                };
                S::store(y.as_mut_ptr(), r);
            }
        }
    }
    simd_kernel!(fn evaluate(which: usize, x: &[f32], y: &mut [f32]) = each);

    /// Against libm in f64, and the same bits on every ISA.
    #[test]
    fn functions_are_right_and_the_same_on_every_isa() {
        let x: Vec<f32> = (0..40_000).map(|i| (i as f32 - 20_000.0) * 0.004).collect();
        let exact: [fn(f64) -> f64; 3] = [libm::exp, |x| 1.0 / (1.0 + libm::exp(-x)), libm::erf];
        for (which, f) in exact.iter().enumerate() {
            let mut want = vec![0.0; x.len()];
            evaluate(Isa::Scalar, which, &x, &mut want);
            for (x, y) in x.iter().zip(&want) {
                let z = f(f64::from(*x));
                let bound = if which == 2 { 6e-7 } else { 3e-7 * z.abs() + 1e-37 };
                assert!((f64::from(*y) - z).abs() <= bound, "function {which} at {x}: {y} {z}");
            }
            for isa in Isa::available() {
                let mut got = vec![0.0; x.len()];
                evaluate(isa, which, &x, &mut got);
                assert!(got.iter().zip(&want).all(|(g, w)| g.to_bits() == w.to_bits()), "{isa}");
            }
        }
    }

    /// At the ends of the range and beyond: zero or subnormal-free below, finite above, NaN stays.
    #[test]
    fn exp_is_sound_at_the_ends() {
        let near = |x: f32| (0..200).map(move |i| x + (i - 100) as f32 * x.abs() * 1e-7);
        let mut x: Vec<f32> = near(EXP_LOW).chain(near(EXP_HIGH)).chain(near(1e-6)).collect();
        x.extend([f32::NEG_INFINITY, -1e30, -0.0, 0.0, 1e-45, f32::INFINITY, 1e30, f32::NAN]);
        x.resize(x.len().next_multiple_of(16), f32::NAN);
        for isa in Isa::available() {
            let mut y = vec![0.0; x.len()];
            evaluate(isa, 0, &x, &mut y);
            for (&x, &y) in x.iter().zip(&y) {
                let want = libm::exp(f64::from(x.min(EXP_HIGH)));
                let fine = if x.is_nan() {
                    y.is_nan()
                } else if x < EXP_LOW {
                    y == 0.0
                } else {
                    y.is_finite() && (f64::from(y) - want).abs() <= 3e-7 * want
                };
                assert!(fine, "{isa}: exp({x}) = {y}, not {want}");
            }
        }
    }
}
