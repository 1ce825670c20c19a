//! One node's own eyes: heartbeats of its successors, closed links, unanswered requests, probes.

use crate::protocol::effect::Post;
use crate::protocol::message::{Evidence, Message};
use crate::protocol::spec::{Limits, Timing};
use crate::protocol::view::Member;
use planaria_base::NodeId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    heard_at: u64,
    waiting_since: Option<u64>,
    probed_at: Option<u64>,
    accused_at: Option<u64>,
    closed: bool,
    progress: u64,
    progress_at: u64,
    busy: bool,
}

/// What this node knows of the others' lives at first hand.
#[derive(Clone, Debug, Default)]
pub struct Detector {
    peers: BTreeMap<NodeId, Peer>,
    watched: Vec<NodeId>,
    watchers: Vec<NodeId>,
    /// Peers with a probe or an accusation under way.
    active: BTreeSet<NodeId>,
    last_tick: u64,
    last_beat: u64,
}

impl Detector {
    /// A new view: whom to watch, and a clean slate for newcomers.
    pub fn install(&mut self, members: &[Member], me: NodeId, limits: Limits, now: u64) {
        let old = std::mem::take(&mut self.peers);
        let fresh = Peer { heard_at: now, progress_at: now, ..Peer::default() };
        for node in members.iter().map(|m| m.node).filter(|&n| n != me) {
            let mut peer = old.get(&node).copied().unwrap_or(fresh);
            peer.waiting_since = None;
            self.peers.insert(node, peer);
        }
        self.active.retain(|n| self.peers.contains_key(n));
        let mut ring: Vec<NodeId> = members.iter().map(|m| m.node).collect();
        ring.sort_unstable();
        let at = ring.iter().position(|&n| n == me).unwrap_or(0);
        let count = limits.watched.min(ring.len().saturating_sub(1));
        self.watched = (1..=count).map(|k| ring[(at + k) % ring.len()]).collect();
        self.watchers = (1..=count).map(|k| ring[(at + ring.len() - k) % ring.len()]).collect();
        for node in &self.watched {
            self.peers.entry(*node).and_modify(|p| p.heard_at = p.heard_at.max(now));
        }
    }

    /// Knows nobody any more.
    pub fn clear(&mut self) {
        let (last_tick, last_beat) = (self.last_tick, self.last_beat);
        *self = Detector { last_tick, last_beat, ..Detector::default() };
    }

    /// Whether this node itself accuses `node` now.
    #[must_use]
    pub fn suspects(&self, node: NodeId) -> bool {
        self.peers.get(&node).is_some_and(|p| p.accused_at.is_some())
    }

    /// Peers it knows.
    #[must_use]
    pub fn table_sizes(&self) -> usize {
        self.peers.len()
    }

    /// A frame arrived. A heartbeat shows life; anything else also shows that we are heard.
    pub fn on_frame(&mut self, from: NodeId, message: &Message, now: u64) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        peer.heard_at = now;
        match *message {
            Message::Heartbeat { progress, busy } => {
                if progress != peer.progress || busy != peer.busy {
                    (peer.progress, peer.busy, peer.progress_at) = (progress, busy, now);
                }
            }
            Message::Probe => {}
            _ => {
                peer.waiting_since = None;
                peer.probed_at = None;
                peer.accused_at = None;
                peer.closed = false;
                self.active.remove(&from);
            }
        }
    }

    /// We wait for an answer from this peer.
    pub fn expect(&mut self, node: NodeId, now: u64) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.waiting_since.get_or_insert(now);
            self.active.insert(node);
        }
    }

    /// A bulk link closed: suspicion, one probe.
    pub fn on_link_closed(&mut self, node: NodeId, now: u64, post: &mut Post) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.closed = true;
            self.probe(node, now, post);
        }
    }

    /// Looks for itself, because somebody accuses this peer.
    pub fn check(&mut self, node: NodeId, now: u64, post: &mut Post) {
        let idle = |p: &Peer| p.probed_at.is_none() && p.accused_at.is_none();
        if self.peers.get(&node).is_some_and(idle) {
            self.probe(node, now, post);
        }
    }

    fn probe(&mut self, node: NodeId, now: u64, post: &mut Post) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.probed_at = Some(now);
            self.active.insert(node);
            post.send(node, Message::Probe);
        }
    }

    /// Beats, and returns what this node accuses whom of, first and every half second again.
    pub fn tick(
        &mut self,
        now: u64,
        beat: Message,
        timing: &Timing,
        post: &mut Post,
    ) -> Vec<(NodeId, Evidence)> {
        if now >= self.last_beat + timing.heartbeat {
            self.last_beat = now;
            post.send_all(self.watchers.iter().copied(), &beat);
        }
        if self.last_tick != 0 && now > self.last_tick + timing.own_gap {
            self.forgive(now, post);
        }
        self.last_tick = now;
        for node in self.watched.clone() {
            let peer = self.peers.get(&node).copied().unwrap_or_default();
            let silent = now > peer.heard_at + timing.suspect;
            if silent && peer.probed_at.is_none() && peer.accused_at.is_none() {
                self.probe(node, now, post);
            }
        }
        let mut accused = self.stuck(now, timing);
        for node in self.active.clone() {
            accused.extend(self.judge(node, now, timing, post).map(|e| (node, e)));
        }
        accused
    }

    /// We were not running: what expired meanwhile says nothing of others. Probe first.
    fn forgive(&mut self, now: u64, post: &mut Post) {
        for peer in self.peers.values_mut() {
            peer.heard_at = now;
            peer.progress_at = now;
            peer.accused_at = None;
            peer.waiting_since = None;
        }
        for node in self.active.clone() {
            self.probe(node, now, post);
        }
    }

    fn stuck(&self, now: u64, timing: &Timing) -> Vec<(NodeId, Evidence)> {
        let stuck = |n: &NodeId| {
            self.peers.get(n).is_some_and(|p| p.busy && now > p.progress_at + timing.stuck)
        };
        self.watched.iter().filter(|n| stuck(n)).map(|&n| (n, Evidence::Stuck)).collect()
    }

    fn judge(
        &mut self,
        node: NodeId,
        now: u64,
        timing: &Timing,
        post: &mut Post,
    ) -> Option<Evidence> {
        let peer = self.peers.get_mut(&node)?;
        let again = peer.accused_at.is_some();
        let patience = if again { 2 * timing.probe } else { timing.probe };
        match peer.probed_at {
            Some(at) if now >= at + patience => {
                peer.accused_at.get_or_insert(now);
                let evidence = if peer.closed { Evidence::Closed } else { Evidence::Silent };
                self.probe(node, now, post);
                Some(evidence)
            }
            Some(_) => None,
            None => {
                let waits = peer.waiting_since.is_some_and(|at| now > at + timing.suspect);
                if waits {
                    self.probe(node, now, post);
                } else if peer.waiting_since.is_none() && !again {
                    self.active.remove(&node);
                }
                None
            }
        }
    }
}
