//! The control plane: words, beats and requests over QUIC with mutual TLS.
//!
//! Each node dials each peer it speaks to; its words to that peer are one ordered stream, its beats
//! are datagrams beside it, so a queue of words never delays a heartbeat.

use crate::peer::{Limits, Peer, Reply, Sink};
use crate::tls::{RingTls, SERVER_NAME};
use crate::{Error, WIRE_VERSION};
use bytes::Bytes;
use quinn::{ConnectionError, Endpoint, TransportConfig, VarInt};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// QUIC's packets stay below what ten of them may fill of one UDP datagram; see quinn's GSO.
const MTU: u16 = 1452;
const IDLE: Duration = Duration::from_secs(10);
const KEEP_ALIVE: Duration = Duration::from_secs(3);
const REDIAL: Duration = Duration::from_millis(100);
const NO_ANSWER: VarInt = VarInt::from_u32(1);

/// Words (in order) and beats (whenever) to one peer.
enum Item {
    Words(Bytes),
    Beat(Bytes),
}

/// The way to one peer.
#[derive(Clone)]
pub(crate) struct Line {
    items: mpsc::Sender<Item>,
}

impl Line {
    /// Queues words; false if the queue is full.
    pub(crate) fn words(&self, frame: Bytes) -> bool {
        self.items.try_send(Item::Words(frame)).is_ok()
    }

    /// Queues a beat; false if the queue is full.
    pub(crate) fn beat(&self, frame: Bytes) -> bool {
        self.items.try_send(Item::Beat(frame)).is_ok()
    }
}

/// The QUIC side of a node.
pub(crate) struct Control {
    endpoint: Endpoint,
    limits: Limits,
}

fn tls_error(error: impl std::fmt::Display) -> Error {
    Error::Tls(error.to_string())
}

fn transport_config() -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config.max_idle_timeout(Some(IDLE.try_into().expect("ten seconds are a QUIC timeout")));
    config.keep_alive_interval(Some(KEEP_ALIVE));
    config.initial_mtu(MTU);
    config.mtu_discovery_config(None);
    config.max_concurrent_uni_streams(VarInt::from_u32(4));
    config.max_concurrent_bidi_streams(VarInt::from_u32(64));
    config.stream_receive_window(VarInt::from_u32(8 << 20));
    config.receive_window(VarInt::from_u32(32 << 20));
    Arc::new(config)
}

impl Control {
    /// A QUIC endpoint on a bound socket. Must be called inside the transport's runtime.
    pub(crate) fn new(tls: RingTls, socket: UdpSocket, limits: Limits) -> Result<Control, Error> {
        let server = quinn::crypto::rustls::QuicServerConfig::try_from(tls.server);
        let mut server = quinn::ServerConfig::with_crypto(Arc::new(server.map_err(tls_error)?));
        server.transport_config(transport_config());
        let client = quinn::crypto::rustls::QuicClientConfig::try_from(tls.client);
        let mut client = quinn::ClientConfig::new(Arc::new(client.map_err(tls_error)?));
        client.transport_config(transport_config());
        let config = quinn::EndpointConfig::default();
        let runtime = Arc::new(quinn::TokioRuntime);
        let mut endpoint =
            Endpoint::new(config, Some(server), socket, runtime).map_err(tls_error)?;
        endpoint.set_default_client_config(client);
        Ok(Control { endpoint, limits })
    }

    /// Takes connections until the endpoint is closed.
    pub(crate) fn serve(&self, sink: Arc<dyn Sink>) {
        let (endpoint, limits) = (self.endpoint.clone(), self.limits);
        let open = Arc::new(AtomicUsize::new(0));
        tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                if open.load(Ordering::Relaxed) >= limits.connections {
                    incoming.refuse();
                    continue;
                }
                let (sink, open) = (sink.clone(), open.clone());
                open.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(async move {
                    let wait = Duration::from_millis(limits.handshake_ms);
                    if let Ok(accepted) = incoming.accept()
                        && let Ok(Ok(connection)) = tokio::time::timeout(wait, accepted).await
                    {
                        serve_connection(connection, limits, sink).await;
                    }
                    open.fetch_sub(1, Ordering::Relaxed);
                });
            }
        });
    }

    /// A line to a peer; it dials when there is something to say, and again when it broke.
    pub(crate) fn line(&self, peer: Peer) -> Line {
        let (items, queue) = mpsc::channel(self.limits.words);
        let endpoint = self.endpoint.clone();
        let wait = Duration::from_millis(self.limits.handshake_ms);
        tokio::spawn(run_line(endpoint, peer.at, queue, wait));
        Line { items }
    }

    /// Asks whoever listens at `at`, and waits for the answer.
    pub(crate) async fn ask(
        &self,
        at: SocketAddr,
        asked: Bytes,
        wait: Duration,
    ) -> Result<Bytes, Error> {
        let reply_bytes = self.limits.reply_bytes;
        let endpoint = self.endpoint.clone();
        let unreachable = |reason: String| Error::Unreachable { at, reason };
        let exchange = async {
            let connection = dial(&endpoint, at).await?;
            let told = async {
                let (mut send, mut receive) = connection.open_bi().await?;
                // A refusal arrives as a close of the connection while we write or read.
                let _ = send.write_all(&asked).await;
                let _ = send.finish();
                match receive.read_to_end(reply_bytes).await {
                    Ok(reply) => Ok(Ok(reply)),
                    Err(quinn::ReadToEndError::Read(quinn::ReadError::ConnectionLost(e))) => Err(e),
                    Err(other) => Ok(Err(other.to_string())),
                }
            };
            match told.await {
                Ok(Ok(reply)) => Ok(Bytes::from(reply)),
                Ok(Err(reason)) => Err(unreachable(reason)),
                Err(error) => Err(name_error(at, error)),
            }
        };
        match tokio::time::timeout(wait, exchange).await {
            Ok(answer) => answer,
            Err(_) => Err(unreachable(format!("no answer within {} s", wait.as_secs_f32()))),
        }
    }

    /// Ends all connections.
    pub(crate) fn close(&self) {
        self.endpoint.close(VarInt::from_u32(0), b"leaving");
    }
}

