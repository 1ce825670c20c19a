//! A model's shape: what a run spec and a Hugging Face config have in common.

use crate::kernels::activation::Gelu;
use crate::kernels::rope::RopeScaling;
use crate::lora::LoraSpec;
use serde::{Deserialize, Serialize};

/// Which block list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// LayerNorm, learned positions, GELU, fused q/k/v, biases.
    Gpt2,
    /// RMSNorm, rotary positions, SwiGLU, grouped queries; and what Mistral, Qwen2, Qwen3 and SmolLM3
    /// change of it.
    Llama,
}

/// A model's shape.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelSpec {
    /// Which block list.
    pub family: Family,
    /// Transformer blocks.
    pub layers: usize,
    /// Elements of the stream per token.
    pub width: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Elements inside the MLP.
    pub mlp_width: usize,
    /// Rows of the vocabulary.
    pub vocab: usize,
    /// Longest sequence.
    pub max_length: usize,
    /// The head uses the embedding's matrix.
    pub tied: bool,
    /// Added to variances.
    pub norm_eps: f32,
    /// GPT-2's activation.
    pub gelu: Gelu,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// How they are stretched.
    pub rope_scaling: RopeScaling,
    /// LLaMA: biases on q, k, v and o.
    pub attention_bias: bool,
    /// Qwen2: the attention's biases are on q, k and v alone.
    #[serde(default, skip_serializing_if = "is_false")]
    pub bias_qkv_only: bool,
    /// LLaMA: biases in the MLP.
    pub mlp_bias: bool,
    /// Qwen3: an RMSNorm over each head of q and of k, before they are rotated.
    #[serde(default, skip_serializing_if = "is_false")]
    pub qk_norm: bool,
    /// Mistral: a token sees so many tokens at most, itself included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<usize>,
    /// SmolLM3: layers whose q and k are not rotated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub no_rope: Vec<usize>,
    /// Adapters that are trained in place of the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraSpec>,
    /// Standard deviation of fresh matrices.
    pub init_std: f32,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

impl ModelSpec {
    /// A GPT-2 shape.
    #[must_use]
    pub fn gpt2(
        layers: usize,
        width: usize,
        heads: usize,
        vocab: usize,
        length: usize,
    ) -> ModelSpec {
        ModelSpec {
            family: Family::Gpt2,
            layers,
            width,
            heads,
            kv_heads: heads,
            head_dim: width / heads.max(1),
            mlp_width: 4 * width,
            vocab,
            max_length: length,
            tied: true,
            norm_eps: 1e-5,
            gelu: Gelu::Tanh,
            rope_theta: 10_000.0,
            rope_scaling: RopeScaling::Default,
            attention_bias: true,
            mlp_bias: true,
            bias_qkv_only: false,
            qk_norm: false,
            window: None,
            no_rope: Vec::new(),
            lora: None,
            init_std: 0.02,
        }
    }

    /// The benchmark sizes: `tiny`, `small`, `124m`.
    #[must_use]
    pub fn preset(name: &str) -> Option<ModelSpec> {
        match name {
            "tiny" => Some(ModelSpec::gpt2(4, 128, 4, 256, 256)),
            "small" => Some(ModelSpec::gpt2(6, 384, 6, 50_257, 256)),
            "124m" => Some(ModelSpec::gpt2(12, 768, 12, 50_257, 512)),
            _ => None,
        }
    }

    /// Why this shape cannot be built, if it cannot.
    ///
    /// # Errors
    /// One line that names the sizes.
    pub fn check(&self) -> Result<(), String> {
        let sizes = [self.layers, self.width, self.heads, self.kv_heads, self.head_dim];
        if sizes.contains(&0) || self.mlp_width == 0 || self.vocab == 0 || self.max_length == 0 {
            return Err("every size of a model is at least 1".to_owned());
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let (h, g) = (self.heads, self.kv_heads);
            return Err(format!("{h} query heads are not a multiple of {g} key/value heads"));
        }
        if self.family == Family::Gpt2 && self.heads * self.head_dim != self.width {
            let (h, e, d) = (self.heads, self.head_dim, self.width);
            return Err(format!("GPT-2 needs heads x head width = width: {h} x {e} is not {d}"));
        }
        if self.family == Family::Llama && !self.head_dim.is_multiple_of(2) {
            return Err(format!("rotary positions need an even head width, not {}", self.head_dim));
        }
        if self.window == Some(0) {
            return Err("a window has at least one token".to_owned());
        }
        if let Some(lora) = &self.lora {
            lora.check(self.family)?;
        }
        self.model_type().map(|_| ())
    }

    /// The Hugging Face `model_type` that has all this, so that whatever is trained can be exported.
    ///
    /// # Errors
    /// Names what no published family has together.
    pub fn model_type(&self) -> Result<&'static str, String> {
        if self.family == Family::Gpt2 {
            let extra = self.qk_norm || self.window.is_some() || !self.no_rope.is_empty();
            let reason = "gpt2 has no norms on q and k, no window and no rotary positions";
            return if extra { Err(reason.to_owned()) } else { Ok("gpt2") };
        }
        let (bias, mlp) = (self.attention_bias, self.mlp_bias);
        let (found, fits) = if !self.no_rope.is_empty() {
            ("smollm3", !self.qk_norm && !self.bias_qkv_only)
        } else if self.qk_norm {
            ("qwen3", !self.bias_qkv_only && !mlp)
        } else if self.bias_qkv_only {
            ("qwen2", bias && !mlp)
        } else if self.window.is_some() {
            ("mistral", !bias && !mlp)
        } else {
            ("llama", true)
        };
        let reason =
            || format!("no published family has these biases and norms; {found} is nearest");
        if fits { Ok(found) } else { Err(reason()) }
    }

    /// Floating-point operations of forward and backward per token: 6 per matrix weight (the head
    /// included), and 12·layers·width·length for attention as a full square (PaLM's count). With
    /// adapters 4 per weight: the weights' own gradients are not computed.
    #[must_use]
    pub fn flops_per_token(&self, length: usize) -> u64 {
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let attention = self.width * (2 * q + 2 * kv);
        let matrices = if self.family == Family::Gpt2 { 2 } else { 3 };
        let per_layer = attention + matrices * self.width * self.mlp_width;
        let weights = self.layers * per_layer + self.vocab * self.width;
        let per_weight = if self.lora.is_some() { 4 } else { 6 };
        (per_weight * weights + 12 * self.layers * q * length) as u64
    }
}
