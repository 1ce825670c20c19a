//! Blocks that watch, tune, save and parallelise.

use super::key::{Block, Key, Kind};

const REMOTE: &str = "saved tensors are planned slots in host memory";

/// `activation_checkpointing`.
pub(super) const RECOMPUTATION: Block = Block::on_by_presence(&[
    Key::off("partition_activations", "Split saved activations over tensor-parallel ranks")
        .no_effect(REMOTE),
    Key::positive("number_checkpoints", "null", "How many checkpoints").no_effect("one a block"),
    Key::off("contiguous_memory_optimization", "One buffer for all checkpoints").no_effect(REMOTE),
    Key::off("cpu_checkpointing", "Keep checkpoints in host memory").no_effect(REMOTE),
    Key::off("profile", "Time each checkpoint").no_effect("see wall_clock_breakdown"),
    Key::off("synchronize_checkpoint_boundary", "Wait for the GPU at each").no_effect(REMOTE),
]);

/// `flops_profiler`.
pub(super) const FLOPS_PROFILER: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Profile one step"),
        Key::number("recompute_fwd_factor", "0", "Forward passes computed again"),
        Key::positive("profile_step", "1", "Which step"),
        Key::new("module_depth", Kind::Int(-1, i64::MAX), "-1", "How deep; -1 is all"),
        Key::positive("top_modules", "1", "How many modules to list"),
        Key::on("detailed", "Print every module"),
        Key::text("output_file", "null", "Where to"),
    ],
);

/// `comms_logger`.
pub(super) const COMMS_LOGGER: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Log collectives"),
        Key::off("verbose", "Log each"),
        Key::on("prof_all", "All operations"),
        Key::off("debug", "Name the caller"),
        Key::new("prof_ops", Kind::Texts, "[]", "Which operations"),
    ],
);

/// `tensorboard`.
pub(super) const TENSORBOARD: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Write event files"),
        Key::text("output_path", "\"\"", "Folder; the run's folder if empty"),
        Key::text("job_name", "\"DeepSpeedJobName\"", "Sub-folder"),
    ],
);

/// `csv_monitor`.
pub(super) const CSV_MONITOR: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Write CSV files"),
        Key::text("output_path", "\"\"", "Folder"),
        Key::text("job_name", "\"DeepSpeedJobName\"", "Sub-folder"),
    ],
);

/// `wandb`.
pub(super) const WANDB: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Report to Weights & Biases"),
        Key::text("group", "null", "Group"),
        Key::text("team", "null", "Team"),
        Key::text("project", "\"deepspeed\"", "Project"),
    ],
);

/// `comet`.
pub(super) const COMET: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Report to Comet"),
        Key::positive("samples_log_interval", "100", "Report every so many samples"),
        Key::text("project", "null", "Project"),
        Key::text("workspace", "null", "Workspace"),
        Key::text("api_key", "null", "API key"),
        Key::text("experiment_name", "null", "Experiment"),
        Key::text("experiment_key", "null", "Experiment key"),
        Key::new("online", Kind::Bool, "null", "Online or not"),
        Key::text("mode", "null", "Mode"),
    ],
);

const THROUGHPUT: Block = Block::new(&[
    Key::on("enabled", "Measure throughput"),
    Key::on("synchronized", "Wait for the GPU first"),
]);

/// `timers`.
pub(super) const TIMERS: Block =
    Block::new(&[Key::block("throughput", &THROUGHPUT, "Throughput timer")]);

const MODEL_INFO: Block = Block::new(&[
    Key::off("profile", "Profile the model"),
    Key::positive("num_params", "null", "Parameters"),
    Key::positive("hidden_size", "null", "Width"),
    Key::positive("num_layers", "null", "Layers"),
]);

