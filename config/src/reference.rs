//! docs/config.md, made from the table.

use crate::schema::{Auto, Key, Kind, Status, TOP, Variants};
use std::fmt::Write;

/// The whole document. A test compares it with docs/config.md.
#[must_use]
pub fn markdown() -> String {
    let mut text = include_str!("reference.md").to_owned();
    section(&mut text, "The top level", "", TOP.keys);
    text
}

/// One table for the keys of a block, then one for each block inside it.
fn section(text: &mut String, title: &str, prefix: &str, keys: &'static [Key]) {
    let _ = writeln!(text, "\n## {title}\n");
    text.push_str("| key | value | default | here | meaning |\n|---|---|---|---|---|\n");
    for key in keys {
        row(text, key);
    }
    for key in keys {
        let path = crate::schema::join(prefix, key.name);
        let title = format!("`{path}`");
        match key.kind {
            Kind::Block(block) => section(text, &title, &path, block.keys),
            Kind::Map(Kind::Block(block)) | Kind::Either([Kind::Block(block), _]) => {
                section(text, &title, &path, block.keys)
            }
            Kind::Variants(all) => variants(text, all, &path),
            _ => {}
        }
    }
}

fn variants(text: &mut String, all: &'static Variants, path: &str) {
    let _ = writeln!(text, "\n## `{path}`\n\n`type`, and `params` that depend on it.\n");
    text.push_str("| type | here | meaning |\n|---|---|---|\n");
    for variant in all.list {
        let here = status(variant.status);
        let _ = writeln!(text, "| {} | {here} | {} |", variant.name, variant.doc);
    }
    for variant in all.list.iter().filter(|v| !v.keys.is_empty()) {
        let title = format!("`{path}.params` of {}", variant.name);
        section(text, &title, "", variant.keys);
    }
}

fn row(text: &mut String, key: &Key) {
    let mut name = format!("`{}`", key.name);
    for alias in key.aliases {
        let _ = write!(name, " or `{alias}`");
    }
    let value = key.kind.in_words().replace('|', "\\|");
    let default = if key.default == "null" { String::new() } else { format!("`{}`", key.default) };
    let mut here = status(key.status);
    if let Some(auto) = auto(key.auto) {
        let _ = write!(here, "; `\"auto\"`: {auto}");
    }
    let _ = writeln!(text, "| {name} | {value} | {default} | {here} | {} |", key.doc);
}

fn status(status: Status) -> String {
    match status {
        Status::Built => "built".to_owned(),
        Status::NotBuilt(why) => format!("not built: {why}"),
        Status::NoEffect(why) => format!("no effect: {why}"),
        Status::Refused(why) => format!("refused: {why}"),
        Status::Renamed(to) => format!("read as `{to}`"),
        Status::Means(to, value) => format!("true is read as `{to}`: `{value}`"),
    }
}

fn auto(rule: Auto) -> Option<&'static str> {
    Some(match rule {
        Auto::Default => return None,
        Auto::Batch => "follows from the other two; micro-batch 8 if nothing is said",
        Auto::WidthSquaredTenths(10) => "width squared",
        Auto::WidthSquaredTenths(_) => "0.9 x width squared",
        Auto::TenWidths => "10 x width",
        Auto::PreferBf16 => "true unless fp16 is on",
        Auto::LearningRate => "the optimizer's lr",
        Auto::FineTuningRate => "5e-5 with init_from, else the default",
        Auto::RunSteps => "planaria.run.steps",
        Auto::TenthOfRun => "a tenth of planaria.run.steps",
        Auto::Planner => "the planner's choice: off where the memory allows it",
    })
}
