//! The top level.

use super::blocks::{
    AUTOTUNING, CHECKPOINT, COMET, COMMS_LOGGER, COMPILE, CSV_MONITOR, DATASTATES, ELASTICITY,
    EXPERT_PARALLEL, FLOPS_PROFILER, HYBRID_ENGINE, NEBULA, PIPELINE, RECOMPUTATION,
    TENSOR_PARALLEL, TENSORBOARD, TIMERS, WANDB, WEIGHT_QUANTIZATION,
};
use super::data_blocks::{
    CURRICULUM, DATA_EFFICIENCY, EIGENVALUE, OPEN, PROGRESSIVE_LAYER_DROP, QUANTIZE_TRAINING,
};
use super::features;
use super::key::{Auto, Block, Key, Kind, Status};
use super::optimizers::{AIO, OPTIMIZERS};
use super::planaria::PLANARIA;
use super::precision::{AMP, AUTOCAST, BF16, DATA_TYPES, FP16};
use super::schedules::SCHEDULES;
use super::zero::ZERO;

const EXACT: &str = "gradients are summed exactly and divided once, so there is nothing to scale";
const DTYPES: &[&str] = &["fp16", "bf16", "fp32"];
const REMOVED_8490: &str = "DeepSpeed removed it after 0.19.6 (#8490); leave the block out";

