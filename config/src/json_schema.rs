//! The table as a JSON schema, for editors that complete and check as people type.

use crate::schema::{Auto, Block, Key, Kind, Status, TOP, Variants};
use serde_json::{Map, Value, json};

/// The schema of a whole configuration, JSON Schema draft 2020-12.
#[must_use]
pub fn json_schema() -> Value {
    let mut schema = block(&TOP);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] =
        "Planaria configuration (DeepSpeed 0.19.6 keys and the planaria block)".into();
    schema["properties"]["$schema"] = json!({ "type": "string" });
    schema
}

fn block(block: &Block) -> Value {
    let properties: Map<String, Value> = block.keys.iter().flat_map(entries).collect();
    json!({ "type": "object", "additionalProperties": false, "properties": properties })
}

/// A key under each of its names.
fn entries(key: &'static Key) -> Vec<(String, Value)> {
    let mut schema = match (key.kind, key.status) {
        (Kind::Block(_), Status::Refused(_)) => json!({ "type": "object", "deprecated": true }),
        (of, _) => kind(&of),
    };
    if takes_auto(key) {
        schema = json!({ "anyOf": [schema, { "const": "auto" }] });
    }
    let mut description = key.doc.to_owned();
    match key.status {
        Status::Built => {}
        Status::NotBuilt(why) => description += &format!(" (not built: {why})"),
        Status::NoEffect(why) => description += &format!(" (no effect: {why})"),
        Status::Refused(why) => description += &format!(" (refused: {why})"),
        Status::Renamed(to) | Status::Means(to, _) => {
            description = format!("Old name of {to}");
            schema["deprecated"] = true.into();
        }
    }
    schema["description"] = description.into();
    let default = key.default_value();
    if !default.is_null() {
        schema["default"] = default;
    }
    std::iter::once(key.name)
        .chain(key.aliases.iter().copied())
        .map(|name| (name.to_owned(), schema.clone()))
        .collect()
}

fn takes_auto(key: &Key) -> bool {
    let scalar = matches!(
        key.kind,
        Kind::Bool | Kind::Int(..) | Kind::Float(..) | Kind::FloatAbove(..) | Kind::List(..)
    );
    scalar || key.auto != Auto::Default
}

fn kind(of: &Kind) -> Value {
    match of {
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::Int(min, i64::MAX) => json!({ "type": "integer", "minimum": min }),
        Kind::Int(min, max) => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Float(min, f64::MAX) => json!({ "type": "number", "minimum": min }),
        Kind::Float(min, max) => json!({ "type": "number", "minimum": min, "maximum": max }),
        Kind::FloatAbove(min, f64::MAX) => json!({ "type": "number", "exclusiveMinimum": min }),
        Kind::FloatAbove(min, max) => {
            json!({ "type": "number", "exclusiveMinimum": min, "maximum": max })
        }
        Kind::Bytes => json!({ "type": ["integer", "string"] }),
        Kind::Text => json!({ "type": "string" }),
        Kind::Texts => json!({
            "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }]
        }),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Block(inner) => block(inner),
        Kind::Variants(all) => variants(all),
        Kind::List(item, min, max) => {
            json!({ "type": "array", "items": kind(item), "minItems": min, "maxItems": max })
        }
        Kind::Map(item) => json!({ "type": "object", "additionalProperties": kind(item) }),
        Kind::Either(kinds) => json!({ "anyOf": kinds.iter().map(kind).collect::<Vec<_>>() }),
        Kind::Any => json!({}),
    }
}

/// One alternative per type, so that an editor offers the parameters of the type that was chosen.
fn variants(all: &Variants) -> Value {
    let one = |variant: &crate::schema::Variant| {
        let mut name = vec![variant.name.to_owned()];
        if all.any_case {
            name.extend(spellings(variant.name));
        }
        let params = match variant.open {
            true => json!({ "type": "object" }),
            false => block(&Block { keys: variant.keys, switch: crate::schema::Switch::None }),
        };
        let mut properties: Map<String, Value> = all.beside.iter().flat_map(entries).collect();
        properties.insert("type".into(), json!({ "enum": name, "description": variant.doc }));
        properties.insert("params".into(), params);
        json!({
            "type": "object", "required": ["type"], "additionalProperties": false,
            "properties": properties,
        })
    };
    json!({ "anyOf": all.list.iter().map(one).collect::<Vec<_>>() })
}

/// How DeepSpeed's documents spell a type that is compared without regard to case.
fn spellings(name: &str) -> Vec<String> {
    let known = [
        "Adam",
        "AdamW",
        "SGD",
        "Lion",
        "Adagrad",
        "Lamb",
        "Muon",
        "OneBitAdam",
        "OneBitLamb",
        "ZeroOneAdam",
        "MuAdam",
        "MuAdamW",
        "MuSGD",
        "RMSprop",
        "NAdam",
        "RAdam",
        "Adadelta",
        "Adamax",
        "Adafactor",
        "ASGD",
        "LBFGS",
        "Rprop",
        "SparseAdam",
    ];
    known.iter().filter(|k| k.eq_ignore_ascii_case(name)).map(|&k| k.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key that is not inside a refused block is in the schema, under each of its names.
    #[test]
    fn the_schema_holds_the_table() {
        let text = json_schema().to_string();
        let mut refused = Vec::new();
        crate::schema::for_each_key(&mut |path, key| {
            if matches!((key.kind, key.status), (Kind::Block(_), Status::Refused(_))) {
                refused.push(format!("{path}."));
            }
            if refused.iter().any(|block| path.starts_with(block)) {
                return;
            }
            for name in std::iter::once(&key.name).chain(key.aliases) {
                assert!(text.contains(&format!("\"{name}\":")), "{path} ({name})");
            }
        });
        let schema = json_schema();
        let stage = &schema["properties"]["zero_optimization"]["anyOf"][0]["properties"]["stage"];
        assert_eq!(stage["anyOf"][0], json!({ "type": "integer", "minimum": 0, "maximum": 3 }));
        assert_eq!(stage["default"], 0);
        assert_eq!(schema["additionalProperties"], false);
    }
}
