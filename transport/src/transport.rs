//! A node's transport: one QUIC endpoint and one bulk listener on the same port number.

use crate::Error;
use crate::bulk::{self, Bulk};
use crate::control::{Control, Line};
use crate::peer::{LinkCounters, Peer, Setup, Sink};
use crate::tls::RingTls;
use bytes::Bytes;
use planaria_base::NodeId;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Tries at finding a port that is free for both UDP and TCP.
const PORT_TRIES: usize = 32;

struct Inner {
    local: Peer,
    control: Control,
    bulk: Bulk,
    lines: Mutex<BTreeMap<Peer, Line>>,
    runtime: tokio::runtime::Runtime,
}

/// A node's way to other nodes. Cheap to clone; ends when the last clone is dropped.
#[derive(Clone)]
pub struct Transport {
    inner: Arc<Inner>,
}

/// Binds UDP and TCP to the same port.
fn bind(listen: SocketAddr) -> Result<(UdpSocket, TcpListener), Error> {
    let error = |source| Error::Listen { at: listen, source };
    let tries = if listen.port() == 0 { PORT_TRIES } else { 1 };
    let mut last = None;
    for _ in 0..tries {
        let udp = UdpSocket::bind(listen).map_err(error)?;
        let at = SocketAddr::new(listen.ip(), udp.local_addr().map_err(error)?.port());
        match bulk::listen(at) {
            Ok(tcp) => return Ok((udp, tcp)),
            Err(e) => last = Some(e),
        }
    }
    Err(error(last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into())))
}

impl Transport {
    /// Listens and serves.
    ///
    /// # Errors
    /// If the port is taken, or TLS cannot be set up.
    pub fn start(setup: Setup, sink: Arc<dyn Sink>) -> Result<Transport, Error> {
        let tls = RingTls::new(&setup.key)?;
        let (udp, tcp) = bind(setup.listen)?;
        let listening = |source| Error::Listen { at: setup.listen, source };
        let at = udp.local_addr().map_err(listening)?;
        let local = Peer { node: setup.node, incarnation: setup.incarnation, host: setup.host, at };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("quic")
            .enable_all()
            .build()
            .map_err(listening)?;
        let control = {
            let _entered = runtime.enter();
            let control = Control::new(tls, udp, setup.limits)?;
            control.serve(sink.clone());
            control
        };
        let me = (setup.node, setup.incarnation);
        let bulk = Bulk::start(&setup.key, me, setup.limits, tcp, sink).map_err(listening)?;
        let lines = Mutex::default();
        Ok(Transport { inner: Arc::new(Inner { local, control, bulk, lines, runtime }) })
    }

    /// This node, as it listens. The address may be unspecified: see [`Transport::address_towards`].
    #[must_use]
    pub fn local(&self) -> Peer {
        self.inner.local
    }

    /// The address under which somebody at `other` reaches this node: the one that the system would
    /// send from.
    ///
    /// # Errors
    /// If there is no way to `other`.
    pub fn address_towards(&self, other: SocketAddr) -> std::io::Result<SocketAddr> {
        let at = self.inner.local.at;
        if !at.ip().is_unspecified() {
            return Ok(at);
        }
        let any: SocketAddr =
            if other.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
        let probe = UdpSocket::bind(any)?;
        probe.connect(other)?;
        Ok(SocketAddr::new(probe.local_addr()?.ip(), at.port()))
    }

    fn line(&self, to: &Peer) -> Line {
        let mut lines = self.inner.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get(to) {
            return line.clone();
        }
        // An earlier life's line is of no use any more.
        lines.retain(|peer, _| peer.node != to.node);
        let _entered = self.inner.runtime.enter();
        let line = self.inner.control.line(*to);
        lines.insert(*to, line.clone());
        line
    }

    /// Sends words, in order with all other words to that peer; lost if it cannot be reached.
    pub fn words(&self, to: &Peer, frame: Bytes) {
        if !self.line(to).words(frame) {
            tracing::debug!(node = %to.node, "words dropped: the line is full");
        }
    }

    /// Sends a datagram of at most about 1,200 bytes that waits for nothing.
    pub fn beat(&self, to: &Peer, frame: Bytes) {
        let _ = self.line(to).beat(frame);
    }

    /// Asks whoever listens at `at`.
    ///
    /// # Errors
    /// Says whether nobody answered, or the key or version is another.
    pub fn ask(&self, at: SocketAddr, asked: Bytes, wait: Duration) -> Result<Bytes, Error> {
        self.inner.runtime.block_on(self.inner.control.ask(at, asked, wait))
    }

    /// Opens the bulk links of a view; those of the view before are closed at once.
    pub fn open(&self, view: [u8; 32], peers: &[Peer]) {
        self.inner.bulk.open(view, peers);
    }

    /// Closes all bulk links.
    pub fn fence(&self) {
        self.inner.bulk.fence();
    }

    /// Sends a data frame on the open view's link; lost if there is none or it is full.
    pub fn bulk(&self, to: NodeId, frame: Bytes, body: Bytes) {
        self.inner.bulk.send(to, frame, body);
    }

    /// What went over the bulk links since the start, by peer.
    #[must_use]
    pub fn counters(&self) -> Vec<(NodeId, LinkCounters)> {
        self.inner.bulk.counters()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.bulk.end();
        self.control.close();
        // Wakes the thread that accepts, so that it sees the end.
        let _ = std::net::TcpStream::connect_timeout(
            &loopback(self.local.at),
            Duration::from_millis(200),
        );
    }
}

fn loopback(at: SocketAddr) -> SocketAddr {
    match at {
        _ if !at.ip().is_unspecified() => at,
        SocketAddr::V4(_) => ([127, 0, 0, 1], at.port()).into(),
        SocketAddr::V6(_) => (std::net::Ipv6Addr::LOCALHOST, at.port()).into(),
    }
}
