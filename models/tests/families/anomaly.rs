//! The first number that is not finite is named; a watched model computes the same bits.

use crate::support::{Case, Mode, Weights, run};
use planaria_base::{ParamId, Site};
use planaria_models::anomaly::{Anomaly, Direction, watch};
use planaria_models::block::{
    Backward, Block, BlockPlan, Decode, Forward, GradSink, LeafShape, Precision,
};
use planaria_models::compute::Compute;

/// Runs a watched model whose weights were changed; what was found.
fn found(change: impl Fn(&str, &mut [f32]), wrap: impl Fn(&mut Vec<Box<dyn Block>>)) -> Anomaly {
    let Case { mut model, weights, leaves, .. } = Case::open("llama");
    let mut values = weights.f32;
    model.params.iter().zip(&mut values).for_each(|(p, v)| change(&p.name, v));
    wrap(&mut model.blocks);
    let (model, watch) = watch(model);
    watch.at(7, 2);
    run(&model, &Weights::new(values), &leaves[..1], Mode::plain());
    watch.found().expect("an anomaly")
}

/// Nothing is found in a good model, and watching changes no bit.
#[test]
fn watching_changes_nothing() {
    let case = Case::open("llama");
    let want = run(&case.model, &case.weights, &case.leaves, Mode::plain());
    let (model, watch) = watch(case.model);
    let got = run(&model, &case.weights, &case.leaves, Mode::plain());
    assert!(got.grads == want.grads && got.stats == want.stats);
    assert_eq!(watch.found(), None);
}

/// A bad weight: the forward of its block, its activation, and the weight itself are named.
#[test]
fn a_bad_weight_is_named() {
    let name = "model.layers.1.mlp.up_proj.weight";
    let seen = found(
        |n, v| {
            if n == name {
                v[5] = f32::NAN
            }
        },
        |_| {},
    );
    assert_eq!((seen.step, seen.leaf, seen.direction), (7, 2, Direction::Forward));
    assert_eq!((seen.block.as_str(), seen.parameter.as_deref()), ("layers.1", Some(name)));
    let text = seen.to_string();
    assert!(text.contains("step 7, leaf 2, forward of block layers.1: the activation"), "{text}");
}

/// A loss that overflows is the loss's doing, not its gradients'.
#[test]
fn a_bad_head_is_named() {
    let seen = found(
        |n, v| {
            if n == "lm_head.weight" {
                v[3] = f32::INFINITY
            }
        },
        |_| {},
    );
    assert_eq!((seen.block.as_str(), seen.tensor.as_str()), ("head", "the loss"));
    assert_eq!(seen.parameter.as_deref(), Some("lm_head.weight"));
}

/// What a block's backward does.
#[derive(Clone, Copy)]
enum Fault {
    PassesInfinity,
    EmitsNan(ParamId),
}

struct Faulty(Box<dyn Block>, Fault);

impl Block for Faulty {
    fn name(&self) -> &str {
        self.0.name()
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
        let Backward { params, batch, x, saved, dy } = io;
        let poisoned = Poisoned(sink, self.1);
        self.0.backward(cx, Backward { params, batch, x, saved, dy: &mut *dy }, &poisoned);
        if let Fault::PassesInfinity = self.1 {
            dy[33] = f32::INFINITY;
        }
    }
    fn decode(&self, cx: &mut Compute, io: Decode<'_>) {
        self.0.decode(cx, io);
    }
}

struct Poisoned<'a>(&'a dyn GradSink, Fault);

impl GradSink for Poisoned<'_> {
    fn dense(&self, param: ParamId, site: Site, first: usize, values: &mut [f32]) {
        if matches!(self.1, Fault::EmitsNan(bad) if bad == param) {
            values[0] = f32::NAN;
        }
        self.0.dense(param, site, first, values);
    }
    fn rows(&self, param: ParamId, site: Site, rows: &[u32], values: &mut [f32]) {
        self.0.rows(param, site, rows, values);
    }
}

/// A bad gradient, passed on or emitted: the backward of its block is named.
#[test]
fn a_bad_gradient_is_named() {
    let faulty = |fault: Fault| {
        move |blocks: &mut Vec<Box<dyn Block>>| {
            let block = blocks.remove(1);
            blocks.insert(1, Box::new(Faulty(block, fault)));
        }
    };
    let seen = found(|_, _| {}, faulty(Fault::PassesInfinity));
    assert_eq!((seen.block.as_str(), seen.direction), ("layers.0", Direction::Backward));
    assert_eq!((seen.tensor.as_str(), seen.element), ("the gradient that it passes on", 33));
    assert_eq!((seen.value, seen.parameter), (f32::INFINITY, None));
    let case = Case::open("llama");
    let name = "model.layers.0.self_attn.k_proj.weight";
    let id = case.model.params.iter().find(|p| p.name == name).unwrap().id;
    let seen = found(|_, _| {}, faulty(Fault::EmitsNan(id)));
    assert_eq!(seen.tensor, format!("the gradient of {name}"));
}
