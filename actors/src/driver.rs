//! Drives a node from outside: one step at a time, with device calls in between.

use crate::device::{Command, Device, DeviceQueue, run};
use crate::node::{ActorId, Drill, Node, NodeEvent, NodePlan, RunStep};
use crate::step::decision::Decision;
use actix::{Actor, Addr};
use crossbeam_channel::{Receiver, bounded};
use std::thread::JoinHandle;

/// Events that the driver has not read yet, at most.
const EVENTS: usize = 1024;

/// Why the ring stopped.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingError {
    /// The protocol or the device gave up; the text says why and what is intact.
    #[error("{0}")]
    Stopped(String),
    /// A thread could not be started.
    #[error("cannot start the {0} thread: {1}")]
    Thread(&'static str, String),
}

/// An actor that was started again during a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restart {
    /// Who.
    pub id: ActorId,
    /// The panic's text.
    pub reason: String,
}

/// What one step came to.
#[derive(Clone, PartialEq, Debug)]
pub struct StepOutcome {
    /// The decision, applied everywhere.
    pub decision: Decision,
    /// Actors started again while it ran.
    pub restarts: Vec<Restart>,
}

/// A running node: its actors on one thread, its device on another.
pub struct Ring {
    node: Addr<Node>,
    device: DeviceQueue,
    events: Receiver<NodeEvent>,
    system: actix::System,
    threads: Vec<JoinHandle<()>>,
}

impl Ring {
    /// Starts the actors and the device's thread.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn start(plan: NodePlan, device: Device) -> Result<Ring, RingError> {
        let (queue, commands) = DeviceQueue::bounded(plan.mailbox());
        let (driver, events) = bounded(EVENTS);
        let (ready, started) = bounded(1);
        let for_node = queue.clone();
        let actors = spawn("actors", move || {
            let runner = actix::System::new();
            let node = runner.block_on(async { Node::new(plan, for_node, driver).start() });
            let _ = ready.send((node, actix::System::current()));
            if let Err(error) = runner.run() {
                tracing::error!(%error, "the actor system ended with an error");
            }
        })?;
        let (node, system) = started
            .recv()
            .map_err(|_| RingError::Stopped("the actor system did not start".to_owned()))?;
        let reports = node.clone().recipient();
        let compute = spawn("device", move || run(device, &commands, &reports))?;
        Ok(Ring { node, device: queue, events, system, threads: vec![actors, compute] })
    }

    /// Runs one step to its end.
    ///
    /// # Errors
    /// If the run cannot go on; the state after the last complete step is intact unless the text
    /// says otherwise.
    pub fn step(&mut self, learning_rate: f64) -> Result<StepOutcome, RingError> {
        self.tell(RunStep { learning_rate })?;
        let mut restarts = Vec::new();
        loop {
            match self.events.recv() {
                Ok(NodeEvent::Complete(decision)) => return Ok(StepOutcome { decision, restarts }),
                Ok(NodeEvent::Restarted { id, reason, .. }) => {
                    tracing::warn!(?id, reason, "an actor was started again");
                    restarts.push(Restart { id, reason });
                }
                Ok(NodeEvent::Stopped(reason)) => return Err(RingError::Stopped(reason)),
                Err(_) => return Err(RingError::Stopped("the node has ended".to_owned())),
            }
        }
    }

    /// Runs `call` on the device between steps, and waits for its result.
    ///
    /// # Errors
    /// If the device's thread has ended, or the call panicked.
    pub fn call<R: Send + 'static>(
        &self,
        call: impl FnOnce(&mut Device) -> R + Send + 'static,
    ) -> Result<R, RingError> {
        let (sender, receiver) = bounded(1);
        let command = Command::Call(Box::new(move |device| {
            let _ = sender.send(call(device));
        }));
        self.device.submit(command).map_err(RingError::Stopped)?;
        receiver.recv().map_err(|_| RingError::Stopped("a device call failed".to_owned()))
    }

    /// Makes an actor panic at its next event.
    ///
    /// # Errors
    /// If the node has ended.
    pub fn drill(&self, id: ActorId) -> Result<(), RingError> {
        self.tell(Drill(id))
    }

    fn tell<M>(&self, message: M) -> Result<(), RingError>
    where
        M: actix::Message + Send + 'static,
        M::Result: Send,
        Node: actix::Handler<M>,
    {
        self.node.try_send(message).map_err(|_| RingError::Stopped("the node has ended".to_owned()))
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.system.stop();
        let (closed, _) = DeviceQueue::bounded(1);
        drop(std::mem::replace(&mut self.device, closed));
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn spawn(
    name: &'static str,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, RingError> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .map_err(|e| RingError::Thread(name, e.to_string()))
}
