//! Whole recipes a user can run, and how to bring a model of your own.
//!
//! `quickstart/` and `shakespeare-char/` hold configurations for `planaria train`. [`ChannelGate`] is a
//! block written outside our crates: implement [`Block`], and let the gradient checker compare its
//! backward with finite differences (the test below does).

use planaria_base::{ParamId, Site};
use planaria_models::block::{
    Backward, Block, BlockPlan, Decode, Forward, GradSink, LeafShape, Precision,
};
use planaria_models::compute::{Compute, slot_bytes};

/// `y = x * (1 + w)`, one weight per channel. Shapes: x and y `[tokens, width]`, w `[width]`.
pub struct ChannelGate {
    params: [ParamId; 1],
    width: usize,
}

impl ChannelGate {
    /// A gate of `width` channels whose weights are parameter `w`.
    #[must_use]
    pub fn new(w: ParamId, width: usize) -> ChannelGate {
        ChannelGate { params: [w], width }
    }

    fn gate(&self, w: &[f32], x: &[f32], y: &mut [f32]) {
        for (x, y) in x.chunks_exact(self.width).zip(y.chunks_exact_mut(self.width)) {
            for ((y, x), w) in y.iter_mut().zip(x).zip(w) {
                *y = x * (1.0 + w);
            }
        }
    }
}

impl Block for ChannelGate {
    fn name(&self) -> &str {
        "channel gate"
    }

    fn params(&self) -> &[ParamId] {
        &self.params
    }

    /// Nothing is saved: backward needs only the stream that came in, which the trainer keeps.
    fn plan(&self, leaf: LeafShape, _: Precision) -> BlockPlan {
        let flops = (leaf.tokens() * self.width) as u64;
        BlockPlan {
            saved_bytes: 0,
            scratch_bytes: slot_bytes::<f32>(self.width),
            forward_flops: 2 * flops,
            backward_flops: 4 * flops,
        }
    }

    fn forward(&self, _: &mut Compute, io: Forward<'_>) {
        self.gate(io.params.f32(self.params[0]), io.x, io.y);
    }

    fn backward(&self, cx: &mut Compute, io: Backward<'_>, sink: &dyn GradSink) {
        let (_, mut arena) = cx.split();
        let w = io.params.f32(self.params[0]);
        let dw: &mut [f32] = arena.take(self.width);
        dw.fill(0.0);
        for (x, dy) in io.x.chunks_exact(self.width).zip(io.dy.chunks_exact_mut(self.width)) {
            for (((dw, dy), x), w) in dw.iter_mut().zip(dy).zip(x).zip(w) {
                *dw += *dy * x;
                *dy *= 1.0 + w;
            }
        }
        sink.dense(self.params[0], Site(0), 0, dw);
    }

    fn decode(&self, _: &mut Compute, io: Decode<'_>) {
        self.gate(io.params.f32(self.params[0]), io.x, io.y);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_models::block::{Batch, Init, ParamSpec};
    use planaria_models::gradcheck::GradCheck;

    /// The block's backward agrees with finite differences.
    #[test]
    fn the_gradient_is_right() {
        const WIDTH: usize = 8;
        let block = ChannelGate::new(ParamId(0), WIDTH);
        let spec = ParamSpec {
            id: ParamId(0),
            name: "gate.weight".to_owned(),
            shape: vec![WIDTH],
            init: Init::Zeros,
            sites: 1,
            frozen: false,
        };
        let values = vec![(0..WIDTH).map(|i| i as f32 * 0.1 - 0.3).collect()];
        let shape = LeafShape { sequences: 2, length: 3 };
        let check = GradCheck {
            block: &block,
            specs: &[spec],
            values: &values,
            batch: Batch {
                shape,
                tokens: &[0; 6],
                labels: &[0; 6],
                positions: None,
                documents: None,
                fields: &[],
            },
            width: WIDTH,
            reads_stream: true,
            tolerance: 1e-2,
        };
        assert_eq!(check.run(), []);
    }
}
