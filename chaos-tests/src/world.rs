//! The simulated world: many nodes, one queue of events, virtual time.

use crate::draw::Draw;
use crate::faults::{Fault, Flip};
use crate::invariants::{Invariant, Violation};
use crate::network::Network;
use crate::shell::{Load, Shell};
use crate::toy::{Golden, Toy};
use planaria_actors::protocol::effect::Stop;
use planaria_actors::protocol::message::{Frame, PartialKey};
use planaria_actors::protocol::{Effect, Event, Identity, Node, Spec};
use planaria_base::{ChunkId, Digest, Incarnation, NodeId, Step};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

/// Between a node's ticks, in microseconds.
pub const TICK: u64 = 20_000;
/// A closed link is seen after this.
const CLOSE_DELAY: u64 = 1_000;
/// Incarnations between restarts: rejoins count in between.
const LIFE: u64 = 1 << 20;

/// Something that happened, for the invariants.
#[allow(missing_docs, reason = "the sentence at each event explains its fields")]
#[derive(Clone, Debug)]
pub enum Seen {
    /// An owner added leaves; `fresh`: none was in that sum before.
    Added { node: u64, key: PartialKey, fresh: bool },
    /// An owner fixed a record with this many leaves in it.
    Fixed { node: u64, chunk: ChunkId, step: Step, leaves: usize },
    /// A holder's state is now that after `step`.
    Swapped { node: u64, chunk: ChunkId, step: Step, state: u64 },
    /// A frame of another view changed a node.
    FenceBroken { node: u64, frame: String },
    /// A bit flipped here.
    Flipped { node: u64 },
    /// A holder found itself or the update wrong.
    Caught { node: u64 },
    /// A node loaded from a checkpoint; nothing was there if `found` is false.
    Restored { node: u64, chunk: ChunkId, step: Step, found: bool },
    /// A checkpoint was called durable; `missing`: a chunk that is not on disk.
    Published { node: u64, step: Step, missing: Option<ChunkId> },
    /// The ring fell back on a checkpoint.
    FellBack { to: Step, lost: u64 },
    /// A node stopped.
    Stopped { node: u64, why: Stop },
}

/// What happens at some time.
#[derive(Clone, Debug)]
enum Item {
    Tick(u64, u64),
    Arrive(u64, Box<Frame>, Load),
    Done(u64, Done),
    Closed(u64, NodeId),
    Exit(u64, NodeId, Incarnation),
    Fault(Fault),
}

/// The end of an effect; void if the node died or the work was made void meanwhile.
#[derive(Clone, Debug)]
struct Done {
    life: u64,
    void: Option<(ChunkId, u64)>,
    lots: Option<u64>,
    compute: Option<(PartialKey, u32, u32)>,
    written: Option<(Digest, u64)>,
    event: Event,
}

struct Scheduled {
    at: u64,
    order: u64,
    item: Item,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Scheduled) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Scheduled) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Scheduled) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// One place where a node may run.
pub struct Slot {
    /// The machine.
    pub host: u64,
    /// Its share of the chunks.
    pub capacity: u64,
    /// The node, while it lives.
    pub node: Option<Node>,
    /// Its numbers.
    pub shell: Shell,
    /// Microseconds to compute one leaf for one part.
    pub leaf_time: u64,
    /// How often it was started.
    pub life: u64,
    paused: bool,
    frozen: Vec<Item>,
    busy_until: u64,
    wedged: bool,
    flip: Option<Flip>,
}

/// The world.
pub struct World {
    /// Now, in microseconds.
    pub now: u64,
    /// The run.
    pub spec: Arc<Spec>,
    /// Where nodes may run, by node id.
    pub slots: Vec<Slot>,
    /// The network.
    pub network: Network,
    /// The trajectory that must be followed.
    pub golden: Golden,
    /// What went wrong first.
    pub violation: Option<Violation>,
    /// Lines for people, with time and node.
    pub lines: Vec<String>,
    /// Watches every frame that is sent.
    pub script: Option<Script>,
    /// Keep lines.
    pub verbose: bool,
    /// Events handled.
    pub events: u64,
    /// Nodes killed.
    pub kills: u64,
    /// The faults may stop the run.
    pub may_halt: bool,
    /// The faults may take all copies of a chunk.
    pub may_fall_back: bool,
    toy: Toy,
    draw: Draw,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
    disk: BTreeMap<(Step, Digest, ChunkId), u64>,
    poison: BTreeMap<Step, u32>,
    invariants: Vec<Box<dyn Invariant>>,
    last_check: u64,
    last_flip: u64,
    /// A sample of the frames sent, for replays; view changes are all in it.
    recorded: VecDeque<(u64, Box<Frame>, Load)>,
    effects: Vec<Effect>,
}

/// What becomes of a frame that a script looks at.
#[derive(Clone, PartialEq, Debug)]
pub enum Tap {
    /// It goes its way.
    Pass,
    /// It is lost, and these faults happen.
    Drop(Vec<Fault>),
    /// It goes its way, and these faults happen at once.
    Then(Vec<Fault>),
    /// It arrives twice.
    Twice,
}

