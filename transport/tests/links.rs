//! Pairs of transports on loopback: order, bodies, views, death, keys, strangers.

#![allow(clippy::disallowed_methods, reason = "a test of times reads the clock")]

use bytes::Bytes;
use planaria_base::{Incarnation, NodeId};
use planaria_transport::key::RingKey;
use planaria_transport::{BulkChoice, Error, Limits, Peer, Reply, Setup, Sink, Transport};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Debug, PartialEq)]
enum Got {
    Words(Bytes),
    Bulk(NodeId, Bytes, Bytes),
    Closed(NodeId),
}

struct Ear(Mutex<SyncSender<Got>>);

impl Ear {
    fn hear(&self, got: Got) {
        let _ = self.0.lock().expect("no panic").send(got);
    }
}

impl Sink for Ear {
    fn words(&self, frame: Bytes) {
        self.hear(Got::Words(frame));
    }

    fn bulk(&self, from: NodeId, frame: Bytes, body: Bytes) {
        self.hear(Got::Bulk(from, frame, body));
    }

    fn closed(&self, peer: NodeId) {
        self.hear(Got::Closed(peer));
    }

    fn request(&self, _: SocketAddr, asked: Bytes, reply: Reply) {
        if asked == "silence" {
            return;
        }
        let mut answer = b"you asked ".to_vec();
        answer.extend_from_slice(&asked);
        reply.send(Bytes::from(answer));
    }
}

struct End {
    transport: Transport,
    heard: Receiver<Got>,
}

const PATIENCE: Duration = Duration::from_secs(10);

impl End {
    fn new(node: u64, key: u8, listen: &str) -> End {
        End::try_new(node, key, listen).expect("a transport")
    }

    fn try_new(node: u64, key: u8, listen: &str) -> Result<End, Error> {
        let (sender, heard) = sync_channel(1 << 16);
        let setup = Setup {
            key: RingKey::from_bytes([key; 32]),
            node: NodeId(node),
            incarnation: Incarnation(1),
            host: 1,
            listen: listen.parse().expect("an address"),
            bulk: BulkChoice::Tcp,
            limits: Limits { early_ms: 2000, ..Limits::default() },
        };
        let transport = Transport::start(setup, Arc::new(Ear(Mutex::new(sender))))?;
        Ok(End { transport, heard })
    }

    fn peer(&self) -> Peer {
        self.transport.local()
    }

    fn next(&self) -> Got {
        self.heard.recv_timeout(PATIENCE).expect("something is heard")
    }

    fn expect_silence(&self, wait: Duration) {
        assert!(self.heard.recv_timeout(wait).is_err());
    }
}

fn pair() -> (End, End) {
    (End::new(1, 7, "127.0.0.1:0"), End::new(2, 7, "127.0.0.1:0"))
}

fn open(view: u8, ends: &[&End]) {
    let peers: Vec<Peer> = ends.iter().map(|e| e.peer()).collect();
    ends.iter().for_each(|e| e.transport.open([view; 32], &peers));
}

/// Words come in order; beats come; requests are answered, or it is said that there is no answer.
#[test]
fn words_beats_and_requests() {
    let (a, b) = pair();
    for i in 0..100u8 {
        a.transport.words(&b.peer(), Bytes::from(vec![i; 1000]));
    }
    for i in 0..100u8 {
        assert_eq!(b.next(), Got::Words(Bytes::from(vec![i; 1000])));
    }
    b.transport.beat(&a.peer(), Bytes::from_static(b"alive"));
    assert_eq!(a.next(), Got::Words(Bytes::from_static(b"alive")));
    let wait = Duration::from_secs(5);
    let answer = a.transport.ask(b.peer().at, Bytes::from_static(b"why"), wait);
    assert_eq!(answer.expect("an answer"), "you asked why");
    let silence = a.transport.ask(b.peer().at, Bytes::from_static(b"silence"), wait);
    assert!(matches!(silence, Err(Error::Unreachable { .. })));
}

/// Data frames come in order with their bodies, aligned, and are counted to the byte.
#[test]
fn bodies_come_whole_and_counted() {
    let (a, b) = pair();
    open(1, &[&a, &b]);
    let body =
        |i: usize| Bytes::from((0..i * 30_011).map(|k| (k * 7 + i) as u8).collect::<Vec<_>>());
    let mut payload = 0;
    for i in 0..40 {
        payload += body(i).len() as u64;
        a.transport.bulk(NodeId(2), Bytes::from(vec![i as u8; 10]), body(i));
    }
    for i in 0..40 {
        let Got::Bulk(from, frame, got) = b.next() else { panic!("a data frame") };
        assert_eq!((from, &frame[..]), (NodeId(1), &[i as u8; 10][..]));
        assert!(got == body(i), "body {i}");
        assert!(got.is_empty() || got.as_ptr().align_offset(64) == 0);
    }
    let sent = a.transport.counters()[0].1;
    let received = b.transport.counters()[0].1;
    assert_eq!((sent.sent_frames, sent.sent_payload), (40, payload));
    assert_eq!((received.received_frames, received.received_payload), (40, payload));
    assert_eq!(sent.sent_overhead, 40 * (16 + 10));
    assert_eq!(received.received_overhead, sent.sent_overhead);
}

