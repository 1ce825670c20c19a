//! The wire between processes: the protocol's frames over [`planaria_transport`].
//!
//! Data frames go with their bodies over the bulk links of the view; everything else as words over
//! QUIC; heartbeats and probes as datagrams.

use super::node::{Arrived, Ask, Inspect, LinkClosed, Node, Status};
use super::wire::{Outgoing, Wire};
use crate::protocol::message::{Frame, Message, Request};
use crate::protocol::view::{Member, ViewName};
use actix::Addr;
use bytes::Bytes;
use planaria_base::{Incarnation, NodeId};
use planaria_models::partials::Lanes;
use planaria_transport::codec::{decode, encode};
use planaria_transport::{LinkCounters, Peer, Reply, Sink, Transport};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// A frame as it travels.
#[derive(Serialize, Deserialize)]
struct Envelope {
    frame: Frame,
    lanes: Option<Lanes>,
}

/// What an outsider who holds the ring key may ask.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Question {
    /// What is this run? I want to join, and compute with this numerics class.
    Knock {
        /// The class, as text: equal text means equal bits.
        numerics: String,
    },
    /// How does it go?
    Status,
    /// Do something.
    Do(Request),
    /// Bytes of the run's data from this offset on.
    Data {
        /// First byte.
        offset: u64,
    },
}

/// A member, as outsiders see it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Who and where.
    pub member: Member,
    /// Chunks that it owns, and holds at all.
    pub owned: usize,
    /// Chunks that it holds, owned ones included.
    pub held: usize,
    /// Leaves of the step in flight.
    pub leaves: u32,
    /// Its weight: leaves per 1,000 s.
    pub weight: u32,
}

/// What a member says of the ring.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct RingStatus {
    /// The view's number.
    pub view: u64,
    /// Whether this side is primary.
    pub primary: bool,
    /// Oldest first.
    pub members: Vec<MemberStatus>,
    /// The step in flight, and the last.
    pub step: u64,
    /// The run's last step.
    pub last_step: u64,
    /// The latest durable step.
    pub durable: u64,
    /// Mean loss of the last step, in nats.
    pub loss: Option<f64>,
    /// Copies of each chunk, at least.
    pub copies: usize,
}

/// What a member answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum Answer {
    /// The run, as text that the embedder understands, and who is in it.
    Welcome {
        /// The run's introduction.
        run: String,
        /// Members whom to ask.
        members: Vec<Member>,
    },
    /// How it goes.
    Status(Box<RingStatus>),
    /// The request was passed on.
    Done,
    /// A stretch of data; empty at its end.
    Data(Vec<u8>),
    /// No, and why.
    Refused(String),
}

/// What a member tells outsiders about its run.
pub trait Introduction: Send + Sync {
    /// The run as text for those who compute in this numerics class, or why they may not join.
    ///
    /// # Errors
    /// Says what differs.
    fn run(&self, numerics: &str) -> Result<String, String>;

    /// A stretch of the run's data; empty at its end.
    ///
    /// # Errors
    /// If it cannot be read.
    fn data(&self, offset: u64) -> Result<Vec<u8>, String>;
}

/// The node that a transport speaks for, once it is started.
struct Behind {
    node: Addr<Node>,
    arbiter: actix::ArbiterHandle,
    introduction: Arc<dyn Introduction>,
}

/// The ear of a node: passes on what the transport hears.
#[derive(Clone, Default)]
pub struct Ear {
    behind: Arc<OnceLock<Behind>>,
}

impl Ear {
    /// From here on `node` hears.
    pub fn open(
        &self,
        node: Addr<Node>,
        arbiter: actix::ArbiterHandle,
        introduction: Arc<dyn Introduction>,
    ) {
        let _ = self.behind.set(Behind { node, arbiter, introduction });
    }
}

impl Sink for Ear {
    fn words(&self, frame: Bytes) {
        self.hear(&frame, Bytes::new(), None);
    }

    fn bulk(&self, from: NodeId, frame: Bytes, body: Bytes) {
        self.hear(&frame, body, Some(from));
    }

    fn closed(&self, peer: NodeId) {
        if let Some(behind) = self.behind.get() {
            behind.node.do_send(LinkClosed(peer));
        }
    }

    fn request(&self, _: SocketAddr, asked: Bytes, reply: Reply) {
        let Some(behind) = self.behind.get() else { return };
        match decode::<Question>(&asked) {
            Ok(question) => behind.answer(question, reply),
            Err(error) => reply.send(encode(&Answer::Refused(error.to_string()))),
        }
    }
}

impl Ear {
    fn hear(&self, frame: &Bytes, body: Bytes, link: Option<NodeId>) {
        let Some(behind) = self.behind.get() else { return };
        match decode::<Envelope>(frame) {
            Ok(Envelope { frame, lanes }) if link.is_none_or(|from| from == frame.from) => {
                behind.node.do_send(Arrived(Outgoing { frame, lanes, body }));
            }
            Ok(_) => tracing::warn!(?link, "a frame in another node's name was dropped"),
            Err(error) => tracing::warn!(%error, "a frame was dropped"),
        }
    }
}

