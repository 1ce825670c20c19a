//! Loss scaling for fp16: a constant, or DeepSpeed's dynamic scaler, as a pure state machine.
//!
//! The scale is part of the hashed state of a run: whether a step overflowed is the same on every
//! node, and the next scale is a function of the last state and of that one bit. Grid overflow of the
//! exact sum is a different thing and never comes here.
//!
//! Source: DeepSpeed's `DynamicLossScaler`. We differ in two ways: the scale is a power of two
//! throughout (so that unscaling is exact), and it stops doubling at 2^127.

use crate::block::LossScale;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Largest scale: the largest power of two in fp32.
const LARGEST: f32 = 1.701_411_8e38;

/// How the loss is scaled, as a run spec holds it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum LossScaleSpec {
    /// Always the same factor.
    Static {
        /// A power of two.
        scale: f32,
    },
    /// Doubled after good steps, halved after overflows.
    Dynamic(DynamicScale),
}

/// Constants of the dynamic scaler, by DeepSpeed's names.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct DynamicScale {
    /// The first scale is two to this.
    pub initial_scale_power: u32,
    /// Good steps between doublings.
    pub loss_scale_window: u64,
    /// Overflows until the first halving.
    pub hysteresis: u32,
    /// Every good step, not only a doubling, refills the hysteresis.
    pub consecutive_hysteresis: bool,
    /// The scale never falls below this power of two.
    pub min_loss_scale: f32,
}

impl Default for DynamicScale {
    fn default() -> DynamicScale {
        DynamicScale {
            initial_scale_power: 16,
            loss_scale_window: 1000,
            hysteresis: 2,
            consecutive_hysteresis: false,
            min_loss_scale: 1.0,
        }
    }
}

/// Why a scaler cannot be made, or cannot go on. Nothing was changed.
#[derive(Clone, Copy, PartialEq, Debug, Error)]
pub enum LossScaleError {
    /// A factor is not a power of two that fp32 can hold.
    #[error("loss scale {0} is not a power of two from 2^-126 to 2^127: choose one")]
    NotAPowerOfTwo(f32),
    /// The window is zero.
    #[error("loss_scale_window is 0: the scale would double at every step; choose at least 1")]
    NoWindow,
    /// An overflow at the smallest scale: the run must stop.
    #[error(
        "the gradients overflow at the smallest loss scale {0}: the run diverged; lower the \
         learning rate or use bf16"
    )]
    AtMinimum(f32),
}

/// What a scaler remembers between two steps: integers, so that it can be hashed and sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ScaleState {
    /// The scale of the step to come: the bits of an fp32.
    pub scale: u32,
    /// Steps seen, skipped ones included.
    pub step: u64,
    /// The step after the last overflow; 0 before any.
    pub clean_since: u64,
    /// Overflows until the next halving.
    pub hysteresis_left: u32,
}

impl ScaleState {
    /// The factor of the step to come.
    #[must_use]
    pub fn scale(&self) -> LossScale {
        LossScale { factor: f32::from_bits(self.scale) }
    }
}

/// A scaler between two steps.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct LossScaler {
    spec: LossScaleSpec,
    state: ScaleState,
}

impl LossScaler {
    /// The scaler before the first step.
    ///
    /// # Errors
    /// If a scale is not a power of two, or the window is zero.
    pub fn new(spec: LossScaleSpec) -> Result<LossScaler, LossScaleError> {
        let (scale, hysteresis_left) = match spec {
            LossScaleSpec::Static { scale } => (scale, 1),
            LossScaleSpec::Dynamic(dynamic) => {
                power_of_two(dynamic.min_loss_scale)?;
                if dynamic.loss_scale_window == 0 {
                    return Err(LossScaleError::NoWindow);
                }
                (2f32.powi(dynamic.initial_scale_power.min(128) as i32), dynamic.hysteresis.max(1))
            }
        };
        power_of_two(scale)?;
        let state = ScaleState { scale: scale.to_bits(), step: 0, clean_since: 0, hysteresis_left };
        Ok(LossScaler { spec, state })
    }

    /// The scaler in another state of the same run.
    #[must_use]
    pub fn at(&self, state: ScaleState) -> LossScaler {
        LossScaler { state, ..*self }
    }

    /// What it remembers.
    #[must_use]
    pub fn state(&self) -> ScaleState {
        self.state
    }

    /// The factor of the step to come.
    #[must_use]
    pub fn scale(&self) -> LossScale {
        self.state.scale()
    }

    /// Whether overflows make the scale smaller.
    #[must_use]
    pub fn is_dynamic(&self) -> bool {
        matches!(self.spec, LossScaleSpec::Dynamic(_))
    }

    /// The scaler after a step that `overflowed` (and was skipped), or did not.
    ///
    /// # Errors
    /// If it overflowed at the smallest scale; the state stays as it was.
    pub fn after(&self, overflowed: bool) -> Result<LossScaler, LossScaleError> {
        let mut next = ScaleState { step: self.state.step + 1, ..self.state };
        if let LossScaleSpec::Dynamic(spec) = self.spec {
            if overflowed {
                next.shrink(spec)?;
            } else {
                next.grow(spec);
            }
        }
        Ok(self.at(next))
    }
}

impl ScaleState {
    fn shrink(&mut self, spec: DynamicScale) -> Result<(), LossScaleError> {
        self.clean_since = self.step;
        if self.hysteresis_left > 1 {
            self.hysteresis_left -= 1;
            return Ok(());
        }
        let scale = self.scale().factor;
        if scale <= spec.min_loss_scale {
            return Err(LossScaleError::AtMinimum(spec.min_loss_scale));
        }
        self.scale = (scale / 2.0).max(spec.min_loss_scale).to_bits();
        Ok(())
    }

