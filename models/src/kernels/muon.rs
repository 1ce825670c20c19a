//! Muon's pieces: the momentum, the products of the Newton-Schulz iteration, the step.
//!
//! A parameter is `[rows, cols]`; where it has more rows than columns its transpose is iterated on,
//! through views. Everything is fp32, and every product has one order, so the bits do not depend on
//! threads or ISA; the references run the iteration in 16 bits, to which it is indifferent.

use super::elementwise::{squares_partials, sum_of_squares_parallel};
use super::gemm::epilogue::{Out, Place, Tile, load, pieces, store};
use super::gemm::{Dims, Epilogue, MatRef, TILE_STRIDE, gemm};
use super::optimizer::Shared;
use super::simd::Simd;
use super::{for_rows, row_grain};
use crate::compute::{Arena, Kit, slot_bytes};
use crate::optimizers::Elements;
use crate::simd_kernel;

/// The quintic's coefficients: slope at zero as large as can be (Jordan 2024).
const QUINTIC: [f32; 3] = [3.4445, -4.7750, 2.0315];
/// Iterations.
const STEPS: usize = 5;
/// The Gram iteration multiplies out and starts again here, before errors grow.
const RESTART: usize = 2;
/// Added to the norm.
const EPS: f64 = 1e-7;

/// Rows and columns of a parameter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Elements of the first axis.
    pub rows: usize,
    /// Elements of the others together.
    pub cols: usize,
}

impl Shape {
    /// The shorter side: the Gram matrix's.
    fn short(self) -> usize {
        self.rows.min(self.cols)
    }
}

/// Muon's scalars of one update.
#[derive(Clone, Copy, Debug)]
pub struct MuonScalars {
    /// The gradient is multiplied by this first.
    pub factor: f32,
    /// Momentum.
    pub momentum: f32,
    /// 1 - momentum.
    pub rest: f32,
    /// Kept of the parameter: decoupled decay.
    pub keep: f32,
    /// Learning rate times sqrt(max(1, rows / cols)).
    pub rate: f32,
    /// Iterate on the Gram matrix where that is smaller.
    pub gram: bool,
}

/// The products of one update, by size.
#[must_use]
pub fn muon_products(shape: Shape) -> [Dims; 3] {
    let (m, n, s) = (shape.rows, shape.cols, shape.short());
    [Dims { m: s, n: s, k: m.max(n) }, square(s), Dims { m, n, k: s }]
}

/// Operations of the products of one update: five steps of three products, or, on the Gram matrix, two
/// runs of forming, multiplying out and applying it.
#[must_use]
pub fn muon_flops(shape: Shape, gram: bool) -> u64 {
    let (s, long) = (shape.short() as u64, shape.rows.max(shape.cols) as u64);
    let (across, square) = (2 * s * s * long, 2 * s * s * s);
    if gram && shape.rows != shape.cols {
        4 * across + (STEPS as u64 + 3 + 2 * 3) * square
    } else {
        STEPS as u64 * (2 * across + square)
    }
}

/// Bytes of scratch that [`muon`] needs.
#[must_use]
pub fn muon_scratch(shape: Shape, gram: bool) -> usize {
    let (Shape { rows, cols }, short) = (shape, shape.short());
    let squares = if gram && rows != cols { 4 } else { 2 };
    2 * slot_bytes::<f32>(rows * cols)
        + squares * slot_bytes::<f32>(short * short)
        + slot_bytes::<f64>(squares_partials(rows * cols))
}

