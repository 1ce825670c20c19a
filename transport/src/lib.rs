//! Bytes between nodes: who may speak, how words and numbers travel, and when a link is dead.
//!
//! ```text
//!   words (membership, commands)  ── QUIC, mutual TLS ──┐
//!   beats (heartbeats, probes)    ── QUIC datagrams  ───┤   one ring key
//!   requests (joining, status)    ── QUIC, two-way   ───┤   stands behind all
//!   data frames with bodies       ── bulk links (TCP) ──┘
//! ```
//!
//! Words reach whoever holds the ring key; data frames travel on bulk links that belong to one view
//! and die with it. Nothing here knows what a frame says: frames are bytes, made by [`codec`].
//!
//! It is deliberately not a message queue: what cannot be sent is dropped and counted, and the
//! protocol sends again what was not answered.
//!
//! Read [`key`] for identity, [`codec`] for encoding, [`control`] for QUIC, [`bulk`] for links, and
//! [`Transport`] for what a node sees.

pub mod bulk;
pub mod codec;
pub mod control;
pub mod key;
mod peer;
mod tls;
mod transport;

pub use peer::{BulkChoice, Limits, LinkCounters, Peer, Reply, Setup, Sink};
pub use transport::Transport;

/// Version of everything on the wire: nodes of different versions refuse one another.
pub const WIRE_VERSION: u8 = 1;

/// Why transport does not work; nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The ring key's file is unusable.
    #[error("the ring key {path}: {reason}")]
    Key {
        /// The file or variable.
        path: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A socket could not be had.
    #[error("cannot listen on {at}; choose another port with --listen, or 0 for any")]
    Listen {
        /// Where.
        at: std::net::SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// Nobody answers there.
    #[error("{at} does not answer: {reason}")]
    Unreachable {
        /// Where.
        at: std::net::SocketAddr,
        /// Why.
        reason: String,
    },
    /// The other side holds another ring key.
    #[error("{at} belongs to a ring with another key: copy that ring's key file to this machine")]
    WrongKey {
        /// Where.
        at: std::net::SocketAddr,
    },
    /// The other side speaks another version.
    #[error(
        "{at} speaks another wire version than {WIRE_VERSION}: install the same release on all nodes"
    )]
    WrongVersion {
        /// Where.
        at: std::net::SocketAddr,
    },
    /// Certificates or TLS could not be set up.
    #[error("cannot set up TLS: {0}")]
    Tls(String),
}
