//! LLaMA (Touvron et al. 2023): RMSNorm, rotary positions, SwiGLU, grouped queries. What Mistral,
//! Qwen2, Qwen3 and SmolLM3 change is data: a window, biases, norms on q and k, layers without rope.

use super::embed::Embed;
use super::{Builder, ModelSpec};
use crate::block::{
    Backward, Block, BlockPlan, Decode, Forward, GradSink, Init, LeafShape, Model, Params,
    Precision,
};
use crate::compute::{Arena, Compute, Kit, slot_bytes};
use crate::kernels::activation::{SwigluBackward, swiglu, swiglu_backward};
use crate::kernels::attention::{
    AttentionBackward, AttentionShape, QkvLayout, attention, attention_backward, cached_attention,
};
use crate::kernels::gemm::GemmElement;
use crate::kernels::norm::Norm;
use crate::kernels::rope::{RopeHeads, RopeTable, rope};
use crate::ops::{Layout, Linear, NormLayer, in_dtype, in_dtype_bytes};
use half::{bf16, f16};
use planaria_base::ParamId;
use std::ops::Range;
use std::sync::Arc;

/// One transformer block.
struct Layer {
    name: String,
    params: Vec<ParamId>,
    attention: AttentionShape,
    /// `None` in a layer without positions.
    rope: Option<Arc<RopeTable>>,
    norm1: NormLayer,
    /// q, k, v: their outputs lie side by side in one buffer.
    qkv: [Linear; 3],
    /// Of q and of k, over one head each.
    head_norms: Option<[NormLayer; 2]>,
    out: Linear,
    norm2: NormLayer,
    gate: Linear,
    up: Linear,
    down: Linear,
}

/// Builds the block list.
pub(super) fn build(spec: &ModelSpec) -> Model {
    let mut b = Builder::default();
    let (d, normal) = (spec.width, Init::Normal { std: spec.init_std });
    let (theta, scaling) = (spec.rope_theta, spec.rope_scaling);
    let rope = Arc::new(RopeTable::new(spec.max_length, spec.head_dim, theta, scaling));
    let embed = b.add("model.embed_tokens.weight".to_owned(), &[spec.vocab, d], normal);
    let mut blocks: Vec<Box<dyn Block>> = vec![Box::new(Embed::new(embed, None, d))];
    for i in 0..spec.layers {
        blocks.push(Box::new(layer(spec, i, &rope, &mut b)));
    }
    let norm = norm_layer(&mut b, "model.norm", spec, d);
    b.finish(spec, blocks, embed, norm)
}

fn norm_layer(b: &mut Builder, name: &str, spec: &ModelSpec, width: usize) -> NormLayer {
    let norm = Norm { center: false, width, eps: spec.norm_eps };
    NormLayer { norm, w: b.add(format!("{name}.weight"), &[width], Init::Ones), b: None }
}

fn layer(spec: &ModelSpec, i: usize, rope: &Arc<RopeTable>, b: &mut Builder) -> Layer {
    let first = b.params.len();
    let (d, f, at) = (spec.width, spec.mlp_width, format!("model.layers.{i}"));
    let (q, kv) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let linear = |b: &mut Builder, name: &str, (inputs, outputs): (usize, usize), bias| {
        let init = Init::Normal { std: spec.init_std };
        let w = b.add(format!("{at}.{name}.weight"), &[outputs, inputs], init);
        let bias = if bias {
            Some(b.add(format!("{at}.{name}.bias"), &[outputs], Init::Zeros))
        } else {
            None
        };
        let lora = b.lora(spec, &format!("{at}.{name}"), (inputs, outputs));
        Linear { w, b: bias, inputs, outputs, layout: Layout::OutIn, lora }
    };
    let bias = spec.attention_bias;
    let qkv = [("q", q), ("k", kv), ("v", kv)]
        .map(|(x, outputs)| linear(b, &format!("self_attn.{x}_proj"), (d, outputs), bias));
    let out = linear(b, "self_attn.o_proj", (q, d), bias && !spec.bias_qkv_only);
    let mut head_norm = |x| norm_layer(b, &format!("{at}.self_attn.{x}_norm"), spec, spec.head_dim);
    let head_norms = spec.qk_norm.then(|| ["q", "k"].map(&mut head_norm));
    let gate = linear(b, "mlp.gate_proj", (d, f), spec.mlp_bias);
    let up = linear(b, "mlp.up_proj", (d, f), spec.mlp_bias);
    let down = linear(b, "mlp.down_proj", (f, d), spec.mlp_bias);
    let norm1 = norm_layer(b, &format!("{at}.input_layernorm"), spec, d);
    let norm2 = norm_layer(b, &format!("{at}.post_attention_layernorm"), spec, d);
    let attention = AttentionShape {
        sequences: 0,
        length: 0,
        heads: spec.heads,
        kv_heads: spec.kv_heads,
        head_dim: spec.head_dim,
        scale: 1.0 / (spec.head_dim as f32).sqrt(),
        window: spec.window,
    };
    let params = b.params[first..].iter().map(|p| p.id).collect();
    let name = format!("layers.{i}");
    let rope = (!spec.no_rope.contains(&i)).then(|| Arc::clone(rope));
    Layer { name, params, attention, rope, norm1, qkv, head_norms, out, norm2, gate, up, down }
}

