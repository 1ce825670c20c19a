//! config.json, in the old form and in the new one.

use super::fields::Fields;
use super::{ImportError, Note};
use crate::families::{Family, ModelSpec};
use crate::kernels::activation::Gelu;
use crate::kernels::rope::RopeScaling;
use planaria_base::DType;
use serde_json::Value;

/// What a config.json says.
#[derive(Clone, PartialEq, Debug)]
pub struct HfConfig {
    /// The model.
    pub spec: ModelSpec,
    /// How it says its tensors are stored.
    pub dtype: Option<DType>,
    /// The largest dropout probability that it names. Dropout is not built: nothing is dropped in
    /// evaluation, and a training config must refuse a model that asks for it.
    pub dropout: f64,
    /// What a person should know.
    pub notes: Vec<Note>,
}

impl HfConfig {
    /// Reads a config.json.
    ///
    /// # Errors
    /// If it is not an object, names another family, lacks a key, or asks for what is not built.
    pub fn parse(text: &[u8]) -> Result<HfConfig, ImportError> {
        let value: Value = serde_json::from_slice(text)?;
        let object = value.as_object().ok_or(ImportError::NotAnObject)?;
        let fields = Fields::new(object);
        let mut notes = Vec::new();
        let (spec, dropouts) = match fields.text("model_type")? {
            Some("gpt2") => (gpt2(fields)?, &["resid_pdrop", "embd_pdrop", "attn_pdrop"][..]),
            Some(kind) if FAMILIES.contains(&kind) => {
                (llama(fields, kind)?, &["attention_dropout"][..])
            }
            Some(other) => return Err(ImportError::UnknownFamily { found: other.to_owned() }),
            None => return Err(ImportError::MissingKey { key: "model_type".to_owned() }),
        };
        spec.check().map_err(ImportError::Spec)?;
        let mut dropout = 0.0f64;
        for key in dropouts {
            dropout = dropout.max(fields.number_or(key, 0.0)?);
        }
        if dropout > 0.0 {
            notes.push(Note::Dropout { probability: dropout });
        }
        Ok(HfConfig { spec, dtype: dtype(fields)?, dropout, notes })
    }
}

/// Every `model_type` that is read.
pub(super) const FAMILIES: [&str; 6] = ["gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3"];

fn gpt2(f: Fields<'_>) -> Result<ModelSpec, ImportError> {
    f.only("add_cross_attention", false)?;
    f.only("reorder_and_upcast_attn", false)?;
    f.only("scale_attn_weights", true)?;
    f.only("scale_attn_by_inverse_layer_idx", false)?;
    let gelu = match f.text("activation_function")?.unwrap_or("gelu_new") {
        "gelu_new" | "gelu_pytorch_tanh" => Gelu::Tanh,
        "gelu" => Gelu::Erf,
        other => return Err(unsupported("activation_function", other)),
    };
    let (width, heads) = (f.size("n_embd")?, f.size("n_head")?);
    // The oldest files say n_ctx.
    let max_length = f.size_or("n_positions", f.size_or("n_ctx", 1024)?)?;
    let spec = ModelSpec::gpt2(f.size("n_layer")?, width, heads, f.size("vocab_size")?, max_length);
    Ok(ModelSpec {
        mlp_width: f.size_or("n_inner", 4 * width)?,
        tied: f.flag_or("tie_word_embeddings", true)?,
        norm_eps: positive_or(f, "layer_norm_epsilon", 1e-5)?,
        gelu,
        init_std: positive_or(f, "initializer_range", 0.02)?,
        ..spec
    })
}

/// LLaMA and its kin: what differs is in the spec.
fn llama(f: Fields<'_>, kind: &str) -> Result<ModelSpec, ImportError> {
    match f.text("hidden_act")?.unwrap_or("silu") {
        "silu" | "swish" => {}
        other => return Err(unsupported("hidden_act", other)),
    }
    let (width, heads) = (f.size("hidden_size")?, f.size("num_attention_heads")?);
    // Only LLaMA's own class takes these from other keys; the others' defaults are one model's.
    let is_llama = kind == "llama";
    let max_length = match f.opt_size("max_position_embeddings")? {
        None if is_llama => 2048,
        _ => f.size("max_position_embeddings")?,
    };
    let kv_heads = match f.opt_size("num_key_value_heads")? {
        None if is_llama || f.names("num_key_value_heads") => heads,
        _ => f.size("num_key_value_heads")?,
    };
    let layers = f.size("num_hidden_layers")?;
    let rope = rope(f, if kind == "smollm3" { 2e6 } else { 10_000.0 })?;
    let mlp_bias = matches!(kind, "llama" | "smollm3") && f.flag_or("mlp_bias", false)?;
    let attention_bias = match kind {
        "mistral" => false,
        "qwen2" => true,
        _ => f.flag_or("attention_bias", false)?,
    };
    let spec = ModelSpec::gpt2(layers, width, heads, f.size("vocab_size")?, max_length);
    Ok(ModelSpec {
        family: Family::Llama,
        kv_heads,
        head_dim: match f.opt_size("head_dim")? {
            Some(size) => size,
            None if kind == "qwen3" => 128,
            None => (width / heads).max(1),
        },
        mlp_width: f.size("intermediate_size")?,
        tied: f.flag_or("tie_word_embeddings", kind == "smollm3")?,
        norm_eps: positive_or(f, "rms_norm_eps", 1e-6)?,
        rope_theta: rope.theta,
        rope_scaling: rope.scaling,
        attention_bias,
        bias_qkv_only: kind == "qwen2",
        mlp_bias,
        qk_norm: kind == "qwen3",
        window: window(f, kind, layers)?,
        no_rope: if kind == "smollm3" { no_rope(f, layers)? } else { Vec::new() },
        init_std: positive_or(f, "initializer_range", 0.02)?,
        ..spec
    })
}

