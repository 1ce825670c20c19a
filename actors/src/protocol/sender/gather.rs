//! Fetching the values of the step before from any holder that has them.

use crate::protocol::effect::{Effect, Post};
use crate::protocol::holder::Scene;
use crate::protocol::message::Message;
use crate::protocol::view::ChunkSeat;
use planaria_base::{ChunkId, NodeId, Step};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, Default)]
struct Wish {
    asked_at: u64,
    asked: Option<NodeId>,
    attempts: usize,
}

/// The values of one step that are still missing.
#[derive(Clone, Debug, Default)]
pub struct Gather {
    step: Step,
    missing: BTreeMap<ChunkId, Wish>,
}

impl Gather {
    /// Wants every chunk's values after `step`.
    pub fn begin(&mut self, step: Step, chunks: usize) {
        self.step = step;
        self.missing = (0..chunks as u32).map(|c| (ChunkId(c), Wish::default())).collect();
    }

    /// Wants these chunks' values after `step`, beside what is wanted already.
    pub fn want(&mut self, step: Step, chunks: &[ChunkId]) {
        if step > self.step {
            self.missing.clear();
            self.step = step;
        }
        if step == self.step {
            for &chunk in chunks {
                self.missing.entry(chunk).or_default();
            }
        }
    }

    /// In a new view, whoever was asked is asked again.
    pub fn install(&mut self) {
        self.missing.values_mut().for_each(|w| w.asked_at = 0);
    }

    /// Wants nothing any more.
    pub fn cancel(&mut self) {
        self.missing.clear();
    }

    /// Nothing is missing.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.missing.is_empty()
    }

    /// This node itself holds the chunk at that step.
    pub fn on_local(&mut self, chunk: ChunkId, step: Step) {
        if step == self.step {
            self.missing.remove(&chunk);
        }
    }

    /// Values arrived.
    pub fn on_params(&mut self, chunk: ChunkId, step: Step, post: &mut Post) {
        if step == self.step && self.missing.remove(&chunk).is_some() {
            post.emit(Effect::StoreParams { chunk, step });
        }
    }

    /// A holder was at another step: ask again at the next tick.
    pub fn on_stale(&mut self, chunk: ChunkId, step: Step, now: u64, retry: u64) {
        if step != self.step {
            return;
        }
        if let Some(wish) = self.missing.get_mut(&chunk) {
            wish.asked_at = (now + 1).saturating_sub(retry.saturating_sub(retry / 8)).max(1);
        }
    }

    /// Asks the holders of what is missing: one message to each; says whom it waits for.
    pub fn ask(
        &mut self,
        seats: &[ChunkSeat],
        scene: Scene<'_>,
        post: &mut Post,
        waits: &mut Vec<NodeId>,
    ) {
        let mut wanted: BTreeMap<NodeId, Vec<ChunkId>> = BTreeMap::new();
        for (&chunk, wish) in &mut self.missing {
            if wish.asked_at != 0 && scene.now < wish.asked_at + scene.spec.timing.retry {
                continue;
            }
            let holders = &seats[chunk.index()].holders;
            if holders.is_empty() || holders.contains(&post.me) {
                continue;
            }
            waits.extend(wish.asked.filter(|_| wish.asked_at != 0));
            let spread = post.me.0 as usize + chunk.index() + wish.attempts;
            let holder = holders[spread % holders.len()];
            *wish = Wish {
                asked_at: scene.now.max(1),
                asked: Some(holder),
                attempts: wish.attempts + 1,
            };
            wanted.entry(holder).or_default().push(chunk);
        }
        for (holder, chunks) in wanted {
            post.send(holder, Message::Gather { step: self.step, chunks });
        }
    }
}
