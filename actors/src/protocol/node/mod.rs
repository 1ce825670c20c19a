//! One node's machine: events in, effects out.
//!
//! The fields are the sub-machines; each handler borrows only those it changes. [`step`] has the
//! data plane, [`watch`] detection and view changes, [`install`] the passage from one view to the
//! next, [`door`] joining, leaving, splitting and people's requests.

mod door;
mod install;
mod step;
mod watch;

use super::conductor::Conductor;
use super::decision::Decision;
use super::effect::{Counters, Effect, Event, Post, Stop};
use super::holder::{Holder, Scene};
use super::log::CommandLog;
use super::membership::{Accusations, Detector, Quarantine};
use super::message::{Frame, Message};
use super::sender::{Gather, Sender};
use super::spec::{Mutation, Spec};
use super::view::{Durable, Member, NamedView, ViewName};
use super::view_change::ViewChange;
use planaria_base::{ChunkId, Incarnation, NodeId, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// A node as it presents itself before it is a member.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Its stable name: the same after a restart.
    pub node: NodeId,
    /// Grows with each start and each rejoin.
    pub incarnation: Incarnation,
    /// The machine it runs on.
    pub host: u64,
    /// Where it listens; `None` in simulations.
    pub at: Option<SocketAddr>,
    /// How much it can hold, relative to others.
    pub capacity: u64,
}

/// Joining, leaving and meeting other sides.
#[derive(Debug, Default)]
struct Door {
    /// Whom an outsider asks to let it in.
    contacts: Vec<NodeId>,
    asked: usize,
    next_ask: u64,
    /// An outsider's last view, and since when it has been outside.
    last: Option<NamedView>,
    outside_since: u64,
    /// Conductor: who asks to come in.
    joiners: BTreeMap<NodeId, Member>,
    /// Conductor: who is to leave.
    draining: BTreeSet<NodeId>,
    /// Former members that may be on another side.
    former: BTreeSet<NodeId>,
    hello_at: u64,
    /// Since when a chunk has been out of reach.
    unwhole_since: Option<u64>,
    give_up: bool,
    promote: bool,
    founds: bool,
    /// Conductor: all learners of this view keep up, or a chunk has a holder too many.
    replicated: bool,
    boundary_at: u64,
    /// Conductor: a reason for a view change that can wait for the end of the step.
    wants_view: Option<u64>,
}

/// One node.
pub struct Node {
    spec: Arc<Spec>,
    identity: Identity,
    now: u64,
    view: Option<NamedView>,
    /// The view's members, by name.
    roster: BTreeMap<NodeId, Incarnation>,
    step: Step,
    restores: u32,
    decisions: BTreeMap<Step, Decision>,
    last_decision: Option<Decision>,
    durable: Durable,
    log: CommandLog,
    holders: BTreeMap<ChunkId, Holder>,
    sender: Sender,
    gather: Gather,
    conductor: Conductor,
    detector: Detector,
    accusations: Accusations,
    quarantine: Quarantine,
    change: ViewChange,
    door: Door,
    install_sent_at: u64,
    copies_left: usize,
    copies_at: u64,
    asked_decision_at: u64,
    progress: u64,
    /// The step after which the run was asked to stop.
    ended_at: Option<Step>,
    /// The first closed link since the last view, for the report.
    evidence_at: Option<u64>,
    finished: bool,
    stopped: Option<Stop>,
    post: Post,
}

/// The step, the run and the members, for handlers; borrows fields that handlers do not change.
macro_rules! scene {
    ($node:ident) => {
        $crate::protocol::holder::Scene {
            now: $node.now,
            spec: &$node.spec,
            last_step: $node.ended_at.unwrap_or($node.spec.last_step),
            step: $node.step,
            members: $node.view.as_ref().map_or(&[], |v| &v.view.members),
            conductor: $node.view.as_ref().map_or($node.identity.node, |v| v.view.conductor()),
            decisions: &$node.decisions,
        }
    };
}
pub(crate) use scene;

