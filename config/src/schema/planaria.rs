//! The `planaria` block: what DeepSpeed has no word for.

use super::features;
use super::key::{Auto, Block, Key, Kind};

const ROPE_SCALING: Block = Block::new(&[
    Key::choice("type", &["none", "linear", "llama3"], "\"none\"", "The rule")
        .alias(&["rope_type"]),
    Key::new("factor", Kind::FloatAbove(0.0, f64::MAX), "1.0", "How much longer"),
    Key::number("low_freq_factor", "1.0", "llama3: below this, scale fully"),
    Key::number("high_freq_factor", "4.0", "llama3: above this, do not scale"),
    Key::positive("original_max_position_embeddings", "8192", "llama3: trained length"),
]);

/// Names of the model sizes that come with the program.
pub(super) const PRESETS: &[&str] = &[
    "tiny",
    "small",
    "124m",
    "355m",
    "774m",
    "1558m",
    "llama-tiny",
    "stories260k",
    "smollm2-135m",
    "llama-1b",
];

const FAMILIES: &[&str] = &["gpt2", "llama", "mistral", "qwen2", "qwen3"];

const MODEL: Block = Block::new(&[
    Key::choice("preset", PRESETS, "null", "A known size; the keys below override parts of it"),
    Key::text(
        "init_from",
        "null",
        "Hugging Face folder, GGUF file or run to start from, instead of random weights",
    )
    .status(features::INIT_FROM),
    Key::choice("family", FAMILIES, "null", "Kind of model; gpt2 if unset"),
    Key::up_to("layers", 10_000, "null", "Blocks"),
    Key::up_to("width", 1 << 20, "null", "Width of the residual stream").alias(&["hidden_size"]),
    Key::up_to("heads", 1 << 16, "null", "Attention heads; width / 64 if unset"),
    Key::up_to("kv_heads", 1 << 16, "null", "Key and value heads; as many as heads if unset"),
    Key::up_to("head_dim", 1 << 16, "null", "Width of a head; width / heads if unset"),
    Key::up_to(
        "mlp_width",
        1 << 23,
        "null",
        "Width inside the MLP; 4 x width (gpt2) or 8/3 x if unset",
    ),
    Key::up_to("vocab", 1 << 24, "null", "Vocabulary; the tokenizer's if unset")
        .alias(&["vocab_size"]),
    Key::up_to("max_length", 1 << 24, "null", "Longest sequence; data.sequence_length if unset"),
    Key::new("tied", Kind::Bool, "null", "Embedding and head share a matrix; gpt2 does"),
    Key::new("bias", Kind::Bool, "null", "Biases in linear layers; gpt2 has them"),
    Key::new("rope_theta", Kind::FloatAbove(0.0, f64::MAX), "null", "Base of RoPE; 10000 if unset"),
    Key::block("rope_scaling", &ROPE_SCALING, "RoPE beyond the trained length"),
    Key::new("norm_eps", Kind::FloatAbove(0.0, 1.0), "null", "Epsilon of norms; 1e-5 if unset"),
    Key::new("init_std", Kind::FloatAbove(0.0, 10.0), "0.02", "Standard deviation of new weights"),
    Key::up_to("window", 1 << 24, "null", "Sliding attention window"),
    Key::share("dropout", "0", "Dropout").status(features::DROPOUT),
]);

const LORA: Block = Block::new(&[
    Key::up_to("rank", 1 << 16, "null", "Columns between A and B; given, adapters are trained")
        .alias(&["r"]),
    Key::new(
        "alpha",
        Kind::FloatAbove(0.0, f64::MAX),
        "null",
        "The addition is multiplied by alpha / rank; 2 x rank if unset",
    )
    .alias(&["lora_alpha"]),
    Key::new(
        "targets",
        Kind::Texts,
        "null",
        "Linear layers by name; q_proj and v_proj (gpt2: c_attn) if unset",
    )
    .alias(&["target_modules"]),
]);

