//! Optimizers against PyTorch in float64 (`tests/golden/make_optimizers.py`).

use super::*;
use crate::block::Init;
use crate::compute::Compute;
use planaria_base::ParamId;
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Golden {
    learning_rate: f64,
    start: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    after: BTreeMap<String, Vec<f64>>,
    matrices: Vec<Matrix>,
}

/// Five updates of a matrix by Muon, its two orders of operations.
#[derive(Deserialize)]
struct Matrix {
    shape: Vec<usize>,
    start: Vec<f32>,
    gradients: Vec<Vec<f32>>,
    standard: Vec<f64>,
    gram: Vec<f64>,
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
    let lamb = Lamb { eps: 1e-6, weight_decay: 0.05, ..Lamb::default() };
    let least = Lamb { min_coeff: 1.5, bias_correction: false, ..lamb };
    let most = Lamb { max_coeff: 0.5, eps_inside_sqrt: true, ..lamb };
    vec![
        ("adamw", OptimizerSpec::Adam(adamw)),
        ("adam_coupled", OptimizerSpec::Adam(coupled)),
        ("sgd", OptimizerSpec::Sgd(sgd)),
        ("sgd_momentum", OptimizerSpec::Sgd(momentum)),
        ("sgd_nesterov", OptimizerSpec::Sgd(nesterov)),
        ("adagrad", OptimizerSpec::Adagrad(adagrad)),
        ("lion", OptimizerSpec::Lion(lion)),
        ("lamb", OptimizerSpec::Lamb(lamb)),
        ("lamb_least", OptimizerSpec::Lamb(least)),
        ("lamb_most", OptimizerSpec::Lamb(most)),
    ]
}

fn muon(ns_method: NewtonSchulz) -> OptimizerSpec {
    let adam = Adam { betas: [0.9, 0.95], weight_decay: 0.1, ..Adam::default() };
    OptimizerSpec::Muon(Muon { weight_decay: 0.1, ns_method, adam, ..Muon::default() })
}

fn param(name: &str, shape: Vec<usize>) -> ParamSpec {
    ParamSpec {
        id: ParamId(0),
        name: name.to_owned(),
        shape,
        init: Init::Zeros,
        sites: 1,
        frozen: false,
    }
}

/// A parameter after five updates; the gradients come in four times too large.
#[derive(Default)]
struct Outcome {
    master: Vec<f32>,
    states: [Vec<f32>; 2],
    bf16: Vec<bf16>,
    f16: Vec<f16>,
}

impl Outcome {
    fn bits(&self) -> Vec<u32> {
        let all = self.master.iter().chain(self.states.iter().flatten());
        all.map(|x| x.to_bits()).collect()
    }
}

fn five_updates(
    (threads, isa): (usize, Isa),
    spec: OptimizerSpec,
    param: &ParamSpec,
    rate: f64,
    (start, gradients): (&[f32], &[Vec<f32>]),
) -> Outcome {
    let scratch = spec.scratch_bytes(std::slice::from_ref(param));
    let mut cx = Compute::new(threads, isa, crate::block::Precision::F32, scratch);
    let len = start.len();
    let states = spec.state_names(param).len();
    let state = |i: usize| vec![0.0; if i < states { len } else { 0 }];
    let mut out =
        Outcome { master: start.to_vec(), states: [state(0), state(1)], ..Outcome::default() };
    (out.bf16, out.f16) = (vec![bf16::ZERO; len], vec![f16::ZERO; len]);
    for (t, gradient) in (1..).zip(gradients) {
        let gradient: Vec<f32> = gradient.iter().map(|g| 4.0 * g).collect();
        let update = Update { t, learning_rate: rate, gradient_factor: 0.25, ..Update::default() };
        let [first, second] = &mut out.states;
        let working = Some(if t % 2 == 0 {
            Working::F16(&mut out.f16)
        } else {
            Working::Bf16(&mut out.bf16)
        });
        let master = &mut out.master;
        let elements = Elements { gradient: &gradient, master, first, second, working };
        spec.apply(cx.split(), param, update, elements);
        if t == 4 {
            let rounded = out.master.iter().map(|&p| f16::from_f32(p));
            assert!(rounded.eq(out.f16.iter().copied()), "{}", param.name);
        }
    }
    let rounded = out.master.iter().map(|&p| bf16::from_f32(p));
    assert!(rounded.eq(out.bf16.iter().copied()), "{}", param.name);
    out
}

fn close(name: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{name}");
    for (j, (p, want)) in got.iter().zip(want).enumerate() {
        let bound = tolerance + tolerance * want.abs();
        assert!((f64::from(*p) - want).abs() <= bound, "{name} element {j}: {p} {want}");
    }
}

/// Five updates agree with PyTorch's, which computed in float64; and the 16-bit copies are the
/// master's rounding.
#[test]
fn updates_are_pytorchs() {
    let golden = golden();
    let data = (&golden.start[..], &golden.gradients[..]);
    for (name, spec) in specs() {
        let vector = param(name, vec![golden.start.len()]);
        let got = five_updates((1, Isa::detect()), spec, &vector, golden.learning_rate, data);
        close(name, &got.master, &golden.after[name], 3e-7);
    }
}

/// Betas that a schedule moves are those of the update, bias correction included.
#[test]
fn betas_of_the_schedule_come_first() {
    let golden = golden();
    let (mut master, len) = (golden.start.clone(), golden.start.len());
    let (mut first, mut second) = (vec![0.0; len], vec![0.0; len]);
    let adamw = Adam { weight_decay: 0.1, ..Adam::default() };
    for (t, gradient) in (1..).zip(&golden.gradients) {
        let betas = Some([0.8 + 0.05 * (t as f64 - 3.0).abs(), 0.99]);
        let learning_rate = golden.learning_rate;
        let update = Update { t, learning_rate, gradient_factor: 1.0, betas };
        let (master, first, second) = (&mut master[..], &mut first[..], &mut second[..]);
        adamw.update(
            Isa::detect(),
            update,
            Elements { gradient, master, first, second, working: None },
        );
    }
    close("adamw_cycled", &master, &golden.after["adamw_cycled"], 3e-7);
}

