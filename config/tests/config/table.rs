//! The table: files, what is found in each, and what its values become.

use super::{check, optimizers};
use planaria_config::Severity;

/// One file.
pub(super) struct Row {
    /// What it is about.
    name: &'static str,
    /// Nodes of the run, 0 for "not said".
    nodes: u64,
    /// The file.
    file: &'static str,
    /// Errors and warnings, sorted: `E rule path` or `W rule path`.
    findings: &'static [&'static str],
    /// Values after resolving: path and JSON text.
    values: &'static [(&'static str, &'static str)],
}

pub(super) const fn good(
    name: &'static str,
    file: &'static str,
    values: &'static [(&'static str, &'static str)],
) -> Row {
    Row { name, nodes: 0, file, findings: &[], values }
}

pub(super) const fn bad(
    name: &'static str,
    file: &'static str,
    findings: &'static [&'static str],
) -> Row {
    Row { name, nodes: 0, file, findings, values: &[] }
}

const fn batch(
    name: &'static str,
    nodes: u64,
    file: &'static str,
    findings: &'static [&'static str],
    values: &'static [(&'static str, &'static str)],
) -> Row {
    Row { name, nodes, file, findings, values }
}

const MICRO: &str = "train_micro_batch_size_per_gpu";
const TRAIN: &str = "train_batch_size";
const STEPS: &str = "gradient_accumulation_steps";

