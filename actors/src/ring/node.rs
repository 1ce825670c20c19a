//! The node actor: feeds the protocol's machine and carries out its effects.
//!
//! It holds no numbers but partials on their way. Everything slow happens elsewhere: kernels on the
//! device's thread, shards on the memory thread, sockets in the wire.

use super::device::Orders;
use super::shards::{DropShard, Job, Keeper, Links, StoreValues, Work};
use super::stage::Stage;
use super::stage_actor::{StageActor, StageEvent};
use super::vault::{Vault, state_hash};
use super::wire::{Outgoing, Wire};
use crate::protocol::decision::Decision;
use crate::protocol::effect::{Line, Stop};
use crate::protocol::log::CommandLog;
use crate::protocol::message::{Body, Frame, Message, PartialKey, Request};
use crate::protocol::view::NamedView;
use crate::protocol::{self, Effect, Event};
use actix::{Actor, Addr, AsyncContext, Context, Handler};
use bytes::Bytes;
use crossbeam_channel::Sender;
use planaria_base::{ChunkId, Digest, Incarnation, NodeId, Step};
use planaria_models::block::LossStats;
use planaria_models::partials::{Lanes, Partial};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Between ticks of the protocol.
const TICK: Duration = Duration::from_millis(10);
const MAILBOX: usize = 1 << 16;

/// What a run tells whoever started it.
#[derive(Clone, Debug)]
pub enum RunEvent {
    /// A step is decided, and what the member count was.
    Decided(Box<Decision>, usize),
    /// The validation loss of the state after a step.
    Evaluated(Step, LossStats),
    /// A step is durable: every chunk of its state is written, as this node heard.
    Durable(Step),
    /// A chunk could not be written; the checkpoint of that step does not come about.
    NotStored(Step, String),
    /// A checkpoint is valid (or why not); the hash is the state's.
    Published(Step, Digest, Result<(), String>),
    /// A line for people.
    Line(Line),
    /// An actor was dropped and its work is done again.
    Restarted(String),
    /// This node's part is over.
    Stopped(Stop),
}

/// Validation during a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Evaluation {
    /// Steps between two.
    pub every: u64,
    /// Batches of each.
    pub batches: u64,
}

/// What a node needs to know beside the protocol's spec.
pub struct NodePlan {
    /// Validation, if this node does it.
    pub evaluation: Option<Evaluation>,
    /// First values and checkpoints.
    pub vault: Arc<dyn Vault>,
    /// Set while partials leave this node.
    pub checked: Arc<AtomicBool>,
    /// Told what happens.
    pub events: Sender<RunEvent>,
}

/// A partial that may have to be sent, once or again.
struct HeldPartial {
    partial: Arc<Partial>,
    body: OnceLock<Bytes>,
}

struct PartialBytes(Arc<Partial>);

impl AsRef<[u8]> for PartialBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.values.view().bytes()[0]
    }
}

impl HeldPartial {
    fn body(&self) -> Bytes {
        let body = || {
            let [first, second] = self.partial.values.view().bytes();
            if second.is_empty() {
                Bytes::from_owner(PartialBytes(self.partial.clone()))
            } else {
                Bytes::from([first, second].concat())
            }
        };
        self.body.get_or_init(body).clone()
    }
}

/// A frame came.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Arrived(pub Outgoing);

/// A bulk link closed.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct LinkClosed(pub NodeId);

/// A process of this host exited.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct ExitSeen(pub NodeId, pub Incarnation);

/// A shard or the keeper did something; void if the stamp is old.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Finished {
    /// Whose, and the stamp of the job.
    pub stamp: Option<(ChunkId, u64)>,
    /// What.
    pub event: Event,
}

/// A shard is gone with its numbers.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct ShardLost {
    /// Whose.
    pub chunk: ChunkId,
    /// The panic's text.
    pub reason: String,
}

/// A chunk could not be written.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct NotStored(pub Step, pub String);

/// The device is gone.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct DeviceLost(pub String);

/// The device finished a block's sums.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Computed {
    /// How often lots had been abandoned when this one began.
    pub generation: u64,
    /// The partials that were asked for.
    pub partials: Vec<(PartialKey, Partial)>,
}

/// The device evaluated.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Evaluated {
    /// The state after this step.
    pub step: Step,
    /// Its loss.
    pub stats: LossStats,
}

/// A person asks something of the ring.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Ask(pub Request);

/// What the ring looks like from here.
#[derive(actix::Message)]
#[rtype(result = "Status")]
pub struct Inspect;

/// A node's view of the run.
#[derive(Clone, Debug)]
pub struct Status {
    /// The installed view.
    pub view: Option<NamedView>,
    /// The step in flight.
    pub step: Step,
    /// The run's last step.
    pub last_step: Step,
    /// The latest durable step.
    pub durable: Step,
    /// The last decision.
    pub decision: Option<Decision>,
    /// For people who debug.
    pub details: String,
}

