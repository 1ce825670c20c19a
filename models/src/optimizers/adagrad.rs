//! Adagrad (Duchi et al. 2011), as PyTorch defines it without learning-rate decay; one state.

use super::{Elements, Update};
use crate::kernels::Isa;
use crate::kernels::optimizer::{AdagradScalars, adagrad};
use serde::{Deserialize, Serialize};

/// Constants of Adagrad.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Adagrad {
    /// Added to the root of the sum of squares.
    pub eps: f64,
    /// Weight decay, through the gradient.
    pub weight_decay: f64,
}

impl Default for Adagrad {
    /// DeepSpeed's defaults.
    fn default() -> Adagrad {
        Adagrad { eps: 1e-10, weight_decay: 0.0 }
    }
}

impl Adagrad {
    /// One update.
    pub(super) fn update(&self, isa: Isa, update: Update, elements: Elements<'_>) {
        let scalars = AdagradScalars {
            factor: update.gradient_factor,
            decay: self.weight_decay as f32,
            eps: self.eps as f32,
            rate: update.learning_rate as f32,
        };
        adagrad(isa, scalars, elements);
    }
}
