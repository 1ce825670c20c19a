//! Bulk links: data frames with bodies, over TCP, each link for one view and one direction.
//!
//! ```text
//!  dialer                                        acceptor
//!    │ <─────────────── challenge (32) ──────────── │
//!    │ ── magic, view (32), node, incarnation, MAC ─> │   MAC keyed by the ring key, over all of it
//!    │ ── frame length, body length, crc32, frame, body ─> ...
//! ```
//!
//! A link that is not of the open view is closed; opening another view closes all links at once, and
//! what was on its way is lost. A body is sent from where it lies and received into its final place.
//! Sending and receiving have a thread each, so a slow peer delays nobody else.

use crate::key::RingKey;
use crate::peer::{Limits, LinkCounters, Peer, Sink};
use bytes::Bytes;
use planaria_base::{Incarnation, NodeId};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const MAGIC: &[u8; 8] = b"planbulk";
const HEADER: usize = 16;
const HELLO: usize = 8 + 32 + 8 + 8 + 32;
const SOCKET_BUFFER: usize = 4 << 20;
/// Bytes of one body at most.
const BODY_LIMIT: usize = 1 << 30;
const MAC_PURPOSE: &str = "planaria 2026 bulk link";

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Counts {
    sent_frames: AtomicU64,
    sent_payload: AtomicU64,
    sent_overhead: AtomicU64,
    received_frames: AtomicU64,
    received_payload: AtomicU64,
    received_overhead: AtomicU64,
    dropped: AtomicU64,
    corrupt: AtomicU64,
}

impl Counts {
    fn read(&self) -> LinkCounters {
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
        LinkCounters {
            sent_frames: load(&self.sent_frames),
            sent_payload: load(&self.sent_payload),
            sent_overhead: load(&self.sent_overhead),
            received_frames: load(&self.received_frames),
            received_payload: load(&self.received_payload),
            received_overhead: load(&self.received_overhead),
            dropped: load(&self.dropped),
            corrupt: load(&self.corrupt),
        }
    }
}

/// Frames that wait for a link.
struct Outbox {
    state: Mutex<OutboxState>,
    ready: Condvar,
}

#[derive(Default)]
struct OutboxState {
    queue: VecDeque<(Bytes, Bytes)>,
    bytes: usize,
    closed: bool,
    socket: Option<TcpStream>,
}

impl Outbox {
    fn new() -> Arc<Outbox> {
        Arc::new(Outbox { state: Mutex::default(), ready: Condvar::new() })
    }

    fn close(&self) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.queue.clear();
        if let Some(socket) = state.socket.take() {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
        self.ready.notify_all();
    }

    /// The next frame; nothing once the link is closed.
    fn next(&self) -> Option<(Bytes, Bytes)> {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return None;
            }
            if let Some((frame, body)) = state.queue.pop_front() {
                state.bytes -= frame.len() + body.len();
                return Some((frame, body));
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The open view and its links.
#[derive(Default)]
struct State {
    view: Option<[u8; 32]>,
    /// Tells the links of one opening from those of another.
    generation: u64,
    members: BTreeMap<NodeId, Incarnation>,
    outboxes: BTreeMap<NodeId, Arc<Outbox>>,
    incoming: Vec<TcpStream>,
    ended: bool,
}

struct Shared {
    key: [u8; 32],
    me: (NodeId, Incarnation),
    limits: Limits,
    sink: Arc<dyn Sink>,
    state: Mutex<State>,
    opened: Condvar,
    counts: Mutex<BTreeMap<NodeId, Arc<Counts>>>,
}

/// All bulk links of a node.
#[derive(Clone)]
pub struct Bulk {
    shared: Arc<Shared>,
}

/// Listens at `at`; the address may be used again at once after a crash.
pub(crate) fn listen(at: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(at), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&SockAddr::from(at))?;
    socket.listen(1024)?;
    Ok(socket.into())
}

impl Bulk {
    /// Bulk links that come in at `listener`.
    pub(crate) fn start(
        key: &RingKey,
        me: (NodeId, Incarnation),
        limits: Limits,
        listener: TcpListener,
        sink: Arc<dyn Sink>,
    ) -> std::io::Result<Bulk> {
        let shared = Arc::new(Shared {
            key: key.derive(MAC_PURPOSE),
            me,
            limits,
            sink,
            state: Mutex::default(),
            opened: Condvar::new(),
            counts: Mutex::default(),
        });
        let accepting = shared.clone();
        spawn("bulk-accept", move || accept_links(&accepting, &listener))?;
        Ok(Bulk { shared })
    }

    /// Opens the links of a view; those of the view before are closed, with all that is on them.
    pub fn open(&self, view: [u8; 32], peers: &[Peer]) {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        state.close_links();
        state.view = Some(view);
        state.members = peers.iter().map(|p| (p.node, p.incarnation)).collect();
        // A node that came back has another life than the one its transport was started in.
        let own = peers.iter().find(|p| p.node == shared.me.0);
        let life = own.map_or(shared.me.1, |p| p.incarnation);
        for peer in peers.iter().filter(|p| p.node != shared.me.0) {
            let outbox = Outbox::new();
            state.outboxes.insert(peer.node, outbox.clone());
            let (shared, peer, generation) = (shared.clone(), *peer, state.generation);
            let hello = Hello { view, life, generation };
            let sending = move || send_frames(&shared, peer, hello, &outbox);
            if let Err(error) = spawn("bulk-send", sending) {
                tracing::warn!(%error, node = %peer.node, "no thread for a bulk link");
            }
        }
        shared.opened.notify_all();
    }

