//! Finds each parameter's tensor by its names.

use super::{ImportError, LISTED};
use crate::block::Model;
use planaria_base::tensor_source::TensorSource;
use std::collections::BTreeSet;

/// Where a model's parameters are.
pub(super) struct Found {
    /// By parameter id.
    pub(super) names: Vec<String>,
    /// A head of its own, beside a tied embedding.
    pub(super) tied_head: Option<String>,
    /// Buffers without parameters.
    pub(super) ignored: Vec<String>,
}

const HEAD: &str = "lm_head.weight";

/// Finds every parameter, and accounts for every tensor.
pub(super) fn find(
    model: &Model,
    tied: bool,
    source: &dyn TensorSource,
) -> Result<Found, ImportError> {
    let all: BTreeSet<&str> = source.names().into_iter().collect();
    let mut used = BTreeSet::new();
    let (mut names, mut missing) = (Vec::new(), Vec::new());
    for (i, param) in model.params.iter().enumerate() {
        let mut present: Vec<String> = candidates(&param.name);
        present.retain(|name| all.contains(name.as_str()));
        // The embedding comes first; a tied model's file may hold it under the head's name alone.
        if present.is_empty() && i == 0 && tied && all.contains(HEAD) {
            present.push(HEAD.to_owned());
        }
        if let [first, second, ..] = &present[..] {
            return Err(ImportError::Twice { first: first.clone(), second: second.clone() });
        }
        match present.pop() {
            Some(name) => {
                used.insert(name.clone());
                names.push(name);
            }
            None => missing.push(param.name.clone()),
        }
    }
    if !missing.is_empty() {
        let (count, total) = (missing.len(), model.params.len());
        missing.truncate(LISTED);
        return Err(ImportError::Missing { names: missing, missing: count, total });
    }
    let tied_head = (tied && all.contains(HEAD) && !used.contains(HEAD)).then(|| HEAD.to_owned());
    used.extend(tied_head.clone());
    // An optimizer's state of a parameter lies beside it in a checkpoint.
    let is_state = |name: &str| name.rsplit_once('.').is_some_and(|(of, _)| used.contains(of));
    let rest = all.iter().filter(|name| !used.contains(**name) && !is_state(name));
    let rest = rest.map(|name| (*name).to_owned());
    let (ignored, mut extra): (Vec<String>, Vec<String>) = rest.partition(|name| is_buffer(name));
    if extra.is_empty() {
        return Ok(Found { names, tied_head, ignored });
    }
    let count = extra.len();
    extra.truncate(LISTED);
    Err(ImportError::Extra { names: extra, extra: count })
}

/// The names that a parameter may have: with and without its first part, norms in the old words.
fn candidates(name: &str) -> Vec<String> {
    let short = ["transformer.", "model."].iter().find_map(|prefix| name.strip_prefix(prefix));
    let mut all: Vec<String> =
        [Some(name), short].into_iter().flatten().map(str::to_owned).collect();
    if name.contains("ln_") || name.contains("norm") {
        let old = |n: &String| n.replace(".weight", ".gamma").replace(".bias", ".beta");
        all.extend(all.iter().map(old).collect::<Vec<_>>());
    }
    all
}

/// Buffers that older versions of transformers saved.
fn is_buffer(name: &str) -> bool {
    [".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq"].iter().any(|end| name.ends_with(end))
}
