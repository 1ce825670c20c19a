//! Every value of a configuration and where it came from.

use crate::json::TextRange;
use crate::schema::Auto;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Where a value came from.
#[derive(Clone, PartialEq, Debug)]
pub enum Origin {
    /// The file.
    Given,
    /// The file, under this other name.
    Alias(String),
    /// `--set`.
    Override,
    /// The table's default.
    Default,
    /// `"auto"`, resolved by this rule.
    Auto(String),
    /// Worked out from other values by this rule.
    Derived(String),
}

impl Origin {
    /// The first word, stable: given, alias, override, default, auto, derived.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Origin::Given => "given",
            Origin::Alias(_) => "alias",
            Origin::Override => "override",
            Origin::Default => "default",
            Origin::Auto(_) => "auto",
            Origin::Derived(_) => "derived",
        }
    }

    /// What the word leaves open: the old name, or the rule.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        match self {
            Origin::Alias(text) | Origin::Auto(text) | Origin::Derived(text) => Some(text),
            Origin::Given | Origin::Override | Origin::Default => None,
        }
    }
}

/// One value.
#[derive(Clone, PartialEq, Debug)]
pub struct Setting {
    /// The value.
    pub value: Value,
    /// Where it came from.
    pub origin: Origin,
    /// Where it stood, if it stood anywhere.
    pub range: Option<TextRange>,
}

/// Every value by its dotted path.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Settings {
    values: BTreeMap<String, Setting>,
    /// Keys whose value was refused, and which hold their default in its place.
    refused: Vec<String>,
    /// Keys given as `"auto"` and not resolved yet.
    autos: Vec<(String, Auto)>,
    /// Blocks and keys that are present and not null.
    present: BTreeSet<String>,
}

impl Settings {
    /// All values, by path.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Setting)> {
        self.values.iter().map(|(path, setting)| (path.as_str(), setting))
    }

    /// The setting of a path.
    #[must_use]
    pub fn setting(&self, path: &str) -> Option<&Setting> {
        self.values.get(path)
    }

    /// Whether the file or an override says something other than null about a path.
    #[must_use]
    pub fn is_given(&self, path: &str) -> bool {
        self.values.get(path).is_some_and(|s| {
            matches!(s.origin, Origin::Given | Origin::Alias(_) | Origin::Override)
        })
    }

    /// Where the value stood, if it stood anywhere.
    #[must_use]
    pub fn range(&self, path: &str) -> Option<TextRange> {
        self.values.get(path).and_then(|s| s.range)
    }

    /// Whether a block or key is present, even if empty.
    #[must_use]
    pub fn is_present(&self, path: &str) -> bool {
        self.present.contains(path)
    }

    /// Whether the value or a block around it was refused, so that nothing more should be said
    /// about it.
    #[must_use]
    pub fn is_refused(&self, path: &str) -> bool {
        let covers = |p: &String| {
            path.strip_prefix(p.as_str()).is_some_and(|r| r.is_empty() || r.starts_with('.'))
        };
        self.refused.iter().any(covers)
    }

    /// A boolean; false when it is unset.
    #[must_use]
    pub fn bool(&self, path: &str) -> bool {
        self.opt_bool(path).unwrap_or(false)
    }

    /// A boolean, if it is set.
    #[must_use]
    pub fn opt_bool(&self, path: &str) -> Option<bool> {
        self.value(path).and_then(Value::as_bool)
    }

    /// A whole number that is not negative, if it is set.
    #[must_use]
    pub fn opt_u64(&self, path: &str) -> Option<u64> {
        self.value(path).and_then(Value::as_u64)
    }

    /// A whole number that is not negative; 0 when it is unset.
    #[must_use]
    pub fn u64(&self, path: &str) -> u64 {
        self.opt_u64(path).unwrap_or(0)
    }

    /// A number, if it is set.
    #[must_use]
    pub fn opt_f64(&self, path: &str) -> Option<f64> {
        self.value(path).and_then(Value::as_f64)
    }

    /// A number; 0 when it is unset.
    #[must_use]
    pub fn f64(&self, path: &str) -> f64 {
        self.opt_f64(path).unwrap_or(0.0)
    }

    /// A string, if it is set.
    #[must_use]
    pub fn opt_text(&self, path: &str) -> Option<&str> {
        self.value(path).and_then(Value::as_str)
    }

    /// A string; empty when it is unset.
    #[must_use]
    pub fn text(&self, path: &str) -> &str {
        self.opt_text(path).unwrap_or("")
    }

    /// A list of strings; empty when it is unset.
    #[must_use]
    pub fn texts(&self, path: &str) -> Vec<String> {
        let items = self.value(path).and_then(Value::as_array);
        items.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// Two numbers; zeros when they are unset.
    #[must_use]
    pub fn pair(&self, path: &str) -> [f64; 2] {
        let at = |i| self.value(path).and_then(|v| v.get(i)).and_then(Value::as_f64).unwrap_or(0.0);
        [at(0), at(1)]
    }

    fn value(&self, path: &str) -> Option<&Value> {
        self.values.get(path).map(|s| &s.value).filter(|v| !v.is_null())
    }

    pub(crate) fn insert(&mut self, path: &str, setting: Setting) {
        self.values.insert(path.to_owned(), setting);
    }

    /// Gives an unset path a value that follows from others.
    pub(crate) fn derive(&mut self, path: &str, value: impl Into<Value>, why: impl Into<String>) {
        self.resolve(path, value, Origin::Derived(why.into()));
    }

    /// Gives a path a value, keeping its place.
    pub(crate) fn resolve(&mut self, path: &str, value: impl Into<Value>, origin: Origin) {
        let range = self.range(path);
        self.insert(path, Setting { value: value.into(), origin, range });
    }

    pub(crate) fn refuse(&mut self, path: &str) {
        self.refused.push(path.to_owned());
    }

    pub(crate) fn accept(&mut self, path: &str) {
        self.refused.retain(|p| p != path);
    }

    pub(crate) fn add_auto(&mut self, path: &str, rule: Auto) {
        self.autos.push((path.to_owned(), rule));
    }

    pub(crate) fn is_auto(&self, path: &str) -> bool {
        self.autos.iter().any(|(p, _)| p == path)
    }

    /// Keys given as `"auto"`, in the table's order, and their rules.
    pub(crate) fn autos(&self) -> Vec<(String, Auto)> {
        self.autos.clone()
    }

    pub(crate) fn add_block(&mut self, path: &str) {
        self.present.insert(path.to_owned());
    }
}