async fn dial(endpoint: &Endpoint, at: SocketAddr) -> Result<quinn::Connection, Error> {
    let connecting = endpoint
        .connect(at, SERVER_NAME)
        .map_err(|e| Error::Unreachable { at, reason: e.to_string() })?;
    connecting.await.map_err(|e| name_error(at, e))
}

/// TLS alerts of a refused handshake (RFC 8446, section 6), as QUIC carries them.
fn name_error(at: SocketAddr, error: ConnectionError) -> Error {
    const NO_APPLICATION_PROTOCOL: u64 = 0x100 + 120;
    let code = match &error {
        ConnectionError::TransportError(e) => Some(u64::from(e.code)),
        ConnectionError::ConnectionClosed(e) => Some(u64::from(e.error_code)),
        _ => None,
    };
    match code {
        Some(NO_APPLICATION_PROTOCOL) => Error::WrongVersion { at },
        Some(0x100..=0x1ff) => Error::WrongKey { at },
        _ => Error::Unreachable { at, reason: error.to_string() },
    }
}

async fn run_line(
    endpoint: Endpoint,
    at: SocketAddr,
    mut queue: mpsc::Receiver<Item>,
    wait: Duration,
) {
    while let Some(first) = queue.recv().await {
        match tokio::time::timeout(wait, dial(&endpoint, at)).await {
            Ok(Ok(connection)) => {
                if speak(&connection, first, &mut queue).await.is_none() {
                    return;
                }
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, "no line");
                drain(&mut queue);
                tokio::time::sleep(REDIAL).await;
            }
            Err(_) => drain(&mut queue),
        }
    }
}

/// What waited for a peer that cannot be reached is lost: it would be stale by the time it is there.
fn drain(queue: &mut mpsc::Receiver<Item>) {
    while queue.try_recv().is_ok() {}
}

/// Sends until the connection breaks (`Some`) or nobody sends any more (`None`).
async fn speak(
    connection: &quinn::Connection,
    first: Item,
    queue: &mut mpsc::Receiver<Item>,
) -> Option<()> {
    let mut stream = None;
    let mut next = Some(first);
    loop {
        let item = match next.take() {
            Some(item) => item,
            None => tokio::select! {
                item = queue.recv() => item?,
                _ = connection.closed() => return Some(()),
            },
        };
        match item {
            Item::Beat(frame) => drop(connection.send_datagram(frame)),
            Item::Words(frame) => {
                if stream.is_none() {
                    match connection.open_uni().await {
                        Ok(opened) => stream = Some(opened),
                        Err(_) => return Some(()),
                    }
                }
                let Some(stream) = stream.as_mut() else { return Some(()) };
                let length = (frame.len() as u32).to_le_bytes();
                let mut parts = [Bytes::copy_from_slice(&length), frame];
                if stream.write_all_chunks(&mut parts).await.is_err() {
                    return Some(());
                }
            }
        }
    }
}

async fn serve_connection(connection: quinn::Connection, limits: Limits, sink: Arc<dyn Sink>) {
    let from = connection.remote_address();
    loop {
        tokio::select! {
            stream = connection.accept_uni() => match stream {
                Ok(stream) => drop(tokio::spawn(serve_words(stream, sink.clone()))),
                Err(_) => return,
            },
            stream = connection.accept_bi() => match stream {
                Ok(pair) => drop(tokio::spawn(serve_request(from, pair, limits, sink.clone()))),
                Err(_) => return,
            },
            beat = connection.read_datagram() => match beat {
                Ok(frame) => sink.words(frame),
                Err(_) => return,
            },
        }
    }
}

async fn serve_words(mut stream: quinn::RecvStream, sink: Arc<dyn Sink>) {
    loop {
        let mut length = [0; 4];
        if stream.read_exact(&mut length).await.is_err() {
            return;
        }
        let length = u32::from_le_bytes(length) as usize;
        if length > crate::codec::FRAME_LIMIT {
            let _ = stream.stop(NO_ANSWER);
            return;
        }
        let mut frame = Vec::new();
        while frame.len() < length {
            // Memory grows with what has come, not with what was announced.
            match stream.read_chunk(length - frame.len(), true).await {
                Ok(Some(chunk)) => frame.extend_from_slice(&chunk.bytes),
                _ => return,
            }
        }
        sink.words(Bytes::from(frame));
    }
}

async fn serve_request(
    from: SocketAddr,
    (mut send, mut receive): (quinn::SendStream, quinn::RecvStream),
    limits: Limits,
    sink: Arc<dyn Sink>,
) {
    let wait = Duration::from_millis(limits.handshake_ms);
    let Ok(Ok(asked)) = tokio::time::timeout(wait, receive.read_to_end(limits.request_bytes)).await
    else {
        return;
    };
    let (reply, answer) = oneshot::channel();
    sink.request(from, Bytes::from(asked), Reply(reply));
    match answer.await {
        Ok(bytes) => {
            if send.write_all(&bytes).await.is_ok() {
                let _ = send.finish();
                let _ = send.stopped().await;
            }
        }
        Err(_) => drop(send.reset(NO_ANSWER)),
    }
}

/// Names the protocol for people who look at packets.
#[must_use]
pub fn protocol_name() -> String {
    format!("planaria/{WIRE_VERSION}")
}
