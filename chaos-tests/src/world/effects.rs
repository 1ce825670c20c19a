//! Carrying out a node's effects on the toy numbers, the disk and the network.

use super::{Done, Item, Seen, Tap, World};
use crate::faults::{Fault, Flip};
use crate::shell::Load;
use planaria_actors::protocol::effect::{Line, Stop};
use planaria_actors::protocol::holder::Role;
use planaria_actors::protocol::message::{Frame, Message, PartialKey};
use planaria_actors::protocol::{Effect, Event};
use planaria_base::{ChunkId, NodeId, Step};

/// Fixing a record, an update, a verification.
const HOLDER_WORK: u64 = 100;
/// Frames kept for replays, and one in how many is.
const RECORDED: usize = 256;
const RECORD_ONE_IN: u64 = 16;
/// Writing or reading a chunk of a checkpoint.
const DISK_WORK: u64 = 5_000;

impl World {
    pub(super) fn carry_out(&mut self, id: u64, effect: Effect, load: Load) {
        match effect {
            Effect::Send { to, frame } => self.send(id, to, frame),
            Effect::Compute { key, start, len } => self.compute(id, key, start, len),
            Effect::Free { key } => self.slots[id as usize].shell.free(key),
            Effect::AbandonLots => self.slots[id as usize].shell.abandon_lots(),
            Effect::Add { key, start, len, from } => {
                let load = if from == NodeId(id) { Load::None } else { load };
                let fresh = self.slots[id as usize].shell.add(key, (start, len), load);
                self.see(Seen::Added { node: id, key, fresh });
            }
            Effect::ZeroSum { chunk } => self.slots[id as usize].shell.zero(chunk),
            Effect::FixRecord { chunk, step, .. } => self.fix(id, chunk, step),
            Effect::StoreRecord { chunk, record } => {
                self.slots[id as usize].shell.store_record(chunk, record.step, load);
            }
            Effect::Update { chunk, decision, .. } => self.update(id, chunk, &decision),
            Effect::Verify { chunk } => {
                self.see(Seen::Caught { node: id });
                let intact = self.slots[id as usize].shell.verify(chunk);
                self.later(id, HOLDER_WORK, Some(chunk), Event::Verified { chunk, intact });
            }
            Effect::Swap { chunk, step } => self.swap(id, chunk, step),
            Effect::StoreCopy { chunk, step, .. } => {
                if let Load::State(state) = load {
                    self.slots[id as usize].shell.set_state(chunk, step, state);
                    self.see(Seen::Swapped { node: id, chunk, step, state });
                }
            }
            Effect::StoreParams { chunk, step } => {
                self.slots[id as usize].shell.store_params(chunk, step, load);
            }
            Effect::DropCopy { chunk } => self.slots[id as usize].shell.drop_copy(chunk),
            other => self.carry_out_rare(id, other),
        }
    }

    fn carry_out_rare(&mut self, id: u64, effect: Effect) {
        match effect {
            Effect::Restore { chunk, step, log } => {
                self.slots[id as usize].shell.drop_copy(chunk);
                let on_disk = self.disk.get(&(step, log.hash, chunk)).copied();
                let state = if step.0 == 0 { Some(self.toy.initial(chunk)) } else { on_disk };
                self.see(Seen::Restored { node: id, chunk, step, found: state.is_some() });
                if let Some(state) = state {
                    self.slots[id as usize].shell.set_state(chunk, step, state);
                    let hash = self.toy.hash(state);
                    self.later(id, DISK_WORK, Some(chunk), Event::Restored { chunk, step, hash });
                }
            }
            Effect::Persist { chunk, step, log } => {
                let state = self.slots[id as usize].shell.states.get(&chunk).copied();
                if let Some((_, state)) = state.filter(|s| s.0 == step) {
                    let wait = DISK_WORK + self.draw.between(0, DISK_WORK);
                    let hash = self.toy.hash(state);
                    let event = Event::Persisted { chunk, step, hash };
                    let life = self.slots[id as usize].life;
                    let written = Some((log.hash, state));
                    let done = Done { life, void: None, lots: None, compute: None, written, event };
                    self.schedule(self.now + wait, Item::Done(id, done));
                }
            }
            Effect::Publish { decision, .. } => {
                let (step, log) = (decision.step, decision.log.hash);
                let mut chunks = (0..self.spec.chunks.len() as u32).map(ChunkId);
                let missing = chunks.find(|c| !self.disk.contains_key(&(step, log, *c)));
                self.see(Seen::Published { node: id, step, missing });
            }
            Effect::Report(line) => {
                match line {
                    Line::FellBack { to, lost, .. } => self.see(Seen::FellBack { to, lost }),
                    Line::Corrupt(..) => self.see(Seen::Caught { node: id }),
                    _ => {}
                }
                self.line(id, || format!("{line:?}"));
            }
            Effect::Stop(why) => self.stopped(id, why),
            _ => {}
        }
    }

    fn stopped(&mut self, id: u64, why: Stop) {
        self.line(id, || format!("stops: {why:?}"));
        if why == Stop::Left {
            self.slots[id as usize].node = None;
            self.slots[id as usize].life += 1;
        }
        self.see(Seen::Stopped { node: id, why });
    }

