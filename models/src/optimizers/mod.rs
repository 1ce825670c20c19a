//! Optimizers: what turns a reduced gradient into new parameters.
//!
//! An elementwise optimizer is one fused pass: it reads gradient, master and states once, and writes
//! master, states and the 16-bit working copy once, for any run of a parameter's elements. LAMB and
//! Muon need a parameter as a whole ([`OptimizerSpec::needs_whole`]): whoever cuts parameters into
//! chunks keeps such a one in one piece, and so needs no exchange of norms. Scalars are computed in
//! f64 and rounded to fp32 once; powers come from `libm`, never the platform.

mod adagrad;
mod adam;
mod lamb;
mod lion;
mod muon;
mod sgd;
#[cfg(test)]
mod tests;

pub use adagrad::Adagrad;
pub use adam::Adam;
pub use lamb::Lamb;
pub use lion::Lion;
pub use muon::{Muon, NewtonSchulz};
pub use sgd::Sgd;

use crate::block::ParamSpec;
use crate::compute::{Arena, Kit, slot_bytes};
use crate::kernels::Isa;
use crate::kernels::gemm::Dims;
use crate::kernels::lamb::lamb_partials;
use crate::kernels::optimizer::update_parallel;
use half::{bf16, f16};
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
    /// Adam with a trust ratio per parameter.
    Lamb(Lamb),
    /// Orthogonal momentum for matrices, Adam for the rest.
    Muon(Muon),
}

/// What every element of an update shares.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Update {
    /// Updates applied once this one is, from 1.
    pub t: u64,
    /// Learning rate.
    pub learning_rate: f64,
    /// The gradient is multiplied by this first: mean and clipping.
    pub gradient_factor: f32,
    /// In place of the optimizer's betas, if it has any: a schedule that cycles momentum.
    pub betas: Option<[f64; 2]>,
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
    /// The 16-bit working copy, where there is one.
    pub working: Option<Working<'a>>,
}

/// A 16-bit working copy of a run of elements.
#[derive(Debug)]
pub enum Working<'a> {
    /// bf16 elements.
    Bf16(&'a mut [bf16]),
    /// fp16 elements.
    F16(&'a mut [f16]),
}

impl Working<'_> {
    /// Elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Working::Bf16(w) => w.len(),
            Working::F16(w) => w.len(),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

const ADAM_STATES: &[&str] = &["exp_avg", "exp_avg_sq"];

impl OptimizerSpec {
    /// Names of a parameter's states, as checkpoints store them.
    #[must_use]
    pub fn state_names(&self, param: &ParamSpec) -> &'static [&'static str] {
        match self {
            _ if param.frozen => &[],
            OptimizerSpec::Adam(_) | OptimizerSpec::Lamb(_) => ADAM_STATES,
            OptimizerSpec::Sgd(sgd) if sgd.momentum == 0.0 => &[],
            OptimizerSpec::Muon(_) if !Muon::takes(param) => ADAM_STATES,
            OptimizerSpec::Sgd(_) | OptimizerSpec::Muon(_) => &["momentum_buffer"],
            OptimizerSpec::Lion(_) => &["exp_avg"],
            OptimizerSpec::Adagrad(_) => &["sum"],
        }
    }

    /// Whether an update needs all of a parameter's elements at once.
    #[must_use]
    pub fn needs_whole(&self, param: &ParamSpec) -> bool {
        match self {
            OptimizerSpec::Lamb(_) => true,
            OptimizerSpec::Muon(_) => Muon::takes(param),
            _ => false,
        }
    }

    /// Bytes of scratch that [`OptimizerSpec::apply`] needs at most.
    #[must_use]
    pub fn scratch_bytes(&self, params: &[ParamSpec]) -> usize {
        let whole = params.iter().filter(|p| self.needs_whole(p));
        let bytes = |p: &ParamSpec| match self {
            OptimizerSpec::Muon(muon) => muon.scratch_bytes(p),
            _ => slot_bytes::<f64>(lamb_partials(p.elements())),
        };
        whole.map(bytes).max().unwrap_or(0)
    }

    /// The fp32 products of a parameter's update, by size.
    #[must_use]
    pub fn products(&self, param: &ParamSpec) -> Vec<Dims> {
        match self {
            OptimizerSpec::Muon(_) if Muon::takes(param) => Muon::products(param),
            _ => Vec::new(),
        }
    }

    /// Operations of those products: what an update costs beside its pass over the states.
    #[must_use]
    pub fn update_flops(&self, params: &[ParamSpec]) -> u64 {
        let OptimizerSpec::Muon(muon) = self else { return 0 };
        params.iter().filter(|p| Muon::takes(p)).map(|p| muon.flops(p)).sum()
    }

    /// Updates a run of a parameter's elements, over all threads: any run, or the whole parameter
    /// where [`OptimizerSpec::needs_whole`] says so.
    ///
    /// # Panics
    /// If a whole parameter is needed and not given, or the arena is too small.
    pub fn apply(
        &self,
        (kit, mut arena): (&Kit, Arena<'_>),
        param: &ParamSpec,
        update: Update,
        elements: Elements<'_>,
    ) {
        if self.needs_whole(param) {
            let all = elements.master.len() == param.elements();
            assert!(all, "this optimizer updates {} as a whole", param.name);
        }
        match self {
            OptimizerSpec::Lamb(lamb) => {
                let partials = arena.take(lamb_partials(elements.master.len()));
                lamb.update(kit, update, elements, partials);
            }
            OptimizerSpec::Muon(muon) if Muon::takes(param) => {
                muon.update((kit, arena), param, update, elements);
            }
            OptimizerSpec::Muon(muon) => {
                let (adam, update) = (OptimizerSpec::Adam(muon.adam), muon.adam_update(update));
                update_parallel(kit, &adam, update, elements);
            }
            _ => update_parallel(kit, self, update, elements),
        }
    }

    /// Updates a run of elements by an elementwise optimizer.
    ///
    /// # Panics
    /// If the optimizer is not elementwise.
    pub(crate) fn update(&self, isa: Isa, update: Update, elements: Elements<'_>) {
        match self {
            OptimizerSpec::Adam(adam) => adam.update(isa, update, elements),
            OptimizerSpec::Sgd(sgd) => sgd.update(isa, update, elements),
            OptimizerSpec::Lion(lion) => lion.update(isa, update, elements),
            OptimizerSpec::Adagrad(adagrad) => adagrad.update(isa, update, elements),
            OptimizerSpec::Lamb(_) | OptimizerSpec::Muon(_) => {
                panic!("LAMB and Muon update parameters as a whole")
            }
        }
    }
}
