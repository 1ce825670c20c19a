//! The run spec: everything that the trajectory depends on, and nothing else.
//!
//! Two nodes with the same spec compute the same bits, whatever their threads, memory or transport;
//! so the spec's hash is the run's name. How a node executes it (threads, order, recomputation,
//! tiers) stands in [`crate::device::DeviceSetup`] and is not part of it.

use planaria_base::{Digest, RunId};
use planaria_models::block::Precision;
use planaria_models::families::ModelSpec;
use planaria_models::loss_scale::{LossScaleSpec, LossScaler};
use planaria_models::optimizers::OptimizerSpec;
use planaria_models::schedules::ScheduleSpec;
use serde::{Deserialize, Serialize};

/// Version of the spec's meaning: grows when the same spec would give other bits.
pub const SPEC_VERSION: u32 = 1;

/// What is trained, on what, and how, bit for bit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RunSpec {
    /// [`SPEC_VERSION`].
    pub version: u32,
    /// The model's shape.
    pub model: ModelSpec,
    /// Digest of the weights that the run starts from; `None` means drawn from the seed.
    pub init_from: Option<Digest>,
    /// Digest of the token stream.
    pub data: Digest,
    /// Sequences of a leaf.
    pub sequences: usize,
    /// Tokens of a sequence.
    pub length: usize,
    /// Leaves of a step.
    pub leaves: u32,
    /// Seeds the weights and the order of samples.
    pub seed: u64,
    /// Arithmetic of matrix products.
    pub precision: Precision,
    /// How the loss is scaled, in fp16; left out elsewhere, so that older specs keep their name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScaleSpec>,
    /// The optimizer.
    pub optimizer: OptimizerSpec,
    /// The learning rate by update.
    pub schedule: ScheduleSpec,
    /// Largest gradient norm; 0 switches clipping off.
    pub clip: f64,
    /// Largest gradient element that the exact sum takes, as a power of two.
    pub grid_max_log2: i32,
    /// Elements of a chunk at most.
    pub chunk_elements: u64,
}

impl RunSpec {
    /// The run's name: the first half of the spec's digest.
    ///
    /// # Panics
    /// If the spec cannot be written as JSON, which its types rule out.
    #[must_use]
    pub fn run_id(&self) -> RunId {
        let text = serde_json::to_vec(self).expect("a run spec is plain data");
        let digest = Digest::of(&text);
        RunId(digest.0[..16].try_into().expect("16 of 32 bytes"))
    }

    /// The loss scaler before the first step, in fp16.
    ///
    /// # Panics
    /// If a scale is not a power of two: whoever makes a spec checks that.
    #[must_use]
    pub fn loss_scaler(&self) -> Option<LossScaler> {
        self.loss_scale.map(|spec| LossScaler::new(spec).expect("a spec's loss scale was checked"))
    }

    /// The constant that a leaf's loss is multiplied by before backward: a power of two near
    /// 1 / (tokens of a leaf), so that summed gradients have the size of mean ones.
    #[must_use]
    pub fn leaf_factor(&self) -> f32 {
        let tokens = (self.sequences * self.length).next_power_of_two();
        1.0 / tokens as f32
    }
}
