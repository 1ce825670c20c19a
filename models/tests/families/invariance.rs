//! What may not show in the bits, and what the plan promises.

use crate::support::{Case, Mode, Outcome, Sink, run};
use planaria_models::block::{
    Backward, Batch, Forward, LeafShape, LossGrad, LossScale, Params, Precision,
};
use planaria_models::buffer::Buffer;
use planaria_models::compute::Compute;
use planaria_models::kernels::Isa;
use planaria_models::leaf::{Leaf, LeafBuffers, LeafPlan};
use std::panic::{AssertUnwindSafe, catch_unwind};

const MODELS: [&str; 3] = ["gpt2", "llama", "llama_tied"];

fn bits(outcome: &Outcome) -> Vec<u32> {
    let losses = outcome.stats.iter().flat_map(|s| {
        let loss = s.loss_sum.to_bits();
        [(loss >> 32) as u32, loss as u32, s.labels as u32]
    });
    let values = outcome.grads.iter().flatten().chain(&outcome.scores);
    losses.chain(values.map(|g| g.to_bits())).collect()
}

/// Threads, ISA and recomputation do not show in fp32.
#[test]
fn fp32_bits_depend_on_inputs_alone() {
    for name in MODELS {
        let case = Case::open(name);
        let want = bits(&run(&case.model, &case.weights, &case.leaves, Mode::plain()));
        for isa in Isa::available() {
            for (threads, recompute) in [(1, false), (2, true), (3, false)] {
                let mode = Mode { threads, isa, recompute, ..Mode::plain() };
                let got = bits(&run(&case.model, &case.weights, &case.leaves, mode));
                assert!(got == want, "{name} {mode:?}");
            }
        }
    }
}

/// Threads and recomputation do not show in 16 bits either.
#[test]
fn bits_of_16_bit_compute_do_not_depend_on_threads() {
    for (name, precision) in MODELS.iter().flat_map(|m| [(m, Precision::Bf16), (m, Precision::F16)])
    {
        let case = Case::open(name);
        let plain = Mode { precision, ..Mode::plain() };
        let want = bits(&run(&case.model, &case.weights, &case.leaves, plain));
        for threads in 1..=3 {
            for recompute in [false, true] {
                let mode = Mode { threads, recompute, ..plain };
                let got = bits(&run(&case.model, &case.weights, &case.leaves, mode));
                assert!(got == want, "{name} {mode:?}");
            }
        }
    }
}

/// Every block's scratch and saved bytes are what it takes: with one cache line less it panics.
#[test]
fn plans_are_exact() {
    for name in MODELS {
        let case = Case::open(name);
        for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
            let shape = LeafShape { sequences: 2, length: 24 };
            let plan = LeafPlan::new(&case.model, shape, precision, false);
            let recomputing = LeafPlan::new(&case.model, shape, precision, true);
            assert_eq!(recomputing.saved_bytes() * case.spec.layers, plan.saved_bytes());
            for block in 0..=case.model.blocks.len() {
                let planned = plan.blocks.get(block).unwrap_or(&plan.head);
                let (scratch, saved) = (planned.scratch_bytes, planned.saved_bytes);
                let at = format!("{name} {precision:?} block {block}");
                assert!(fits(&case, block, precision, (scratch, saved)), "{at}");
                assert!(!fits(&case, block, precision, (scratch - 64, saved)), "{at} scratch");
                if saved > 0 {
                    assert!(!fits(&case, block, precision, (scratch, saved - 64)), "{at} saved");
                }
            }
        }
    }
}

/// Whether a block, or the head as the last, runs forward and backward in this memory.
fn fits(case: &Case, block: usize, precision: Precision, bytes: (usize, usize)) -> bool {
    let values = case.weights.values(&case.model, precision);
    let (batch, params) = (case.leaves[0].batch(), Params::new(&values));
    let elements = batch.shape.tokens() * case.model.width;
    let mut cx = Compute::new(1, Isa::detect(), precision, bytes.0);
    let mut saved = Buffer::<u8>::zeroed(bytes.1);
    let (x, mut y) = (vec![0.5; elements], vec![0.0; elements]);
    let sink = Sink::new(&case.model);
    let run = AssertUnwindSafe(|| match case.model.blocks.get(block) {
        Some(block) => {
            let saved = &mut saved[..];
            block.forward(&mut cx, Forward { params, batch, x: &x, y: &mut y, saved });
            let dy = &mut y;
            block.backward(&mut cx, Backward { params, batch, x: &x, saved, dy }, &sink);
        }
        None => {
            let scale = LossScale { factor: 1.0 };
            let io = LossGrad { params, batch, x: &x, dx: &mut y, scale };
            case.model.head.loss_and_grad(&mut cx, io, &sink);
        }
    });
    catch_unwind(run).is_ok()
}

/// A power of two on the loss is a power of two on every gradient, exactly.
#[test]
fn the_loss_scale_is_exact() {
    let case = Case::open("llama");
    let want = run(&case.model, &case.weights, &case.leaves[..1], Mode::plain());
    let plan = LeafPlan::new(&case.model, case.leaves[0].shape, Precision::F32, false);
    let mut cx = Compute::new(2, Isa::detect(), Precision::F32, plan.scratch_bytes());
    let mut buffers = LeafBuffers::new(&plan);
    let values = case.weights.values(&case.model, Precision::F32);
    let leaf =
        Leaf { model: &case.model, params: Params::new(&values), batch: case.leaves[0].batch() };
    let sink = Sink::new(&case.model);
    leaf.forward(&mut cx, &mut buffers, &mut |_| {});
    leaf.loss_and_grad(&mut cx, &mut buffers, LossScale { factor: 256.0 }, &sink);
    leaf.backward(&mut cx, &mut buffers, &sink, &mut |_| {});
    for (got, want) in sink.finish(&case.model).iter().flatten().zip(want.grads.iter().flatten()) {
        assert_eq!(got / 256.0, *want);
    }
}

/// Positions and documents of a batch are not built: they are refused, not ignored.
#[test]
fn what_a_batch_asks_for_is_obeyed_or_refused() {
    for name in MODELS {
        let case = Case::open(name);
        let values = case.weights.values(&case.model, Precision::F32);
        let ids = vec![0; case.leaves[0].shape.tokens()];
        let plain = case.leaves[0].batch();
        let with_positions = Batch { positions: Some(&ids), ..plain };
        let with_documents = Batch { documents: Some(&ids), ..plain };
        for (batch, works) in [(plain, true), (with_positions, false), (with_documents, false)] {
            let plan = LeafPlan::new(&case.model, plain.shape, Precision::F32, true);
            let mut cx = Compute::new(1, Isa::detect(), Precision::F32, plan.scratch_bytes());
            let mut buffers = LeafBuffers::new(&plan);
            let leaf = Leaf { model: &case.model, params: Params::new(&values), batch };
            for block in 0..case.model.blocks.len() {
                let run = || leaf.forward_block(block, &mut cx, &mut buffers);
                assert_eq!(catch_unwind(AssertUnwindSafe(run)).is_ok(), works, "{name} {block}");
            }
        }
    }
}
