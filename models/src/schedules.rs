//! Learning-rate schedules, by update; each steps as DeepSpeed's does.
//!
//! `it` is the 0-based number of the update. Wall clock has no part in any of them. Logarithms and
//! cosines come from `libm`.

#[cfg(test)]
mod golden;

use serde::{Deserialize, Serialize};

/// How a warm-up rises.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Warmup {
    /// `ln(it + 1) / ln(W)`.
    Log,
    /// `it / W`.
    Linear,
}

/// A schedule and its constants, as a run spec holds them.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ScheduleSpec {
    /// Always the same rate.
    Constant {
        /// It.
        rate: f64,
    },
    /// Rise from `min` to `max`, then stay; with `total`, fall linearly to zero at `total`.
    WarmupLinear {
        /// Rate before the first update.
        min: f64,
        /// Rate after the warm-up.
        max: f64,
        /// Updates of warm-up; at least 2.
        warmup: u64,
        /// Updates until zero.
        total: Option<u64>,
        /// Shape of the rise.
        shape: Warmup,
    },
    /// `rate` times: a rise from `min_ratio`, then a cosine down to `cos_min_ratio` at `total`.
    WarmupCosine {
        /// The optimizer's rate.
        rate: f64,
        /// Ratio before the first update.
        min_ratio: f64,
        /// Ratio at the end.
        cos_min_ratio: f64,
        /// Updates of warm-up; at least 2.
        warmup: u64,
        /// Updates until the end.
        total: u64,
        /// Shape of the rise.
        shape: Warmup,
    },
    /// One triangle up and down, then decay (Smith 2018).
    OneCycle {
        /// Lowest and highest rate.
        rates: [f64; 2],
        /// Updates up, and down.
        steps: [u64; 2],
        /// Stairs up, and down; 0 for a smooth slope.
        stairs: [u64; 2],
        /// Decay after the cycle, per `decay_step` updates.
        decay_rate: f64,
        /// 0 for no decay.
        decay_step: u64,
        /// How the first beta mirrors the rate; `None` leaves the betas alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        momentum: Option<CycleMomentum>,
    },
    /// A slow rise for finding a rate.
    RangeTest {
        /// Rate at the start.
        min: f64,
        /// Updates of one interval.
        step: u64,
        /// Rise per interval, in units of `min`.
        rate: f64,
        /// In stairs.
        staircase: bool,
    },
}

/// Momentum over a OneCycle schedule: high, low in the middle, high, then growing.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct CycleMomentum {
    /// Smallest and largest.
    pub bounds: [f64; 2],
    /// Growth after the cycle, per `decay_step` updates, as a share of the largest.
    pub decay_rate: f64,
}

/// What DeepSpeed's OneCycle makes of the second beta.
const CYCLE_BETA2: f64 = 0.99;

impl ScheduleSpec {
    /// The rate of update `it` (from 0).
    #[must_use]
    pub fn rate(&self, it: u64) -> f64 {
        match *self {
            ScheduleSpec::Constant { rate } => rate,
            ScheduleSpec::WarmupLinear { min, max, warmup, total, shape } => {
                let w = warmup.max(2);
                let gamma = match (it < w, total) {
                    (true, _) => rise(it, w, shape),
                    (false, None) => 1.0,
                    (false, Some(t)) => {
                        (t.saturating_sub(it) as f64) / (t.saturating_sub(w).max(1) as f64)
                    }
                };
                min + (max - min) * gamma
            }
            ScheduleSpec::WarmupCosine { rate, min_ratio, cos_min_ratio, warmup, total, shape } => {
                let w = warmup.max(2);
                let ratio = if it < w {
                    min_ratio + (1.0 - min_ratio) * rise(it, w, shape)
                } else {
                    let length = total.saturating_sub(w).max(1) as f64;
                    let progress = ((it - w + 1) as f64 / length).min(1.0);
                    let half = (1.0 + libm::cos(std::f64::consts::PI * progress)) / 2.0;
                    cos_min_ratio + (1.0 - cos_min_ratio) * half
                };
                rate * ratio
            }
            ScheduleSpec::OneCycle {
                rates: [low, high],
                steps,
                stairs,
                decay_rate,
                decay_step,
                ..
            } => match cycle(it, steps, stairs) {
                Cycle::At(scale) => low + (high - low) * scale,
                Cycle::Past(past) => low / (1.0 + decay(decay_rate, past, decay_step)),
            },
            ScheduleSpec::RangeTest { min, step, rate, staircase } => {
                let x = (it + 1) as f64 / step as f64;
                min * (1.0 + rate * if staircase { x.floor() } else { x })
            }
        }
    }

    /// The betas of update `it` (from 0), where the schedule moves them.
    #[must_use]
    pub fn betas(&self, it: u64) -> Option<[f64; 2]> {
        let ScheduleSpec::OneCycle { steps, stairs, decay_step, momentum: Some(momentum), .. } =
            *self
        else {
            return None;
        };
        let [low, high] = momentum.bounds;
        let first = match cycle(it, steps, stairs) {
            Cycle::At(scale) => high - (high - low) * scale,
            Cycle::Past(past) => high * (1.0 + decay(momentum.decay_rate, past, decay_step)),
        };
        Some([first, CYCLE_BETA2])
    }
}

