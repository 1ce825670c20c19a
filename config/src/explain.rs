//! Every value and where it came from.

use crate::check::Setting;
use crate::json::Position;
use crate::schema::{self, Key, Status};
use crate::{Configuration, Origin};
use serde_json::{Value, json};
use std::fmt::Write;

/// One value of a resolved configuration.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// Its dotted path.
    pub path: String,
    /// The value and its origin.
    pub setting: &'a Setting,
    /// The table's line, but for an optimizer's or schedule's `type`.
    pub key: Option<&'static Key>,
    /// Where it stands: the text's name and the place in it.
    pub place: Option<(String, Position)>,
}

impl Entry<'_> {
    /// Whether anybody said something about it, or we worked it out.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.setting.origin == Origin::Default
    }

    fn acts(&self) -> bool {
        let ours = self.path.starts_with("planaria.");
        ours || self.key.is_none_or(|key| key.status == Status::Built)
    }
}

/// All values in the table's order.
#[must_use]
pub fn entries(configuration: &Configuration) -> Vec<Entry<'_>> {
    let settings = &configuration.settings;
    let mut list = Vec::new();
    let mut add = |path: &str, key: Option<&'static Key>| {
        if let Some(setting) = settings.setting(path) {
            let place = setting.range.map(|range| {
                let source = configuration.report.sources.source(range.source);
                (source.name.clone(), source.position(range.start))
            });
            list.push(Entry { path: path.to_owned(), setting, key, place });
        }
    };
    schema::for_each_key(&mut |path, key| match key.kind {
        schema::Kind::Variants(_) => add(&schema::join(path, "type"), None),
        _ => match variant_of(path) {
            Some((block, variant, rest)) => {
                if settings.text(&schema::join(block, "type")) == variant {
                    add(&format!("{block}.{rest}"), Some(key));
                }
            }
            None => add(path, Some(key)),
        },
    });
    list
}

/// `optimizer{adamw}.params.lr` as its three parts.
fn variant_of(path: &str) -> Option<(&str, &str, &str)> {
    let (block, rest) = path.split_once('{')?;
    let (variant, rest) = rest.split_once("}.")?;
    Some((block, variant, rest))
}

/// For people: a line a value, with its origin. Defaults of keys that change nothing here are left
/// out unless `all`.
#[must_use]
pub fn to_text(configuration: &Configuration, all: bool) -> String {
    let entries: Vec<Entry<'_>> = entries(configuration)
        .into_iter()
        .filter(|e| all || !e.is_default() || e.acts() && !e.setting.value.is_null())
        .filter(|e| all || !e.is_default() || !is_dormant(configuration, &e.path))
        .collect();
    let width = |text: fn(&Entry<'_>) -> String| {
        entries.iter().map(|e| text(e).chars().count()).max().unwrap_or(0).min(60)
    };
    let (paths, values) = (width(|e| e.path.clone()), width(|e| e.setting.value.to_string()));
    let mut text = String::new();
    for entry in &entries {
        let value = entry.setting.value.to_string();
        let origin = origin_text(entry);
        let _ = writeln!(text, "{:paths$}  {value:values$}  {origin}", entry.path);
    }
    text
}

/// A default inside a block that the file does not have, other than our own: nobody asked for it.
fn is_dormant(configuration: &Configuration, path: &str) -> bool {
    match path.rsplit_once('.') {
        None => false,
        Some((block, _)) if block.starts_with("planaria") || block.starts_with("optimizer") => {
            false
        }
        Some((block, _)) => !configuration.settings.is_present(block),
    }
}

fn origin_text(entry: &Entry<'_>) -> String {
    let mut text = entry.setting.origin.word().to_owned();
    if let Some(detail) = entry.setting.origin.detail() {
        let _ = write!(text, " ({detail})");
    }
    if let (Some((file, at)), false) = (&entry.place, entry.is_default()) {
        let _ = write!(text, " at {file}:{}:{}", at.line, at.column);
    }
    match entry.key.map(|k| k.status) {
        Some(Status::NoEffect(why)) if !entry.is_default() => {
            let _ = write!(text, "; no effect: {why}");
        }
        _ => {}
    }
    text
}

/// For programs: a list of objects with the keys path, value, origin, detail, file, line, column
/// and meaning.
#[must_use]
pub fn to_json(configuration: &Configuration) -> Value {
    let one = |entry: &Entry<'_>| {
        json!({
            "path": entry.path,
            "value": entry.setting.value,
            "origin": entry.setting.origin.word(),
            "detail": entry.setting.origin.detail(),
            "file": entry.place.as_ref().map(|(file, _)| file),
            "line": entry.place.as_ref().map(|(_, at)| at.line),
            "column": entry.place.as_ref().map(|(_, at)| at.column),
            "meaning": entry.key.map(|key| key.doc),
        })
    };
    entries(configuration).iter().map(one).collect()
}
