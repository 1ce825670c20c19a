//! Optimizers and schedules of a run.

use serde::{Deserialize, Serialize};

/// The optimizer with its parameters.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum OptimizerPlan {
    /// Adam; decoupled decay makes it AdamW.
    Adam {
        /// Learning rate.
        lr: f64,
        /// Decay of the two moments.
        betas: [f64; 2],
        /// Added to the denominator.
        eps: f64,
        /// Weight decay.
        weight_decay: f64,
        /// AdamW: decay the weights, not through the gradient.
        decoupled: bool,
        /// Correct the moments' start at zero.
        bias_correction: bool,
    },
    /// Stochastic gradient descent, PyTorch's rules.
    Sgd {
        /// Learning rate.
        lr: f64,
        /// Momentum.
        momentum: f64,
        /// Dampening of the momentum.
        dampening: f64,
        /// Weight decay, added to the gradient.
        weight_decay: f64,
        /// Nesterov's momentum.
        nesterov: bool,
    },
    /// Lion.
    Lion {
        /// Learning rate.
        lr: f64,
        /// Interpolation and decay of the momentum.
        betas: [f64; 2],
        /// Decoupled weight decay.
        weight_decay: f64,
    },
    /// Adagrad.
    Adagrad {
        /// Learning rate.
        lr: f64,
        /// Added to the denominator.
        eps: f64,
        /// Weight decay, added to the gradient.
        weight_decay: f64,
    },
    /// LAMB.
    Lamb {
        /// Learning rate.
        lr: f64,
        /// Decay of the two moments.
        betas: [f64; 2],
        /// Added to the denominator.
        eps: f64,
        /// Weight decay, part of the update.
        weight_decay: f64,
        /// Largest and smallest trust ratio.
        trust: [f64; 2],
        /// Add eps under the root.
        eps_inside_sqrt: bool,
        /// Correct the moments' start at zero.
        bias_correction: bool,
    },
    /// Muon for matrices inside blocks, AdamW for the rest.
    Muon {
        /// Learning rate of the Muon group.
        muon_lr: f64,
        /// Momentum of the Muon group.
        momentum: f64,
        /// The iteration that orthogonalises.
        iteration: MuonIteration,
        /// Learning rate of the Adam group.
        adam_lr: f64,
        /// Its moments.
        betas: [f64; 2],
        /// Its eps.
        eps: f64,
        /// Weight decay of both.
        weight_decay: f64,
    },
}

/// Muon's Newton-Schulz iteration.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MuonIteration {
    /// On the Gram matrix.
    Gram,
    /// On the matrix itself.
    Standard,
}

impl OptimizerPlan {
    /// The learning rate that schedules refer to.
    #[must_use]
    pub fn learning_rate(&self) -> f64 {
        match *self {
            OptimizerPlan::Adam { lr, .. }
            | OptimizerPlan::Sgd { lr, .. }
            | OptimizerPlan::Lion { lr, .. }
            | OptimizerPlan::Adagrad { lr, .. }
            | OptimizerPlan::Lamb { lr, .. } => lr,
            OptimizerPlan::Muon { muon_lr, .. } => muon_lr,
        }
    }
}

/// How the warm-up grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WarmupShape {
    /// With the logarithm of the step.
    Log,
    /// With the step.
    Linear,
}

/// The learning rate's schedule; DeepSpeed's formulas.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum SchedulePlan {
    /// Always the optimizer's.
    Constant,
    /// Warm up, then constant.
    WarmupLR {
        /// The first rate.
        min_lr: f64,
        /// The rate after warm-up.
        max_lr: f64,
        /// Steps of warm-up, at least 2.
        warmup_steps: u64,
        /// How it grows.
        shape: WarmupShape,
    },
    /// Warm up, then decay linearly to zero.
    WarmupDecayLR {
        /// The first rate.
        min_lr: f64,
        /// The rate after warm-up.
        max_lr: f64,
        /// Steps of warm-up, at least 2.
        warmup_steps: u64,
        /// Steps in all.
        total_steps: u64,
        /// How it grows.
        shape: WarmupShape,
    },
    /// Warm up, then decay along a cosine; shares of the optimizer's rate.
    WarmupCosineLR {
        /// The first share.
        min_ratio: f64,
        /// The last share.
        cos_min_ratio: f64,
        /// Steps of warm-up, at least 2.
        warmup_steps: u64,
        /// Steps in all.
        total_steps: u64,
        /// How it grows.
        shape: WarmupShape,
    },
    /// Up, down, then decay.
    OneCycle {
        /// Rate at both ends and in the middle.
        lr: [f64; 2],
        /// Decay of the rate after the cycle.
        decay_lr_rate: f64,
        /// Steps up and down.
        steps: [u64; 2],
        /// Stairs up and down; 0 is smooth.
        stairs: [u64; 2],
        /// Steps of one decay; 0 is none.
        decay_step_size: u64,
        /// Smallest and largest momentum; `None` leaves it alone.
        momentum: Option<[f64; 2]>,
        /// Decay of the momentum after the cycle.
        decay_mom_rate: f64,
    },
    /// A growing rate, to find a good one.
    LRRangeTest {
        /// The first rate.
        min_lr: f64,
        /// Steps of one stair.
        step_size: u64,
        /// Growth per stair.
        step_rate: f64,
        /// Grow in stairs.
        staircase: bool,
    },
}
