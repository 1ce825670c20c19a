//! The device's thread: commands in, one after the other; reports out.

use super::Device;
use crate::node::shell::panic_text;
use crate::step::decision::Decision;
use crate::step::{Attempt, Op, Record};
use actix::{Message, Recipient};
use crossbeam_channel::{Receiver, Sender, TrySendError};
use planaria_base::{ChunkId, Leaf, Step};
use planaria_models::block::LossStats;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Work for the device.
pub enum Command {
    /// Forget all sums: an attempt starts. Ops of other attempts are dropped from here on.
    Begin(Attempt),
    /// An op of the attempt.
    Op(Attempt, Op),
    /// Apply a decision to a chunk.
    Apply(ChunkId, Decision),
    /// Anything at a step boundary: evaluation, hashing, saving.
    Call(Box<dyn FnOnce(&mut Device) + Send>),
}

/// What the device reports to its node.
#[derive(Message, Clone, Debug)]
#[rtype(result = "()")]
pub enum Report {
    /// An op is done.
    Done(Attempt, Op),
    /// A leaf's loss op is done.
    Loss(Attempt, Leaf, LossStats),
    /// A chunk's record is fixed.
    Record(Attempt, Record),
    /// A chunk holds the state after this step.
    Applied(ChunkId, Step),
    /// An op failed; the state is untouched.
    Failed(Attempt, String),
    /// The state may be half written: the run cannot go on from it.
    Broken(String),
}

/// The sending end of the device's queue.
#[derive(Clone)]
pub struct DeviceQueue {
    commands: Sender<Command>,
}

impl DeviceQueue {
    /// A queue that holds `limit` commands, and its receiving end.
    #[must_use]
    pub fn bounded(limit: usize) -> (DeviceQueue, Receiver<Command>) {
        let (commands, receiver) = crossbeam_channel::bounded(limit);
        (DeviceQueue { commands }, receiver)
    }

    /// Puts a command behind all earlier ones, without waiting.
    ///
    /// # Errors
    /// If the queue is full (its bound is wrong) or the device's thread has ended.
    pub fn submit(&self, command: Command) -> Result<(), String> {
        self.commands.try_send(command).map_err(|error| match error {
            TrySendError::Full(_) => "the device's queue is full: its bound is wrong".to_owned(),
            TrySendError::Disconnected(_) => "the device's thread has ended".to_owned(),
        })
    }
}

/// Runs commands until every sender is gone.
pub fn run(mut device: Device, commands: &Receiver<Command>, node: &Recipient<Report>) {
    let mut reports = Vec::with_capacity(device.chunks() + 1);
    while let Ok(command) = commands.recv() {
        execute(&mut device, command, &mut reports);
        for report in reports.drain(..) {
            if node.try_send(report).is_err() {
                return; // The node is gone, or its mailbox bound is wrong; either way the run is over.
            }
        }
    }
}

fn execute(device: &mut Device, command: Command, reports: &mut Vec<Report>) {
    let at = device.attempt();
    let kind = match &command {
        Command::Op(at, _) => Kind::Op(*at),
        Command::Apply(..) => Kind::Apply,
        Command::Begin(_) | Command::Call(_) => Kind::Other,
    };
    let done = catch_unwind(AssertUnwindSafe(|| match command {
        Command::Begin(at) => device.begin(at),
        Command::Op(of, op) if of == at => device.op(op, reports),
        Command::Op(..) => {}
        Command::Apply(chunk, decision) => device.apply(chunk, &decision, reports),
        Command::Call(call) => call(device),
    }));
    if let Err(panic) = done {
        let reason = panic_text(&*panic);
        reports.clear();
        reports.push(match kind {
            Kind::Op(at) => Report::Failed(at, reason),
            Kind::Apply | Kind::Other => Report::Broken(reason),
        });
    }
}

#[derive(Clone, Copy)]
enum Kind {
    Op(Attempt),
    Apply,
    Other,
}