/// A chunk's shard panics at its next job: a drill.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Poison(pub ChunkId);

/// The node actor.
pub struct Node {
    machine: protocol::Node,
    me: NodeId,
    since: Instant,
    plan: NodePlan,
    keeper: Addr<Keeper>,
    stage: Addr<StageActor>,
    wire: Arc<dyn Wire>,
    partials: BTreeMap<PartialKey, HeldPartial>,
    stamps: BTreeMap<ChunkId, u64>,
    /// How often lots were abandoned.
    generation: u64,
    durable: Step,
    /// What came beside the frame that is being handled.
    carried: Option<(Option<Lanes>, Bytes)>,
    effects: Vec<Effect>,
}

/// The actors that a node works with.
pub struct Crew {
    /// Keeps shards and values.
    pub keeper: Addr<Keeper>,
    /// Runs lots.
    pub stage: Addr<StageActor>,
    /// The way to other nodes.
    pub wire: Arc<dyn Wire>,
}

impl Node {
    /// A node around the protocol's machine.
    #[must_use]
    pub fn new(machine: protocol::Node, me: NodeId, plan: NodePlan, crew: Crew) -> Node {
        let Crew { keeper, stage, wire } = crew;
        #[allow(clippy::disallowed_methods, reason = "the protocol's clock starts here")]
        let since = Instant::now();
        Node {
            machine,
            me,
            since,
            plan,
            keeper,
            stage,
            wire,
            partials: BTreeMap::new(),
            stamps: BTreeMap::new(),
            generation: 0,
            durable: Step(0),
            carried: None,
            effects: Vec::new(),
        }
    }

    fn tell(&self, event: RunEvent) {
        if self.plan.events.try_send(event).is_err() {
            tracing::warn!("nobody reads the run's events");
        }
    }

    /// Gives the machine an event and carries out what it wants.
    fn feed(&mut self, event: Event) {
        let before = self.machine.step();
        let now = self.since.elapsed().as_micros() as u64;
        let mut effects = std::mem::take(&mut self.effects);
        self.machine.handle(now, event, &mut effects);
        if self.machine.step() > before {
            self.note_decision();
        }
        let durable = self.machine.durable().step;
        if durable > self.durable {
            self.durable = durable;
            self.tell(RunEvent::Durable(durable));
        }
        for effect in effects.drain(..) {
            self.carry_out(effect);
        }
        self.effects = effects;
        self.carried = None;
    }

    /// A step was decided: say so, and evaluate before the next lots if it is time.
    fn note_decision(&mut self) {
        let Some(decision) = self.machine.decisions().values().next_back().cloned() else { return };
        let (step, last) = (decision.step, self.machine.last_step());
        if step.0 + 1 != self.machine.step().0 {
            return;
        }
        let members = self.machine.view().map_or(0, |v| v.view.members.len());
        self.tell(RunEvent::Decided(Box::new(decision), members));
        let due = |e: &Evaluation| step == last || (e.every > 0 && step.0.is_multiple_of(e.every));
        if let Some(evaluation) = self.plan.evaluation.filter(due) {
            self.stage.do_send(StageEvent::Evaluate(step, evaluation.batches));
        }
    }

    fn stamp(&self, chunk: ChunkId) -> u64 {
        self.stamps.get(&chunk).copied().unwrap_or_default()
    }

    /// What is under way for a chunk is void.
    fn void(&mut self, chunk: ChunkId) {
        *self.stamps.entry(chunk).or_default() += 1;
    }