/// Everything a configuration may hold.
pub const TOP: Block = Block::new(&[
    Key::positive("train_batch_size", "null", "Sequences of one optimizer step, over all nodes")
        .auto(Auto::Batch),
    Key::positive(
        "train_micro_batch_size_per_gpu",
        "null",
        "Sequences computed at once: one leaf",
    )
    .auto(Auto::Batch),
    Key::positive("gradient_accumulation_steps", "null", "Leaves of one node in one step")
        .auto(Auto::Batch),
    Key::on("managed_gradient_accumulation", "The framework decides where a step ends")
        .not_built("a step is always whole: a caller cannot end it early"),
    Key::positive("steps_per_print", "null", "Print a line every so many steps; 10 if unset"),
    Key::off("dump_state", "Print the configuration at start")
        .no_effect("`planaria config explain` prints it, and every checkpoint holds it"),
    Key::new("optimizer", Kind::Variants(&OPTIMIZERS), "null", "The optimizer; AdamW if unset"),
    Key::new(
        "scheduler",
        Kind::Variants(&SCHEDULES),
        "null",
        "The learning-rate schedule; constant if unset",
    ),
    Key::block("fp16", &FP16, "Half precision"),
    Key::block("bf16", &BF16, "bfloat16").alias(&["bfloat16"]),
    Key::block("amp", &AMP, "Apex mixed precision").not_built("use bf16: Apex is a CUDA library"),
    Key::block("torch_autocast", &AUTOCAST, "PyTorch's autocast")
        .not_built("use bf16: it keeps norms, softmax and loss in fp32 as autocast does"),
    Key::block("data_types", &DATA_TYPES, "Precisions of gradients and parameters"),
    Key::new(
        "zero_optimization",
        Kind::Either(&[Kind::Block(&ZERO), Kind::Bool]),
        "null",
        "ZeRO: what is sharded, where it lives; true means stage 1",
    ),
    Key::off("zero_allow_untested_optimizer", "Allow any optimizer with ZeRO")
        .no_effect("every optimizer here works at every stage"),
    Key::on("zero_force_ds_cpu_optimizer", "Insist on DeepSpeed's CPU optimizer")
        .no_effect("there is one implementation of each optimizer"),
    Key::count("allgather_size", "null", "Old name, beside zero_optimization: true")
        .no_effect("parameters are cut into fixed chunks; there are no buckets"),
    Key::number("gradient_clipping", "1.0", "Clip the global gradient norm to this; 0 is off"),
    Key::choice("communication_data_type", DTYPES, "null", "Precision of reductions")
        .no_effect("gradients are summed exactly"),
    Key::choice("seq_parallel_communication_data_type", DTYPES, "\"fp32\"", "Precision of all-to-all")
        .not_built("sequence parallelism is not built yet"),
    Key::off("prescale_gradients", "Divide before the reduction").no_effect(EXACT),
    Key::new(
        "gradient_predivide_factor",
        Kind::FloatAbove(0.0, f64::MAX),
        "1.0",
        "Divide by this before the reduction",
    )
    .no_effect(EXACT),
    Key::choice("gradient_allreduce_op", &["mean", "sum"], "\"mean\"", "Mean or sum over ranks")
        .not_built("the loss is the mean over the labels of the global batch; scale lr instead"),
    Key::off("sparse_gradients", "Send embedding gradients as rows")
        .no_effect("embedding gradients are emitted as rows anyway"),
    Key::off("disable_allgather", "Broadcast instead of all-gather")
        .no_effect("one node gathers nothing"),
    Key::off("wall_clock_breakdown", "Show where a step's time goes"),
    Key::off("memory_breakdown", "Print memory at each phase")
        .not_built("`planaria plan` shows memory to the byte before the run"),
    Key::off("dataloader_drop_last", "Drop the last short batch")
        .no_effect("every batch is full: samples are drawn by a permutation"),
    Key::text("log_level", "null", "Log level").no_effect("set RUST_LOG, e.g. RUST_LOG=debug"),
    Key::positive("vocabulary_size", "null", "Vocabulary, for a warning")
        .no_effect("the model's vocabulary is planaria.model.vocab"),
    Key::off("use_data_before_expert_parallelism", "Rank order of expert parallelism")
        .not_built("there are no ranks: placement is computed"),
    Key::positive("sequence_parallel_size", "null", "Ulysses degree")
        .asks_nothing(&["1"])
        .not_built("sequence parallelism is not built yet"),
    Key::positive("data_parallel_size", "null", "Data-parallel degree beside it")
        .no_effect("planaria.ring.nodes says how many nodes the batch keys count with"),
    Key::off("graph_harvesting", "CUDA graphs").not_built("CUDA graphs need CUDA"),
    Key::block("aio", &AIO, "Asynchronous disk I/O")
        .no_effect("only NVMe offload would read it, and that is not built yet"),
    Key::block(
        "activation_checkpointing",
        &RECOMPUTATION,
        "Recompute activations in backward: the block's presence turns it on, per block",
    )
    .status(features::RECOMPUTATION),
    Key::block("flops_profiler", &FLOPS_PROFILER, "Profile one step")
        .not_built("`planaria bench step` measures a step against the machine's peak"),
    Key::block("comms_logger", &COMMS_LOGGER, "Log collectives")
        .not_built("it comes with the ring"),
    Key::block("tensorboard", &TENSORBOARD, "TensorBoard event files")
        .status(features::TENSORBOARD),
    Key::block("wandb", &WANDB, "Weights & Biases")
        .not_built("metrics are JSON lines and TensorBoard files; wandb can sync the latter"),
    Key::block("csv_monitor", &CSV_MONITOR, "Metrics as CSV")
        .not_built("metrics are JSON lines and TensorBoard files"),
    Key::block("comet", &COMET, "Comet").not_built("metrics are JSON lines and TensorBoard files"),
    Key::block("timers", &TIMERS, "Throughput timers")
        .no_effect("throughput is always measured, at no cost to the step"),
    Key::block("autotuning", &AUTOTUNING, "Search for a good configuration")
        .not_built("`planaria plan` computes one from measured rates"),
    Key::block("elasticity", &ELASTICITY, "Elastic batch sizes").refused(
        "DeepSpeed removed elasticity after 0.19.6 (#8563). Give train_batch_size and \
         train_micro_batch_size_per_gpu instead: they fix the leaves of a step, whatever the number \
         of nodes",
    ),
    Key::block("data_efficiency", &DATA_EFFICIENCY, "Curricula, dynamic batches, random-LTD")
        .not_built("data efficiency is not built yet"),
    Key::block("curriculum_learning", &CURRICULUM, "Old curriculum on sequence length")
        .not_built("curricula are not built yet"),
    Key::block("compression_training", &OPEN, "Quantisation and pruning").refused(REMOVED_8490),
    Key::block("sparse_attention", &OPEN, "Block-sparse attention")
        .refused("DeepSpeed removed sparse attention after 0.19.6 (#8493); leave the block out"),
    Key::block("progressive_layer_drop", &PROGRESSIVE_LAYER_DROP, "Drop layers progressively")
        .refused("DeepSpeed removed it after 0.19.6 (#8562); leave the block out"),
    Key::block("eigenvalue", &EIGENVALUE, "Estimate the Hessian's eigenvalue")
        .not_built("it served quantised training, which DeepSpeed removed"),
    Key::block("quantize_training", &QUANTIZE_TRAINING, "MoQ")
        .refused("DeepSpeed removed MoQ after 0.19.6; leave the block out"),
    Key::block("pipeline", &PIPELINE, "Pipeline stages")
        .not_built("pipeline stages over nodes are not built yet"),
    Key::block("checkpoint", &CHECKPOINT, "How checkpoints are written"),
    Key::block("nebula", &NEBULA, "Azure's checkpoint service").refused(REMOVED_8490),
    Key::block("datastates_ckpt", &DATASTATES, "DataStates' asynchronous checkpoints")
        .not_built("asynchronous checkpoints are not built; leave the block out"),
    Key::block("hybrid_engine", &HYBRID_ENGINE, "Training and generation in one")
        .not_built("`planaria generate` reads any checkpoint"),
    Key::block("tensor_parallel", &TENSOR_PARALLEL, "Tensor parallelism")
        .not_built("tensor parallelism is not built yet"),
    Key::block("expert_parallel", &EXPERT_PARALLEL, "Expert parallelism")
        .not_built("expert parallelism is not built yet"),
    Key::block("compile", &COMPILE, "DeepCompile")
        .not_built("there is no graph compiler: kernels are fused by hand"),
    Key::block("weight_quantization", &WEIGHT_QUANTIZATION, "Quantised inference weights")
        .not_built("quantised weights are not built yet"),
    Key::new("planaria", Kind::Block(&PLANARIA), "null", "What DeepSpeed has no word for")
        .status(Status::Built),
]);
