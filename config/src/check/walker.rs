//! The table and the tree, side by side.

use super::legacy::{Renames, is_named};
use super::settings::{Origin, Setting, Settings};
use super::value;
use crate::diagnostics::{Diagnostic, Diagnostics};
use crate::json::{Member, Node, SourceId, TextRange, Value};
use crate::schema::{Block, Key, Kind, Status, Switch, TOP, Variant, Variants, for_each_key, join};

/// Checks a tree whose old names are rewritten already.
pub(super) fn walk(
    root: &Node,
    file: SourceId,
    renames: Renames,
    out: &mut Diagnostics,
) -> Settings {
    let settings = Settings::default();
    let mut walker = Walker { out, settings, file, renames, without_effect: Vec::new() };
    walker.block(&TOP, Some(root), "", Scope { live: true, status: Status::Built });
    walker.tell_without_effect();
    walker.settings
}

/// Entries of a block whose names are the user's, at most.
const MAX_NAMES: usize = 100;

/// What the surrounding blocks say.
#[derive(Clone, Copy)]
struct Scope {
    /// Whether the block does anything: not while its switch is off.
    live: bool,
    /// The status of the nearest block that is not simply built.
    status: Status,
}

impl Scope {
    fn under(self, status: Status) -> Scope {
        let status = match (self.status, status) {
            (Status::Built, inner) | (Status::NotBuilt(_), inner @ Status::NoEffect(_)) => inner,
            (outer, _) => outer,
        };
        Scope { status, ..self }
    }
}

struct Walker<'a> {
    out: &'a mut Diagnostics,
    settings: Settings,
    file: SourceId,
    renames: Renames,
    without_effect: Vec<(String, TextRange)>,
}

