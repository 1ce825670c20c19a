//! LAMB's two passes over a whole parameter: moments and norms, then the step.

use super::elementwise::sum_of_squares;
use super::gemm::epilogue::{Out, load, store};
use super::optimizer::Shared;
use super::simd::Simd;
use crate::compute::Kit;
use crate::optimizers::Elements;
use crate::simd_kernel;

/// Elements whose squares make one partial norm: fixed, so that the norms' bits are too.
const PIECE: usize = 4096;

/// LAMB's scalars of one update.
#[derive(Clone, Copy, Debug)]
pub struct LambScalars {
    /// The gradient is multiplied by this first.
    pub factor: f32,
    /// Kept of the first moment, and taken of the gradient.
    pub first: [f32; 2],
    /// Kept of the second moment, and taken of the squared gradient.
    pub second: [f32; 2],
    /// 1 / (1 - beta^t) for both moments.
    pub correct: [f32; 2],
    /// Added to the root of the second moment, or under it.
    pub eps: f32,
    /// Whether `eps` is added under the root.
    pub eps_inside_sqrt: bool,
    /// Parameter added to the update.
    pub decay: f32,
    /// Learning rate.
    pub rate: f32,
    /// Largest and smallest trust ratio.
    pub trust: [f32; 2],
}

/// f64 words of scratch that [`lamb`] needs for `len` elements.
#[must_use]
pub const fn lamb_partials(len: usize) -> usize {
    2 * len.div_ceil(PIECE)
}

/// The update's direction before the trust ratio: the corrected moments' quotient plus the decay.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn direction<S: Simd>(k: LambScalars, p: S::V, m: S::V, v: S::V) -> S::V {
    // SAFETY: as the caller promised.
    unsafe {
        let (m, v) = (S::mul(m, S::splat(k.correct[0])), S::mul(v, S::splat(k.correct[1])));
        let root = if k.eps_inside_sqrt {
            S::sqrt(S::add(v, S::splat(k.eps)))
        } else {
            S::add(S::sqrt(v), S::splat(k.eps))
        };
        S::fma(p, S::splat(k.decay), S::div(m, root))
    }
}

#[inline(always)]
unsafe fn moments_span<S: Simd>(k: LambScalars, e: Elements<'_>, update: &mut [f32]) {
    let len = e.master.len();
    assert!(e.gradient.len() == len && e.first.len() == len && e.second.len() == len);
    assert_eq!(update.len(), len);
    for i in (0..len).step_by(16) {
        let n = (len - i).min(16);
        // SAFETY: all slices have `len` elements (just asserted), the piece at `i` has `n`.
        unsafe {
            let (pm, pv) = (e.first.as_mut_ptr().add(i), e.second.as_mut_ptr().add(i));
            let g = S::mul(load::<S, f32>(e.gradient.as_ptr().add(i), n), S::splat(k.factor));
            let m = S::mul(g, S::splat(k.first[1]));
            let m = S::fma(load::<S, f32>(pm, n), S::splat(k.first[0]), m);
            let v = S::mul(S::mul(g, g), S::splat(k.second[1]));
            let v = S::fma(load::<S, f32>(pv, n), S::splat(k.second[0]), v);
            store::<S, f32>(pm, m, n);
            store::<S, f32>(pv, v, n);
            let u = direction::<S>(k, load::<S, f32>(e.master.as_ptr().add(i), n), m, v);
            store::<S, f32>(update.as_mut_ptr().add(i), u, n);
        }
    }
}
simd_kernel!(fn moments(k: LambScalars, e: Elements<'_>, update: &mut [f32]) = moments_span);

#[inline(always)]
unsafe fn step_span<S: Simd>(k: LambScalars, step: f32, e: Elements<'_>) {
    let len = e.master.len();
    assert!(e.first.len() == len && e.second.len() == len);
    let mut working = e.working;
    assert!(working.as_ref().is_none_or(|w| w.len() == len));
    for i in (0..len).step_by(16) {
        let n = (len - i).min(16);
        // SAFETY: all slices have `len` elements (just asserted), the piece at `i` has `n`.
        unsafe {
            let p = load::<S, f32>(e.master.as_ptr().add(i), n);
            let m = load::<S, f32>(e.first.as_ptr().add(i), n);
            let v = load::<S, f32>(e.second.as_ptr().add(i), n);
            let p = S::fnma(S::splat(step), direction::<S>(k, p, m, v), p);
            store::<S, f32>(e.master.as_mut_ptr().add(i), p, n);
            if let Some(working) = &mut working {
                working.put::<S>(i, p, n);
            }
        }
    }
}
simd_kernel!(fn step(k: LambScalars, step: f32, e: Elements<'_>) = step_span);

/// One LAMB update of a whole parameter.
///
/// # Determinism
/// The norms are sums of squares in f64 over fixed pieces, added in order.
///
/// # Panics
/// If `partials` is shorter than [`lamb_partials`].
pub fn lamb(kit: &Kit, k: LambScalars, e: Elements<'_>, partials: &mut [f64]) {
    let len = e.master.len();
    let partials = &mut partials[..lamb_partials(len)];
    let e = Shared::new(e);
    let piece = |i: usize| i * PIECE..len.min((i + 1) * PIECE);
    {
        let partials = Out::new(&mut *partials, 2);
        kit.pool.run(len.div_ceil(PIECE), &|i, _| {
            // SAFETY: pieces are disjoint, and each has its own partials.
            let (part, partial) = unsafe { (e.part(piece(i)), partials.rows(i, 1)) };
            let mut space = [0.0; PIECE];
            let update = &mut space[..part.master.len()];
            partial[0] = sum_of_squares(kit.isa, part.master);
            moments(kit.isa, k, part, update);
            partial[1] = sum_of_squares(kit.isa, update);
        });
    }
    let norm = |which: usize| partials.iter().skip(which).step_by(2).sum::<f64>().sqrt();
    let rate = k.rate * trust(k.trust, norm(0), norm(1));
    kit.pool.run(len.div_ceil(PIECE), &|i, _| {
        // SAFETY: pieces are disjoint.
        step(kit.isa, k, rate, unsafe { e.part(piece(i)) });
    });
}

/// The parameter's norm over the update's, within bounds; 1 if either is zero.
fn trust([most, least]: [f32; 2], parameter: f64, update: f64) -> f32 {
    if parameter == 0.0 || update == 0.0 {
        return 1.0;
    }
    ((parameter / update) as f32).min(most).max(least)
}