    /// Closes all links.
    pub fn fence(&self) {
        let mut state = lock(&self.shared.state);
        state.close_links();
        state.view = None;
    }

    /// Ends everything.
    pub(crate) fn end(&self) {
        let mut state = lock(&self.shared.state);
        state.close_links();
        state.ended = true;
        self.shared.opened.notify_all();
    }

    /// Sends a frame on the open view's link; dropped and counted if there is none or it is full.
    pub fn send(&self, to: NodeId, frame: Bytes, body: Bytes) {
        let outbox = lock(&self.shared.state).outboxes.get(&to).cloned();
        let bytes = frame.len() + body.len();
        if let Some(outbox) = outbox {
            let mut state = lock(&outbox.state);
            if !state.closed && state.bytes + bytes <= self.shared.limits.link_bytes {
                state.bytes += bytes;
                state.queue.push_back((frame, body));
                outbox.ready.notify_one();
                return;
            }
        }
        self.shared.counts(to).dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// What went over the links since the start, by peer.
    #[must_use]
    pub fn counters(&self) -> Vec<(NodeId, LinkCounters)> {
        lock(&self.shared.counts).iter().map(|(n, c)| (*n, c.read())).collect()
    }
}

impl State {
    fn close_links(&mut self) {
        self.generation += 1;
        self.members.clear();
        std::mem::take(&mut self.outboxes).values().for_each(|o| o.close());
        for socket in self.incoming.drain(..) {
            let _ = socket.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Shared {
    fn counts(&self, node: NodeId) -> Arc<Counts> {
        lock(&self.counts).entry(node).or_default().clone()
    }

    fn is_current(&self, generation: u64) -> bool {
        let state = lock(&self.state);
        state.generation == generation && !state.ended
    }

    /// A link ended by itself: say so once per end, unless its view is over anyway.
    fn link_ended(&self, generation: u64, peer: NodeId) {
        if self.is_current(generation) {
            self.sink.closed(peer);
        }
    }

    fn mac(&self, challenge: &[u8; 32], hello: &[u8]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(challenge);
        hasher.update(hello);
        *hasher.finalize().as_bytes()
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(body).map(drop)
}

fn tune(socket: &TcpStream) {
    let _ = socket.set_nodelay(true);
    let socket = socket2::SockRef::from(socket);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER);
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER);
}

// Sending.

/// What a dialer says of a link.
#[derive(Clone, Copy)]
struct Hello {
    view: [u8; 32],
    life: Incarnation,
    generation: u64,
}

fn send_frames(shared: &Shared, peer: Peer, hello: Hello, outbox: &Outbox) {
    if let Ok(mut socket) = connect(shared, peer, hello) {
        if let Ok(clone) = socket.try_clone() {
            let mut state = lock(&outbox.state);
            if state.closed {
                return;
            }
            state.socket = Some(clone);
        }
        let counts = shared.counts(peer.node);
        while let Some((frame, body)) = outbox.next() {
            if write_frame(&mut socket, &frame, &body).is_err() {
                break;
            }
            counts.sent_frames.fetch_add(1, Ordering::Relaxed);
            counts.sent_payload.fetch_add(body.len() as u64, Ordering::Relaxed);
            let overhead = (HEADER + frame.len()) as u64;
            counts.sent_overhead.fetch_add(overhead, Ordering::Relaxed);
        }
    }
    outbox.close();
    shared.link_ended(hello.generation, peer.node);
}

fn connect(shared: &Shared, peer: Peer, link: Hello) -> std::io::Result<TcpStream> {
    let wait = Duration::from_millis(shared.limits.handshake_ms);
    let mut socket = TcpStream::connect_timeout(&peer.at, wait)?;
    tune(&socket);
    socket.set_read_timeout(Some(wait))?;
    let mut challenge = [0; 32];
    socket.read_exact(&mut challenge)?;
    let mut hello = Vec::with_capacity(HELLO);
    hello.extend_from_slice(MAGIC);
    hello.extend_from_slice(&link.view);
    hello.extend_from_slice(&shared.me.0.0.to_le_bytes());
    hello.extend_from_slice(&link.life.0.to_le_bytes());
    let mac = shared.mac(&challenge, &hello);
    hello.extend_from_slice(&mac);
    socket.write_all(&hello)?;
    socket.set_read_timeout(None)?;
    Ok(socket)
}

fn checksum(frame: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(frame);
    hasher.update(body);
    hasher.finalize()
}

fn write_frame(socket: &mut TcpStream, frame: &[u8], body: &[u8]) -> std::io::Result<()> {
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&(frame.len() as u32).to_le_bytes());
    header[4..12].copy_from_slice(&(body.len() as u64).to_le_bytes());
    header[12..].copy_from_slice(&checksum(frame, body).to_le_bytes());
    let mut slices = [IoSlice::new(&header), IoSlice::new(frame), IoSlice::new(body)];
    let mut slices = &mut slices[..];
    while !slices.is_empty() {
        let written = socket.write_vectored(slices)?;
        if written == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        IoSlice::advance_slices(&mut slices, written);
    }
    Ok(())
}

// Receiving.

fn accept_links(shared: &Arc<Shared>, listener: &TcpListener) {
    let waiting = Arc::new(AtomicU64::new(0));
    for socket in listener.incoming() {
        if lock(&shared.state).ended {
            return;
        }
        let Ok(socket) = socket else { continue };
        if waiting.load(Ordering::Relaxed) >= shared.limits.connections as u64 {
            continue;
        }
        waiting.fetch_add(1, Ordering::Relaxed);
        let (shared, waiting) = (shared.clone(), waiting.clone());
        let started = spawn("bulk-receive", move || {
            let accepted = welcome(&shared, socket);
            waiting.fetch_sub(1, Ordering::Relaxed);
            if let Some((socket, from, generation)) = accepted {
                receive_frames(&shared, socket, from);
                shared.link_ended(generation, from);
            }
        });
        if let Err(error) = started {
            tracing::warn!(%error, "no thread for a bulk link");
        }
    }
}

/// Checks a dialer, and waits a little for its view if that is not open here yet.
fn welcome(shared: &Shared, mut socket: TcpStream) -> Option<(TcpStream, NodeId, u64)> {
    tune(&socket);
    socket.set_read_timeout(Some(Duration::from_millis(shared.limits.handshake_ms))).ok()?;
    let mut challenge = [0; 32];
    getrandom::fill(&mut challenge).ok()?;
    socket.write_all(&challenge).ok()?;
    let mut hello = [0; HELLO];
    socket.read_exact(&mut hello).ok()?;
    let (said, mac) = hello.split_at(HELLO - 32);
    let expected = blake3::Hash::from_bytes(shared.mac(&challenge, said));
    // `Hash` compares in constant time.
    let genuine = expected == blake3::Hash::from_bytes(mac.try_into().ok()?);
    if !genuine || &said[..8] != MAGIC {
        tracing::warn!(from = ?socket.peer_addr(), "a bulk link without this ring's key was refused");
        return None;
    }
    let view: [u8; 32] = said[8..40].try_into().ok()?;
    let node = NodeId(u64::from_le_bytes(said[40..48].try_into().ok()?));
    let life = Incarnation(u64::from_le_bytes(said[48..56].try_into().ok()?));
    let generation = enter(shared, &socket, view, (node, life))?;
    socket.set_read_timeout(None).ok()?;
    Some((socket, node, generation))
}

fn enter(
    shared: &Shared,
    socket: &TcpStream,
    view: [u8; 32],
    (node, life): (NodeId, Incarnation),
) -> Option<u64> {
    let state = lock(&shared.state);
    let early = Duration::from_millis(shared.limits.early_ms);
    let other = |s: &mut State| s.view != Some(view) && !s.ended;
    let (mut state, _) = shared
        .opened
        .wait_timeout_while(state, early, other)
        .unwrap_or_else(PoisonError::into_inner);
    if state.view != Some(view) || state.members.get(&node) != Some(&life) {
        return None;
    }
    state.incoming.push(socket.try_clone().ok()?);
    Some(state.generation)
}

/// A received body on a 64-byte boundary.
struct Body(Vec<Line>, usize);

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.0)[..self.1]
    }
}

