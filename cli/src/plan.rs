//! From a checked configuration to what the trainer takes: spec and setup. What the configuration
//! knows but this build does not execute is refused here, by name.

use crate::cost;
use crate::machine;
use crate::output::Usage;
use planaria_actors::device::DeviceSetup;
use planaria_actors::spec::{RunSpec, SPEC_VERSION};
use planaria_actors::step::schedule::Order;
use planaria_base::Digest;
use planaria_base::limits::CHUNK_ELEMENTS;
use planaria_config::RunPlan;
use planaria_config::plan::{
    Family as PlanFamily, Isa as PlanIsa, LoraPlan, LossScalePlan, ModelShape, MuonIteration,
    OptimizerPlan, Precision as PlanPrecision, RopeScaling as PlanScaling, SchedulePlan,
    WarmupShape,
};
use planaria_models::block::Precision;
use planaria_models::families::{Family, ModelSpec};
use planaria_models::kernels::Isa;
use planaria_models::kernels::rope::RopeScaling;
use planaria_models::lora::LoraSpec;
use planaria_models::loss_scale::{DynamicScale, LossScaleSpec};
use planaria_models::optimizers::{
    Adagrad, Adam, Lamb, Lion, Muon, NewtonSchulz, OptimizerSpec, Sgd,
};
use planaria_models::schedules::{CycleMomentum, ScheduleSpec, Warmup};

fn not_built(what: &str) -> anyhow::Error {
    Usage(format!("{what} is understood but not built yet")).into()
}

/// The shape of a fresh model.
///
/// # Errors
/// Names what is not built, or sizes that do not fit together.
pub(crate) fn model_spec(shape: &ModelShape, vocab: usize) -> anyhow::Result<ModelSpec> {
    let family = match shape.family {
        PlanFamily::Gpt2 => Family::Gpt2,
        PlanFamily::Llama | PlanFamily::Mistral | PlanFamily::Qwen2 | PlanFamily::Qwen3 => {
            Family::Llama
        }
    };
    if shape.dropout != 0.0 {
        return Err(not_built("planaria.model.dropout above 0"));
    }
    if family == Family::Gpt2 && !shape.bias {
        return Err(not_built("planaria.model.bias false for gpt2"));
    }
    let vocab = shape.vocab.map_or(vocab, |v| v as usize).max(vocab);
    let (layers, width) = (shape.layers as usize, shape.width as usize);
    let mut spec =
        ModelSpec::gpt2(layers, width, shape.heads as usize, vocab, shape.max_length as usize);
    spec.family = family;
    spec.kv_heads = shape.kv_heads as usize;
    spec.head_dim = shape.head_dim as usize;
    spec.mlp_width = shape.mlp_width as usize;
    spec.tied = shape.tied;
    spec.norm_eps = shape.norm_eps as f32;
    spec.init_std = shape.init_std as f32;
    if family == Family::Llama {
        spec.attention_bias = shape.bias;
        spec.mlp_bias = shape.bias && shape.family == PlanFamily::Llama;
        spec.bias_qkv_only = shape.bias && shape.family == PlanFamily::Qwen2;
        spec.qk_norm = shape.family == PlanFamily::Qwen3;
        spec.window = shape.window.map(|w| w as usize);
    }
    if let Some(rope) = shape.rope {
        spec.rope_theta = rope.theta;
        spec.rope_scaling = rope_scaling(rope.scaling);
    }
    spec.check().map_err(Usage)?;
    Ok(spec)
}

/// Adapters, with the family's usual layers where none are named.
pub(crate) fn lora(plan: &LoraPlan, family: Family) -> LoraSpec {
    let targets = match &plan.targets[..] {
        [] => LoraSpec::default_targets(family),
        named => named.to_vec(),
    };
    LoraSpec { rank: plan.rank as usize, alpha: plan.alpha, targets }
}

fn rope_scaling(scaling: PlanScaling) -> RopeScaling {
    match scaling {
        PlanScaling::None => RopeScaling::Default,
        PlanScaling::Linear { factor } => RopeScaling::Linear { factor },
        PlanScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings: original_max_position_embeddings as f64,
        },
    }
}

