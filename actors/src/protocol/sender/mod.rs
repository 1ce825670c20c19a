//! The sender: a node's lots of the step in flight, and each of their partials until it is Final.

mod gather;

pub use gather::Gather;

use super::effect::{Effect, Post};
use super::holder::Scene;
use super::lots::{Lot, LotId};
use super::message::{Message, PartialKey};
use super::view::ChunkSeat;
use planaria_base::{ChunkId, NodeId, Site, Step};
use std::collections::BTreeMap;

/// Where a partial is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Not asked for, or freed although it is needed again.
    Waiting,
    /// The shell computes it.
    Computing,
    /// Sent, since then; zero: to be sent.
    Sent(u64),
    /// In the owner's sum since then.
    Added(u64),
    /// The record is held everywhere: freed.
    Final,
}

#[derive(Clone, Debug)]
struct Work {
    lot: Lot,
    phases: Vec<Phase>,
    started_at: u64,
    computed: usize,
}

/// A node's lots of one step.
#[derive(Clone, Debug, Default)]
pub struct Sender {
    step: Step,
    parts: Vec<(ChunkId, Site)>,
    owners: Vec<Option<NodeId>>,
    work: BTreeMap<LotId, Work>,
    ready: bool,
}

impl Sender {
    /// A sender without lots, for a model with these (chunk, site) parts.
    #[must_use]
    pub fn new(parts: Vec<(ChunkId, Site)>) -> Sender {
        Sender { parts, ..Sender::default() }
    }

    /// Whether there is anything to compute.
    #[must_use]
    pub fn has_lots(&self) -> bool {
        !self.work.is_empty()
    }