impl Walker<'_> {
    fn block(&mut self, block: &Block, node: Option<&Node>, path: &str, scope: Scope) {
        let members = self.members(node, path);
        for member in members {
            if !block.keys.iter().any(|key| is_named(key, &member.key)) {
                self.unknown(member, block.keys, path);
            }
        }
        let live = scope.live && self.switched_on(block, members, path, scope);
        for key in block.keys {
            let mut given = members.iter().filter(|m| is_named(key, &m.key));
            let member = given.next();
            for second in given {
                self.two_names(key, second, path);
            }
            let is_switch = block.switch == Switch::Key(key.name);
            let scope = Scope { live: if is_switch { scope.live } else { live }, ..scope };
            self.key(key, member, path, scope);
        }
    }

    fn members<'n>(&mut self, node: Option<&'n Node>, path: &str) -> &'n [Member] {
        match node.map(|n| (&n.value, n)) {
            None | Some((Value::Null, _)) => &[],
            Some((Value::Object(members), _)) => members,
            Some((_, node)) => {
                let name = if path.is_empty() { "the configuration" } else { path };
                let message = format!("`{name}` is a block, not {}", node.kind());
                let finding = Diagnostic::error("type", path, message).at(node.range);
                let fix = match (path, node.as_str()) {
                    ("optimizer" | "scheduler", Some(name)) => {
                        format!("write {{\"type\": {name:?}}}")
                    }
                    _ => "write { ... }".to_owned(),
                };
                self.out.push(finding.fix(fix));
                self.settings.refuse(path);
                &[]
            }
        }
    }

    /// Whether the block's keys ask for anything. A block that is on and not built has its one
    /// finding at the switch, so its keys then ask for nothing either.
    fn switched_on(&self, block: &Block, members: &[Member], path: &str, scope: Scope) -> bool {
        let Switch::Key(switch) = block.switch else { return true };
        let Some(key) = block.keys.iter().find(|k| k.name == switch) else { return true };
        let Some(member) = members.iter().find(|m| is_named(key, &m.key)) else { return false };
        let value = member.node.to_plain();
        let off = value.is_null() || value == "auto" || key.asks_for_nothing(&value);
        let built = |status| matches!(status, Status::Built | Status::NoEffect(_));
        !off && built(scope.under(key.status).status) && !self.settings.is_refused(path)
    }

    fn key(&mut self, key: &'static Key, member: Option<&Member>, prefix: &str, scope: Scope) {
        let path = join(prefix, key.name);
        let scope = scope.under(key.status);
        let node = member.map(|m| &m.node);
        if node.is_some_and(|n| n.value != Value::Null) {
            self.settings.add_block(&path);
        }
        match (key.kind, key.status) {
            (Kind::Block(block), Status::Refused(why)) => {
                self.refused_block(block, member, &path, why);
            }
            (Kind::Block(block), _) => {
                let scope = self.present(block, member, &path, scope);
                self.block(block, node, &path, scope);
            }
            (Kind::Either([Kind::Block(block), ..]), _) => self.block(block, node, &path, scope),
            (Kind::Variants(variants), _) => self.variants(variants, node, &path, scope),
            (Kind::Map(kind), _) => self.map(kind, node, &path, scope),
            (_, Status::Renamed(_) | Status::Means(..)) if member.is_none() => {}
            _ => self.leaf(key, member, &path, scope),
        }
    }

    /// A block whose presence asks for what is not built has its one finding here.
    fn present(
        &mut self,
        block: &Block,
        member: Option<&Member>,
        path: &str,
        scope: Scope,
    ) -> Scope {
        match (block.switch, member, scope.status) {
            (Switch::Presence, Some(member), Status::NotBuilt(why))
                if scope.live && member.node.value != Value::Null =>
            {
                self.not_built(path, why, member.key_range);
                Scope { live: false, ..scope }
            }
            _ => scope,
        }
    }

    /// A block that DeepSpeed removed: an error when it asks for something, else a warning.
    fn refused_block(
        &mut self,
        block: &Block,
        member: Option<&Member>,
        path: &str,
        why: &'static str,
    ) {
        let Some(member) = member else { return };
        let value = member.node.to_plain();
        let off = |key: &str| value.get(key) == Some(&false.into());
        let switched_off = matches!(block.switch, Switch::Key(key) if off(key));
        let empty = value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
        let finding = if switched_off || empty {
            let message = format!("`{path}` is off here, and no longer exists in DeepSpeed");
            Diagnostic::warning("refused", path, message)
        } else {
            Diagnostic::error("refused", path, format!("`{path}` is recognised and refused"))
        };
        self.out.push(finding.at(member.key_range).fix(why));
    }

    fn map(&mut self, kind: &'static Kind, node: Option<&Node>, path: &str, scope: Scope) {
        let members = self.members(node, path);
        if let Some(first) = members.get(MAX_NAMES) {
            let message =
                format!("`{path}` has {} entries; {MAX_NAMES} are allowed", members.len());
            let finding = Diagnostic::error("range", path, message).at(first.key_range);
            self.out.push(finding.fix("remove some"));
        }
        for member in members.iter().take(MAX_NAMES) {
            let inner = join(path, &member.key);
            match kind {
                Kind::Block(block) => self.block(block, Some(&member.node), &inner, scope),
                _ => {
                    value::read(kind, &member.node, &inner, self.out);
                }
            }
        }
    }

    fn leaf(&mut self, key: &'static Key, member: Option<&Member>, path: &str, scope: Scope) {
        let range = member.map(|m| m.node.range);
        let default = Setting { value: key.default_value(), origin: Origin::Default, range };
        let Some(member) = member.filter(|m| m.node.value != Value::Null) else {
            self.settings.insert(path, default);
            return;
        };
        if member.node.as_str() == Some("auto") && takes_auto(&key.kind) {
            let origin = Origin::Auto("the default".to_owned());
            self.settings.insert(path, Setting { origin, ..default });
            self.settings.add_auto(path, key.auto);
            return;
        }
        match value::read(&key.kind, &member.node, path, self.out) {
            Some(value) => {
                self.judge(key, path, &value, (scope, member));
                let origin = self.origin(key, member, path);
                self.settings.insert(path, Setting { value, origin, range });
            }
            None => {
                self.settings.insert(path, default);
                self.settings.refuse(path);
            }
        }
    }

    fn origin(&self, key: &Key, member: &Member, path: &str) -> Origin {
        if member.node.range.source != self.file {
            Origin::Override
        } else if let Some(old) = self.renames.get(path) {
            Origin::Alias(old.clone())
        } else if member.key != key.name {
            Origin::Alias(member.key.clone())
        } else {
            Origin::Given
        }
    }

    /// Whether a value may be asked for.
    fn judge(
        &mut self,
        key: &Key,
        path: &str,
        value: &serde_json::Value,
        (scope, member): (Scope, &Member),
    ) {
        if !scope.live || key.asks_for_nothing(value) {
            return;
        }
        let range = member.node.range;
        match scope.status {
            Status::NotBuilt(why) => self.not_built(path, why, range),
            Status::Refused(why) => {
                let message = format!("`{path}` is recognised and refused");
                self.out.push(Diagnostic::error("refused", path, message).at(range).fix(why));
            }
            Status::NoEffect(_) => self.without_effect.push((path.to_owned(), member.key_range)),
            Status::Built | Status::Renamed(_) | Status::Means(..) => {}
        }
    }

    fn not_built(&mut self, path: &str, why: &str, range: TextRange) {
        let message = format!("`{path}` is recognised, but what it asks for is not built");
        self.out.push(Diagnostic::error("not-built", path, message).at(range).fix(why));
    }

    fn tell_without_effect(&mut self) {
        let Some((_, first)) = self.without_effect.first() else { return };
        let names: Vec<&str> = self.without_effect.iter().map(|(path, _)| path.as_str()).collect();
        let message = format!(
            "accepted, and without effect here (docs/config.md says why): {}",
            names.join(", ")
        );
        self.out.push(Diagnostic::note("no-effect", "", message).at(*first));
    }
}