    fn grow(&mut self, spec: DynamicScale) {
        if spec.consecutive_hysteresis {
            self.hysteresis_left = spec.hysteresis.max(1);
        }
        // This step is good step number `good` since the last overflow; DeepSpeed doubles on the
        // (window + 1)-th, the (2 window + 1)-th and so on.
        let good = self.step - self.clean_since;
        if good > 1 && (good - 1).is_multiple_of(spec.loss_scale_window) {
            self.hysteresis_left = spec.hysteresis.max(1);
            self.scale = (self.scale().factor * 2.0).min(LARGEST).to_bits();
        }
    }
}

fn power_of_two(x: f32) -> Result<(), LossScaleError> {
    let fine = x.is_normal() && x > 0.0 && x.to_bits().trailing_zeros() >= 23;
    if fine { Ok(()) } else { Err(LossScaleError::NotAPowerOfTwo(x)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a string of steps (`.` good, `x` overflow) and lists the scale after each.
    fn scales(spec: DynamicScale, steps: &str) -> Vec<f32> {
        let mut state = LossScaler::new(LossScaleSpec::Dynamic(spec)).expect("a good spec");
        let mut after = |c| {
            state = state.after(c == 'x').expect("not at the minimum");
            state.scale().factor
        };
        steps.chars().map(&mut after).collect()
    }

    fn spec(window: u64, hysteresis: u32, consecutive: bool) -> DynamicScale {
        DynamicScale {
            initial_scale_power: 4,
            loss_scale_window: window,
            hysteresis,
            consecutive_hysteresis: consecutive,
            min_loss_scale: 1.0,
        }
    }

    /// Without overflow the first doubling is on the (window + 1)-th step, then every window.
    #[test]
    fn good_steps_double_the_scale() {
        let want = [16.0, 16.0, 16.0, 32.0, 32.0, 32.0, 64.0, 64.0];
        assert_eq!(scales(spec(3, 1, false), "........"), want);
    }

    /// Hysteresis 1 halves at every overflow.
    #[test]
    fn overflows_halve_the_scale() {
        assert_eq!(scales(spec(3, 1, false), "xxx"), [8.0, 4.0, 2.0]);
    }

    /// An overflow starts the window again: the next doubling is window + 1 good steps later.
    #[test]
    fn an_overflow_starts_the_window_again() {
        let want = [16.0, 16.0, 8.0, 8.0, 8.0, 16.0, 16.0, 32.0];
        assert_eq!(scales(spec(2, 1, false), "..x....."), want);
    }

    /// The first overflows only use up the hysteresis; once used up it stays so until a doubling.
    #[test]
    fn hysteresis_is_refilled_by_a_doubling_only() {
        assert_eq!(scales(spec(9, 2, false), "x.x.x"), [16.0, 16.0, 8.0, 8.0, 4.0]);
        let want = [16.0, 8.0, 8.0, 16.0, 16.0, 8.0];
        assert_eq!(scales(spec(1, 2, false), "xx..xx"), want);
    }

    /// With consecutive hysteresis any good step refills it: lone overflows never halve.
    #[test]
    fn consecutive_hysteresis_is_refilled_by_every_good_step() {
        assert_eq!(scales(spec(9, 2, true), "x.x.xx"), [16.0, 16.0, 16.0, 16.0, 16.0, 8.0]);
    }

    /// At the minimum an overflow ends the run, and leaves the state as it was.
    #[test]
    fn an_overflow_at_the_minimum_is_an_error() {
        let dynamic = DynamicScale { initial_scale_power: 1, ..spec(9, 1, false) };
        let start = LossScaler::new(LossScaleSpec::Dynamic(dynamic)).expect("a good spec");
        let least = start.after(true).expect("from 2 to 1");
        assert_eq!(least.scale().factor, 1.0);
        assert_eq!(least.after(true), Err(LossScaleError::AtMinimum(1.0)));
    }

    /// DeepSpeed's defaults: 2^16, and a static scale that nothing moves.
    #[test]
    fn defaults_and_the_static_scale() {
        let spec = LossScaleSpec::Dynamic(DynamicScale::default());
        assert_eq!(LossScaler::new(spec).expect("good").scale().factor, 65_536.0);
        let fixed = LossScaler::new(LossScaleSpec::Static { scale: 128.0 }).expect("good");
        assert_eq!(fixed.after(true).expect("static").scale().factor, 128.0);
    }

    /// The scale never leaves fp32, and what cannot be a scale is refused.
    #[test]
    fn scales_stay_powers_of_two() {
        let top = DynamicScale { initial_scale_power: 127, ..spec(1, 1, false) };
        assert_eq!(scales(top, "..."), [LARGEST; 3]);
        for scale in [0.0, -2.0, 3.0, f32::NAN, f32::INFINITY] {
            assert!(LossScaler::new(LossScaleSpec::Static { scale }).is_err(), "{scale}");
        }
        let none = LossScaleSpec::Dynamic(spec(0, 1, false));
        assert_eq!(LossScaler::new(none), Err(LossScaleError::NoWindow));
        let huge = DynamicScale { initial_scale_power: 4000, ..spec(1, 1, false) };
        assert!(LossScaler::new(LossScaleSpec::Dynamic(huge)).is_err());
    }
}
