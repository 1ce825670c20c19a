//! The words of this crate: peers, what a node is told, limits and counters.

use crate::key::RingKey;
use bytes::Bytes;
use planaria_base::{Incarnation, NodeId};
use std::net::SocketAddr;

/// Another node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Peer {
    /// Its name.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// The machine it runs on.
    pub host: u64,
    /// Its UDP port for QUIC; bulk links go to the TCP port of the same number.
    pub at: SocketAddr,
}

/// What carries bodies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum BulkChoice {
    /// Shared memory on one host, TCP between hosts.
    #[default]
    Auto,
    /// TCP always.
    Tcp,
}

/// Sizes and times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Words that wait for one peer.
    pub words: usize,
    /// Bytes of bodies that wait on one bulk link.
    pub link_bytes: usize,
    /// Bytes of a request.
    pub request_bytes: usize,
    /// Bytes of a reply.
    pub reply_bytes: usize,
    /// Connections that others may have open to this node.
    pub connections: usize,
    /// A handshake takes this long at most, in milliseconds.
    pub handshake_ms: u64,
    /// A bulk link may be early for its view by this much, in milliseconds.
    pub early_ms: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            words: 4096,
            link_bytes: 2 << 30,
            request_bytes: 1 << 20,
            reply_bytes: 64 << 20,
            connections: 4096,
            handshake_ms: 3000,
            early_ms: 5000,
        }
    }
}

/// What a node's transport is started with.
#[derive(Clone)]
pub struct Setup {
    /// The ring's secret.
    pub key: RingKey,
    /// This node.
    pub node: NodeId,
    /// Which life of it.
    pub incarnation: Incarnation,
    /// The machine it runs on.
    pub host: u64,
    /// Where to listen; port 0 is any port that is free for UDP and TCP.
    pub listen: SocketAddr,
    /// What carries bodies.
    pub bulk: BulkChoice,
    /// Sizes and times.
    pub limits: Limits,
}

/// What a node is told. Called on transport threads, which wait for the answer.
pub trait Sink: Send + Sync + 'static {
    /// Words or a beat from a holder of the ring key.
    fn words(&self, frame: Bytes);

    /// A data frame and its body, in order on each link of the open view.
    fn bulk(&self, from: NodeId, frame: Bytes, body: Bytes);

    /// A link of the open view ended: its other end is gone, or has another view.
    fn closed(&self, peer: NodeId);

    /// Somebody who holds the ring key asks something.
    fn request(&self, from: SocketAddr, asked: Bytes, reply: Reply);
}

/// The way back to whoever asked; dropped without an answer, the other side is told that there is
/// none.
pub struct Reply(pub(crate) tokio::sync::oneshot::Sender<Bytes>);

impl Reply {
    /// Answers.
    pub fn send(self, bytes: Bytes) {
        // Whoever asked may be gone.
        let _ = self.0.send(bytes);
    }
}

/// What went over the links with one peer since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct LinkCounters {
    /// Data frames sent.
    pub sent_frames: u64,
    /// Bytes of bodies sent.
    pub sent_payload: u64,
    /// Bytes of frames and framing sent.
    pub sent_overhead: u64,
    /// Data frames received.
    pub received_frames: u64,
    /// Bytes of bodies received.
    pub received_payload: u64,
    /// Bytes of frames and framing received.
    pub received_overhead: u64,
    /// Data frames dropped because the link was full or gone.
    pub dropped: u64,
    /// Frames whose checksum was wrong.
    pub corrupt: u64,
}
