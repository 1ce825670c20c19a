//! Rotary positions (Su et al. 2021), in Hugging Face's half-split layout.

use super::for_rows;
use super::gemm::epilogue::Out;
use super::simd::Element;
use crate::compute::Kit;
use serde::{Deserialize, Serialize};
use std::sync::OnceLock;

/// How the frequencies are stretched for longer contexts.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "rope_type", rename_all = "snake_case")]
pub enum RopeScaling {
    /// As trained.
    Default,
    /// All positions divided by a factor (Chen et al. 2023).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// Llama 3.1's rule: long wavelengths are divided, short ones kept, a ramp between.
    Llama3 {
        /// Division of long wavelengths.
        factor: f64,
        /// Wavelengths above `original / low` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original / high` are kept.
        high_freq_factor: f64,
        /// The context that the model was trained with.
        original_max_position_embeddings: f64,
    },
}

/// Cosines and sines of every position, `[positions, head_dim / 2]` each; computed when they are first
/// used, so that a model's shape can be looked at without them.
#[derive(Clone, Debug)]
pub struct RopeTable {
    positions: usize,
    half: usize,
    theta: f64,
    scaling: RopeScaling,
    turns: OnceLock<Turns>,
}

#[derive(Clone, Debug)]
struct Turns {
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeTable {
    /// The table for `positions` positions, to be computed in f64.
    #[must_use]
    pub fn new(positions: usize, head_dim: usize, theta: f64, scaling: RopeScaling) -> RopeTable {
        RopeTable { positions, half: head_dim / 2, theta, scaling, turns: OnceLock::new() }
    }

    fn turns(&self) -> &Turns {
        self.turns.get_or_init(|| {
            let frequency = |i: usize| {
                let plain = 1.0 / libm::pow(self.theta, (2 * i) as f64 / (2 * self.half) as f64);
                scale(plain, self.scaling)
            };
            let frequencies: Vec<f64> = (0..self.half).map(frequency).collect();
            let positions = 0..self.positions;
            let angles = positions.flat_map(|p| frequencies.iter().map(move |f| p as f64 * f));
            let (cos, sin) = angles.map(|a| (libm::cos(a) as f32, libm::sin(a) as f32)).unzip();
            Turns { cos, sin }
        })
    }
}

fn scale(frequency: f64, scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::Default => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 {
            factor,
            low_freq_factor: low,
            high_freq_factor: high,
            original_max_position_embeddings: original,
        } => {
            let wavelength = 2.0 * std::f64::consts::PI / frequency;
            if wavelength < original / high {
                frequency
            } else if wavelength > original / low {
                frequency / factor
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 - smooth) * frequency / factor + smooth * frequency
            }
        }
    }
}

/// Heads to rotate: `heads` of `2 * half` elements each, at the start of rows `row_stride` apart.
#[derive(Clone, Copy)]
pub struct RopeHeads {
    /// Elements from row to row.
    pub row_stride: usize,
    /// Heads at the start of each row.
    pub heads: usize,
    /// Rows of a sequence: row `i` is at position `first + i % length`.
    pub length: usize,
    /// Position of a sequence's first row.
    pub first: usize,
}

/// Rotates every head by its position; `inverse` rotates back, which is also the backward.
///
/// # Panics
/// If a position is beyond the table.
pub fn rope<A: Element>(kit: &Kit, at: RopeHeads, x: &mut [A], table: &RopeTable, inverse: bool) {
    let (width, turns) = (2 * table.half, table.turns());
    let rows = (x.len() + at.row_stride - at.heads * width) / at.row_stride;
    let out = Out::new(x, at.row_stride);
    for_rows(kit, rows, 16, &|r| {
        for row in r {
            let t = (at.first + row % at.length) * table.half;
            let (cos, sin) = (&turns.cos[t..t + table.half], &turns.sin[t..t + table.half]);
            let start = out.at(row, 0, at.heads * width);
            // SAFETY: rows are disjoint, and `at` checked the range.
            let heads = unsafe { std::slice::from_raw_parts_mut(start, at.heads * width) };
            heads.chunks_exact_mut(width).for_each(|head| rotate(head, cos, sin, inverse));
        }
    });
}

fn rotate<A: Element>(head: &mut [A], cos: &[f32], sin: &[f32], inverse: bool) {
    let sign = if inverse { -1.0 } else { 1.0 };
    let (lo, hi) = head.split_at_mut(cos.len());
    for ((lo, hi), (&c, &s)) in lo.iter_mut().zip(hi).zip(cos.iter().zip(sin)) {
        let (a, b, s) = (lo.to_f32(), hi.to_f32(), s * sign);
        (*lo, *hi) = (A::from_f32(a * c - b * s), A::from_f32(b * c + a * s));
    }
}
