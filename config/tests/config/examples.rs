//! The examples that come with the project, and what a plan says.

use planaria_config::plan::{ModelPlan, SchedulePlan, TextSource, TokenizerPlan, WarmupShape};
use planaria_config::plan::{OptimizerPlan, Precision};
use planaria_config::{Options, Origin, RunPlan, Severity, read};

const QUICKSTART: &str = include_str!("../../../examples/quickstart/config.json");
const SHAKESPEARE: &str = include_str!("../../../examples/shakespeare-char/config.json");

fn options(file: &str, overrides: &[&str]) -> Options {
    let overrides = overrides.iter().map(|&o| o.to_owned()).collect();
    Options { file: file.to_owned(), overrides, ..Options::default() }
}

/// Both examples give a plan, without a warning.
#[test]
fn the_examples_are_clean() {
    for (file, text) in [("quickstart", QUICKSTART), ("shakespeare-char", SHAKESPEARE)] {
        let path = format!("examples/{file}/config.json");
        let configuration = read(text.as_bytes(), &options(&path, &[]));
        let shown = configuration.report.to_text();
        assert_eq!(configuration.report.diagnostics.count(Severity::Warning), 0, "{shown}");
        let plan = configuration.plan.expect(&shown);
        assert_eq!(plan.run.dir, format!("runs/{file}"));
    }
}

/// nanoGPT's recipe for a CPU, key by key, but for the learning rate: twice nanoGPT's 1e-3.
#[test]
fn the_shakespeare_recipe_is_nanogpts() {
    let configuration = read(SHAKESPEARE.as_bytes(), &options("config.json", &[]));
    let plan = configuration.plan.unwrap();
    let ModelPlan::Fresh(model) = plan.model else { panic!("new weights") };
    assert_eq!((model.layers, model.heads, model.width, model.max_length), (4, 4, 128, 64));
    assert_eq!((model.mlp_width, model.vocab, model.tied, model.bias), (512, None, true, true));
    assert_eq!((plan.batch.train, plan.batch.leaves(), plan.run.steps), (12, 1, 2000));
    assert_eq!(plan.precision, Precision::Fp32);
    let OptimizerPlan::Adam { lr, betas, weight_decay, decoupled, .. } = plan.optimizer else {
        panic!("AdamW");
    };
    assert_eq!((lr, betas, weight_decay, decoupled), (2e-3, [0.9, 0.99], 0.1, true));
    let expected = SchedulePlan::WarmupCosineLR {
        min_ratio: 0.0,
        cos_min_ratio: 0.1,
        warmup_steps: 100,
        total_steps: 2000,
        shape: WarmupShape::Linear,
    };
    assert_eq!(plan.schedule, expected);
    assert_eq!(plan.gradient_clipping, Some(1.0));
    assert_eq!(plan.data.tokenizer, TokenizerPlan::Char);
    assert_eq!(plan.data.sequence_length, 64);
}

/// The run spec holds what the numbers depend on and nothing else, and a plan survives JSON.
#[test]
fn the_spec_holds_what_the_numbers_depend_on() {
    let plan = |overrides: &[&str]| {
        let configuration = read(QUICKSTART.as_bytes(), &options("q.json", overrides));
        configuration.plan.expect("the quick start with one change is a plan")
    };
    let spec = |set: &str| plan(&[set]).spec();
    let plain = plan(&[]);
    for set in [
        "planaria.compute.threads=7",
        "planaria.compute.recompute=true",
        "planaria.run.dir=elsewhere",
        "planaria.run.eval_every=3",
        "zero_optimization.stage=2",
        "steps_per_print=1",
    ] {
        assert_eq!(spec(set), plain.spec(), "{set}");
    }
    for set in [
        "planaria.run.seed=7",
        "optimizer.params.lr=1e-4",
        "train_micro_batch_size_per_gpu=4",
        "gradient_clipping=0",
        "bf16.enabled=false",
        "planaria.model.layers=5",
        "planaria.numerics.grid_max_log2=9",
    ] {
        assert_ne!(spec(set), plain.spec(), "{set}");
    }
    let text = serde_json::to_string(&plain).unwrap();
    assert_eq!(serde_json::from_str::<RunPlan>(&text).unwrap(), plain);
}

/// `--set` changes any key, is named as the origin, and stands in messages as typed.
#[test]
fn overrides_change_any_key_and_are_named() {
    let overrides =
        ["planaria.run.steps=7", "optimizer.params.lr=5e-4", "zero_optimization.stage=2"];
    let configuration = read(QUICKSTART.as_bytes(), &options("q.json", &overrides));
    let plan = configuration.plan.unwrap();
    assert_eq!((plan.run.steps, plan.zero.stage), (7, 2));
    assert_eq!(plan.optimizer.learning_rate(), 5e-4);
    assert_eq!(plan.data.text, [TextSource::Registry]);
    let lr = configuration.settings.setting("optimizer.params.lr").unwrap();
    assert_eq!(lr.origin, Origin::Override);
    let bad = read(QUICKSTART.as_bytes(), &options("q.json", &["planaria.run.stesp=7"]));
    let text = bad.report.to_text();
    assert!(text.contains("--> --set:1:1") && text.contains("did you mean: steps"), "{text}");
    assert!(bad.plan.is_none());
}

/// A file without a planaria block is fine to check and names what is missing to run.
#[test]
fn a_plain_deepspeed_file_is_checked_but_cannot_run() {
    let text = br#"{"train_batch_size": 8, "planaria": {"run": {}}}"#;
    let run = read(text, &options("ds.json", &[]));
    let missing: Vec<&str> = run
        .report
        .diagnostics
        .iter()
        .filter(|d| d.severity == Severity::Error)
        .map(|d| d.path.as_str())
        .collect();
    assert_eq!(missing, ["planaria.model", "planaria.data", "planaria.run.steps"]);
}

/// Bytes that are not UTF-8 are refused with their offset.
#[test]
fn bytes_that_are_not_text_are_refused() {
    let configuration = read(b"{\n\"a\": \"\xff\"}", &options("x.json", &[]));
    let text = configuration.report.to_text();
    assert!(text.contains("byte 8 (line 2) is not UTF-8"), "{text}");
}

/// The example in docs/config.md is a run.
#[test]
fn the_documents_example_is_a_run() {
    let page = planaria_config::markdown();
    let block = page.split("```json").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let configuration = read(block.as_bytes(), &options("docs.json", &[]));
    assert!(configuration.plan.is_some(), "{}", configuration.report.to_text());
}
