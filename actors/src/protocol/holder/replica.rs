//! The replica's half: hold records, and say so only without a gap.

use super::{Holder, Role, Scene};
use crate::protocol::effect::{Effect, Post};
use crate::protocol::message::Message;
use crate::protocol::record::Record;
use planaria_base::NodeId;

impl Holder {
    /// The owner forwards a fixed record. Held is answered only by a replica that has everything
    /// up to the step before (rule 3); a learner queues it.
    pub fn on_record(&mut self, from: NodeId, record: Record, scene: Scene<'_>, post: &mut Post) {
        if from != self.owner {
            return;
        }
        match self.role {
            Role::Replica => self.hold(from, record, post),
            Role::Learner => self.queue_record(record, scene, post),
            Role::Owner | Role::Spare => {}
        }
    }

    fn hold(&mut self, from: NodeId, record: Record, post: &mut Post) {
        if !self.is_at(record.step.0 - 1) {
            return;
        }
        if self.record.is_none_or(|r| r.step != record.step) {
            self.record = Some(record);
            post.emit(Effect::StoreRecord { chunk: self.chunk, record });
        }
        let digest = self.record.map_or(record.digest, |r| r.digest);
        post.send(from, Message::Held { step: record.step, chunk: self.chunk, digest });
    }
}