const ROWS: &[Row] = &[
    // Batch numbers: cases C01 to C03 and DeepSpeed's four vectors.
    batch(
        "vector 32 16 1",
        2,
        r#"{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 1}"#,
        &[],
        &[(TRAIN, "32")],
    ),
    batch(
        "vector 32 8 2",
        2,
        r#"{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2}"#,
        &[],
        &[(MICRO, "8")],
    ),
    batch(
        "vector 33 17 2",
        2,
        r#"{"train_batch_size": 33, "train_micro_batch_size_per_gpu": 17, "gradient_accumulation_steps": 2}"#,
        &["E batch train_batch_size"],
        &[],
    ),
    batch(
        "vector 32 18 1",
        2,
        r#"{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 18, "gradient_accumulation_steps": 1}"#,
        &["E batch train_batch_size"],
        &[],
    ),
    batch(
        "C01 product",
        2,
        r#"{"train_batch_size": 48, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}"#,
        &["E batch train_batch_size"],
        &[],
    ),
    batch(
        "C02a micro and accumulation",
        2,
        r#"{"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 4}"#,
        &[],
        &[(TRAIN, "24")],
    ),
    batch("C02b train only", 2, r#"{"train_batch_size": 24}"#, &[], &[(MICRO, "12"), (STEPS, "1")]),
    batch(
        "C02c train and accumulation",
        2,
        r#"{"train_batch_size": 24, "gradient_accumulation_steps": 4}"#,
        &[],
        &[(MICRO, "3")],
    ),
    batch(
        "C02d cannot be shared",
        2,
        r#"{"train_batch_size": 25}"#,
        &["E batch train_batch_size"],
        &[],
    ),
    batch("C02e none", 2, "{}", &["E batch train_batch_size"], &[]),
    batch(
        "only accumulation",
        2,
        r#"{"gradient_accumulation_steps": 4}"#,
        &["E batch gradient_accumulation_steps"],
        &[],
    ),
    batch(
        "C03 four nodes",
        4,
        r#"{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}"#,
        &[],
        &[(TRAIN, "32")],
    ),
    good(
        "micro only, one node",
        r#"{"train_micro_batch_size_per_gpu": 4}"#,
        &[(TRAIN, "4"), (STEPS, "1")],
    ),
    bad(
        "too many leaves",
        r#"{"train_batch_size": 1000000, "train_micro_batch_size_per_gpu": 1}"#,
        &["E batch train_batch_size"],
    ),
    bad("a batch of zero", r#"{"train_batch_size": 0}"#, &["E range train_batch_size"]),
    bad("a batch in words", r#"{"train_batch_size": "many"}"#, &["E type train_batch_size"]),
    good(
        "C04 batch keys auto",
        r#"{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}"#,
        &[(TRAIN, "8"), (MICRO, "8"), (STEPS, "1")],
    ),
    // "auto": case C04.
    good(
        "C04 auto from the model",
        r#"{"train_batch_size": 8, "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto",
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": "auto"}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"}},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"},
        "planaria": {"model": {"preset": "124m"}, "data": {"text": "a.txt"}, "run": {"steps": 500}}}"#,
        &[
            (MICRO, "8"),
            ("zero_optimization.reduce_bucket_size", "589824"),
            ("zero_optimization.stage3_prefetch_bucket_size", "530841"),
            ("zero_optimization.stage3_param_persistence_threshold", "7680"),
            ("optimizer.params.lr", "0.001"),
            ("gradient_clipping", "1.0"),
            ("scheduler.params.warmup_max_lr", "0.001"),
            ("scheduler.params.total_num_steps", "500"),
            ("scheduler.params.warmup_num_steps", "50"),
        ],
    ),
    good(
        "auto lr on trained weights",
        r#"{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "planaria": {"model": {"init_from": "gpt2"}, "data": {"text": "a.txt", "sequence_length": 64}, "run": {"steps": 5}}}"#,
        &[("optimizer.params.lr", "5e-5")],
    ),
    bad(
        "auto without a width is named",
        r#"{"train_batch_size": 8, "zero_optimization": {"reduce_bucket_size": "auto"}}"#,
        &["W auto zero_optimization.reduce_bucket_size"],
    ),
    good(
        "C09 both auto",
        r#"{"train_batch_size": 8, "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}"#,
        &[("bf16.enabled", "true"), ("fp16.enabled", "false")],
    ),
    // Numbers as users write them: case C05.
    good(
        "C05 exact integers",
        r#"{"train_batch_size": 8, "zero_optimization": {"reduce_bucket_size": 5e8, "allgather_bucket_size": 2E+8, "sub_group_size": 1e9, "stage3_max_live_parameters": 1.5e3}}"#,
        &[
            ("zero_optimization.reduce_bucket_size", "500000000"),
            ("zero_optimization.allgather_bucket_size", "200000000"),
            ("zero_optimization.sub_group_size", "1000000000"),
            ("zero_optimization.stage3_max_live_parameters", "1500"),
        ],
    ),
    bad(
        "C05 a number in quotes",
        r#"{"train_batch_size": 8, "zero_optimization": {"reduce_bucket_size": "5e8"}}"#,
        &["W numeric-string zero_optimization.reduce_bucket_size"],
    ),
    bad(
        "a rate in quotes",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": "5e-5"}}}"#,
        &["W numeric-string optimizer.params.lr"],
    ),
    bad(
        "C10 a stage in quotes",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": "3"}}"#,
        &["W numeric-string zero_optimization.stage"],
    ),
    bad("half a step", r#"{"train_batch_size": 8.5}"#, &["E type train_batch_size"]),
    bad("an absurd exponent", r#"{"train_batch_size": 1e999999}"#, &["E range train_batch_size"]),
    bad(
        "an infinite rate",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 1e999}}}"#,
        &["E range optimizer.params.lr"],
    ),
    bad(
        "a boolean in quotes",
        r#"{"train_batch_size": 8, "bf16": {"enabled": "true"}}"#,
        &["E type bf16.enabled"],
    ),
    bad(
        "a boolean as a number",
        r#"{"train_batch_size": 8, "wall_clock_breakdown": 1}"#,
        &["E type wall_clock_breakdown"],
    ),
    // Bucket sizes: case C06.
    bad(
        "C06 bucket 0",
        r#"{"train_batch_size": 8, "zero_optimization": {"reduce_bucket_size": 0}}"#,
        &["E range zero_optimization.reduce_bucket_size"],
    ),
    bad(
        "C06 bucket -5",
        r#"{"train_batch_size": 8, "zero_optimization": {"reduce_bucket_size": -5}}"#,
        &["E range zero_optimization.reduce_bucket_size"],
    ),
    good(
        "C06 bucket 1",
        r#"{"train_batch_size": 8, "zero_optimization": {"reduce_bucket_size": 1}}"#,
        &[("zero_optimization.reduce_bucket_size", "1")],
    ),
    // Unknown keys: case C07.
    bad(
        "C07 misspelt",
        r#"{"train_batch_size": 8, "gradient_cliping": 1.0, "zero_optimization": {"stag": 2}}"#,
        &["E unknown-key gradient_cliping", "E unknown-key zero_optimization.stag"],
    ),
    bad(
        "a key one level too high",
        r#"{"train_batch_size": 8, "stage": 2}"#,
        &["E unknown-key stage"],
    ),
    bad(
        "a parameter beside params",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Adam", "lr": 0.1}}"#,
        &["E unknown-key optimizer.lr"],
    ),
    bad(
        "unknown in dict-parsed blocks",
        r#"{"train_batch_size": 8, "aio": {"blok_size": 1}, "activation_checkpointing": {"cpu_checkpoint": true}, "checkpoint": {"tag": "x"}}"#,
        &[
            "E unknown-key activation_checkpointing.cpu_checkpoint",
            "E unknown-key aio.blok_size",
            "E unknown-key checkpoint.tag",
        ],
    ),
    bad(
        "unknown in planaria",
        r#"{"train_batch_size": 8, "planaria": {"modell": {}, "run": {"step": 5}}}"#,
        &["E unknown-key planaria.modell", "E unknown-key planaria.run.step"],
    ),
    bad(
        "offload_optimizer has no buffer_size",
        r#"{"train_batch_size": 8, "zero_optimization": {"offload_optimizer": {"device": "none", "buffer_size": 5}}}"#,
        &["E unknown-key zero_optimization.offload_optimizer.buffer_size"],
    ),
    bad(
        "offload_param has no ratio",
        r#"{"train_batch_size": 8, "zero_optimization": {"offload_param": {"ratio": 0.5}}}"#,
        &["E unknown-key zero_optimization.offload_param.ratio"],
    ),
    bad(
        "a removed doc key",
        r#"{"train_batch_size": 8, "zero_optimization": {"grad_hooks": true}}"#,
        &["E unknown-key zero_optimization.grad_hooks"],
    ),
    // Offload: case C08.
    bad(
        "C08 offload_param at stage 2",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}"#,
        &[
            "E contradiction zero_optimization.offload_param.device",
            "E not-built zero_optimization.offload_param.device",
        ],
    ),
    bad(
        "C08 nvme without a path",
        r#"{"train_batch_size": 8, "zero_optimization": {"offload_optimizer": {"device": "nvme"}}}"#,
        &[
            "E contradiction zero_optimization.offload_optimizer.device",
            "E missing zero_optimization.offload_optimizer.device",
            "E not-built zero_optimization.offload_optimizer.device",
        ],
    ),
    bad(
        "a split update below stage 3",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}}"#,
        &[
            "E contradiction zero_optimization.offload_optimizer.ratio",
            "E not-built zero_optimization.offload_optimizer.device",
        ],
    ),
    good(
        "an offload block that is off",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none", "ratio": 0.5, "pin_memory": false}}}"#,
        &[],
    ),
    // Precision: case C09.
    bad(
        "C09 both on",
        r#"{"train_batch_size": 8, "fp16": {"enabled": true}, "bf16": {"enabled": true}}"#,
        &["E contradiction bf16.enabled"],
    ),
    bad(
        "C09 a loss scale in bf16",
        r#"{"train_batch_size": 8, "bf16": {"enabled": true, "loss_scale": 0, "hysteresis": 2}}"#,
        &["E unknown-key bf16.hysteresis", "E unknown-key bf16.loss_scale"],
    ),
    good(
        "fp16 present and off",
        r#"{"train_batch_size": 8, "fp16": {"enabled": false, "loss_scale": 0, "initial_scale_power": 12}}"#,
        &[("fp16.initial_scale_power", "12")],
    ),
    bad(
        "a loss scale below zero",
        r#"{"train_batch_size": 8, "fp16": {"loss_scale": -1}}"#,
        &["E range fp16.loss_scale"],
    ),
    bad(
        "a smallest scale of zero",
        r#"{"train_batch_size": 8, "fp16": {"min_loss_scale": 0}}"#,
        &["E range fp16.min_loss_scale"],
    ),
    bad(
        "param_dtype disagrees",
        r#"{"train_batch_size": 8, "bf16": {"enabled": true}, "data_types": {"param_dtype": "fp32"}}"#,
        &["E contradiction data_types.param_dtype"],
    ),
    bad(
        "bf16 states",
        r#"{"train_batch_size": 8, "bf16": {"enabled": true, "bf16_optimizer_states": true}}"#,
        &["E not-built bf16.bf16_optimizer_states"],
    ),
    bad(
        "amp",
        r#"{"train_batch_size": 8, "amp": {"enabled": true}}"#,
        &["E not-built amp.enabled"],
    ),
    // The file itself: case C10.
    good(
        "C10 comments, commas, byte-order mark",
        "\u{feff}{ // one\n\"train_batch_size\": 8, # two\n}",
        &[(TRAIN, "8")],
    ),
    bad("C10 empty", "", &["E json-syntax "]),
    bad("C10 a bare list", "[]", &["E type "]),
    bad(
        "C10 doubled key",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": 1, "stage": 3}}"#,
        &["E duplicate-key zero_optimization.stage"],
    ),
    bad("cut off", r#"{"train_batch_size": 8"#, &["E json-syntax "]),
    // Old names.
    good(
        "bfloat16",
        r#"{"train_batch_size": 8, "bfloat16": {"enabled": true}}"#,
        &[("bf16.enabled", "true")],
    ),
    bad(
        "bf16 twice",
        r#"{"train_batch_size": 8, "bfloat16": {"enabled": true}, "bf16": {"enabled": false}}"#,
        &["E contradiction bf16"],
    ),
    good(
        "zero_optimization true",
        r#"{"train_batch_size": 8, "zero_optimization": true}"#,
        &[("zero_optimization.stage", "1")],
    ),
    good(
        "zero_optimization false",
        r#"{"train_batch_size": 8, "zero_optimization": false}"#,
        &[("zero_optimization.stage", "0")],
    ),
    bad(
        "cpu_offload",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": 2, "cpu_offload": true}}"#,
        &["E not-built zero_optimization.offload_optimizer.device"],
    ),
    good(
        "cpu_offload off",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": 2, "cpu_offload": false, "cpu_offload_use_pin_memory": true}}"#,
        &[],
    ),
    bad(
        "old and new offload",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": 2, "cpu_offload": true, "offload_optimizer": {"device": "none"}}}"#,
        &["E contradiction zero_optimization.cpu_offload"],
    ),
    good(
        "old name of a stage-3 key",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": 3, "stage3_gather_fp16_weights_on_model_save": true}}"#,
        &[("zero_optimization.stage3_gather_16bit_weights_on_model_save", "true")],
    ),
    bad(
        "old and new of a stage-3 key",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage3_gather_fp16_weights_on_model_save": true, "stage3_gather_16bit_weights_on_model_save": true}}"#,
        &["E contradiction zero_optimization.stage3_gather_fp16_weights_on_model_save"],
    ),
    good(
        "without the stage3 prefix",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": 3, "prefetch_bucket_size": 5, "max_live_parameters": 6}}"#,
        &[
            ("zero_optimization.stage3_prefetch_bucket_size", "5"),
            ("zero_optimization.stage3_max_live_parameters", "6"),
        ],
    ),
    bad(
        "legacy_stage1",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": 1, "legacy_stage1": true}}"#,
        &["E refused zero_optimization.legacy_stage1"],
    ),
    // Removed upstream.
    bad(
        "elasticity",
        r#"{"train_batch_size": 8, "elasticity": {"enabled": true, "max_train_batch_size": 100, "micro_batch_sizes": [8, 10]}}"#,
        &["E refused elasticity"],
    ),
    bad(
        "elasticity off",
        r#"{"train_batch_size": 8, "elasticity": {"enabled": false}}"#,
        &["W refused elasticity"],
    ),
    bad(
        "sparse attention",
        r#"{"train_batch_size": 8, "sparse_attention": {"mode": "fixed", "block": 16}}"#,
        &["E refused sparse_attention"],
    ),
    bad(
        "MiCS",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": 3, "mics_shard_size": 4}}"#,
        &["E refused zero_optimization.mics_shard_size"],
    ),
    bad(
        "1-bit Adam",
        r#"{"train_batch_size": 8, "optimizer": {"type": "OneBitAdam", "params": {"lr": 1e-3, "freeze_step": 2}}}"#,
        &["E refused optimizer.type"],
    ),
    // Not built.
    bad(
        "profiler on",
        r#"{"train_batch_size": 8, "flops_profiler": {"enabled": true, "profile_step": 5}}"#,
        &["E not-built flops_profiler.enabled"],
    ),
    good(
        "profiler off",
        r#"{"train_batch_size": 8, "flops_profiler": {"enabled": false, "profile_step": 5}, "wandb": {"enabled": false, "project": "x"}}"#,
        &[],
    ),
    bad(
        "ZenFlow is on by presence",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}}}"#,
        &["E not-built zero_optimization.zenflow"],
    ),
    bad(
        "tensor parallelism",
        r#"{"train_batch_size": 8, "tensor_parallel": {"autotp_size": 4}}"#,
        &["E not-built tensor_parallel.autotp_size"],
    ),
    good(
        "degrees of one",
        r#"{"train_batch_size": 8, "tensor_parallel": {"autotp_size": 1}, "sequence_parallel_size": 1, "pipeline": {"stages": 1}}"#,
        &[],
    ),
    bad(
        "fast sums",
        r#"{"train_batch_size": 8, "planaria": {"numerics": {"mode": "fast"}}}"#,
        &["E not-built planaria.numerics.mode"],
    ),
    bad(
        "a ring",
        r#"{"train_batch_size": 8, "planaria": {"ring": {"replicas": 1, "seeds": ["a:1"], "bulk": "auto"}}}"#,
        &["E not-built planaria.ring.replicas", "E not-built planaria.ring.seeds"],
    ),
    bad(
        "quantised gathers",
        r#"{"train_batch_size": 8, "zero_optimization": {"stage": 3, "zero_quantized_weights": true, "zero_hpz_partition_size": 8}}"#,
        &[
            "E not-built zero_optimization.zero_hpz_partition_size",
            "E not-built zero_optimization.zero_quantized_weights",
        ],
    ),
    bad(
        "a torch optimizer",
        r#"{"train_batch_size": 8, "optimizer": {"type": "RMSprop", "params": {"alpha": 0.9}}}"#,
        &["E not-built optimizer.type"],
    ),
    bad(
        "a torch schedule",
        r#"{"train_batch_size": 8, "scheduler": {"type": "StepLR", "params": {"step_size": 9}}}"#,
        &["E not-built scheduler.type"],
    ),
    // Optimizers and schedules.
    good(
        "no optimizer is AdamW",
        r#"{"train_batch_size": 8}"#,
        &[("optimizer.type", "\"adamw\""), ("optimizer.params.lr", "0.001")],
    ),
    good(
        "any case",
        r#"{"train_batch_size": 8, "optimizer": {"type": "ADAM", "params": {"lr": 3e-4}}}"#,
        &[("optimizer.type", "\"adam\""), ("optimizer.params.lr", "0.0003")],
    ),
    good(
        "plain Adam",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"adam_w_mode": false}}}"#,
        &[],
    ),
    bad(
        "adamw ignores adam_w_mode",
        r#"{"train_batch_size": 8, "optimizer": {"type": "AdamW", "params": {"adam_w_mode": false}}}"#,
        &["W adam optimizer.params.adam_w_mode"],
    ),
    bad(
        "an unknown optimizer",
        r#"{"train_batch_size": 8, "optimizer": {"type": "AdmW"}}"#,
        &["E choice optimizer.type"],
    ),
    bad(
        "an optimizer without a type",
        r#"{"train_batch_size": 8, "optimizer": {"params": {"lr": 1}}}"#,
        &["E missing optimizer.type"],
    ),
    bad(
        "max_grad_norm",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"max_grad_norm": 1.0}}}"#,
        &["E refused optimizer.params.max_grad_norm"],
    ),
    bad(
        "three betas",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"betas": [0.9, 0.99, 0.999]}}}"#,
        &["E range optimizer.params.betas"],
    ),
    bad(
        "a beta of one",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"betas": [0.9, 1.0]}}}"#,
        &["E range optimizer.params.betas[1]"],
    ),
    bad(
        "a tiny eps",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"eps": 1e-12}}}"#,
        &["W eps optimizer.params.eps"],
    ),
    bad(
        "an unknown parameter",
        r#"{"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"lr": 0.1, "betas": [0.9, 0.99]}}}"#,
        &["E unknown-key optimizer.params.betas"],
    ),
    bad(
        "Nesterov without momentum",
        r#"{"train_batch_size": 8, "optimizer": {"type": "SGD", "params": {"nesterov": true}}}"#,
        &["E contradiction optimizer.params.nesterov"],
    ),
    bad(
        "a schedule in lower case",
        r#"{"train_batch_size": 8, "scheduler": {"type": "warmuplr"}}"#,
        &["E choice scheduler.type"],
    ),
    bad(
        "no total",
        r#"{"train_batch_size": 8, "scheduler": {"type": "WarmupCosineLR", "params": {"warmup_num_steps": 5}}}"#,
        &["E missing scheduler.params.total_num_steps"],
    ),
    bad(
        "a warm-up longer than the run",
        r#"{"train_batch_size": 8, "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 100}}}"#,
        &["W schedule scheduler.params.total_num_steps"],
    ),
    bad(
        "OneCycle upside down",
        r#"{"train_batch_size": 8, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.01}}}"#,
        &["E contradiction scheduler.params.cycle_min_lr"],
    ),
    bad(
        "OneCycle without rates",
        r#"{"train_batch_size": 8, "scheduler": {"type": "OneCycle"}}"#,
        &["E missing scheduler.params.cycle_max_lr", "E missing scheduler.params.cycle_min_lr"],
    ),
    bad(
        "an unknown warm-up",
        r#"{"train_batch_size": 8, "scheduler": {"type": "WarmupLR", "params": {"warmup_type": "cosine"}}}"#,
        &["E choice scheduler.params.warmup_type"],
    ),
    bad(
        "a negative clip",
        r#"{"train_batch_size": 8, "gradient_clipping": -1}"#,
        &["E range gradient_clipping"],
    ),
    // The model.
    bad(
        "heads do not divide",
        r#"{"train_batch_size": 8, "planaria": {"model": {"layers": 2, "width": 100, "heads": 3, "max_length": 8}}}"#,
        &["E contradiction planaria.model.width"],
    ),
    bad(
        "key heads do not divide",
        r#"{"train_batch_size": 8, "planaria": {"model": {"family": "llama", "layers": 2, "width": 128, "heads": 4, "kv_heads": 3, "max_length": 8}}}"#,
        &["E contradiction planaria.model.kv_heads"],
    ),
    bad(
        "rope in gpt2",
        r#"{"train_batch_size": 8, "planaria": {"model": {"preset": "tiny", "rope_theta": 5}}}"#,
        &["E contradiction planaria.model.rope_theta"],
    ),
    bad(
        "an unknown preset",
        r#"{"train_batch_size": 8, "planaria": {"model": {"preset": "125m"}}}"#,
        &["E choice planaria.model.preset"],
    ),
    bad(
        "a shape beside weights",
        r#"{"train_batch_size": 8, "planaria": {"model": {"init_from": "gpt2", "layers": 3}, "data": {"sequence_length": 8}}}"#,
        &["E contradiction planaria.model.layers"],
    ),
    bad(
        "adapters without a rank",
        r#"{"train_batch_size": 8, "planaria": {"model": {"init_from": "gpt2"}, "lora": {"alpha": 16}, "data": {"sequence_length": 8}}}"#,
        &["E missing planaria.lora.rank"],
    ),
    bad(
        "adapters of a new model",
        r#"{"train_batch_size": 8, "planaria": {"model": {"preset": "tiny"}, "lora": {"rank": 8}}}"#,
        &["E contradiction planaria.lora.rank"],
    ),
    bad(
        "too long a sequence",
        r#"{"train_batch_size": 8, "planaria": {"model": {"preset": "tiny"}, "data": {"sequence_length": 512}}}"#,
        &["E contradiction planaria.data.sequence_length"],
    ),
    bad(
        "no shape",
        r#"{"train_batch_size": 8, "planaria": {"model": {"heads": 3}}}"#,
        &[
            "E missing planaria.model.layers",
            "E missing planaria.model.max_length",
            "E missing planaria.model.width",
        ],
    ),
    bad(
        "an unknown tokenizer",
        r#"{"train_batch_size": 8, "planaria": {"data": {"tokenizer": "gtp2"}}}"#,
        &["E choice planaria.data.tokenizer"],
    ),
    good(
        "the tokenizer of GPT-4o",
        r#"{"train_batch_size": 8, "planaria": {"model": {"preset": "tiny"}, "data": {"text": "a.txt", "tokenizer": "o200k"}, "run": {"steps": 5}}}"#,
        &[("planaria.data.tokenizer", "\"o200k\"")],
    ),
    bad(
        "text and tokens",
        r#"{"train_batch_size": 8, "planaria": {"data": {"text": "a", "tokens": "b"}}}"#,
        &["E contradiction planaria.data.tokens"],
    ),
    good(
        "a preset with another width",
        r#"{"train_batch_size": 8, "planaria": {"model": {"preset": "124m", "width": 512}, "data": {"max_bytes": "24MiB"}}}"#,
        &[
            ("planaria.model.heads", "8"),
            ("planaria.model.mlp_width", "2048"),
            ("planaria.model.layers", "12"),
            ("planaria.data.max_bytes", "25165824"),
        ],
    ),
    good(
        "a pipeline of one stage",
        r#"{"train_batch_size": 8, "pipeline": {"stages": 1, "partition": "uniform", "seed_layers": true}}"#,
        &[],
    ),
    bad(
        "an optimizer without a block",
        r#"{"train_batch_size": 8, "optimizer": "adam"}"#,
        &["E type optimizer"],
    ),
    bad(
        "a model that is no block says one thing",
        r#"{"train_batch_size": 8, "planaria": {"model": 5}}"#,
        &["E type planaria.model"],
    ),
    bad(
        "more heads than width",
        r#"{"train_batch_size": 8, "planaria": {"model": {"layers": 2, "width": 2, "heads": 3, "max_length": 8}}}"#,
        &["E contradiction planaria.model.width"],
    ),
    bad(
        "an absurd model",
        r#"{"train_batch_size": 8, "planaria": {"model": {"layers": 1e18, "width": 1e18, "max_length": 1e18}}}"#,
        &[
            "E range planaria.model.layers",
            "E range planaria.model.max_length",
            "E range planaria.model.width",
        ],
    ),
];