/// The run spec.
///
/// # Errors
/// Names what is not built.
pub(crate) fn run_spec(
    plan: &RunPlan,
    model: ModelSpec,
    (data, init_from): (Digest, Option<Digest>),
) -> anyhow::Result<RunSpec> {
    let precision = match plan.precision {
        PlanPrecision::Fp32 => Precision::F32,
        PlanPrecision::Bf16 => Precision::Bf16,
        PlanPrecision::Fp16 => Precision::F16,
    };
    if plan.data.mask_documents {
        return Err(not_built("planaria.data.mask_documents"));
    }
    let length = plan.data.sequence_length as usize;
    if length > model.max_length {
        let max = model.max_length;
        return Err(
            Usage(format!("sequences of {length} tokens, but the model takes {max}")).into()
        );
    }
    cost::check_tables(&model)?;
    check_size(&model, plan.batch.micro, plan.data.sequence_length)?;
    Ok(RunSpec {
        version: SPEC_VERSION,
        model,
        init_from,
        data,
        sequences: plan.batch.micro as usize,
        length,
        leaves: plan.batch.leaves() as u32,
        seed: plan.run.seed,
        precision,
        loss_scale: plan.loss_scale.as_ref().map(loss_scale),
        optimizer: optimizer(&plan.optimizer),
        schedule: schedule(&plan.schedule, plan.optimizer.learning_rate()),
        clip: plan.gradient_clipping.unwrap_or(0.0),
        grid_max_log2: plan.numerics.grid_max_log2,
        chunk_elements: CHUNK_ELEMENTS,
    })
}

/// Refuses sizes that are each allowed and together beyond counting: nothing further down overflows.
fn check_size(model: &ModelSpec, sequences: u64, length: u64) -> anyhow::Result<()> {
    let wide = |n: usize| n as u128;
    let (layers, width, length) = (wide(model.layers), wide(model.width), u128::from(length));
    let heads = wide(model.heads) * wide(model.head_dim);
    let layer = width * (4 * heads + 3 * wide(model.mlp_width)) + 4 * heads * length;
    let token = layers * layer + 2 * width * wide(model.vocab);
    let operations = (u128::from(sequences) * length * token).saturating_mul(8);
    if operations >= 1 << 62 {
        let reason = format!(
            "one leaf would take about {:.0e} operations: {sequences} sequences of {length} tokens are \
             too many for a model of width {width} and {layers} layers",
            operations as f64
        );
        return Err(Usage(reason).into());
    }
    Ok(())
}

fn loss_scale(plan: &LossScalePlan) -> LossScaleSpec {
    match *plan {
        LossScalePlan::Static { scale } => LossScaleSpec::Static { scale: scale as f32 },
        LossScalePlan::Dynamic {
            initial_power,
            window,
            hysteresis,
            consecutive_hysteresis,
            min_scale,
        } => LossScaleSpec::Dynamic(DynamicScale {
            initial_scale_power: initial_power,
            loss_scale_window: window,
            hysteresis: hysteresis.min(u64::from(u32::MAX)) as u32,
            consecutive_hysteresis,
            min_loss_scale: min_scale as f32,
        }),
    }
}

