//! Old names and short forms, rewritten into today's before anything is checked.

use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::json::{Member, Node, Number, Value};
use crate::schema::{Block, Key, Kind, Status, TOP, join};
use std::collections::BTreeMap;

/// The path of each key that was rewritten, and what stood there.
pub(super) type Renames = BTreeMap<String, String>;

/// Rewrites old names, old switches and `zero_optimization: true` in place, each with a note.
pub(super) fn translate(root: &mut Node, out: &mut Diagnostics) -> Renames {
    let mut translator = Translator { out, renames: Renames::new() };
    translator.block(&TOP, root, "");
    translator.renames
}

struct Translator<'a> {
    out: &'a mut Diagnostics,
    renames: Renames,
}

impl Translator<'_> {
    fn block(&mut self, block: &'static Block, node: &mut Node, path: &str) {
        let Value::Object(members) = &mut node.value else { return };
        for key in block.keys {
            match key.status {
                Status::Renamed(to) => self.renamed(key, to, members, path),
                Status::Means(to, value) => self.means(key, (to, value), members, path),
                _ => {}
            }
        }
        for key in block.keys {
            let member = members.iter_mut().find(|m| is_named(key, &m.key));
            let Some(member) = member else { continue };
            let path = join(path, key.name);
            match key.kind {
                Kind::Block(inner) => self.block(inner, &mut member.node, &path),
                Kind::Either([Kind::Block(inner), Kind::Bool]) => {
                    self.shorthand(&mut member.node, &path);
                    self.block(inner, &mut member.node, &path);
                }
                _ => {}
            }
        }
    }

    fn renamed(&mut self, key: &Key, to: &str, members: &mut Vec<Member>, path: &str) {
        let Some(at) = members.iter().position(|m| m.key == key.name) else { return };
        let (range, old, new) = (members[at].key_range, join(path, key.name), join(path, to));
        if members.iter().any(|m| m.key == to) {
            let message = format!("`{}` is the old name of `{to}`, and both are given", key.name);
            let fix = format!("keep `{to}` only");
            self.out.push(Diagnostic::error("contradiction", old, message).at(range).fix(fix));
            members.remove(at);
            return;
        }
        let message = format!("`{}` is an old name; read as `{new}`", key.name);
        self.out.push(Diagnostic::note("deprecated", old, message).at(range));
        to.clone_into(&mut members[at].key);
        self.renames.insert(new, key.name.to_owned());
    }

    /// `cpu_offload: true` is `offload_optimizer: {"device": "cpu"}`; false is nothing.
    fn means(&mut self, key: &Key, to: (&str, &str), members: &mut Vec<Member>, path: &str) {
        let Some(at) = members.iter().position(|m| m.key == key.name) else { return };
        let Value::Bool(on) = members[at].node.value else { return };
        let old = members.remove(at);
        if !on {
            return;
        }
        let (block, name) = to.0.split_once('.').unwrap_or(("", to.0));
        let new = join(path, to.0);
        let target = match members.iter().position(|m| m.key == block) {
            Some(at) => &mut members[at],
            None => {
                let node = Node { range: old.node.range, value: Value::Object(Vec::new()) };
                members.push(Member { key: block.to_owned(), key_range: old.key_range, node });
                let last = members.len() - 1;
                &mut members[last]
            }
        };
        let Value::Object(inner) = &mut target.node.value else { return };
        if inner.iter().any(|m| m.key == name) {
            let message = format!("`{}` is the old form of `{new}`, and both are given", key.name);
            let path = join(path, key.name);
            let fix = format!("keep `{block}` only");
            let finding = Diagnostic::error("contradiction", path, message);
            self.out.push(finding.at(old.key_range).fix(fix));
            return;
        }
        let message = format!("`{}` is an old form; read as `{new}`: {}", key.name, to.1);
        let finding = Diagnostic::note("deprecated", join(path, key.name), message);
        self.out.push(finding.at(old.key_range));
        let value = Value::String(to.1.trim_matches('"').to_owned());
        let node = Node { range: old.node.range, value };
        inner.push(Member { key: name.to_owned(), key_range: old.key_range, node });
        self.renames.insert(new, key.name.to_owned());
    }

    /// `zero_optimization: true` is stage 1, `false` is stage 0.
    fn shorthand(&mut self, node: &mut Node, path: &str) {
        let Value::Bool(on) = node.value else { return };
        let stage = if on { "1" } else { "0" };
        let message = format!("`{path}`: {on} is a short form; read as stage {stage}");
        self.out.push(Diagnostic::note("deprecated", path, message).at(node.range));
        let value = Number::parse(stage).map_or(Value::Null, Value::Number);
        let stage = Node { range: node.range, value };
        let key = "stage".to_owned();
        self.renames.insert(join(path, &key), format!("{path}: {on}"));
        node.value = Value::Object(vec![Member { key, key_range: node.range, node: stage }]);
    }
}

/// Whether a key goes by this name.
pub(super) fn is_named(key: &Key, name: &str) -> bool {
    key.name == name || key.aliases.contains(&name)
}
