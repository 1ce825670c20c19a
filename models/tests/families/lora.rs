//! Adapters: gradients by finite differences, nothing from frozen weights, merging, PEFT's names.

use crate::support::{Case, Mode, Weights, run};
use planaria_models::block::Precision;
use planaria_models::families::ModelSpec;
use planaria_models::generate::Decoder;
use planaria_models::gradcheck::GradCheck;
use planaria_models::kernels::Isa;
use planaria_models::lora::{self, LoraSpec, is_adapter};

/// A golden model with every layer adapted, and B away from zero so that every path shows.
fn adapted(name: &str) -> (Case, Case) {
    let base = Case::open(name);
    let mut case = Case::open(name);
    let targets = LoraSpec::layers(case.spec.family).iter().map(|&t| t.to_owned()).collect();
    case.spec.lora = Some(LoraSpec { rank: 3, alpha: 6.0, targets });
    case.spec.check().unwrap();
    case.model = case.spec.build();
    let mut values = lora::adopt(&case.spec, case.weights.f32, 7);
    for (param, value) in case.model.params.iter().zip(&mut values) {
        if param.name.contains("lora_B") {
            value.iter_mut().enumerate().for_each(|(i, v)| *v = ((i * 7 % 11) as f32 - 5.0) * 0.02);
        }
    }
    case.weights = Weights::new(values);
    (base, case)
}

const NAMES: [&str; 3] = ["gpt2", "llama", "qwen3"];

/// A fresh adapter changes nothing: the same bits as the model without it.
#[test]
fn a_fresh_adapter_changes_nothing() {
    for name in NAMES {
        let (base, mut case) = adapted(name);
        let want = run(&base.model, &base.weights, &base.leaves[..1], Mode::plain());
        case.weights = Weights::new(lora::adopt(&case.spec, base.weights.f32, 7));
        let got = run(&case.model, &case.weights, &case.leaves[..1], Mode::plain());
        assert_eq!((got.scores, got.stats), (want.scores, want.stats), "{name}");
    }
}

/// The derivative of every adapter and of the input.
#[test]
fn adapters_have_the_right_gradients() {
    for name in NAMES {
        let (_, case) = adapted(name);
        for block in &case.model.blocks[1..] {
            let check = GradCheck {
                block: block.as_ref(),
                specs: &case.model.params,
                values: &case.weights.f32,
                batch: crate::gradients::batch(),
                width: case.model.width,
                reads_stream: true,
                tolerance: if case.spec.qk_norm { 2e-2 } else { 1e-2 },
            };
            let found = check.run();
            assert!(found.is_empty(), "{name} {}: {found:?}", block.name());
        }
    }
}

/// Only adapters emit (the sink checks it: each trained parameter once, no other), in fp32 and bf16,
/// and bits do not depend on threads or ISA.
#[test]
fn only_adapters_emit_and_bits_are_fixed() {
    for name in NAMES {
        let (_, case) = adapted(name);
        assert!(case.model.params.iter().all(|p| p.frozen != is_adapter(&p.name)));
        let want = run(&case.model, &case.weights, &case.leaves, Mode::plain());
        for isa in Isa::available() {
            let mode = Mode { isa, threads: 1, recompute: true, ..Mode::plain() };
            let got = run(&case.model, &case.weights, &case.leaves, mode);
            assert!(got.grads == want.grads, "{name} {isa}");
        }
        let mode = Mode { precision: Precision::Bf16, ..Mode::plain() };
        let got = run(&case.model, &case.weights, &case.leaves, mode);
        assert!((got.stats[0].loss_sum / want.stats[0].loss_sum - 1.0).abs() < 0.01, "{name}");
    }
}

/// The merged model scores as the adapted one does, in training and in decoding.
#[test]
fn merged_and_adapted_are_the_same_model() {
    for name in NAMES {
        let (base, case) = adapted(name);
        let want = run(&case.model, &case.weights, &case.leaves[..1], Mode::plain());
        let plain = run(&base.model, &base.weights, &base.leaves[..1], Mode::plain());
        assert_ne!(plain.scores, want.scores);
        let (spec, values) = lora::merge(&case.spec, case.weights.f32.clone());
        assert_eq!(spec, ModelSpec { lora: None, ..base.spec.clone() });
        let got = run(&spec.build(), &Weights::new(values), &case.leaves[..1], Mode::plain());
        let mut decoder = Decoder::new(case.model, case.weights.f32, 2, Isa::detect());
        let last = case.leaves[0].shape.length - 1;
        let vocab = case.spec.vocab;
        let decoded = decoder.extend(&case.leaves[0].tokens[..=last]).to_vec();
        let want_last = &want.scores[last * vocab..][..vocab];
        let pairs = got.scores.iter().zip(&want.scores).chain(decoded.iter().zip(want_last));
        for (got, want) in pairs {
            assert!((got - want).abs() < 2e-5, "{name}: {got} {want}");
        }
    }
}

/// What cannot be adapted is refused by name.
#[test]
fn targets_are_checked() {
    let (_, case) = adapted("llama");
    let with = |change: &dyn Fn(&mut LoraSpec)| {
        let mut spec = case.spec.clone();
        change(spec.lora.as_mut().unwrap());
        spec.check().unwrap_err()
    };
    assert!(with(&|l| l.targets = vec!["c_attn".into()]).contains("c_attn"));
    assert!(with(&|l| l.targets.clear()).contains("no targets"));
    assert!(with(&|l| l.rank = 0).contains("rank"));
    assert!(with(&|l| l.alpha = f64::NAN).contains("alpha"));
    let names: Vec<String> = lora::peft_tensors(&case.model).into_iter().map(|(n, _)| n).collect();
    let want = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
    assert_eq!((names.len(), names[0].as_str()), (2 * 7 * 2, want));
}
