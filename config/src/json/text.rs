//! Texts and places in them.

/// Which text of a [`Sources`] a place lies in.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SourceId(pub u32);

/// The bytes `start..end` of one text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct TextRange {
    /// Which text.
    pub source: SourceId,
    /// The first byte.
    pub start: u32,
    /// One past the last byte.
    pub end: u32,
}

/// A line and a column, both counted from one; columns count characters, not bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The character in it.
    pub column: u32,
}

/// One text that was read: a file, or an override from the command line.
#[derive(Clone, Debug)]
pub struct Source {
    /// How to name it to a person: a path, or `--set`.
    pub name: String,
    /// All of it.
    pub text: String,
}

impl Source {
    /// Line and column of a byte.
    #[must_use]
    pub fn position(&self, byte: u32) -> Position {
        let before = self.before(byte);
        let line = before.bytes().filter(|&b| b == b'\n').count() as u32 + 1;
        let column = before[line_start(before)..].chars().count() as u32 + 1;
        Position { line, column }
    }

    /// The whole line that holds a byte, without its line end.
    #[must_use]
    pub fn line_of(&self, byte: u32) -> &str {
        let start = line_start(self.before(byte));
        let rest = &self.text[start..];
        let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
        line.strip_suffix('\r').unwrap_or(line)
    }

    fn before(&self, byte: u32) -> &str {
        let mut at = (byte as usize).min(self.text.len());
        while !self.text.is_char_boundary(at) {
            at -= 1;
        }
        &self.text[..at]
    }
}

fn line_start(before: &str) -> usize {
    before.rfind('\n').map_or(0, |i| i + 1)
}

/// All texts that one configuration was read from: the file first, then the overrides in order.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    list: Vec<Source>,
}

impl Sources {
    /// Adds a text.
    pub fn add(&mut self, name: impl Into<String>, text: impl Into<String>) -> SourceId {
        self.list.push(Source { name: name.into(), text: text.into() });
        SourceId(self.list.len() as u32 - 1)
    }

    /// The text with this id.
    ///
    /// # Panics
    /// If the id was not returned by this value's `add`.
    #[must_use]
    pub fn source(&self, id: SourceId) -> &Source {
        &self.list[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Columns count characters, so an accent before the place does not shift it.
    #[test]
    fn positions_count_characters() {
        let source = Source { name: "x".into(), text: "{\r\n  \"é\": 1\n}".into() };
        let byte = source.text.find('1').unwrap() as u32;
        assert_eq!(source.position(byte), Position { line: 2, column: 8 });
        assert_eq!(source.line_of(byte), "  \"é\": 1");
        assert_eq!(source.position(9999).line, 3);
    }
}
