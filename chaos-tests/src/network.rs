//! The simulated network: delay, loss, duplication, reordering, and blocked edges.

use crate::draw::Draw;
use std::collections::BTreeSet;

/// What the network does to frames now.
#[derive(Clone, Debug)]
pub struct Network {
    /// Least delay in microseconds.
    pub delay: u64,
    /// Added at random; more than the gap between frames reorders them.
    pub jitter: u64,
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that it arrives twice.
    pub duplicate: f64,
    /// Edges on which everything is swallowed, by (from, to).
    pub blocked: BTreeSet<(u64, u64)>,
}

impl Network {
    /// A healthy network.
    #[must_use]
    pub fn new(delay: u64, jitter: u64) -> Network {
        Network { delay, jitter, loss: 0.0, duplicate: 0.0, blocked: BTreeSet::new() }
    }

    /// When the copies of a frame arrive, after now.
    pub fn carry(&self, from: u64, to: u64, draw: &mut Draw, out: &mut Vec<u64>) {
        if self.blocked.contains(&(from, to)) || draw.chance(self.loss) {
            return;
        }
        let copies = 1 + u64::from(draw.chance(self.duplicate));
        out.extend((0..copies).map(|_| self.delay + draw.between(0, self.jitter + 1)));
    }

    /// Cuts a group off from the rest, in both directions or only from the group outwards.
    pub fn cut(&mut self, group: &[u64], all: &[u64], both: bool) {
        for &inside in group {
            for &outside in all.iter().filter(|n| !group.contains(n)) {
                self.blocked.insert((inside, outside));
                if both {
                    self.blocked.insert((outside, inside));
                }
            }
        }
    }
}
