//! The tree that the parser makes.

use super::number::Number;
use super::text::TextRange;

/// A value and where it stood.
#[derive(Clone, PartialEq, Debug)]
pub struct Node {
    /// Its bytes.
    pub range: TextRange,
    /// What they say.
    pub value: Value,
}

/// A JSON value.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as written.
    Number(Number),
    /// A string, unescaped.
    String(String),
    /// A list.
    Array(Vec<Node>),
    /// Members in the order of the file; keys are unique.
    Object(Vec<Member>),
}

/// One `"key": value` of an object.
#[derive(Clone, PartialEq, Debug)]
pub struct Member {
    /// The key, unescaped.
    pub key: String,
    /// Where the key stood, quotes included.
    pub key_range: TextRange,
    /// The value.
    pub node: Node,
}

impl Node {
    /// What kind of value it is, for messages: `a number`, `a list`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "null",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::String(_) => "a string",
            Value::Array(_) => "a list",
            Value::Object(_) => "a block",
        }
    }

    /// The members, if it is an object.
    #[must_use]
    pub fn members(&self) -> Option<&[Member]> {
        match &self.value {
            Value::Object(members) => Some(members),
            _ => None,
        }
    }

    /// The value of a member, if it is an object that has it.
    #[must_use]
    pub fn member(&self, key: &str) -> Option<&Node> {
        self.members()?.iter().find(|m| m.key == key).map(|m| &m.node)
    }

    /// The string, if it is one.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(s) => Some(s),
            _ => None,
        }
    }

    /// The same value without places. A number that no i64, u64 or finite f64 holds becomes null.
    #[must_use]
    pub fn to_plain(&self) -> serde_json::Value {
        match &self.value {
            Value::Null => serde_json::Value::Null,
            Value::Bool(b) => (*b).into(),
            Value::Number(n) => n.to_plain(),
            Value::String(s) => s.clone().into(),
            Value::Array(items) => items.iter().map(Node::to_plain).collect(),
            Value::Object(members) => {
                members.iter().map(|m| (m.key.clone(), m.node.to_plain())).collect()
            }
        }
    }
}
