//! `zero_optimization`.

use super::features;
use super::key::{Auto, Block, Key, Kind, Status};

const CHUNKS: &str = "parameters are cut into fixed chunks of at most 4 MiB; there are no buckets";
const PREFETCH: &str = "one node holds all parameters; there is nothing to fetch";
const QUANTISED: &str = "quantised transfers (ZeRO++) are inexact and not built yet";
const MICS: &str = "DeepSpeed removed MiCS after 0.19.6 (#8490); leave the key out";

/// The block.
pub(super) const ZERO: Block = Block::new(&[
    Key::new(
        "stage",
        Kind::Int(0, 3),
        "0",
        "What is sharded: 1 optimizer states, 2 also gradients, 3 also parameters. The numbers are \
         the same at every stage",
    ),
    Key::on("contiguous_gradients", "Copy gradients into one buffer").no_effect(CHUNKS),
    Key::on("reduce_scatter", "Reduce-scatter instead of all-reduce").no_effect(CHUNKS),
    bucket("reduce_bucket_size", "5e8", "Elements reduced at once")
        .auto(Auto::WidthSquaredTenths(10)),
    Key::on("use_multi_rank_bucket_allreduce", "Reduce several ranks' buckets together")
        .no_effect(CHUNKS),
    Key::on("allgather_partitions", "All-gather instead of broadcasts").no_effect(CHUNKS),
    bucket("allgather_bucket_size", "5e8", "Elements gathered at once"),
    Key::new("overlap_comm", Kind::Bool, "null", "Overlap reduction with backward")
        .no_effect("one node sends nothing"),
    Key::on("load_from_fp32_weights", "Resume from the fp32 master")
        .no_effect("a run is always resumed from the fp32 master"),
    Key::off("elastic_checkpoint", "Old name of a checkpoint that reshards")
        .no_effect("a checkpoint has no trace of how many nodes wrote it"),
    Key::block("offload_param", &OFFLOAD_PARAM, "Where parameters live; stage 3 only"),
    Key::block("offload_optimizer", &OFFLOAD_OPTIMIZER, "Where optimizer states live"),
    Key::block("zenflow", &ZENFLOW, "Asynchronous updates of unimportant columns")
        .not_built("ZenFlow updates late, which no exact trajectory can follow"),
    bucket("sub_group_size", "1e9", "Elements updated at once at stage 3"),
    Key::positive("zero_hpz_partition_size", "1", "Secondary shards within a node (ZeRO++ hpZ)")
        .not_built("secondary shards (hpZ) are not built yet"),
    Key::off("zero_quantized_weights", "int8 weight gathers (ZeRO++ qwZ)").not_built(QUANTISED),
    Key::off("zero_quantized_nontrainable_weights", "int8 gathers of frozen weights")
        .not_built(QUANTISED),
    Key::off("zero_quantized_gradients", "int4 gradient reduction (ZeRO++ qgZ)")
        .not_built(QUANTISED),
    Key::block("zeropp_loco_param", &LOCO, "Error feedback for qgZ").not_built(QUANTISED),
    Key::off("log_trace_cache_warnings", "Warn when the prefetch trace is rebuilt")
        .no_effect("there is no such trace"),
    Key::off("enable_sanity_checks", "Check consistency across ranks")
        .no_effect("exact sums always carry a checksum lane"),
    Key::off("save_muon_momentum_buffer_in_memory", "Keep Muon's momentum in GPU memory")
        .no_effect("states stay where their chunk is"),
    persistent("stage3_max_live_parameters", "1e9", "Parameters gathered at once at most")
        .alias(&["max_live_parameters"]),
    persistent("stage3_max_reuse_distance", "1e9", "Keep a parameter that is used again soon")
        .alias(&["max_reuse_distance"]),
    persistent("stage3_prefetch_bucket_size", "5e7", "Elements fetched ahead")
        .alias(&["prefetch_bucket_size"])
        .auto(Auto::WidthSquaredTenths(9)),
    persistent("stage3_param_persistence_threshold", "1e5", "Smaller parameters are not sharded")
        .alias(&["param_persistence_threshold"])
        .auto(Auto::TenWidths),
    persistent(
        "stage3_model_persistence_threshold",
        "9223372036854775807",
        "Unsharded parameters in all at most",
    )
    .alias(&["model_persistence_threshold"]),
    Key::off("stage3_gather_16bit_weights_on_model_save", "Whole weights in a checkpoint")
        .alias(&["gather_16bit_weights_on_model_save"])
        .no_effect("`planaria export` writes a whole model from any checkpoint"),
    Key::off("stage3_gather_fp16_weights_on_model_save", "Old name")
        .status(Status::Renamed("stage3_gather_16bit_weights_on_model_save")),
    persistent("stage3_module_granularity_threshold", "0", "Fetch small modules together")
        .alias(&["module_granularity_threshold"]),
    Key::off("stage3_use_all_reduce_for_fetch_params", "Fetch by all-reduce")
        .alias(&["use_all_reduce_for_fetch_params"])
        .no_effect(PREFETCH),
    Key::off("stage3_allgather_sequential", "Fetch one parameter at a time")
        .alias(&["allgather_sequential"])
        .no_effect(PREFETCH),
    Key::on("ignore_unused_parameters", "Tolerate parameters without a gradient")
        .no_effect("a parameter that emits nothing has a zero gradient"),
    Key::off("legacy_stage1", "The first implementation of stage 1")
        .refused("DeepSpeed refuses it too; leave it out"),
    Key::off("round_robin_gradients", "Spread gradient copies over ranks").no_effect(CHUNKS),
    Key::new("mics_shard_size", Kind::Int(-1, i64::MAX), "-1", "MiCS group size").refused(MICS),
    Key::off("mics_hierarchical_params_gather", "MiCS two-level gather").refused(MICS),
    Key::on("memory_efficient_linear", "Save less in linear layers")
        .no_effect("saved tensors are planned to the byte"),
    Key::off("pipeline_loading_checkpoint", "Load partition by partition")
        .no_effect("checkpoints are read tensor by tensor"),
    Key::on("override_module_apply", "Python's zero.Init detail")
        .no_effect("there is no zero.Init"),
    Key::block("leaf_module", &LEAF_MODULE, "Modules gathered as one unit")
        .no_effect("the unit of gathering is the model's block"),
    Key::off("cpu_offload", "Old name")
        .status(Status::Means("offload_optimizer.device", "\"cpu\"")),
    Key::off("cpu_offload_param", "Old name")
        .status(Status::Means("offload_param.device", "\"cpu\"")),
    Key::off("cpu_offload_use_pin_memory", "Old switch without effect")
        .no_effect("DeepSpeed ignores it too"),
]);