/// Muon on wide, tall and square matrices: PyTorch's own, and DeepSpeed's order of operations.
#[test]
fn muon_is_pytorchs() {
    let golden = golden();
    for m in &golden.matrices {
        let matrix = param("h.0.mlp.c_fc.weight", m.shape.clone());
        let rate = golden.learning_rate;
        for (method, want) in [(NewtonSchulz::Standard, &m.standard), (NewtonSchulz::Gram, &m.gram)]
        {
            let data = (&m.start[..], &m.gradients[..]);
            let got = five_updates((2, Isa::detect()), muon(method), &matrix, rate, data);
            close(&format!("{method:?} {:?}", m.shape), &got.master, want, 2e-6);
        }
    }
}

/// Muon's group is matrices inside blocks; everything else gets AdamW, at its own rate.
#[test]
fn muon_leaves_the_rest_to_adam() {
    let golden = golden();
    let data = (&golden.start[..], &golden.gradients[..]);
    let at = |spec: OptimizerSpec, name: &str, rate: f64| {
        let matrix = param(name, vec![golden.start.len(), 1]);
        five_updates((1, Isa::detect()), spec, &matrix, rate, data).master
    };
    let OptimizerSpec::Muon(spec) = muon(NewtonSchulz::Gram) else { unreachable!() };
    let half = OptimizerSpec::Muon(Muon { adam_rate: 0.5, ..spec });
    for name in ["transformer.wte.weight", "transformer.wpe.weight", "lm_head.weight"] {
        let got = at(half, name, 2.0 * golden.learning_rate);
        close(name, &got, &golden.after["adamw"], 3e-7);
    }
    let norm = param("model.layers.0.input_layernorm.weight", vec![8]);
    let matrix = param("model.layers.0.mlp.up_proj.weight", vec![8, 4]);
    assert_eq!(half.state_names(&norm), ["exp_avg", "exp_avg_sq"]);
    assert_eq!(half.state_names(&matrix), ["momentum_buffer"]);
    assert!(half.needs_whole(&matrix) && !half.needs_whole(&norm));
}

/// Threads and ISA do not show in any bit; nor, for elementwise optimizers, where the elements lie.
#[test]
fn updates_do_not_depend_on_threads_or_isa() {
    let golden = golden();
    let copies = 5000;
    let long: Vec<f32> = golden.start.repeat(copies);
    let gradients: Vec<Vec<f32>> = golden.gradients.iter().map(|g| g.repeat(copies)).collect();
    let rate = golden.learning_rate;
    let matrix = param("h.0.attn.weight", vec![60, 70]);
    let mut cases: Vec<_> =
        specs().into_iter().map(|(name, spec)| (spec, param(name, vec![long.len()]))).collect();
    cases.extend([NewtonSchulz::Gram, NewtonSchulz::Standard].map(|m| (muon(m), matrix.clone())));
    for (spec, param) in cases {
        let n = param.elements();
        let gradients: Vec<Vec<f32>> = gradients.iter().map(|g| g[..n].to_vec()).collect();
        let data = (&long[..n], &gradients[..]);
        let want = five_updates((1, Isa::Scalar), spec, &param, rate, data);
        for isa in Isa::available() {
            let got = five_updates((3, isa), spec, &param, rate, data);
            assert_eq!(got.bits(), want.bits(), "{} {isa}", param.name);
        }
        if !spec.needs_whole(&param) {
            let data = (&golden.start[..], &golden.gradients[..]);
            let once = five_updates((1, Isa::Scalar), spec, &param, rate, data);
            assert_eq!(want.master, once.master.repeat(copies), "{}", param.name);
        }
    }
}

/// A gradient of zeros moves a matrix by its decay alone, and LAMB's ratio is 1 where a norm is zero.
#[test]
fn zeros_are_no_trouble() {
    let matrix = param("h.0.weight", vec![3, 5]);
    let zeros = [vec![0.0f32; 15]];
    let ones = vec![1.0f32; 15];
    let rate = 0.5;
    let got =
        five_updates((1, Isa::detect()), muon(NewtonSchulz::Gram), &matrix, rate, (&ones, &zeros));
    assert!(got.master.iter().all(|&p| p == 0.95), "{:?}", got.master);
    let lamb = OptimizerSpec::Lamb(Lamb::default());
    let still = five_updates((1, Isa::detect()), lamb, &matrix, rate, (&ones, &zeros));
    assert_eq!(still.master, ones);
    let gradient = [vec![1.0f32; 15]];
    let moved = five_updates((1, Isa::detect()), lamb, &matrix, rate, (&zeros[0], &gradient));
    assert!(moved.master.iter().all(|&p| (p + 0.5).abs() < 1e-6), "{:?}", moved.master);
}

/// A part of a parameter that is needed as a whole is a programmer's error, not a wrong update.
#[test]
#[should_panic(expected = "as a whole")]
fn a_part_is_not_taken_for_the_whole() {
    let matrix = param("h.0.weight", vec![4, 5]);
    let part = vec![0.0f32; 10];
    let spec = OptimizerSpec::Lamb(Lamb::default());
    five_updates((1, Isa::detect()), spec, &matrix, 0.1, (&part, std::slice::from_ref(&part)));
}