/// A script that watches frames, by sender and receiver.
pub type Script = Box<dyn FnMut(u64, u64, &Frame) -> Tap>;

/// A place for a node.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The machine.
    pub host: u64,
    /// Its share of the chunks.
    pub capacity: u64,
    /// Microseconds to compute one leaf for one part.
    pub leaf_time: u64,
}

impl World {
    /// A world with these places, no node running yet.
    #[must_use]
    pub fn new(spec: Spec, toy: Toy, places: &[Place], seed: u64) -> World {
        let spec = Arc::new(spec);
        let slot = |p: &Place| Slot {
            host: p.host,
            capacity: p.capacity,
            node: None,
            shell: Shell::default(),
            leaf_time: p.leaf_time,
            life: 0,
            paused: false,
            frozen: Vec::new(),
            busy_until: 0,
            wedged: false,
            flip: None,
        };
        World {
            now: 0,
            golden: Golden::new(toy.clone(), Spec::clone(&spec)),
            spec,
            slots: places.iter().map(slot).collect(),
            network: Network::new(50, 300),
            violation: None,
            lines: Vec::new(),
            script: None,
            verbose: false,
            events: 0,
            kills: 0,
            may_halt: false,
            may_fall_back: true,
            toy,
            draw: Draw::new(seed ^ 0x5eed),
            queue: BinaryHeap::new(),
            order: 0,
            disk: BTreeMap::new(),
            poison: BTreeMap::new(),
            invariants: crate::invariants::all(),
            last_check: 0,
            last_flip: 0,
            recorded: VecDeque::new(),
            effects: Vec::new(),
        }
    }

    fn schedule(&mut self, at: u64, item: Item) {
        self.order += 1;
        self.queue.push(Reverse(Scheduled { at, order: self.order, item }));
    }

    /// Has a fault happen at a time.
    pub fn schedule_fault(&mut self, at: u64, fault: Fault) {
        self.schedule(at, Item::Fault(fault));
    }

    /// Starts the node that founds the ring.
    pub fn found(&mut self, id: u64) {
        let identity = self.identity(id);
        self.slots[id as usize].node = Some(Node::founding(self.spec.clone(), identity, None));
        self.begin_life(id);
    }

    /// Starts a node that joins through any other.
    pub fn join(&mut self, id: u64) {
        let identity = self.identity(id);
        let mut contacts: Vec<NodeId> =
            (0..self.slots.len() as u64).filter(|&n| n != id).map(NodeId).collect();
        let turn = self.draw.between(0, contacts.len() as u64) as usize;
        contacts.rotate_left(turn);
        self.slots[id as usize].node = Some(Node::joining(self.spec.clone(), identity, contacts));
        self.begin_life(id);
    }

    fn identity(&self, id: u64) -> Identity {
        let slot = &self.slots[id as usize];
        let incarnation = Incarnation((slot.life + 1) * LIFE);
        Identity {
            node: NodeId(id),
            incarnation,
            host: slot.host,
            at: None,
            capacity: slot.capacity,
        }
    }

    fn begin_life(&mut self, id: u64) {
        let phase = self.draw.between(0, TICK);
        let slot = &mut self.slots[id as usize];
        slot.life += 1;
        slot.shell = Shell::default();
        slot.paused = false;
        slot.frozen.clear();
        slot.wedged = false;
        slot.flip = None;
        slot.busy_until = 0;
        let life = slot.life;
        self.schedule(self.now + phase, Item::Tick(id, life));
    }

    /// Runs until `end` (virtual time) or the first violation.
    pub fn run_until(&mut self, end: u64) {
        while self.violation.is_none() {
            match self.queue.peek() {
                Some(Reverse(next)) if next.at <= end => {}
                _ => break,
            }
            let Some(Reverse(next)) = self.queue.pop() else { break };
            self.now = self.now.max(next.at);
            self.events += 1;
            self.process(next.item);
        }
        if self.violation.is_none() {
            self.now = self.now.max(end);
        }
    }

    fn process(&mut self, item: Item) {
        let slot_of = match &item {
            Item::Tick(id, _) | Item::Arrive(id, ..) | Item::Done(id, _) => Some(*id),
            Item::Closed(id, _) | Item::Exit(id, ..) => Some(*id),
            Item::Fault(_) => None,
        };
        if let Some(slot) = slot_of.map(|id| &mut self.slots[id as usize]) {
            if slot.node.is_none() {
                return;
            }
            if slot.paused {
                slot.frozen.push(item);
                return;
            }
        }
        match item {
            Item::Tick(id, life) if life == self.slots[id as usize].life => {
                self.handle(id, Event::Tick, Load::None);
                self.schedule(self.now + TICK, Item::Tick(id, life));
                self.check();
            }
            Item::Tick(..) => {}
            Item::Arrive(id, frame, load) => self.arrive(id, frame, load),
            Item::Done(id, done) => self.finish(id, done),
            Item::Closed(id, peer) => self.handle(id, Event::LinkClosed(peer), Load::None),
            Item::Exit(id, peer, life) => self.handle(id, Event::ExitSeen(peer, life), Load::None),
            Item::Fault(fault) => self.fault(fault),
        }
    }

