//! `--set path.to.key=value`: the tree as if the file had said so.

use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::json::{Member, Node, SourceId, Sources, TextRange, Value, parse_value};

/// How an override is named in messages.
pub(crate) const NAME: &str = "--set";

/// Puts overrides into the tree, in order; the value is read as JSON, else taken as a string.
pub(crate) fn apply(
    root: &mut Node,
    overrides: &[String],
    sources: &mut Sources,
    out: &mut Diagnostics,
) {
    for text in overrides {
        let source = sources.add(NAME, text.as_str());
        if let Err(finding) = apply_one(root, source, text) {
            out.push(*finding);
        }
    }
}

fn apply_one(root: &mut Node, source: SourceId, text: &str) -> Result<(), Box<Diagnostic>> {
    let whole = TextRange { source, start: 0, end: text.len() as u32 };
    let refuse = |path: &str, message: String| {
        let finding = Diagnostic::error("override", path, message).at(whole);
        Err(Box::new(finding.fix("write --set path.to.key=value")))
    };
    let Some((path, value_text)) = text.split_once('=') else {
        return refuse("", format!("{text:?} has no `=`"));
    };
    if path.split('.').any(str::is_empty) {
        return refuse(path, format!("{path:?} is not a path of keys"));
    }
    let start = path.len() + 1;
    let range = TextRange { start: start as u32, ..whole };
    let as_text = || Node { range, value: Value::String(value_text.to_owned()) };
    let value = parse_value(source, text, start).unwrap_or_else(as_text);
    let key_range = TextRange { end: path.len() as u32, ..whole };
    let mut node = root;
    for name in path.split('.') {
        let Some(next) = enter(node, name, key_range) else {
            return refuse(path, format!("`{name}` of {path:?} lies inside a value, not a block"));
        };
        node = next;
    }
    *node = value;
    Ok(())
}

/// The member with this name, made if it is missing. A boolean or null on the way becomes a block,
/// so that `zero_optimization: true` can be overridden key by key.
fn enter<'n>(node: &'n mut Node, name: &str, key_range: TextRange) -> Option<&'n mut Node> {
    if matches!(node.value, Value::Null | Value::Bool(_)) {
        *node = Node { range: key_range, value: Value::Object(Vec::new()) };
    }
    let Value::Object(members) = &mut node.value else { return None };
    let at = members.iter().position(|m| m.key == name).unwrap_or_else(|| {
        let node = Node { range: key_range, value: Value::Null };
        members.push(Member { key: name.to_owned(), key_range, node });
        members.len() - 1
    });
    let member = &mut members[at];
    member.key_range = key_range;
    Some(&mut member.node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn apply_to(file: &str, overrides: &[&str]) -> (serde_json::Value, Diagnostics) {
        let (mut sources, mut out) = (Sources::default(), Diagnostics::default());
        let id = sources.add("run.json", file);
        let mut root = crate::json::parse(id, file, &mut out).unwrap();
        let list: Vec<String> = overrides.iter().map(|&o| o.to_owned()).collect();
        apply(&mut root, &list, &mut sources, &mut out);
        (root.to_plain(), out)
    }

    #[test]
    fn values_are_json_or_else_strings() {
        let (tree, out) = apply_to(
            r#"{"a": {"b": 1}}"#,
            &["a.b=5e8", "a.c=true", "d.e.f=[1, 2]", "g=hello world", "h=\"5\"", "i=", "j=x=y"],
        );
        let expected = json!({
            "a": {"b": 500_000_000, "c": true}, "d": {"e": {"f": [1, 2]}},
            "g": "hello world", "h": "5", "i": "", "j": "x=y",
        });
        assert_eq!(tree, expected);
        assert!(!out.has_errors());
    }

    #[test]
    fn the_last_one_wins_and_booleans_give_way_to_blocks() {
        let (tree, _) = apply_to(r#"{"zero": true}"#, &["zero.stage=1", "zero.stage=2"]);
        assert_eq!(tree, json!({"zero": {"stage": 2}}));
    }

    #[test]
    fn what_is_no_path_is_refused() {
        let (tree, out) = apply_to(r#"{"a": 1}"#, &["nonsense", "a.b=2", ".x=1", "=1"]);
        assert_eq!(tree, json!({"a": 1}));
        assert_eq!(out.iter().filter(|d| d.rule == "override").count(), 4);
    }
}