impl Node {
    /// A node that wants to join the ring of which it knows some members.
    #[must_use]
    pub fn joining(spec: Arc<Spec>, identity: Identity, contacts: Vec<NodeId>) -> Node {
        let parts = spec.parts();
        let post = Post {
            run: spec.run,
            me: identity.node,
            incarnation: identity.incarnation,
            ..Post::default()
        };
        Node {
            identity,
            now: 0,
            view: None,
            roster: BTreeMap::new(),
            step: Step(1),
            restores: 0,
            decisions: BTreeMap::new(),
            last_decision: None,
            durable: Durable { step: Step(0), decision: None },
            log: CommandLog::default(),
            holders: BTreeMap::new(),
            sender: Sender::new(parts),
            gather: Gather::default(),
            conductor: Conductor::default(),
            detector: Detector::default(),
            accusations: Accusations::default(),
            quarantine: Quarantine::default(),
            change: ViewChange::default(),
            door: Door { contacts, ..Door::default() },
            install_sent_at: 0,
            copies_left: 0,
            copies_at: 0,
            asked_decision_at: 0,
            progress: 0,
            ended_at: None,
            evidence_at: None,
            finished: false,
            stopped: None,
            post,
            spec,
        }
    }

    /// Takes an event at time `now` (microseconds, never going back) and appends effects to `out`.
    /// A stopped node does nothing.
    pub fn handle(&mut self, now: u64, event: Event, out: &mut Vec<Effect>) {
        if self.stopped.is_some() {
            return;
        }
        self.now = self.now.max(now);
        std::mem::swap(&mut self.post.effects, out);
        self.dispatch(event);
        while let Some(message) = self.post.local.pop_front() {
            if self.stopped.is_none() {
                self.take(self.identity.node, message);
            }
        }
        std::mem::swap(&mut self.post.effects, out);
    }

    fn dispatch(&mut self, event: Event) {
        match event {
            Event::Tick => self.tick(),
            Event::Frame(frame) => self.on_frame(*frame),
            Event::LinkClosed(node) => {
                if self.roster.contains_key(&node) {
                    self.evidence_at.get_or_insert(self.now);
                }
                self.detector.on_link_closed(node, self.now, &mut self.post);
            }
            Event::ExitSeen(node, incarnation) => self.on_exit_seen(node, incarnation),
            Event::CopyLost(chunk) => self.on_copy_lost(chunk),
            Event::Ask(request) => self.on_request(request),
            done => {
                self.progress += 1;
                self.on_done(done);
            }
        }
    }

    /// Law 4: a frame of another run, life or view changes nothing and is counted.
    fn on_frame(&mut self, frame: Frame) {
        let Frame { run, view, from, incarnation, message } = frame;
        if run != self.spec.run {
            self.post.counters.foreign += 1;
            return;
        }
        let known = self.roster.get(&from).copied();
        if message.is_data() {
            let open = self.view.is_some() && view == self.name() && !self.change.closed;
            if known != Some(incarnation) || !(open || self.spec.has_bug(Mutation::SkipFence)) {
                self.post.counters.stale += 1;
                return;
            }
        }
        if known == Some(incarnation) {
            self.detector.on_frame(from, &message, self.now);
            if !self.detector.suspects(from) {
                self.accusations.acquit(self.identity.node, from);
            }
        } else if !self.is_for_strangers(&message) {
            self.post.counters.unknown += 1;
            return self.on_stranger(from, &message);
        }
        self.take(from, message);
    }

    /// What a node takes from one that is not in its view.
    fn is_for_strangers(&self, message: &Message) -> bool {
        match message {
            Message::Join { .. }
            | Message::NotMember(_)
            | Message::Hello(_)
            | Message::Refuse { .. } => true,
            Message::Report { .. } => true,
            _ => self.view.is_none(),
        }
    }

    fn take(&mut self, from: NodeId, message: Message) {
        if message.is_data() {
            if self.view.is_some() {
                self.on_data(from, message);
            }
        } else {
            self.on_membership(from, message);
        }
    }

