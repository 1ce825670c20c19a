//! GPT-2 (Radford et al. 2019): pre-norm LayerNorm, fused q/k/v, learned positions, GELU.

use super::embed::Embed;
use super::{Builder, ModelSpec};
use crate::block::{
    Backward, Block, BlockPlan, Decode, Forward, GradSink, Init, LeafShape, Model, Precision,
};
use crate::compute::{Arena, Compute, slot_bytes};
use crate::kernels::activation::{Gelu, gelu, gelu_backward};
use crate::kernels::attention::{
    AttentionBackward, AttentionShape, QkvLayout, attention, attention_backward, cached_attention,
};
use crate::kernels::gemm::GemmElement;
use crate::kernels::norm::Norm;
use crate::ops::{Layout, Linear, NormLayer, in_dtype, in_dtype_bytes};
use half::{bf16, f16};
use planaria_base::ParamId;

/// One transformer block.
struct Layer {
    name: String,
    params: Vec<ParamId>,
    attention: AttentionShape,
    gelu: Gelu,
    norm1: NormLayer,
    qkv: Linear,
    out: Linear,
    norm2: NormLayer,
    up: Linear,
    down: Linear,
}

/// Builds the block list.
pub(super) fn build(spec: &ModelSpec) -> Model {
    let mut b = Builder::default();
    let (d, normal) = (spec.width, Init::Normal { std: spec.init_std });
    let wte = b.add("transformer.wte.weight".to_owned(), &[spec.vocab, d], normal);
    let wpe = b.add("transformer.wpe.weight".to_owned(), &[spec.max_length, d], normal);
    let mut blocks: Vec<Box<dyn Block>> = vec![Box::new(Embed::new(wte, Some(wpe), d))];
    for i in 0..spec.layers {
        blocks.push(Box::new(layer(spec, i, &mut b)));
    }
    let norm = norm_layer(&mut b, "transformer.ln_f", spec);
    b.finish(spec, blocks, wte, norm)
}

fn norm_layer(b: &mut Builder, name: &str, spec: &ModelSpec) -> NormLayer {
    let norm = Norm { center: true, width: spec.width, eps: spec.norm_eps };
    let w = b.add(format!("{name}.weight"), &[spec.width], Init::Ones);
    NormLayer { norm, w, b: Some(b.add(format!("{name}.bias"), &[spec.width], Init::Zeros)) }
}

fn linear(
    b: &mut Builder,
    spec: &ModelSpec,
    name: &str,
    (inputs, outputs): (usize, usize),
    std: f32,
) -> Linear {
    let w = b.add(format!("{name}.weight"), &[inputs, outputs], Init::Normal { std });
    let bias = b.add(format!("{name}.bias"), &[outputs], Init::Zeros);
    let lora = b.lora(spec, name, (inputs, outputs));
    Linear { w, b: Some(bias), inputs, outputs, layout: Layout::InOut, lora }
}

fn layer(spec: &ModelSpec, i: usize, b: &mut Builder) -> Layer {
    let first = b.params.len();
    let (d, std, at) = (spec.width, spec.init_std, format!("transformer.h.{i}"));
    let norm1 = norm_layer(b, &format!("{at}.ln_1"), spec);
    let qkv = linear(b, spec, &format!("{at}.attn.c_attn"), (d, 3 * d), std);
    // The paper's scaling: 2·layers branches add up in the stream.
    let branch = std / (2.0 * spec.layers as f32).sqrt();
    let out = linear(b, spec, &format!("{at}.attn.c_proj"), (d, d), branch);
    let norm2 = norm_layer(b, &format!("{at}.ln_2"), spec);
    let up = linear(b, spec, &format!("{at}.mlp.c_fc"), (d, spec.mlp_width), std);
    let down = linear(b, spec, &format!("{at}.mlp.c_proj"), (spec.mlp_width, d), branch);
    let attention = AttentionShape {
        sequences: 0,
        length: 0,
        heads: spec.heads,
        kv_heads: spec.heads,
        head_dim: spec.head_dim,
        scale: 1.0 / (spec.head_dim as f32).sqrt(),
        window: None,
    };
    let params = b.params[first..].iter().map(|p| p.id).collect();
    let (name, gelu) = (format!("h.{i}"), spec.gelu);
    Layer { name, params, attention, gelu, norm1, qkv, out, norm2, up, down }
}

