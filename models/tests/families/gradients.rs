//! Every kind of block against finite differences.

use crate::further::FURTHER;
use crate::support::Case;
use planaria_base::ParamId;
use planaria_models::block::{Backward, Block, BlockPlan, Decode, Forward, GradSink, LeafShape};
use planaria_models::block::{Batch, Precision};
use planaria_models::compute::Compute;
use planaria_models::gradcheck::GradCheck;

const SHAPE: LeafShape = LeafShape { sequences: 2, length: 5 };
const TOKENS: [u32; 10] = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3];

pub(crate) fn batch() -> Batch<'static> {
    Batch {
        shape: SHAPE,
        tokens: &TOKENS,
        labels: &[0; 10],
        positions: None,
        documents: None,
        fields: &[],
    }
}

fn check<'a>(case: &'a Case, block: &'a dyn Block, reads_stream: bool) -> GradCheck<'a> {
    GradCheck {
        block,
        specs: &case.model.params,
        values: &case.weights.f32,
        batch: batch(),
        width: case.model.width,
        reads_stream,
        tolerance: 1e-2,
    }
}

/// Embeddings and layers of all golden models.
#[test]
fn backward_is_the_derivative_of_forward() {
    for name in ["gpt2", "llama", "llama_tied"].into_iter().chain(FURTHER) {
        let case = Case::open(name);
        for (i, block) in case.model.blocks.iter().enumerate() {
            // A norm over six elements bends within the step of a difference.
            let tolerance = if case.spec.qk_norm { 2e-2 } else { 1e-2 };
            let found = GradCheck { tolerance, ..check(&case, block.as_ref(), i > 0) }.run();
            assert!(found.is_empty(), "{name} {}: {found:?}", block.name());
        }
    }
}

/// A block whose backward is off by a tenth.
struct Wrong<'a>(&'a dyn Block);

impl Block for Wrong<'_> {
    fn name(&self) -> &str {
        "wrong"
    }
    fn params(&self) -> &[ParamId] {
        self.0.params()
    }
    fn plan(&self, leaf: LeafShape, precision: Precision) -> BlockPlan {
        self.0.plan(leaf, precision)
    }
    fn forward(&self, cx: &mut Compute, io: Forward<'_>) {
        self.0.forward(cx, io);
    }
    fn backward(&self, cx: &mut Compute, io: Backward<'_>, sink: &dyn GradSink) {
        io.dy.iter_mut().for_each(|d| *d *= 1.1);
        self.0.backward(cx, io, sink);
    }
    fn decode(&self, cx: &mut Compute, io: Decode<'_>) {
        self.0.decode(cx, io);
    }
}

/// The checker finds a gradient that is wrong by a tenth, in the input and in every kind of parameter.
#[test]
fn the_checker_finds_a_wrong_backward() {
    let case = Case::open("llama");
    let wrong = Wrong(case.model.blocks[1].as_ref());
    let found = check(&case, &wrong, true).run();
    assert!(found.iter().any(|m| m.what == "input"), "{found:?}");
    assert!(found.iter().any(|m| m.what.ends_with("q_proj.weight")), "{found:?}");
    assert!(found.iter().any(|m| m.what.ends_with("down_proj.weight")), "{found:?}");
}
