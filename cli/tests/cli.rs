//! The binary as a person runs it: train, kill, resume, generate, export, inspect; bad input.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const CONFIG: &str = r#"{
  "train_batch_size": 4,
  "train_micro_batch_size_per_gpu": 2,
  "optimizer": { "type": "AdamW", "params": { "lr": 1e-3 } },
  "gradient_clipping": 1.0,
  "steps_per_print": 1,
  "planaria": {
    "model": { "family": "gpt2", "layers": 2, "width": 32, "heads": 2, "max_length": 32 },
    "data": { "text": "TEXT", "tokenizer": "byte", "validation_fraction": 0.1 },
    "run": { "dir": "DIR", "steps": 20, "eval_every": 0, "checkpoint_every": 5 }
  }
}"#;

fn planaria(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_planaria")).args(args).output().expect("the binary runs")
}

fn json(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|e| {
        panic!("{e}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    })
}

/// Writes a config whose run lies in `name`; returns its path.
fn config(dir: &Path, name: &str) -> String {
    let text = dir.join("text.txt");
    let words = "the worm is cut and the worm grows again; ".repeat(300);
    std::fs::write(&text, words).expect("written");
    let run = dir.join(name);
    let filled = CONFIG
        .replace("TEXT", &text.display().to_string())
        .replace("DIR", &run.display().to_string());
    let path = dir.join(format!("{name}.json"));
    std::fs::write(&path, filled).expect("written");
    path.display().to_string()
}

/// `plan` judges every layout without touching the run's folder; what it says of this one is what
/// `train` takes, and a limit below it is refused before anything is allocated, with the sum.
#[test]
fn a_plan_is_kept_or_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = config(dir.path(), "planned");
    let plan = |more: &[&str]| planaria(&[&["plan", &path, "--flops", "1e10"], more].concat());
    let found = json(&plan(&["--json", "--memory", "1GiB", "--nodes", "2", "--drive", "1GiB"]));
    let candidates = found["recommendation"]["candidates"].as_array().expect("layouts");
    assert_eq!(candidates.len(), 14, "four stages and three ways to offload, twice");
    let stages = candidates.iter().map(|c| c["layout"]["stage"].as_u64());
    assert!((0..4).all(|stage| stages.clone().any(|s| s == Some(stage))));
    let text = String::from_utf8_lossy(&plan(&["--memory", "1GiB"]).stdout).into_owned();
    assert!(text.contains("optimizer states") && text.contains("to the byte"), "{text}");
    assert!(!dir.path().join("planned").exists());

    let alone = json(&plan(&["--json", "--memory", "1GiB"]));
    let best = alone["recommendation"]["best"].as_u64().expect("it fits") as usize;
    let items = alone["recommendation"]["candidates"][best]["memory"]["items"].clone();
    let needs: u64 =
        items.as_array().expect("items").iter().map(|i| i["bytes"].as_u64().unwrap()).sum();
    let limit = format!("planaria.compute.memory={}", needs / 2);
    let refused = planaria(&["train", &path, "--set", &limit]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("nothing was allocated") && said.contains("memory in all"), "{said}");
    let recompute = "planaria.compute.recompute=auto";
    let trained = planaria(&["train", &path, "--steps", "2", "--json", "--set", recompute]);
    assert_eq!(json(&trained)["steps"], 2);
}

/// Sizes that are each allowed and together absurd are refused at once, not counted wrong or built.
#[test]
fn absurd_sizes_are_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = config(dir.path(), "absurd");
    let set = |all: &[&str]| {
        let sets: Vec<&str> = all.iter().flat_map(|s| ["--set", s]).collect();
        let found = planaria(&[&["plan", &path, "--flops", "1e10"][..], &sets].concat());
        let said = String::from_utf8_lossy(&found.stderr).into_owned();
        assert_eq!(found.status.code(), Some(2), "{said}");
        said
    };
    let long = ["planaria.model.max_length=16777216", "planaria.data.sequence_length=16777216"];
    let micro = ["train_batch_size=1000000000", "train_micro_batch_size_per_gpu=1000000000"];
    let wide =
        ["planaria.model.width=1048576", "planaria.model.heads=64", "planaria.model.layers=9999"];
    let said = set(&[&long[..], &micro, &wide].concat());
    assert!(said.contains("operations"), "{said}");
    let llama = ["planaria.model.family=llama", "planaria.model.head_dim=65536"];
    let said = set(&[&long[..], &llama].concat());
    assert!(said.contains("rotary tables"), "{said}");
}