/// Optimizers and schedulers: keys that depend on a type.
impl Walker<'_> {
    fn variants(&mut self, all: &'static Variants, node: Option<&Node>, path: &str, scope: Scope) {
        let members = self.members(node, path);
        for member in members {
            let beside = all.beside.iter().any(|key| is_named(key, &member.key));
            if member.key != "type" && member.key != "params" && !beside {
                self.unknown_beside(all, member, path);
            }
        }
        for key in all.beside {
            self.key(key, members.iter().find(|m| is_named(key, &m.key)), path, scope);
        }
        let find = |name: &str| members.iter().find(|m| m.key == name).map(|m| &m.node);
        if members.is_empty() {
            return;
        }
        let Some(variant) = self.variant(all, find("type"), node, path) else { return };
        let mut scope = scope;
        if let (Status::NotBuilt(why), Some(node)) = (variant.status, find("type")) {
            self.not_built(&join(path, "type"), why, node.range);
            scope.live = false;
        }
        if let (Status::Refused(why), Some(node)) = (variant.status, find("type")) {
            let path = join(path, "type");
            let message = format!("{} is recognised and refused", variant.doc);
            self.out.push(Diagnostic::error("refused", path, message).at(node.range).fix(why));
            scope.live = false;
        }
        if !variant.open {
            let block = Block { keys: variant.keys, switch: Switch::None };
            self.block(&block, find("params"), &join(path, "params"), scope);
        }
    }

    fn variant(
        &mut self,
        all: &'static Variants,
        named: Option<&Node>,
        node: Option<&Node>,
        path: &str,
    ) -> Option<&'static Variant> {
        let place = join(path, "type");
        self.settings.refuse(&place);
        let Some(name_node) = named else {
            let message = format!("the {} has no `type`", all.what);
            let names = all.list.iter().take(5).map(|v| v.name).collect::<Vec<_>>().join(", ");
            let finding = Diagnostic::error("missing", place, message).at(node.map(|n| n.range));
            self.out.push(finding.fix(format!("add \"type\": one of {names}, ...")));
            return None;
        };
        let Some(name) = name_node.as_str() else {
            let message = format!("`{place}` is a string, not {}", name_node.kind());
            self.out.push(Diagnostic::error("type", place, message).at(name_node.range));
            return None;
        };
        let same =
            |v: &&Variant| v.name == name || all.any_case && v.name.eq_ignore_ascii_case(name);
        let Some(variant) = all.list.iter().find(same) else {
            let message = format!("there is no {} {name:?}", all.what);
            let finding = Diagnostic::error("choice", place, message).at(name_node.range);
            self.out.push(finding.nearest_of(name, all.list.iter().map(|v| v.name)));
            return None;
        };
        self.settings.accept(&place);
        let given =
            if name_node.range.source == self.file { Origin::Given } else { Origin::Override };
        let (value, range) = (variant.name.into(), Some(name_node.range));
        self.settings.insert(&place, Setting { value, origin: given, range });
        Some(variant)
    }

    /// `"optimizer": {"type": "Adam", "lr": 1e-3}`: the parameter stands one level too high.
    fn unknown_beside(&mut self, all: &'static Variants, member: &Member, path: &str) {
        if self.out.is_full() {
            return;
        }
        let name = &member.key;
        let is_parameter = all.list.iter().any(|v| v.keys.iter().any(|k| is_named(k, name)));
        let message = format!("`{name}` is not a key of `{path}`");
        let mut finding =
            Diagnostic::error("unknown-key", join(path, name), message).at(member.key_range);
        if is_parameter {
            finding = finding.fix(format!("it belongs in `{path}.params`"));
        } else {
            finding = finding.nearest_of(name, ["type", "params"]);
        }
        self.out.push(finding);
    }
}

