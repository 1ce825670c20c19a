//! Making faults happen.

use super::{CLOSE_DELAY, Item, World};
use crate::faults::{Fault, Flip};
use crate::shell::{Load, Shell};
use planaria_actors::protocol::message::Request;
use planaria_actors::protocol::{Event, Node};
use planaria_base::NodeId;

/// Flips come at least this far apart.
const FLIP_GAP: u64 = 2_000_000;

impl World {
    /// Makes a fault happen now.
    pub fn fault(&mut self, fault: Fault) {
        self.line(0, || format!("{fault:?}"));
        match fault {
            Fault::Kill(id) => self.kill(id),
            Fault::Restart(id) => {
                if !self.is_alive(id) {
                    self.join(id);
                }
            }
            Fault::Pause(id, time) => {
                if self.is_alive(id) && self.may_lose(id) {
                    self.slots[id as usize].paused = true;
                    self.schedule(self.now + time, Item::Fault(Fault::Resume(id)));
                }
            }
            Fault::Resume(id) => self.resume(id),
            Fault::Cut(group, both) => {
                let all: Vec<u64> = (0..self.slots.len() as u64).collect();
                self.network.cut(&group, &all, both);
            }
            Fault::Lossy(loss, duplicate) => {
                self.network.loss = loss as f64 / 1000.0;
                self.network.duplicate = duplicate as f64 / 1000.0;
            }
            Fault::HealNetwork => {
                self.network.blocked.clear();
                (self.network.loss, self.network.duplicate) = (0.0, 0.0);
            }
            Fault::Flip(id, what) => self.flip(id, what),
            Fault::Wedge(id) => self.slots[id as usize].wedged = true,
            Fault::Poison(step, leaf) => self.poison(step, leaf),
            Fault::Replay(count) => self.replay(count),
            Fault::Leave(id) => self.ask(Request::Leave(NodeId(id))),
            Fault::ScaleRate(_) => self.ask(Request::ScaleRate(0.5f32.to_bits())),
            Fault::CloseLink(a, b) => {
                self.schedule(self.now + CLOSE_DELAY, Item::Closed(a, NodeId(b)));
                self.schedule(self.now + CLOSE_DELAY, Item::Closed(b, NodeId(a)));
            }
        }
    }

    /// One flip at a time: more than R - 1 wrong copies of a chunk are beyond what R can show.
    fn flip(&mut self, id: u64, what: Flip) {
        let pending = self.slots.iter().any(|s| s.flip.is_some());
        if !pending && self.now >= self.last_flip + FLIP_GAP {
            self.last_flip = self.now;
            self.slots[id as usize].flip = Some(what);
        }
    }

    fn replay(&mut self, count: u64) {
        for _ in 0..count {
            let at = self.draw.between(0, self.recorded.len() as u64) as usize;
            if let Some((to, frame, load)) = self.recorded.get(at).cloned() {
                self.schedule(self.now + 1, Item::Arrive(to, frame, load));
            }
        }
    }

    /// A person asks at whichever member runs.
    fn ask(&mut self, request: Request) {
        let member = self.running().find(|(_, n)| n.view().is_some()).map(|(id, _)| id);
        if let Some(id) = member {
            self.handle(id, Event::Ask(request), Load::None);
        }
    }

    /// Some other running member of the latest view remains: the ring as a whole is not taken
    /// away.
    fn may_lose(&self, id: u64) -> bool {
        let alive = self.slots.iter().filter_map(|s| s.node.as_ref());
        let Some(latest) = alive.filter_map(Node::view).max_by_key(|v| v.view.ballot) else {
            return false;
        };
        self.running().filter(|(other, node)| *other != id && node.view().is_some()).any(
            |(o, node)| {
                let member = latest.view.member(NodeId(o));
                member.is_some_and(|m| m.incarnation == node.incarnation())
            },
        )
    }

