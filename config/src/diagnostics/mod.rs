//! What is wrong with a configuration, all of it at once, and how to put it right.

mod render;
mod suggest;

pub use render::Report;
pub use suggest::nearest;

use crate::json::TextRange;
use serde::Serialize;

/// Findings of one configuration at most; a file with more is not a configuration.
pub const MAX_DIAGNOSTICS: usize = 500;

/// Bytes of a message or a path at most; a name in a hostile file may be megabytes long.
const MAX_TEXT: usize = 2000;

/// How bad a finding is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The run does not start.
    Error,
    /// The run starts, but not quite as the file says.
    Warning,
    /// Worth knowing.
    Note,
}

impl Severity {
    /// The word that people see.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        }
    }
}

/// One finding.
#[derive(Clone, PartialEq, Debug)]
pub struct Diagnostic {
    /// How bad it is.
    pub severity: Severity,
    /// The rule that found it, a stable name: `unknown-key`, `not-built`.
    pub rule: &'static str,
    /// The key it is about, dotted; empty for the whole file.
    pub path: String,
    /// What is the matter, one sentence.
    pub message: String,
    /// Where it stands; `None` for something that is missing.
    pub range: Option<TextRange>,
    /// What to do.
    pub fix: Option<String>,
    /// The known name nearest to the one given.
    pub did_you_mean: Option<String>,
}

impl Diagnostic {
    fn new(
        severity: Severity,
        rule: &'static str,
        path: impl Into<String>,
        message: impl Into<String>,
    ) -> Diagnostic {
        let (path, message) = (clipped(path.into()), clipped(message.into()));
        Diagnostic { severity, rule, path, message, range: None, fix: None, did_you_mean: None }
    }

    /// An error.
    pub fn error(
        rule: &'static str,
        path: impl Into<String>,
        message: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic::new(Severity::Error, rule, path, message)
    }

    /// A warning.
    pub fn warning(
        rule: &'static str,
        path: impl Into<String>,
        message: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic::new(Severity::Warning, rule, path, message)
    }

    /// A note.
    pub fn note(
        rule: &'static str,
        path: impl Into<String>,
        message: impl Into<String>,
    ) -> Diagnostic {
        Diagnostic::new(Severity::Note, rule, path, message)
    }

    /// The same, with its place.
    #[must_use]
    pub fn at(mut self, range: impl Into<Option<TextRange>>) -> Diagnostic {
        self.range = range.into();
        self
    }

    /// The same, with what to do.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Diagnostic {
        self.fix = Some(fix.into());
        self
    }

    /// The same, with the nearest of the known names, if one is near.
    #[must_use]
    pub fn nearest_of<'a>(
        mut self,
        given: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Diagnostic {
        self.did_you_mean = nearest(given, known).map(str::to_owned);
        self
    }
}

/// All findings of one configuration, in the order in which they were made.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Diagnostics {
    list: Vec<Diagnostic>,
}

impl Diagnostics {
    /// Adds one; those beyond [`MAX_DIAGNOSTICS`] are dropped.
    pub fn push(&mut self, diagnostic: Diagnostic) {
        if !self.is_full() {
            self.list.push(diagnostic);
        }
    }

    /// Whether further findings are dropped, so that looking for them is in vain.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.list.len() >= MAX_DIAGNOSTICS
    }

    /// In the order in which they were made.
    pub fn iter(&self) -> impl Iterator<Item = &Diagnostic> {
        self.list.iter()
    }

    /// Whether any of them keeps the run from starting.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.count(Severity::Error) > 0
    }

    /// How many of this severity.
    #[must_use]
    pub fn count(&self, severity: Severity) -> usize {
        self.list.iter().filter(|d| d.severity == severity).count()
    }

    /// Sorts by place: the file first, then the overrides; what is missing comes last.
    pub fn sort(&mut self) {
        self.list.sort_by_key(|d| (d.range.is_none(), d.range.map(|r| (r.source, r.start))));
    }
}

/// The text, cut off at [`MAX_TEXT`].
fn clipped(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
        text.shrink_to_fit();
    }
    text
}
