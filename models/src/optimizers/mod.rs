//! Optimizers: what turns a reduced gradient into new parameters.
//!
//! An elementwise optimizer is one fused pass: it reads gradient, master and states once, and writes
//! master, states and the bf16 working copy once. Scalars are computed in f64 and rounded to fp32
//! once; powers come from `libm`, never the platform.

mod adagrad;
mod adam;
mod lion;
mod sgd;
#[cfg(test)]
mod tests;

pub use adagrad::Adagrad;
pub use adam::Adam;
pub use lion::Lion;
pub use sgd::Sgd;

use crate::kernels::Isa;
use half::bf16;
use serde::{Deserialize, Serialize};

/// An optimizer and its constants, as a run spec holds them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum OptimizerSpec {
    /// Adam, or AdamW where decay is decoupled.
    Adam(Adam),
    /// Stochastic gradient descent.
    Sgd(Sgd),
    /// The sign of a momentum.
    Lion(Lion),
    /// Gradients over the root of their summed squares.
    Adagrad(Adagrad),
}

/// What every element of an update shares.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Update {
    /// Updates applied once this one is, from 1.
    pub t: u64,
    /// Learning rate.
    pub learning_rate: f64,
    /// The gradient is multiplied by this first: mean and clipping.
    pub gradient_factor: f32,
}

/// A run of elements to update; all slices have one length.
pub struct Elements<'a> {
    /// The reduced gradient.
    pub gradient: &'a [f32],
    /// fp32 parameters.
    pub master: &'a mut [f32],
    /// The first state, if the optimizer has one.
    pub first: &'a mut [f32],
    /// The second state, if the optimizer has two.
    pub second: &'a mut [f32],
    /// The bf16 working copy, where there is one.
    pub working: Option<&'a mut [bf16]>,
}

impl OptimizerSpec {
    /// Names of its states, as checkpoints store them.
    #[must_use]
    pub fn state_names(&self) -> &'static [&'static str] {
        match self {
            OptimizerSpec::Adam(_) => &["exp_avg", "exp_avg_sq"],
            OptimizerSpec::Sgd(sgd) if sgd.momentum == 0.0 => &[],
            OptimizerSpec::Sgd(_) => &["momentum_buffer"],
            OptimizerSpec::Lion(_) => &["exp_avg"],
            OptimizerSpec::Adagrad(_) => &["sum"],
        }
    }

    /// Bytes of fp32 state per parameter, the fp32 master not counted.
    #[must_use]
    pub fn state_bytes_per_parameter(&self) -> usize {
        self.state_names().len() * size_of::<f32>()
    }

    /// Updates a run of elements.
    pub fn update(&self, isa: Isa, update: Update, elements: Elements<'_>) {
        match self {
            OptimizerSpec::Adam(adam) => adam.update(isa, update, elements),
            OptimizerSpec::Sgd(sgd) => sgd.update(isa, update, elements),
            OptimizerSpec::Lion(lion) => lion.update(isa, update, elements),
            OptimizerSpec::Adagrad(adagrad) => adagrad.update(isa, update, elements),
        }
    }
}
