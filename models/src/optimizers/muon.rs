//! Muon (Jordan 2024): momentum whose matrices are made orthogonal by a Newton-Schulz iteration; Adam
//! for everything that is not a matrix inside a block.

use super::{Adam, Elements, Update};
use crate::block::ParamSpec;
use crate::compute::{Arena, Kit};
use crate::kernels::gemm::Dims;
use crate::kernels::muon::{MuonScalars, Shape, muon, muon_flops, muon_products, muon_scratch};
use serde::{Deserialize, Serialize};

/// How a matrix is made orthogonal: the same polynomial, in another order of operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NewtonSchulz {
    /// On the Gram matrix of the shorter side, where there is one.
    Gram,
    /// On the matrix itself.
    Standard,
}

/// Constants of Muon, by DeepSpeed's names.
///
/// # Source
/// DeepSpeed's Muon: Nesterov momentum as a running mean, five steps of the quintic, the update times
/// sqrt(max(1, rows / cols)), decoupled decay. Its group is every parameter of two or more axes whose
/// name has neither `embed` nor `lm_head`; we also leave out GPT-2's embeddings, `wte` and `wpe`,
/// which that rule was not written for. We iterate in fp32, not in 16 bits.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Muon {
    /// Momentum.
    pub momentum: f64,
    /// Decoupled weight decay of the matrices.
    pub weight_decay: f64,
    /// The iteration.
    pub ns_method: NewtonSchulz,
    /// For everything else.
    pub adam: Adam,
    /// Adam's learning rate over Muon's.
    pub adam_rate: f64,
}

impl Default for Muon {
    /// DeepSpeed's defaults.
    fn default() -> Muon {
        let adam = Adam { betas: [0.9, 0.95], eps: 1e-10, ..Adam::default() };
        let ns_method = NewtonSchulz::Gram;
        Muon { momentum: 0.95, weight_decay: 0.0, ns_method, adam, adam_rate: 1.0 }
    }
}

impl Muon {
    /// Whether a parameter is a matrix inside a block.
    pub(super) fn takes(param: &ParamSpec) -> bool {
        const OUTSIDE: [&str; 4] = ["embed", "lm_head", "wte", "wpe"];
        param.is_matrix() && !OUTSIDE.iter().any(|name| param.name.contains(name))
    }

    fn is_gram(&self) -> bool {
        self.ns_method == NewtonSchulz::Gram
    }

    /// Bytes of scratch that a matrix's update needs.
    pub(super) fn scratch_bytes(&self, param: &ParamSpec) -> usize {
        muon_scratch(shape(param), self.is_gram())
    }

    /// The products of a matrix's update.
    pub(super) fn products(param: &ParamSpec) -> Vec<Dims> {
        muon_products(shape(param)).to_vec()
    }

    /// Operations of a matrix's products.
    pub(super) fn flops(&self, param: &ParamSpec) -> u64 {
        muon_flops(shape(param), self.is_gram())
    }

    /// What Adam's group gets.
    pub(super) fn adam_update(&self, update: Update) -> Update {
        Update { learning_rate: update.learning_rate * self.adam_rate, ..update }
    }

    /// One update of a whole matrix.
    pub(super) fn update(
        &self,
        (kit, arena): (&Kit, Arena<'_>),
        param: &ParamSpec,
        at: Update,
        e: Elements<'_>,
    ) {
        let shape = shape(param);
        let stretch = (shape.rows as f64 / shape.cols as f64).max(1.0).sqrt();
        let scalars = MuonScalars {
            factor: at.gradient_factor,
            momentum: self.momentum as f32,
            rest: (1.0 - self.momentum) as f32,
            keep: (1.0 - at.learning_rate * self.weight_decay) as f32,
            rate: (at.learning_rate * stretch) as f32,
            gram: self.is_gram(),
        };
        muon(kit, scalars, shape, e, arena);
    }
}

/// The first axis against all others.
fn shape(param: &ParamSpec) -> Shape {
    let rows = param.shape.first().copied().unwrap_or(1).max(1);
    Shape { rows, cols: param.elements() / rows }
}
