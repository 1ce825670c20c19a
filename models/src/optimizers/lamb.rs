//! LAMB (You et al. 2020): Adam with a step as long, relative to each parameter, as the parameter.

use super::{Elements, Update};
use crate::compute::Kit;
use crate::kernels::lamb::{LambScalars, lamb};
use serde::{Deserialize, Serialize};

/// Constants of LAMB, by DeepSpeed's names.
///
/// # Source
/// DeepSpeed's fused LAMB: moments are corrected themselves, decay is part of the update, and the
/// trust ratio `|w| / |update|` is over a whole parameter, clamped; 1 where a norm is zero.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Lamb {
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Added to the root of the second moment, or under it.
    pub eps: f64,
    /// Weight decay, part of the update.
    pub weight_decay: f64,
    /// Largest trust ratio.
    pub max_coeff: f64,
    /// Smallest trust ratio.
    pub min_coeff: f64,
    /// Add `eps` under the root.
    pub eps_inside_sqrt: bool,
    /// Divide the moments by `1 - beta^t`.
    pub bias_correction: bool,
}

impl Default for Lamb {
    /// DeepSpeed's defaults.
    fn default() -> Lamb {
        Lamb {
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.0,
            max_coeff: 10.0,
            min_coeff: 0.01,
            eps_inside_sqrt: false,
            bias_correction: true,
        }
    }
}

impl Lamb {
    /// One update of a whole parameter.
    pub(super) fn update(&self, kit: &Kit, at: Update, e: Elements<'_>, partials: &mut [f64]) {
        let weights = |beta: f64| [beta as f32, (1.0 - beta) as f32];
        let betas = at.betas.unwrap_or(self.betas);
        let correct = betas.map(|beta| {
            if self.bias_correction {
                (1.0 / (1.0 - libm::pow(beta, at.t as f64))) as f32
            } else {
                1.0
            }
        });
        let scalars = LambScalars {
            factor: at.gradient_factor,
            first: weights(betas[0]),
            second: weights(betas[1]),
            correct,
            eps: self.eps as f32,
            eps_inside_sqrt: self.eps_inside_sqrt,
            decay: self.weight_decay as f32,
            rate: at.learning_rate as f32,
            trust: [self.max_coeff as f32, self.min_coeff as f32],
        };
        lamb(kit, scalars, e, partials);
    }
}
