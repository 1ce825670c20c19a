//! One value against its kind.

use crate::diagnostics::{Diagnostic, Diagnostics, nearest};
use crate::json::{Node, Number, NumberError, Value};
use crate::schema::Kind;
use planaria_base::units::parse_bytes;
use serde_json::Value as Plain;
use std::ops::RangeInclusive;

/// Reads a value of a kind that holds no keys of its own; `None` when it is refused.
pub(super) fn read(kind: &Kind, node: &Node, path: &str, out: &mut Diagnostics) -> Option<Plain> {
    let mut reader = Reader { node, path, out };
    match kind {
        Kind::Bool => reader.boolean(),
        Kind::Int(min, max) => reader.integer(*min, *max),
        Kind::Float(min, max) => reader.float(kind, |x| (*min..=*max).contains(&x)),
        Kind::FloatAbove(min, max) => reader.float(kind, |x| x > *min && x <= *max),
        Kind::Bytes => reader.bytes(),
        Kind::Text => reader.text().map(Plain::from),
        Kind::Texts => reader.texts(),
        Kind::Choice(words) => reader.choice(words),
        Kind::List(item, min, max) => reader.list(kind, item, *min..=*max),
        Kind::Either(kinds) => reader.either(kind, kinds),
        Kind::Any | Kind::Block(_) | Kind::Variants(_) | Kind::Map(_) => Some(node.to_plain()),
    }
}

struct Reader<'a> {
    node: &'a Node,
    path: &'a str,
    out: &'a mut Diagnostics,
}