/// What backward needs, in the saved arena.
struct Saved<'a, A> {
    stats1: &'a mut [f32],
    /// q and k already normalised and rotated.
    qkv: &'a mut [A],
    heads: SavedHeads<'a>,
    attended: &'a mut [A],
    lse: &'a mut [f32],
    mid: &'a mut [f32],
    stats2: &'a mut [f32],
    gate: &'a mut [A],
    up: &'a mut [A],
}

/// q and then k before their norms, head by head, and the norms' stats; empty without norms.
struct SavedHeads<'a> {
    raw: &'a mut [f32],
    stats: &'a mut [f32],
}

impl Layer {
    fn shape(&self, leaf: LeafShape) -> AttentionShape {
        AttentionShape { sequences: leaf.sequences, length: leaf.length, ..self.attention }
    }

    fn width(&self) -> usize {
        self.out.outputs
    }

    /// Elements of a q/k/v row.
    fn row(&self) -> usize {
        self.qkv.iter().map(|l| l.outputs).sum()
    }

    /// Where each of q, k, v starts in a row.
    fn columns(&self) -> [usize; 3] {
        [0, self.qkv[0].outputs, self.qkv[0].outputs + self.qkv[1].outputs]
    }

    fn saved<'a, A: GemmElement>(&self, n: usize, bytes: &'a mut [u8]) -> Saved<'a, A> {
        let mut arena = Arena::new(bytes);
        Saved {
            stats1: arena.take(2 * n),
            qkv: arena.take(n * self.row()),
            heads: self.saved_heads(n, &mut arena),
            attended: arena.take(n * self.out.inputs),
            lse: arena.take(n * self.attention.heads),
            mid: arena.take(n * self.width()),
            stats2: arena.take(2 * n),
            gate: arena.take(n * self.up.outputs),
            up: arena.take(n * self.up.outputs),
        }
    }

    fn saved_bytes<A: GemmElement>(&self, n: usize) -> usize {
        2 * slot_bytes::<f32>(2 * n)
            + slot_bytes::<A>(n * self.row())
            + slot_bytes::<f32>(n * self.normed_heads() * self.attention.head_dim)
            + slot_bytes::<f32>(2 * n * self.normed_heads())
            + slot_bytes::<A>(n * self.out.inputs)
            + slot_bytes::<f32>(n * self.attention.heads)
            + slot_bytes::<f32>(n * self.width())
            + 2 * slot_bytes::<A>(n * self.up.outputs)
    }

    fn linears(&self) -> [Linear; 7] {
        let [q, k, v] = self.qkv;
        [q, k, v, self.out, self.gate, self.up, self.down]
    }

    /// What forward takes, or what backward takes in its largest phase.
    fn scratch_bytes<A: GemmElement>(&self, n: usize) -> usize {
        let d = self.width();
        let (h, act) = (slot_bytes::<A>(n * d), slot_bytes::<A>(n * self.up.outputs));
        let narrow = in_dtype_bytes::<A>(n * d);
        let params = [self.down, self.gate, self.up].map(|l| l.scratch_bytes(n));
        let mlp = narrow + act + params.into_iter().max().unwrap_or(0);
        let unproject =
            self.qkv.map(|l| slot_bytes::<A>(n * l.outputs) + l.scratch_bytes(n)).into_iter().max();
        let attention = narrow
            + slot_bytes::<A>(n * self.out.inputs)
            + slot_bytes::<A>(n * self.row())
            + unproject.unwrap_or(0).max(self.out.scratch_bytes(n)).max(self.heads_scratch::<A>(n));
        let inner = mlp.max(attention).max(self.norm1.scratch_bytes(n));
        let lora = self.linears().map(|l| l.lora_bytes::<A>(n)).into_iter().max().unwrap_or(0);
        let forward = h + act.max(self.heads_scratch::<A>(n));
        (h + slot_bytes::<f32>(n * d) + inner).max(forward) + lora
    }

    fn rotate<A: GemmElement>(&self, kit: &Kit, at: (usize, usize), qkv: &mut [A], inverse: bool) {
        let Some(table) = &self.rope else { return };
        let heads = self.attention.heads + self.attention.kv_heads;
        let at = RopeHeads { row_stride: self.row(), heads, length: at.1, first: at.0 };
        rope(kit, at, qkv, table, inverse);
    }

    fn project<A: GemmElement>(
        &self,
        kit: &Kit,
        p: Params<'_>,
        (h, qkv): (&[A], &mut [A]),
        arena: &mut Arena<'_>,
    ) {
        for (linear, column) in self.qkv.iter().zip(self.columns()) {
            linear.forward(kit, p, h, (&mut qkv[column..], self.row()), arena);
        }
    }

    fn forward_as<A: GemmElement>(&self, cx: &mut Compute, io: Forward<'_>) {
        super::check_batch(&io.batch);
        let (kit, mut arena) = cx.split();
        let (p, n) = (io.params, io.batch.tokens.len());
        let s = self.saved::<A>(n, io.saved);
        let h = arena.take::<A>(n * self.width());
        self.norm1.forward(kit, p, io.x, (h, s.stats1));
        self.project(kit, p, (h, s.qkv), &mut arena);
        self.normalise(kit, p, s.qkv, s.heads, &mut arena);
        self.rotate(kit, (0, io.batch.shape.length), s.qkv, false);
        let shape = self.shape(io.batch.shape);
        attention(kit, shape, (s.qkv, QkvLayout::fused(shape)), s.attended, s.lse);
        self.out.forward_residual(kit, p, s.attended, (io.x, s.mid), &mut arena);
        self.norm2.forward(kit, p, s.mid, (h, s.stats2));
        self.gate.forward(kit, p, h, (s.gate, self.up.outputs), &mut arena);
        self.up.forward(kit, p, h, (s.up, self.up.outputs), &mut arena);
        let act = arena.take::<A>(n * self.up.outputs);
        swiglu(kit, s.gate, s.up, act);
        self.down.forward_residual(kit, p, act, (s.mid, io.y), &mut arena);
    }

    fn backward_as<A: GemmElement>(&self, cx: &mut Compute, io: Backward<'_>, sink: &dyn GradSink) {
        let (kit, mut arena) = cx.split();
        let (p, n, d) = (io.params, io.batch.tokens.len(), self.width());
        let s = self.saved::<A>(n, io.saved);
        let h = arena.take::<A>(n * d);
        let dh = arena.take::<f32>(n * d);
        self.norm2.again(kit, p, s.mid, (h, s.stats2));
        {
            let mut arena = arena.child();
            let f = self.up.outputs;
            let dy = in_dtype::<A>(kit, io.dy, &mut arena);
            let act = arena.take::<A>(n * f);
            self.down.backward_input(kit, p, (dy, d), act, &mut arena);
            swiglu_backward(kit, SwigluBackward { gate: s.gate, up: s.up, dy: act });
            self.down.backward_params(kit, p, act, (dy, d), (&mut arena, sink));
            self.gate.backward_input_f32(kit, p, (&*s.gate, f), (dh, false), &mut arena);
            self.up.backward_input_f32(kit, p, (&*s.up, f), (dh, true), &mut arena);
            self.gate.backward_params(kit, p, h, (&*s.gate, f), (&mut arena, sink));
            self.up.backward_params(kit, p, h, (&*s.up, f), (&mut arena, sink));
        }
        self.norm2.backward(kit, p, (s.mid, s.stats2, dh), io.dy, (&mut arena, sink));
        self.norm1.again(kit, p, io.x, (h, s.stats1));
        {
            let mut arena = arena.child();
            let dmid = in_dtype::<A>(kit, io.dy, &mut arena);
            let dattended = arena.take::<A>(n * self.out.inputs);
            let dqkv = arena.take::<A>(n * self.row());
            self.out.backward_input(kit, p, (dmid, d), dattended, &mut arena);
            self.out.backward_params(kit, p, s.attended, (dmid, d), (&mut arena, sink));
            let shape = self.shape(io.batch.shape);
            let (layout, qkv, out, lse) = (QkvLayout::fused(shape), &*s.qkv, &*s.attended, &*s.lse);
            let back = AttentionBackward { qkv, layout, out, lse, dout: dattended, dqkv };
            attention_backward(kit, shape, back);
            self.rotate(kit, (0, io.batch.shape.length), dqkv, true);
            self.unnormalise(kit, p, dqkv, &s.heads, (&mut arena, sink));
            self.unproject(kit, (p, h), dqkv, dh, (&mut arena, sink));
        }
        self.norm1.backward(kit, p, (io.x, s.stats1, dh), io.dy, (&mut arena, sink));
    }

    /// Heads that have norms of their own.
    fn normed_heads(&self) -> usize {
        self.head_norms.map_or(0, |_| self.attention.heads + self.attention.kv_heads)
    }

    fn saved_heads<'a>(&self, n: usize, arena: &mut Arena<'a>) -> SavedHeads<'a> {
        let rows = n * self.normed_heads();
        SavedHeads { raw: arena.take(rows * self.attention.head_dim), stats: arena.take(2 * rows) }
    }

    fn heads_scratch<A: GemmElement>(&self, n: usize) -> usize {
        let Some([norm, _]) = self.head_norms else { return 0 };
        let rows = n * self.attention.heads;
        let len = rows * self.attention.head_dim;
        slot_bytes::<A>(len) + slot_bytes::<f32>(len) + norm.scratch_bytes(rows)
    }

    /// The norms of q and k, with the columns of each and where its rows of the saved heads lie.
    fn head_norms(&self, n: usize) -> impl Iterator<Item = (NormLayer, Columns, Range<usize>)> {
        let (h, g) = (self.attention.heads, self.attention.kv_heads);
        let (e, row) = (self.attention.head_dim, self.row());
        let [q, k] = [(0, h), (h, g)].map(|(first, heads)| {
            (Columns { row, first: first * e, width: heads * e }, n * first..n * (first + heads))
        });
        let norms = self.head_norms.into_iter().flatten();
        norms.zip([q, k]).map(|(norm, (columns, rows))| (norm, columns, rows))
    }

    /// The norms of q and k, in place; the raw values and stats are kept.
    fn normalise<A: GemmElement>(
        &self,
        kit: &Kit,
        p: Params<'_>,
        qkv: &mut [A],
        saved: SavedHeads<'_>,
        arena: &mut Arena<'_>,
    ) {
        let e = self.attention.head_dim;
        for (norm, columns, rows) in self.head_norms(qkv.len() / self.row()) {
            let raw = &mut saved.raw[rows.start * e..rows.end * e];
            columns.gather(qkv, raw);
            let mut arena = arena.child();
            let y = arena.take::<A>(raw.len());
            norm.forward(kit, p, raw, (y, &mut saved.stats[2 * rows.start..2 * rows.end]));
            columns.scatter(y, qkv);
        }
    }

    /// The backward of [`Layer::normalise`], in place.
    fn unnormalise<A: GemmElement>(
        &self,
        kit: &Kit,
        p: Params<'_>,
        dqkv: &mut [A],
        saved: &SavedHeads<'_>,
        (arena, sink): (&mut Arena<'_>, &dyn GradSink),
    ) {
        let e = self.attention.head_dim;
        for (norm, columns, rows) in self.head_norms(dqkv.len() / self.row()) {
            let raw = &saved.raw[rows.start * e..rows.end * e];
            let stats = &saved.stats[2 * rows.start..2 * rows.end];
            let mut arena = arena.child();
            let (dy, dx) = (arena.take::<A>(raw.len()), arena.take::<f32>(raw.len()));
            columns.gather(dqkv, dy);
            dx.fill(0.0);
            norm.backward(kit, p, (raw, stats, &*dy), dx, (&mut arena, sink));
            columns.scatter(dx, dqkv);
        }
    }

    /// The backward of q, k and v: each one's columns of `dqkv`, copied together for its products.
    fn unproject<A: GemmElement>(
        &self,
        kit: &Kit,
        (p, h): (Params<'_>, &[A]),
        dqkv: &[A],
        dh: &mut [f32],
        (arena, sink): (&mut Arena<'_>, &dyn GradSink),
    ) {
        let row = self.row();
        for (i, (linear, column)) in self.qkv.iter().zip(self.columns()).enumerate() {
            let mut arena = arena.child();
            let width = linear.outputs;
            let part = arena.take::<A>(dqkv.len() / row * width);
            Columns { row, first: column, width }.gather(dqkv, part);
            linear.backward_input_f32(kit, p, (&*part, width), (dh, i > 0), &mut arena);
            linear.backward_params(kit, p, h, (&*part, width), (&mut arena, sink));
        }
    }
}

/// `width` elements from `first` of every row of `row`.
#[derive(Clone, Copy)]
struct Columns {
    row: usize,
    first: usize,
    width: usize,
}

impl Columns {
    fn gather<A: GemmElement, B: GemmElement>(self, rows: &[A], out: &mut [B]) {
        for (to, from) in out.chunks_exact_mut(self.width).zip(rows.chunks_exact(self.row)) {
            let from = &from[self.first..self.first + self.width];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = B::from_f32(from.to_f32()));
        }
    }

    fn scatter<A: GemmElement, B: GemmElement>(self, x: &[B], rows: &mut [A]) {
        for (from, to) in x.chunks_exact(self.width).zip(rows.chunks_exact_mut(self.row)) {
            let to = &mut to[self.first..self.first + self.width];
            to.iter_mut().zip(from).for_each(|(to, from)| *to = A::from_f32(from.to_f32()));
        }
    }
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    fn params(&self) -> &[ParamId] {
        &self.params
    }

    fn plan(&self, leaf: LeafShape, precision: Precision) -> BlockPlan {
        let n = leaf.tokens();
        let products: u64 = self.linears().map(|l| l.flops(n)).iter().sum();
        let scores = 2 * (n * leaf.length * self.out.inputs) as u64; // two products, half masked
        let (saved_bytes, scratch_bytes) = match precision {
            Precision::F32 => (self.saved_bytes::<f32>(n), self.scratch_bytes::<f32>(n)),
            Precision::Bf16 => (self.saved_bytes::<bf16>(n), self.scratch_bytes::<bf16>(n)),
            Precision::F16 => (self.saved_bytes::<f16>(n), self.scratch_bytes::<f16>(n)),
        };
        BlockPlan {
            saved_bytes,
            scratch_bytes,
            forward_flops: products + scores,
            backward_flops: 2 * products + 5 * scores / 2,
        }
    }

    fn forward(&self, cx: &mut Compute, io: Forward<'_>) {
        match cx.precision {
            Precision::F32 => self.forward_as::<f32>(cx, io),
            Precision::Bf16 => self.forward_as::<bf16>(cx, io),
            Precision::F16 => self.forward_as::<f16>(cx, io),
        }
    }

    fn backward(&self, cx: &mut Compute, io: Backward<'_>, sink: &dyn GradSink) {
        match cx.precision {
            Precision::F32 => self.backward_as::<f32>(cx, io, sink),
            Precision::Bf16 => self.backward_as::<bf16>(cx, io, sink),
            Precision::F16 => self.backward_as::<f16>(cx, io, sink),
        }
    }

    fn cache_width(&self) -> usize {
        2 * self.qkv[1].outputs
    }

    fn decode(&self, cx: &mut Compute, io: Decode<'_>) {
        let (kit, mut arena) = cx.split();
        let (p, n, d) = (io.params, io.tokens.len(), self.width());
        let (h, stats) = (arena.take::<f32>(n * d), arena.take(2 * n));
        let qkv = arena.take::<f32>(n * self.row());
        let attended = arena.take::<f32>(n * self.out.inputs);
        let mid = arena.take::<f32>(n * d);
        let gate = arena.take::<f32>(n * self.up.outputs);
        let up = arena.take::<f32>(n * self.up.outputs);
        let act = arena.take::<f32>(n * self.up.outputs);
        self.norm1.forward(kit, p, io.x, (h, &mut *stats));
        self.project(kit, p, (h, qkv), &mut arena);
        let heads = self.saved_heads(n, &mut arena);
        self.normalise(kit, p, qkv, heads, &mut arena);
        self.rotate(kit, (io.position, n), qkv, false);
        cached_attention(kit, self.attention, (qkv, io.position), io.cache, attended);
        self.out.forward_residual(kit, p, attended, (io.x, mid), &mut arena);
        self.norm2.forward(kit, p, mid, (h, stats));
        self.gate.forward(kit, p, h, (gate, self.up.outputs), &mut arena);
        self.up.forward(kit, p, h, (up, self.up.outputs), &mut arena);
        swiglu(kit, gate, up, act);
        self.down.forward_residual(kit, p, act, (mid, io.y), &mut arena);
    }
}