    fn kill(&mut self, id: u64) {
        if !self.is_alive(id) || !self.may_lose(id) {
            return;
        }
        self.kills += 1;
        let slot = &mut self.slots[id as usize];
        let Some(node) = slot.node.take() else { return };
        slot.shell = Shell::default();
        slot.paused = false;
        slot.frozen.clear();
        let (host, life) = (slot.host, node.incarnation());
        for other in 0..self.slots.len() as u64 {
            if other == id || self.network.blocked.contains(&(id, other)) {
                continue;
            }
            let at = self.now + CLOSE_DELAY + self.draw.between(0, CLOSE_DELAY);
            self.schedule(at, Item::Closed(other, NodeId(id)));
            if self.slots[other as usize].host == host {
                self.schedule(at, Item::Exit(other, NodeId(id), life));
            }
        }
    }

    /// All timers fire, then the queue that froze.
    fn resume(&mut self, id: u64) {
        let slot = &mut self.slots[id as usize];
        if !slot.paused {
            return;
        }
        slot.paused = false;
        let frozen = std::mem::take(&mut slot.frozen);
        let (ticks, rest): (Vec<Item>, Vec<Item>) =
            frozen.into_iter().partition(|i| matches!(i, Item::Tick(..)));
        for item in ticks.into_iter().chain(rest) {
            self.process(item);
        }
    }

    /// Ends all faults: the network heals, sleepers wake, the dead are started again.
    pub fn heal(&mut self, restart: bool) {
        self.fault(Fault::HealNetwork);
        for id in 0..self.slots.len() as u64 {
            self.resume(id);
            self.slots[id as usize].flip = None;
            if self.slots[id as usize].wedged {
                self.kill_now(id);
            }
            if restart && self.slots[id as usize].life > 0 && !self.is_alive(id) {
                self.join(id);
            }
        }
    }

    /// Runs until the ring has healed and the run is over, or time is up; then asks the
    /// invariants for the last time.
    pub fn run_to_convergence(&mut self, within: u64) {
        let end = self.now + within;
        while self.violation.is_none() && self.now < end && !self.has_healed() {
            self.run_until(self.now + 200_000);
        }
        if self.violation.is_none() {
            self.check_end();
        }
    }

    /// Nothing is left to do.
    #[must_use]
    pub fn has_healed(&self) -> bool {
        self.converged().is_ok() && self.replicated().is_ok()
    }

    /// Every chunk has as many holders as it should.
    ///
    /// # Errors
    /// Which chunk has not.
    pub fn replicated(&self) -> Result<(), String> {
        for (id, node) in self.running() {
            let Some(view) = node.view() else { return Err(format!("node {id} has no view")) };
            let wanted = self.spec.replicas.min(view.view.stayers().count());
            for (chunk, seat) in view.view.seats.iter().enumerate() {
                if seat.holders.len() != wanted || !seat.learners.is_empty() {
                    return Err(format!("chunk {chunk} has {seat:?}, {wanted} wanted"));
                }
            }
        }
        Ok(())
    }

    /// Everyone who lives is in one view, and every copy is at the end of the run.
    ///
    /// # Errors
    /// What is missing.
    pub fn converged(&self) -> Result<(), String> {
        let nodes: Vec<(u64, &Node)> = self.running().collect();
        let Some(view) = nodes.first().and_then(|(_, n)| n.view()) else {
            return Err("no view".to_owned());
        };
        for (id, node) in &nodes {
            let name = node.view().map(|v| v.name.number);
            if name != Some(view.name.number) || node.is_closed() {
                return Err(format!("node {id} is in view {name:?}, not {}", view.name.number));
            }
            if node.step() <= self.spec.last_step {
                return Err(format!("node {id} is at step {}", node.step()));
            }
        }
        let late = nodes.iter().find(|(_, n)| {
            n.holders().values().any(|h| h.state.is_none_or(|m| m.step < self.spec.last_step))
        });
        late.map_or(Ok(()), |(id, _)| Err(format!("node {id} has a copy that is not at the end")))
    }
}