/// Unknown and doubled names.
impl Walker<'_> {
    fn unknown(&mut self, member: &Member, keys: &'static [Key], path: &str) {
        if self.out.is_full() {
            return;
        }
        let name = &member.key;
        let place = if path.is_empty() { "the top level" } else { path };
        let message =
            format!("`{name}` is not a key of `{place}`").replace("`the top level`", place);
        let known = keys
            .iter()
            .filter(|k| !matches!(k.status, Status::Renamed(_) | Status::Means(..)))
            .flat_map(|k| std::iter::once(k.name).chain(k.aliases.iter().copied()));
        let mut finding = Diagnostic::error("unknown-key", join(path, name), message)
            .at(member.key_range)
            .nearest_of(name, known);
        if let Some(home) = home_of(name) {
            finding = finding.fix(format!("it belongs in {home}"));
        } else {
            finding = finding.fix("correct the name, or remove the key");
        }
        self.out.push(finding);
    }

    fn two_names(&mut self, key: &Key, second: &Member, path: &str) {
        let message = format!("`{}` is given under two names", key.name);
        let finding = Diagnostic::error("contradiction", join(path, key.name), message);
        self.out.push(finding.at(second.key_range).fix("keep one of the two"));
    }
}

/// The blocks where a name is a key: `` `zero_optimization` ``.
fn home_of(name: &str) -> Option<String> {
    let mut homes: Vec<String> = Vec::new();
    for_each_key(&mut |path, key| {
        if is_named(key, name) && !path.contains(['{', '<']) {
            let parent = path.strip_suffix(key.name).unwrap_or(path).trim_end_matches('.');
            let home =
                if parent.is_empty() { "the top level".into() } else { format!("`{parent}`") };
            if !homes.contains(&home) {
                homes.push(home);
            }
        }
    });
    (1..=2).contains(&homes.len()).then(|| homes.join(" or "))
}

/// Whether the word `"auto"` stands for something else than itself.
fn takes_auto(kind: &Kind) -> bool {
    match kind {
        Kind::Choice(words) => !words.contains(&"auto"),
        Kind::Either(kinds) => kinds.iter().all(takes_auto),
        Kind::Text | Kind::Texts | Kind::Any => false,
        _ => true,
    }
}
