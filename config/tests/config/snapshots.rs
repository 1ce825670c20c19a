//! The words of findings, kept in `expected/`.

use super::check;
use planaria_config::{Options, explain, read};
use std::path::Path;

const FILES: &[(&str, &str)] = &[
    (
        "typos",
        r#"{
  // a run of ours
  "train_batch_size": 48,
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 2,
  "gradient_cliping": 1.0,
  "optimizer": { "type": "AdmW", "params": { "lr": "5e-5" } },
  "zero_optimization": { "stag": 2, "reduce_bucket_size": -5 },
  "loss_scale": 0,
}
"#,
    ),
    (
        "contradictions",
        r#"{
  "train_batch_size": 8,
  "fp16": { "enabled": true },
  "bf16": { "enabled": true, "loss_scale": 128 },
  "zero_optimization": {
    "stage": 2,
    "stage": 3,
    "cpu_offload": true,
    "offload_param": { "device": "nvme" }
  },
  "scheduler": { "type": "WarmupCosineLR", "params": { "warmup_type": "exp" } }
}
"#,
    ),
    (
        "removed",
        r#"{
  "train_batch_size": 8,
  "elasticity": { "enabled": true, "max_train_batch_size": 100, "micro_batch_sizes": [8, 10, 12] },
  "sparse_attention": { "mode": "fixed" },
  "progressive_layer_drop": { "enabled": false },
  "optimizer": { "type": "OneBitAdam" },
  "zero_optimization": { "stage": 3, "mics_shard_size": 8, "zero_quantized_weights": true },
  "flops_profiler": { "enabled": true },
  "planaria": { "numerics": { "mode": "fast" } }
}
"#,
    ),
    (
        "huggingface",
        r#"{
  "fp16": { "enabled": "auto", "loss_scale": 0, "initial_scale_power": 16 },
  "bf16": { "enabled": "auto" },
  "optimizer": { "type": "AdamW", "params": { "lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto" } },
  "scheduler": { "type": "WarmupLR", "params": { "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto" } },
  "zero_optimization": {
    "stage": 3,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "steps_per_print": 2000,
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "wall_clock_breakdown": false,
  "planaria": {
    "model": { "preset": "124m" },
    "data": { "text": ["notes.md", "src/**/*.rs"], "tokenizer": "gpt2" },
    "run": { "steps": 1000 }
  }
}
"#,
    ),
    ("syntax", "{\n  \"train_batch_size\": 8\n  \"steps_per_print\": 5\n}\n"),
];

/// What people read when their file is wrong. After a deliberate change of words, copy the file that
/// the failure names over the expected one.
#[test]
fn the_words_of_findings_are_as_expected() {
    let mut wrong = Vec::new();
    for (name, file) in FILES {
        let actual = check(file, None).report.to_text();
        if let Some(text) = differs(&format!("{name}.txt"), &actual) {
            wrong.push(text);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// `config explain` of a file that someone brought along, and of one with overrides.
#[test]
fn explanations_are_as_expected() {
    let file = FILES.iter().find(|(name, _)| *name == "huggingface").unwrap().1;
    let options = Options {
        file: "run.json".to_owned(),
        overrides: vec!["planaria.run.steps=50".to_owned()],
        ..Options::default()
    };
    let configuration = read(file.as_bytes(), &options);
    let text = explain::to_text(&configuration, false);
    assert_eq!(differs("explain.txt", &text), None);
    let json = explain::to_json(&configuration);
    let find = |path: &str| json.as_array().unwrap().iter().find(|e| e["path"] == path).unwrap();
    assert_eq!(find("planaria.run.steps")["origin"], "override");
    assert_eq!(find("planaria.run.steps")["line"], 1);
    assert_eq!(find("planaria.model.layers")["detail"], "preset 124m");
    assert_eq!(find("optimizer.params.lr")["origin"], "auto");
}

/// docs/config.md is what the table says.
#[test]
fn the_reference_is_current() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/config.md");
    assert_eq!(differs_from(&docs, "config.md", &planaria_config::markdown()), None);
}

/// Compares with `expected/<name>`.
fn differs(name: &str, actual: &str) -> Option<String> {
    let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config/expected").join(name);
    differs_from(&expected, name, actual)
}

/// Compares with a file; on a difference, leaves the actual text beside the build.
fn differs_from(expected: &Path, name: &str, actual: &str) -> Option<String> {
    if std::fs::read_to_string(expected).is_ok_and(|text| text == actual) {
        return None;
    }
    let left = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&left, actual).expect("the build folder is writable");
    Some(format!("cp {} {}", left.display(), expected.display()))
}
