//! Data, run, machine, arithmetic and records.

use serde::{Deserialize, Serialize};

/// The text of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DataPlan {
    /// Text to read, in order; empty when `tokens` are given.
    pub text: Vec<TextSource>,
    /// Token files to read, instead of text.
    pub tokens: Vec<String>,
    /// How text becomes tokens.
    pub tokenizer: TokenizerPlan,
    /// Tokens of a sequence.
    pub sequence_length: u64,
    /// Share kept for validation, from the end.
    pub validation_fraction: f64,
    /// Read at most so many bytes of text.
    pub max_bytes: Option<u64>,
    /// Refuse data with another BLAKE3 digest.
    pub fingerprint: Option<String>,
    /// Attention stays inside a document.
    pub mask_documents: bool,
}

/// Where text comes from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TextSource {
    /// The Rust sources and documents in cargo's registry folder.
    Registry,
    /// A path or a glob.
    Pattern(String),
}

/// How text becomes tokens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenizerPlan {
    /// 256 bytes.
    Byte,
    /// The characters of the text.
    Char,
    /// GPT-2's byte pairs.
    Gpt2,
    /// The 100,277 ids of GPT-4.
    Cl100k,
    /// The 200,019 ids of GPT-4o.
    O200k,
    /// A tokenizer.json.
    File(String),
    /// The one in the folder that the model starts from.
    FromModel,
    /// None: token files without one; samples are shown as ids.
    None,
}

/// How long, how often, where to.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunSection {
    /// Where the run writes.
    pub dir: String,
    /// Optimizer steps.
    pub steps: u64,
    /// Validate every so many steps; 0 is never.
    pub eval_every: u64,
    /// Micro-batches of one validation.
    pub eval_batches: u64,
    /// Save every so many steps; 0 is at the end only.
    pub checkpoint_every: u64,
    /// Checkpoints kept.
    pub keep_last: u64,
    /// Keep those of every so many steps for good; 0 is none.
    pub keep_every: u64,
    /// Text generated at the end; `None` is none.
    pub sample: Option<SamplePlan>,
    /// Seed of weights, order and everything random.
    pub seed: u64,
}

/// Text generated at the end.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SamplePlan {
    /// What it starts with.
    pub prompt: String,
    /// Tokens to generate.
    pub tokens: u64,
    /// 0 is greedy.
    pub temperature: f64,
    /// Nucleus.
    pub top_p: f64,
}

/// Threads and instruction set.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ComputePlan {
    /// Compute threads; `None` is all cores.
    pub threads: Option<u64>,
    /// Instruction set.
    pub isa: Isa,
    /// Pin threads to cores.
    pub pin: bool,
    /// Refuse a run whose plan needs more bytes.
    pub memory: Option<u64>,
}

/// Instruction set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isa {
    /// The best that the machine has.
    Auto,
    /// Plain code.
    Scalar,
    /// AVX2 and FMA.
    Avx2,
    /// AVX-512.
    Avx512,
}

/// How gradients are summed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NumericsPlan {
    /// Exact or not.
    pub mode: SumMode,
    /// log2 of the largest gradient element that is not an overflow.
    pub grid_max_log2: i32,
}

/// How gradients are summed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SumMode {
    /// In integers: the same bits in any order.
    Exact,
    /// In floating point, in the order of arrival.
    Fast,
}

/// What is written down.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RecordsPlan {
    /// Write metrics.jsonl.
    pub metrics: bool,
    /// Write TensorBoard event files.
    pub tensorboard: Option<TensorboardPlan>,
}

/// Where TensorBoard's files go.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TensorboardPlan {
    /// Folder; `None` is the run's own.
    pub folder: Option<String>,
    /// Sub-folder.
    pub job_name: Option<String>,
}