impl Reader<'_> {
    fn refuse<T>(&mut self, rule: &'static str, message: String, fix: &str) -> Option<T> {
        let finding = Diagnostic::error(rule, self.path, message).at(self.node.range).fix(fix);
        self.out.push(finding);
        None
    }

    fn wrong_kind<T>(&mut self, wanted: &Kind) -> Option<T> {
        let words = wanted.in_words();
        let message = format!("`{}` is {words}, not {}", self.path, self.node.kind());
        self.refuse("type", message, &format!("write {words}"))
    }

    fn boolean(&mut self) -> Option<Plain> {
        let message = |path: &str, what: &str| {
            format!("`{path}` is true or false, without quotes, not {what}")
        };
        match &self.node.value {
            Value::Bool(b) => Some((*b).into()),
            Value::String(s) if s.eq_ignore_ascii_case("true") => {
                self.refuse("type", message(self.path, "a string"), "write true")
            }
            Value::String(s) if s.eq_ignore_ascii_case("false") => {
                self.refuse("type", message(self.path, "a string"), "write false")
            }
            Value::Number(n) => {
                let fix = if n.to_f64() == 0.0 { "write false" } else { "write true" };
                self.refuse("type", message(self.path, "a number"), fix)
            }
            _ => self.wrong_kind(&Kind::Bool),
        }
    }

    /// The one rule for numbers in quotes, the same for every field: taken, with a warning.
    fn number(&mut self, wanted: &Kind) -> Option<Number> {
        match &self.node.value {
            Value::Number(n) => Some(n.clone()),
            Value::String(s) => match Number::parse(s.trim()) {
                Some(number) => {
                    let message =
                        format!("`{}` is a number in quotes; read as {number}", self.path);
                    let finding = Diagnostic::warning("numeric-string", self.path, message);
                    self.out.push(finding.at(self.node.range).fix("remove the quotes"));
                    Some(number)
                }
                None => self.wrong_kind(wanted),
            },
            _ => self.wrong_kind(wanted),
        }
    }

    fn integer(&mut self, min: i64, max: i64) -> Option<Plain> {
        let kind = Kind::Int(min, max);
        let number = self.number(&kind)?;
        match number.to_integer() {
            Ok(n) => match i64::try_from(n) {
                Ok(n) if (min..=max).contains(&n) => Some(n.into()),
                _ => self.out_of_range(&kind, &number),
            },
            Err(NumberError::TooLarge) => self.out_of_range(&kind, &number),
            Err(why) => {
                let message = format!("`{}` is {}; {number}: {why}", self.path, kind.in_words());
                self.refuse("type", message, "write a whole number")
            }
        }
    }

    fn out_of_range<T>(&mut self, kind: &Kind, number: &Number) -> Option<T> {
        let words = kind.in_words();
        let shown: String = number.text().chars().take(40).collect();
        if number.to_f64() > i64::MAX as f64 {
            let message = format!("`{}` is {words}; {shown} is too large", self.path);
            return self.refuse("range", message, "write a smaller number");
        }
        let message = format!("`{}` is {words}; {number} is not", self.path);
        self.refuse("range", message, &format!("write {words}"))
    }

    fn float(&mut self, kind: &Kind, fits: impl Fn(f64) -> bool) -> Option<Plain> {
        let number = self.number(kind)?;
        let value = number.to_f64();
        if value.is_finite() && fits(value) {
            Some(value.into())
        } else {
            self.out_of_range(kind, &number)
        }
    }

    fn bytes(&mut self) -> Option<Plain> {
        match &self.node.value {
            Value::Number(_) => self.integer(0, i64::MAX),
            Value::String(s) => match parse_bytes(s) {
                Some(bytes) => Some(bytes.into()),
                None => self.wrong_kind(&Kind::Bytes),
            },
            _ => self.wrong_kind(&Kind::Bytes),
        }
    }

    fn text(&mut self) -> Option<String> {
        match self.node.as_str() {
            Some(text) => Some(text.to_owned()),
            None => self.wrong_kind(&Kind::Text),
        }
    }

    fn texts(&mut self) -> Option<Plain> {
        match &self.node.value {
            Value::String(s) => Some(vec![s.clone()].into()),
            Value::Array(items) => {
                let texts: Option<Vec<String>> =
                    items.iter().map(|n| n.as_str().map(str::to_owned)).collect();
                match texts {
                    Some(texts) => Some(texts.into()),
                    None => self.wrong_kind(&Kind::Texts),
                }
            }
            _ => self.wrong_kind(&Kind::Texts),
        }
    }

    fn choice(&mut self, words: &'static [&'static str]) -> Option<Plain> {
        let kind = Kind::Choice(words);
        let Some(given) = self.node.as_str() else { return self.wrong_kind(&kind) };
        if words.contains(&given) {
            return Some(given.into());
        }
        let message = format!("`{}` is {}, not {given:?}", self.path, kind.in_words());
        let mut finding = Diagnostic::error("choice", self.path, message).at(self.node.range);
        finding.did_you_mean = nearest(given, words.iter().copied()).map(|w| format!("{w:?}"));
        self.out.push(finding);
        None
    }

    fn list(&mut self, kind: &Kind, item: &Kind, lengths: RangeInclusive<usize>) -> Option<Plain> {
        let Value::Array(items) = &self.node.value else { return self.wrong_kind(kind) };
        if !lengths.contains(&items.len()) {
            let (min, max) = lengths.into_inner();
            let wanted = if min == max { format!("{min}") } else { format!("{min} to {max}") };
            let message = format!("`{}` lists {wanted} values, not {}", self.path, items.len());
            return self.refuse("range", message, &format!("write {wanted} values"));
        }
        let read_one = |(i, n)| read(item, n, &format!("{}[{i}]", self.path), self.out);
        let values: Vec<Option<Plain>> = items.iter().enumerate().map(read_one).collect();
        values.into_iter().collect()
    }

    fn either(&mut self, kind: &Kind, kinds: &[Kind]) -> Option<Plain> {
        for one in kinds {
            let mut unheard = Diagnostics::default();
            if let Some(value) = read(one, self.node, self.path, &mut unheard) {
                unheard.iter().for_each(|d| self.out.push(d.clone()));
                return Some(value);
            }
        }
        self.wrong_kind(kind)
    }
}
