//! GELU and SwiGLU, forward and backward.

use super::gemm::epilogue::{Out, load, store};
use super::math::{erf, exp, sigmoid};
use super::simd::{Element, Simd};
use super::{for_rows, row_grain};
use crate::compute::Kit;
use crate::simd_kernel;
use serde::{Deserialize, Serialize};

/// Which GELU.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gelu {
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`: GPT-2's `gelu_new`.
    Tanh,
    /// `x/2 (1 + erf(x / sqrt 2))`.
    Erf,
}

/// sqrt(2/pi), and the cubic coefficient times it; doubled, since tanh(u) = 2 sigmoid(2u) - 1.
const TANH_A: f32 = 2.0 * 0.797_884_6;
const TANH_B: f32 = 2.0 * 0.797_884_6 * 0.044_715;
/// 1 / sqrt(2 pi).
const DENSITY: f32 = 0.398_942_3;

/// The GELU and its derivative.
///
/// # Safety
/// As for [`Simd`].
#[inline(always)]
unsafe fn gelu_both<S: Simd>(kind: Gelu, x: S::V) -> (S::V, S::V) {
    // SAFETY: as the caller promised.
    unsafe {
        let x2 = S::mul(x, x);
        match kind {
            Gelu::Tanh => {
                // gelu(x) = x s, s = sigmoid(x (A + B x^2)); gelu' = s + x s (1 - s) (A + 3 B x^2).
                let inner = S::fma(S::splat(TANH_B), x2, S::splat(TANH_A));
                let s = sigmoid::<S>(S::mul(x, inner));
                let slope = S::fma(S::splat(3.0 * TANH_B), x2, S::splat(TANH_A));
                let xs = S::mul(x, s);
                (xs, S::fma(S::mul(xs, S::sub(S::splat(1.0), s)), slope, s))
            }
            Gelu::Erf => {
                let half = S::splat(0.5);
                let e = erf::<S>(S::mul(x, S::splat(std::f32::consts::FRAC_1_SQRT_2)));
                let phi = S::fma(half, e, half);
                let density = S::mul(S::splat(DENSITY), exp::<S>(S::mul(S::splat(-0.5), x2)));
                (S::mul(x, phi), S::fma(x, density, phi))
            }
        }
    }
}

#[inline(always)]
unsafe fn gelu_span<S: Simd, A: Element>(kind: Gelu, x: &[A], y: &mut [A]) {
    for (x, y) in x.chunks(16).zip(y.chunks_mut(16)) {
        // SAFETY: both pieces have `x.len()` elements.
        unsafe {
            let (value, _) = gelu_both::<S>(kind, load::<S, A>(x.as_ptr(), x.len()));
            store::<S, A>(y.as_mut_ptr(), value, x.len());
        }
    }
}
simd_kernel!(fn gelu_isa<A: Element>(kind: Gelu, x: &[A], y: &mut [A]) = gelu_span);

/// `y = gelu(x)`.
pub fn gelu<A: Element>(kit: &Kit, kind: Gelu, x: &[A], y: &mut [A]) {
    let out = Out::new(y, 1);
    for_rows(kit, x.len(), row_grain(1), &|r| {
        // SAFETY: ranges are disjoint.
        let y = unsafe { out.rows(r.start, r.len()) };
        gelu_isa(kit.isa, kind, &x[r], y);
    });
}

#[inline(always)]
unsafe fn gelu_backward_span<S: Simd, A: Element>(kind: Gelu, x: &[A], d: &mut [A], y: &mut [A]) {
    for ((x, d), y) in x.chunks(16).zip(d.chunks_mut(16)).zip(y.chunks_mut(16)) {
        // SAFETY: all pieces have `x.len()` elements.
        unsafe {
            let n = x.len();
            let (value, slope) = gelu_both::<S>(kind, load::<S, A>(x.as_ptr(), n));
            store::<S, A>(y.as_mut_ptr(), value, n);
            let dx = S::mul(load::<S, A>(d.as_ptr(), n), slope);
            store::<S, A>(d.as_mut_ptr(), dx, n);
        }
    }
}
simd_kernel!(fn gelu_backward_isa<A: Element>(kind: Gelu, x: &[A], d: &mut [A], y: &mut [A])
    = gelu_backward_span);

/// `d` holds the gradient at the output, then at the input; `y` gets the output again.
pub fn gelu_backward<A: Element>(kit: &Kit, kind: Gelu, x: &[A], d: &mut [A], y: &mut [A]) {
    let (d, y) = (Out::new(d, 1), Out::new(y, 1));
    for_rows(kit, x.len(), row_grain(1), &|r| {
        // SAFETY: ranges are disjoint.
        let (d, y) = unsafe { (d.rows(r.start, r.len()), y.rows(r.start, r.len())) };
        gelu_backward_isa(kit.isa, kind, &x[r], d, y);
    });
}

#[inline(always)]
unsafe fn swiglu_span<S: Simd, A: Element>(gate: &[A], up: &[A], y: &mut [A]) {
    for ((g, u), y) in gate.chunks(16).zip(up.chunks(16)).zip(y.chunks_mut(16)) {
        // SAFETY: all pieces have `g.len()` elements.
        unsafe {
            let n = g.len();
            let g = load::<S, A>(g.as_ptr(), n);
            let value = S::mul(S::mul(g, sigmoid::<S>(g)), load::<S, A>(u.as_ptr(), n));
            store::<S, A>(y.as_mut_ptr(), value, n);
        }
    }
}
simd_kernel!(fn swiglu_isa<A: Element>(gate: &[A], up: &[A], y: &mut [A]) = swiglu_span);

/// `y = silu(gate) * up`.
pub fn swiglu<A: Element>(kit: &Kit, gate: &[A], up: &[A], y: &mut [A]) {
    let out = Out::new(y, 1);
    for_rows(kit, gate.len(), row_grain(1), &|r| {
        // SAFETY: ranges are disjoint.
        let y = unsafe { out.rows(r.start, r.len()) };
        swiglu_isa(kit.isa, &gate[r.clone()], &up[r], y);
    });
}

/// What [`swiglu_backward`] works on, all of one length.
pub struct SwigluBackward<'a, A> {
    /// In: the gate before its activation. Out: its gradient.
    pub gate: &'a mut [A],
    /// In: the other factor. Out: its gradient.
    pub up: &'a mut [A],
    /// In: the gradient at the output. Out: the output again.
    pub dy: &'a mut [A],
}

#[inline(always)]
unsafe fn swiglu_backward_span<S: Simd, A: Element>(g: &mut [A], u: &mut [A], d: &mut [A]) {
    for ((gp, up), dp) in g.chunks_mut(16).zip(u.chunks_mut(16)).zip(d.chunks_mut(16)) {
        // SAFETY: all pieces have `gp.len()` elements.
        unsafe {
            let n = gp.len();
            let (g, u) = (load::<S, A>(gp.as_ptr(), n), load::<S, A>(up.as_ptr(), n));
            let d = load::<S, A>(dp.as_ptr(), n);
            let s = sigmoid::<S>(g);
            let silu = S::mul(g, s);
            // silu' = s (1 + g (1 - s)).
            let slope = S::mul(s, S::fma(g, S::sub(S::splat(1.0), s), S::splat(1.0)));
            store::<S, A>(gp.as_mut_ptr(), S::mul(S::mul(d, u), slope), n);
            store::<S, A>(up.as_mut_ptr(), S::mul(d, silu), n);
            store::<S, A>(dp.as_mut_ptr(), S::mul(silu, u), n);
        }
    }
}
simd_kernel!(fn swiglu_backward_isa<A: Element>(g: &mut [A], u: &mut [A], d: &mut [A])
    = swiglu_backward_span);

/// The gradients of both factors, in place, and the output again.
pub fn swiglu_backward<A: Element>(kit: &Kit, io: SwigluBackward<'_, A>) {
    let len = io.gate.len();
    let (g, u, d) = (Out::new(io.gate, 1), Out::new(io.up, 1), Out::new(io.dy, 1));
    for_rows(kit, len, row_grain(1), &|r| {
        let (at, n) = (r.start, r.len());
        // SAFETY: ranges are disjoint.
        let (g, u, d) = unsafe { (g.rows(at, n), u.rows(at, n), d.rows(at, n)) };
        swiglu_backward_isa(kit.isa, g, u, d);
    });
}
