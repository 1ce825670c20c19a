//! Decoding id by id, so that nothing is shown of a character until it is whole.

use super::Tokenizer;

/// Ids held back at most. A character has at most 4 bytes, so at most 4 ids; what is still not whole
/// after that never will be, and is shown with replacement marks.
const HELD_LIMIT: usize = 4;

/// Turns a stream of ids into text.
#[derive(Debug)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    /// The last ids that were shown, as context for those behind, then those held back.
    ids: Vec<u32>,
    shown: usize,
}

impl<'a> StreamDecoder<'a> {
    /// A decoder at the start of a text.
    #[must_use]
    pub fn new(tokenizer: &'a Tokenizer) -> StreamDecoder<'a> {
        StreamDecoder { tokenizer, ids: Vec::new(), shown: 0 }
    }

    /// The text that this id completes; empty while a character is not whole.
    pub fn push(&mut self, id: u32) -> String {
        self.ids.push(id);
        let rest = self.rest();
        let held = self.ids.len() - self.shown;
        if rest.ends_with(char::REPLACEMENT_CHARACTER) && held < HELD_LIMIT {
            return String::new();
        }
        if rest.is_empty() && held < HELD_LIMIT {
            return rest;
        }
        self.ids.drain(..self.shown);
        self.shown = self.ids.len();
        rest
    }

    /// What is left at the end; a cut character is shown as a replacement mark.
    #[must_use]
    pub fn finish(self) -> String {
        self.rest()
    }

    /// Some tokenizers decode an id differently at the start of a text, so what is held back is
    /// decoded behind what was shown last.
    fn rest(&self) -> String {
        let before = self.text(&self.ids[..self.shown]);
        let all = self.text(&self.ids);
        all.get(before.len()..).unwrap_or_default().to_owned()
    }

    fn text(&self, ids: &[u32]) -> String {
        String::from_utf8_lossy(&self.tokenizer.decode(ids)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(bytes: &[u8]) -> Vec<String> {
        let mut decoder = StreamDecoder::new(&Tokenizer::Byte);
        let mut parts: Vec<String> = bytes.iter().map(|&b| decoder.push(u32::from(b))).collect();
        parts.push(decoder.finish());
        parts
    }

    /// A character of four tokens appears at once, with its last.
    #[test]
    fn a_character_is_shown_whole() {
        assert_eq!(stream("a🦠b".as_bytes()), ["a", "", "", "", "🦠", "b", ""]);
    }

    /// A cut character ends as one replacement mark.
    #[test]
    fn a_cut_character_is_one_mark() {
        assert_eq!(stream(&"a🦠".as_bytes()[..3]), ["a", "", "", "\u{fffd}"]);
    }

    /// Bytes that are no text are held for a bounded time, and all text arrives.
    #[test]
    fn invalid_bytes_do_not_stop_the_stream() {
        let text = stream(b"\xff\xff\xff\xff\xff\xffok, \xffgo on").concat();
        assert!(text.ends_with("ok, \u{fffd}go on"), "{text}");
        let all = "née Ünïcödé 🦠🧫 日本語\r\n";
        assert_eq!(stream(all.as_bytes()).concat(), all);
    }
}
