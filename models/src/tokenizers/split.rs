//! Pre-tokenizers by hand: where the patterns of GPT-2, cl100k, o200k and their kin cut a text.
//!
//! Source: the patterns in tiktoken's `openai_public.py` and in the `tokenizer.json` of Llama 3,
//! Qwen 2 and SmolLM. Classes of characters come from `regex-syntax`, so they are those that the
//! pattern itself would match.

use std::ops::Range;
use std::sync::OnceLock;

const LETTER: u8 = 1;
const NUMBER: u8 = 2;
const SPACE: u8 = 4;
/// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`
const UPPER: u8 = 8;
/// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`
const LOWER: u8 = 16;
const LINE_END: u8 = 32;

const CLASSES: [(&str, u8); 6] = [
    (r"\p{L}", LETTER),
    (r"\p{N}", NUMBER),
    (r"\s", SPACE),
    (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", UPPER),
    (r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", LOWER),
    (r"[\r\n]", LINE_END),
];

/// One byte of class flags for every code point.
fn classes() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = vec![0; 0x11_0000];
        for (pattern, flag) in CLASSES {
            let hir = regex_syntax::parse(pattern).expect("a constant pattern");
            let regex_syntax::hir::HirKind::Class(regex_syntax::hir::Class::Unicode(class)) =
                hir.kind()
            else {
                unreachable!("{pattern} is a class")
            };
            for range in class.ranges() {
                let range = range.start() as usize..=range.end() as usize;
                table[range].iter_mut().for_each(|c| *c |= flag);
            }
        }
        table
    })
}

/// A pre-tokenizer's pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Split {
    /// GPT-2: `'s|'t|..| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
    Gpt2,
    /// GPT-2 with every digit alone, as SmolLM has it.
    Gpt2Digits,
    /// cl100k; the number of digits taken together, and whether spaces at the text's end are one
    /// piece (tiktoken: yes; Llama 3 and Qwen 2: no).
    Cl100k {
        /// 1 or 3.
        digits: usize,
        /// Whether `\s++$` is tried before line ends.
        end_first: bool,
    },
    /// o200k.
    O200k,
}

impl Split {
    /// Calls `take` with each piece, in order; the pieces make up the text.
    pub(super) fn each(self, text: &str, mut take: impl FnMut(&[u8])) {
        let table = classes();
        if self != Split::Gpt2Digits {
            return self.run(Scan { text, table }, &mut take);
        }
        let mut start = 0;
        for (at, c) in text.char_indices().filter(|&(_, c)| table[c as usize] & NUMBER != 0) {
            Split::Gpt2.run(Scan { text: &text[start..at], table }, &mut take);
            start = at + c.len_utf8();
            take(&text.as_bytes()[at..start]);
        }
        Split::Gpt2.run(Scan { text: &text[start..], table }, &mut take);
    }

    fn run(self, scan: Scan<'_>, take: &mut impl FnMut(&[u8])) {
        let (mut start, bytes) = (0, scan.text.as_bytes());
        while start < bytes.len() {
            let end = match self {
                Split::Gpt2 | Split::Gpt2Digits => scan.gpt2(start),
                Split::Cl100k { digits, end_first } => scan.cl100k(start, digits, end_first),
                Split::O200k => scan.o200k(start),
            };
            debug_assert!(end > start, "a piece is never empty");
            take(&bytes[start..end]);
            start = end;
        }
    }
}

#[derive(Clone, Copy)]
struct Scan<'a> {
    text: &'a str,
    table: &'a [u8],
}