const DATA: Block = Block::new(&[
    Key::new(
        "text",
        Kind::Texts,
        "null",
        "Text files: paths, globs, or \"registry\" for the Rust sources in cargo's own folder",
    ),
    Key::new("tokens", Kind::Texts, "null", "Token files, instead of text"),
    Key::text(
        "tokenizer",
        "null",
        "byte, char, gpt2, cl100k, o200k, or a tokenizer.json; byte if unset, init_from's own if that is given",
    ),
    Key::up_to(
        "sequence_length",
        1 << 24,
        "null",
        "Tokens of a sequence; the model's max_length if unset",
    ),
    Key::new(
        "validation_fraction",
        Kind::Float(0.0, 0.9),
        "0.1",
        "Share of the text, from its end, kept for validation",
    ),
    Key::new("max_bytes", Kind::Bytes, "null", "Read at most so much text"),
    Key::text("fingerprint", "null", "Refuse data whose BLAKE3 differs from this"),
    Key::off("mask_documents", "Attention stays inside a document"),
]);

const SAMPLE: Block = Block::new(&[
    Key::text("prompt", "\"\\n\"", "What the sample starts with"),
    Key::new("tokens", Kind::Int(0, 1 << 20), "200", "Tokens of the sample; 0 is none"),
    Key::number("temperature", "0.8", "0 is greedy"),
    Key::new("top_p", Kind::FloatAbove(0.0, 1.0), "0.95", "Nucleus"),
]);

const RUN: Block = Block::new(&[
    Key::text("dir", "null", "Where the run writes; runs/<name of the configuration> if unset"),
    Key::positive("steps", "null", "Optimizer steps (required)"),
    Key::count("eval_every", "null", "Validate every so many steps; a tenth of the run if unset"),
    Key::up_to("eval_batches", 1 << 20, "8", "Micro-batches of one validation"),
    Key::count("checkpoint_every", "0", "Save every so many steps; 0 is at the end only"),
    Key::positive("keep_last", "2", "Checkpoints kept"),
    Key::count("keep_every", "0", "Keep those of every so many steps for good"),
    Key::block("sample", &SAMPLE, "Text generated at the end"),
    Key::count("seed", "1234", "Seed of weights, order and everything random"),
]);

const COMPUTE: Block = Block::new(&[
    Key::up_to("threads", 4096, "null", "Compute threads; all cores if unset"),
    Key::choice("isa", &["auto", "scalar", "avx2", "avx512"], "\"auto\"", "Instruction set"),
    Key::off("pin", "Pin threads to cores"),
    Key::new(
        "recompute",
        Kind::Bool,
        "null",
        "Recompute activations per block; unset: if there is an activation_checkpointing block",
    )
    .auto(Auto::Planner),
    Key::new("memory", Kind::Bytes, "null", "Refuse a run whose plan needs more"),
]);

const NUMERICS: Block = Block::new(&[
    Key::choice("mode", &["exact", "fast"], "\"exact\"", "How gradients are summed")
        .status(features::FAST_SUMS),
    Key::new(
        "grid_max_log2",
        Kind::Int(-16, 40),
        "8",
        "Largest gradient element, as a power of two, before a step is skipped as overflow",
    ),
]);

const RING: Block = Block::new(&[
    Key::up_to("nodes", 100_000, "1", "Nodes the batch keys count with; any number may compute")
        .status(features::RING),
    Key::count("replicas", "0", "Further copies of each chunk's state").status(features::RING),
    Key::text("listen", "null", "Address to listen on").status(features::RING),
    Key::new("seeds", Kind::Texts, "[]", "Addresses of nodes to join").status(features::RING),
    Key::text("key_file", "null", "Shared secret").status(features::RING),
    Key::positive("lost_after_s", "600", "Seconds to wait for a chunk's last holder")
        .status(features::RING),
    Key::choice("bulk", &["auto", "shm", "tcp"], "\"auto\"", "How bulk bytes move")
        .status(features::RING),
]);

const RECORDS: Block = Block::new(&[
    Key::on("metrics", "Write metrics.jsonl"),
    Key::new(
        "tensorboard",
        Kind::Bool,
        "null",
        "Write event files; unset: unless the top-level tensorboard block turns it off",
    ),
]);

/// The block.
pub const PLANARIA: Block = Block::new(&[
    Key::block("model", &MODEL, "The model"),
    Key::block("lora", &LORA, "Train low-rank adapters; the model itself stays as it is"),
    Key::block("data", &DATA, "The text"),
    Key::block("run", &RUN, "The run"),
    Key::block("compute", &COMPUTE, "The machine"),
    Key::block("numerics", &NUMERICS, "The arithmetic"),
    Key::block("ring", &RING, "The nodes"),
    Key::block("records", &RECORDS, "What is written down"),
]);
