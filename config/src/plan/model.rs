//! The model of a run.

use serde::{Deserialize, Serialize};

/// Where the model comes from.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "source", rename_all = "snake_case")]
pub enum ModelPlan {
    /// A Hugging Face folder, whose config.json says the shape.
    InitFrom {
        /// The folder.
        folder: String,
    },
    /// New weights.
    Fresh(ModelShape),
}

/// A kind of model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// Learned positions, LayerNorm, GELU (tanh).
    Gpt2,
    /// RoPE, RMSNorm, SwiGLU, grouped queries.
    Llama,
    /// LLaMA with a sliding window.
    Mistral,
    /// LLaMA with biases on q, k and v.
    Qwen2,
    /// LLaMA with norms on q and k.
    Qwen3,
}

/// The shape of a model with new weights.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ModelShape {
    /// Its kind.
    pub family: Family,
    /// Blocks.
    pub layers: u64,
    /// Width of the residual stream.
    pub width: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Width inside the MLP.
    pub mlp_width: u64,
    /// Vocabulary; `None` takes the tokenizer's.
    pub vocab: Option<u64>,
    /// Longest sequence.
    pub max_length: u64,
    /// Embedding and head share a matrix.
    pub tied: bool,
    /// Biases in linear layers.
    pub bias: bool,
    /// Rotary positions; `None` for families with learned ones.
    pub rope: Option<Rope>,
    /// Sliding attention window.
    pub window: Option<u64>,
    /// Epsilon of norms.
    pub norm_eps: f64,
    /// Standard deviation of new weights.
    pub init_std: f64,
    /// Dropout.
    pub dropout: f64,
}

/// Adapters that are trained in place of the model.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LoraPlan {
    /// Rows of A.
    pub rank: u64,
    /// The addition is multiplied by alpha / rank.
    pub alpha: f64,
    /// Names of the linear layers; empty takes the family's usual ones.
    pub targets: Vec<String>,
}

/// Rotary positions.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// How frequencies change beyond the trained length.
    pub scaling: RopeScaling,
}

/// How frequencies change beyond the trained length.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// All divided by the factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3's rule.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Below this, scale fully.
        low_freq_factor: f64,
        /// Above this, do not scale.
        high_freq_factor: f64,
        /// The trained length.
        original_max_position_embeddings: u64,
    },
}