fn receive_frames(shared: &Shared, mut socket: TcpStream, from: NodeId) {
    let counts = shared.counts(from);
    loop {
        let mut header = [0; HEADER];
        if socket.read_exact(&mut header).is_err() {
            return;
        }
        let word = |at: usize| {
            u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let (frame_len, body_len) = (word(0) as usize, word(4) as usize);
        if word(8) != 0 || frame_len > crate::codec::FRAME_LIMIT || body_len > BODY_LIMIT {
            counts.corrupt.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut frame = vec![0; frame_len];
        if socket.read_exact(&mut frame).is_err() {
            return;
        }
        let mut body = Body(vec![Line([0; 64]); body_len.div_ceil(64)], body_len);
        let place = &mut bytemuck::cast_slice_mut(&mut body.0)[..body_len];
        if socket.read_exact(place).is_err() {
            return;
        }
        if checksum(&frame, place) != word(12) {
            counts.corrupt.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(%from, "a frame's checksum is wrong: the link is closed");
            return;
        }
        counts.received_frames.fetch_add(1, Ordering::Relaxed);
        counts.received_payload.fetch_add(body_len as u64, Ordering::Relaxed);
        counts.received_overhead.fetch_add((HEADER + frame_len) as u64, Ordering::Relaxed);
        let body = if body_len == 0 { Bytes::new() } else { Bytes::from_owner(body) };
        shared.sink.bulk(from, Bytes::from(frame), body);
    }
}
