//! Sides of a split ring: which one is primary, and which one wins when they meet (PROTOCOL.md §4).

use super::log::LogMark;
use super::message::Side;
use super::view::NamedView;
use planaria_base::{NodeId, Step};

/// How another side relates to ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Meeting {
    /// It is us.
    Same,
    /// Its view came after ours: we were evicted.
    Later,
    /// Our view came after its: it was evicted.
    Earlier,
    /// The ring is split, and it wins.
    Wins,
    /// The ring is split, and we win.
    Loses,
}

/// Presents a view as a side.
#[must_use]
pub fn side_of(view: &NamedView, step: Step, log: LogMark) -> Side {
    Side {
        name: view.name,
        ancestry: view.view.ancestry.clone(),
        conductor: view.view.conductor(),
        log,
        step,
        whole: view.view.is_whole(),
        primary: view.view.primary,
    }
}

/// Compares two sides: a primary view that came from the other's view goes on, however far the
/// other got (a paused node wakes in the old view; a deaf one that left alone is not primary); else the longer log, the higher
/// step, the one that can go on, the primary, the later view wins, in this order.
#[must_use]
pub fn meet(ours: &Side, theirs: &Side) -> Meeting {
    if ours.name == theirs.name {
        return Meeting::Same;
    }
    if theirs.primary && theirs.ancestry.contains(&ours.name) {
        return Meeting::Later;
    }
    if ours.primary && ours.ancestry.contains(&theirs.name) {
        return Meeting::Earlier;
    }
    let rank = |s: &Side| (s.log.len, s.step, s.whole, s.primary, s.name);
    if rank(theirs) > rank(ours) { Meeting::Wins } else { Meeting::Loses }
}

/// Whether `members` may call themselves primary, given the last primary view's members (oldest
/// first) that did not leave and are not proved dead.
#[must_use]
pub fn is_primary(electorate: &[NodeId], members: &[NodeId]) -> bool {
    let here = electorate.iter().filter(|n| members.contains(n)).count();
    let half_with_oldest =
        here * 2 == electorate.len() && electorate.first().is_some_and(|n| members.contains(n));
    here * 2 > electorate.len() || half_with_oldest || electorate.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::view::ViewName;
    use planaria_base::{Digest, ViewId};

    fn side(number: u64, step: u64) -> Side {
        let name = ViewName { number: ViewId(number), content: Digest([number as u8; 32]) };
        Side {
            name,
            ancestry: Vec::new(),
            conductor: NodeId(0),
            log: LogMark::default(),
            step: Step(step),
            whole: true,
            primary: true,
        }
    }

    /// A majority, or the half that has the oldest.
    #[test]
    fn majorities_and_halves() {
        let all: Vec<NodeId> = (0..4).map(NodeId).collect();
        assert!(is_primary(&all, &all[1..]));
        assert!(is_primary(&all, &all[..2]));
        assert!(!is_primary(&all, &all[2..]));
        assert!(!is_primary(&all, &all[..1]));
    }

    /// An ancestor yields to a primary descendant, however far it got; strangers compare.
    #[test]
    fn ancestors_yield_and_strangers_compare() {
        let (old, mut new) = (side(3, 9), side(5, 8));
        assert_eq!(meet(&old, &new), Meeting::Loses);
        new.ancestry.push(old.name);
        assert_eq!(meet(&old, &new), Meeting::Later);
        assert_eq!(meet(&new, &old), Meeting::Earlier);
        let (mut a, b) = (side(4, 8), side(6, 8));
        assert_eq!(meet(&a, &b), Meeting::Wins);
        a.log.len = 1;
        assert_eq!(meet(&a, &b), Meeting::Loses);
    }
}
