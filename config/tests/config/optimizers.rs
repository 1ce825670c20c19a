//! Optimizers, their rates and the loss scale: rows of the table, and what the plan says.

use super::table::{Row, bad, good};
use planaria_config::plan::{LossScalePlan, OptimizerPlan};
use planaria_config::{Options, RunPlan, read};

/// Rows on optimizers and fp16.
pub(super) const ROWS: &[Row] = &[
    good(
        "lion",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Lion", "params": {"lr": 1e-4}}}"#,
        &[("optimizer.params.betas", "[0.9, 0.999]"), ("optimizer.params.weight_decay", "0")],
    ),
    good(
        "adagrad",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Adagrad"}}"#,
        &[("optimizer.params.lr", "0.01"), ("optimizer.params.eps", "1e-10")],
    ),
    good(
        "lamb",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Lamb", "params": {"max_coeff": 5}}}"#,
        &[("optimizer.params.max_coeff", "5.0"), ("optimizer.params.min_coeff", "0.01")],
    ),
    bad(
        "lamb with its bounds swapped",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Lamb", "params": {"max_coeff": 0.1, "min_coeff": 2}}}"#,
        &["E contradiction optimizer.params.min_coeff"],
    ),
    good(
        "muon",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Muon"}}"#,
        &[
            ("optimizer.params.lr", "0.02"),
            ("optimizer.params.momentum", "0.95"),
            ("optimizer.params.betas", "[0.9, 0.95]"),
            ("optimizer.params.eps", "1e-10"),
            ("optimizer.params.ns_method", "\"gram\""),
        ],
    ),
    bad(
        "muon with a rate of nothing",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"muon_lr": 0}}}"#,
        &["E contradiction optimizer.params.muon_lr"],
    ),
    bad(
        "muon with two rates and a schedule that names one",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.02, "adam_lr": 1e-3}},
           "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5000}}}"#,
        &["W schedule optimizer.params.adam_lr"],
    ),
    bad(
        "muon with two rates above a floor",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"lr": 0.02, "adam_lr": 1e-3}},
           "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-5}}}"#,
        &["E contradiction scheduler.params.warmup_min_lr"],
    ),
    bad(
        "a small eps that is asked for",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Muon", "params": {"eps": 1e-12}}}"#,
        &["W eps optimizer.params.eps"],
    ),
    good(
        "OneCycle cycles Adam's first beta",
        r#"{"train_batch_size": 8, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3}}}"#,
        &[("scheduler.params.cycle_momentum", "true")],
    ),
    bad(
        "OneCycle finds no betas in Muon",
        r#"{"train_batch_size": 8, "optimizer": {"type": "Muon"},
           "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3}}}"#,
        &["W schedule scheduler.type"],
    ),
    bad(
        "OneCycle with a momentum of 1",
        r#"{"train_batch_size": 8, "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_max_mom": 1}}}"#,
        &["E contradiction scheduler.params.cycle_max_mom"],
    ),
    bad(
        "OneCycle whose momentum grows to 1",
        r#"{"train_batch_size": 8, "planaria": {"run": {"steps": 6000}}, "scheduler": {"type": "OneCycle",
           "params": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "decay_step_size": 100, "decay_mom_rate": 0.01}}}"#,
        &["E contradiction scheduler.params.decay_mom_rate"],
    ),
    good(
        "fp16 with all its keys",
        r#"{"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 12,
           "loss_scale_window": 500, "hysteresis": 4, "consecutive_hysteresis": true, "min_loss_scale": 2}}"#,
        &[("fp16.initial_scale_power", "12"), ("fp16.min_loss_scale", "2.0")],
    ),
    bad(
        "a loss scale that is no power of two",
        r#"{"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": 1000}}"#,
        &["E range fp16.loss_scale"],
    ),
    bad(
        "a first scale below the smallest",
        r#"{"train_batch_size": 8, "fp16": {"enabled": true, "initial_scale_power": 3, "min_loss_scale": 16}}"#,
        &["E contradiction fp16.min_loss_scale"],
    ),
];

fn plan(overrides: &[&str]) -> RunPlan {
    let quickstart = include_bytes!("../../../examples/quickstart/config.json");
    let mut all = vec!["optimizer.params={}"];
    all.extend(overrides);
    let overrides = all.iter().map(|&o| o.to_owned()).collect();
    let read =
        read(quickstart, &Options { file: "q.json".into(), overrides, ..Options::default() });
    let shown = read.report.to_text();
    read.plan.expect(&shown)
}

/// Muon's rates: DeepSpeed's defaults, one for both, one each, and a schedule that overrules.
#[test]
fn muons_groups_have_their_rates() {
    let constant = ["optimizer.type=muon", "scheduler.type=WarmupCosineLR"];
    let steps = "scheduler.params={\"total_num_steps\": 100}";
    let rates = |more: &[&str]| {
        let all: Vec<&str> =
            constant.iter().copied().chain([steps]).chain(more.iter().copied()).collect();
        let OptimizerPlan::Muon { muon_lr, adam_lr, .. } = plan(&all).optimizer else {
            panic!("Muon")
        };
        (muon_lr, adam_lr)
    };
    assert_eq!(rates(&[]), (0.02, 3e-4));
    assert_eq!(rates(&["optimizer.params.lr=0.01"]), (0.01, 0.01));
    assert_eq!(rates(&["optimizer.params.lr=0.01", "optimizer.params.muon_lr=0.05"]), (0.05, 0.01));
    assert_eq!(rates(&["optimizer.params.adam_lr=0.001"]), (0.02, 0.001));
    let decay = ["scheduler.type=WarmupDecayLR", "optimizer.params.adam_lr=0.001"];
    assert_eq!(rates(&decay), (0.02, 0.02));
}

/// Recomputation: off, on with the block that DeepSpeed has for it, or the planner's choice.
#[test]
fn recomputation_can_be_left_to_the_planner() {
    assert_eq!(plan(&[]).recompute, Some(false));
    assert_eq!(plan(&["activation_checkpointing={}"]).recompute, Some(true));
    assert_eq!(plan(&["planaria.compute.recompute=auto"]).recompute, None);
    let both = ["activation_checkpointing={}", "planaria.compute.recompute=\"auto\""];
    assert_eq!(plan(&both).recompute, None);
}

/// fp16's keys arrive in the plan: dynamic by default, static with a scale.
#[test]
fn the_loss_scale_is_planned() {
    let fp16 = ["bf16.enabled=false", "fp16.enabled=true", "fp16.hysteresis=4"];
    let expected = LossScalePlan::Dynamic {
        initial_power: 16,
        window: 1000,
        hysteresis: 4,
        consecutive_hysteresis: false,
        min_scale: 1.0,
    };
    assert_eq!(plan(&fp16).loss_scale, Some(expected));
    let fixed = plan(&[&fp16[..], &["fp16.loss_scale=128"]].concat());
    assert_eq!(fixed.loss_scale, Some(LossScalePlan::Static { scale: 128.0 }));
    assert_eq!(plan(&[]).loss_scale, None);
}