/// Plans agree with what processes take, within 10 %: the small ones of `bench plan`.
#[test]
fn plans_are_what_processes_take() {
    let found = json(&planaria(&["bench", "plan", "--quick", "--json"]));
    let worst = found["worst"].as_f64().expect("a number");
    assert!(worst <= 0.1, "{found}");
    assert!(found["rows"].as_array().expect("rows").len() >= 6);
}

/// fp16 with a loss scale that overflows at first, under Muon: ten steps and twenty more are thirty at
/// once, loss scale included.
#[test]
fn a_loss_scale_is_part_of_what_is_resumed() {
    let dir = tempfile::tempdir().expect("a folder");
    let fp16 = "fp16={\"enabled\": true, \"initial_scale_power\": 26, \"loss_scale_window\": 7}";
    let run = |name: &str, more: &[&str]| {
        let path = config(dir.path(), name);
        let muon = ["train", &path, "--json", "--set", fp16, "--set"];
        let optimizer = ["optimizer={\"type\": \"Muon\", \"params\": {\"lr\": 0.01}}"];
        json(&planaria(&[&muon[..], &optimizer, more].concat()))
    };
    let whole = run("whole", &["--steps", "30"]);
    run("parts", &["--steps", "10"]);
    let resumed = run("parts", &["--steps", "30", "--resume"]);
    assert_eq!(resumed["steps"], 30);
    assert_eq!(resumed["state_hash"], whole["state_hash"]);
    let files = std::fs::read_dir(dir.path().join("whole")).expect("a run's folder");
    let records = files.filter_map(|f| {
        let path = f.expect("an entry").path();
        (path.extension()? == "jsonl").then(|| std::fs::read_to_string(path).expect("text"))
    });
    let metrics = records.collect::<String>();
    let skips = metrics.matches("\"skipped\":1.0").count();
    assert!((1..20).contains(&skips), "{skips} skips: {metrics}");
}

/// Twenty steps, and ten steps, kill -9, resume, ten steps: one hash. Then the model generates, is
/// exported, read back and inspected.
#[test]
fn a_killed_run_resumes_to_the_same_hash() {
    let dir = tempfile::tempdir().expect("a folder");
    let whole = json(&planaria(&["train", &config(dir.path(), "whole"), "--json"]));
    assert_eq!(whole["steps"], 20);
    assert!(whole["val_loss"].as_f64().is_some_and(|l| l > 0.0 && l < 6.0));

    let path = config(dir.path(), "killed");
    let mut child = Command::new(env!("CARGO_BIN_EXE_planaria"))
        .args(["train", &path])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    // The pipe stays open until the child is dead: nothing but the signal ends it.
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let reached = stderr.by_ref().map_while(Result::ok).any(|l| l.contains("12/20"));
    assert!(reached, "the run reaches step 12");
    child.kill().expect("killed");
    let status = child.wait().expect("gone");
    assert_eq!(status.signal(), Some(9), "killed by the signal, by nothing else");
    drop(stderr);
    let resumed = json(&planaria(&["train", &path, "--resume", "--json"]));
    assert_eq!(resumed["state_hash"], whole["state_hash"]);
    assert_eq!(resumed["steps"], 20);

    let run = dir.path().join("killed").display().to_string();
    let args =
        ["generate", &run, "--prompt", "the worm", "--tokens", "8", "--temperature", "0", "--json"];
    let generated = json(&planaria(&args));
    assert_eq!(generated["ids"].as_array().map(Vec::len), Some(8));
    let out = dir.path().join("hf").display().to_string();
    let exported = json(&planaria(&["export", &run, &out, "--json"]));
    assert!(exported["bytes"].as_u64().is_some_and(|b| b > 1000));
    let args = [
        "generate",
        &out,
        "--prompt-ids",
        "116,104,101",
        "--tokens",
        "8",
        "--temperature",
        "0",
        "--json",
    ];
    assert_eq!(json(&planaria(&args))["ids"].as_array().map(Vec::len), Some(8));
    let checkpoint = resumed["checkpoint"].as_str().expect("a path");
    let inspected = json(&planaria(&["inspect", checkpoint, "--json"]));
    assert_eq!(inspected["state_hash"], whole["state_hash"]);
    assert_eq!(inspected["step"], 20);
}

