//! The actor around the stage's machine.

use super::device::Orders;
use super::shards::{ForgetGathered, Keeper, Need};
use super::stage::{Gathered, Stage, StageEffect};
use crate::protocol::message::PartialKey;
use actix::{Actor, Addr, Context, Handler};
use planaria_base::Step;

const MAILBOX: usize = 4096;

/// The stage: passes ops to the device and needs to the keeper.
pub struct StageActor {
    stage: Stage,
    device: Orders,
    keeper: Option<Addr<Keeper>>,
    effects: Vec<StageEffect>,
}

impl StageActor {
    /// An actor around `stage`; it starts to work when it knows its keeper.
    #[must_use]
    pub fn new(stage: Stage, device: Orders) -> StageActor {
        StageActor { stage, device, keeper: None, effects: Vec::new() }
    }

    fn run(&mut self, event: impl FnOnce(&mut Stage, &mut Vec<StageEffect>)) {
        let mut effects = std::mem::take(&mut self.effects);
        event(&mut self.stage, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                StageEffect::Need(epoch, step, block) => {
                    if let Some(keeper) = &self.keeper {
                        keeper.do_send(Need { epoch, step, block: block.index() });
                    }
                }
                StageEffect::Submit(epoch, op, release) => self.device.submit(epoch, op, release),
                StageEffect::Cancel(epoch) => {
                    self.device.cancel(epoch);
                    if let Some(keeper) = &self.keeper {
                        keeper.do_send(ForgetGathered);
                    }
                }
            }
        }
        self.effects = effects;
    }
}

impl Actor for StageActor {
    type Context = Context<StageActor>;

    fn started(&mut self, ctx: &mut Context<StageActor>) {
        ctx.set_mailbox_capacity(MAILBOX);
    }
}

/// Told to the stage.
#[derive(actix::Message)]
#[rtype(result = "()")]
pub enum StageEvent {
    /// Who keeps the working values.
    Keeper(Addr<Keeper>),
    /// The protocol asks for a partial of leaves (start, len).
    Credit(PartialKey, (u32, u32)),
    /// A partial is not needed.
    Free(PartialKey),
    /// All lots are void, for the so-manieth time.
    Abandon(u64),
    /// The validation loss after a step, over so many batches.
    Evaluate(Step, u64),
    /// The device finished an op.
    Done(u64),
}

impl Handler<StageEvent> for StageActor {
    type Result = ();

    fn handle(&mut self, event: StageEvent, _: &mut Context<StageActor>) {
        match event {
            StageEvent::Keeper(keeper) => self.keeper = Some(keeper),
            StageEvent::Credit(key, leaves) => self.run(|s, out| s.handle_credit(key, leaves, out)),
            StageEvent::Free(key) => self.run(|s, out| s.handle_free(key, out)),
            StageEvent::Abandon(generation) => {
                self.run(|s, out| s.handle_abandon(generation, out));
            }
            StageEvent::Evaluate(step, batches) => {
                self.run(|s, out| s.handle_evaluate(step, batches, out));
            }
            StageEvent::Done(epoch) => self.run(|s, out| s.handle_done(epoch, out)),
        }
    }
}

impl Handler<Gathered> for StageActor {
    type Result = ();

    fn handle(&mut self, gathered: Gathered, _: &mut Context<StageActor>) {
        self.run(|s, out| s.handle_gathered(gathered, out));
    }
}
