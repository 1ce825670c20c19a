//! Pieces that blocks are put together from: linear layers and norms with their parameters.

use crate::block::{GradSink, Params};
use crate::compute::{Arena, Kit, slot_bytes};
use crate::kernels::elementwise::{column_sums, column_sums_scratch, convert};
use crate::kernels::gemm::epilogue::{Add, AddScaled, Bias, Out, Residual, Store};
use crate::kernels::gemm::{Dims, GemmElement, MatRef, gemm, gemm_panels};
use crate::kernels::norm::{self, Norm, NormBackward, NormWeights, norm_backward_scratch};
use planaria_base::{DType, ParamId, Site};

/// How a linear layer's matrix is stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Layout {
    /// `[inputs, outputs]`: GPT-2's Conv1D.
    InOut,
    /// `[outputs, inputs]`: PyTorch's Linear.
    OutIn,
}

/// A low-rank addition to a linear layer (LoRA, Hu et al. 2021): `y += scale · (x·A^T)·B^T`, with A
/// `[rank, inputs]` and B `[outputs, rank]`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Lora {
    /// Drawn at random.
    pub a: ParamId,
    /// Zero at first.
    pub b: ParamId,
    /// Columns between the two.
    pub rank: usize,
    /// alpha / rank.
    pub scale: f32,
}

/// A linear layer `y = x·W + b`, and what an adapter adds to it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Linear {
    /// The matrix.
    pub w: ParamId,
    /// One value per output.
    pub b: Option<ParamId>,
    /// Columns of x.
    pub inputs: usize,
    /// Columns of y.
    pub outputs: usize,
    /// How the matrix is stored.
    pub layout: Layout,
    /// What is trained in its place.
    pub lora: Option<Lora>,
}

