//! The parser: one pass over the bytes, recursion limited by [`limits::DEPTH`].

use super::limits;
use super::node::{Member, Node, Value};
use super::number::Number;
use super::text::{SourceId, TextRange};
use crate::diagnostics::{Diagnostic, Diagnostics};
use std::collections::BTreeMap;

/// Parses a whole text. `None` when it is not JSON at all; what was accepted beyond JSON, what was
/// refused and why goes into `out`.
pub fn parse(source: SourceId, text: &str, out: &mut Diagnostics) -> Option<Node> {
    if text.len() > limits::FILE_BYTES {
        let message = format!(
            "the file has {} bytes; a configuration may have {}",
            text.len(),
            limits::FILE_BYTES
        );
        out.push(Diagnostic::error("json-limit", "", message).fix("is it the right file?"));
        return None;
    }
    let mut parser = Parser::new(source, text, 0, out);
    let root = parser.document();
    parser.tell_extensions();
    root.map_err(|e| out.push(*e)).ok()
}

/// Parses `text[start..]` as one value, for `--set key=value`; nothing but white space may follow.
#[must_use]
pub fn parse_value(source: SourceId, text: &str, start: usize) -> Option<Node> {
    let mut unheard = Diagnostics::default();
    let mut parser = Parser::new(source, text, start, &mut unheard);
    let root = parser.document().ok()?;
    (!unheard.has_errors()).then_some(root)
}

type Parsed<T> = Result<T, Box<Diagnostic>>;

/// Something accepted beyond JSON: how often, and where first.
#[derive(Default)]
struct Extension {
    count: usize,
    first: Option<TextRange>,
}

impl Extension {
    fn seen(&mut self, range: TextRange) {
        self.count += 1;
        self.first.get_or_insert(range);
    }
}

struct Parser<'a> {
    source: SourceId,
    text: &'a str,
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    values: usize,
    path: Vec<String>,
    comments: Extension,
    trailing_commas: Extension,
    byte_order_mark: bool,
    out: &'a mut Diagnostics,
}