impl Behind {
    fn answer(&self, question: Question, reply: Reply) {
        match question {
            Question::Knock { numerics } => match self.introduction.run(&numerics) {
                Ok(run) => self.with_status(reply, |status| {
                    let members = status.view.map(|v| v.view.members.clone());
                    Answer::Welcome { run, members: members.unwrap_or_default() }
                }),
                Err(reason) => reply.send(encode(&Answer::Refused(reason))),
            },
            Question::Status => self.with_status(reply, |status| {
                ring_status(&status).map_or_else(
                    || Answer::Refused("this node is not in the ring at present".to_owned()),
                    |s| Answer::Status(Box::new(s)),
                )
            }),
            Question::Do(request) => {
                self.node.do_send(Ask(request));
                reply.send(encode(&Answer::Done));
            }
            Question::Data { offset } => {
                let answer = self.introduction.data(offset);
                reply.send(encode(&answer.map_or_else(Answer::Refused, Answer::Data)));
            }
        }
    }

    fn with_status(&self, reply: Reply, answer: impl FnOnce(Status) -> Answer + Send + 'static) {
        let node = self.node.clone();
        self.arbiter.spawn(async move {
            if let Ok(status) = node.send(Inspect).await {
                reply.send(encode(&answer(status)));
            }
        });
    }
}

/// What outsiders are told.
#[must_use]
pub fn ring_status(status: &Status) -> Option<RingStatus> {
    let view = &status.view.as_ref()?.view;
    let weights = status.decision.iter().flat_map(|d| d.weights.iter().copied());
    let weights: BTreeMap<NodeId, u32> = weights.collect();
    let members = view.members.iter().map(|member| {
        let node = member.node;
        let lots = view.lots.iter().filter(|l| l.node == node);
        MemberStatus {
            member: *member,
            owned: view.seats.iter().filter(|s| s.owner() == Some(node)).count(),
            held: view.seats.iter().filter(|s| s.holders.contains(&node)).count(),
            leaves: lots.map(|l| l.len).sum(),
            weight: weights.get(&node).copied().unwrap_or_default(),
        }
    });
    let mean = |d: &crate::protocol::decision::Decision| {
        planaria_models::partials::loss_from_grid(d.loss) / d.labels.max(1) as f64
    };
    Some(RingStatus {
        view: view.ballot.number.0,
        primary: view.primary,
        members: members.collect(),
        step: status.step.0,
        last_step: status.last_step.0,
        durable: status.durable.0,
        loss: status.decision.as_ref().map(mean),
        copies: view.seats.iter().map(|s| s.holders.len()).min().unwrap_or_default(),
    })
}

/// A node's way to other processes.
pub struct NetWire {
    transport: Transport,
    peers: Mutex<BTreeMap<NodeId, Peer>>,
}

fn peer_of(member: &Member) -> Option<Peer> {
    let Member { node, incarnation, host, at, .. } = *member;
    at.map(|at| Peer { node, incarnation, host, at })
}

impl NetWire {
    /// A wire over a transport, which knows these members at first.
    #[must_use]
    pub fn new(transport: Transport, members: &[Member]) -> NetWire {
        let peers = members.iter().filter_map(peer_of).map(|p| (p.node, p)).collect();
        NetWire { transport, peers: Mutex::new(peers) }
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<NodeId, Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What went over the bulk links, by peer.
    #[must_use]
    pub fn counters(&self) -> Vec<(NodeId, LinkCounters)> {
        self.transport.counters()
    }
}

impl Wire for NetWire {
    fn send(&self, to: NodeId, out: Outgoing) {
        let Outgoing { frame, lanes, body } = out;
        let envelope = Envelope { frame, lanes };
        let message = &envelope.frame.message;
        if message.is_data() {
            return self.transport.bulk(to, encode(&envelope), body);
        }
        let Some(peer) = self.peers().get(&to).copied() else { return };
        match message {
            Message::Heartbeat { .. } | Message::Probe | Message::ProbeAck => {
                self.transport.beat(&peer, encode(&envelope));
            }
            _ => self.transport.words(&peer, encode(&envelope)),
        }
    }

    fn fence(&self, view: ViewName, members: &[Member]) {
        if members.is_empty() {
            return self.transport.fence();
        }
        members.iter().for_each(|m| self.learn(m));
        let peers: Vec<Peer> = members.iter().filter_map(peer_of).collect();
        self.transport.open(view.content.0, &peers);
    }

    fn learn(&self, member: &Member) {
        let Some(peer) = peer_of(member) else { return };
        let mut peers = self.peers();
        let newer = |known: &Peer| known.incarnation <= peer.incarnation;
        if peers.get(&peer.node).is_none_or(newer) {
            peers.insert(peer.node, peer);
        }
    }
}

/// A name for a life of a node: its name and how often it came back.
#[must_use]
pub fn life(node: NodeId, incarnation: Incarnation) -> String {
    format!("{:08x}.{}", node.0 & 0xffff_ffff, incarnation.0)
}
