//! Hugging Face folders: forms of config.json, names, dtypes, and one clear error each.

use crate::further::FURTHER;
use crate::support::{Case, Mode, Tensors, Weights, golden, run};
use half::{bf16, f16};
use planaria_base::DType;
use planaria_models::families::ModelSpec;
use planaria_models::hf::{
    self, HfConfig, Import, ImportError, Note, SpecialIds, encode, export, import,
};
use planaria_models::kernels::rope::RopeScaling;
use serde_json::{Value, json};

fn config(name: &str) -> Value {
    let text = std::fs::read_to_string(golden(name).join("config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn tensors(name: &str) -> Tensors {
    Tensors::open(&golden(name).join("model.safetensors"))
}

fn parse(config: &Value) -> Result<HfConfig, ImportError> {
    HfConfig::parse(config.to_string().as_bytes())
}

fn error(config: &Value, tensors: &Tensors) -> String {
    match import(config.to_string().as_bytes(), tensors) {
        Ok(_) => panic!("this must be refused"),
        Err(error) => error.to_string(),
    }
}

fn load(config: &Value, tensors: &Tensors) -> Import {
    import(config.to_string().as_bytes(), tensors).unwrap()
}

/// The old form (rope_theta, torch_dtype, no head_dim) is the same model as the new one.
#[test]
fn old_and_new_forms_are_the_same_model() {
    let new = config("llama_tied");
    let mut old = new.clone();
    for key in ["rope_parameters", "dtype", "head_dim", "num_key_value_heads"] {
        old.as_object_mut().unwrap().remove(key);
    }
    old["rope_theta"] = json!(500_000.0);
    old["rope_scaling"] = Value::Null;
    old["torch_dtype"] = json!("float32");
    assert_eq!(parse(&old).unwrap(), parse(&new).unwrap());
    old["rope_theta"] = json!(10_000.0);
    assert_ne!(parse(&old).unwrap(), parse(&new).unwrap());
}

/// Rotary scaling: llama3 and linear in both forms, null, unknown types, unknown keys, missing keys.
#[test]
fn rotary_scaling_is_obeyed_or_refused_by_name() {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    let want = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192.0,
    };
    let mut old = config("llama");
    old.as_object_mut().unwrap().remove("rope_parameters");
    let with = |scaling: &Value| {
        let mut config = old.clone();
        config["rope_scaling"] = scaling.clone();
        parse(&config)
    };
    assert_eq!(with(&llama3).unwrap().spec.rope_scaling, want);
    assert_eq!(with(&Value::Null).unwrap().spec.rope_scaling, RopeScaling::Default);
    let linear = json!({"type": "linear", "factor": 2.0});
    assert_eq!(with(&linear).unwrap().spec.rope_scaling, RopeScaling::Linear { factor: 2.0 });
    let mut new = config("llama");
    new["rope_parameters"] = llama3.clone();
    new["rope_parameters"]["rope_theta"] = json!(5e5);
    let spec = parse(&new).unwrap().spec;
    assert_eq!((spec.rope_scaling, spec.rope_theta), (want, 5e5));
    new["rope_scaling"] = linear;
    assert!(matches!(parse(&new), Err(ImportError::RopeDisagrees)));
    let unknown = with(&json!({"rope_type": "yarn", "factor": 4.0})).unwrap_err().to_string();
    assert!(unknown.contains("\"yarn\""), "{unknown}");
    let mut short = llama3.clone();
    short.as_object_mut().unwrap().remove("low_freq_factor");
    let missing = with(&short).unwrap_err().to_string();
    assert!(missing.contains("low_freq_factor"), "{missing}");
    let mut odd = llama3;
    odd["beta_fast"] = json!(32);
    let key = with(&odd).unwrap_err().to_string();
    assert!(key.contains("beta_fast"), "{key}");
}

/// What is not built is refused by its name and value; sizes that no file can mean, too.
#[test]
fn what_is_not_built_is_refused() {
    let refusals = [
        ("gpt2", "activation_function", json!("relu"), "relu"),
        ("gpt2", "add_cross_attention", json!(true), "add_cross_attention"),
        ("gpt2", "scale_attn_weights", json!(false), "scale_attn_weights"),
        ("gpt2", "n_embd", json!(33), "33"),
        ("gpt2", "n_layer", json!(0), "n_layer"),
        ("gpt2", "n_layer", json!(1_000_000), "n_layer"),
        ("gpt2", "vocab_size", json!("96"), "vocab_size"),
        ("gpt2", "vocab_size", Value::Null, "vocab_size"),
        ("gpt2", "model_type", json!("mamba"), "mamba"),
        ("gpt2", "dtype", json!("float8_e4m3fn"), "float8_e4m3fn"),
        ("llama", "hidden_act", json!("gelu"), "gelu"),
        ("llama", "num_key_value_heads", json!(3), "3"),
        ("llama", "head_dim", json!(7), "7"),
        ("llama", "rms_norm_eps", json!(-1.0), "rms_norm_eps"),
    ];
    for (name, key, value, says) in refusals {
        let mut config = config(name);
        config[key] = value;
        let text = parse(&config).unwrap_err().to_string();
        assert!(text.contains(says), "{key}: {text}");
    }
    assert!(matches!(HfConfig::parse(b"[]"), Err(ImportError::NotAnObject)));
    assert!(matches!(HfConfig::parse(b"{"), Err(ImportError::Json(_))));
}

/// Dropout is not built: it is noted, for a training config to refuse.
#[test]
fn dropout_is_noted() {
    let mut config = config("gpt2");
    assert_eq!(parse(&config).unwrap().dropout, 0.0);
    config["resid_pdrop"] = json!(0.1);
    let parsed = parse(&config).unwrap();
    assert_eq!(parsed.dropout, 0.1);
    assert_eq!(parsed.notes, [Note::Dropout { probability: 0.1 }]);
}

/// Names with and without their prefix, norms with gamma and beta, buffers of older versions.
#[test]
fn names_come_in_several_forms() {
    let config = config("gpt2");
    let plain = tensors("gpt2");
    let want = Weights::read(&load(&config, &plain), &plain).f32;
    let mut renamed = Tensors::default();
    for (name, tensor) in &plain.0 {
        let mut name = name.trim_start_matches("transformer.").to_owned();
        if name.contains("ln_") {
            name = name.replace(".weight", ".gamma").replace(".bias", ".beta");
        }
        renamed.0.insert(name, tensor.clone());
    }
    let buffer = (DType::U8, vec![1, 1, 24, 24], vec![0; 576]);
    renamed.0.insert("h.0.attn.bias".to_owned(), buffer);
    renamed.0.insert("h.0.attn.masked_bias".to_owned(), (DType::F32, vec![], vec![0; 4]));
    let import = load(&config, &renamed);
    assert_eq!(Weights::read(&import, &renamed).f32, want);
    let ignored = vec!["h.0.attn.bias".to_owned(), "h.0.attn.masked_bias".to_owned()];
    assert_eq!(import.notes, [Note::Ignored { names: ignored }]);
    let mut twice = plain.clone();
    twice.0.insert("wte.weight".to_owned(), plain.0["transformer.wte.weight"].clone());
    assert!(error(&config, &twice).contains("wte.weight"));
}

/// A checkpoint of ours holds optimizer states beside the weights: they are passed over, nothing else is.
#[test]
fn states_beside_the_weights_are_passed_over() {
    let mut tensors = tensors("llama");
    let name = "model.layers.1.mlp.up_proj.weight";
    let state = tensors.0[name].clone();
    tensors.0.insert(format!("{name}.exp_avg"), state.clone());
    let import = load(&config("llama"), &tensors);
    assert!(import.notes.is_empty());
    let weights = hf::load(&import.spec, &import.model, &tensors).unwrap();
    assert_eq!((weights.values, weights.notes.len()), (import.values(&tensors), 0));
    tensors.0.insert("model.layers.2.mlp.up_proj.weight".to_owned(), state);
    assert!(hf::load(&import.spec, &import.model, &tensors).is_err());
}

/// A tied head may be absent, equal, different (noted), or all there is; an untied one must be there.
#[test]
fn heads_are_tied_as_the_config_says() {
    let tied = config("llama_tied");
    let mut tensors = tensors("llama_tied");
    let embedding = tensors.0["model.embed_tokens.weight"].clone();
    assert!(load(&tied, &tensors).notes.is_empty());
    let mut untied = tied.clone();
    untied["tie_word_embeddings"] = json!(false);
    assert!(error(&untied, &tensors).contains("lm_head.weight"));
    tensors.0.insert("lm_head.weight".to_owned(), embedding.clone());
    assert!(load(&tied, &tensors).notes.is_empty());
    assert_eq!(
        load(&untied, &tensors).model.params.len(),
        load(&tied, &tensors).model.params.len() + 1
    );
    let mut other = embedding.clone();
    other.2[2] ^= 1;
    tensors.0.insert("lm_head.weight".to_owned(), other);
    let import = load(&tied, &tensors);
    assert_eq!(import.notes, [Note::HeadDiffers { elements: 1 }]);
    assert_eq!(import.name(&import.model.params[0]), "model.embed_tokens.weight");
    tensors.0.remove("model.embed_tokens.weight");
    tensors.0.insert("lm_head.weight".to_owned(), embedding);
    let import = load(&tied, &tensors);
    assert_eq!(import.name(&import.model.params[0]), "lm_head.weight");
}

/// Missing, extra, wrong shape, wrong dtype: one clear error each.
#[test]
fn wrong_tensors_are_named() {
    let config = config("llama");
    let good = tensors("llama");
    let name = "model.layers.1.mlp.up_proj.weight";
    let with = |change: &dyn Fn(&mut Tensors)| {
        let mut tensors = good.clone();
        change(&mut tensors);
        error(&config, &tensors)
    };
    let text = with(&|t| drop(t.0.remove(name)));
    assert!(text.contains(name) && text.contains("missing"), "{text}");
    let text = with(&|t| drop(t.0.insert("score.weight".to_owned(), t.0[name].clone())));
    assert!(text.contains("score.weight"), "{text}");
    let text = with(&|t| t.0.get_mut(name).unwrap().1.reverse());
    assert!(
        text.contains(name) && text.contains("[32, 88]") && text.contains("[88, 32]"),
        "{text}"
    );
    let text = with(&|t| t.0.get_mut(name).unwrap().0 = DType::I32);
    assert!(text.contains(name) && text.contains("i32"), "{text}");
    let text = with(&|t| t.0.get_mut(name).unwrap().2.truncate(8));
    assert!(text.contains(name) && text.contains("bytes"), "{text}");
}

fn exported(import: &Import, weights: &Weights, dtype: DType) -> (Value, Tensors, usize) {
    let ids = SpecialIds { bos: Some(1), eos: Some(2) };
    let export = export(&import.spec, &import.model, dtype, ids);
    let mut unfit = 0;
    let mut tensors = Tensors::default();
    for tensor in export.tensors {
        let values = &weights.f32[tensor.param.index()];
        let mut bytes = vec![0; values.len() * dtype.bytes()];
        unfit += encode(values, dtype, &mut bytes);
        tensors.0.insert(tensor.name, (tensor.dtype, tensor.shape, bytes));
    }
    (serde_json::from_str(&export.config).unwrap(), tensors, unfit)
}

/// Out and in again: the same spec and names; values exactly in fp32, rounded in bf16 and fp16.
#[test]
fn export_and_import_are_inverse() {
    for name in ["gpt2", "llama", "llama_tied", "stories260k"].into_iter().chain(FURTHER) {
        let (config, source) = (config(name), tensors(name));
        let first = load(&config, &source);
        let weights = Weights::read(&first, &source);
        for dtype in [DType::F32, DType::Bf16, DType::F16] {
            let (config, tensors, unfit) = exported(&first, &weights, dtype);
            assert_eq!(unfit, 0);
            let keys = ["architectures", "model_type", "dtype", "vocab_size"];
            assert!(keys.iter().all(|key| !config[*key].is_null()), "{config}");
            if dtype == DType::F32 {
                let names: Vec<&String> = source.0.keys().collect();
                assert_eq!(tensors.0.keys().collect::<Vec<_>>(), names, "{name}");
            }
            let again = load(&config, &tensors);
            assert_eq!((&again.spec, again.dtype), (&first.spec, dtype), "{name}");
            assert!(again.notes.is_empty(), "{name}: {:?}", again.notes);
            let round = |x: f32| match dtype {
                DType::Bf16 => bf16::from_f32(x).to_f32(),
                DType::F16 => f16::from_f32(x).to_f32(),
                _ => x,
            };
            let got = Weights::read(&again, &tensors).f32;
            let want: Vec<Vec<f32>> =
                weights.f32.iter().map(|v| v.iter().map(|&x| round(x)).collect()).collect();
            assert_eq!(got, want, "{name} {dtype}");
        }
    }
}

/// Values that fp16 cannot hold are counted.
#[test]
fn values_that_do_not_fit_are_counted() {
    let values = [1e5, -7e4, 1.0, f32::INFINITY, f32::NAN];
    assert_eq!(encode(&values, DType::F16, &mut [0; 10]), 2);
    assert_eq!(encode(&values, DType::Bf16, &mut [0; 10]), 0);
    assert_eq!(encode(&[f32::MAX], DType::Bf16, &mut [0; 2]), 1);
}

/// Llama-3 scaling and a head width of its own change the model's numbers; a spec survives JSON.
#[test]
fn scaling_and_head_width_reach_the_numbers() {
    let mut case = Case::open("llama");
    let plain = run(&case.model, &case.weights, &case.leaves[..1], Mode::plain());
    case.spec.rope_scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 16.0,
    };
    let scaled = run(&case.spec.build(), &case.weights, &case.leaves[..1], Mode::plain());
    assert_ne!(plain.stats, scaled.stats);
    // transformers 5.24 in float64 with this config: the last position's first scores.
    let want = [
        -0.223_046,
        0.030_124_2,
        0.547_561_5,
        0.087_649_2,
        0.053_162_4,
        -0.136_257_3,
        -0.214_517_7,
        0.214_245_6,
    ];
    let last = &scaled.scores[scaled.scores.len() - 96..];
    for (got, want) in last.iter().zip(want) {
        assert!((got - want).abs() < 1e-6, "{got} {want}");
    }
    let text = serde_json::to_string(&case.spec).unwrap();
    assert_eq!(serde_json::from_str::<ModelSpec>(&text).unwrap(), case.spec);
    let mut config = config("llama");
    config["head_dim"] = json!(16);
    let spec = parse(&config).unwrap().spec;
    let q = spec.build().params.iter().find(|p| p.name.ends_with("q_proj.weight")).cloned();
    assert_eq!(q.unwrap().shape, [64, 32]);
}