/// The window of attention, one for all layers.
fn window(f: Fields<'_>, kind: &str, layers: usize) -> Result<Option<usize>, ImportError> {
    let size = f.opt_size("sliding_window")?;
    match kind {
        "llama" => return Ok(None),
        // Mistral's class slides where the file does not say.
        "mistral" => return Ok(if f.names("sliding_window") { size } else { Some(4096) }),
        _ if !f.flag_or("use_sliding_window", false)? => return Ok(None),
        _ => {}
    }
    let sliding = match f.list("layer_types")? {
        Some(types) => types.iter().filter(|t| t.as_str() == Some("sliding_attention")).count(),
        None if kind == "smollm3" => layers,
        None => layers.saturating_sub(f.number_or("max_window_layers", 28.0)? as usize),
    };
    match sliding {
        0 => Ok(None),
        n if n == layers => Ok(size),
        n => Err(unsupported("sliding_window", &format!("on {n} of {layers} layers"))),
    }
}

/// The layers without rotary positions: SmolLM3 writes 0 for them.
fn no_rope(f: Fields<'_>, layers: usize) -> Result<Vec<usize>, ImportError> {
    let Some(list) = f.list("no_rope_layers")? else {
        let interval = f.size_or("no_rope_layer_interval", 4)?;
        return Ok((0..layers).filter(|i| (i + 1).is_multiple_of(interval)).collect());
    };
    let known = list.iter().all(|v| matches!(v.as_u64(), Some(0 | 1)));
    if list.len() != layers || !known {
        let found = format!("{} entries", list.len());
        let (key, expected) = ("no_rope_layers".to_owned(), "a 0 or 1 for each layer");
        return Err(ImportError::WrongValue { key, expected, found });
    }
    Ok((0..layers).filter(|&i| list[i].as_u64() == Some(0)).collect())
}

/// `rope_parameters` (new), or `rope_theta` with `rope_scaling` (old). Where a file has both, they
/// must say the same.
fn rope(f: Fields<'_>, default: f64) -> Result<Rope, ImportError> {
    let theta = if f.has("rope_theta") { positive(f, "rope_theta")? } else { default };
    let old = match f.object("rope_scaling")? {
        Some(object) => Some(rope_object(object, theta)?),
        None => None,
    };
    let new = match f.object("rope_parameters")? {
        Some(object) => Some(rope_object(object, theta)?),
        None => None,
    };
    match (old, new) {
        (Some(old), Some(new)) if old != new => Err(ImportError::RopeDisagrees),
        (_, Some(rope)) | (Some(rope), None) => Ok(rope),
        (None, None) => Ok(Rope { theta, scaling: RopeScaling::Default }),
    }
}

/// Rotary positions as a config says them.
#[derive(Clone, Copy, PartialEq)]
struct Rope {
    theta: f64,
    scaling: RopeScaling,
}

const ROPE_KEYS: [&str; 8] = [
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
];

fn rope_object(f: Fields<'_>, theta: f64) -> Result<Rope, ImportError> {
    if let Some(key) = f.keys().find(|key| !ROPE_KEYS.contains(key)) {
        return Err(ImportError::UnknownRopeKey { key: key.to_owned() });
    }
    let partial = f.number_or("partial_rotary_factor", 1.0)?;
    if partial != 1.0 {
        return Err(unsupported("partial_rotary_factor", &partial.to_string()));
    }
    let kind = match f.text("rope_type")? {
        Some(kind) => kind,
        None => f.text("type")?.unwrap_or("default"),
    };
    let scaling = match kind {
        "default" => RopeScaling::Default,
        "linear" => RopeScaling::Linear { factor: positive(f, "factor")? },
        "llama3" => {
            let original = "original_max_position_embeddings";
            RopeScaling::Llama3 {
                factor: positive(f, "factor")?,
                low_freq_factor: positive(f, "low_freq_factor")?,
                high_freq_factor: positive(f, "high_freq_factor")?,
                original_max_position_embeddings: positive(f, original)?,
            }
        }
        other => return Err(ImportError::UnknownRope { found: other.to_owned() }),
    };
    let theta = if f.has("rope_theta") { positive(f, "rope_theta")? } else { theta };
    Ok(Rope { theta, scaling })
}

