//! The shard actors: one per chunk that this node holds, on the node's memory thread.
//!
//! They share the thread, its kernels' threads and the working values; each owns its chunk's numbers.
//! A shard that panics is dropped with its numbers, and the node treats the copy as lost.

use super::device::{Lend, Orders};
use super::node::{Finished, Node, NotStored, ShardLost};
use super::shard::{Shard, ShardCx};
use super::stage::Gathered;
use super::stage_actor::StageActor;
use super::wire::{Outgoing, Wire};
use super::working::Working;
use crate::node::shell::panic_text;
use crate::protocol::Event;
use crate::protocol::decision::Decision;
use crate::protocol::log::LogMark;
use crate::protocol::message::{Frame, Message};
use crate::protocol::record::Record;
use actix::{Actor, ActorContext, Addr, AsyncContext, Context, Handler};
use bytes::Bytes;
use planaria_base::{ChunkId, Digest, NodeId, Step};
use planaria_models::partials::{Lanes, Partial};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Chunks whose next state lies in scratch at once; a queue behind them that has not moved for
/// [`SCRATCH_PATIENCE`] lets one more in, so that nodes that wait for one another go on.
const SCRATCH_AT_ONCE: usize = 4;
const SCRATCH_PATIENCE: Duration = Duration::from_millis(50);
const MAILBOX: usize = 4096;

/// Something for a chunk's shard to do.
pub enum Work {
    /// Load the state after a step.
    Restore(Step, LogMark),
    /// Add a partial that nobody else needs.
    AddOwned(Partial),
    /// Add a partial that may have to be sent, too.
    AddShared(Arc<Partial>),
    /// Add a partial that came.
    AddBody(Lanes, Bytes),
    /// Forget the sum.
    ZeroSum,
    /// Turn the sum into the record.
    Fix {
        /// Of this step.
        step: Step,
        /// Nobody compares it.
        alone: bool,
    },
    /// Keep a record that came.
    StoreRecord(Record, Bytes),
    /// Compute the next state.
    Update {
        /// How.
        decision: Box<Decision>,
        /// Nobody compares it.
        alone: bool,
    },
    /// Compare with what was agreed.
    Verify,
    /// The next state becomes the state.
    Swap(Step),
    /// Keep a state that came.
    StoreCopy(Step, Digest, Bytes),
    /// Write to the checkpoint.
    Persist(Step, LogMark),
    /// Send a frame with a body of ours.
    Send(NodeId, Box<Frame>),
    /// Write the values into the group that is being gathered.
    Fill(Step),
    /// Values that came for a lot, of a chunk whose copy here is not that far.
    Values(Step, Bytes),
    /// Panic: a drill.
    Poison,
}

/// [`Work`] for one shard; the stamp comes back with what it leads to.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct Job {
    /// Whose.
    pub chunk: ChunkId,
    /// Tells what is void apart.
    pub stamp: u64,
    /// What.
    pub work: Work,
}

/// A chunk's copy is to be deleted.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct DropShard(pub ChunkId);

/// Values that came for a lot.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct StoreValues(pub ChunkId, pub Step, pub Bytes);

/// The stage needs a block's values.
#[derive(actix::Message, Clone, Copy, PartialEq, Eq, Debug)]
#[rtype(result = "()")]
pub struct Need {
    /// The stage's epoch.
    pub epoch: u64,
    /// After this step.
    pub step: Step,
    /// The block.
    pub block: usize,
}

/// What was gathered is void.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub struct ForgetGathered;

/// Where the actors of the memory thread send to.
#[derive(Clone)]
pub struct Links {
    /// The node.
    pub node: Addr<Node>,
    /// The stage.
    pub stage: Addr<StageActor>,
    /// The device.
    pub device: Orders,
    /// Other nodes.
    pub wire: Arc<dyn Wire>,
}