/// `autotuning`.
pub(super) const AUTOTUNING: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Search"),
        Key::on("fast", "Only the micro-batch"),
        Key::text("results_dir", "\"autotuning_results\"", "Results"),
        Key::text("exps_dir", "\"autotuning_exps\"", "Experiments"),
        Key::on("overwrite", "Overwrite results"),
        Key::count("start_profile_step", "3", "First measured step"),
        Key::count("end_profile_step", "5", "Last measured step"),
        Key::choice(
            "metric",
            &["throughput", "latency", "flops", "forward", "backward", "step"],
            "\"throughput\"",
            "What to optimise",
        ),
        Key::text("metric_path", "null", "Where the metric is written"),
        Key::choice(
            "tuner_type",
            &["gridsearch", "random", "model_based"],
            "\"gridsearch\"",
            "How to search",
        ),
        Key::positive("tuner_early_stopping", "5", "Stop after so many without gain"),
        Key::positive("tuner_num_trials", "50", "Trials at most"),
        Key::new("arg_mappings", Kind::Map(&Kind::Text), "null", "Names of script arguments"),
        Key::positive("max_train_batch_size", "null", "Largest batch"),
        Key::positive("min_train_batch_size", "1", "Smallest batch"),
        Key::positive("max_train_micro_batch_size_per_gpu", "1024", "Largest micro-batch"),
        Key::positive("min_train_micro_batch_size_per_gpu", "1", "Smallest micro-batch"),
        Key::positive("num_tuning_micro_batch_sizes", "3", "Micro-batches to try"),
        Key::positive("mp_size", "1", "Model-parallel degree"),
        Key::block("model_info", &MODEL_INFO, "What is known of the model"),
        Key::text("model_info_path", "null", "Where that is written"),
    ],
);

/// `elasticity`.
pub(super) const ELASTICITY: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Choose the batch for many GPU counts"),
        Key::positive("max_train_batch_size", "null", "Largest batch"),
        Key::new(
            "micro_batch_sizes",
            Kind::List(&Kind::Int(1, i64::MAX), 1, 1000),
            "null",
            "Micro-batches",
        ),
        Key::positive("min_gpus", "1", "Fewest GPUs"),
        Key::positive("max_gpus", "10000", "Most GPUs"),
        Key::count("min_time", "0", "For a scheduler"),
        Key::on("prefer_larger_batch", "Tie-break").alias(&["prefer_large_batch"]),
        Key::off("ignore_non_elastic_batch_info", "Ignore batch keys"),
        Key::number("version", "0.2", "Algorithm"),
        Key::positive("num_gpus_per_node", "1", "GPUs of a node"),
        Key::positive("model_parallel_size", "1", "Model-parallel degree"),
    ],
);

/// `pipeline`.
pub(super) const PIPELINE: Block = Block::new(&[
    Key::new(
        "stages",
        Kind::Either(&[Kind::Choice(&["auto"]), Kind::Int(1, i64::MAX)]),
        "\"auto\"",
        "Stages",
    )
    .asks_nothing(&["1"]),
    Key::text("partition", "\"best\"", "How to cut").no_effect("there is one stage"),
    Key::off("seed_layers", "Seed each layer by its index")
        .no_effect("each parameter has its own random stream"),
    Key::count("activation_checkpoint_interval", "0", "Recompute every so many layers"),
    Key::on("pipe_partitioned", "Split activations between stages").no_effect("there is one stage"),
    Key::on("grad_partitioned", "Split gradients between stages").no_effect("there is one stage"),
]);

const PARALLEL_WRITE: Block =
    Block::new(&[
        Key::off("pipeline_stage", "Each stage writes its own").no_effect("there is one stage")
    ]);

const WRITER_WHY: &str = "checkpoints have one writer, which syncs and renames";

const WRITER: Block = Block::new(&[
    Key::choice("type", &["FAST", "PYTHON", "MOCK"], "null", "Which writer").no_effect(WRITER_WHY),
    Key::positive("io_buffer_size", "67108864", "Bytes of a buffer").no_effect(WRITER_WHY),
    Key::on("io_buffer_double", "Two buffers").no_effect(WRITER_WHY),
    Key::positive("io_multiplier", "1", "Files at once").no_effect(WRITER_WHY),
    Key::off("show_statistics", "Print rates").no_effect(WRITER_WHY),
    Key::choice("data_parallel", &["REPLICA", "SOCKET", "MACHINE"], "null", "Who writes")
        .no_effect(WRITER_WHY),
    Key::off("decoupled", "Write in the background").no_effect(WRITER_WHY),
]);