impl Scan<'_> {
    /// Flags and length of the character at `at`; `None` at the end.
    #[inline]
    fn at(&self, at: usize) -> Option<(u8, usize)> {
        let byte = *self.text.as_bytes().get(at)?;
        if byte < 128 {
            return Some((self.table[byte as usize], 1));
        }
        let c = self.text[at..].chars().next()?;
        Some((self.table[c as usize], c.len_utf8()))
    }

    fn is(&self, at: usize, mask: u8) -> bool {
        self.at(at).is_some_and(|(flags, _)| flags & mask != 0)
    }

    /// End of the run of characters that have one of `mask`.
    #[inline]
    fn run(&self, mut at: usize, mask: u8) -> usize {
        while let Some((flags, length)) = self.at(at)
            && flags & mask != 0
        {
            at += length;
        }
        at
    }

    /// End of the run of characters that are neither space, letter nor number.
    #[inline]
    fn others(&self, mut at: usize) -> usize {
        while let Some((flags, length)) = self.at(at)
            && flags & (SPACE | LETTER | NUMBER) == 0
        {
            at += length;
        }
        at
    }

    /// End of a contraction at `at`: `'s 't 're 've 'm 'll 'd`.
    fn contraction(&self, at: usize, any_case: bool) -> Option<usize> {
        let rest = self.text.as_bytes().get(at..)?.strip_prefix(b"'")?;
        let fold = |b: u8| if any_case { b.to_ascii_lowercase() } else { b };
        // U+017F folds to s.
        if any_case && rest.starts_with("\u{17f}".as_bytes()) {
            return Some(at + 3);
        }
        let first = fold(*rest.first()?);
        if matches!(first, b's' | b'd' | b'm' | b't') {
            return Some(at + 2);
        }
        let pair = [first, fold(*rest.get(1)?)];
        matches!(&pair, b"ll" | b"ve" | b"re").then_some(at + 3)
    }

    /// `\s+(?!\S)|\s+` for a run of spaces: all but the last if something follows.
    fn spaces(&self, start: usize) -> usize {
        let end = self.run(start, SPACE);
        let last = self.text[start..end].chars().next_back().map_or(1, char::len_utf8);
        if end == self.text.len() || end - last == start { end } else { end - last }
    }

    /// `\s*[\r\n]+|\s+(?!\S)|\s+`.
    fn lines_or_spaces(&self, start: usize, end_first: bool) -> usize {
        let end = self.run(start, SPACE);
        if end_first && end == self.text.len() {
            return end;
        }
        match self.text.as_bytes()[start..end].iter().rposition(|b| matches!(b, b'\r' | b'\n')) {
            Some(last) => start + last + 1,
            None => self.spaces(start),
        }
    }

    fn after_space(&self, start: usize) -> usize {
        start + usize::from(self.text.as_bytes()[start] == b' ')
    }

    fn gpt2(&self, start: usize) -> usize {
        if let Some(end) = self.contraction(start, false) {
            return end;
        }
        let at = self.after_space(start);
        match self.at(at) {
            Some((flags, _)) if flags & LETTER != 0 => self.run(at, LETTER),
            Some((flags, _)) if flags & NUMBER != 0 => self.run(at, NUMBER),
            Some((flags, _)) if flags & SPACE == 0 => self.others(at),
            _ => self.spaces(start),
        }
    }

    /// Where the letters may begin: behind one character that is no line end, letter or number.
    fn lead(&self, start: usize) -> Option<usize> {
        let (flags, length) = self.at(start)?;
        (flags & (LETTER | NUMBER | LINE_END) == 0).then_some(start + length)
    }

    fn numbers(&self, start: usize, limit: usize) -> usize {
        let counted = self.text[start..].char_indices().take(limit);
        let numbers = counted.take_while(|&(_, c)| self.table[c as usize] & NUMBER != 0);
        numbers.last().map_or(start, |(at, c)| start + at + c.len_utf8())
    }

    /// ` ?[^\s\p{L}\p{N}]+` and what of `tail` follows.
    fn marks(&self, start: usize, tail: &[u8]) -> Option<usize> {
        let first = self.after_space(start);
        let end = self.others(first);
        let rest = &self.text.as_bytes()[end..];
        (end > first).then(|| end + rest.iter().take_while(|b| tail.contains(b)).count())
    }

    fn cl100k(&self, start: usize, digits: usize, end_first: bool) -> usize {
        if let Some(end) = self.contraction(start, true) {
            return end;
        }
        if self.is(start, LETTER) {
            return self.run(start, LETTER);
        }
        if let Some(at) = self.lead(start).filter(|&at| self.is(at, LETTER)) {
            return self.run(at, LETTER);
        }
        if self.is(start, NUMBER) {
            return self.numbers(start, digits);
        }
        self.marks(start, b"\r\n").unwrap_or_else(|| self.lines_or_spaces(start, end_first))
    }

    fn o200k(&self, start: usize) -> usize {
        let starts = || self.lead(start).into_iter().chain([start]);
        let word = starts()
            .find_map(|at| self.lower_word(at))
            .or_else(|| starts().find_map(|at| self.upper_word(at)));
        if let Some(end) = word {
            return self.contraction(end, true).unwrap_or(end);
        }
        if self.is(start, NUMBER) {
            return self.numbers(start, 3);
        }
        self.marks(start, b"\r\n/").unwrap_or_else(|| self.lines_or_spaces(start, false))
    }

    /// `[UPPER]*[LOWER]+`. Where no lower character follows the upper run, the pattern gives
    /// characters back until one is both.
    fn lower_word(&self, start: usize) -> Option<usize> {
        let upper = self.run(start, UPPER);
        let end = self.run(upper, LOWER);
        if end > upper {
            return Some(end);
        }
        let run: Range<usize> = start..upper;
        let both = |&(_, c): &(usize, char)| self.table[c as usize] & LOWER != 0;
        self.text[run].char_indices().rev().find(both).map(|(at, c)| start + at + c.len_utf8())
    }

    /// `[UPPER]+[LOWER]*`.
    fn upper_word(&self, start: usize) -> Option<usize> {
        let upper = self.run(start, UPPER);
        (upper > start).then(|| self.run(upper, LOWER))
    }
}
