//! Exact sums in parts: what a node's leaves add to one chunk, and what a chunk's owner adds up.
//!
//! A node computes a *lot* of leaves. Their emissions into one (chunk, site) become a [`Partial`]:
//! grid integers in i64; or, for a lot of one leaf, the rounded fp32 values themselves, which are
//! those integers exactly, in half the bytes; or, for embeddings, only the rows that occur. The
//! owner adds partials in [`ChunkSum`] in whatever order they come and converts once.
//!
//! ```text
//!  backward ──GradSink──> LotSums ──Partial──> ChunkSum ──> gradient, flags, lanes
//!  (a node's leaves)                            (a chunk's owner)
//! ```
//!
//! Law 2 is checked by lanes: each whole emission adds a pseudo-random tag once, and the total of a
//! step is a known constant; words are summed with weights, so that a word changed or swapped after
//! it was added shows.

mod lot;
mod sum;
mod table;
#[cfg(test)]
mod tests;

pub use lot::{LotSink, LotSums};
pub use sum::{ChunkSum, Fixed, SumError};
pub use table::{ChunkPlace, ParamPlace, Part, PartTable, Run, Stretch};

use crate::kernels::piece::{Piece, PiecePool};
use serde::{Deserialize, Serialize};

/// An element was not finite.
pub const NOT_FINITE: u8 = 1;
/// An element did not fit the grid.
pub const OFF_GRID: u8 = 2;

/// How a partial's numbers are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Form {
    /// Rounded fp32 values of one leaf, every element.
    Single,
    /// i64 grid integers, every element.
    Wide,
    /// Rounded fp32 values of some stretches; `runs` of them.
    Rows {
        /// Stretches.
        runs: u32,
    },
}

/// What is known of a partial beside its numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Lanes {
    /// How the numbers are written.
    pub form: Form,
    /// The sum of the tags of all (leaf, site) in it.
    pub tags: u64,
    /// Labels counted, in the one part that carries them.
    pub labels: u64,
    /// The loss on its grid, in the one part that carries it.
    pub loss: i64,
    /// [`NOT_FINITE`] and [`OFF_GRID`], OR-ed over elements.
    pub flags: u8,
    /// Grid integers weighted by 2i + 1, modulo 2^64; kept for what leaves its node.
    pub checksum: Option<u64>,
}

impl Default for Lanes {
    fn default() -> Lanes {
        Lanes { form: Form::Wide, tags: 0, labels: 0, loss: 0, flags: 0, checksum: None }
    }
}

/// Stretches of a chunk with their values, leaf after leaf; a stretch may come more than once.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Rows {
    /// (first element, elements), flattened.
    pub runs: Vec<u32>,
    /// All runs' values, one after the other.
    pub values: Vec<f32>,
}

/// A partial's numbers.
pub enum Values {
    /// [`Form::Single`].
    Single(Piece<f32>),
    /// [`Form::Wide`].
    Wide(Piece<i64>),
    /// [`Form::Rows`].
    Rows(Rows),
}

/// A lot's sum for one (chunk, site).
pub struct Partial {
    /// What is known of it.
    pub lanes: Lanes,
    /// The numbers.
    pub values: Values,
}

/// A partial's numbers, borrowed: of our own, or as they came in.
#[derive(Clone, Copy, Debug)]
pub enum ValuesRef<'a> {
    /// [`Form::Single`].
    Single(&'a [f32]),
    /// [`Form::Wide`].
    Wide(&'a [i64]),
    /// [`Form::Rows`]: runs and values.
    Rows(&'a [u32], &'a [f32]),
}

impl Values {
    /// Borrowed.
    #[must_use]
    pub fn view(&self) -> ValuesRef<'_> {
        match self {
            Values::Single(v) => ValuesRef::Single(v),
            Values::Wide(v) => ValuesRef::Wide(v),
            Values::Rows(rows) => ValuesRef::Rows(&rows.runs, &rows.values),
        }
    }
}

impl<'a> ValuesRef<'a> {
    /// Reads a partial's body; `None` if its length is not what its form says, or it is misaligned.
    #[must_use]
    pub fn parse(form: Form, body: &'a [u8]) -> Option<ValuesRef<'a>> {
        match form {
            Form::Single => bytemuck::try_cast_slice(body).ok().map(ValuesRef::Single),
            Form::Wide => bytemuck::try_cast_slice(body).ok().map(ValuesRef::Wide),
            Form::Rows { runs } => {
                let at = (runs as usize).checked_mul(8).filter(|&at| at <= body.len())?;
                let (runs, values) = body.split_at(at);
                let runs = bytemuck::try_cast_slice(runs).ok()?;
                Some(ValuesRef::Rows(runs, bytemuck::try_cast_slice(values).ok()?))
            }
        }
    }

    /// The body in pieces, as [`ValuesRef::parse`] reads it.
    #[must_use]
    pub fn bytes(self) -> [&'a [u8]; 2] {
        match self {
            ValuesRef::Single(v) => [bytemuck::cast_slice(v), &[]],
            ValuesRef::Wide(v) => [bytemuck::cast_slice(v), &[]],
            ValuesRef::Rows(runs, values) => {
                [bytemuck::cast_slice(runs), bytemuck::cast_slice(values)]
            }
        }
    }
}

/// The buffers of sums that are free at present.
#[derive(Clone, Default)]
pub struct SumPools {
    /// fp32.
    pub single: PiecePool<f32>,
    /// i64.
    pub wide: PiecePool<i64>,
}

/// The grid of the loss lane: 2^-24 nats.
const LOSS_SCALE: f64 = (1u64 << 24) as f64;

/// A leaf's summed loss on the loss grid; a loss that is not finite counts as zero, since its
/// gradients are flagged anyway.
#[must_use]
pub fn loss_to_grid(loss_sum: f64) -> i64 {
    if loss_sum.is_finite() { (loss_sum * LOSS_SCALE).round_ties_even() as i64 } else { 0 }
}

/// A summed loss in nats.
#[must_use]
pub fn loss_from_grid(loss: i64) -> f64 {
    loss as f64 / LOSS_SCALE
}