    /// The step that its lots belong to.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// Work is with the shell.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.work.values().any(|w| w.phases.contains(&Phase::Computing))
    }

    /// Partials and lots in its tables.
    #[must_use]
    pub fn table_sizes(&self) -> usize {
        self.work.len()
    }

    /// Begins a step with new lots; what was left of the step before is freed.
    pub fn begin(&mut self, step: Step, lots: impl Iterator<Item = Lot>, post: &mut Post) {
        self.abandon(post);
        self.step = step;
        let fresh = |lot: Lot| (lot.id, self.fresh(lot));
        self.work = lots.map(fresh).collect();
    }

    fn fresh(&self, lot: Lot) -> Work {
        Work { lot, phases: vec![Phase::Waiting; self.parts.len()], started_at: 0, computed: 0 }
    }

    /// Forgets all lots.
    pub fn abandon(&mut self, post: &mut Post) {
        self.ready = false;
        self.work.clear();
        post.emit(Effect::AbandonLots);
    }

    /// Takes its place in a new view of the same step: keeps the lots it still has, takes new
    /// ones, and sends every partial that is not Final again (PROTOCOL.md rule 7). A partial that
    /// was freed but whose record is lost is computed again; one whose record is fixed before it was
    /// asked for never is.
    pub fn install(
        &mut self,
        lots: impl Iterator<Item = Lot>,
        seats: &[ChunkSeat],
        post: &mut Post,
    ) {
        let step = self.step;
        let mut old = std::mem::take(&mut self.work);
        for lot in lots {
            let kept = old.remove(&lot.id).filter(|w| w.lot == lot);
            let work = kept.unwrap_or_else(|| self.fresh(lot));
            self.work.insert(lot.id, work);
        }
        self.set_owners(seats);
        for work in self.work.values_mut() {
            for (phase, &(chunk, site)) in work.phases.iter_mut().zip(&self.parts) {
                let fixed = !seats[chunk.index()].fixed_at.is_empty();
                if fixed && *phase == Phase::Waiting {
                    let key = PartialKey { step, chunk, site, lot: work.lot.id };
                    post.emit(Effect::Free { key });
                }
                *phase = match *phase {
                    Phase::Sent(_) | Phase::Added(_) if !fixed => Phase::Sent(0),
                    Phase::Final if !fixed => Phase::Waiting,
                    Phase::Waiting if fixed => Phase::Final,
                    other => other,
                };
            }
        }
    }

    /// Where partials go.
    pub fn set_owners(&mut self, seats: &[ChunkSeat]) {
        self.owners = seats.iter().map(ChunkSeat::owner).collect();
    }

    /// All values of the step before are here: compute.
    pub fn set_ready(&mut self, scene: Scene<'_>, post: &mut Post) {
        self.ready = true;
        self.pump(scene, post);
    }

    /// Whether values are missing.
    #[must_use]
    pub fn needs_values(&self) -> bool {
        !self.ready && self.has_lots()
    }

    /// Asks for partials while the window has room, and sends what is to be sent.
    pub fn pump(&mut self, scene: Scene<'_>, post: &mut Post) {
        // Several lots run one after the other on one device: the first must not wait for a record
        // that the second is part of.
        let window = if self.work.len() > 1 { usize::MAX } else { scene.spec.window() };
        let step = self.step;
        for work in self.work.values_mut() {
            // Counts what is open before a part: the first that is not Final may always go on, even
            // one whose record was lost and that is computed again behind a full window.
            let mut open = 0;
            for (phase, &(chunk, site)) in work.phases.iter_mut().zip(&self.parts) {
                let key = PartialKey { step, chunk, site, lot: work.lot.id };
                let (start, len) = (work.lot.start, work.lot.len);
                if *phase == Phase::Waiting && self.ready && open < window {
                    *phase = Phase::Computing;
                    work.started_at =
                        if work.started_at == 0 { scene.now } else { work.started_at };
                    post.emit(Effect::Compute { key, start, len });
                } else if let (Phase::Sent(0), Some(owner)) = (*phase, self.owners[chunk.index()]) {
                    *phase = Phase::Sent(scene.now.max(1));
                    post.send(owner, Message::Partial { key, start, len });
                }
                open += usize::from(!matches!(*phase, Phase::Waiting | Phase::Final));
            }
        }
    }

    /// A partial is computed.
    pub fn on_computed(&mut self, key: PartialKey, scene: Scene<'_>, post: &mut Post) {
        let done = self.parts.len();
        let Some(work) = self.work.get_mut(&key.lot).filter(|_| key.step == self.step) else {
            return;
        };
        let part = (key.chunk, key.site);
        let Some(at) = self.parts.iter().position(|p| *p == part) else { return };
        if work.phases[at] != Phase::Computing {
            return;
        }
        work.phases[at] = Phase::Sent(0);
        work.computed += 1;
        if work.computed == done {
            let micros = scene.now.saturating_sub(work.started_at);
            let message = Message::LotDone { step: key.step, leaves: work.lot.len, micros };
            post.send(scene.conductor, message);
        }
        self.pump(scene, post);
    }

    /// A partial is in the owner's sum.
    pub fn on_added(&mut self, key: PartialKey, now: u64) {
        let part = (key.chunk, key.site);
        let at = self.parts.iter().position(|p| *p == part);
        let work = self.work.get_mut(&key.lot).filter(|_| key.step == self.step);
        let (Some(work), Some(at)) = (work, at) else { return };
        if matches!(work.phases[at], Phase::Sent(_)) {
            work.phases[at] = Phase::Added(now);
        }
    }

    /// A chunk's record is held by all its replicas: free its partials.
    pub fn on_final(&mut self, chunk: ChunkId, scene: Scene<'_>, post: &mut Post) {
        let step = self.step;
        for work in self.work.values_mut() {
            let of_chunk = work.phases.iter_mut().zip(&self.parts).filter(|(_, p)| p.0 == chunk);
            for (phase, &(chunk, site)) in of_chunk {
                if *phase != Phase::Final {
                    *phase = Phase::Final;
                    post.emit(Effect::Free {
                        key: PartialKey { step, chunk, site, lot: work.lot.id },
                    });
                }
            }
        }
        self.pump(scene, post);
    }

    /// The owner is in doubt: send everything for the chunk again.
    pub fn on_again(&mut self, step: Step, chunk: ChunkId, scene: Scene<'_>, post: &mut Post) {
        if step != self.step {
            return;
        }
        for work in self.work.values_mut() {
            let of_chunk = work.phases.iter_mut().zip(&self.parts).filter(|(_, p)| p.0 == chunk);
            for (phase, _) in of_chunk {
                *phase = match *phase {
                    Phase::Sent(_) | Phase::Added(_) => Phase::Sent(0),
                    Phase::Final => Phase::Waiting,
                    other => other,
                };
            }
        }
        self.pump(scene, post);
    }

    /// Sends again what was not answered, and asks about what is long not Final. Says whom it
    /// waits for.
    pub fn tick(&mut self, scene: Scene<'_>, post: &mut Post, waits: &mut Vec<NodeId>) {
        let retry = scene.spec.timing.retry;
        let mut ask: BTreeMap<ChunkId, NodeId> = BTreeMap::new();
        for work in self.work.values_mut() {
            for (phase, &(chunk, _)) in work.phases.iter_mut().zip(&self.parts) {
                let Some(owner) = self.owners[chunk.index()] else { continue };
                match *phase {
                    Phase::Sent(at) if at > 0 && scene.now >= at + retry => {
                        *phase = Phase::Sent(0);
                        waits.push(owner);
                    }
                    Phase::Added(at) if scene.now >= at + 4 * retry => {
                        *phase = Phase::Added(scene.now);
                        ask.insert(chunk, owner);
                    }
                    _ => {}
                }
            }
        }
        for (chunk, owner) in ask {
            post.send(owner, Message::AskFinal { step: self.step, chunk });
        }
        self.pump(scene, post);
    }
}
