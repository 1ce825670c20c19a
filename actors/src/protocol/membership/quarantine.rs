//! Flapping nodes stay out for a while: the second eviction within a minute costs a second, each
//! further one twice as much.

use planaria_base::NodeId;
use std::collections::BTreeMap;

/// A node with no eviction for this long is forgiven, in microseconds.
const FORGIVEN_AFTER: u64 = 60_000_000;
/// The longest time out: base times two to this.
const DOUBLINGS: u32 = 6;

#[derive(Clone, Copy, Debug)]
struct Strikes {
    count: u32,
    last: u64,
}

/// Evictions in living memory. Each member keeps its own, from the views it installs.
#[derive(Clone, Debug, Default)]
pub struct Quarantine {
    strikes: BTreeMap<NodeId, Strikes>,
}

impl Quarantine {
    /// A node was evicted.
    pub fn strike(&mut self, node: NodeId, now: u64) {
        let entry = self.strikes.entry(node).or_insert(Strikes { count: 0, last: now });
        *entry = Strikes { count: entry.count + 1, last: now };
    }

    /// How long this node must still wait; zero if it may join.
    #[must_use]
    pub fn remaining(&self, node: NodeId, now: u64, base: u64) -> u64 {
        let Some(strikes) = self.strikes.get(&node).filter(|s| s.count >= 2) else { return 0 };
        let out = base << (strikes.count - 2).min(DOUBLINGS);
        (strikes.last + out).saturating_sub(now)
    }

    /// Forgets the forgiven.
    pub fn prune(&mut self, now: u64) {
        self.strikes.retain(|_, s| now < s.last + FORGIVEN_AFTER);
    }

    /// Nodes it remembers.
    #[must_use]
    pub fn table_sizes(&self) -> usize {
        self.strikes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first eviction is free, then the time out doubles, then all is forgiven.
    #[test]
    fn the_time_out_doubles() {
        let mut q = Quarantine::default();
        let node = NodeId(3);
        q.strike(node, 10);
        assert_eq!(q.remaining(node, 10, 1000), 0);
        q.strike(node, 20);
        assert_eq!(q.remaining(node, 20, 1000), 1000);
        q.strike(node, 30);
        assert_eq!(q.remaining(node, 130, 1000), 1900);
        q.prune(30 + FORGIVEN_AFTER);
        assert_eq!(q.table_sizes(), 0);
    }
}
