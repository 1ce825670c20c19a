//! Mistral, Qwen2, Qwen3, SmolLM3, and a LLaMA with every bias and scaled rope, as PyTorch computes
//! them (see `golden/make_families.py`): logits, losses, all gradients; decoding; and the way back out.

use crate::support::{Case, Mode, Tensors, golden, run};
use planaria_base::DType;
use planaria_models::families::ModelSpec;
use planaria_models::generate::Decoder;
use planaria_models::gguf::{self, Gguf};
use planaria_models::hf::{HfConfig, read_config, write_config};
use planaria_models::kernels::Isa;
use serde_json::{Value, json};

pub(crate) const FURTHER: [&str; 5] = ["mistral", "qwen2", "qwen3", "smollm3", "llama_scaled"];

fn close(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= 2e-5 + 2e-5 * w.abs(), "{what}[{i}]: {g} {w}");
    }
}

/// Logits, losses and every gradient; with and without recomputation.
#[test]
fn further_families_match_pytorch() {
    for name in FURTHER {
        let (case, want) =
            (Case::open(name), Tensors::open(&golden(name).join("golden.safetensors")));
        for recompute in [false, true] {
            let mode = Mode { recompute, ..Mode::plain() };
            let got = run(&case.model, &case.weights, &case.leaves, mode);
            close(&format!("{name} logits"), &got.scores, &want.f32("logits"));
            let losses: Vec<f32> = got.stats.iter().map(|s| s.loss_sum as f32).collect();
            close(&format!("{name} losses"), &losses, &want.f32("losses"));
            for (param, grad) in case.model.params.iter().zip(&got.grads) {
                close(
                    &format!("{name} {}", param.name),
                    grad,
                    &want.f32(&format!("grad.{}", param.name)),
                );
            }
        }
    }
}

/// Decoding token by token scores as training does: the cache knows windows, norms and layers
/// without rope.
#[test]
fn decoding_scores_as_training_does() {
    for name in FURTHER {
        let case = Case::open(name);
        let whole = run(&case.model, &case.weights, &case.leaves[..1], Mode::plain());
        let tokens = &case.leaves[0].tokens[..case.leaves[0].shape.length];
        let mut decoder = Decoder::new(case.model, case.weights.f32, 2, Isa::detect());
        for (token, want) in tokens.iter().zip(whole.scores.chunks(40)) {
            close(name, decoder.extend(&[*token]), want);
        }
    }
}

/// A spec written as config.json is the same spec when read, and names the family it came from.
#[test]
fn configs_are_written_as_they_are_read() {
    for name in FURTHER {
        let text = std::fs::read(golden(name).join("config.json")).unwrap();
        let spec = read_config(&text).unwrap();
        let written = write_config(&spec, DType::F32);
        let original: Value = serde_json::from_slice(&text).unwrap();
        let keys =
            ["model_type", "architectures", "sliding_window", "no_rope_layers", "pad_token_id"];
        for key in keys {
            assert_eq!(written.get(key), original.get(key), "{name} {key}");
        }
        assert_eq!(read_config(written.to_string().as_bytes()).unwrap(), spec, "{name}");
        let spec = ModelSpec { window: Some(5), ..spec };
        if spec.model_type().is_ok() {
            let written = write_config(&spec, DType::F32).to_string();
            assert_eq!(read_config(written.as_bytes()).unwrap(), spec, "{name} with a window");
        }
    }
}

/// Windows, layers without rope and defaults of the classes: obeyed, or refused by name.
#[test]
fn what_differs_is_obeyed_or_refused() {
    let parse = |name: &str, changes: &[(&str, Value)]| {
        let text = std::fs::read(golden(name).join("config.json")).unwrap();
        let mut config: Value = serde_json::from_slice(&text).unwrap();
        for (key, value) in changes {
            match value {
                Value::String(s) if s == "absent" => {
                    drop(config.as_object_mut().unwrap().remove(*key))
                }
                value => config[*key] = value.clone(),
            }
        }
        HfConfig::parse(config.to_string().as_bytes()).map(|c| c.spec).map_err(|e| e.to_string())
    };
    let absent = || json!("absent");
    assert_eq!(parse("mistral", &[("sliding_window", Value::Null)]).unwrap().window, None);
    assert_eq!(parse("mistral", &[("sliding_window", absent())]).unwrap().window, Some(4096));
    let on = [("use_sliding_window", json!(true)), ("sliding_window", json!(5))];
    let mixed = json!(["full_attention", "sliding_attention"]);
    let slides = |more: Value| parse("qwen2", &[&on[..], &[("layer_types", more)]].concat());
    assert_eq!(slides(json!(["sliding_attention", "sliding_attention"])).unwrap().window, Some(5));
    assert!(slides(mixed).unwrap_err().contains("1 of 2 layers"));
    assert_eq!(slides(absent()).unwrap().window, None, "the first 28 layers do not slide");
    assert_eq!(parse("qwen3", &[("head_dim", absent())]).unwrap().head_dim, 128);
    assert!(parse("qwen2", &[("num_key_value_heads", absent())]).unwrap_err().contains("num_key"));
    let default =
        parse("smollm3", &[("no_rope_layers", absent()), ("num_hidden_layers", json!(9))]);
    assert_eq!(default.unwrap().no_rope, [3, 7]);
    let short = parse("smollm3", &[("no_rope_layers", json!([1]))]);
    assert!(short.unwrap_err().contains("no_rope_layers"));
    let none = ModelSpec { qk_norm: true, bias_qkv_only: true, ..parse("qwen2", &[]).unwrap() };
    assert!(none.check().unwrap_err().contains("qwen3"));
}

/// A Mistral as llama.cpp's converter writes it (see `golden/make_gguf.py`) is the same model.
#[test]
fn the_same_model_comes_out_of_gguf() {
    let bytes = std::fs::read(golden("gguf").join("mistral.gguf")).unwrap();
    let file = Gguf::parse(&bytes).unwrap();
    let import = gguf::import(&file).unwrap();
    let case = Case::open("mistral");
    assert_eq!(import.spec, case.spec);
    assert!(import.notes.is_empty(), "{:?}", import.notes);
    for (param, value) in import.model.params.iter().zip(import.values()) {
        assert_eq!(value, case.weights.f32[param.id.index()], "{}", param.name);
    }
}
