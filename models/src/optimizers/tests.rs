//! Optimizers against PyTorch in float64 (`tests/golden/make_optimizers.py`).

use super::*;
use crate::compute::Kit;
use crate::kernels::optimizer::update_parallel;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Golden {
    learning_rate: f64,
    start: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    after: BTreeMap<String, Vec<f64>>,
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../tests/golden/optimizers.json")).expect("our own file")
}

fn specs() -> Vec<(&'static str, OptimizerSpec)> {
    let adamw = Adam { betas: [0.9, 0.95], weight_decay: 0.1, ..Adam::default() };
    let betas = [0.9, 0.999];
    let coupled = Adam { betas, eps: 1e-6, weight_decay: 0.05, decoupled: false, ..adamw };
    let sgd = Sgd { weight_decay: 0.01, ..Sgd::default() };
    let momentum = Sgd { momentum: 0.9, dampening: 0.1, ..sgd };
    let nesterov = Sgd { momentum: 0.9, nesterov: true, ..Sgd::default() };
    let adagrad = Adagrad { weight_decay: 0.02, ..Adagrad::default() };
    let lion = Lion { betas: [0.9, 0.99], weight_decay: 0.1 };
    vec![
        ("adamw", OptimizerSpec::Adam(adamw)),
        ("adam_coupled", OptimizerSpec::Adam(coupled)),
        ("sgd", OptimizerSpec::Sgd(sgd)),
        ("sgd_momentum", OptimizerSpec::Sgd(momentum)),
        ("sgd_nesterov", OptimizerSpec::Sgd(nesterov)),
        ("adagrad", OptimizerSpec::Adagrad(adagrad)),
        ("lion", OptimizerSpec::Lion(lion)),
    ]
}

/// State of a run of elements after five updates; the gradients come in four times too large.
struct Outcome {
    master: Vec<f32>,
    states: [Vec<f32>; 2],
    working: Vec<bf16>,
}

fn five_updates(kit: &Kit, spec: OptimizerSpec, golden: &Golden, copies: usize) -> Outcome {
    let mut master = golden.start.repeat(copies);
    let len = master.len();
    let states = spec.state_names().len();
    let mut first = vec![0.0; if states > 0 { len } else { 0 }];
    let mut second = vec![0.0; if states > 1 { len } else { 0 }];
    let mut working = vec![bf16::ZERO; len];
    for (t, gradient) in (1..).zip(&golden.gradients) {
        let gradient: Vec<f32> = gradient.repeat(copies).iter().map(|g| 4.0 * g).collect();
        let learning_rate = golden.learning_rate;
        let update = Update { t, learning_rate, gradient_factor: 0.25 };
        let elements = Elements {
            gradient: &gradient,
            master: &mut master,
            first: &mut first,
            second: &mut second,
            working: Some(&mut working),
        };
        update_parallel(kit, &spec, update, elements);
    }
    Outcome { master, states: [first, second], working }
}

/// Five updates agree with PyTorch's, which computed in float64; and the bf16 copy is the master's
/// rounding.
#[test]
fn updates_are_pytorchs() {
    let golden = golden();
    let kit = Kit::new(1, Isa::detect());
    for (name, spec) in specs() {
        let got = five_updates(&kit, spec, &golden, 1);
        for (j, (p, want)) in got.master.iter().zip(&golden.after[name]).enumerate() {
            let bound = 3e-7 + 3e-7 * want.abs();
            assert!((f64::from(*p) - want).abs() <= bound, "{name} element {j}: {p} {want}");
        }
        let rounded = got.master.iter().map(|&p| bf16::from_f32(p));
        assert!(rounded.eq(got.working.iter().copied()), "{name}");
    }
}

/// Threads and ISA do not show in any bit, nor does where the elements lie.
#[test]
fn updates_do_not_depend_on_threads_or_isa() {
    let golden = golden();
    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    let copies = 5000;
    for (name, spec) in specs() {
        let want = five_updates(&Kit::new(1, Isa::Scalar), spec, &golden, 1);
        for isa in Isa::available() {
            let got = five_updates(&Kit::new(3, isa), spec, &golden, copies);
            assert_eq!(bits(&got.master), bits(&want.master.repeat(copies)), "{name} {isa}");
            for (got, want) in got.states.iter().zip(&want.states) {
                assert_eq!(bits(got), bits(&want.repeat(copies)), "{name} {isa}");
            }
        }
    }
}

/// What a planner counts.
#[test]
fn optimizers_say_their_state_bytes() {
    let bytes: Vec<_> =
        specs().iter().map(|(name, spec)| (*name, spec.state_bytes_per_parameter())).collect();
    let want = [8, 8, 0, 4, 4, 4, 4];
    assert!(bytes.iter().map(|b| b.1).eq(want), "{bytes:?}");
}