fn positive(f: Fields<'_>, key: &str) -> Result<f64, ImportError> {
    let value = f.number(key)?;
    if value.is_finite() && value > 0.0 {
        return Ok(value);
    }
    let found = value.to_string();
    Err(ImportError::WrongValue { key: key.to_owned(), expected: "a positive number", found })
}

fn positive_or(f: Fields<'_>, key: &str, default: f32) -> Result<f32, ImportError> {
    Ok(if f.has(key) { positive(f, key)? as f32 } else { default })
}

/// The shortest decimal that is this fp32 value: 1e-5, and not 0.00000999999974.
fn decimal(value: f32) -> Value {
    serde_json::from_str(&format!("{value:e}")).unwrap_or(Value::Null)
}

fn unsupported(key: &str, value: &str) -> ImportError {
    ImportError::Unsupported { key: key.to_owned(), value: value.to_owned() }
}

fn dtype(f: Fields<'_>) -> Result<Option<DType>, ImportError> {
    let text = match f.text("dtype")? {
        Some(text) => Some(("dtype", text)),
        None => f.text("torch_dtype")?.map(|text| ("torch_dtype", text)),
    };
    let Some((key, text)) = text else { return Ok(None) };
    match text.trim_start_matches("torch.") {
        "float32" | "float" => Ok(Some(DType::F32)),
        "bfloat16" => Ok(Some(DType::Bf16)),
        "float16" | "half" => Ok(Some(DType::F16)),
        other => Err(unsupported(key, other)),
    }
}

/// The name that config.json has for a dtype of tensors.
pub(super) fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bf16 => "bfloat16",
        DType::F16 => "float16",
        _ => "float32",
    }
}

/// The config.json of a spec: the keys that transformers' classes read, in both forms where its
/// versions 4 and 5 differ.
pub(super) fn write(spec: &ModelSpec, dtype: DType, ids: super::SpecialIds) -> Value {
    let mut value = match spec.family {
        Family::Gpt2 => write_gpt2(spec),
        Family::Llama => write_llama(spec),
    };
    value["vocab_size"] = spec.vocab.into();
    value["tie_word_embeddings"] = spec.tied.into();
    value["initializer_range"] = decimal(spec.init_std);
    value["bos_token_id"] = ids.bos.into();
    value["eos_token_id"] = ids.eos.into();
    // SmolLM3's class has one of its own, beyond most vocabularies.
    value["pad_token_id"] = Value::Null;
    value["dtype"] = dtype_name(dtype).into();
    value["torch_dtype"] = dtype_name(dtype).into();
    value["use_cache"] = true.into();
    value
}

fn write_gpt2(spec: &ModelSpec) -> Value {
    serde_json::json!({
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "activation_function": if spec.gelu == Gelu::Tanh { "gelu_new" } else { "gelu" },
        "n_embd": spec.width,
        "n_head": spec.heads,
        "n_inner": spec.mlp_width,
        "n_layer": spec.layers,
        "n_positions": spec.max_length,
        "layer_norm_epsilon": decimal(spec.norm_eps),
        "scale_attn_weights": true,
        "scale_attn_by_inverse_layer_idx": false,
        "reorder_and_upcast_attn": false,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    })
}

fn write_llama(spec: &ModelSpec) -> Value {
    // A spec that was checked has a type.
    let kind = spec.model_type().unwrap_or("llama");
    let mut scaling = match spec.rope_scaling {
        RopeScaling::Default => serde_json::json!({ "rope_type": "default" }),
        RopeScaling::Linear { factor } => {
            serde_json::json!({ "rope_type": "linear", "factor": factor })
        }
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: original,
        } => serde_json::json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": original as u64,
        }),
    };
    let old = if spec.rope_scaling == RopeScaling::Default { Value::Null } else { scaling.clone() };
    scaling["rope_theta"] = spec.rope_theta.into();
    let class = match kind {
        "mistral" => "MistralForCausalLM",
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        "smollm3" => "SmolLM3ForCausalLM",
        _ => "LlamaForCausalLM",
    };
    let mut value = serde_json::json!({
        "architectures": [class],
        "model_type": kind,
        "hidden_act": "silu",
        "hidden_size": spec.width,
        "intermediate_size": spec.mlp_width,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "max_position_embeddings": spec.max_length,
        "rms_norm_eps": decimal(spec.norm_eps),
        "rope_theta": spec.rope_theta,
        "rope_scaling": old,
        "rope_parameters": scaling,
        "attention_bias": spec.attention_bias,
        "mlp_bias": spec.mlp_bias,
        "attention_dropout": 0.0,
    });
    if kind != "llama" {
        value["sliding_window"] = spec.window.into();
    }
    if matches!(kind, "qwen2" | "qwen3" | "smollm3") {
        let layer = if spec.window.is_some() { "sliding_attention" } else { "full_attention" };
        value["use_sliding_window"] = spec.window.is_some().into();
        value["max_window_layers"] = if spec.window.is_some() { 0 } else { spec.layers }.into();
        value["layer_types"] = vec![layer; spec.layers].into();
    }
    if kind == "smollm3" {
        let rotated = |i| u8::from(!spec.no_rope.contains(&i));
        value["no_rope_layers"] = (0..spec.layers).map(rotated).collect();
    }
    value
}
