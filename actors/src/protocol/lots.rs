//! Lots: which leaves of a step are whose. Pure functions, so nobody sends assignments.

use planaria_base::NodeId;
use serde::{Deserialize, Serialize};

/// The name of a lot inside its step. Below [`LotId::SINGLE`] it is the place in the deal; from
/// there on it is `SINGLE + leaf`, a one-leaf lot made when a node died. Either way a name means
/// the same leaves for as long as its step is in flight.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct LotId(pub u32);

impl LotId {
    /// The first name of the one-leaf lots.
    pub const SINGLE: u32 = 1 << 24;
}

/// An immutable set of leaves, `start..start + len`, given to one node for one step.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Lot {
    /// Its name.
    pub id: LotId,
    /// Who computes it.
    pub node: NodeId,
    /// The first leaf.
    pub start: u32,
    /// How many leaves; at least one.
    pub len: u32,
}

impl Lot {
    /// The leaves as a range.
    #[must_use]
    pub fn leaves(&self) -> std::ops::Range<u32> {
        self.start..self.start + self.len
    }
}

/// Deals `leaves` to nodes by weight: largest remainders, contiguous, in the order of `weights`.
/// All weights zero counts as all equal. Nodes that get nothing have no lot.
#[must_use]
pub fn deal(leaves: u32, weights: &[(NodeId, u32)]) -> Vec<Lot> {
    let flat = weights.iter().all(|w| w.1 == 0);
    let weight = |i: usize| if flat { 1 } else { u64::from(weights[i].1) };
    let total: u64 = (0..weights.len()).map(weight).sum();
    if total == 0 {
        return Vec::new();
    }
    let share = |i: usize| u64::from(leaves) * weight(i);
    let mut counts: Vec<u32> = (0..weights.len()).map(|i| (share(i) / total) as u32).collect();
    let mut order: Vec<usize> = (0..weights.len()).filter(|&i| weight(i) > 0).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(share(i) % total), i));
    let left = leaves - counts.iter().sum::<u32>();
    for &i in order.iter().cycle().take(left as usize) {
        counts[i] += 1;
    }
    let mut start = 0;
    let mut lots = Vec::new();
    for (i, &len) in counts.iter().enumerate().filter(|c| *c.1 > 0) {
        lots.push(Lot { id: LotId(i as u32), node: weights[i].0, start, len });
        start += len;
    }
    lots
}

/// The lots after a view change: live lots as they are, and each leaf that is in none of them as a
/// lot of its own, given to the taker with the fewest leaves per weight.
#[must_use]
pub fn redeal(leaves: u32, live: &[Lot], takers: &[(NodeId, u32)]) -> Vec<Lot> {
    let mut covered = vec![false; leaves as usize];
    for leaf in live.iter().flat_map(Lot::leaves) {
        covered[leaf as usize] = true;
    }
    let mut lots = live.to_vec();
    let mut loads: Vec<u64> = takers
        .iter()
        .map(|t| live.iter().filter(|l| l.node == t.0).map(|l| u64::from(l.len)).sum())
        .collect();
    for leaf in (0..leaves).filter(|&l| !covered[l as usize]) {
        let cost = |&i: &usize| ((loads[i] + 1) * (1 << 20) / u64::from(takers[i].1.max(1)), i);
        let Some(best) = (0..takers.len()).min_by_key(cost) else { break };
        loads[best] += 1;
        let id = LotId(LotId::SINGLE + leaf);
        lots.push(Lot { id, node: takers[best].0, start: leaf, len: 1 });
    }
    lots
}

/// How a lot's leaves lie to those already added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overlap {
    /// None of them is there: add.
    Disjoint,
    /// All of them are there: acknowledge, do not add.
    Subset,
    /// Some are there: refuse.
    Partial,
}

/// The leaves of one chunk and step that are in the sum, for each emission site.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeafSet {
    words: Vec<u64>,
    leaves: u32,
    count: u32,
    size: u32,
}

