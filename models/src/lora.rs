//! LoRA (Hu et al. 2021): a low-rank addition to some linear layers is trained, the model is not.
//!
//! `y = x·W + alpha / rank · (x·A^T)·B^T`. B starts at zero, so a run begins with the model as it was.
//! The layout of what is saved is PEFT's: `adapter_config.json` and tensors named
//! `base_model.model.LAYER.lora_A.weight` and `lora_B`.

use crate::block::{Init, Model};
use crate::families::{Family, ModelSpec};
use planaria_base::rng::CounterRng;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Which layers are adapted, and how.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoraSpec {
    /// Rows of A.
    pub rank: usize,
    /// The addition is multiplied by alpha / rank.
    pub alpha: f64,
    /// Last part of the names of the linear layers: `q_proj`.
    pub targets: Vec<String>,
}

impl LoraSpec {
    /// The layers that a family has.
    #[must_use]
    pub fn layers(family: Family) -> &'static [&'static str] {
        match family {
            Family::Gpt2 => &["c_attn", "c_proj", "c_fc"],
            Family::Llama => {
                &["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
            }
        }
    }

    /// The layers that are adapted where nobody says which: PEFT's choice.
    #[must_use]
    pub fn default_targets(family: Family) -> Vec<String> {
        let names: &[&str] = match family {
            Family::Gpt2 => &["c_attn"],
            Family::Llama => &["q_proj", "v_proj"],
        };
        names.iter().map(|&name| name.to_owned()).collect()
    }

    pub(crate) fn check(&self, family: Family) -> Result<(), String> {
        let known = Self::layers(family);
        if self.rank == 0 || !(self.alpha.is_finite() && self.alpha > 0.0) {
            return Err("lora needs a rank of at least 1 and an alpha above 0".to_owned());
        }
        if let Some(other) = self.targets.iter().find(|t| !known.contains(&t.as_str())) {
            return Err(format!("lora target {other:?} is no layer: {}", known.join(", ")));
        }
        if self.targets.is_empty() { Err("lora has no targets".to_owned()) } else { Ok(()) }
    }

    /// Whether the layer of this name is adapted.
    pub(crate) fn adapts(&self, name: &str) -> bool {
        name.rsplit('.').next().is_some_and(|last| self.targets.iter().any(|t| t == last))
    }

    /// alpha / rank.
    #[must_use]
    pub fn scale(&self) -> f32 {
        (self.alpha / self.rank as f64) as f32
    }
}

/// Whether a parameter of this name belongs to an adapter.
#[must_use]
pub fn is_adapter(name: &str) -> bool {
    name.contains(".lora_A.") || name.contains(".lora_B.")
}

/// The values that an adapted model starts from: the base model's, A drawn from the seed, B zero.
///
/// # Panics
/// If `base` is not the values of the same spec without adapters.
#[must_use]
pub fn adopt(spec: &ModelSpec, base: Vec<Vec<f32>>, seed: u64) -> Vec<Vec<f32>> {
    let mut base = base.into_iter();
    let model = spec.build();
    let value = |p: &crate::block::ParamSpec| {
        if !is_adapter(&p.name) {
            return base.next().expect("a base value for each parameter that is no adapter");
        }
        match p.init {
            Init::Normal { std } => normal(seed, p.id.0, std, p.elements()),
            _ => vec![0.0; p.elements()],
        }
    };
    model.params.iter().map(value).collect()
}

/// Normal values by Box and Muller, from a counter generator keyed by (seed, parameter, element).
fn normal(seed: u64, id: u32, std: f32, len: usize) -> Vec<f32> {
    let rng = CounterRng::new(seed).fork(0x6c6f_7261).fork(u64::from(id));
    let value = |i: u64| {
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - rng.uniform(2 * i)));
        let angle = 2.0 * std::f64::consts::PI * rng.uniform(2 * i + 1);
        (f64::from(std) * radius * libm::cos(angle)) as f32
    };
    (0..len as u64).map(value).collect()
}

/// The model without adapters, their additions added to its matrices: its spec and values.
#[must_use]
pub fn merge(spec: &ModelSpec, values: Vec<Vec<f32>>) -> (ModelSpec, Vec<Vec<f32>>) {
    let Some(lora) = &spec.lora else { return (spec.clone(), values) };
    let model = spec.build();
    let find = |name: &str| model.params.iter().position(|p| p.name == name);
    let mut out = Vec::new();
    for param in model.params.iter().filter(|p| !is_adapter(&p.name)) {
        let mut w = values[param.id.index()].clone();
        let layer = param.name.strip_suffix(".weight").unwrap_or(&param.name);
        let of = |part: &str| find(&format!("{layer}.{part}.weight")).map(|i| &values[i]);
        if let (Some(a), Some(b)) = (of("lora_A"), of("lora_B")) {
            add_product(spec.family, lora, (a, b), &mut w);
        }
        out.push(w);
    }
    (ModelSpec { lora: None, ..spec.clone() }, out)
}

/// `W += scale · B·A`, as the family stores W; sums in f64.
fn add_product(family: Family, lora: &LoraSpec, (a, b): (&[f32], &[f32]), w: &mut [f32]) {
    let (inputs, outputs) = (a.len() / lora.rank, b.len() / lora.rank);
    let scale = f64::from(lora.scale());
    for o in 0..outputs {
        for i in 0..inputs {
            let terms = (0..lora.rank)
                .map(|r| f64::from(b[o * lora.rank + r]) * f64::from(a[r * inputs + i]));
            let at = if family == Family::Gpt2 { i * outputs + o } else { o * inputs + i };
            w[at] = (f64::from(w[at]) + scale * terms.sum::<f64>()) as f32;
        }
    }
}

/// The adapter's tensors by the names that PEFT has for them, with their index in the values.
#[must_use]
pub fn peft_tensors(model: &Model) -> Vec<(String, usize)> {
    let adapters = model.params.iter().filter(|p| is_adapter(&p.name));
    adapters.map(|p| (format!("base_model.model.{}", p.name), p.id.index())).collect()
}

/// The text of `adapter_config.json`.
#[must_use]
pub fn peft_config(family: Family, lora: &LoraSpec, base: Option<&str>) -> Value {
    json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": lora.targets,
        "fan_in_fan_out": family == Family::Gpt2,
        "bias": "none",
        "inference_mode": true,
    })
}