/// What the shards of a node share.
pub struct Memory {
    /// Layouts, threads, buffers.
    pub cx: ShardCx,
    /// The working values.
    pub working: Working,
    needs: Vec<Need>,
    links: Links,
}

impl Memory {
    /// Lends every block that is complete.
    fn lend_what_is_complete(&mut self) {
        let mut at = 0;
        while at < self.needs.len() {
            let need = self.needs[at];
            if self.working.missing(need.block, need.step).is_empty() {
                self.needs.remove(at);
                let groups = self.working.lend(need.block);
                self.links.device.lend(Lend { epoch: need.epoch, groups });
                self.links.stage.do_send(Gathered { epoch: need.epoch, block: need.block });
            } else {
                at += 1;
            }
        }
    }
}

/// The actor at the head of the memory thread: makes shards, passes jobs on, keeps the working
/// values.
pub struct Keeper {
    memory: Rc<RefCell<Memory>>,
    links: Links,
    shards: BTreeMap<ChunkId, Addr<ShardActor>>,
    /// Updates that wait for scratch, and chunks that have some.
    waiting: VecDeque<Job>,
    scratch: Vec<ChunkId>,
    moved: bool,
}

impl Keeper {
    /// A keeper of nothing yet.
    #[must_use]
    pub fn new(cx: ShardCx, working: Working, links: Links) -> Keeper {
        let memory = Memory { cx, working, needs: Vec::new(), links: links.clone() };
        Keeper {
            memory: Rc::new(RefCell::new(memory)),
            links,
            shards: BTreeMap::new(),
            waiting: VecDeque::new(),
            scratch: Vec::new(),
            moved: true,
        }
    }

    fn shard(&mut self, chunk: ChunkId) -> &Addr<ShardActor> {
        let (memory, links) = (&self.memory, &self.links);
        self.shards.entry(chunk).or_insert_with(|| {
            let (memory, links) = (memory.clone(), links.clone());
            ShardActor { chunk, shard: Shard::new(chunk), memory, links }.start()
        })
    }

    /// Updates wait until there is scratch; whatever ends one makes room.
    fn pass(&mut self, job: Job) {
        let chunk = job.chunk;
        match &job.work {
            Work::Update { alone: false, .. } => {
                self.waiting.retain(|w| w.chunk != chunk);
                if self.scratch.len() >= SCRATCH_AT_ONCE && !self.scratch.contains(&chunk) {
                    return self.waiting.push_back(job);
                }
                self.scratch.retain(|&c| c != chunk);
                self.scratch.push(chunk);
            }
            Work::Swap(_) | Work::Restore(..) | Work::StoreCopy(..) => self.end_scratch(chunk),
            _ => {}
        }
        self.shard(chunk).do_send(job);
    }

    fn end_scratch(&mut self, chunk: ChunkId) {
        self.scratch.retain(|&c| c != chunk);
        self.waiting.retain(|w| w.chunk != chunk);
        self.moved = true;
    }

    fn admit(&mut self) {
        while self.scratch.len() < SCRATCH_AT_ONCE
            && let Some(job) = self.waiting.pop_front()
        {
            self.scratch.push(job.chunk);
            self.shard(job.chunk).do_send(job);
        }
    }
}

impl Actor for Keeper {
    type Context = Context<Keeper>;

    fn started(&mut self, ctx: &mut Context<Keeper>) {
        ctx.set_mailbox_capacity(MAILBOX);
        ctx.run_interval(SCRATCH_PATIENCE, |keeper, _| {
            if !std::mem::take(&mut keeper.moved)
                && let Some(job) = keeper.waiting.pop_front()
            {
                keeper.scratch.push(job.chunk);
                keeper.shard(job.chunk).do_send(job);
            }
        });
    }
}

impl Handler<Job> for Keeper {
    type Result = ();

    fn handle(&mut self, job: Job, _: &mut Context<Keeper>) {
        self.pass(job);
        self.admit();
    }
}