fn optimizer(plan: &OptimizerPlan) -> OptimizerSpec {
    match *plan {
        OptimizerPlan::Adam { betas, eps, weight_decay, decoupled, bias_correction, .. } => {
            OptimizerSpec::Adam(Adam { betas, eps, weight_decay, decoupled, bias_correction })
        }
        OptimizerPlan::Sgd { momentum, dampening, weight_decay, nesterov, .. } => {
            OptimizerSpec::Sgd(Sgd { momentum, dampening, weight_decay, nesterov })
        }
        OptimizerPlan::Lion { betas, weight_decay, .. } => {
            OptimizerSpec::Lion(Lion { betas, weight_decay })
        }
        OptimizerPlan::Adagrad { eps, weight_decay, .. } => {
            OptimizerSpec::Adagrad(Adagrad { eps, weight_decay })
        }
        OptimizerPlan::Lamb {
            betas,
            eps,
            weight_decay,
            trust: [max_coeff, min_coeff],
            eps_inside_sqrt,
            bias_correction,
            ..
        } => OptimizerSpec::Lamb(Lamb {
            betas,
            eps,
            weight_decay,
            max_coeff,
            min_coeff,
            eps_inside_sqrt,
            bias_correction,
        }),
        OptimizerPlan::Muon { muon_lr, momentum, iteration, adam_lr, betas, eps, weight_decay } => {
            let adam = Adam { betas, eps, weight_decay, ..Adam::default() };
            let ns_method = match iteration {
                MuonIteration::Gram => NewtonSchulz::Gram,
                MuonIteration::Standard => NewtonSchulz::Standard,
            };
            let adam_rate = adam_lr / muon_lr;
            OptimizerSpec::Muon(Muon { momentum, weight_decay, ns_method, adam, adam_rate })
        }
    }
}

fn shape(shape: WarmupShape) -> Warmup {
    match shape {
        WarmupShape::Log => Warmup::Log,
        WarmupShape::Linear => Warmup::Linear,
    }
}

fn schedule(plan: &SchedulePlan, rate: f64) -> ScheduleSpec {
    match *plan {
        SchedulePlan::Constant => ScheduleSpec::Constant { rate },
        SchedulePlan::WarmupLR { min_lr, max_lr, warmup_steps, shape: s } => {
            let (min, max, warmup) = (min_lr, max_lr, warmup_steps);
            ScheduleSpec::WarmupLinear { min, max, warmup, total: None, shape: shape(s) }
        }
        SchedulePlan::WarmupDecayLR { min_lr, max_lr, warmup_steps, total_steps, shape: s } => {
            let (min, max, warmup) = (min_lr, max_lr, warmup_steps);
            let total = Some(total_steps);
            ScheduleSpec::WarmupLinear { min, max, warmup, total, shape: shape(s) }
        }
        SchedulePlan::WarmupCosineLR {
            min_ratio,
            cos_min_ratio,
            warmup_steps,
            total_steps,
            shape: s,
        } => ScheduleSpec::WarmupCosine {
            rate,
            min_ratio,
            cos_min_ratio,
            warmup: warmup_steps,
            total: total_steps,
            shape: shape(s),
        },
        SchedulePlan::OneCycle {
            lr,
            decay_lr_rate,
            steps,
            stairs,
            decay_step_size,
            momentum,
            decay_mom_rate,
        } => ScheduleSpec::OneCycle {
            rates: lr,
            steps,
            stairs,
            decay_rate: decay_lr_rate,
            decay_step: decay_step_size,
            momentum: momentum.map(|bounds| CycleMomentum { bounds, decay_rate: decay_mom_rate }),
        },
        SchedulePlan::LRRangeTest { min_lr, step_size, step_rate, staircase } => {
            ScheduleSpec::RangeTest { min: min_lr, step: step_size, rate: step_rate, staircase }
        }
    }
}

/// How this machine executes the run: breadth first where several leaves share a step, if
/// [`crate::cost::choose`] finds that it fits.
///
/// # Errors
/// If an instruction set is asked for that this processor does not have.
pub(crate) fn setup(plan: &RunPlan) -> anyhow::Result<DeviceSetup> {
    let isa = match plan.compute.isa {
        PlanIsa::Auto => Isa::detect(),
        PlanIsa::Scalar => Isa::Scalar,
        PlanIsa::Avx2 => Isa::Avx2,
        PlanIsa::Avx512 => Isa::Avx512,
    };
    if isa > Isa::detect() {
        let best = Isa::detect();
        return Err(Usage(format!("this processor has no {isa}; its best is {best}")).into());
    }
    if plan.compute.pin {
        return Err(not_built("planaria.compute.pin"));
    }
    Ok(DeviceSetup {
        threads: plan.compute.threads.map_or_else(machine::cores, |t| t as usize),
        isa,
        order: if plan.batch.leaves() > 1 { Order::BreadthFirst } else { Order::DepthFirst },
        recompute: plan.recompute.unwrap_or(false),
    })
}