/// What backward needs, in the saved arena.
struct Saved<'a, A> {
    stats1: &'a mut [f32],
    qkv: &'a mut [A],
    attended: &'a mut [A],
    lse: &'a mut [f32],
    mid: &'a mut [f32],
    stats2: &'a mut [f32],
    up: &'a mut [A],
}

impl Layer {
    fn shape(&self, leaf: LeafShape) -> AttentionShape {
        AttentionShape { sequences: leaf.sequences, length: leaf.length, ..self.attention }
    }

    fn saved<'a, A: GemmElement>(&self, n: usize, bytes: &'a mut [u8]) -> Saved<'a, A> {
        let mut arena = Arena::new(bytes);
        let d = self.qkv.inputs;
        Saved {
            stats1: arena.take(2 * n),
            qkv: arena.take(n * 3 * d),
            attended: arena.take(n * d),
            lse: arena.take(n * self.attention.heads),
            mid: arena.take(n * d),
            stats2: arena.take(2 * n),
            up: arena.take(n * self.up.outputs),
        }
    }

    fn saved_bytes<A: GemmElement>(&self, n: usize) -> usize {
        let d = self.qkv.inputs;
        2 * slot_bytes::<f32>(2 * n)
            + slot_bytes::<A>(n * 3 * d)
            + slot_bytes::<A>(n * d)
            + slot_bytes::<f32>(n * self.attention.heads)
            + slot_bytes::<f32>(n * d)
            + slot_bytes::<A>(n * self.up.outputs)
    }

    /// What forward takes, or what backward takes in its largest phase.
    fn scratch_bytes<A: GemmElement>(&self, n: usize) -> usize {
        let (h, act) = (slot_bytes::<A>(n * self.qkv.inputs), slot_bytes::<A>(n * self.up.outputs));
        let narrow = in_dtype_bytes::<A>(n * self.qkv.inputs);
        let params = |a: Linear, b: Linear| a.scratch_bytes(n).max(b.scratch_bytes(n));
        let mlp = narrow + 2 * act + params(self.down, self.up);
        let dqkv = slot_bytes::<A>(n * self.qkv.outputs);
        let attention = narrow + h + dqkv + params(self.out, self.qkv);
        let backward = 2 * h + mlp.max(attention).max(self.norm1.scratch_bytes(n));
        let linears = [self.qkv, self.out, self.up, self.down];
        let lora = linears.map(|l| l.lora_bytes::<A>(n)).into_iter().max().unwrap_or(0);
        backward.max(h + act) + lora
    }

    fn forward_as<A: GemmElement>(&self, cx: &mut Compute, io: Forward<'_>) {
        super::check_batch(&io.batch);
        let (kit, mut arena) = cx.split();
        let (p, n, d) = (io.params, io.batch.tokens.len(), self.qkv.inputs);
        let s = self.saved::<A>(n, io.saved);
        let h = arena.take::<A>(n * d);
        let act = arena.take::<A>(n * self.up.outputs);
        self.norm1.forward(kit, p, io.x, (h, s.stats1));
        self.qkv.forward(kit, p, h, (s.qkv, 3 * d), &mut arena);
        let shape = self.shape(io.batch.shape);
        attention(kit, shape, (s.qkv, QkvLayout::fused(shape)), s.attended, s.lse);
        self.out.forward_residual(kit, p, s.attended, (io.x, s.mid), &mut arena);
        self.norm2.forward(kit, p, s.mid, (h, s.stats2));
        self.up.forward(kit, p, h, (s.up, self.up.outputs), &mut arena);
        gelu(kit, self.gelu, s.up, act);
        self.down.forward_residual(kit, p, act, (s.mid, io.y), &mut arena);
    }

    fn backward_as<A: GemmElement>(&self, cx: &mut Compute, io: Backward<'_>, sink: &dyn GradSink) {
        let (kit, mut arena) = cx.split();
        let (p, n, d) = (io.params, io.batch.tokens.len(), self.qkv.inputs);
        let s = self.saved::<A>(n, io.saved);
        let h = arena.take::<A>(n * d);
        let dh = arena.take::<A>(n * d);
        {
            let mut arena = arena.child();
            let dy = in_dtype::<A>(kit, io.dy, &mut arena);
            let act = arena.take::<A>(n * self.up.outputs);
            let dact = arena.take::<A>(n * self.up.outputs);
            self.down.backward_input(kit, p, (dy, d), dact, &mut arena);
            gelu_backward(kit, self.gelu, s.up, dact, act);
            self.down.backward_params(kit, p, act, (dy, d), (&mut arena, sink));
            self.up.backward_input(kit, p, (dact, self.up.outputs), dh, &mut arena);
            self.norm2.again(kit, p, s.mid, (h, s.stats2));
            self.up.backward_params(kit, p, h, (dact, self.up.outputs), (&mut arena, sink));
        }
        self.norm2.backward(kit, p, (s.mid, s.stats2, dh), io.dy, (&mut arena, sink));
        {
            let mut arena = arena.child();
            let dmid = in_dtype::<A>(kit, io.dy, &mut arena);
            let dattended = arena.take::<A>(n * d);
            let dqkv = arena.take::<A>(n * 3 * d);
            self.out.backward_input(kit, p, (dmid, d), dattended, &mut arena);
            self.out.backward_params(kit, p, s.attended, (dmid, d), (&mut arena, sink));
            let shape = self.shape(io.batch.shape);
            let (layout, qkv, out, lse) = (QkvLayout::fused(shape), &*s.qkv, &*s.attended, &*s.lse);
            let back = AttentionBackward { qkv, layout, out, lse, dout: dattended, dqkv };
            attention_backward(kit, shape, back);
            self.qkv.backward_input(kit, p, (dqkv, 3 * d), dh, &mut arena);
            self.norm1.again(kit, p, io.x, (h, s.stats1));
            self.qkv.backward_params(kit, p, h, (dqkv, 3 * d), (&mut arena, sink));
        }
        self.norm1.backward(kit, p, (io.x, s.stats1, dh), io.dy, (&mut arena, sink));
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
        let products: u64 =
            [self.qkv, self.out, self.up, self.down].map(|l| l.flops(n)).iter().sum();
        let scores = 2 * (n * leaf.length * self.qkv.inputs) as u64; // two products, half masked
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
        2 * self.qkv.inputs
    }

    fn decode(&self, cx: &mut Compute, io: Decode<'_>) {
        let (kit, mut arena) = cx.split();
        let (p, n, d) = (io.params, io.tokens.len(), self.qkv.inputs);
        let (h, stats) = (arena.take::<f32>(n * d), arena.take(2 * n));
        let qkv = arena.take::<f32>(n * 3 * d);
        let mid = arena.take::<f32>(n * d);
        let up = arena.take::<f32>(n * self.up.outputs);
        let act = arena.take::<f32>(n * self.up.outputs);
        self.norm1.forward(kit, p, io.x, (h, &mut *stats));
        self.qkv.forward(kit, p, h, (qkv, 3 * d), &mut arena);
        cached_attention(kit, self.attention, (qkv, io.position), io.cache, h);
        self.out.forward_residual(kit, p, h, (io.x, mid), &mut arena);
        self.norm2.forward(kit, p, mid, (h, stats));
        self.up.forward(kit, p, h, (up, self.up.outputs), &mut arena);
        gelu(kit, self.gelu, up, act);
        self.down.forward_residual(kit, p, act, (mid, io.y), &mut arena);
    }
}
