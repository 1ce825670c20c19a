//! Placement: which nodes hold which chunk. A pure function of sizes, nodes and what is held now.
//!
//! A node's share of the bytes follows its capacity; the copies of a chunk lie on different hosts
//! where there are enough; a copy that may stay where it is, stays.

use planaria_base::NodeId;
use planaria_base::rng::CounterRng;

/// A node that may hold chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    /// The node.
    pub node: NodeId,
    /// The machine it runs on.
    pub host: u64,
    /// How much it holds, relative to others; at least 1.
    pub capacity: u64,
}

/// Chooses `replicas` holders for each chunk (fewer if there are fewer nodes), the owner first.
///
/// `bytes` and `current` are per chunk; `current` lists who holds it now, owner first, and may name
/// nodes that are gone.
///
/// # Determinism
/// Depends on nothing but its arguments, and on the order of `nodes` only for ties.
#[must_use]
pub fn place(
    bytes: &[u64],
    nodes: &[Seat],
    replicas: usize,
    current: &[Vec<NodeId>],
) -> Vec<Vec<NodeId>> {
    if nodes.is_empty() {
        return vec![Vec::new(); bytes.len()];
    }
    let wanted = replicas.clamp(1, nodes.len());
    let mut placer = Placer::new(nodes, bytes, wanted);
    let mut chosen: Vec<Vec<usize>> =
        bytes.iter().zip(current).map(|(&size, held)| placer.keep(size, held)).collect();
    for (chunk, holders) in chosen.iter_mut().enumerate() {
        placer.fill(chunk as u64, bytes[chunk], holders);
    }
    let mut owned = vec![0u64; nodes.len()];
    for (chunk, holders) in chosen.iter_mut().enumerate() {
        placer.choose_owner(&mut owned, bytes[chunk], holders, current[chunk].first());
    }
    chosen.into_iter().map(|h| h.into_iter().map(|i| nodes[i].node).collect()).collect()
}

struct Placer<'a> {
    nodes: &'a [Seat],
    load: Vec<u64>,
    quota: Vec<u64>,
    owner_quota: Vec<u64>,
    wanted: usize,
    hosts: usize,
}