impl<'a> Parser<'a> {
    fn new(source: SourceId, text: &'a str, at: usize, out: &'a mut Diagnostics) -> Parser<'a> {
        Parser {
            source,
            text,
            bytes: text.as_bytes(),
            at,
            depth: 0,
            values: 0,
            path: Vec::new(),
            comments: Extension::default(),
            trailing_commas: Extension::default(),
            byte_order_mark: false,
            out,
        }
    }

    fn document(&mut self) -> Parsed<Node> {
        if self.at == 0 && self.text.starts_with('\u{feff}') {
            self.byte_order_mark = true;
            self.at = '\u{feff}'.len_utf8();
        }
        self.skip_space()?;
        if self.at == self.bytes.len() {
            return Err(self.error("the file is empty", "a configuration is one { ... } block"));
        }
        let root = self.value()?;
        self.skip_space()?;
        if self.at < self.bytes.len() {
            return Err(self.error(
                "there is more text after the end of the configuration",
                "remove it, or look for one closing brace too many",
            ));
        }
        Ok(root)
    }

    fn value(&mut self) -> Parsed<Node> {
        self.values += 1;
        if self.values > limits::VALUES {
            let message = format!("more than {} values", limits::VALUES);
            return Err(self.error(&message, "is it the right file?"));
        }
        let start = self.at;
        let value = match self.peek() {
            Some(b'{') => self.nested(Self::object)?,
            Some(b'[') => self.nested(Self::array)?,
            Some(b'"') => Value::String(self.string()?),
            Some(b'\'') => return Err(self.error("a string in single quotes", "use \"...\"")),
            Some(_) => self.word()?,
            None => return Err(self.unfinished("a value")),
        };
        Ok(Node { range: self.range(start, self.at), value })
    }

    fn nested(&mut self, body: fn(&mut Self) -> Parsed<Value>) -> Parsed<Value> {
        if self.depth == limits::DEPTH {
            let message = format!("blocks nested deeper than {}", limits::DEPTH);
            return Err(self.error(&message, "no key of a configuration is nested so deeply"));
        }
        self.depth += 1;
        self.at += 1;
        let value = body(self);
        self.depth -= 1;
        value
    }

    fn object(&mut self) -> Parsed<Value> {
        let mut members: Vec<Member> = Vec::new();
        let mut places: BTreeMap<String, TextRange> = BTreeMap::new();
        while self.more(b'}', members.is_empty() && places.is_empty(), "a key or }")? {
            let start = self.at;
            if self.peek() != Some(b'"') {
                return Err(self.bad_key());
            }
            let key = self.string()?;
            let key_range = self.range(start, self.at);
            self.colon(&key)?;
            self.path.push(key.clone());
            let node = self.value()?;
            if let Some(&first) = places.get(&key) {
                self.duplicate(&key, key_range, first);
            } else {
                places.insert(key.clone(), key_range);
                members.push(Member { key, key_range, node });
            }
            self.path.pop();
        }
        Ok(Value::Object(members))
    }

    fn array(&mut self) -> Parsed<Value> {
        let mut items = Vec::new();
        while self.more(b']', items.is_empty(), "a value or ]")? {
            items.push(self.value()?);
        }
        Ok(Value::Array(items))
    }

    /// Stands before the next item (true) or behind the closing byte (false).
    fn more(&mut self, close: u8, first: bool, expected: &str) -> Parsed<bool> {
        self.skip_space()?;
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(false);
        }
        if first {
            return self.peek().map(|_| true).ok_or_else(|| self.unfinished(expected));
        }
        let comma = self.range(self.at, self.at + 1);
        match self.peek() {
            Some(b',') => self.at += 1,
            Some(_) => return Err(self.missing_comma(close)),
            None => return Err(self.unfinished(", or the closing bracket")),
        }
        self.skip_space()?;
        if self.peek() == Some(close) {
            self.trailing_commas.seen(comma);
            self.at += 1;
            return Ok(false);
        }
        self.peek().map(|_| true).ok_or_else(|| self.unfinished(expected))
    }

    fn colon(&mut self, key: &str) -> Parsed<()> {
        self.skip_space()?;
        if self.peek() != Some(b':') {
            let message = format!("no colon after the key {key:?}");
            return Err(self.error(&message, "write \"key\": value"));
        }
        self.at += 1;
        self.skip_space()
    }

    /// `true`, `false`, `null` or a number.
    fn word(&mut self) -> Parsed<Value> {
        let rest = &self.text[self.at..];
        let stop = |c: char| !(c.is_alphanumeric() || matches!(c, '+' | '-' | '.' | '_'));
        let word = &rest[..rest.find(stop).unwrap_or(rest.len())];
        let value = match word {
            "true" => Value::Bool(true),
            "false" => Value::Bool(false),
            "null" => Value::Null,
            _ => match Number::parse(word) {
                Some(number) => Value::Number(number),
                None => return Err(self.bad_word(word)),
            },
        };
        self.at += word.len();
        Ok(value)
    }

    fn string(&mut self) -> Parsed<String> {
        let open = self.at;
        self.at += 1;
        let mut value = String::new();
        loop {
            let run = self.at;
            while self.peek().is_some_and(|b| b != b'"' && b != b'\\' && b >= 0x20) {
                self.at += 1;
            }
            value.push_str(&self.text[run..self.at]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(value);
                }
                Some(b'\\') => value.push(self.escape()?),
                _ => {
                    let end = self.at;
                    self.at = open;
                    return Err(Box::new(
                        (*self.error("a string without its closing quote", "close it with \""))
                            .at(self.range(open, end)),
                    ));
                }
            }
        }
    }

    fn escape(&mut self) -> Parsed<char> {
        let simple = match self.bytes.get(self.at + 1) {
            Some(b'"') => '"',
            Some(b'\\') => '\\',
            Some(b'/') => '/',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode_escape(),
            _ => return Err(self.error("an unknown escape", "write \\\\ for one backslash")),
        };
        self.at += 2;
        Ok(simple)
    }

    fn unicode_escape(&mut self) -> Parsed<char> {
        let bad = "\\u needs four hexadecimal digits that name a character";
        let high = self.hex4().ok_or_else(|| self.error(bad, "write the character itself"))?;
        if !(0xd800..0xdc00).contains(&high) {
            return char::from_u32(high).ok_or_else(|| self.error(bad, "write the character"));
        }
        match self.hex4() {
            Some(low @ 0xdc00..0xe000) => {
                let code = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                char::from_u32(code).ok_or_else(|| self.error(bad, "write the character itself"))
            }
            _ => Err(self.error("half of a surrogate pair", "write the character itself")),
        }
    }

    fn hex4(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 6)?.strip_prefix("\\u")?;
        let code = digits.bytes().all(|b| b.is_ascii_hexdigit()).then_some(digits)?;
        self.at += 6;
        u32::from_str_radix(code, 16).ok()
    }

    /// White space and comments: `//`, `#` to the end of the line, `/* */`.
    fn skip_space(&mut self) -> Parsed<()> {
        loop {
            let rest = &self.text[self.at..];
            let blank = rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
            self.at += blank;
            let rest = &rest[blank..];
            let length = if rest.starts_with("//") || rest.starts_with('#') {
                rest.find('\n').unwrap_or(rest.len())
            } else if rest.starts_with("/*") {
                match rest.find("*/") {
                    Some(end) => end + 2,
                    None => return Err(self.error("a comment without its end", "close it: */")),
                }
            } else {
                return Ok(());
            };
            self.comments.seen(self.range(self.at, self.at + length));
            self.at += length;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn range(&self, start: usize, end: usize) -> TextRange {
        let end = end.min(self.bytes.len()) as u32;
        TextRange { source: self.source, start: (start as u32).min(end), end }
    }
}

/// What is told to people.
impl Parser<'_> {
    fn error(&self, message: &str, fix: &str) -> Box<Diagnostic> {
        let width = self.text[self.at..].chars().next().map_or(0, char::len_utf8);
        let range = self.range(self.at, self.at + width);
        let path = self.path.join(".");
        Box::new(Diagnostic::error("json-syntax", path, message).at(range).fix(fix))
    }

    fn unfinished(&self, expected: &str) -> Box<Diagnostic> {
        let message = format!("the file ends where {expected} should follow");
        self.error(&message, "is the file complete? a closing } or ] is missing")
    }

    fn missing_comma(&self, close: u8) -> Box<Diagnostic> {
        let message = format!("expected , or {}", char::from(close));
        self.error(&message, "put a comma between two entries")
    }

    fn bad_key(&self) -> Box<Diagnostic> {
        match self.peek() {
            Some(b',') => self.error("two commas in a row", "remove one"),
            _ => self.error("a key without quotes", "write \"key\": value"),
        }
    }

    fn bad_word(&self, word: &str) -> Box<Diagnostic> {
        let (message, fix) = match word {
            "" => ("expected a value".to_owned(), "a value is missing here"),
            "True" | "False" | "None" => {
                (format!("{word} is Python's spelling"), "write true, false or null")
            }
            "NaN" | "Infinity" | "-Infinity" | "inf" | "nan" => {
                (format!("{word} is not a number that JSON knows"), "write a finite number")
            }
            _ => (format!("{word} is neither a number nor a word of JSON"), "quote it: \"...\""),
        };
        let range = self.range(self.at, self.at + word.len().max(1));
        Box::new((*self.error(&message, fix)).at(range))
    }

    fn duplicate(&mut self, key: &str, range: TextRange, first: TextRange) {
        if self.out.is_full() {
            return;
        }
        let line = |at: u32| 1 + self.bytes[..at as usize].iter().filter(|&&b| b == b'\n').count();
        let message =
            format!("the key {key:?} is given twice; first on line {}", line(first.start));
        let diagnostic = Diagnostic::error("duplicate-key", self.path.join("."), message)
            .at(range)
            .fix("keep one of the two");
        self.out.push(diagnostic);
    }

    fn tell_extensions(&mut self) {
        if self.byte_order_mark {
            let text = "a byte-order mark at the start of the file is skipped";
            self.out.push(Diagnostic::note("json-extension", "", text).at(self.range(0, 0)));
        }
        for (extension, what) in
            [(&self.comments, "comment"), (&self.trailing_commas, "trailing comma")]
        {
            if let Some(first) = extension.first {
                let plural = if extension.count == 1 { "" } else { "s" };
                let text = format!("{} {what}{plural} accepted beyond JSON", extension.count);
                self.out.push(Diagnostic::note("json-extension", "", text).at(first));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Option<Node>, Diagnostics) {
        let mut out = Diagnostics::default();
        let node = parse(SourceId(0), text, &mut out);
        (node, out)
    }

    fn rules(out: &Diagnostics) -> Vec<&'static str> {
        out.iter().map(|d| d.rule).collect()
    }

    /// Case C10: what people write beyond JSON is accepted, each with one note.
    #[test]
    fn comments_commas_and_a_byte_order_mark_are_accepted_with_a_note() {
        let (node, out) = read("\u{feff}{ // one\n \"a\": [1, 2,], /* two */ # three\n}");
        assert_eq!(node.unwrap().to_plain(), serde_json::json!({"a": [1, 2]}));
        assert_eq!(rules(&out), ["json-extension"; 3]);
        assert!(!out.has_errors());
        assert!(out.iter().any(|d| d.message == "3 comments accepted beyond JSON"));
    }

    /// A doubled key is always refused, at any depth, and the rest is still checked.
    #[test]
    fn a_doubled_key_is_refused_with_its_path() {
        let (node, out) = read("{\"z\": {\"stage\": 1,\n\"stage\": 3}, \"z\": 1}");
        assert!(node.is_some());
        let paths: Vec<_> = out.iter().map(|d| d.path.as_str()).collect();
        assert_eq!(paths, ["z.stage", "z"]);
        assert_eq!(rules(&out), ["duplicate-key"; 2]);
    }

    #[test]
    fn syntax_errors_stand_where_the_error_is() {
        for (text, start) in [
            ("", 0),
            ("{\"a\" 1}", 5),
            ("{a: 1}", 1),
            ("{\"a\": True}", 6),
            ("{\"a\": 1 \"b\": 2}", 8),
            ("{\"a\": 1} x", 9),
            ("{\"a\": NaN}", 6),
            ("{\"a\": \"b}", 6),
            ("{\"a\": \"\\q\"}", 7),
            ("{\"a\": \"\\ud800\"}", 13),
            ("{\"a\": /* 1}", 6),
            ("[1,,2]", 3),
            ("{\"a\": 1", 7),
        ] {
            let (node, out) = read(text);
            assert!(node.is_none(), "{text}");
            let first = out.iter().next().unwrap();
            assert_eq!((first.rule, first.range.unwrap().start), ("json-syntax", start), "{text}");
        }
    }

    #[test]
    fn depth_size_and_count_are_limited() {
        let deep = "[".repeat(limits::DEPTH + 1);
        assert!(read(&deep).0.is_none());
        let fits = format!("{}{}", "[".repeat(limits::DEPTH), "]".repeat(limits::DEPTH));
        assert!(read(&fits).0.is_some());
        assert!(read(&format!("[{}1]", "1,".repeat(limits::VALUES))).0.is_none());
        assert_eq!(rules(&read(&" ".repeat(limits::FILE_BYTES + 1)).1), ["json-limit"]);
    }

    #[test]
    fn strings_are_unescaped() {
        let (node, _) = read(r#"["\u00e9\ud83d\ude00\n\"\\\/", "é"]"#);
        assert_eq!(node.unwrap().to_plain(), serde_json::json!(["é😀\n\"\\/", "é"]));
    }
}
