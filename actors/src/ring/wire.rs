//! How frames leave a node: a trait with two implementations, between processes and inside one.

use super::node::{Arrived, LinkClosed, Node};
use crate::protocol::message::Frame;
use crate::protocol::view::{Member, ViewName};
use actix::Addr;
use bytes::Bytes;
use planaria_base::NodeId;
use planaria_models::partials::Lanes;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// A frame, what is known of the partial beside it, and the numbers.
#[derive(Clone)]
pub struct Outgoing {
    /// The words.
    pub frame: Frame,
    /// Of a partial.
    pub lanes: Option<Lanes>,
    /// The numbers; empty for most frames.
    pub body: Bytes,
}

/// What carries frames to other nodes. Nothing here waits.
pub trait Wire: Send + Sync {
    /// Sends a frame; one that cannot be sent is lost, as frames may be.
    fn send(&self, to: NodeId, out: Outgoing);

    /// Closes all bulk links of the view before; from here on there are those of this one.
    fn fence(&self, view: ViewName, members: &[Member]);

    /// Where members are that are not in a view yet.
    fn learn(&self, member: &Member);
}

/// Frames between nodes of one process, for tests: every message is delivered, in order.
#[derive(Clone, Default)]
pub struct LocalNet {
    nodes: Arc<Mutex<BTreeMap<NodeId, Addr<Node>>>>,
}

impl LocalNet {
    /// A node can be reached from here on.
    pub fn enter(&self, id: NodeId, node: Addr<Node>) {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).insert(id, node);
    }

    /// A node is gone: its links close.
    pub fn leave(&self, id: NodeId) {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        nodes.remove(&id);
        nodes.values().for_each(|n| n.do_send(LinkClosed(id)));
    }
}

impl Wire for LocalNet {
    fn send(&self, to: NodeId, out: Outgoing) {
        let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(node) = nodes.get(&to) {
            node.do_send(Arrived(out));
        }
    }

    fn fence(&self, _: ViewName, _: &[Member]) {}

    fn learn(&self, _: &Member) {}
}