/// Another view closes the links at once; what is sent in the new one comes, and nothing else.
#[test]
fn a_new_view_revokes_the_old_links() {
    let (a, b) = pair();
    open(1, &[&a, &b]);
    a.transport.bulk(NodeId(2), Bytes::from_static(b"old"), Bytes::new());
    assert_eq!(b.next(), Got::Bulk(NodeId(1), Bytes::from_static(b"old"), Bytes::new()));
    b.transport.fence();
    assert_eq!(a.next(), Got::Closed(NodeId(2)), "the other side sees the end of its links");
    open(2, &[&a, &b]);
    a.transport.bulk(NodeId(2), Bytes::from_static(b"new"), Bytes::from_static(b"body"));
    loop {
        match b.next() {
            Got::Closed(_) => {}
            got => {
                let (frame, body) = (Bytes::from_static(b"new"), Bytes::from_static(b"body"));
                break assert_eq!(got, Got::Bulk(NodeId(1), frame, body));
            }
        }
    }
}

/// A link that is early for its view waits for it.
#[test]
fn an_early_link_waits_for_its_view() {
    let (a, b) = pair();
    let peers = [a.peer(), b.peer()];
    a.transport.open([5; 32], &peers);
    a.transport.bulk(NodeId(2), Bytes::from_static(b"early"), Bytes::new());
    b.expect_silence(Duration::from_millis(200));
    b.transport.open([5; 32], &peers);
    assert_eq!(b.next(), Got::Bulk(NodeId(1), Bytes::from_static(b"early"), Bytes::new()));
}

/// A node that ends is noticed by its links within milliseconds.
#[test]
fn the_end_of_a_node_is_seen_at_once() {
    let (a, b) = pair();
    open(1, &[&a, &b]);
    a.transport.bulk(NodeId(2), Bytes::from_static(b"x"), Bytes::new());
    b.next();
    let start = Instant::now();
    drop(a);
    assert_eq!(b.next(), Got::Closed(NodeId(1)));
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
}

/// Without the key nobody is heard: not by words, not by requests, not on bulk links.
#[test]
fn a_wrong_key_is_refused() {
    let (a, stranger) = (End::new(1, 7, "127.0.0.1:0"), End::new(2, 8, "127.0.0.1:0"));
    let asked = stranger.transport.ask(
        a.peer().at,
        Bytes::from_static(b"let me in"),
        Duration::from_secs(5),
    );
    assert!(matches!(asked, Err(Error::WrongKey { .. })), "{asked:?}");
    stranger.transport.words(&a.peer(), Bytes::from_static(b"hello"));
    let peers = [a.peer(), stranger.peer()];
    a.transport.open([1; 32], &peers);
    stranger.transport.open([1; 32], &peers);
    stranger.transport.bulk(NodeId(1), Bytes::from_static(b"data"), Bytes::new());
    let until = Instant::now() + Duration::from_millis(800);
    while let Ok(got) = a.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
        assert_eq!(got, Got::Closed(NodeId(2)));
    }
}

/// Garbage, silence and a half-open handshake on the bulk port hold nobody up.
#[test]
fn strangers_hold_nobody_up() {
    let (a, b) = pair();
    let mut held = Vec::new();
    for i in 0..50 {
        let mut socket = std::net::TcpStream::connect(a.peer().at).expect("it listens");
        if i % 2 == 0 {
            let _ = socket.write_all(&[i; 300]);
        }
        held.push(socket);
    }
    let udp = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for i in 0..200u8 {
        let _ = udp.send_to(&[i; 900], a.peer().at);
    }
    open(1, &[&a, &b]);
    b.transport.bulk(NodeId(1), Bytes::from_static(b"through"), Bytes::new());
    assert_eq!(a.next(), Got::Bulk(NodeId(2), Bytes::from_static(b"through"), Bytes::new()));
    let mut rest = Vec::new();
    held[1].set_read_timeout(Some(PATIENCE)).expect("a timeout");
    held[1].read_to_end(&mut rest).expect("the silent one is dropped after the handshake's time");
}

/// IPv6 works; a taken port is one clear error; nobody at an address is another.
#[test]
fn addresses_and_ports() {
    let (a, b) = (End::new(1, 7, "[::1]:0"), End::new(2, 7, "[::1]:0"));
    open(1, &[&a, &b]);
    a.transport.bulk(NodeId(2), Bytes::from_static(b"six"), Bytes::new());
    assert_eq!(b.next(), Got::Bulk(NodeId(1), Bytes::from_static(b"six"), Bytes::new()));
    let taken = End::try_new(3, 7, &a.peer().at.to_string()).err().expect("the port is taken");
    assert!(taken.to_string().contains("--listen"), "{taken}");
    let free = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let nobody = free.local_addr().expect("an address");
    drop(free);
    let asked = b.transport.ask(nobody, Bytes::new(), Duration::from_millis(500));
    assert!(matches!(asked, Err(Error::Unreachable { .. })), "{asked:?}");
}
