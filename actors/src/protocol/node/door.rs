//! Coming in, leaving, meeting the other side of a split, and people's requests, on one node.

use super::{Identity, Node, scene};
use crate::protocol::decision::Decision;
use crate::protocol::effect::{Effect, Line, Stop};
use crate::protocol::log::{Command, CommandLog};
use crate::protocol::message::{Evidence, Message, Request, Side};
use crate::protocol::shared::Shared;
use crate::protocol::spec::{Mutation, Spec};
use crate::protocol::split::{Meeting, meet, side_of};
use crate::protocol::view::{Ballot, ChunkSeat, Durable, Member, NamedView, View};
use planaria_base::{ChunkId, Incarnation, NodeId, Step, ViewId};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Node {
    /// The first node of a ring, starting from what is durable: the initial state, or a checkpoint.
    #[must_use]
    pub fn founding(
        spec: Arc<Spec>,
        identity: Identity,
        start: Option<(Decision, CommandLog)>,
    ) -> Node {
        let mut node = Node::joining(spec, identity, Vec::new());
        let (start, log) = start.unzip();
        node.log = log.unwrap_or_default();
        node.durable =
            Durable { step: start.as_ref().map_or(Step(0), |d| d.step), decision: start };
        node.door.founds = true;
        node
    }

    /// A view of ourselves alone, loaded from the durable state.
    fn found(&mut self) {
        let Identity { node, incarnation, host, at, capacity } = self.identity;
        let ballot = Ballot { number: ViewId(1), candidate: node };
        let since = ballot.number;
        let step = Step(self.durable.step.0 + 1);
        let seat = ChunkSeat { holders: vec![node], ..ChunkSeat::default() };
        let view = View {
            ballot,
            ancestry: Vec::new(),
            members: vec![Member { node, incarnation, host, at, capacity, since, draining: false }],
            seats: vec![seat; self.spec.chunks.len()],
            step,
            decision: self.durable.decision.clone(),
            lots: crate::protocol::lots::deal(self.spec.leaves, &[(node, 1)]),
            log: self.log.clone(),
            primary: true,
            electorate: vec![node],
            restored: true,
            restores: 0,
            durable: self.durable.clone(),
            deaths: Vec::new(),
            departed: Vec::new(),
            former: Vec::new(),
        };
        self.door.founds = false;
        self.install(Shared::new(view));
    }

    pub(super) fn on_door(&mut self, from: NodeId, message: Message) {
        use Message as M;
        match message {
            M::Join { member } => self.on_join(from, member),
            M::JoinRefused { retry_after } => {
                self.door.next_ask = self.now + retry_after;
            }
            M::NotMember(side) | M::Hello(side) => self.on_side(from, &side),
            M::Yield { to } => self.go_outside(vec![to]),
            M::Released => self.stop(Stop::Left),
            M::Ask(request) => self.on_asked(from, request),
            _ => {}
        }
    }

    pub(super) fn tick_door(&mut self) {
        if self.door.founds {
            return self.found();
        }
        if self.view.is_none() {
            return self.ask_to_join();
        }
        self.quarantine.prune(self.now);
        if !self.acts() {
            return;
        }
        self.greet_former();
        self.watch_wholeness();
        self.let_leavers_go();
        if !self.door.joiners.is_empty() && self.step_is_slow() {
            self.want_view();
        }
    }

    fn step_is_slow(&self) -> bool {
        let over = self.step > self.last_step();
        over || self.now >= self.door.boundary_at + self.spec.timing.hello
    }

    pub(super) fn want_view(&mut self) {
        self.door.wants_view.get_or_insert(self.now);
    }

    // Joining.

    fn ask_to_join(&mut self) {
        if self.now >= self.door.outside_since + self.spec.timing.lost_after {
            self.resume_alone();
        }
        if self.view.is_some() || self.now < self.door.next_ask || self.door.contacts.is_empty() {
            return;
        }
        self.door.next_ask = self.now + 2 * self.spec.timing.retry;
        let to = self.door.contacts[self.door.asked % self.door.contacts.len()];
        self.door.asked += 1;
        let Identity { node, incarnation, host, at, capacity } = self.identity;
        let member =
            Member { node, incarnation, host, at, capacity, since: ViewId(0), draining: false };
        self.post.send(to, Message::Join { member });
    }

    /// Nobody has let us in for a long time: the side that we yielded to may have died. Go on from
    /// our last view without the others, as one more side that meets them when they come back.
    fn resume_alone(&mut self) {
        let Some(last) = self.door.last.take() else { return };
        let me = self.identity.node;
        let mut view = View::clone(&last.view);
        let mine = view.members.iter_mut().filter(|m| m.node == me);
        mine.for_each(|m| m.incarnation = self.identity.incarnation);
        let others = view.members.iter().map(|m| m.node).filter(|&n| n != me);
        let evicted = others.map(|n| (n, Evidence::Silent)).collect();
        self.view = Some(NamedView { name: last.name, view: Shared::new(view) });
        self.change.propose([(me, false)].into(), evicted, self.now, &mut self.post);
    }

    /// Any member is a door; the conductor decides.
    fn on_join(&mut self, from: NodeId, member: Member) {
        let Some(view) = &self.view else { return };
        if let Some(known) = view.view.member(member.node) {
            if known.incarnation < member.incarnation {
                self.accuse(member.node, Evidence::Gone);
            } else if known.incarnation == member.incarnation && !self.change.closed {
                // It promised this view and never heard what came of it.
                let view = view.view.clone();
                self.post.send(member.node, Message::Install { view });
            }
            return;
        }
        let conductor = view.view.conductor();
        if !self.acts() {
            if conductor != from {
                self.post.send(conductor, Message::Join { member });
            }
            return;
        }
        let wait = self.quarantine.remaining(member.node, self.now, self.spec.timing.quarantine);
        if wait > 0 {
            return self.post.send(member.node, Message::JoinRefused { retry_after: wait });
        }
        if self.door.joiners.len() < self.spec.limits.joiners {
            self.door.joiners.insert(member.node, member);
        }
    }

    /// Leaves the view: keeps its copies, forgets its work, and asks to come in again as a new
    /// life.
    pub(super) fn go_outside(&mut self, first: Vec<NodeId>) {
        let Some(view) = self.view.take() else { return };
        self.roster.clear();
        let me = self.identity.node;
        let mut contacts = first;
        let members = view.view.members.iter().map(|m| m.node);
        contacts.extend(members.filter(|&n| n != me));
        contacts.extend(self.door.former.iter().copied().filter(|&n| n != me));
        contacts.dedup();
        self.identity.incarnation = Incarnation(self.identity.incarnation.0 + 1);
        self.post.incarnation = self.identity.incarnation;
        self.post.view = Default::default();
        self.post.emit(Effect::Fence { view: self.post.view });
        self.post.emit(Effect::Report(Line::Fenced));
        self.sender.begin(self.step, std::iter::empty(), &mut self.post);
        self.gather.cancel();
        if self.spec.has_bug(Mutation::DropWhenFenced) {
            for chunk in std::mem::take(&mut self.holders).into_keys() {
                self.post.emit(Effect::DropCopy { chunk });
            }
        }
        self.holders.values_mut().for_each(|h| h.leave(&mut self.post));
        self.detector.clear();
        self.accusations.clear();
        self.change.proposal = None;
        self.change.closed = false;
        self.conductor = Default::default();
        self.door.reset(contacts, self.now);
        self.door.last = Some(view);
    }

    // Leaving.

    /// A draining member holds nothing and has nothing to do: the next view is without it.
    fn leaves_now(&self, node: NodeId) -> bool {
        let Some(view) = &self.view else { return false };
        let asked = view.view.member(node).is_some_and(|m| m.draining);
        let holds = |s: &ChunkSeat| s.holders.contains(&node) || s.learners.contains(&node);
        if !asked
            || view.view.seats.iter().any(holds)
            || view.view.stayers().any(|m| m.node == node)
        {
            return false;
        }
        let dealt = view.view.step != self.step;
        let weighed = self.last_decision.iter().flat_map(|d| d.weights.iter());
        let works = if dealt {
            weighed.map(|w| w.0).any(|n| n == node)
        } else {
            view.view.lots.iter().any(|l| l.node == node)
        };
        !works || self.step > self.last_step()
    }

    /// Lets those go who have nothing left to do; the conductor asks its successor.
    fn let_leavers_go(&mut self) {
        for node in self.door.draining.clone() {
            if self.leaves_now(node) {
                self.accuse(node, Evidence::Left);
            } else if self.step > self.last_step() && self.changes_for(node) {
                self.want_view();
            }
        }
    }

    // View changes that can wait for the end of the step.

    /// A step is decided: the moment for newcomers, finished learners and leavers.
    pub(super) fn at_step_boundary(&mut self) {
        self.door.boundary_at = self.now;
        let waiting = !self.door.joiners.is_empty()
            || self.door.replicated
            || self.door.draining.iter().any(|&n| self.changes_for(n));
        if waiting && self.acts() {
            self.want_view();
        }
    }

    fn changes_for(&self, node: NodeId) -> bool {
        let known = self.view.as_ref().and_then(|v| v.view.member(node));
        known.is_some_and(|m| !m.draining)
    }

    /// All learners of the view keep up: the next view makes them holders.
    pub(super) fn note_replication(&mut self) {
        let Some(view) = &self.view else { return };
        let learns = |(c, seat): (usize, &ChunkSeat)| {
            let chunk = ChunkId(c as u32);
            seat.learners.iter().map(move |&n| (chunk, n)).collect::<Vec<_>>()
        };
        let wanted: BTreeSet<_> = view.view.seats.iter().enumerate().flat_map(learns).collect();
        if !wanted.is_empty() && wanted.is_subset(&self.conductor.caught_up) {
            self.door.replicated = true;
            if self.step > self.last_step() {
                self.want_view();
            }
        }
    }

    pub(super) fn door_installed(&mut self, view: &View) {
        let present = |n: &NodeId| view.member(*n).is_some();
        self.door.joiners.retain(|n, _| !present(n));
        self.door.draining.retain(present);
        let marked = view.members.iter().filter(|m| m.draining).map(|m| m.node);
        self.door.draining.extend(marked);
        self.door.former = view.former.iter().copied().collect();
        self.door.last = None;
        let wanted = self.spec.replicas.min(view.stayers().count());
        self.door.replicated = view.seats.iter().any(|s| s.holders.len() > wanted);
        self.door.wants_view = None;
        self.door.boundary_at = self.now;
        if self.door.replicated && view.step > self.last_step() {
            self.want_view();
        }
        if view.is_whole() {
            self.door.unwhole_since = None;
            self.door.give_up = false;
        } else {
            self.door.unwhole_since.get_or_insert(self.now);
            let chunk = self.door_lost_chunk();
            self.post.emit(Effect::Report(Line::Waiting(chunk)));
        }
    }

    // Unreachable is not dead.

    pub(super) fn door_lost_chunk(&self) -> ChunkId {
        let seats = self.view.as_ref().map_or(&[][..], |v| &v.view.seats[..]);
        ChunkId(seats.iter().position(|s| s.holders.is_empty()).unwrap_or(0) as u32)
    }

    /// Waits for out-of-reach copies; after a long time, or when every former member is proved
    /// dead, falls back on the checkpoint.
    fn watch_wholeness(&mut self) {
        let Some(since) = self.door.unwhole_since else { return };
        let hopeless = self.door.former.is_empty() && self.door.joiners.is_empty();
        if hopeless || self.now >= since + self.spec.timing.lost_after {
            self.door.give_up = true;
        }
        if (self.door.give_up || !self.door.joiners.is_empty()) && !self.is_proposing() {
            self.want_view();
        }
    }

    // Sides of a split.

    fn my_side(&self, view: &NamedView) -> Side {
        side_of(view, self.step, self.log.mark(Step(self.step.0 - 1)))
    }

    fn greet_former(&mut self) {
        let Some(view) = &self.view else { return };
        if self.now < self.door.hello_at + self.spec.timing.hello || self.door.former.is_empty() {
            return;
        }
        self.door.hello_at = self.now;
        let hello = Message::Hello(Box::new(self.my_side(view)));
        let former: Vec<NodeId> = self.door.former.iter().copied().collect();
        self.post.send_all(former, &hello);
    }

    /// A node that is not in our view speaks as if it were: tell it.
    pub(super) fn on_stranger(&mut self, from: NodeId, message: &Message) {
        let Some(view) = self.view.as_ref().filter(|_| !self.change.closed) else { return };
        let asks = matches!(
            message,
            Message::Heartbeat { .. }
                | Message::Probe
                | Message::Suspect { .. }
                | Message::Propose { .. }
                | Message::Reopen { .. }
                | Message::Install { .. }
        );
        if asks {
            let side = Box::new(self.my_side(view));
            self.post.send(from, Message::NotMember(side));
        }
    }

    /// Another view's side: yield to it, tell it to yield, or look whether it left ours.
    fn on_side(&mut self, from: NodeId, theirs: &Side) {
        self.change.saw(theirs.name.number);
        let Some(view) = &self.view else {
            if !self.door.contacts.contains(&theirs.conductor) {
                self.door.contacts.insert(0, theirs.conductor);
                self.door.contacts.truncate(self.spec.limits.former);
            }
            return;
        };
        let ours = self.my_side(view);
        let conductor = view.view.conductor();
        let member = view.view.member(from).is_some();
        match meet(&ours, theirs) {
            Meeting::Same => {}
            Meeting::Later => self.go_outside(vec![theirs.conductor, from]),
            Meeting::Wins if self.acts() => self.yield_to(theirs.conductor),
            Meeting::Wins if conductor == from || conductor == theirs.conductor => {
                self.go_outside(vec![theirs.conductor]);
            }
            Meeting::Wins => {
                self.post.send(conductor, Message::Hello(Box::new(theirs.clone())));
            }
            Meeting::Earlier | Meeting::Loses => {
                if member {
                    self.accuse(from, Evidence::Gone);
                }
                if from != self.identity.node && !member {
                    self.post.send(theirs.conductor, Message::Hello(Box::new(ours)));
                }
            }
        }
    }

    /// Our whole side joins the other.
    fn yield_to(&mut self, to: NodeId) {
        let me = self.identity.node;
        let everyone: Vec<NodeId> = self.scene().everyone().filter(|&n| n != me).collect();
        self.post.send_all(everyone, &Message::Yield { to });
        self.go_outside(vec![to]);
    }

    // People.

    fn on_asked(&mut self, from: NodeId, request: Request) {
        let Some(view) = &self.view else { return };
        let primary = view.view.primary;
        if view.view.conductor() != self.identity.node {
            let conductor = view.view.conductor();
            if from == self.identity.node {
                self.post.send(conductor, Message::Ask(request));
            }
            return;
        }
        match request {
            Request::Stop => self.conductor.stops = true,
            Request::Leave(node) => self.on_leave(node),
            Request::ScaleRate(_) if !primary => {
                self.refuse_request("this side is provisional: it takes no commands");
            }
            Request::ScaleRate(bits) => self.log_command(Command::ScaleRate(bits)),
            Request::Promote if primary => self.refuse_request("this side is primary already"),
            Request::Promote => {
                self.door.promote = true;
                self.want_view();
            }
        }
    }

    fn on_leave(&mut self, node: NodeId) {
        let Some(view) = &self.view else { return };
        let stays = |m: &&Member| m.node != node && !self.door.draining.contains(&m.node);
        if view.view.member(node).is_none() {
            self.refuse_request("no such member");
        } else if view.view.members.iter().any(|m| stays(&m)) {
            self.door.draining.insert(node);
        } else {
            self.refuse_request("the last member cannot leave");
        }
    }

    fn log_command(&mut self, command: Command) {
        let taken = self.conductor.command(command, &mut self.log, scene!(self), &mut self.post);
        if !taken {
            self.refuse_request("another command is on its way: try again");
        }
    }

    fn refuse_request(&mut self, why: &str) {
        self.post.emit(Effect::Report(Line::RequestRefused(why.to_owned())));
    }
}

impl super::Door {
    fn reset(&mut self, contacts: Vec<NodeId>, now: u64) {
        let former = std::mem::take(&mut self.former);
        let outside_since = now;
        *self =
            super::Door { contacts, next_ask: now, outside_since, former, ..Default::default() };
    }
}