/// `checkpoint`.
pub(super) const CHECKPOINT: Block = Block::new(&[
    Key::choice("tag_validation", &["Warn", "Ignore", "Fail"], "\"Warn\"", "Compare ranks' tags")
        .no_effect("a checkpoint's name is computed from the run and the step"),
    Key::off("load_universal", "Load a converted checkpoint")
        .no_effect("a checkpoint has no trace of how many nodes wrote it"),
    Key::off("use_node_local_storage", "Each node saves to its own drive")
        .no_effect("checkpoints go where planaria.run.dir points"),
    Key::block("parallel_write", &PARALLEL_WRITE, "Who writes"),
    Key::on("checkpoint_serialization", "PyTorch's file format")
        .no_effect("checkpoints are safetensors inside"),
    Key::block("writer", &WRITER, "How files are written"),
]);

/// `nebula`.
pub(super) const NEBULA: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Use Nebula"),
        Key::on("enable_nebula_load", "Load from Nebula"),
        Key::text("load_path", "null", "Where from"),
        Key::text("persistent_storage_path", "null", "Where to"),
        Key::positive("persistent_time_interval", "100", "Seconds between saves"),
        Key::positive("num_of_version_in_retention", "2", "Versions kept"),
    ],
);

/// `datastates_ckpt`.
pub(super) const DATASTATES: Block =
    Block::on_by_presence(&[Key::number("host_cache_size", "null", "GB of host memory")]);

/// `hybrid_engine`.
pub(super) const HYBRID_ENGINE: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Switch between training and generation"),
        Key::positive("max_out_tokens", "512", "Longest output").alias(&["max_tokens"]),
        Key::positive("inference_tp_size", "1", "Tensor-parallel degree of generation"),
        Key::off("release_inference_cache", "Free the cache between phases"),
        Key::on("pin_parameters", "Pin parameters"),
        Key::positive("tp_gather_partition_size", "8", "Gather size"),
        Key::off("enable_cuda_graph", "CUDA graphs"),
    ],
);

const TP: Block = Block::new(&[
    Key::positive("tp_size", "1", "Degree"),
    Key::positive("tp_grain_size", "1", "Granularity"),
]);

const LAYER_SPEC: Block = Block::new(&[
    Key::new("patterns", Kind::Texts, "null", "Which layers"),
    Key::choice("partition_type", &["column", "row", "skip"], "null", "How to cut"),
    Key::new("shape", Kind::Any, "null", "Shape"),
    Key::new("partition_dim", Kind::Int(-8, 8), "null", "Axis"),
    Key::new("model_types", Kind::Texts, "null", "Which models"),
    Key::off("gather_output", "Gather after"),
    Key::off("grad_allreduce", "Reduce gradients"),
]);

const PARTITION: Block = Block::new(&[
    Key::on("use_default_specs", "Presets first"),
    Key::off("strict_mode", "Refuse unmatched layers"),
    Key::positive("tp_size", "null", "Degree"),
    Key::count("embedding_partition_dim", "1", "Axis of the embedding"),
    Key::new("lm_head_patterns", Kind::Texts, "null", "Which layer is the head"),
    Key::new("layer_specs", Kind::List(&Kind::Block(&LAYER_SPEC), 0, 1000), "[]", "Per layer"),
]);

/// `tensor_parallel`.
pub(super) const TENSOR_PARALLEL: Block = Block::new(&[
    Key::count("autotp_size", "0", "Degree; 0 is off").asks_nothing(&["1"]),
    Key::text("dtype", "\"fp16\"", "Precision").no_effect("see bf16 and fp16"),
    Key::off("tp_overlap_comm", "Overlap all-reduce"),
    Key::block("tensor_parallel", &TP, "Degree").alias(&["tp"]),
    Key::block("partition_config", &PARTITION, "How to cut"),
    Key::choice(
        "preset_model",
        &["llama", "bloom", "chatglm", "mixtral", "deepseek_v2", "qwen2", "phi3"],
        "null",
        "Preset",
    ),
    Key::off("keep_module_on_host", "Keep the whole model in host memory"),
    Key::off("replace_with_kernel_inject", "Inject kernels").alias(&["kernel_inject"]),
]);