const fn bucket(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    Key::positive(name, default, doc).no_effect(CHUNKS)
}

const fn persistent(name: &'static str, default: &'static str, doc: &'static str) -> Key {
    Key::count(name, default, doc).no_effect(PREFETCH)
}

const DEVICES: &[&str] = &["none", "cpu", "nvme"];
const FIXED: &str = "buffers are sized from the model's largest chunk";

const OFFLOAD_PARAM: Block = Block::switched(
    "device",
    &[
        Key::choice("device", DEVICES, "\"none\"", "Where to").status(features::OFFLOAD),
        Key::text("nvme_path", "null", "Folder on the NVMe drive; required for nvme"),
        Key::positive("buffer_count", "5", "Staging buffers").no_effect(FIXED),
        Key::positive("buffer_size", "1e8", "Elements of a staging buffer").no_effect(FIXED),
        Key::count("max_in_cpu", "1e9", "Elements kept in host memory with nvme").no_effect(FIXED),
        Key::on("pin_memory", "Lock staging buffers in memory").no_effect(FIXED),
    ],
);

const OFFLOAD_OPTIMIZER: Block = Block::switched(
    "device",
    &[
        Key::choice("device", DEVICES, "\"none\"", "Where to").status(features::OFFLOAD),
        Key::text("nvme_path", "null", "Folder on the NVMe drive; required for nvme"),
        Key::positive("buffer_count", "4", "Staging buffers").no_effect(FIXED),
        Key::on("pin_memory", "Lock staging buffers in memory").no_effect(FIXED),
        Key::off("pipeline_read", "Read ahead").no_effect("reads and writes always overlap"),
        Key::off("pipeline_write", "Write behind").no_effect("reads and writes always overlap"),
        Key::off("fast_init", "Skip a copy at start").no_effect("there is no such copy"),
        Key::share(
            "ratio",
            "1.0",
            "Share of the update on the host (Twin-Flow); < 1 needs stage 3",
        )
        .not_built("a split update (Twin-Flow) is not built yet"),
        Key::off("super_offload", "Speculative host update for superchips")
            .not_built("SuperOffload updates speculatively and is not built"),
        Key::share("cpuadam_cores_perc", "0.8", "Share of cores for the host update")
            .no_effect("set planaria.compute.threads"),
    ],
);

const LOCO: Block = Block::on_by_presence(&[
    Key::share("err_beta", "0.8", "Decay of the error"),
    Key::positive("reset_T", "1024", "Steps until the error is reset"),
]);

const LEAF_MODULE: Block = Block::new(&[
    Key::new("classes", Kind::Texts, "null", "Class names"),
    Key::new("names", Kind::Texts, "[]", "Module names"),
    Key::new("name_suffixes", Kind::Texts, "[]", "Module name endings"),
]);

const AUTO_OR_STEPS: Kind = Kind::Either(&[Kind::Choice(&["auto"]), Kind::Int(1, i64::MAX)]);

const ZENFLOW: Block = Block::on_by_presence(&[
    Key::share("topk_ratio", "0.1", "Share of columns updated at once"),
    Key::choice("select_strategy", &["auto", "step", "epoch"], "\"auto\"", "When to select"),
    Key::new("select_interval", AUTO_OR_STEPS, "\"auto\"", "How often to select"),
    Key::new("update_interval", AUTO_OR_STEPS, "\"auto\"", "How often to update the rest"),
    Key::off("overlap_step", "Overlap the host update"),
    Key::off("offload", "Keep selected states on the host"),
    Key::share("auto_ratio", "0.99", "Threshold of the automatic interval"),
    Key::count("full_warm_up_rounds", "0", "Full updates first"),
    Key::share("pt_reserved_cores_perc", "0.5", "Cores kept for PyTorch"),
]);