    fn arrive(&mut self, id: u64, frame: Box<Frame>, load: Load) {
        let Some(node) = &self.slots[id as usize].node else { return };
        let name = node.view().map(|v| v.name);
        let stale = frame.message.is_data() && (node.is_closed() || name != Some(frame.view));
        let before = if stale { node.fingerprint() } else { 0 };
        let what = if stale { format!("{:?}", frame.message) } else { String::new() };
        self.handle(id, Event::Frame(frame), load);
        let after = self.slots[id as usize].node.as_ref().map(Node::fingerprint);
        if stale && after.is_some_and(|a| a != before) {
            self.see(Seen::FenceBroken { node: id, frame: what });
        }
    }

    fn finish(&mut self, id: u64, done: Done) {
        let slot = &mut self.slots[id as usize];
        let voided = done
            .void
            .is_some_and(|(c, v)| slot.shell.voids.get(&c).copied().unwrap_or_default() != v);
        let abandoned = done.lots.is_some_and(|l| l != slot.shell.lots);
        if done.life != slot.life || voided || abandoned {
            return;
        }
        if let Some((key, start, len)) = done.compute {
            if self.poison.get(&key.step).is_some_and(|l| (start..start + len).contains(l)) {
                return self.fault(Fault::Kill(id));
            }
            if !slot.shell.compute(&self.toy, key, start, len) {
                return;
            }
        }
        if let (Some((log, state)), Event::Persisted { chunk, step, .. }) =
            (done.written, &done.event)
        {
            self.disk.insert((*step, log, *chunk), state);
        }
        self.handle(id, done.event, Load::None);
    }

    /// Gives a node an event and carries out what it wants.
    pub fn handle(&mut self, id: u64, event: Event, load: Load) {
        let mut effects = std::mem::take(&mut self.effects);
        if let Some(node) = &mut self.slots[id as usize].node {
            node.handle(self.now, event, &mut effects);
        }
        let life = self.slots[id as usize].life;
        for effect in effects.drain(..) {
            let slot = &self.slots[id as usize];
            if slot.node.is_some() && slot.life == life {
                self.carry_out(id, effect, load);
            }
        }
        self.effects = effects;
    }

    /// Tells the invariants.
    pub(crate) fn see(&mut self, seen: Seen) {
        let mut invariants = std::mem::take(&mut self.invariants);
        for invariant in &mut invariants {
            if let Err(what) = invariant.observe(&seen, self) {
                self.fail(invariant.name(), what);
            }
        }
        self.invariants = invariants;
    }

    fn check(&mut self) {
        if self.now < self.last_check + TICK {
            return;
        }
        self.last_check = self.now;
        let mut invariants = std::mem::take(&mut self.invariants);
        for invariant in &mut invariants {
            if let Err(what) = invariant.after_tick(self) {
                self.fail(invariant.name(), what);
            }
        }
        self.invariants = invariants;
    }

    /// Asks the invariants once more, after everything has healed.
    pub fn check_end(&mut self) {
        let mut invariants = std::mem::take(&mut self.invariants);
        for invariant in &mut invariants {
            if let Err(what) = invariant.at_end(self) {
                self.fail(invariant.name(), what);
            }
        }
        self.invariants = invariants;
    }

    /// Records the first violation.
    pub fn fail(&mut self, invariant: &'static str, what: String) {
        let at = self.now;
        self.violation.get_or_insert(Violation { invariant, what, at });
    }

    /// What the one-node run's state of a chunk is, given the commands that a node knows.
    pub fn golden_state(&mut self, node: u64, chunk: ChunkId, step: Step) -> Option<u64> {
        let log = self.slots[node as usize].node.as_ref()?.log().clone();
        Some(self.golden.at(step, &log).0[chunk.index()])
    }

    pub(crate) fn line(&mut self, id: u64, text: impl FnOnce() -> String) {
        if self.verbose {
            let ms = self.now / 1000;
            self.lines.push(format!("{ms:>8} ms  node {id}: {}", text()));
        }
    }

    /// Nodes that are running and not paused.
    pub fn running(&self) -> impl Iterator<Item = (u64, &Node)> {
        let slots = self.slots.iter().enumerate();
        slots.filter(|(_, s)| !s.paused).filter_map(|(i, s)| Some((i as u64, s.node.as_ref()?)))
    }

    /// Whether a node is alive, paused or not.
    #[must_use]
    pub fn is_alive(&self, id: u64) -> bool {
        self.slots[id as usize].node.is_some()
    }
}

mod effects;
mod injection;