impl LeafSet {
    /// An empty set over `leaves` leaves and `sites` sites.
    #[must_use]
    pub fn new(leaves: u32, sites: u8) -> LeafSet {
        let size = leaves * u32::from(sites);
        LeafSet { words: vec![0; size.div_ceil(64) as usize], leaves, count: 0, size }
    }

    /// Every (leaf, site) is in the set.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.count == self.size
    }

    /// How many are in the set.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }

    /// How `start..start + len` of `site` lies to the set; nothing if it is out of range.
    #[must_use]
    pub fn overlap(&self, site: u8, start: u32, len: u32) -> Option<Overlap> {
        let base = u32::from(site) * self.leaves;
        let end = start.checked_add(len).filter(|&e| e <= self.leaves && len > 0)?;
        if base >= self.size {
            return None;
        }
        let bit = |i: u32| self.words[(i / 64) as usize] >> (i % 64) & 1 == 1;
        let there = (base + start..base + end).filter(|&i| bit(i)).count() as u32;
        Some(match there {
            0 => Overlap::Disjoint,
            n if n == len => Overlap::Subset,
            _ => Overlap::Partial,
        })
    }

    /// Puts a range in that [`LeafSet::overlap`] found disjoint.
    pub fn insert(&mut self, site: u8, start: u32, len: u32) {
        let base = u32::from(site) * self.leaves + start;
        for i in base..base + len {
            self.words[(i / 64) as usize] |= 1 << (i % 64);
        }
        self.count += len;
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.words.fill(0);
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn covers_once(leaves: u32, lots: &[Lot]) -> bool {
        let mut hits = vec![0; leaves as usize];
        lots.iter().flat_map(Lot::leaves).for_each(|l| hits[l as usize] += 1);
        hits.iter().all(|&h| h == 1)
    }

    proptest! {
        /// Every leaf is in exactly one lot, before and after any set of nodes dies; live lots
        /// never move.
        #[test]
        fn each_leaf_is_dealt_once(
            leaves in 1u32..200,
            weights in prop::collection::vec(0u32..9, 1..12),
            dead in any::<u16>(),
        ) {
            let weights: Vec<_> =
                weights.iter().enumerate().map(|(i, &w)| (NodeId(i as u64), w)).collect();
            let lots = deal(leaves, &weights);
            prop_assert!(covers_once(leaves, &lots));
            let alive = |n: NodeId| n.0 == 0 || dead >> n.0 & 1 == 0;
            let live: Vec<_> = lots.into_iter().filter(|l| alive(l.node)).collect();
            let takers: Vec<_> = weights.into_iter().filter(|w| alive(w.0)).collect();
            let after = redeal(leaves, &live, &takers);
            prop_assert!(covers_once(leaves, &after));
            prop_assert_eq!(&after[..live.len()], &live[..]);
        }
    }

    /// Weights are honoured to within one leaf.
    #[test]
    fn shares_follow_weights() {
        let lots = deal(10, &[(NodeId(1), 1), (NodeId(2), 4), (NodeId(3), 0)]);
        assert_eq!(lots.iter().map(|l| l.len).collect::<Vec<_>>(), [2, 8]);
    }

    /// The three answers of rule 2, per site.
    #[test]
    fn overlaps_are_told_apart() {
        let mut set = LeafSet::new(100, 2);
        assert_eq!(set.overlap(0, 60, 10), Some(Overlap::Disjoint));
        set.insert(0, 60, 10);
        assert_eq!(set.overlap(0, 62, 3), Some(Overlap::Subset));
        assert_eq!(set.overlap(0, 65, 10), Some(Overlap::Partial));
        assert_eq!(set.overlap(1, 60, 10), Some(Overlap::Disjoint));
        assert_eq!(set.overlap(0, 95, 10), None);
        assert_eq!(set.overlap(2, 0, 1), None);
    }
}