/// Bad input is one clear message, and the exit code says whose fault it is.
#[test]
fn bad_input_is_told_apart() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = config(dir.path(), "run");
    let cases: [(&[&str], i32, &str); 7] = [
        (&["train", "no-such-file.json"], 2, "no-such-file.json"),
        (&["train", &path, "--set", "gradient_cliping=1"], 2, "gradient_clipping"),
        (&["train", &path, "--set", "planaria.data.sequence_length=64"], 2, "32"),
        (&["train", &path, "--set", "planaria.data.text=no-such-folder"], 1, "no-such-folder"),
        (&["train", &path, "--resume"], 1, "no good checkpoint"),
        (&["generate", &path, "--prompt", "x"], 1, "neither a checkpoint"),
        (&["frobnicate"], 2, "unrecognized subcommand"),
    ];
    for (args, code, text) in cases {
        let output = planaria(args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(text), "{args:?} should say {text}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

/// A folder without a tokenizer.
const BARE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/golden/llama_tied");

/// A GGUF file is inspected, generates as the folder made of it does, is fine-tuned, and the run's
/// folder chats with the template that came along.
#[test]
fn a_gguf_file_is_a_model_like_any_other() {
    let gguf = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/golden/gguf/mistral.gguf");
    let seen = json(&planaria(&["inspect", gguf, "--json"]));
    assert_eq!(
        (&seen["elements"], &seen["metadata"]["tokenizer.ggml.pre"]),
        (&5200.into(), &"smollm".into())
    );
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("exported").display().to_string();
    assert!(planaria(&["export", gguf, &out]).status.success());
    let words = |model: &str| {
        let greedy = ["--prompt", "abc", "--temperature", "0", "--tokens", "8", "--json"];
        json(&planaria(&[&["generate", "--model", model][..], &greedy].concat()))
    };
    assert_eq!(words(gguf), words(&out));
    let run = dir.path().join("run").display().to_string();
    let text = dir.path().join("text.txt");
    std::fs::write(&text, "the worm is cut and grows again ".repeat(200)).expect("written");
    let config = CONFIG
        .replace(
            r#""family": "gpt2", "layers": 2, "width": 32, "heads": 2, "max_length": 32"#,
            &format!(r#""init_from": "{gguf}""#),
        )
        .replace(r#""tokenizer": "byte""#, r#""sequence_length": 12"#)
        .replace("TEXT", &text.display().to_string())
        .replace("DIR", &run);
    let path = dir.path().join("config.json");
    std::fs::write(&path, config).expect("written");
    let trained = json(&planaria(&["train", &path.display().to_string(), "--json"]));
    assert!(trained["val_loss"].as_f64().is_some_and(|l| l < 3.6), "{trained}");
    let chat = |model: &str| {
        let args =
            ["chat", model, "--prompt", "hi", "--temperature", "0", "--tokens", "4", "--json"];
        json(&planaria(&args))
    };
    let (before, after, folder) = (chat(gguf), chat(&run), chat(&out));
    assert_eq!(before, folder);
    assert_eq!(before["prompt_ids"], after["prompt_ids"]);
    assert_ne!(before["ids"], after["ids"]);
    let none = planaria(&["chat", BARE, "--prompt", "hi"]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
}

/// Adapters alone are trained, from one hash to the same through a resume; the run generates as the
/// merged model does; PEFT's files hold the adapters and nothing else.
#[test]
fn adapters_are_trained_saved_and_merged() {
    let gguf = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/golden/gguf/mistral.gguf");
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(at("text.txt"), "the worm is cut and grows again ".repeat(200))
        .expect("written");
    let train = |run: &str, more: &[&str]| {
        let config = CONFIG
            .replace(
                r#""family": "gpt2", "layers": 2, "width": 32, "heads": 2, "max_length": 32"#,
                &format!(r#""init_from": "{gguf}""#),
            )
            .replace(r#""tokenizer": "byte""#, r#""sequence_length": 12"#)
            .replace(
                r#""run":"#,
                r#""lora": { "r": 2, "targets": ["q_proj", "down_proj"] }, "run":"#,
            )
            .replace("TEXT", &at("text.txt"))
            .replace("DIR", &at(run))
            .replace("1e-3", "1e-2");
        let path = at(&format!("{run}.json"));
        std::fs::write(&path, config).expect("written");
        json(&planaria(&[&["train", &path, "--json"][..], more].concat()))
    };
    let whole = train("whole", &[]);
    assert!(whole["val_loss"].as_f64().is_some_and(|l| l < 4.0), "{whole}");
    train("halves", &["--steps", "10"]);
    assert_eq!(train("halves", &["--resume"])["state_hash"], whole["state_hash"]);
    let run = at("whole");
    assert!(planaria(&["export", &run, &at("merged"), "--merge"]).status.success());
    let words = |model: &str| {
        let greedy = ["--prompt", "the", "--temperature", "0", "--tokens", "8", "--json"];
        json(&planaria(&[&["generate", model][..], &greedy].concat()))["ids"].clone()
    };
    assert_eq!(words(&run), words(&at("merged")));
    assert_ne!(words(&run), words(gguf));
    assert_eq!(json(&planaria(&["export", &run, &at("adapter"), "--json"]))["tensors"], 8);
    let text = std::fs::read(dir.path().join("adapter/adapter_config.json")).expect("a file");
    let config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!((&config["r"], &config["lora_alpha"]), (&2.into(), &4.0.into()));
    let file = at("adapter/adapter_model.safetensors");
    let seen = json(&planaria(&["inspect", &file, "--json"]));
    let first = &seen["tensors"][0]["name"];
    assert_eq!(first, "base_model.model.model.layers.0.mlp.down_proj.lora_A.weight");
    assert_eq!(planaria(&["export", gguf, &at("no"), "--merge"]).status.code(), Some(2));
}

/// Training that blows up is stopped where it did, by name, and leaves no checkpoint of it.
#[test]
fn an_anomaly_stops_the_run_by_name() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = config(dir.path(), "wild");
    let wild = ["--set", "optimizer.params.lr=1e38", "--set", "gradient_clipping=0"];
    let out = planaria(&[&["train", &path, "--detect-anomaly"][..], &wild].concat());
    let text = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{text}");
    assert!(text.contains("step 2, leaf 0, forward of block"), "{text}");
    let kept = std::fs::read_dir(dir.path().join("wild/checkpoints")).expect("a folder");
    assert_eq!(
        kept.filter_map(Result::ok).filter(|e| e.path().join("manifest.json").exists()).count(),
        0
    );
    let calm =
        planaria(&["train", &config(dir.path(), "calm"), "--detect-anomaly", "--steps", "3"]);
    assert!(calm.status.success(), "{}", String::from_utf8_lossy(&calm.stderr));
}

/// Every family that the configuration names is trained, and exported under its own name.
#[test]
fn every_family_is_trained() {
    let dir = tempfile::tempdir().expect("a folder");
    let families = [
        ("llama", "", "llama"),
        ("mistral", r#""window": 5, "#, "mistral"),
        ("qwen2", "", "qwen2"),
        ("qwen3", r#""head_dim": 8, "#, "qwen3"),
    ];
    for (family, more, kind) in families {
        let path = config(dir.path(), family);
        let text = std::fs::read_to_string(&path).expect("a file");
        let with = format!(r#""family": "{family}", {more}"#);
        std::fs::write(&path, text.replace(r#""family": "gpt2", "#, &with)).expect("written");
        let trained = json(&planaria(&["train", &path, "--json"]));
        assert!(trained["val_loss"].as_f64().is_some_and(|l| l < 5.5), "{family}: {trained}");
        let (run, out) = (dir.path().join(family), dir.path().join(format!("{family}-out")));
        let [run, out] = [run, out].map(|p| p.display().to_string());
        assert!(planaria(&["export", &run, &out]).status.success());
        let text = std::fs::read(Path::new(&out).join("config.json")).expect("a file");
        let written: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(written["model_type"], kind);
    }
}