impl Handler<DropShard> for Keeper {
    type Result = ();

    fn handle(&mut self, DropShard(chunk): DropShard, _: &mut Context<Keeper>) {
        self.end_scratch(chunk);
        if let Some(shard) = self.shards.remove(&chunk) {
            shard.do_send(End);
        }
        self.admit();
    }
}

impl Handler<StoreValues> for Keeper {
    type Result = ();

    fn handle(&mut self, StoreValues(chunk, step, body): StoreValues, _: &mut Context<Keeper>) {
        if let Some(shard) = self.shards.get(&chunk) {
            return shard.do_send(Job { chunk, stamp: 0, work: Work::Values(step, body) });
        }
        let mut memory = self.memory.borrow_mut();
        let memory = &mut *memory;
        if memory.cx.values.read_body(chunk, &body, memory.working.values_mut(chunk)) {
            memory.working.mark(chunk, Some(step));
            memory.lend_what_is_complete();
        }
    }
}

impl Handler<Need> for Keeper {
    type Result = ();

    fn handle(&mut self, need: Need, _: &mut Context<Keeper>) {
        let missing = {
            let mut memory = self.memory.borrow_mut();
            memory.needs.retain(|n| n.epoch >= need.epoch);
            memory.needs.push(need);
            let missing = memory.working.missing(need.block, need.step);
            memory.lend_what_is_complete();
            missing
        };
        let mut wanted = Vec::new();
        for chunk in missing {
            match self.shards.get(&chunk) {
                Some(shard) => {
                    shard.do_send(Job { chunk, stamp: 0, work: Work::Fill(need.step) });
                }
                None => wanted.push(chunk),
            }
        }
        if !wanted.is_empty() {
            let event = Event::Want { step: need.step, chunks: wanted };
            self.links.node.do_send(Finished { stamp: None, event });
        }
    }
}

impl Handler<ForgetGathered> for Keeper {
    type Result = ();

    fn handle(&mut self, _: ForgetGathered, _: &mut Context<Keeper>) {
        let mut memory = self.memory.borrow_mut();
        memory.needs.clear();
        memory.working.forget_gathered();
    }
}

/// One chunk on this node.
pub struct ShardActor {
    chunk: ChunkId,
    shard: Shard,
    memory: Rc<RefCell<Memory>>,
    links: Links,
}

/// The shard is no longer needed here.
#[derive(actix::Message)]
#[rtype(result = "()")]
struct End;

impl Actor for ShardActor {
    type Context = Context<ShardActor>;

    fn started(&mut self, ctx: &mut Context<ShardActor>) {
        ctx.set_mailbox_capacity(MAILBOX);
    }
}

impl Handler<End> for ShardActor {
    type Result = ();

    fn handle(&mut self, _: End, ctx: &mut Context<ShardActor>) {
        ctx.stop();
    }
}

impl Handler<Job> for ShardActor {
    type Result = ();

    fn handle(&mut self, job: Job, ctx: &mut Context<ShardActor>) {
        let (chunk, stamp) = (self.chunk, job.stamp);
        let done = catch_unwind(AssertUnwindSafe(|| self.run(job.work)));
        match done {
            Ok(Some(event)) => {
                self.links.node.do_send(Finished { stamp: Some((chunk, stamp)), event });
            }
            Ok(None) => {}
            Err(panic) => {
                let reason = panic_text(&*panic);
                self.shard = Shard::new(chunk);
                self.links.node.do_send(ShardLost { chunk, reason });
                ctx.stop();
            }
        }
    }
}