impl<'a> Placer<'a> {
    fn new(nodes: &'a [Seat], bytes: &[u64], wanted: usize) -> Placer<'a> {
        let capacity: u128 = nodes.iter().map(|n| u128::from(n.capacity.max(1))).sum();
        let total: u128 = bytes.iter().map(|&b| u128::from(b)).sum();
        let largest = bytes.iter().copied().max().unwrap_or(0);
        // Whole chunks, rounded up: a share that ends inside a chunk may hold that chunk.
        let share = |n: &Seat, of: u128| {
            let exact = (of * u128::from(n.capacity.max(1))).div_ceil(capacity) as u64;
            exact.div_ceil(largest.max(1)).max(1) * largest
        };
        let quota = nodes.iter().map(|n| share(n, total * wanted as u128)).collect();
        let owner_quota = nodes.iter().map(|n| share(n, total)).collect();
        let mut hosts: Vec<u64> = nodes.iter().map(|n| n.host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        Placer { nodes, load: vec![0; nodes.len()], quota, owner_quota, wanted, hosts: hosts.len() }
    }

    /// Holders that may stay: within their quota, and on different hosts if that can be had.
    fn keep(&mut self, size: u64, held: &[NodeId]) -> Vec<usize> {
        let mut kept: Vec<usize> = Vec::new();
        for node in held {
            let Some(i) = self.nodes.iter().position(|n| n.node == *node) else { continue };
            let room = self.load[i] + size <= self.quota[i];
            if kept.len() < self.wanted && room && !kept.contains(&i) && self.apart(&kept, i) {
                self.load[i] += size;
                kept.push(i);
            }
        }
        kept
    }

    /// Node `i` shares no host with `kept`, or must because there are too few hosts.
    fn apart(&self, kept: &[usize], i: usize) -> bool {
        self.hosts < self.wanted || kept.iter().all(|&k| self.nodes[k].host != self.nodes[i].host)
    }

    fn fill(&mut self, chunk: u64, size: u64, holders: &mut Vec<usize>) {
        while holders.len() < self.wanted {
            let free = (0..self.nodes.len()).filter(|i| !holders.contains(i));
            let same_host =
                |i: usize| holders.iter().any(|&h| self.nodes[h].host == self.nodes[i].host);
            let relative = |i: usize| {
                u128::from(self.load[i] + size) * (1 << 32)
                    / u128::from(self.nodes[i].capacity.max(1))
            };
            let tie = |i: usize| CounterRng::new(chunk).fork(self.nodes[i].node.0).at(0);
            let Some(best) = free.min_by_key(|&i| (same_host(i), relative(i), tie(i))) else {
                break;
            };
            self.load[best] += size;
            holders.push(best);
        }
    }

    /// Puts the owner first: the present one while within its quota, else the least burdened.
    fn choose_owner(
        &self,
        owned: &mut [u64],
        size: u64,
        holders: &mut [usize],
        now: Option<&NodeId>,
    ) {
        let stays = |i: &usize| {
            Some(&self.nodes[*i].node) == now && owned[*i] + size <= self.owner_quota[*i]
        };
        let burden = |i: &usize| {
            u128::from(owned[*i] + size) * (1 << 32) / u128::from(self.nodes[*i].capacity.max(1))
        };
        let place =
            (0..holders.len()).min_by_key(|&p| (!stays(&holders[p]), burden(&holders[p]), p));
        if let Some(place) = place {
            holders[..=place].rotate_right(1);
            owned[holders[0]] += size;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seats(n: u64, hosts: u64) -> Vec<Seat> {
        (0..n).map(|i| Seat { node: NodeId(i), host: i % hosts, capacity: 1 }).collect()
    }

    proptest! {
        /// Every chunk has its replicas, on different nodes, and on different hosts if there are
        /// enough; a node that leaves moves only what it held.
        #[test]
        fn copies_lie_apart_and_stay(
            n in 1u64..9, hosts in 1u64..5, chunks in 1usize..30, replicas in 1usize..4,
            gone in 0u64..9,
        ) {
            let bytes = vec![100; chunks];
            let none = vec![Vec::new(); chunks];
            let all = seats(n, hosts);
            let first = place(&bytes, &all, replicas, &none);
            let kinds = hosts.min(n) as usize;
            for holders in &first {
                prop_assert_eq!(holders.len(), replicas.min(n as usize));
                let mut on: Vec<u64> = holders.iter().map(|h| h.0 % hosts).collect();
                on.sort_unstable();
                on.dedup();
                prop_assert_eq!(on.len(), holders.len().min(kinds));
            }
            prop_assert_eq!(&place(&bytes, &all, replicas, &first), &first);
            let rest: Vec<Seat> = all.into_iter().filter(|s| s.node.0 != gone).collect();
            if !rest.is_empty() && kinds >= replicas && rest.len() as u64 > hosts {
                let after = place(&bytes, &rest, replicas, &first);
                for (was, is) in first.iter().zip(&after) {
                    for stays in was.iter().filter(|h| h.0 != gone) {
                        prop_assert!(is.contains(stays), "{was:?} became {is:?} without {gone}");
                    }
                }
            }
        }
    }

    /// Bytes follow capacity: a node twice as large holds about twice as much.
    #[test]
    fn shares_follow_capacity() {
        let mut nodes = seats(3, 3);
        nodes[0].capacity = 2;
        let placed = place(&[10; 80], &nodes, 1, &vec![Vec::new(); 80]);
        let held = |n| placed.iter().filter(|h| h[0] == NodeId(n)).count();
        assert_eq!((held(0), held(1), held(2)), (40, 20, 20));
    }
}
