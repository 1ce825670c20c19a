//! Where states come from and go to outside the ring: first values, and checkpoints.

use crate::protocol::decision::Decision;
use crate::protocol::log::{CommandLog, LogMark};
use planaria_base::rng::CounterRng;
use planaria_base::{Chunk, Digest, Span, Step};
use planaria_models::block::{Init, ParamSpec};

/// First values and checkpoints of a run. Called on the thread that keeps the shards.
pub trait Vault: Send + Sync {
    /// Fills a span with its value before the first step.
    ///
    /// # Errors
    /// If the weights that the run starts from cannot be had.
    fn initial(&self, span: &Span, values: &mut [f32]) -> Result<(), String>;

    /// Loads a chunk's master and optimizer states, in that order.
    ///
    /// # Errors
    /// If the checkpoint is not there or not good.
    fn load(
        &self,
        at: (Step, LogMark),
        chunk: &Chunk,
        tensors: &mut [&mut [f32]],
    ) -> Result<(), String>;

    /// Writes a chunk's master and optimizer states. A chunk may be written more than once, with the
    /// same bits.
    ///
    /// # Errors
    /// If the disk refuses; the run goes on, the checkpoint does not come about.
    fn store(&self, at: (Step, LogMark), chunk: &Chunk, tensors: &[&[f32]]) -> Result<(), String>;

    /// All chunks are written: makes the checkpoint valid. Called on a thread of its own.
    ///
    /// # Errors
    /// As [`Vault::store`].
    fn publish(
        &self,
        decision: &Decision,
        log: &CommandLog,
        state_hash: Digest,
    ) -> Result<(), String>;
}

/// A vault that draws first values from a seed and keeps nothing.
pub struct SeedVault {
    params: Vec<ParamSpec>,
    seed: u64,
}

impl SeedVault {
    /// For the parameters of a model.
    #[must_use]
    pub fn new(params: Vec<ParamSpec>, seed: u64) -> SeedVault {
        SeedVault { params, seed }
    }
}

impl Vault for SeedVault {
    fn initial(&self, span: &Span, values: &mut [f32]) -> Result<(), String> {
        draw(&self.params[span.param.index()], self.seed, span, values);
        Ok(())
    }

    fn load(&self, at: (Step, LogMark), _: &Chunk, _: &mut [&mut [f32]]) -> Result<(), String> {
        Err(format!("there is no checkpoint of step {}", at.0))
    }

    fn store(&self, _: (Step, LogMark), _: &Chunk, _: &[&[f32]]) -> Result<(), String> {
        Ok(())
    }

    fn publish(&self, _: &Decision, _: &CommandLog, _: Digest) -> Result<(), String> {
        Ok(())
    }
}

/// Fills a span of a parameter as its spec says. Normal values are Box and Muller's, from a counter
/// generator keyed by (seed, parameter, element), with `libm`'s functions in f64; so any node draws
/// any span alone.
pub fn draw(spec: &ParamSpec, seed: u64, span: &Span, values: &mut [f32]) {
    let Init::Normal { std } = spec.init else {
        return values.fill(if spec.init == Init::Ones { 1.0 } else { 0.0 });
    };
    let rng = CounterRng::new(seed).fork(0x696e_6974).fork(u64::from(spec.id.0));
    let pair_at = |pair: u64| {
        let u = 1.0 - rng.uniform(2 * pair);
        let angle = 2.0 * std::f64::consts::PI * rng.uniform(2 * pair + 1);
        let radius = f64::from(std) * libm::sqrt(-2.0 * libm::log(u));
        [(radius * libm::cos(angle)) as f32, (radius * libm::sin(angle)) as f32]
    };
    let (first, end) = (span.start, span.end());
    for pair in first / 2..end.div_ceil(2) {
        let drawn = pair_at(pair);
        for (half, value) in drawn.into_iter().enumerate() {
            let element = 2 * pair + half as u64;
            if element >= first && element < end {
                values[(element - first) as usize] = value;
            }
        }
    }
}

/// The digest of a whole state, from its chunks' in order.
#[must_use]
pub fn state_hash(step: Step, updates: u64, chunks: &[Digest]) -> Digest {
    let mut header = [0u8; 16];
    header[..8].copy_from_slice(&step.0.to_le_bytes());
    header[8..].copy_from_slice(&updates.to_le_bytes());
    Digest::of_all([Digest::of(&header)].into_iter().chain(chunks.iter().copied()))
}