fn rise(it: u64, warmup: u64, shape: Warmup) -> f64 {
    match shape {
        Warmup::Log => libm::log((it + 1) as f64) / libm::log(warmup as f64),
        Warmup::Linear => it as f64 / warmup as f64,
    }
}

/// Where an update stands in a cycle.
enum Cycle {
    /// Inside it: how far up, from 0 to 1.
    At(f64),
    /// Behind it: which update, from 1.
    Past(u64),
}

fn cycle(it: u64, [up, down]: [u64; 2], stairs: [u64; 2]) -> Cycle {
    let total = up + down;
    if it >= total {
        return Cycle::Past(it - total + 1);
    }
    let (at, ratio) = ((it + 1) % total, up as f64 / total as f64);
    let rises = at <= up;
    let count = stairs[usize::from(!rises)];
    if count > 0 {
        // From whole updates: a quotient just below a stair would fall off it.
        let (position, length) = if rises { (at, up) } else { (total - at, down) };
        let stair = (position as f64 * count as f64 / length as f64).floor();
        return Cycle::At(stair / count as f64);
    }
    let x = at as f64 / total as f64;
    Cycle::At(if rises { x / ratio } else { (x - 1.0) / (ratio - 1.0) })
}

fn decay(rate: f64, past: u64, step: u64) -> f64 {
    if step == 0 { 0.0 } else { rate * past as f64 / step as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Warm-up of 10 by 100 updates: the top rate stands at update 10, whatever the world.
    #[test]
    fn the_top_rate_is_reached_when_the_warm_up_ends() {
        let linear = ScheduleSpec::WarmupLinear {
            min: 0.0,
            max: 1e-3,
            warmup: 10,
            total: Some(100),
            shape: Warmup::Linear,
        };
        assert_eq!(linear.rate(0), 0.0);
        assert!((linear.rate(5) - 5e-4).abs() < 1e-12);
        assert_eq!(linear.rate(10), 1e-3);
        assert!((linear.rate(55) - 5e-4).abs() < 1e-12);
        assert_eq!((linear.rate(100), linear.rate(1000)), (0.0, 0.0), "never negative");
    }

    /// DeepSpeed's logarithmic warm-up: ln(it + 1) / ln(W), then 1.
    #[test]
    fn the_logarithmic_warm_up() {
        let (shape, total) = (Warmup::Log, None);
        let s = ScheduleSpec::WarmupLinear { min: 0.0, max: 1.0, warmup: 1000, total, shape };
        assert_eq!(s.rate(0), 0.0);
        assert!((s.rate(9) - 10f64.ln() / 1000f64.ln()).abs() < 1e-15);
        assert_eq!(s.rate(1000), 1.0);
    }

    /// DeepSpeed's cosine: progress (it - W + 1) / (T - W), down to the minimum ratio.
    #[test]
    fn the_cosine_ends_at_its_minimum() {
        let s = ScheduleSpec::WarmupCosine {
            rate: 2.0,
            min_ratio: 0.0,
            cos_min_ratio: 0.1,
            warmup: 10,
            total: 110,
            shape: Warmup::Linear,
        };
        assert!((s.rate(59) - 2.0 * 0.55).abs() < 1e-12, "half way down at it - W + 1 = 50");
        assert!((s.rate(109) - 0.2).abs() < 1e-12);
        assert!((s.rate(500) - 0.2).abs() < 1e-12);
    }

    /// OneCycle rises over the first half, falls over the second, then decays.
    #[test]
    fn one_cycle_rises_falls_and_decays() {
        let (rates, steps, stairs) = ([1.0, 3.0], [10, 20], [0, 0]);
        let momentum = Some(CycleMomentum { bounds: [0.8, 0.9], decay_rate: 0.1 });
        let (decay_rate, decay_step) = (0.5, 10);
        let s = ScheduleSpec::OneCycle { rates, steps, stairs, decay_rate, decay_step, momentum };
        assert!((s.rate(4) - 2.0).abs() < 1e-12);
        assert!((s.rate(9) - 3.0).abs() < 1e-12);
        assert!((s.rate(19) - 2.0).abs() < 1e-12);
        assert!((s.rate(39) - 1.0 / 1.5).abs() < 1e-12);
        let first = |it| s.betas(it).expect("it moves them")[0];
        assert!((first(9) - 0.8).abs() < 1e-12 && (first(29) - 0.9).abs() < 1e-12);
        assert!((first(39) - 0.99).abs() < 1e-12);
    }

    /// Case C69: a decay laid out for 50 updates stays at its end for whoever trains longer.
    #[test]
    fn a_decay_ends_and_stays() {
        let s = |min| ScheduleSpec::WarmupLinear {
            min,
            max: 1.0,
            warmup: 10,
            total: Some(50),
            shape: Warmup::Linear,
        };
        for it in 50..60 {
            assert_eq!((s(0.0).rate(it), s(0.25).rate(it)), (0.0, 0.25));
        }
    }

    /// The range test: min * (1 + rate * x), in stairs or not.
    #[test]
    fn the_range_test() {
        let s = |staircase| ScheduleSpec::RangeTest { min: 0.01, step: 10, rate: 2.0, staircase };
        assert!((s(false).rate(14) - 0.04).abs() < 1e-12);
        assert!((s(true).rate(14) - 0.03).abs() < 1e-12);
    }
}