impl Linear {
    fn view<'a, A: GemmElement>(&self, params: Params<'a>) -> MatRef<'a, A> {
        let w = params.matrix::<A>(self.w);
        match self.layout {
            Layout::InOut => MatRef::rows(w, self.outputs),
            Layout::OutIn => MatRef::rows(w, self.inputs).t(),
        }
    }

    fn dims(&self, n: usize) -> Dims {
        Dims { m: n, n: self.outputs, k: self.inputs }
    }

    /// `y = x·W + b`; `y`'s rows are `stride` apart.
    pub fn forward<A: GemmElement>(
        &self,
        kit: &Kit,
        params: Params<'_>,
        x: &[A],
        (y, stride): (&mut [A], usize),
        arena: &mut Arena<'_>,
    ) {
        let (dims, rows) = (self.dims(x.len() / self.inputs), MatRef::rows(x, self.inputs));
        let out = Out::new(&mut *y, stride);
        match self.b {
            Some(b) => {
                let bias = params.f32(b);
                gemm(kit, dims, rows, self.view::<A>(params), &Bias { out, bias });
            }
            None => gemm(kit, dims, rows, self.view::<A>(params), &Store(out)),
        }
        self.adapt(kit, params, x, Out::new(y, stride), arena);
    }

    /// The adapter's part of a forward, added to `out`.
    fn adapt<A: GemmElement, Y: GemmElement>(
        &self,
        kit: &Kit,
        params: Params<'_>,
        x: &[A],
        out: Out<'_, Y>,
        arena: &mut Arena<'_>,
    ) {
        let Some(lora) = self.lora else { return };
        let narrow = self.narrow(kit, params, x, &mut arena.child());
        let b = MatRef::rows(params.matrix::<A>(lora.b), lora.rank).t();
        let dims = Dims { m: x.len() / self.inputs, n: self.outputs, k: lora.rank };
        gemm(kit, dims, MatRef::rows(narrow, lora.rank), b, &AddScaled { out, scale: lora.scale });
    }

    /// `x·A^T`, `[n, rank]`; nothing without an adapter.
    fn narrow<'a, A: GemmElement>(
        &self,
        kit: &Kit,
        params: Params<'_>,
        x: &[A],
        arena: &mut Arena<'a>,
    ) -> &'a [A] {
        let Some(lora) = self.lora else { return &[] };
        let dims = Dims { m: x.len() / self.inputs, n: lora.rank, k: self.inputs };
        let narrow = arena.take::<A>(dims.m * lora.rank);
        let a = MatRef::rows(params.matrix::<A>(lora.a), self.inputs).t();
        let out = Store(Out::new(&mut *narrow, lora.rank));
        gemm(kit, dims, MatRef::rows(x, self.inputs), a, &out);
        narrow
    }

    /// `dy·B`, `[n, rank]`: the gradient of [`Linear::narrow`], not scaled.
    fn narrow_gradient<'a, A: GemmElement>(
        &self,
        kit: &Kit,
        params: Params<'_>,
        (dy, n): (MatRef<'_, A>, usize),
        arena: &mut Arena<'a>,
    ) -> &'a [A] {
        let Some(lora) = self.lora else { return &[] };
        let dims = Dims { m: n, n: lora.rank, k: self.outputs };
        let narrow = arena.take::<A>(n * lora.rank);
        let b = MatRef::rows(params.matrix::<A>(lora.b), lora.rank);
        gemm(kit, dims, dy, b, &Store(Out::new(&mut *narrow, lora.rank)));
        narrow
    }

    /// The adapter's part of an input's gradient, added to `out`.
    fn adapt_input<A: GemmElement, Y: GemmElement>(
        &self,
        kit: &Kit,
        params: Params<'_>,
        (dy, n): (MatRef<'_, A>, usize),
        out: Out<'_, Y>,
        arena: &mut Arena<'_>,
    ) {
        let Some(lora) = self.lora else { return };
        let narrow = self.narrow_gradient(kit, params, (dy, n), &mut arena.child());
        let a = MatRef::rows(params.matrix::<A>(lora.a), self.inputs);
        let dims = Dims { m: n, n: self.inputs, k: lora.rank };
        gemm(kit, dims, MatRef::rows(narrow, lora.rank), a, &AddScaled { out, scale: lora.scale });
    }

    /// `y = residual + x·W + b`, in fp32.
    pub fn forward_residual<A: GemmElement>(
        &self,
        kit: &Kit,
        params: Params<'_>,
        x: &[A],
        (residual, y): (&[f32], &mut [f32]),
        arena: &mut Arena<'_>,
    ) {
        let dims = self.dims(x.len() / self.inputs);
        let epilogue = Residual {
            out: Out::new(&mut *y, self.outputs),
            residual,
            cols: self.outputs,
            bias: self.b.map(|b| params.f32(b)),
        };
        gemm(kit, dims, MatRef::rows(x, self.inputs), self.view::<A>(params), &epilogue);
        self.adapt(kit, params, x, Out::new(y, self.outputs), arena);
    }

    /// `dx = dy·W^T`; `dy`'s rows are `stride` apart.
    pub fn backward_input<A: GemmElement>(
        &self,
        kit: &Kit,
        params: Params<'_>,
        (dy, stride): (&[A], usize),
        dx: &mut [A],
        arena: &mut Arena<'_>,
    ) {
        let (dims, dy) = (self.back_dims(dx.len()), MatRef::rows(dy, stride));
        let epilogue = Store(Out::new(&mut *dx, self.inputs));
        gemm(kit, dims, dy, self.view::<A>(params).t(), &epilogue);
        self.adapt_input(kit, params, (dy, dims.m), Out::new(dx, self.inputs), arena);
    }

    /// The same in fp32: overwrites `dx`, or adds to it.
    pub fn backward_input_f32<A: GemmElement>(
        &self,
        kit: &Kit,
        params: Params<'_>,
        (dy, stride): (&[A], usize),
        (dx, add): (&mut [f32], bool),
        arena: &mut Arena<'_>,
    ) {
        let dims = self.back_dims(dx.len());
        let (dy, w) = (MatRef::rows(dy, stride), self.view::<A>(params).t());
        let out = Out::new(&mut *dx, self.inputs);
        if add {
            gemm(kit, dims, dy, w, &Add(out))
        } else {
            gemm(kit, dims, dy, w, &Store(out))
        }
        self.adapt_input(kit, params, (dy, dims.m), Out::new(dx, self.inputs), arena);
    }

    fn back_dims(&self, elements: usize) -> Dims {
        Dims { m: elements / self.inputs, n: self.inputs, k: self.outputs }
    }

    /// Bytes of scratch that its adapter takes for `n` tokens, forward or backward.
    #[must_use]
    pub fn lora_bytes<A: GemmElement>(&self, n: usize) -> usize {
        self.lora.map_or(0, |lora| 2 * slot_bytes::<A>(n * lora.rank))
    }

    /// Bytes of scratch that [`Linear::backward_params`] takes for `n` tokens, beside its adapter's.
    #[must_use]
    pub fn scratch_bytes(&self, n: usize) -> usize {
        if self.b.is_none() {
            return 0;
        }
        slot_bytes::<f32>(self.outputs) + slot_bytes::<f32>(column_sums_scratch(n, self.outputs))
    }

    fn stored(&self) -> (usize, usize) {
        match self.layout {
            Layout::InOut => (self.inputs, self.outputs),
            Layout::OutIn => (self.outputs, self.inputs),
        }
    }

    /// Emits the gradients of the matrix, the bias and the adapter. `dy`'s rows are `stride` apart.
    pub fn backward_params<A: GemmElement>(
        &self,
        kit: &Kit,
        params: Params<'_>,
        x: &[A],
        (dy, stride): (&[A], usize),
        (arena, sink): (&mut Arena<'_>, &dyn GradSink),
    ) {
        let n = x.len() / self.inputs;
        if let Some(lora) = self.lora {
            let mut arena = arena.child();
            let dy = MatRef::rows(dy, stride);
            let narrow = MatRef::rows(self.narrow(kit, params, x, &mut arena), lora.rank);
            let back = self.narrow_gradient(kit, params, (dy, n), &mut arena);
            let back = MatRef::rows(back, lora.rank);
            let emit = |id: ParamId, cols: usize| {
                move |row: usize, panel: &mut [f32]| {
                    panel.iter_mut().for_each(|v| *v *= lora.scale);
                    sink.dense(id, Site(0), row * cols, panel);
                }
            };
            let dims = Dims { m: self.outputs, n: lora.rank, k: n };
            gemm_panels(kit, dims, dy.t(), narrow, &emit(lora.b, lora.rank));
            let (dims, x) =
                (Dims { m: lora.rank, n: self.inputs, k: n }, MatRef::rows(x, self.inputs));
            gemm_panels(kit, dims, back.t(), x, &emit(lora.a, self.inputs));
        }
        if sink.wants(self.w) {
            let (rows, cols) = self.stored();
            let (x, dy) = (MatRef::rows(x, self.inputs), MatRef::rows(dy, stride));
            let (a, b) = match self.layout {
                Layout::InOut => (x.t(), dy),
                Layout::OutIn => (dy.t(), x),
            };
            let dims = Dims { m: rows, n: cols, k: n };
            gemm_panels(kit, dims, a, b, &|row, panel| {
                sink.dense(self.w, Site(0), row * cols, panel);
            });
        }
        if let Some(b) = self.b.filter(|&b| sink.wants(b)) {
            let mut arena = arena.child();
            let sums = arena.take(self.outputs);
            let scratch = arena.take(column_sums_scratch(n, self.outputs));
            assert_eq!(stride, self.outputs, "a layer with a bias has rows of its own");
            column_sums(kit, &dy[..n * stride], sums, scratch);
            sink.dense(b, Site(0), 0, sums);
        }
    }

    /// Multiply-adds of one product over `n` tokens, times two.
    #[must_use]
    pub fn flops(&self, n: usize) -> u64 {
        2 * (n * self.inputs * self.outputs) as u64
    }
}

/// A norm with its parameters.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct NormLayer {
    /// Which.
    pub norm: Norm,
    /// Scale.
    pub w: ParamId,
    /// Shift.
    pub b: Option<ParamId>,
}

