//! From a parsed tree to settings: every key checked against the table, all findings at once.
//!
//! `legacy` first rewrites old names into today's, then `walker` goes through the table and the
//! tree side by side: unknown keys, types, ranges, what is not built, defaults.

mod legacy;
mod settings;
mod value;
mod walker;

pub use settings::{Origin, Setting, Settings};

use crate::diagnostics::Diagnostics;
use crate::json::{Node, SourceId};

/// Checks a whole tree; nodes that do not come from `file` are overrides.
pub(crate) fn check(mut root: Node, file: SourceId, out: &mut Diagnostics) -> Settings {
    let renames = legacy::translate(&mut root, out);
    walker::walk(&root, file, renames, out)
}
