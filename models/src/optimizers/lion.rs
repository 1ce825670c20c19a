//! Lion (Chen et al. 2023): the sign of an interpolated momentum; one state.

use super::{Elements, Update};
use crate::kernels::Isa;
use crate::kernels::optimizer::{LionScalars, lion};
use serde::{Deserialize, Serialize};

/// Constants of Lion. The sign of zero is zero.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Lion {
    /// Weights of the momentum: in the update, and in the state.
    pub betas: [f64; 2],
    /// Decoupled weight decay.
    pub weight_decay: f64,
}

impl Default for Lion {
    /// DeepSpeed's defaults.
    fn default() -> Lion {
        Lion { betas: [0.9, 0.999], weight_decay: 0.0 }
    }
}

impl Lion {
    /// One update.
    pub(super) fn update(&self, isa: Isa, update: Update, elements: Elements<'_>) {
        let weights = |beta: f64| [beta as f32, (1.0 - beta) as f32];
        let betas = update.betas.unwrap_or(self.betas);
        let scalars = LionScalars {
            factor: update.gradient_factor,
            update: weights(betas[0]),
            state: weights(betas[1]),
            keep: (1.0 - update.learning_rate * self.weight_decay) as f32,
            rate: update.learning_rate as f32,
        };
        lion(isa, scalars, elements);
    }
}
