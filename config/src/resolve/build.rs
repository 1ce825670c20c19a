//! The typed plan, read off resolved settings.

use crate::check::Settings;
use crate::plan::{
    BatchPlan, ComputePlan, DataPlan, Family, Isa, LoraPlan, LossScalePlan, ModelPlan, ModelShape,
    MuonIteration, NumericsPlan, OptimizerPlan, Precision, RecordsPlan, Rope, RopeScaling, RunPlan,
    RunSection, SamplePlan, SchedulePlan, SumMode, TensorboardPlan, TextSource, Tier,
    TokenizerPlan, WarmupShape, ZeroPlan,
};

/// Learning rate of Muon's Adam group when no rate is given.
const MUON_ADAM_LR: f64 = 3e-4;

/// The plan; `None` only if the settings lack what [`super::Resolver::is_complete`] asks for.
pub(super) fn plan(settings: &Settings, batch: BatchPlan) -> Option<RunPlan> {
    let s = settings;
    let fp16 = s.bool("fp16.enabled");
    let clip = s.f64("gradient_clipping");
    Some(RunPlan {
        batch,
        precision: if s.bool("bf16.enabled") {
            Precision::Bf16
        } else if fp16 {
            Precision::Fp16
        } else {
            Precision::Fp32
        },
        loss_scale: fp16.then(|| loss_scale(s)),
        optimizer: optimizer(s)?,
        schedule: schedule(s),
        gradient_clipping: (clip > 0.0).then_some(clip),
        zero: ZeroPlan {
            stage: s.u64("zero_optimization.stage") as u8,
            parameters: tier(s, "offload_param"),
            optimizer: tier(s, "offload_optimizer"),
        },
        recompute: s.opt_bool("planaria.compute.recompute"),
        steps_per_print: s.u64("steps_per_print"),
        wall_clock_breakdown: s.bool("wall_clock_breakdown"),
        model: model(s)?,
        lora: lora(s),
        data: data(s)?,
        run: run(s)?,
        compute: compute(s),
        numerics: numerics(s),
        records: records(s),
    })
}

fn loss_scale(s: &Settings) -> LossScalePlan {
    let at = |key: &str| format!("fp16.{key}");
    let scale = s.f64(&at("loss_scale"));
    if scale > 0.0 {
        return LossScalePlan::Static { scale };
    }
    LossScalePlan::Dynamic {
        initial_power: s.u64(&at("initial_scale_power")) as u32,
        window: s.u64(&at("loss_scale_window")),
        hysteresis: s.u64(&at("hysteresis")),
        consecutive_hysteresis: s.bool(&at("consecutive_hysteresis")),
        min_scale: s.f64(&at("min_loss_scale")),
    }
}

fn tier(s: &Settings, block: &str) -> Tier {
    let at = |key: &str| format!("zero_optimization.{block}.{key}");
    match s.text(&at("device")) {
        "cpu" => Tier::Host,
        "nvme" => Tier::Nvme { folder: s.text(&at("nvme_path")).to_owned() },
        _ => Tier::Device,
    }
}

fn optimizer(s: &Settings) -> Option<OptimizerPlan> {
    let at = |key: &str| format!("optimizer.params.{key}");
    let number = |key: &str| s.f64(&at(key));
    let (lr, eps, weight_decay) = (number("lr"), number("eps"), number("weight_decay"));
    let betas = s.pair(&at("betas"));
    let bias_correction = s.bool(&at("bias_correction"));
    Some(match s.text("optimizer.type") {
        kind @ ("adam" | "adamw") => {
            let decoupled = kind == "adamw" || s.bool(&at("adam_w_mode"));
            OptimizerPlan::Adam { lr, betas, eps, weight_decay, decoupled, bias_correction }
        }
        "sgd" => OptimizerPlan::Sgd {
            lr,
            momentum: number("momentum"),
            dampening: number("dampening"),
            weight_decay,
            nesterov: s.bool(&at("nesterov")),
        },
        "lion" => OptimizerPlan::Lion { lr, betas, weight_decay },
        "adagrad" => OptimizerPlan::Adagrad { lr, eps, weight_decay },
        "lamb" => OptimizerPlan::Lamb {
            lr,
            betas,
            eps,
            weight_decay,
            trust: [number("max_coeff"), number("min_coeff")],
            eps_inside_sqrt: s.bool(&at("eps_inside_sqrt")),
            bias_correction,
        },
        "muon" => {
            let [muon_lr, adam_lr] = muon_rates(s);
            let standard = s.text(&at("ns_method")) == "standard";
            OptimizerPlan::Muon {
                muon_lr,
                momentum: number("momentum"),
                iteration: if standard { MuonIteration::Standard } else { MuonIteration::Gram },
                adam_lr,
                betas,
                eps,
                weight_decay,
            }
        }
        _ => return None,
    })
}