impl NormLayer {
    fn weights<'a>(&self, params: Params<'a>) -> NormWeights<'a> {
        NormWeights { w: params.f32(self.w), b: self.b.map(|b| params.f32(b)) }
    }

    /// Normalises; `stats` is kept for backward.
    pub fn forward<A: GemmElement>(
        &self,
        kit: &Kit,
        params: Params<'_>,
        x: &[f32],
        (y, stats): (&mut [A], &mut [f32]),
    ) {
        norm::norm(kit, self.norm, x, self.weights(params), (y, stats));
    }

    /// Normalises again from `stats`.
    pub fn again<A: GemmElement>(
        &self,
        kit: &Kit,
        params: Params<'_>,
        x: &[f32],
        (y, stats): (&mut [A], &[f32]),
    ) {
        norm::norm_again(kit, self.norm, x, self.weights(params), (y, stats));
    }

    /// Bytes of scratch that [`NormLayer::backward`] takes for `n` rows.
    #[must_use]
    pub fn scratch_bytes(&self, n: usize) -> usize {
        let width = self.norm.width;
        slot_bytes::<f32>(2 * width) + slot_bytes::<f32>(norm_backward_scratch(n, width))
    }

    /// Adds the input's gradient to `dx`, and emits the parameters'.
    pub fn backward<A: GemmElement>(
        &self,
        kit: &Kit,
        params: Params<'_>,
        (x, stats, dy): (&[f32], &[f32], &[A]),
        dx: &mut [f32],
        (arena, sink): (&mut Arena<'_>, &dyn GradSink),
    ) {
        let mut arena = arena.child();
        let width = self.norm.width;
        let dwb = arena.take(2 * width);
        let scratch = arena.take(norm_backward_scratch(x.len() / width, width));
        let io = NormBackward { x, stats, w: params.f32(self.w), dy };
        norm::norm_backward(kit, self.norm, io, (dx, dwb), scratch);
        let (dw, db) = dwb.split_at_mut(width);
        if sink.wants(self.w) {
            sink.dense(self.w, Site(0), 0, dw);
        }
        if let Some(b) = self.b.filter(|&b| sink.wants(b)) {
            sink.dense(b, Site(0), 0, db);
        }
    }
}

/// Bytes that [`in_dtype`] takes for `len` elements.
#[must_use]
pub fn in_dtype_bytes<A: GemmElement>(len: usize) -> usize {
    if A::DTYPE == DType::F32 { 0 } else { slot_bytes::<A>(len) }
}

/// `x` in the compute dtype: itself, or rounded into the arena.
pub fn in_dtype<'a, A: GemmElement>(kit: &Kit, x: &'a [f32], arena: &mut Arena<'a>) -> &'a [A] {
    if A::DTYPE == DType::F32 {
        return bytemuck::cast_slice(x);
    }
    let y = arena.take(x.len());
    convert(kit, x, y);
    y
}
