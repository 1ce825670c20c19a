//! `scheduler`: DeepSpeed's five, and PyTorch's by name.

use super::features;
use super::key::{Auto, Key, Kind, Status, Variant, Variants};

const TORCH: Status = Status::NotBuilt(
    "this schedule of PyTorch is not built; use WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle \
     or LRRangeTest",
);
const ABOVE_ZERO: Kind = Kind::FloatAbove(0.0, f64::MAX);
const REQUIRED_RATE: Kind = Kind::Float(0.0, f64::MAX);

const MIN_LR: Key = Key::number("warmup_min_lr", "0", "Learning rate at the start");
const WARMUP_STEPS: Key = Key::positive("warmup_num_steps", "1000", "Steps of warm-up, at least 2")
    .auto(Auto::TenthOfRun);
const WARMUP_TYPE: Key =
    Key::choice("warmup_type", &["log", "linear"], "\"log\"", "Shape of the warm-up");
const TOTAL: Key =
    Key::positive("total_num_steps", "null", "Steps in all (required)").auto(Auto::RunSteps);

const RANGE_TEST: &[Key] = &[
    Key::new("lr_range_test_min_lr", ABOVE_ZERO, "1e-3", "The first rate"),
    Key::positive("lr_range_test_step_size", "2000", "Steps of one stair"),
    Key::number("lr_range_test_step_rate", "1.0", "Growth per stair"),
    Key::off("lr_range_test_staircase", "Grow in stairs"),
];

const ONE_CYCLE: &[Key] = &[
    Key::new("cycle_min_lr", REQUIRED_RATE, "null", "Rate at both ends (required)"),
    Key::new("cycle_max_lr", REQUIRED_RATE, "null", "Rate in the middle (required)"),
    Key::number("decay_lr_rate", "0", "Decay after the cycle"),
    Key::positive("cycle_first_step_size", "2000", "Steps up"),
    Key::positive("cycle_second_step_size", "null", "Steps down; the same as up if unset"),
    Key::count("cycle_first_stair_count", "0", "Stairs up; 0 is smooth"),
    Key::count("cycle_second_stair_count", "null", "Stairs down; the same as up if unset"),
    Key::count("decay_step_size", "0", "Steps of one decay; 0 is no decay"),
    Key::on("cycle_momentum", "Cycle the first beta too; the second becomes 0.99"),
    Key::share("cycle_min_mom", "0.8", "Smallest momentum"),
    Key::share("cycle_max_mom", "0.9", "Largest momentum"),
    Key::number("decay_mom_rate", "0", "Decay of the momentum after the cycle"),
    Key::new("last_batch_iteration", Kind::Int(-1, i64::MAX), "-1", "Where to start")
        .no_effect(RESUMED),
];

const RESUMED: &str = "a resumed run knows its step";

const WARMUP: &[Key] = &[
    MIN_LR,
    Key::number("warmup_max_lr", "null", "Learning rate after warm-up; the optimizer's if unset")
        .auto(Auto::LearningRate),
    WARMUP_STEPS,
    WARMUP_TYPE,
    LAST,
];

const LAST: Key = Key::new("last_batch_iteration", Kind::Int(-1, i64::MAX), "-1", "Where to start")
    .no_effect(RESUMED);

const WARMUP_DECAY: &[Key] = &[
    TOTAL,
    MIN_LR,
    Key::number("warmup_max_lr", "0.001", "Learning rate after warm-up").auto(Auto::LearningRate),
    WARMUP_STEPS,
    WARMUP_TYPE,
    LAST,
];

const WARMUP_COSINE: &[Key] = &[
    TOTAL,
    Key::share("warmup_min_ratio", "0", "Share of the learning rate at the start"),
    WARMUP_STEPS,
    Key::share("cos_min_ratio", "1e-4", "Share of the learning rate at the end"),
    WARMUP_TYPE,
    LAST,
];

const fn variant(name: &'static str, keys: &'static [Key], doc: &'static str) -> Variant {
    Variant { name, status: features::SCHEDULES, keys, open: false, doc }
}

const fn torch(name: &'static str) -> Variant {
    Variant { name, status: TORCH, keys: &[], open: true, doc: "A schedule of PyTorch" }
}

/// The types of `scheduler`.
pub const SCHEDULES: Variants = Variants {
    what: "scheduler",
    any_case: false,
    beside: &[],
    list: &[
        variant("WarmupLR", WARMUP, "Warm up, then constant"),
        variant("WarmupDecayLR", WARMUP_DECAY, "Warm up, then linear decay to zero"),
        variant("WarmupCosineLR", WARMUP_COSINE, "Warm up, then cosine decay"),
        variant("OneCycle", ONE_CYCLE, "Up, down, then decay"),
        variant("LRRangeTest", RANGE_TEST, "Growing rate, to find a good one"),
        torch("StepLR"),
        torch("MultiStepLR"),
        torch("ConstantLR"),
        torch("LinearLR"),
        torch("ExponentialLR"),
        torch("PolynomialLR"),
        torch("CosineAnnealingLR"),
        torch("CosineAnnealingWarmRestarts"),
        torch("CyclicLR"),
        torch("OneCycleLR"),
        torch("LambdaLR"),
        torch("MultiplicativeLR"),
        torch("ReduceLROnPlateau"),
    ],
};
