//! Findings as people and programs read them.

use super::{Diagnostic, Diagnostics, Severity};
use crate::json::Sources;
use serde_json::{Value, json};
use std::fmt::Write;

/// Characters of a source line that are shown at most.
const MAX_LINE: usize = 160;

/// Findings together with the texts they point into.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The texts.
    pub sources: Sources,
    /// The findings, by place.
    pub diagnostics: Diagnostics,
}

impl Report {
    /// Whether anything keeps the run from starting.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.diagnostics.has_errors()
    }

    /// As the Rust compiler shows its findings, without colours; ends with a line that counts them.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for diagnostic in self.diagnostics.iter() {
            text.push_str(&self.one(diagnostic));
            text.push('\n');
        }
        text + &self.counts()
    }

    /// A list of objects with the keys severity, rule, path, file, line, column, message, fix and
    /// did_you_mean; the last six are null where they do not apply.
    #[must_use]
    pub fn to_json(&self) -> Value {
        self.diagnostics.iter().map(|d| self.one_json(d)).collect()
    }

    fn one(&self, d: &Diagnostic) -> String {
        let mut text = format!("{}[{}]: {}\n", d.severity.word(), d.rule, d.message);
        let mut gutter = 1;
        if let Some(range) = d.range {
            let source = self.sources.source(range.source);
            let at = source.position(range.start);
            gutter = at.line.to_string().len();
            let column = at.column as usize - 1;
            let skipped = if column + 20 > MAX_LINE { column - MAX_LINE / 2 } else { 0 };
            let line = source.line_of(range.start).chars().skip(skipped);
            let line: String = line.take(MAX_LINE).collect();
            let shown = line.chars().count();
            let before = (column - skipped).min(shown);
            let marked = source.text.get(range.start as usize..range.end as usize).unwrap_or("");
            let marked = marked.lines().next().unwrap_or("").chars().count();
            let carets = marked.min(shown - before).max(1);
            let pad: String = line.chars().take(before).map(blank).collect();
            let empty = " ".repeat(gutter);
            let _ = writeln!(text, "{empty}--> {}:{}:{}", source.name, at.line, at.column);
            let _ = writeln!(text, "{empty} |\n{} | {}", at.line, line.trim_end());
            let _ = writeln!(text, "{empty} | {pad}{}", "^".repeat(carets));
        }
        let empty = " ".repeat(gutter);
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "{empty} = {name}: {value}");
        };
        if !d.path.is_empty() {
            line("key", &d.path);
        }
        if let Some(name) = &d.did_you_mean {
            line("did you mean", name);
        }
        if let Some(fix) = &d.fix {
            line("fix", fix);
        }
        text
    }

    fn counts(&self) -> String {
        let part = |severity: Severity| {
            let n = self.diagnostics.count(severity);
            let s = if n == 1 { "" } else { "s" };
            (n > 0).then(|| format!("{n} {}{s}", severity.word()))
        };
        let parts: Vec<String> = [Severity::Error, Severity::Warning, Severity::Note]
            .into_iter()
            .filter_map(part)
            .collect();
        if parts.is_empty() { "no findings\n".to_owned() } else { parts.join(", ") + "\n" }
    }

    fn one_json(&self, d: &Diagnostic) -> Value {
        let place = d.range.map(|range| {
            let source = self.sources.source(range.source);
            (source.name.clone(), source.position(range.start))
        });
        json!({
            "severity": d.severity,
            "rule": d.rule,
            "path": d.path,
            "file": place.as_ref().map(|(name, _)| name),
            "line": place.as_ref().map(|(_, at)| at.line),
            "column": place.as_ref().map(|(_, at)| at.column),
            "message": d.message,
            "fix": d.fix,
            "did_you_mean": d.did_you_mean,
        })
    }
}

/// A tab stays a tab, so that the carets stand under what they mark.
fn blank(c: char) -> char {
    if c == '\t' { '\t' } else { ' ' }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::TextRange;

    #[test]
    fn a_finding_is_shown_like_the_compilers() {
        let mut report = Report::default();
        let source = report.sources.add("run.json", "{\n  \"stag\": 2\n}\n");
        let range = TextRange { source, start: 4, end: 10 };
        report.diagnostics.push(
            Diagnostic::error("unknown-key", "stag", "there is no key `stag` here")
                .at(range)
                .nearest_of("stag", ["stage"]),
        );
        let text = "error[unknown-key]: there is no key `stag` here\n \
                    --> run.json:2:3\n  |\n2 |   \"stag\": 2\n  |   ^^^^^^\n  \
                    = key: stag\n  = did you mean: stage\n\n1 error\n";
        assert_eq!(report.to_text(), text);
        let json = report.to_json();
        assert_eq!(json[0]["line"], 2);
        assert_eq!(json[0]["did_you_mean"], "stage");
        assert_eq!(json[0]["fix"], Value::Null);
    }
}