    fn stop(&mut self, why: Stop) {
        self.post.emit(Effect::Stop(why.clone()));
        self.stopped = Some(why);
    }

    fn name(&self) -> ViewName {
        self.view.as_ref().map_or_else(ViewName::default, |v| v.name)
    }

    fn conducts(&self) -> bool {
        self.view.as_ref().is_some_and(|v| v.view.conductor() == self.identity.node)
    }

    /// The run ends after this step.
    #[must_use]
    pub fn last_step(&self) -> Step {
        self.ended_at.unwrap_or(self.spec.last_step)
    }

    // What simulators, status and tests look at.

    /// The latest state that is on disk everywhere.
    #[must_use]
    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    /// The installed view.
    #[must_use]
    pub fn view(&self) -> Option<&NamedView> {
        self.view.as_ref()
    }

    /// No data frame is taken now.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.view.is_none() || self.change.closed
    }

    /// The step in flight.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// Why it stopped, if it did.
    #[must_use]
    pub fn stopped(&self) -> Option<&Stop> {
        self.stopped.as_ref()
    }

    /// This node's copies.
    #[must_use]
    pub fn holders(&self) -> &BTreeMap<ChunkId, Holder> {
        &self.holders
    }

    /// Decisions it keeps.
    #[must_use]
    pub fn decisions(&self) -> &BTreeMap<Step, Decision> {
        &self.decisions
    }

    /// Which life this is.
    #[must_use]
    pub fn incarnation(&self) -> Incarnation {
        self.identity.incarnation
    }

    /// The commands it knows.
    #[must_use]
    pub fn log(&self) -> &CommandLog {
        &self.log
    }

    /// Members of earlier views that may be on another side.
    #[must_use]
    pub fn former_members(&self) -> &BTreeSet<NodeId> {
        &self.door.former
    }

    /// What was sent and dropped.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.post.counters
    }

    /// A number that changes whenever a data frame has changed something.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let holders = self.holders.values().map(Holder::fingerprint);
        holders.fold(self.step.0, |sum, f| sum.wrapping_mul(31).wrapping_add(f))
    }

    /// Entries in tables that must stay bounded by the members (and chunks).
    #[must_use]
    pub fn table_sizes(&self) -> usize {
        let holders: usize = self.holders.values().map(Holder::table_sizes).sum();
        holders
            + self.sender.table_sizes()
            + self.conductor.table_sizes()
            + self.detector.table_sizes()
            + self.accusations.table_sizes()
            + self.quarantine.table_sizes()
            + self.door.former.len()
            + self.door.joiners.len()
    }

    /// Everything that matters for finding out why a node waits, for people who debug.
    #[must_use]
    pub fn describe(&self) -> String {
        let view = self.view.as_ref().map(|v| (&v.name.number, v.view.conductor(), &v.view.seats));
        format!(
            "step {} view {view:?}\n change {:?}\n holders {:?}\n sender {:?}\n gather {:?}\n \
             conductor {:?}\n accusations {:?}\n door {:?}",
            self.step,
            self.change,
            self.holders,
            self.sender,
            self.gather,
            self.conductor,
            self.accusations,
            self.door,
        )
    }

    fn scene(&self) -> Scene<'_> {
        scene!(self)
    }
}

#[cfg(test)]
pub(crate) fn test_spec() -> Spec {
    use super::decision::StepRule;
    use super::spec::{ChunkSpec, Limits, Timing};
    Spec {
        run: planaria_base::RunId::default(),
        leaves: 4,
        chunks: vec![ChunkSpec { bytes: 1, sites: 1 }],
        emission: Vec::new(),
        eager_gather: true,
        replicas: 3,
        checkpoint_every: 100,
        last_step: Step(100),
        rule: StepRule {
            schedule: Arc::new(|_: u64| 0.1),
            clip: None,
            leaf_factor: 1.0,
            loss_scale: None,
            skips_that_stop: 8,
        },
        timing: Timing::default(),
        limits: Limits::default(),
        bugs: Vec::new(),
    }
}