/// Learning rates of Muon's two groups: theirs, or `lr`, or DeepSpeed's defaults. A schedule that
/// names a rate of its own gives it to both.
pub(super) fn muon_rates(s: &Settings) -> [f64; 2] {
    let at = |key: &str| format!("optimizer.params.{key}");
    let muon = s.opt_f64(&at("muon_lr")).unwrap_or(s.f64(&at("lr")));
    let lr = s.is_given(&at("lr")).then(|| s.f64(&at("lr")));
    let adam = s.opt_f64(&at("adam_lr")).or(lr).unwrap_or(MUON_ADAM_LR);
    [muon, if schedule_names_rate(s) { muon } else { adam }]
}

/// Whether the schedule says what the rate is, rather than by how much to multiply the optimizer's.
pub(super) fn schedule_names_rate(s: &Settings) -> bool {
    match s.text("scheduler.type") {
        "WarmupDecayLR" | "OneCycle" | "LRRangeTest" => true,
        "WarmupLR" => s.opt_f64("scheduler.params.warmup_max_lr").is_some(),
        _ => false,
    }
}

fn schedule(s: &Settings) -> SchedulePlan {
    let at = |key: &str| format!("scheduler.params.{key}");
    let (number, count) = (|key: &str| s.f64(&at(key)), |key: &str| s.u64(&at(key)));
    let rate = s.opt_f64("optimizer.params.muon_lr").unwrap_or(s.f64("optimizer.params.lr"));
    let min_lr = number("warmup_min_lr");
    let max_lr = s.opt_f64(&at("warmup_max_lr")).unwrap_or(rate);
    let warmup_steps = count("warmup_num_steps").max(2);
    let total_steps = count("total_num_steps");
    let shape =
        if s.text(&at("warmup_type")) == "linear" { WarmupShape::Linear } else { WarmupShape::Log };
    match s.text("scheduler.type") {
        "WarmupLR" => SchedulePlan::WarmupLR { min_lr, max_lr, warmup_steps, shape },
        "WarmupDecayLR" => {
            SchedulePlan::WarmupDecayLR { min_lr, max_lr, warmup_steps, total_steps, shape }
        }
        "WarmupCosineLR" => SchedulePlan::WarmupCosineLR {
            min_ratio: number("warmup_min_ratio"),
            cos_min_ratio: number("cos_min_ratio"),
            warmup_steps,
            total_steps,
            shape,
        },
        "OneCycle" => one_cycle(s),
        "LRRangeTest" => SchedulePlan::LRRangeTest {
            min_lr: number("lr_range_test_min_lr"),
            step_size: count("lr_range_test_step_size"),
            step_rate: number("lr_range_test_step_rate"),
            staircase: s.bool(&at("lr_range_test_staircase")),
        },
        _ => SchedulePlan::Constant,
    }
}

/// Whether OneCycle finds betas to move: DeepSpeed does not in Muon's groups.
pub(super) fn cycles_momentum(s: &Settings) -> bool {
    s.text("optimizer.type") != "muon" && s.setting("optimizer.params.betas").is_some()
}

fn one_cycle(s: &Settings) -> SchedulePlan {
    let at = |key: &str| format!("scheduler.params.{key}");
    let (number, count) = (|key: &str| s.f64(&at(key)), |key: &str| s.u64(&at(key)));
    let second = |first: &str, second: &str| s.opt_u64(&at(second)).unwrap_or(count(first));
    let cycles = s.bool(&at("cycle_momentum")) && cycles_momentum(s);
    SchedulePlan::OneCycle {
        lr: [number("cycle_min_lr"), number("cycle_max_lr")],
        decay_lr_rate: number("decay_lr_rate"),
        steps: [
            count("cycle_first_step_size"),
            second("cycle_first_step_size", "cycle_second_step_size"),
        ],
        stairs: [
            count("cycle_first_stair_count"),
            second("cycle_first_stair_count", "cycle_second_stair_count"),
        ],
        decay_step_size: count("decay_step_size"),
        momentum: cycles.then(|| [number("cycle_min_mom"), number("cycle_max_mom")]),
        decay_mom_rate: number("decay_mom_rate"),
    }
}

fn model(s: &Settings) -> Option<ModelPlan> {
    let at = |key: &str| format!("planaria.model.{key}");
    if let Some(folder) = s.opt_text(&at("init_from")) {
        return Some(ModelPlan::InitFrom { folder: folder.to_owned() });
    }
    let number = |key: &str| s.opt_u64(&at(key));
    let family = match s.text(&at("family")) {
        "llama" => Family::Llama,
        "mistral" => Family::Mistral,
        "qwen2" => Family::Qwen2,
        "qwen3" => Family::Qwen3,
        _ => Family::Gpt2,
    };
    Some(ModelPlan::Fresh(ModelShape {
        family,
        layers: number("layers")?,
        width: number("width")?,
        heads: number("heads")?,
        kv_heads: number("kv_heads")?,
        head_dim: number("head_dim")?,
        mlp_width: number("mlp_width")?,
        vocab: number("vocab"),
        max_length: number("max_length")?,
        tied: s.bool(&at("tied")),
        bias: s.bool(&at("bias")),
        rope: (family != Family::Gpt2)
            .then(|| Rope { theta: s.f64(&at("rope_theta")), scaling: rope_scaling(s) }),
        window: number("window"),
        norm_eps: s.f64(&at("norm_eps")),
        init_std: s.f64(&at("init_std")),
        dropout: s.f64(&at("dropout")),
    }))
}