    fn job(&self, chunk: ChunkId, work: Work) {
        self.keeper.do_send(Job { chunk, stamp: self.stamp(chunk), work });
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Send { to, frame } => self.send(to, frame),
            Effect::Compute { key, start, len } => {
                self.stage.do_send(StageEvent::Credit(key, (start, len)));
            }
            Effect::Free { key } => {
                self.partials.remove(&key);
                self.stage.do_send(StageEvent::Free(key));
            }
            Effect::AbandonLots => {
                self.partials.clear();
                self.generation += 1;
                self.stage.do_send(StageEvent::Abandon(self.generation));
            }
            Effect::Add { key, from, .. } => self.add(key, from),
            Effect::ZeroSum { chunk } => {
                self.void(chunk);
                self.job(chunk, Work::ZeroSum);
            }
            Effect::FixRecord { chunk, step, alone } => self.job(chunk, Work::Fix { step, alone }),
            Effect::StoreRecord { chunk, record } => {
                let body = self.body();
                self.job(chunk, Work::StoreRecord(record, body));
            }
            Effect::Update { chunk, decision, alone } => {
                self.job(chunk, Work::Update { decision, alone });
            }
            Effect::Verify { chunk } => self.job(chunk, Work::Verify),
            Effect::Swap { chunk, step } => self.job(chunk, Work::Swap(step)),
            Effect::StoreCopy { chunk, step, hash } => {
                let body = self.body();
                self.job(chunk, Work::StoreCopy(step, hash, body));
            }
            Effect::StoreParams { chunk, step } => {
                let body = self.body();
                self.keeper.do_send(StoreValues(chunk, step, body));
            }
            rare => self.carry_out_rare(rare),
        }
    }

    fn carry_out_rare(&mut self, effect: Effect) {
        match effect {
            Effect::DropCopy { chunk } => {
                self.void(chunk);
                self.keeper.do_send(DropShard(chunk));
            }
            Effect::Restore { chunk, step, log } => {
                self.void(chunk);
                self.job(chunk, Work::Restore(step, log));
            }
            Effect::Persist { chunk, step, log } => self.job(chunk, Work::Persist(step, log)),
            Effect::Publish { decision, hashes, log } => self.publish(decision, &hashes, log),
            Effect::Fence { view } => {
                let installed = self.machine.view().filter(|v| v.name == view);
                let members = installed.map_or(&[][..], |v| &v.view.members);
                self.plan.checked.store(members.len() != 1, Ordering::Relaxed);
                self.wire.fence(view, members);
            }
            Effect::Report(line) => self.tell(RunEvent::Line(line)),
            Effect::Stop(stop) => self.tell(RunEvent::Stopped(stop)),
            _ => {}
        }
    }

    fn body(&mut self) -> Bytes {
        self.carried.take().map(|c| c.1).unwrap_or_default()
    }

    fn send(&self, to: NodeId, frame: Box<Frame>) {
        match (frame.message.body(), &frame.message) {
            (Body::None, _) => {
                self.wire.send(to, Outgoing { frame: *frame, lanes: None, body: Bytes::new() });
            }
            (Body::Partial, Message::Partial { key, .. }) => {
                if let Some(held) = self.partials.get(key) {
                    let (lanes, body) = (Some(held.partial.lanes), held.body());
                    self.wire.send(to, Outgoing { frame: *frame, lanes, body });
                }
            }
            (
                _,
                Message::Params { chunk, .. }
                | Message::Record { chunk, .. }
                | Message::Copy { chunk, .. },
            ) => self.job(*chunk, Work::Send(to, frame)),
            _ => {}
        }
    }

    /// Adds a partial to our sum of its chunk. One of our own that no other member could ask for is
    /// moved, not copied: with a single member the record is Final as soon as it is fixed.
    fn add(&mut self, key: PartialKey, from: NodeId) {
        if from != self.me {
            if let Some((Some(lanes), body)) = self.carried.take() {
                self.job(key.chunk, Work::AddBody(lanes, body));
            }
            return;
        }
        let alone = !self.plan.checked.load(Ordering::Relaxed);
        let work = if alone {
            let Some(held) = self.partials.remove(&key) else { return };
            match Arc::try_unwrap(held.partial) {
                Ok(partial) => Work::AddOwned(partial),
                Err(shared) => Work::AddShared(shared),
            }
        } else {
            let Some(held) = self.partials.get(&key) else { return };
            Work::AddShared(held.partial.clone())
        };
        self.job(key.chunk, work);
    }

    /// Flushing and hashing a checkpoint takes long: it has a thread of its own.
    fn publish(&self, decision: Box<Decision>, hashes: &[Digest], log: CommandLog) {
        let hash = state_hash(decision.step, decision.updates, hashes);
        let (vault, events) = (self.plan.vault.clone(), self.plan.events.clone());
        let step = decision.step;
        let publish = move || {
            let done = vault.publish(&decision, &log, hash);
            let _ = events.try_send(RunEvent::Published(decision.step, hash, done));
        };
        if let Err(error) = std::thread::Builder::new().name("publish".into()).spawn(publish) {
            self.tell(RunEvent::Published(step, hash, Err(error.to_string())));
        }
    }
}

impl Actor for Node {
    type Context = Context<Node>;

    fn started(&mut self, ctx: &mut Context<Node>) {
        ctx.set_mailbox_capacity(MAILBOX);
        ctx.run_interval(TICK, |node, _| node.feed(Event::Tick));
        self.feed(Event::Tick);
    }
}

impl Handler<Arrived> for Node {
    type Result = ();

    fn handle(&mut self, Arrived(came): Arrived, _: &mut Context<Node>) {
        match &came.frame.message {
            Message::Join { member } => self.wire.learn(member),
            Message::Report { inventory, .. } => self.wire.learn(&inventory.member),
            Message::Install { view } => view.members.iter().for_each(|m| self.wire.learn(m)),
            _ => {}
        }
        self.carried = Some((came.lanes, came.body));
        self.feed(Event::Frame(Box::new(came.frame)));
    }
}