impl ShardActor {
    fn run(&mut self, work: Work) -> Option<Event> {
        let mut memory = self.memory.borrow_mut();
        let Memory { cx, working, .. } = &mut *memory;
        let (shard, chunk) = (&mut self.shard, self.chunk);
        match work {
            Work::AddOwned(partial) => drop(shard.add_owned(cx, partial)),
            Work::AddShared(partial) => {
                let _ = shard.add(cx, partial.lanes, partial.values.view());
            }
            Work::AddBody(lanes, body) => drop(shard.add_body(cx, lanes, body)),
            Work::ZeroSum => shard.zero_sum(),
            Work::StoreRecord(record, body) => shard.store_record(cx, record, body),
            Work::Fix { step, alone } => {
                let record = shard.fix(cx, step, alone);
                return Some(Event::RecordFixed { chunk, step, record });
            }
            Work::Update { decision, alone } => {
                let hash = shard.update(cx, working, &decision, alone)?;
                return Some(Event::Updated { chunk, step: decision.step, hash });
            }
            Work::Verify => {
                return Some(Event::Verified { chunk, intact: shard.verify(cx, working) });
            }
            Work::Swap(step) => {
                shard.swap(cx, working, step);
                drop(memory);
                self.fill_if_needed();
            }
            Work::Fill(step) => {
                if working.at(chunk) != Some(step) && shard.fill(cx, working, step) {
                    memory.lend_what_is_complete();
                }
            }
            Work::Values(step, body) => {
                shard.detach(cx, working);
                if cx.values.read_body(chunk, &body, working.values_mut(chunk)) {
                    working.mark(chunk, Some(step));
                    memory.lend_what_is_complete();
                }
            }
            Work::Send(to, frame) => {
                let body = body_of(shard, cx, working, &frame.message)?;
                self.links.wire.send(to, Outgoing { frame: *frame, lanes: None, body });
            }
            Work::Poison => panic!("a fault was injected"),
            slow => {
                drop(memory);
                return self.load_or_store(slow);
            }
        }
        None
    }

    fn load_or_store(&mut self, work: Work) -> Option<Event> {
        let mut memory = self.memory.borrow_mut();
        let Memory { cx, working, .. } = &mut *memory;
        let (shard, chunk) = (&mut self.shard, self.chunk);
        match work {
            Work::Restore(step, log) => match shard.restore(cx, working, (step, log)) {
                Ok(hash) => {
                    memory.lend_what_is_complete();
                    Some(Event::Restored { chunk, step, hash })
                }
                Err(reason) => panic!("chunk {chunk} cannot be restored: {reason}"),
            },
            Work::StoreCopy(step, hash, body) => {
                if !shard.store_copy(cx, working, (step, hash), &body) {
                    panic!("a copy of chunk {chunk} is not what its donor said");
                }
                drop(memory);
                self.fill_if_needed();
                None
            }
            Work::Persist(step, log) => match shard.persist(cx, working, (step, log)) {
                Ok(hash) => Some(Event::Persisted { chunk, step, hash }),
                Err(reason) => {
                    let reason = format!("chunk {chunk}: {reason}");
                    self.links.node.do_send(NotStored(step, reason));
                    None
                }
            },
            _ => None,
        }
    }

    /// The state moved on: whoever waits for this chunk's values gets them.
    fn fill_if_needed(&mut self) {
        let mut memory = self.memory.borrow_mut();
        let Memory { cx, working, needs, .. } = &mut *memory;
        let wanted = |n: &Need| {
            Some(n.step) == self.shard.step()
                && working.missing(n.block, n.step).contains(&self.chunk)
        };
        if !working.is_resident()
            && let Some(step) = needs.iter().find(|n| wanted(n)).map(|n| n.step)
        {
            let _ = self.shard.fill(cx, working, step);
        }
        memory.lend_what_is_complete();
    }
}

/// What travels beside a message about this chunk; nothing if it is not here any more.
fn body_of(shard: &mut Shard, cx: &ShardCx, working: &Working, message: &Message) -> Option<Bytes> {
    match message {
        Message::Params { step, .. } => shard.values_body(cx, working, *step),
        Message::Record { record, .. } => shard.record_body(record.step),
        Message::Copy { step, .. } => shard.copy_body(cx, working, *step),
        _ => None,
    }
}
