//! Hostile and broken files: no panic, no allocation beyond the file's size plus a limit.
//!
//! A plain test run takes a few seconds; the long run, about a minute on one core, is
//! `PROPTEST_CASES=11000 cargo test -p planaria-config --test config fuzz_`.

use super::sys::peak_of;
use planaria_config::json::{Sources, parse};
use planaria_config::{Diagnostics, Need, Options, explain, read};
use proptest::prelude::*;
use serde_json::Value;

/// Bytes held for each byte of the file: a one-digit element of a list becomes a node, in a vector
/// that has just doubled.
const PER_BYTE: usize = 160;
/// Bytes held for any file: the settings, a full list of findings and their text.
const FIXED: usize = 8 << 20;

/// Reads as `check` and `explain` do, and bounds what they hold.
fn swallow(bytes: &[u8], overrides: Vec<String>) {
    let options =
        Options { file: "f.json".into(), overrides, need: Need::Check, ..Options::default() };
    let (_, peak) = peak_of(|| {
        let configuration = read(bytes, &options);
        let shown = configuration.report.to_text();
        (shown, configuration.report.to_json(), explain::to_text(&configuration, true))
    });
    let limit = PER_BYTE * bytes.len() + FIXED;
    assert!(peak <= limit, "{peak} bytes held for {} bytes of file", bytes.len());
}

/// Texts made of what JSON is made of, and a few names of the table.
fn jsonish() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("{".to_owned()),
        Just("}".to_owned()),
        Just("[".to_owned()),
        Just("]".to_owned()),
        Just(":".to_owned()),
        Just(",".to_owned()),
        Just("\"".to_owned()),
        Just("\\".to_owned()),
        Just("//".to_owned()),
        Just("/*".to_owned()),
        Just("\n".to_owned()),
        Just("null".to_owned()),
        Just("\"auto\"".to_owned()),
        Just("\\ud800".to_owned()),
        "-?[0-9]{1,20}(\\.[0-9]{1,5})?([eE][+-]?[0-9]{1,10})?",
        known_name().prop_map(|name| format!("{name:?}:")),
        "\\PC{0,4}",
    ];
    prop::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

fn known_name() -> impl Strategy<Value = String> {
    let mut names = Vec::new();
    planaria_config::schema::for_each_key(&mut |_, key| {
        names.push(key.name.to_owned());
        names.extend(key.aliases.iter().map(|&a| a.to_owned()));
    });
    prop::sample::select(names)
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-4i64..5).prop_map(Value::from),
        any::<f64>().prop_filter("finite", |x| x.is_finite()).prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        Just(Value::from("auto")),
        Just(Value::from("cpu")),
        Just(Value::from("WarmupLR")),
        Just(Value::from("Adam")),
    ]
}

/// Trees of known and unknown names.
fn tree() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(5, 60, 8, |inner| {
        let name = prop_oneof![4 => known_name(), 1 => "\\PC{0,8}"];
        prop_oneof![
            1 => prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            4 => prop::collection::vec((name, inner), 0..8)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// A configuration with something set at a path of the table.
fn setting() -> impl Strategy<Value = String> {
    let mut paths = Vec::new();
    planaria_config::schema::for_each_key(&mut |path, _| {
        paths.push(path.replace(['{', '}', '<', '>'], ""));
    });
    (prop::sample::select(paths), scalar()).prop_map(|(path, value)| format!("{path}={value}"))
}

proptest! {
    #[test]
    fn fuzz_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        swallow(&bytes, Vec::new());
    }

    #[test]
    fn fuzz_almost_json(text in jsonish()) {
        swallow(text.as_bytes(), Vec::new());
    }

    #[test]
    fn fuzz_trees_of_the_tables_names(tree in tree()) {
        swallow(tree.to_string().as_bytes(), Vec::new());
    }

    #[test]
    fn fuzz_overrides(overrides in prop::collection::vec(prop_oneof![setting(), "\\PC{0,12}"], 0..12)) {
        swallow(br#"{"train_batch_size": 8, "zero_optimization": true}"#, overrides);
    }

    /// An example with bytes replaced, removed and doubled.
    #[test]
    fn fuzz_damaged_examples(cuts in prop::collection::vec((any::<prop::sample::Index>(), 0u8..3, any::<u8>()), 1..8)) {
        let mut bytes = include_bytes!("../../../examples/quickstart/config.json").to_vec();
        for (index, what, byte) in cuts {
            let at = index.index(bytes.len());
            match what {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, bytes[at]),
            }
        }
        swallow(&bytes, Vec::new());
    }

    /// The same tree as another parser makes of it.
    #[test]
    fn fuzz_trees_read_back_the_same(tree in tree()) {
        let text = serde_json::to_string_pretty(&tree).unwrap();
        let (mut sources, mut out) = (Sources::default(), Diagnostics::default());
        let id = sources.add("t.json", text.as_str());
        let node = parse(id, &text, &mut out);
        prop_assert_eq!(out.iter().count(), 0);
        prop_assert_eq!(node.unwrap().to_plain(), tree);
    }
}

/// Files made to be expensive: each is read within the bound.
#[test]
fn fuzz_expensive_files() {
    let long = "k".repeat(50_000);
    let members = |n: usize, value: &str| {
        let list: Vec<String> = (0..n).map(|i| format!("\"k{i}\":{value}")).collect();
        format!("{{{}}}", list.join(","))
    };
    let deep =
        format!("{}{}", format!("{{\"{long}\":").repeat(60), "1".to_owned() + &"}".repeat(60));
    let doubled = format!("{{\"{long}\":{{{}\"a\":1}}}}", "\"a\":1,".repeat(30_000));
    let metrics = format!(
        "{{\"data_efficiency\":{{\"data_sampling\":{{\"curriculum_learning\":{{\"curriculum_metrics\":{}}}}}}}}}",
        members(90_000, "{}")
    );
    let files = [
        format!("[{}1]", "1,".repeat(90_000)),
        members(90_000, "1"),
        format!("{{\"zero_optimization\":{}}}", members(90_000, "{}")),
        format!("{{\"a\":{}", "[".repeat(100_000)),
        format!("\"{}", "\\u0041".repeat(100_000)),
        format!("{{\"train_batch_size\":{}}}", "9".repeat(100_000)),
        format!("{{\"train_batch_size\":1e{}}}", "9".repeat(100_000)),
        "\n".repeat(1_000_000),
        deep,
        doubled,
        metrics,
    ];
    for file in &files {
        swallow(file.as_bytes(), Vec::new());
    }
}