impl Handler<LinkClosed> for Node {
    type Result = ();

    fn handle(&mut self, LinkClosed(node): LinkClosed, _: &mut Context<Node>) {
        self.feed(Event::LinkClosed(node));
    }
}

impl Handler<ExitSeen> for Node {
    type Result = ();

    fn handle(&mut self, ExitSeen(node, incarnation): ExitSeen, _: &mut Context<Node>) {
        self.feed(Event::ExitSeen(node, incarnation));
    }
}

impl Handler<Finished> for Node {
    type Result = ();

    fn handle(&mut self, done: Finished, _: &mut Context<Node>) {
        if done.stamp.is_none_or(|(chunk, stamp)| stamp == self.stamp(chunk)) {
            self.feed(done.event);
        }
    }
}

impl Handler<ShardLost> for Node {
    type Result = ();

    fn handle(&mut self, lost: ShardLost, _: &mut Context<Node>) {
        let chunk = lost.chunk;
        self.tell(RunEvent::Restarted(format!("the shard of chunk {chunk}: {}", lost.reason)));
        self.keeper.do_send(DropShard(chunk));
        self.void(chunk);
        self.feed(Event::CopyLost(chunk));
    }
}

impl Handler<NotStored> for Node {
    type Result = ();

    fn handle(&mut self, NotStored(step, reason): NotStored, _: &mut Context<Node>) {
        self.tell(RunEvent::NotStored(step, reason));
    }
}

impl Handler<DeviceLost> for Node {
    type Result = ();

    fn handle(&mut self, DeviceLost(reason): DeviceLost, _: &mut Context<Node>) {
        self.tell(RunEvent::Stopped(Stop::Halted(reason)));
    }
}

impl Handler<Computed> for Node {
    type Result = ();

    fn handle(&mut self, computed: Computed, _: &mut Context<Node>) {
        if computed.generation != self.generation {
            return;
        }
        for (key, partial) in computed.partials {
            let held = HeldPartial { partial: Arc::new(partial), body: OnceLock::new() };
            self.partials.insert(key, held);
            self.feed(Event::Computed { key });
        }
    }
}

impl Handler<Evaluated> for Node {
    type Result = ();

    fn handle(&mut self, done: Evaluated, _: &mut Context<Node>) {
        self.tell(RunEvent::Evaluated(done.step, done.stats));
    }
}

impl Handler<Ask> for Node {
    type Result = ();

    fn handle(&mut self, Ask(request): Ask, _: &mut Context<Node>) {
        self.feed(Event::Ask(request));
    }
}

impl Handler<Inspect> for Node {
    type Result = actix::MessageResult<Inspect>;

    fn handle(&mut self, _: Inspect, _: &mut Context<Node>) -> Self::Result {
        actix::MessageResult(Status {
            view: self.machine.view().cloned(),
            step: self.machine.step(),
            last_step: self.machine.last_step(),
            durable: self.machine.durable().step,
            decision: self.machine.decisions().values().next_back().cloned(),
            details: self.machine.describe(),
        })
    }
}

impl Handler<Poison> for Node {
    type Result = ();

    fn handle(&mut self, Poison(chunk): Poison, _: &mut Context<Node>) {
        self.job(chunk, Work::Poison);
    }
}

/// A node's actors, as they are started together.
pub struct Cast {
    /// The protocol's machine.
    pub machine: protocol::Node,
    /// This node's name.
    pub me: NodeId,
    /// The stage's machine.
    pub stage: Stage,
    /// The compute thread.
    pub device: Orders,
    /// The way to other nodes.
    pub wire: Arc<dyn Wire>,
}

impl Cast {
    /// Starts node and stage on this thread's system and the keeper, made by `keeper`, on `memory`.
    pub fn start(
        self,
        memory: &actix::ArbiterHandle,
        plan: NodePlan,
        keeper: impl FnOnce(Links) -> Keeper + Send + 'static,
    ) -> (Addr<Node>, Addr<StageActor>) {
        let stage = StageActor::new(self.stage, self.device.clone()).start();
        let for_node = stage.clone();
        let node = Node::create(move |ctx| {
            let links = Links {
                node: ctx.address(),
                stage: for_node.clone(),
                device: self.device.clone(),
                wire: self.wire.clone(),
            };
            let keeper = Keeper::start_in_arbiter(memory, move |_| keeper(links));
            for_node.do_send(StageEvent::Keeper(keeper.clone()));
            let crew = Crew { keeper, stage: for_node, wire: self.wire };
            Node::new(self.machine, self.me, plan, crew)
        });
        (node, stage)
    }
}
