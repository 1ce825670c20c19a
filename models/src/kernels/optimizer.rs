//! Fused optimizer passes.

use super::gemm::epilogue::{Out, load, store};
use super::simd::Simd;
use super::{for_rows, row_grain};
use crate::compute::Kit;
use crate::optimizers::{Elements, OptimizerSpec, Update, Working};
use crate::simd_kernel;
use half::{bf16, f16};

impl Working<'_> {
    /// Rounds up to 16 lanes into the elements from `i`.
    ///
    /// # Safety
    /// As for [`Simd`]; the elements `i..i + n` exist.
    #[inline(always)]
    pub(super) unsafe fn put<S: Simd>(&mut self, i: usize, v: S::V, n: usize) {
        // SAFETY: as the caller promised.
        unsafe {
            match self {
                Working::Bf16(w) => store::<S, bf16>(w.as_mut_ptr().add(i), v, n),
                Working::F16(w) => store::<S, f16>(w.as_mut_ptr().add(i), v, n),
            }
        }
    }
}

/// Adam's scalars of one update.
#[derive(Clone, Copy, Debug)]
pub struct AdamScalars {
    /// The gradient is multiplied by this first.
    pub factor: f32,
    /// Kept of the first moment.
    pub beta1: f32,
    /// Taken of the gradient.
    pub rest1: f32,
    /// Kept of the second moment.
    pub beta2: f32,
    /// Taken of the squared gradient.
    pub rest2: f32,
    /// Kept of the parameter: decoupled decay.
    pub keep: f32,
    /// Parameter added to the gradient: coupled decay.
    pub coupled: f32,
    /// 1 / sqrt(1 - beta2^t).
    pub root: f32,
    /// Added to the root.
    pub eps: f32,
    /// Learning rate / (1 - beta1^t).
    pub rate: f32,
}

