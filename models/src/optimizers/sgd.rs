//! Stochastic gradient descent with momentum, as PyTorch defines it.

use super::{Elements, Update};
use crate::kernels::Isa;
use crate::kernels::optimizer::{SgdScalars, sgd};
use serde::{Deserialize, Serialize};

/// Constants of SGD.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Sgd {
    /// 0 for none (and no state).
    pub momentum: f64,
    /// Damping of the gradient in the momentum.
    pub dampening: f64,
    /// Weight decay, through the gradient.
    pub weight_decay: f64,
    /// Nesterov's look-ahead.
    pub nesterov: bool,
}

impl Sgd {
    /// One update.
    pub(super) fn update(&self, isa: Isa, update: Update, elements: Elements<'_>) {
        let scalars = SgdScalars {
            factor: update.gradient_factor,
            decay: self.weight_decay as f32,
            // PyTorch's first momentum is the gradient itself, undamped.
            keep: if update.t == 1 { 0.0 } else { self.momentum as f32 },
            take: if update.t == 1 { 1.0 } else { (1.0 - self.dampening) as f32 },
            momentum: self.momentum as f32,
            nesterov: self.nesterov,
            rate: update.learning_rate as f32,
        };
        sgd(isa, scalars, elements);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PyTorch 2: momentum 0.9, dampening 0.1, decay 0.01, lr 0.1, from 1 with gradients 0.5, 0.25.
    #[test]
    fn sgd_follows_the_float64_twin() {
        let spec = Sgd { momentum: 0.9, dampening: 0.1, weight_decay: 0.01, nesterov: false };
        let (mut p, mut buffer) = (vec![1.0f32; 5], vec![0.0f32; 5]);
        let (mut want, mut b) = (1.0f64, 0.0f64);
        for (t, g) in [(1, 0.5f64), (2, 0.25), (3, -0.7)] {
            let update =
                Update { t, learning_rate: 0.1, gradient_factor: 2.0, ..Update::default() };
            let gradient = vec![g as f32 / 2.0; 5];
            let (second, working) = (&mut [][..], None);
            let elements = Elements {
                gradient: &gradient,
                master: &mut p,
                first: &mut buffer,
                second,
                working,
            };
            spec.update(Isa::detect(), update, elements);
            let d = g + 0.01 * want;
            b = if t == 1 { d } else { 0.9 * b + 0.9 * d };
            want -= 0.1 * b;
            p.iter().for_each(|&x| assert!((f64::from(x) - want).abs() < 1e-6));
        }
    }
}
