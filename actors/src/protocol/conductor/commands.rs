//! Commands enter the log in a view: told to all members, taken only when all have them.

use super::Conductor;
use crate::protocol::effect::Post;
use crate::protocol::holder::Scene;
use crate::protocol::log::{Command, CommandLog, Entry};
use crate::protocol::message::Message;
use crate::protocol::spec::Mutation;
use planaria_base::{NodeId, Step};
use std::collections::BTreeSet;

/// The entry that is being told to members; one at a time.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending {
    entry: Option<Entry>,
    missing: BTreeSet<NodeId>,
    sent_at: u64,
}

impl Pending {
    /// No entry at or before `step` is still unknown to a member.
    pub(super) fn is_clear_up_to(&self, step: Step) -> bool {
        self.entry.as_ref().is_none_or(|e| e.at > step)
    }

    pub(super) fn tick(&mut self, scene: Scene<'_>, post: &mut Post) {
        let Some(entry) = &self.entry else { return };
        if scene.now >= self.sent_at + scene.spec.timing.retry {
            self.sent_at = scene.now;
            let message = Message::Append(Box::new(entry.clone()));
            post.send_all(self.missing.iter().copied(), &message);
        }
    }
}

impl Conductor {
    /// Logs a command for the step after the one in flight. Refused while another is on its way.
    pub fn command(
        &mut self,
        command: Command,
        log: &mut CommandLog,
        scene: Scene<'_>,
        post: &mut Post,
    ) -> bool {
        let after = log.entries().last().map_or(Step(0), |e| e.at);
        let unheard = scene.spec.has_bug(Mutation::TakeCommandsUnheard);
        let at = Step(scene.step.0 + u64::from(!unheard)).max(after);
        let entry = Entry { index: log.entries().len() as u32, at, command };
        if self.pending.entry.is_some() || !log.append(entry.clone()) {
            return false;
        }
        let missing: BTreeSet<NodeId> = scene.everyone().filter(|&n| n != post.me).collect();
        post.send_all(missing.iter().copied(), &Message::Append(Box::new(entry.clone())));
        let entry = Some(entry).filter(|_| !missing.is_empty() && !unheard);
        self.pending = Pending { entry, missing, sent_at: scene.now };
        true
    }

    /// A member has commands up to `index`.
    pub fn on_appended(&mut self, from: NodeId, index: u32) {
        let known = self.pending.entry.as_ref().is_some_and(|e| e.index <= index);
        if known {
            self.pending.missing.remove(&from);
        }
        if self.pending.missing.is_empty() {
            self.pending.entry = None;
        }
    }
}
