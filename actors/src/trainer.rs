//! One trainer: a spec, a device and a ring, driven step by step.
//!
//! A run of fixed size is an elastic run in which nothing happens, so there is nothing here that
//! knows how many nodes there are.

use crate::data::LeafSource;
use crate::device::{Device, DeviceSetup};
use crate::driver::{Ring, RingError, StepOutcome};
use crate::node::{ActorId, NodePlan};
use crate::spec::RunSpec;
use crate::step::decision::DecisionRule;
use planaria_base::{Digest, Step};
use planaria_models::block::LossStats;
use std::sync::Arc;

/// A run under way.
pub struct Trainer {
    spec: RunSpec,
    ring: Ring,
    step: Step,
    updates: u64,
}

impl Trainer {
    /// Starts the actors over a device that holds some state of the run.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(spec: RunSpec, setup: &DeviceSetup, device: Device) -> Result<Trainer, RingError> {
        let (step, updates) = device.state();
        let layout = device.layout();
        let plan = NodePlan {
            blocks: device.model().blocks.len() as u32,
            leaves: spec.leaves,
            order: setup.order,
            block_chunks: layout.block_chunks.clone(),
            chunks: layout.table.chunks.len() as u32,
            rule: DecisionRule {
                clip: spec.clip,
                leaf_factor: f64::from(spec.leaf_factor()),
                dynamic_scale: spec.loss_scaler().is_some_and(|s| s.is_dynamic()),
            },
            state: (step, updates),
        };
        Ok(Trainer { spec, ring: Ring::start(plan, device)?, step, updates })
    }

    /// The run's spec.
    #[must_use]
    pub fn spec(&self) -> &RunSpec {
        &self.spec
    }

    /// The last complete step, and updates applied.
    #[must_use]
    pub fn state(&self) -> (Step, u64) {
        (self.step, self.updates)
    }

    /// Runs one step.
    ///
    /// # Errors
    /// If the run cannot go on.
    pub fn step(&mut self) -> Result<StepOutcome, RingError> {
        let outcome = self.ring.step(self.spec.schedule.rate(self.updates))?;
        let decision = outcome.decision;
        (self.step, self.updates) = (decision.step, decision.updates);
        if self.spec.loss_scale.is_some() || !decision.is_commit() {
            let finish = move |device: &mut Device| device.finish_step(&decision);
            self.ring.call(finish)?.map_err(RingError::Stopped)?;
        }
        Ok(outcome)
    }

    /// Losses over the first batches of a source.
    ///
    /// # Errors
    /// If a sample cannot be read, or the run has ended.
    pub fn evaluate(
        &self,
        source: Arc<dyn LeafSource>,
        batches: u64,
    ) -> Result<LossStats, RingError> {
        let evaluate = move |device: &mut Device| device.evaluate(&*source, batches);
        self.ring.call(evaluate)?.map_err(RingError::Stopped)
    }

    /// The digest of the state.
    ///
    /// # Errors
    /// If the run has ended.
    pub fn state_hash(&self) -> Result<Digest, RingError> {
        self.ring.call(|device| device.state_hash())
    }

    /// Runs anything on the device between steps: saving, for one.
    ///
    /// # Errors
    /// If the run has ended, or the call panicked.
    pub fn call<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Device) -> R + Send + 'static,
    ) -> Result<R, RingError> {
        self.ring.call(call)
    }

    /// Makes an actor panic at its next event: a drill for tests.
    ///
    /// # Errors
    /// If the node has ended.
    pub fn drill(&self, id: ActorId) -> Result<(), RingError> {
        self.ring.drill(id)
    }
}