fn findings(text: &str, nodes: u64) -> (Vec<String>, planaria_config::Configuration) {
    let configuration = check(text, (nodes > 0).then_some(nodes));
    let mut found: Vec<String> = configuration
        .report
        .diagnostics
        .iter()
        .filter(|d| d.severity != Severity::Note)
        .map(|d| format!("{} {} {}", &d.severity.word()[..1].to_uppercase(), d.rule, d.path))
        .collect();
    found.sort();
    (found, configuration)
}

fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().chain(optimizers::ROWS)
}

/// Every row: exactly these errors and warnings, and these values.
#[test]
fn every_row_is_as_the_table_says() {
    let mut wrong = Vec::new();
    for row in rows() {
        let (found, configuration) = findings(row.file, row.nodes);
        if found != row.findings {
            let text = configuration.report.to_text();
            wrong.push(format!("{}: {found:?}\n  not {:?}\n{text}", row.name, row.findings));
        }
        for (path, value) in row.values {
            let got = configuration.settings.setting(path).map(|s| s.value.clone());
            let expected: serde_json::Value = serde_json::from_str(value).unwrap();
            if got.as_ref() != Some(&expected) {
                wrong.push(format!("{}: {path} is {got:?}, not {expected}", row.name));
            }
        }
    }
    let count = rows().count();
    assert!(wrong.is_empty(), "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count >= 100, "{count} rows");
}

/// Every finding names a place or says what is missing, and says what to do or which name is near.
#[test]
fn every_finding_helps() {
    for row in rows() {
        for d in findings(row.file, row.nodes).1.report.diagnostics.iter() {
            if d.severity == Severity::Note {
                continue;
            }
            let helps = d.fix.is_some() || d.did_you_mean.is_some() || d.rule == "choice";
            assert!(helps, "{}: {} {}", row.name, d.rule, d.message);
            let placed = d.range.is_some() || matches!(d.rule, "missing" | "batch");
            assert!(placed, "{}: {} {}", row.name, d.rule, d.message);
        }
    }
}
