//! The typed result: everything a run needs to know, with every default and `"auto"` resolved.
//!
//! No component depends on this crate; the trainer turns the parts of a [`RunPlan`] into each
//! component's own small configuration.

mod model;
mod optimizer;
mod run;

pub use model::{Family, LoraPlan, ModelPlan, ModelShape, Rope, RopeScaling};
pub use optimizer::{MuonIteration, OptimizerPlan, SchedulePlan, WarmupShape};
pub use run::{
    ComputePlan, DataPlan, Isa, NumericsPlan, RecordsPlan, RunSection, SamplePlan, SumMode,
    TensorboardPlan, TextSource, TokenizerPlan,
};

use serde::{Deserialize, Serialize};
use serde_json::json;

/// One training run, resolved.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunPlan {
    /// How a global batch is cut into leaves.
    pub batch: BatchPlan,
    /// The arithmetic of matrix products.
    pub precision: Precision,
    /// The loss scale; `None` but in fp16.
    pub loss_scale: Option<LossScalePlan>,
    /// The optimizer.
    pub optimizer: OptimizerPlan,
    /// How its learning rate changes.
    pub schedule: SchedulePlan,
    /// Clip the global gradient norm to this; `None` is off.
    pub gradient_clipping: Option<f64>,
    /// What is sharded and where it lives.
    pub zero: ZeroPlan,
    /// Recompute each block's activations in backward; `None` leaves it to the planner.
    pub recompute: Option<bool>,
    /// Print a line every so many steps.
    pub steps_per_print: u64,
    /// Show where a step's time goes.
    pub wall_clock_breakdown: bool,
    /// The model.
    pub model: ModelPlan,
    /// Train adapters instead of the model.
    pub lora: Option<LoraPlan>,
    /// The text.
    pub data: DataPlan,
    /// How long, how often, where to.
    pub run: RunSection,
    /// Threads and instruction set.
    pub compute: ComputePlan,
    /// How gradients are summed.
    pub numerics: NumericsPlan,
    /// What is written down.
    pub records: RecordsPlan,
}

impl RunPlan {
    /// The part of the run spec that comes from the configuration: everything that the numbers
    /// depend on, and nothing that they do not (nodes, ZeRO stage, tiers, recomputation, threads,
    /// folders, intervals, the number of steps). The data's fingerprint and the numerics class join
    /// it elsewhere.
    #[must_use]
    pub fn spec(&self) -> serde_json::Value {
        let mut spec = json!({
            "train_batch_size": self.batch.train,
            "train_micro_batch_size_per_gpu": self.batch.micro,
            "precision": self.precision,
            "loss_scale": self.loss_scale,
            "optimizer": self.optimizer,
            "schedule": self.schedule,
            "gradient_clipping": self.gradient_clipping,
            "model": self.model,
            "sequence_length": self.data.sequence_length,
            "validation_fraction": self.data.validation_fraction,
            "mask_documents": self.data.mask_documents,
            "seed": self.run.seed,
            "numerics": self.numerics,
        });
        if let Some(lora) = &self.lora {
            spec["lora"] = json!(lora);
        }
        spec
    }
}

/// How a global batch is cut: `train = micro x accumulation x nodes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BatchPlan {
    /// Sequences of one optimizer step.
    pub train: u64,
    /// Sequences of one leaf.
    pub micro: u64,
    /// Leaves of one node, were all nodes alike.
    pub accumulation: u64,
    /// Nodes that the batch keys count with. Any number may compute; the numbers do not change.
    pub nodes: u64,
}

impl BatchPlan {
    /// Leaves of one step: DESIGN.md's V.
    #[must_use]
    pub fn leaves(&self) -> u64 {
        self.train / self.micro
    }
}

/// The arithmetic of matrix products; sums, norms, softmax and loss are fp32 in all three.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// fp32 throughout.
    Fp32,
    /// bf16 products, fp32 master weights.
    Bf16,
    /// fp16 products with a loss scale, fp32 master weights.
    Fp16,
}

/// The loss scale, DeepSpeed's rules.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LossScalePlan {
    /// Always the same.
    Static {
        /// The scale.
        scale: f64,
    },
    /// Doubles after a window of good steps, halves on overflow.
    Dynamic {
        /// log2 of the first scale.
        initial_power: u32,
        /// Good steps until it doubles.
        window: u64,
        /// Overflows until it halves.
        hysteresis: u64,
        /// Whether a good step refills the hysteresis.
        consecutive_hysteresis: bool,
        /// It never falls below this.
        min_scale: f64,
    },
}

/// What is sharded and where it lives.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ZeroPlan {
    /// 0 nothing, 1 optimizer states, 2 also gradients, 3 also parameters.
    pub stage: u8,
    /// Where parameters live.
    pub parameters: Tier,
    /// Where optimizer states live.
    pub optimizer: Tier,
}

/// Where bytes live.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "tier", rename_all = "lowercase")]
pub enum Tier {
    /// Where the computation is.
    Device,
    /// Host memory.
    Host,
    /// A drive.
    Nvme {
        /// The folder.
        folder: String,
    },
}