fn lora(s: &Settings) -> Option<LoraPlan> {
    let rank = s.opt_u64("planaria.lora.rank")?;
    let alpha = if s.is_given("planaria.lora.alpha") {
        s.f64("planaria.lora.alpha")
    } else {
        2.0 * rank as f64
    };
    Some(LoraPlan { rank, alpha, targets: s.texts("planaria.lora.targets") })
}

fn rope_scaling(s: &Settings) -> RopeScaling {
    let at = |key: &str| format!("planaria.model.rope_scaling.{key}");
    let factor = s.f64(&at("factor"));
    match s.text(&at("type")) {
        "linear" => RopeScaling::Linear { factor },
        "llama3" => RopeScaling::Llama3 {
            factor,
            low_freq_factor: s.f64(&at("low_freq_factor")),
            high_freq_factor: s.f64(&at("high_freq_factor")),
            original_max_position_embeddings: s.u64(&at("original_max_position_embeddings")),
        },
        _ => RopeScaling::None,
    }
}

fn data(s: &Settings) -> Option<DataPlan> {
    let at = |key: &str| format!("planaria.data.{key}");
    let source = |text: String| {
        if text == "registry" { TextSource::Registry } else { TextSource::Pattern(text) }
    };
    let from_model = s.opt_text("planaria.model.init_from").is_some();
    Some(DataPlan {
        text: s.texts(&at("text")).into_iter().map(source).collect(),
        tokens: s.texts(&at("tokens")),
        tokenizer: match s.opt_text(&at("tokenizer")) {
            Some("byte") => TokenizerPlan::Byte,
            Some("char") => TokenizerPlan::Char,
            Some("gpt2") => TokenizerPlan::Gpt2,
            Some("cl100k") => TokenizerPlan::Cl100k,
            Some("o200k") => TokenizerPlan::O200k,
            Some(file) => TokenizerPlan::File(file.to_owned()),
            None if from_model => TokenizerPlan::FromModel,
            None => TokenizerPlan::None,
        },
        sequence_length: s.opt_u64(&at("sequence_length"))?,
        validation_fraction: s.f64(&at("validation_fraction")),
        max_bytes: s.opt_u64(&at("max_bytes")),
        fingerprint: s.opt_text(&at("fingerprint")).map(str::to_owned),
        mask_documents: s.bool(&at("mask_documents")),
    })
}

fn run(s: &Settings) -> Option<RunSection> {
    let at = |key: &str| format!("planaria.run.{key}");
    let tokens = s.u64(&at("sample.tokens"));
    Some(RunSection {
        dir: s.text(&at("dir")).to_owned(),
        steps: s.opt_u64(&at("steps"))?,
        eval_every: s.u64(&at("eval_every")),
        eval_batches: s.u64(&at("eval_batches")),
        checkpoint_every: s.u64(&at("checkpoint_every")),
        keep_last: s.u64(&at("keep_last")),
        keep_every: s.u64(&at("keep_every")),
        sample: (tokens > 0).then(|| SamplePlan {
            prompt: s.text(&at("sample.prompt")).to_owned(),
            tokens,
            temperature: s.f64(&at("sample.temperature")),
            top_p: s.f64(&at("sample.top_p")),
        }),
        seed: s.u64(&at("seed")),
    })
}

fn compute(s: &Settings) -> ComputePlan {
    let at = |key: &str| format!("planaria.compute.{key}");
    ComputePlan {
        threads: s.opt_u64(&at("threads")),
        isa: match s.text(&at("isa")) {
            "scalar" => Isa::Scalar,
            "avx2" => Isa::Avx2,
            "avx512" => Isa::Avx512,
            _ => Isa::Auto,
        },
        pin: s.bool(&at("pin")),
        memory: s.opt_u64(&at("memory")),
    }
}

fn numerics(s: &Settings) -> NumericsPlan {
    let fast = s.text("planaria.numerics.mode") == "fast";
    let grid = s.setting("planaria.numerics.grid_max_log2").and_then(|g| g.value.as_i64());
    NumericsPlan {
        mode: if fast { SumMode::Fast } else { SumMode::Exact },
        grid_max_log2: grid.unwrap_or(8) as i32,
    }
}

fn records(s: &Settings) -> RecordsPlan {
    let turned_off = s.is_given("tensorboard.enabled") && !s.bool("tensorboard.enabled");
    let on = s.opt_bool("planaria.records.tensorboard").unwrap_or(!turned_off);
    let given = |path: &str| s.opt_text(path).filter(|t| !t.is_empty()).map(str::to_owned);
    let job = s.is_given("tensorboard.job_name").then(|| given("tensorboard.job_name")).flatten();
    let folder = given("tensorboard.output_path");
    RecordsPlan {
        metrics: s.bool("planaria.records.metrics"),
        tensorboard: on.then_some(TensorboardPlan { folder, job_name: job }),
    }
}