#[inline(always)]
unsafe fn momentum_span<S: Simd>(k: MuonScalars, e: Elements<'_>, update: &mut [f32]) {
    let len = e.gradient.len();
    assert!(e.first.len() == len && update.len() == len);
    for i in (0..len).step_by(16) {
        let n = (len - i).min(16);
        // SAFETY: all slices have `len` elements (just asserted), the piece at `i` has `n`.
        unsafe {
            let pm = e.first.as_mut_ptr().add(i);
            let g = S::mul(load::<S, f32>(e.gradient.as_ptr().add(i), n), S::splat(k.factor));
            let (keep, rest) = (S::splat(k.momentum), S::splat(k.rest));
            let m = S::fma(load::<S, f32>(pm, n), keep, S::mul(g, rest));
            store::<S, f32>(pm, m, n);
            // Nesterov's look-ahead: the same mixture of gradient and new momentum.
            let u = S::fma(m, keep, S::mul(g, rest));
            store::<S, f32>(update.as_mut_ptr().add(i), u, n);
        }
    }
}
simd_kernel!(fn momentum(k: MuonScalars, e: Elements<'_>, update: &mut [f32]) = momentum_span);

#[inline(always)]
unsafe fn scale_span<S: Simd>(x: &mut [f32], factor: f32) {
    for piece in x.chunks_mut(16) {
        // SAFETY: the piece has `len` elements.
        unsafe {
            let v = S::mul(load::<S, f32>(piece.as_ptr(), piece.len()), S::splat(factor));
            store::<S, f32>(piece.as_mut_ptr(), v, piece.len());
        }
    }
}
simd_kernel!(fn scale(x: &mut [f32], factor: f32) = scale_span);

#[inline(always)]
unsafe fn step_span<S: Simd>(k: MuonScalars, update: &[f32], e: Elements<'_>) {
    let len = e.master.len();
    assert_eq!(update.len(), len);
    let mut working = e.working;
    assert!(working.as_ref().is_none_or(|w| w.len() == len));
    for i in (0..len).step_by(16) {
        let n = (len - i).min(16);
        // SAFETY: all slices have `len` elements (just asserted), the piece at `i` has `n`.
        unsafe {
            let pp = e.master.as_mut_ptr().add(i);
            let p = S::mul(load::<S, f32>(pp, n), S::splat(k.keep));
            let u = load::<S, f32>(update.as_ptr().add(i), n);
            let p = S::fnma(S::splat(k.rate), u, p);
            store::<S, f32>(pp, p, n);
            if let Some(working) = &mut working {
                working.put::<S>(i, p, n);
            }
        }
    }
}
simd_kernel!(fn step(k: MuonScalars, update: &[f32], e: Elements<'_>) = step_span);

/// `out = a * from + b * (A·B)`; all row-major, of one shape.
struct Mix<'a> {
    out: Out<'a, f32>,
    from: (f32, &'a [f32]),
    b: f32,
    cols: usize,
}

impl Epilogue for Mix<'_> {
    #[inline(always)]
    unsafe fn tile<S: Simd>(&self, at: Place, tile: &Tile) {
        let last = (at.row + at.rows - 1) * self.cols + at.col + at.cols;
        assert!(last <= self.from.1.len(), "both terms have one shape");
        pieces(at, |i, j, n| {
            // SAFETY: the piece lies in the tile, in `from` (just checked) and, by `Out::at`, in C.
            unsafe {
                let x = S::mul(S::load(tile.as_ptr().add(i * TILE_STRIDE + j)), S::splat(self.b));
                let from = self.from.1.as_ptr().add((at.row + i) * self.cols + at.col + j);
                let x = S::fma(load::<S, f32>(from, n), S::splat(self.from.0), x);
                store::<S, f32>(self.out.at(at.row + i, at.col + j, n), x, n);
            }
        });
    }

    #[inline(always)]
    fn prefetch(&self, at: Place) {
        self.out.prefetch(at);
    }
}

/// `out = a * from + b * (x·y)`.
fn mix(
    kit: &Kit,
    out: &mut [f32],
    from: (f32, &[f32]),
    (b, x, y): (f32, MatRef<'_, f32>, MatRef<'_, f32>),
    dims: Dims,
) {
    let epilogue = Mix { out: Out::new(out, dims.n), from, b, cols: dims.n };
    gemm(kit, dims, x, y, &epilogue);
}

/// One Muon update of a whole matrix.
///
/// # Panics
/// If the arena has fewer bytes than [`muon_scratch`].
pub fn muon(kit: &Kit, k: MuonScalars, shape: Shape, e: Elements<'_>, mut arena: Arena<'_>) {
    let len = shape.rows * shape.cols;
    let partials = arena.take::<f64>(squares_partials(len));
    let (mut x, mut spare) = (arena.take::<f32>(len), arena.take::<f32>(len));
    let e = Shared::new(e);
    {
        let update = Out::new(&mut *x, 1);
        for_rows(kit, len, row_grain(1), &|r| {
            // SAFETY: ranges are disjoint.
            let (part, to) = unsafe { (e.part(r.clone()), update.rows(r.start, r.len())) };
            momentum(kit.isa, k, part, to);
        });
    }
    let norm = sum_of_squares_parallel(kit, x, partials).sqrt() + EPS;
    {
        let all = Out::new(&mut *x, 1);
        for_rows(kit, len, row_grain(1), &|r| {
            // SAFETY: ranges are disjoint.
            scale(kit.isa, unsafe { all.rows(r.start, r.len()) }, (1.0 / norm) as f32);
        });
    }
    if k.gram && shape.rows != shape.cols {
        gram(kit, shape, (&mut x, &mut spare), &mut arena);
    } else {
        standard(kit, shape, (&mut x, &mut spare), &mut arena);
    }
    for_rows(kit, len, row_grain(1), &|r| {
        // SAFETY: ranges are disjoint.
        step(kit.isa, k, &x[r.clone()], unsafe { e.part(r) });
    });
}

/// Dimensions of a product of Gram matrices.
fn square(s: usize) -> Dims {
    Dims { m: s, n: s, k: s }
}

/// The Gram matrix of the short side.
fn gram_of(kit: &Kit, shape: Shape, x: &[f32], out: &mut [f32]) {
    let (view, s) = (MatRef::rows(x, shape.cols), shape.short());
    let (a, k) = if shape.rows <= shape.cols { (view, shape.cols) } else { (view.t(), shape.rows) };
    gemm(kit, Dims { m: s, n: s, k }, a, a.t(), &super::gemm::epilogue::Store(Out::new(out, s)));
}

/// `out = a * x + (z applied to x's short side)`; z is symmetric.
fn apply(kit: &Kit, shape: Shape, out: &mut [f32], (a, x): (f32, &[f32]), z: &[f32]) {
    let (view, z) = (MatRef::rows(x, shape.cols), MatRef::rows(z, shape.short()));
    let (m, n) = (shape.rows, shape.cols);
    if m <= n {
        mix(kit, out, (a, x), (1.0, z, view), Dims { m, n, k: m });
    } else {
        mix(kit, out, (a, x), (1.0, view, z), Dims { m, n, k: n });
    }
}

/// `X = a X + (b A + c A²) X` with `A = X Xᵀ`.
fn standard<'a>(
    kit: &Kit,
    shape: Shape,
    (x, spare): (&mut &'a mut [f32], &mut &'a mut [f32]),
    arena: &mut Arena<'_>,
) {
    let [a, b, c] = QUINTIC;
    let s = shape.short();
    let (r, z) = (arena.take::<f32>(s * s), arena.take::<f32>(s * s));
    for _ in 0..STEPS {
        gram_of(kit, shape, x, r);
        let view = MatRef::rows(r, s);
        mix(kit, z, (b, r), (c, view, view), square(s));
        apply(kit, shape, spare, (a, x), z);
        std::mem::swap(x, spare);
    }
}

/// The same polynomial on `R = X Xᵀ`: `Q` collects the factors, and `X` is multiplied only before the
/// restart and at the end.
fn gram<'a>(
    kit: &Kit,
    shape: Shape,
    (x, spare): (&mut &'a mut [f32], &mut &'a mut [f32]),
    arena: &mut Arena<'_>,
) {
    let [a, b, c] = QUINTIC;
    let s = shape.short();
    let [r, z, mut q, mut t] = std::array::from_fn(|_| arena.take::<f32>(s * s));
    for i in 0..STEPS {
        let fresh = i == 0 || i == RESTART;
        if i == RESTART {
            apply(kit, shape, spare, (0.0, x), q);
            std::mem::swap(x, spare);
        }
        if fresh {
            gram_of(kit, shape, x, r);
        }
        let view = MatRef::rows(r, s);
        mix(kit, z, (b, r), (c, view, view), square(s));
        let zv = MatRef::rows(z, s);
        if fresh {
            q.copy_from_slice(z);
            q.iter_mut().step_by(s + 1).for_each(|d| *d += a);
        } else {
            mix(kit, t, (a, q), (1.0, zv, MatRef::rows(q, s)), square(s));
            std::mem::swap(&mut q, &mut t);
        }
        if i + 1 < STEPS && i + 1 != RESTART {
            mix(kit, t, (a, r), (1.0, zv, view), square(s));
            mix(kit, r, (a, t), (1.0, zv, MatRef::rows(t, s)), square(s));
        }
    }
    apply(kit, shape, spare, (0.0, x), q);
    std::mem::swap(x, spare);
}