/// `expert_parallel`.
pub(super) const EXPERT_PARALLEL: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Spread experts"),
        Key::positive("autoep_size", "1", "Degree"),
        Key::positive("expert_tensor_parallel_size", "1", "Tensor-parallel degree of an expert"),
        Key::off("validate_folding_routing", "Check routing"),
        Key::choice(
            "preset_model",
            &["mixtral", "qwen3_moe", "qwen3_5_moe", "deepseek_v2", "deepseek_v3"],
            "null",
            "Preset",
        ),
        Key::text("moe_layer_pattern", "null", "Which blocks"),
        Key::text("expert_pattern", "null", "Which experts"),
        Key::text("router_pattern", "null", "Which router"),
        Key::on("use_grouped_mm", "Grouped products"),
        Key::off("disable_triton_grouped_mm", "Without Triton"),
        Key::new("route_norm", Kind::Bool, "null", "Normalise routes"),
        Key::number("route_scale", "1.0", "Scale routes"),
        Key::text("score_apply", "\"auto\"", "Where scores apply"),
        Key::text("combine_impl", "\"auto\"", "How to combine"),
        Key::text("score_func", "\"auto\"", "Score function"),
        Key::new(
            "top_k",
            Kind::Either(&[Kind::Choice(&["auto"]), Kind::Int(1, i64::MAX)]),
            "\"auto\"",
            "Experts of a token",
        ),
        Key::new("load_balance_coeff", Kind::Any, "null", "Must be unset"),
        Key::number("routed_scaling_factor", "null", "Scale of routed experts"),
        Key::positive("num_expert_groups", "null", "Groups"),
        Key::positive("num_limited_groups", "null", "Groups of a token"),
        Key::text("expert_w1", "null", "Name of w1"),
        Key::text("expert_w2", "null", "Name of w2"),
        Key::text("expert_w3", "null", "Name of w3"),
        Key::text("num_experts_attr", "null", "Where the count is"),
        Key::text("top_k_attr", "null", "Where k is"),
        Key::new("has_shared_experts", Kind::Bool, "null", "Shared experts"),
        Key::text("shared_experts_pattern", "null", "Which are shared"),
        Key::text("shared_experts_gate_pattern", "null", "Their gate"),
    ],
);

/// `compile`.
pub(super) const COMPILE: Block = Block::new(&[
    Key::off("deepcompile", "Graph passes"),
    Key::off("free_activation", "Free activations early"),
    Key::count("free_activation_threshold", "10485760", "Only larger ones"),
    Key::off("offload_activation", "Move activations to the host"),
    Key::on("offload_activation_pin_memory", "Pin them"),
    Key::off("offload_opt_states", "Move optimizer states"),
    Key::on("double_buffer", "Two buffers"),
    Key::off("symmetric_memory", "Symmetric memory"),
    Key::off("debug_log", "Log passes"),
    Key::off("offload_parameters", "Move parameters"),
    Key::off("sync_before_reduce", "Wait before a reduction"),
    Key::off("sync_after_reduce", "Wait after a reduction"),
    Key::off("sync_before_allgather", "Wait before a gather"),
    Key::off("sync_after_allgather", "Wait after a gather"),
    Key::on("keep_int_input_tensors", "Keep integer inputs"),
    Key::off("keep_all_input_tensors", "Keep all inputs"),
    Key::new(
        "passes",
        Kind::List(&Kind::Choice(&["z1", "z3", "autosp", "autotp"]), 0, 16),
        "null",
        "Which passes",
    )
    .asks_nothing(&["[]"]),
]);

const QUANT_GROUP: Block = Block::new(&[
    Key::positive("num_bits", "null", "Bits"),
    Key::positive("group_size", "null", "Values that share a scale"),
    Key::new("group_dim", Kind::Int(-8, 8), "null", "Axis"),
    Key::new("symmetric", Kind::Bool, "null", "Without an offset"),
]);

/// `weight_quantization`.
pub(super) const WEIGHT_QUANTIZATION: Block = Block::on_by_presence(&[
    Key::block("quantized_initialization", &QUANT_GROUP, "Quantise while loading"),
    Key::new("post_init_quant", Kind::Map(&Kind::Block(&QUANT_GROUP)), "null", "Quantise later"),
]);