    fn send(&mut self, id: u64, to: NodeId, frame: Box<Frame>) {
        let Some(load) = self.slots[id as usize].shell.load(&frame.message) else { return };
        if to.index() >= self.slots.len() {
            return;
        }
        let mut arrivals = Vec::new();
        self.network.carry(id, to.0, &mut self.draw, &mut arrivals);
        let tap = self.script.as_mut().map_or(Tap::Pass, |script| script(id, to.0, &frame));
        match tap {
            Tap::Pass => {}
            Tap::Twice => arrivals.push(self.network.delay + self.network.jitter),
            Tap::Drop(faults) => {
                arrivals.clear();
                faults.into_iter().for_each(|f| self.fault(f));
            }
            Tap::Then(faults) => faults.into_iter().for_each(|f| self.fault(f)),
        }
        self.record(to.0, &frame, load);
        let Some(last) = arrivals.pop() else { return };
        for delay in arrivals {
            self.schedule(self.now + delay, Item::Arrive(to.0, frame.clone(), load));
        }
        self.schedule(self.now + last, Item::Arrive(to.0, frame, load));
    }

    fn record(&mut self, to: u64, frame: &Frame, load: Load) {
        let message = &frame.message;
        let change = matches!(message, Message::Propose { .. } | Message::Install { .. });
        if !change && !self.order.is_multiple_of(RECORD_ONE_IN) {
            return;
        }
        if self.recorded.len() >= RECORDED {
            self.recorded.pop_front();
        }
        self.recorded.push_back((to, Box::new(frame.clone()), load));
    }

    fn later(&mut self, id: u64, wait: u64, void: Option<ChunkId>, event: Event) {
        let slot = &self.slots[id as usize];
        let void = void.map(|c| (c, slot.shell.voids.get(&c).copied().unwrap_or_default()));
        let done = Done { life: slot.life, void, lots: None, compute: None, written: None, event };
        self.schedule(self.now + wait, Item::Done(id, done));
    }

    fn compute(&mut self, id: u64, key: PartialKey, start: u32, len: u32) {
        let slot = &mut self.slots[id as usize];
        if slot.wedged {
            return;
        }
        let begin = slot.busy_until.max(self.now);
        let end = begin + slot.leaf_time * u64::from(len);
        slot.busy_until = end;
        let done = Done {
            life: slot.life,
            void: None,
            lots: Some(slot.shell.lots),
            compute: Some((key, start, len)),
            written: None,
            event: Event::Computed { key },
        };
        self.schedule(end, Item::Done(id, done));
    }

    fn fix(&mut self, id: u64, chunk: ChunkId, step: Step) {
        let shell = &mut self.slots[id as usize].shell;
        let leaves = shell.sums.get(&chunk).map_or(0, |a| a.added.len());
        let record = shell.fix(&self.toy, &self.spec, chunk, step);
        if record.is_some() {
            self.see(Seen::Fixed { node: id, chunk, step, leaves });
        }
        self.later(id, HOLDER_WORK, Some(chunk), Event::RecordFixed { chunk, step, record });
    }

    fn update(
        &mut self,
        id: u64,
        chunk: ChunkId,
        decision: &planaria_actors::protocol::decision::Decision,
    ) {
        let slot = &mut self.slots[id as usize];
        let holder = slot.node.as_ref().and_then(|n| n.holders().get(&chunk));
        let watched = holder.is_some_and(|h| h.is_replicated() && h.role != Role::Learner);
        let flip = slot.flip.take_if(|_| watched);
        let flipped = match flip {
            Some(Flip::State) => slot.shell.flip_state(chunk, id),
            Some(Flip::Record) => slot.shell.flip_record(chunk, id),
            Some(Flip::Scratch) => true,
            None => false,
        };
        let Some(mut next) = slot.shell.update(&self.toy, chunk, decision) else { return };
        if flip == Some(Flip::Scratch) {
            next = slot.shell.flip_scratch(chunk, id);
        }
        // The record of a skipped step is not read.
        let matters = decision.commit || flip != Some(Flip::Record);
        if flipped && matters {
            self.line(id, || format!("a bit flips: {flip:?}, chunk {chunk}, {decision:?}"));
            self.see(Seen::Flipped { node: id });
        }
        let (step, hash) = (decision.step, self.toy.hash(next));
        self.later(id, HOLDER_WORK, Some(chunk), Event::Updated { chunk, step, hash });
    }

    fn swap(&mut self, id: u64, chunk: ChunkId, step: Step) {
        match self.slots[id as usize].shell.swap(chunk, step) {
            Some(state) => self.see(Seen::Swapped { node: id, chunk, step, state }),
            None => self.fail("shell", format!("node {id} swaps chunk {chunk} without scratch")),
        }
    }

    /// The node computes a poisoned leaf.
    pub(super) fn poison(&mut self, step: u64, leaf: u32) {
        self.poison.insert(Step(step), leaf);
    }

    pub(super) fn kill_now(&mut self, id: u64) {
        self.fault(Fault::Kill(id));
    }
}
