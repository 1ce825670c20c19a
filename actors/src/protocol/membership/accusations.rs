//! Accusations as the acting conductor weighs them: two observers evict.

use crate::protocol::message::Evidence;
use crate::protocol::spec::Timing;
use crate::protocol::view::Member;
use planaria_base::NodeId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug)]
struct Accusation {
    first: u64,
    last: u64,
    evidence: Evidence,
}

/// Who accuses whom, since when.
#[derive(Clone, Debug, Default)]
pub struct Accusations {
    by_target: BTreeMap<NodeId, BTreeMap<NodeId, Accusation>>,
    /// The first evidence since the last view, for the report.
    pub first_at: Option<u64>,
}

/// What a verdict depends on beside the accusations.
#[derive(Clone, Copy)]
pub struct Jury<'a> {
    /// Who judges.
    pub me: NodeId,
    /// The view's members, oldest first.
    pub members: &'a [Member],
    /// Now.
    pub now: u64,
    /// Times.
    pub timing: &'a Timing,
}

/// An accusation that is not repeated lapses after this many probe times.
const LAPSE_PROBES: u64 = 6;

impl Accusations {
    /// Takes an accusation.
    pub fn accuse(&mut self, observer: NodeId, target: NodeId, evidence: Evidence, now: u64) {
        let known = self.by_target.entry(target).or_default();
        let fresh = Accusation { first: now, last: now, evidence };
        let entry = known.entry(observer).or_insert(fresh);
        entry.last = now;
        entry.evidence = entry.evidence.max(evidence);
        self.first_at.get_or_insert(now);
    }

    /// The observer takes it back.
    pub fn acquit(&mut self, observer: NodeId, target: NodeId) {
        if let Some(known) = self.by_target.get_mut(&target) {
            known.remove(&observer);
        }
    }

    /// In a new view, only accusations between its members stand.
    pub fn install(&mut self, members: &[Member]) {
        let names: BTreeSet<NodeId> = members.iter().map(|m| m.node).collect();
        self.by_target.retain(|target, known| {
            known.retain(|observer, _| names.contains(observer));
            names.contains(target) && !known.is_empty()
        });
        self.first_at = None;
    }

    /// Knows nothing any more.
    pub fn clear(&mut self) {
        *self = Accusations::default();
    }

    /// Accusations in the table.
    #[must_use]
    pub fn table_sizes(&self) -> usize {
        self.by_target.values().map(BTreeMap::len).sum()
    }

    /// Lets accusations lapse that nobody repeats.
    pub fn lapse(&mut self, now: u64, timing: &Timing) {
        let stands = |a: &Accusation| {
            a.evidence >= Evidence::Gone || now <= a.last + LAPSE_PROBES * timing.probe
        };
        self.by_target.retain(|_, known| {
            known.retain(|_, a| stands(a));
            !known.is_empty()
        });
        if self.by_target.is_empty() {
            self.first_at = None;
        }
    }

    /// Who is to be evicted, and on what evidence.
    #[must_use]
    pub fn condemned(&self, jury: Jury<'_>) -> BTreeMap<NodeId, Evidence> {
        let mut out = BTreeMap::new();
        if self.by_target.is_empty() {
            return out;
        }
        let mine = |n: NodeId| self.by_target.get(&n).is_some_and(|k| k.contains_key(&jury.me));
        let alone = jury.members.iter().all(|m| m.node == jury.me || mine(m.node));
        for (&target, known) in self.by_target.iter().filter(|t| *t.0 != jury.me) {
            let proof = known.values().map(|a| a.evidence).max();
            if let Some(evidence) = proof.filter(|&e| e >= Evidence::Gone || known.len() >= 2) {
                out.insert(target, evidence);
            } else if let Some(evidence) = alone.then(|| sole(known, jury)).flatten() {
                out.insert(target, evidence);
            }
        }
        for (younger, evidence) in self.broken_edges(jury) {
            out.entry(younger).or_insert(evidence);
        }
        out
    }

    /// An edge broken for two seconds, both ends reachable by others: the younger end.
    fn broken_edges(&self, jury: Jury<'_>) -> Vec<(NodeId, Evidence)> {
        let age = |n: NodeId| jury.members.iter().position(|m| m.node == n);
        let mut out = Vec::new();
        for (&target, known) in &self.by_target {
            let [(&observer, accusation)] = known.iter().collect::<Vec<_>>()[..] else { continue };
            let broken = jury.now >= accusation.first + jury.timing.edge;
            let (Some(a), Some(b)) = (age(observer), age(target)) else { continue };
            let younger = if a > b { observer } else { target };
            if broken && jury.members.len() > 2 && younger != jury.me {
                out.push((younger, accusation.evidence));
            }
        }
        out
    }
}

/// The word of a node that accuses everybody else counts alone: at once for a closed link, after
/// a longer silence otherwise.
fn sole(known: &BTreeMap<NodeId, Accusation>, jury: Jury<'_>) -> Option<Evidence> {
    let mine = known.get(&jury.me)?;
    let waited = jury.now >= mine.first + jury.timing.alone;
    (mine.evidence == Evidence::Closed || waited).then_some(mine.evidence)
}
