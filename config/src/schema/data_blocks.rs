//! Data efficiency, and the blocks that DeepSpeed removed.

use super::key::{Block, Key, Kind};

const COUNTS: Kind = Kind::List(&Kind::Int(0, i64::MAX), 0, 100_000);

const SCHEDULE_CONFIG: Block = Block::new(&[
    Key::positive("total_curriculum_step", "null", "Steps until the hardest"),
    Key::positive("difficulty_step", "null", "Difficulty is a multiple of this"),
    Key::positive("root_degree", "null", "Degree of the root"),
    Key::new("difficulty", COUNTS, "null", "Difficulties"),
    Key::new("max_step", COUNTS, "null", "Until which step each"),
]);

const SCHEDULE_TYPES: &[&str] = &["fixed_linear", "fixed_root", "fixed_discrete", "custom"];

/// `curriculum_learning` at the top level: the old form.
pub(super) const CURRICULUM: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Grow the sequence length"),
        Key::choice("curriculum_type", &["seqlen"], "\"seqlen\"", "What grows"),
        Key::positive("min_difficulty", "null", "The first difficulty"),
        Key::positive("max_difficulty", "null", "The last difficulty"),
        Key::choice("schedule_type", SCHEDULE_TYPES, "null", "How it grows"),
        Key::block("schedule_config", &SCHEDULE_CONFIG, "Its numbers"),
    ],
);

const METRIC: Block = Block::new(&[
    Key::text("index_to_sample_path", "null", "Index of samples"),
    Key::text("index_to_metric_path", "null", "Index of metrics"),
    Key::choice("difficulty_type", &["value", "percentile"], "null", "What difficulty is"),
    Key::choice("clustering_type", &["schedule_based", "single_cluster"], "null", "Clusters"),
    Key::positive("min_difficulty", "null", "The first difficulty"),
    Key::positive("max_difficulty", "null", "The last difficulty"),
    Key::choice("schedule_type", SCHEDULE_TYPES, "null", "How it grows"),
    Key::block("schedule_config", &SCHEDULE_CONFIG, "Its numbers"),
]);

const SAMPLER_CURRICULUM: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Sample by difficulty"),
        Key::text("data_cluster_path", "null", "Clusters"),
        Key::new("curriculum_metrics", Kind::Map(&Kind::Block(&METRIC)), "null", "Metrics"),
    ],
);

const DYNAMIC_BATCHING: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Batches of so many tokens"),
        Key::positive("max_tokens", "null", "Tokens of a batch"),
        Key::text("metrics_path", "null", "Sequence lengths"),
        Key::choice("lr_scaling_method", &["linear", "sqrt", "none"], "\"linear\"", "Scale lr"),
        Key::positive("min_batch_size", "1", "Fewest sequences"),
        Key::positive("max_batch_size", "null", "Most sequences"),
        Key::choice(
            "sequence_picking_order",
            &["dataloader", "random", "seqlen"],
            "\"dataloader\"",
            "Order",
        ),
        Key::off("verbose", "Print batches"),
    ],
);

const DATA_SAMPLING: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Use DeepSpeed's sampler"),
        Key::positive("num_epochs", "1000", "Epochs"),
        Key::count("num_workers", "0", "Loader processes"),
        Key::off("pin_memory", "Pin batches"),
        Key::block("curriculum_learning", &SAMPLER_CURRICULUM, "Curriculum"),
        Key::block("dynamic_batching", &DYNAMIC_BATCHING, "Dynamic batches"),
    ],
);

const LTD_SCHEDULE_CONFIG: Block = Block::new(&[
    Key::positive("require_steps", "null", "Steps until all tokens"),
    Key::positive("seq_per_step", "null", "Growth"),
]);

const LTD_SCHEDULE: Block = Block::new(&[
    Key::positive("min_value", "null", "Tokens at the start"),
    Key::positive("max_value", "null", "Tokens at the end"),
    Key::choice("schedule_type", &["fixed_linear"], "null", "How it grows"),
    Key::block("schedule_config", &LTD_SCHEDULE_CONFIG, "Its numbers"),
]);

const LAYER_TOKEN_LR: Block =
    Block::switched("enabled", &[Key::off("enabled", "Not implemented in DeepSpeed either")]);

const RANDOM_LTD: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Drop tokens in the middle layers"),
        Key::positive("total_layer_num", "null", "Layers"),
        Key::positive("random_ltd_layer_num", "null", "Layers that drop"),
        Key::new("random_ltd_layer_id", COUNTS, "null", "Which"),
        Key::text("model_mask_name", "null", "Name of the mask"),
        Key::choice("model_type", &["encoder", "decoder"], "null", "Model"),
        Key::text("hidden_state_order", "null", "Axes"),
        Key::block("random_ltd_schedule", &LTD_SCHEDULE, "Schedule"),
        Key::block("layer_token_lr_schedule", &LAYER_TOKEN_LR, "Rates per layer"),
    ],
);

const DATA_ROUTING: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Route tokens around layers"),
        Key::block("random_ltd", &RANDOM_LTD, "Random layerwise token dropping"),
    ],
);

/// `data_efficiency`.
pub(super) const DATA_EFFICIENCY: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Use the library"),
        Key::count("seed", "1234", "Its seed"),
        Key::block("data_sampling", &DATA_SAMPLING, "Which samples"),
        Key::block("data_routing", &DATA_ROUTING, "Which tokens"),
    ],
);

/// `progressive_layer_drop`.
pub(super) const PROGRESSIVE_LAYER_DROP: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Drop layers"),
        Key::share("theta", "1.0", "Share kept at the end"),
        Key::number("gamma", "0.001", "How fast"),
    ],
);

/// `eigenvalue`.
pub(super) const EIGENVALUE: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Estimate"),
        Key::off("verbose", "Print"),
        Key::positive("max_iter", "100", "Iterations"),
        Key::number("tol", "1e-2", "Tolerance"),
        Key::number("stability", "1e-6", "Added for stability"),
        Key::positive("gas_boundary_resolution", "1", "Every so many steps"),
        Key::text("layer_name", "\"bert.encoder.layer\"", "Layers"),
        Key::count("layer_num", "0", "How many"),
    ],
);

/// `quantize_training`, whose further keys are gone with it.
pub(super) const QUANTIZE_TRAINING: Block = OPEN;

/// A removed block whose keys are not listed: only its switch is read.
pub(super) const OPEN: Block = Block::switched("enabled", &[Key::off("enabled", "Turn it on")]);