#[inline(always)]
unsafe fn adam_span<S: Simd>(k: AdamScalars, e: Elements<'_>) {
    let len = e.master.len();
    assert!(e.gradient.len() == len && e.first.len() == len && e.second.len() == len);
    let mut working = e.working;
    assert!(working.as_ref().is_none_or(|w| w.len() == len));
    for i in (0..len).step_by(16) {
        let n = (len - i).min(16);
        // SAFETY: all slices have `len` elements (just asserted), the piece at `i` has `n`.
        unsafe {
            let (pp, pm) = (e.master.as_mut_ptr().add(i), e.first.as_mut_ptr().add(i));
            let pv = e.second.as_mut_ptr().add(i);
            let p = load::<S, f32>(pp, n);
            let g = S::mul(load::<S, f32>(e.gradient.as_ptr().add(i), n), S::splat(k.factor));
            let g = S::fma(p, S::splat(k.coupled), g);
            let m = S::mul(g, S::splat(k.rest1));
            let m = S::fma(load::<S, f32>(pm, n), S::splat(k.beta1), m);
            let v = S::mul(S::mul(g, g), S::splat(k.rest2));
            let v = S::fma(load::<S, f32>(pv, n), S::splat(k.beta2), v);
            let root = S::fma(S::sqrt(v), S::splat(k.root), S::splat(k.eps));
            let p = S::mul(p, S::splat(k.keep));
            let p = S::fnma(S::splat(k.rate), S::div(m, root), p);
            store::<S, f32>(pp, p, n);
            store::<S, f32>(pm, m, n);
            store::<S, f32>(pv, v, n);
            if let Some(working) = &mut working {
                working.put::<S>(i, p, n);
            }
        }
    }
}
simd_kernel!(
    /// One Adam update.
    pub fn adam(k: AdamScalars, e: Elements<'_>) = adam_span
);

/// SGD's scalars of one update.
#[derive(Clone, Copy, Debug)]
pub struct SgdScalars {
    /// The gradient is multiplied by this first.
    pub factor: f32,
    /// Parameter added to the gradient.
    pub decay: f32,
    /// Kept of the momentum buffer.
    pub keep: f32,
    /// Taken of the gradient into it.
    pub take: f32,
    /// Momentum, for Nesterov's look-ahead.
    pub momentum: f32,
    /// Whether to look ahead.
    pub nesterov: bool,
    /// Learning rate.
    pub rate: f32,
}

#[inline(always)]
unsafe fn sgd_span<S: Simd>(k: SgdScalars, e: Elements<'_>) {
    let len = e.master.len();
    let with_momentum = !e.first.is_empty();
    assert!(e.gradient.len() == len && (!with_momentum || e.first.len() == len));
    let mut working = e.working;
    assert!(working.as_ref().is_none_or(|w| w.len() == len));
    for i in (0..len).step_by(16) {
        let n = (len - i).min(16);
        // SAFETY: all slices have `len` elements (just asserted), the piece at `i` has `n`.
        unsafe {
            let pp = e.master.as_mut_ptr().add(i);
            let p = load::<S, f32>(pp, n);
            let g = S::mul(load::<S, f32>(e.gradient.as_ptr().add(i), n), S::splat(k.factor));
            let mut g = S::fma(p, S::splat(k.decay), g);
            if with_momentum {
                let pb = e.first.as_mut_ptr().add(i);
                let old = load::<S, f32>(pb, n);
                let b = S::fma(g, S::splat(k.take), S::mul(old, S::splat(k.keep)));
                store::<S, f32>(pb, b, n);
                g = if k.nesterov { S::fma(b, S::splat(k.momentum), g) } else { b };
            }
            let p = S::fnma(S::splat(k.rate), g, p);
            store::<S, f32>(pp, p, n);
            if let Some(working) = &mut working {
                working.put::<S>(i, p, n);
            }
        }
    }
}
simd_kernel!(
    /// One SGD update.
    pub fn sgd(k: SgdScalars, e: Elements<'_>) = sgd_span
);

/// Lion's scalars of one update.
#[derive(Clone, Copy, Debug)]
pub struct LionScalars {
    /// The gradient is multiplied by this first.
    pub factor: f32,
    /// Kept of the momentum in the update, and taken of the gradient.
    pub update: [f32; 2],
    /// Kept of the momentum in the state, and taken of the gradient.
    pub state: [f32; 2],
    /// Kept of the parameter: decoupled decay.
    pub keep: f32,
    /// Learning rate.
    pub rate: f32,
}

#[inline(always)]
unsafe fn lion_span<S: Simd>(k: LionScalars, e: Elements<'_>) {
    let len = e.master.len();
    assert!(e.gradient.len() == len && e.first.len() == len);
    let mut working = e.working;
    assert!(working.as_ref().is_none_or(|w| w.len() == len));
    for i in (0..len).step_by(16) {
        let n = (len - i).min(16);
        // SAFETY: all slices have `len` elements (just asserted), the piece at `i` has `n`.
        unsafe {
            let (pp, pm) = (e.master.as_mut_ptr().add(i), e.first.as_mut_ptr().add(i));
            let g = S::mul(load::<S, f32>(e.gradient.as_ptr().add(i), n), S::splat(k.factor));
            let m = load::<S, f32>(pm, n);
            let c = S::fma(m, S::splat(k.update[0]), S::mul(g, S::splat(k.update[1])));
            let (zero, one) = (S::splat(0.0), S::splat(1.0));
            let negative = S::select(S::lt(c, zero), S::splat(-1.0), zero);
            let sign = S::select(S::lt(zero, c), one, negative);
            let p = S::mul(load::<S, f32>(pp, n), S::splat(k.keep));
            let p = S::fnma(S::splat(k.rate), sign, p);
            let m = S::fma(m, S::splat(k.state[0]), S::mul(g, S::splat(k.state[1])));
            store::<S, f32>(pp, p, n);
            store::<S, f32>(pm, m, n);
            if let Some(working) = &mut working {
                working.put::<S>(i, p, n);
            }
        }
    }
}
simd_kernel!(
    /// One Lion update.
    pub fn lion(k: LionScalars, e: Elements<'_>) = lion_span
);

/// Adagrad's scalars of one update.
#[derive(Clone, Copy, Debug)]
pub struct AdagradScalars {
    /// The gradient is multiplied by this first.
    pub factor: f32,
    /// Parameter added to the gradient.
    pub decay: f32,
    /// Added to the root.
    pub eps: f32,
    /// Learning rate.
    pub rate: f32,
}

#[inline(always)]
unsafe fn adagrad_span<S: Simd>(k: AdagradScalars, e: Elements<'_>) {
    let len = e.master.len();
    assert!(e.gradient.len() == len && e.first.len() == len);
    let mut working = e.working;
    assert!(working.as_ref().is_none_or(|w| w.len() == len));
    for i in (0..len).step_by(16) {
        let n = (len - i).min(16);
        // SAFETY: all slices have `len` elements (just asserted), the piece at `i` has `n`.
        unsafe {
            let (pp, ps) = (e.master.as_mut_ptr().add(i), e.first.as_mut_ptr().add(i));
            let p = load::<S, f32>(pp, n);
            let g = S::mul(load::<S, f32>(e.gradient.as_ptr().add(i), n), S::splat(k.factor));
            let g = S::fma(p, S::splat(k.decay), g);
            let sum = S::fma(g, g, load::<S, f32>(ps, n));
            let root = S::add(S::sqrt(sum), S::splat(k.eps));
            let p = S::fnma(S::splat(k.rate), S::div(g, root), p);
            store::<S, f32>(pp, p, n);
            store::<S, f32>(ps, sum, n);
            if let Some(working) = &mut working {
                working.put::<S>(i, p, n);
            }
        }
    }
}
simd_kernel!(
    /// One Adagrad update.
    pub fn adagrad(k: AdagradScalars, e: Elements<'_>) = adagrad_span
);

/// Elements that several threads update disjoint parts of.
pub(super) struct Shared<'a> {
    gradient: &'a [f32],
    master: Out<'a, f32>,
    states: [Option<Out<'a, f32>>; 2],
    working: Option<SharedWorking<'a>>,
}

enum SharedWorking<'a> {
    Bf16(Out<'a, bf16>),
    F16(Out<'a, f16>),
}

impl<'a> Shared<'a> {
    pub(super) fn new(e: Elements<'a>) -> Shared<'a> {
        let state = |s: &'a mut [f32]| (!s.is_empty()).then(|| Out::new(s, 1));
        let working = e.working.map(|w| match w {
            Working::Bf16(w) => SharedWorking::Bf16(Out::new(w, 1)),
            Working::F16(w) => SharedWorking::F16(Out::new(w, 1)),
        });
        let (gradient, master) = (e.gradient, Out::new(e.master, 1));
        Shared { gradient, master, states: [state(e.first), state(e.second)], working }
    }

    /// The elements of a range.
    ///
    /// # Safety
    /// No other thread touches the range while they live.
    pub(super) unsafe fn part(&self, r: std::ops::Range<usize>) -> Elements<'_> {
        let (at, n) = (r.start, r.len());
        // SAFETY: as the caller promised.
        unsafe {
            let [first, second] = self.states.each_ref().map(|state| match state {
                Some(state) => state.rows(at, n),
                None => &mut [][..],
            });
            Elements {
                gradient: &self.gradient[r],
                master: self.master.rows(at, n),
                first,
                second,
                working: self.working.as_ref().map(|w| match w {
                    SharedWorking::Bf16(w) => Working::Bf16(w.rows(at, n)),
                    SharedWorking::F16(w) => Working::F16(w.rows(at, n)),
                }),
            }
        }
    }
}

/// An elementwise update over all threads; elements are independent, so the split does not show.
pub fn update_parallel(kit: &Kit, spec: &OptimizerSpec, update: Update, e: Elements<'_>) {
    let len = e.master.len();
    let shared = Shared::new(e);
    for_rows(kit, len, row_grain(1), &|r| {
        // SAFETY: ranges are disjoint.
        let part = unsafe { shared.part(r) };
        spec.update(kit.isa, update, part);
    });
}
