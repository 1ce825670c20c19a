//! Adam (Kingma and Ba 2015) and AdamW (Loshchilov and Hutter 2019), in PyTorch's order of operations.

use super::{Elements, Update};
use crate::kernels::Isa;
use crate::kernels::optimizer::{AdamScalars, adam};
use serde::{Deserialize, Serialize};

/// Constants of Adam. DeepSpeed's `adam` means decoupled decay unless `adam_w_mode` is false.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Adam {
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Decay the parameter itself (AdamW) rather than through the gradient.
    pub decoupled: bool,
    /// Divide the moments by `1 - beta^t`.
    pub bias_correction: bool,
}

impl Default for Adam {
    /// DeepSpeed's defaults.
    fn default() -> Adam {
        Adam {
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.0,
            decoupled: true,
            bias_correction: true,
        }
    }
}

impl Adam {
    /// One update.
    pub(super) fn update(&self, isa: Isa, update: Update, elements: Elements<'_>) {
        adam(isa, self.scalars(update), elements);
    }

    fn scalars(&self, update: Update) -> AdamScalars {
        let [b1, b2] = update.betas.unwrap_or(self.betas);
        let t = update.t as f64;
        let corrections = if self.bias_correction {
            (1.0 - libm::pow(b1, t), libm::sqrt(1.0 - libm::pow(b2, t)))
        } else {
            (1.0, 1.0)
        };
        let decay = if self.decoupled { update.learning_rate * self.weight_decay } else { 0.0 };
        AdamScalars {
            factor: update.gradient_factor,
            beta1: b1 as f32,
            rest1: (1.0 - b1) as f32,
            beta2: b2 as f32,
            rest2: (1.0 - b2) as f32,
            keep: (1.0 - decay) as f32,
            coupled: if self.decoupled { 0.0 } else { self.weight_decay as f32 },
            root: (1.0 / corrections.1) as f32,
            eps: self.eps as f32,
            rate: (update.learning_rate / corrections.0) as f32,
        }
    }
}
