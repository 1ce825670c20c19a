//! The schema: one declarative table of every key that a configuration may hold.
//!
//! DeepSpeed 0.19.6's keys with their types, defaults, ranges, aliases and old names, and our own
//! `planaria` block. Everything else is made from it: the checker, the defaults, the "did you mean",
//! `config schema`, `config explain`'s list and docs/config.md. What is built and what is not is
//! said once, in [`features`].

mod blocks;
mod data_blocks;
pub mod features;
mod key;
mod optimizers;
mod planaria;
mod precision;
mod schedules;
mod top;
mod zero;

pub use key::{Auto, Block, Key, Kind, Status, Switch, Variant, Variants};
pub use optimizers::OPTIMIZERS;
pub use planaria::PLANARIA;
pub use schedules::SCHEDULES;
pub use top::TOP;

/// Calls `visit` with the path and the key of every entry of the table, in its order; entries of a
/// variant (an optimizer's or schedule's parameters) carry their variant's name in braces.
pub fn for_each_key(visit: &mut dyn FnMut(&str, &'static Key)) {
    walk(TOP.keys, "", visit);
}

fn walk(keys: &'static [Key], prefix: &str, visit: &mut dyn FnMut(&str, &'static Key)) {
    for key in keys {
        let path = join(prefix, key.name);
        visit(&path, key);
        match key.kind {
            Kind::Block(block) => walk(block.keys, &path, visit),
            Kind::Map(Kind::Block(block)) => walk(block.keys, &join(&path, "<name>"), visit),
            Kind::Variants(variants) => {
                for variant in variants.list {
                    walk(variant.keys, &format!("{path}{{{}}}.params", variant.name), visit);
                }
            }
            _ => {}
        }
    }
}

/// `prefix.name`, or `name` at the top.
#[must_use]
pub fn join(prefix: &str, name: &str) -> String {
    if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The table is well formed: names and aliases unique in their block, defaults valid JSON, a
    /// document line for every key, and renames that lead to a key that exists.
    #[test]
    fn the_table_is_well_formed() {
        let mut paths = BTreeSet::new();
        let mut keys = Vec::new();
        for_each_key(&mut |path, key| {
            assert!(paths.insert(path.to_owned()), "{path} twice");
            keys.push((path.to_owned(), key));
        });
        for (path, key) in &keys {
            assert!(!key.doc.is_empty(), "{path} has no document line");
            serde_json::from_str::<serde_json::Value>(key.default).expect(path);
            for off in key.off {
                serde_json::from_str::<serde_json::Value>(off).expect(path);
            }
            let parent = path.strip_suffix(key.name).unwrap().trim_end_matches('.');
            for alias in key.aliases {
                assert!(!paths.contains(&join(parent, alias)), "{path}: alias {alias} is a key");
            }
            if let Status::Renamed(to) = key.status {
                assert!(paths.contains(&join(parent, to)), "{path} leads to no key");
            }
            if let Status::Means(to, value) = key.status {
                assert!(paths.contains(&join(parent, to)), "{path} leads to no key");
                serde_json::from_str::<serde_json::Value>(value).expect(path);
            }
        }
        assert!(keys.len() > 350, "{} keys", keys.len());
    }
}
