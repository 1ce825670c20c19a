//! The one actor shell: feeds a machine, hands its effects to the node, and never outlives a panic.

use super::machines::{Effect, Machine};
use super::{ActorId, Node};
use actix::{Actor, ActorContext, Addr, Context, Handler, Message};
use planaria_base::Incarnation;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An actor around a pure machine.
///
/// A panic in the machine is caught here; the machine's state is dropped, the node is told, and the
/// actor ends. The node starts another one under a new incarnation.
pub struct Shell<M: Machine> {
    machine: M,
    id: ActorId,
    incarnation: Incarnation,
    node: Addr<Node>,
    mailbox: usize,
    /// For tests of supervision: the next event panics.
    poisoned: bool,
}

impl<M: Machine> Shell<M> {
    /// An actor `id` that reports to `node`; its mailbox holds `mailbox` messages.
    pub fn new(
        machine: M,
        (id, incarnation): (ActorId, Incarnation),
        node: Addr<Node>,
        mailbox: usize,
    ) -> Shell<M> {
        Shell { machine, id, incarnation, node, mailbox, poisoned: false }
    }

    fn run(&mut self, event: M::Event) -> Result<Vec<M::Effect>, String> {
        let poisoned = self.poisoned;
        let machine = &mut self.machine;
        catch_unwind(AssertUnwindSafe(|| {
            assert!(!poisoned, "a fault was injected");
            let mut out = Vec::new();
            machine.handle(event, &mut out);
            out
        }))
        .map_err(|panic| panic_text(&*panic))
    }
}

impl<M: Machine> Actor for Shell<M> {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Context<Self>) {
        ctx.set_mailbox_capacity(self.mailbox);
    }
}

/// An event for a machine.
pub struct Deliver<E>(pub E);

impl<E: Send + 'static> Message for Deliver<E> {
    type Result = ();
}

impl<M: Machine> Handler<Deliver<M::Event>> for Shell<M> {
    type Result = ();

    fn handle(&mut self, Deliver(event): Deliver<M::Event>, ctx: &mut Context<Self>) {
        let from = (self.id, self.incarnation);
        let sent = match self.run(event) {
            Ok(effects) if effects.is_empty() => return,
            Ok(effects) => {
                let effects = effects.into_iter().map(M::effect).collect();
                self.node.try_send(Output { from, effects })
            }
            Err(reason) => {
                ctx.stop();
                let _ = self.node.try_send(Crashed { from, reason });
                return;
            }
        };
        if sent.is_err() {
            // The node's mailbox is sized for everything that its actors can have under way, so it
            // is gone: the run is over.
            ctx.stop();
        }
    }
}

/// Makes the actor panic at its next event: a fault for tests and drills.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "()")]
pub struct Poison;

impl<M: Machine> Handler<Poison> for Shell<M> {
    type Result = ();

    fn handle(&mut self, _: Poison, _: &mut Context<Self>) {
        self.poisoned = true;
    }
}

/// Effects of one event.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Output {
    /// Who asks.
    pub from: (ActorId, Incarnation),
    /// What for.
    pub effects: Vec<Effect>,
}

/// An actor ended by a panic.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Crashed {
    /// Who.
    pub from: (ActorId, Incarnation),
    /// The panic's text.
    pub reason: String,
}

/// The text of a panic, for people.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a text".to_owned()
    }
}
