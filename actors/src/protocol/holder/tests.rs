//! Rules 1 to 5 of PROTOCOL.md §2 at one holder: messages in, effects out.

use super::{Holder, Mark, Role, Scene};
use crate::protocol::decision::{Decision, Inputs, decide};
use crate::protocol::effect::{Effect, Post};
use crate::protocol::log::CommandLog;
use crate::protocol::lots::LotId;
use crate::protocol::message::{Message, PartialKey};
use crate::protocol::node::test_spec;
use crate::protocol::record::{Flags, Record};
use crate::protocol::spec::Spec;
use crate::protocol::view::{ChunkSeat, Member};
use planaria_base::{ChunkId, Digest, Incarnation, NodeId, Site, Step, ViewId};
use std::collections::BTreeMap;

const CHUNK: ChunkId = ChunkId(0);

/// One holder of a view of nodes 1 (owner), 2, 3 (replicas) and 4 (learner), at step 5.
struct Bench {
    spec: Spec,
    members: Vec<Member>,
    decisions: BTreeMap<Step, Decision>,
    step: Step,
    now: u64,
    holder: Holder,
    post: Post,
}

impl Bench {
    fn new(me: u64, state: u64) -> Bench {
        let member = |n| Member {
            at: None,
            node: NodeId(n),
            incarnation: Incarnation(1),
            host: n,
            capacity: 1,
            since: ViewId(1),
            draining: false,
        };
        let mut bench = Bench {
            spec: test_spec(),
            members: (1..=4).map(member).collect(),
            decisions: BTreeMap::new(),
            step: Step(5),
            now: 1,
            holder: Holder::new(CHUNK, 1),
            post: Post { me: NodeId(me), ..Post::default() },
        };
        bench.holder.state = Some(mark(state, 0));
        let seat = ChunkSeat {
            holders: vec![NodeId(1), NodeId(2), NodeId(3)],
            learners: vec![NodeId(4)],
            fixed_at: Vec::new(),
        };
        bench.act(|holder, scene, post| holder.install(&seat, scene, post));
        bench.post.effects.clear();
        bench
    }

    fn act(&mut self, act: impl FnOnce(&mut Holder, Scene<'_>, &mut Post)) -> Vec<Effect> {
        let scene = Scene {
            last_step: self.spec.last_step,
            now: self.now,
            spec: &self.spec,
            step: self.step,
            members: &self.members,
            conductor: NodeId(1),
            decisions: &self.decisions,
        };
        act(&mut self.holder, scene, &mut self.post);
        std::mem::take(&mut self.post.effects)
    }

    fn partial(&mut self, start: u32, len: u32) -> Vec<Effect> {
        let key = PartialKey { step: self.step, chunk: CHUNK, site: Site(0), lot: LotId(start) };
        self.act(|h, scene, post| h.on_partial(NodeId(2), (key, start, len), scene, post))
    }

    fn decide(&mut self, record: Record) {
        let log = CommandLog::default();
        let inputs = Inputs {
            rule: &self.spec.rule,
            previous: None,
            records: &[record],
            log: &log,
            weights: Vec::new(),
        };
        self.decisions.insert(record.step, decide(record.step, inputs));
    }
}

fn mark(step: u64, hash: u8) -> Mark {
    Mark { step: Step(step), hash: Digest([hash; 32]) }
}

fn record(step: u64) -> Record {
    Record {
        step: Step(step),
        digest: Digest([step as u8; 32]),
        flags: Flags::default(),
        sum_of_squares: 1f64.to_bits(),
        labels: 1,
        loss: 0,
    }
}

fn sent(effects: &[Effect]) -> Vec<(u64, &Message)> {
    let send = |e| match e {
        &Effect::Send { to, ref frame } => Some((to.0, &frame.message)),
        _ => None,
    };
    effects.iter().filter_map(send).collect()
}

fn adds(effects: &[Effect]) -> usize {
    effects.iter().filter(|e| matches!(e, Effect::Add { .. })).count()
}

/// Rule 2: disjoint leaves are added; a subset is acknowledged and not added; a partial overlap is
/// refused and changes nothing.
#[test]
fn an_owner_adds_each_leaf_once() {
    let mut bench = Bench::new(1, 4);
    let first = bench.partial(0, 2);
    assert_eq!(adds(&first), 1);
    assert!(matches!(sent(&first)[..], [(2, Message::Added { .. })]));
    let again = bench.partial(1, 1);
    assert_eq!(adds(&again), 0);
    assert!(matches!(sent(&again)[..], [(2, Message::Added { .. })]));
    let overlap = bench.partial(1, 2);
    assert_eq!(adds(&overlap), 0);
    assert!(matches!(sent(&overlap)[..], [(2, Message::Refused { .. })]));
    assert_eq!(adds(&bench.partial(2, 2)), 1);
    assert_eq!(bench.post.counters.refused, 1);
}

/// Rules 2 and 3: a full bitmap asks for the lanes; wrong lanes zero the sum and ask everyone
/// again; right ones fix the record and forward it to the replicas and the learner.
#[test]
fn a_full_sum_is_checked_then_fixed() {
    let mut bench = Bench::new(1, 4);
    assert_eq!(
        bench.partial(0, 3).iter().filter(|e| matches!(e, Effect::FixRecord { .. })).count(),
        0
    );
    let full = bench.partial(3, 1);
    assert!(full.contains(&Effect::FixRecord { chunk: CHUNK, step: Step(5), alone: false }));
    let wrong = bench.act(|h, scene, post| h.on_fixed(Step(5), None, scene, post));
    assert!(wrong.contains(&Effect::ZeroSum { chunk: CHUNK }));
    assert!(sent(&wrong).iter().all(|m| matches!(m.1, Message::Again { .. })));
    assert_eq!(sent(&wrong).len(), 3, "everyone but ourselves, who hear it too");
    assert_eq!(adds(&bench.partial(0, 4)), 1, "the leaves are welcome again");
    let fixed = bench.act(|h, scene, post| h.on_fixed(Step(5), Some(record(5)), scene, post));
    let to: Vec<u64> = sent(&fixed).iter().map(|m| m.0).collect();
    assert_eq!(to, [2, 3, 4]);
}

/// A sum that is full before the state before it is complete waits for it.
#[test]
fn a_record_waits_for_the_state_before_it() {
    let mut bench = Bench::new(1, 3);
    let full = bench.partial(0, 4);
    assert!(!full.iter().any(|e| matches!(e, Effect::FixRecord { .. })));
    bench.holder.state = Some(mark(4, 0));
    let next = bench.act(|h, scene, post| h.advance(scene, post));
    assert!(next.contains(&Effect::FixRecord { chunk: CHUNK, step: Step(5), alone: false }));
}

/// Rule 3: Final only when all replicas said Held; the learner's word does not count.
#[test]
fn final_waits_for_all_replicas_and_no_learner() {
    let mut bench = Bench::new(1, 4);
    bench.partial(0, 4);
    bench.act(|h, scene, post| h.on_fixed(Step(5), Some(record(5)), scene, post));
    let mut held = |from: u64, digest: u8| {
        let held = (Step(5), Digest([digest; 32]));
        let effects = bench.act(|h, scene, post| h.on_held(NodeId(from), held, scene, post));
        sent(&effects).iter().filter(|m| matches!(m.1, Message::Final { .. })).count()
    };
    assert_eq!(held(2, 5), 0);
    assert_eq!(held(4, 5), 0, "a learner");
    assert_eq!(held(3, 6), 0, "another record");
    assert_eq!(held(3, 5), 3, "all but ourselves");
    assert_eq!(held(3, 5), 0, "once");
}

/// Rule 3: a replica with a gap does not answer Held; one without does, every time it is asked.
#[test]
fn held_means_no_gap() {
    let ask = |bench: &mut Bench| {
        let effects = bench.act(|h, scene, post| h.on_record(NodeId(1), record(5), scene, post));
        sent(&effects).iter().filter(|m| matches!(m.1, Message::Held { .. })).count()
    };
    let mut behind = Bench::new(2, 3);
    assert_eq!(ask(&mut behind), 0);
    assert_eq!(behind.holder.record, None);
    let mut ready = Bench::new(2, 4);
    assert_eq!((ask(&mut ready), ask(&mut ready)), (1, 1));
    let from_other = ready.act(|h, scene, post| h.on_record(NodeId(3), record(5), scene, post));
    assert!(from_other.is_empty(), "only the owner forwards records");
}

/// §2 and §8: a decision is applied to scratch; the swap waits until all holders told the same
/// hash, and drops the record.
#[test]
fn the_swap_waits_for_equal_hashes() {
    let mut bench = Bench::new(2, 4);
    bench.act(|h, scene, post| h.on_record(NodeId(1), record(5), scene, post));
    bench.decide(record(5));
    bench.step = Step(6);
    let applied = bench.act(|h, scene, post| h.advance(scene, post));
    assert!(matches!(applied[..], [Effect::Update { .. }]));
    let hash = Digest([9; 32]);
    let told = bench.act(|h, scene, post| h.on_updated(Step(5), hash, scene, post));
    assert_eq!(sent(&told).len(), 2);
    let said = (mark(5, 9), 0, false);
    let one = bench.act(|h, scene, post| h.on_state_hash(NodeId(1), said, scene, post));
    assert!(one.is_empty());
    let all = bench.act(|h, scene, post| h.on_state_hash(NodeId(3), said, scene, post));
    assert!(all.contains(&Effect::Swap { chunk: CHUNK, step: Step(5) }));
    assert_eq!((bench.holder.state, bench.holder.record), (Some(mark(5, 9)), None));
}

/// §8: a different hash makes the holder look at its own state and record first; if they are what
/// was agreed it computes again, and a wrong attempt of the other does not count twice.
#[test]
fn a_different_hash_is_looked_into() {
    let mut bench = Bench::new(2, 4);
    bench.act(|h, scene, post| h.on_record(NodeId(1), record(5), scene, post));
    bench.decide(record(5));
    bench.act(|h, scene, post| h.advance(scene, post));
    bench.act(|h, scene, post| h.on_updated(Step(5), Digest([9; 32]), scene, post));
    let wrong = (mark(5, 8), 0, false);
    let differs = bench.act(|h, scene, post| h.on_state_hash(NodeId(3), wrong, scene, post));
    assert!(differs.contains(&Effect::Verify { chunk: CHUNK }));
    let mut culprit = true;
    let again = bench.act(|h, scene, post| culprit = h.on_verified(true, scene, post));
    assert!(!culprit && matches!(again[..], [Effect::Update { .. }]));
    bench.act(|h, scene, post| h.on_updated(Step(5), Digest([9; 32]), scene, post));
    let repeated = bench.act(|h, scene, post| h.on_state_hash(NodeId(3), wrong, scene, post));
    assert!(!repeated.contains(&Effect::Verify { chunk: CHUNK }));
}

/// Rule 5: a gather names a step; the next one waits for the swap, any other is answered Stale.
#[test]
fn gathers_name_a_step() {
    let mut bench = Bench::new(1, 4);
    let mut ask = |step: u64| bench.act(|h, _, post| h.on_gather(NodeId(2), Step(step), post));
    assert!(matches!(sent(&ask(4))[..], [(2, Message::Params { step: Step(4), .. })]));
    assert!(matches!(sent(&ask(3))[..], [(2, Message::Stale { have: Step(4), .. })]));
    assert!(matches!(sent(&ask(7))[..], [(2, Message::Stale { .. })]));
    assert!(ask(5).is_empty(), "parked");
    bench.holder.state = Some(mark(5, 0));
    let swapped = bench.act(|h, scene, post| h.advance(scene, post));
    assert!(matches!(sent(&swapped)[..], [(2, Message::Params { step: Step(5), .. })]));
}

/// §6: a learner copies, queues at most four records, and copies again when the fifth comes.
#[test]
fn a_learner_queues_four_records() {
    let mut bench = Bench::new(4, 0);
    assert_eq!(bench.holder.role, Role::Learner);
    bench.holder.state = Some(mark(5, 0));
    for step in 6..10 {
        bench.act(|h, scene, post| h.on_record(NodeId(1), record(step), scene, post));
    }
    assert!(bench.holder.state.is_some());
    bench.act(|h, scene, post| h.on_record(NodeId(1), record(10), scene, post));
    assert_eq!(bench.holder.state, None);
    bench.step = Step(11);
    bench.now += 1_000_000;
    let asks = bench.act(|h, scene, post| h.tick(scene, post));
    assert!(matches!(sent(&asks)[..], [(1, Message::CopyRequest { .. })]));
}

/// Rule 8c: an owner that stays keeps its sum in the next view; one that is replaced forgets it.
#[test]
fn a_staying_owner_keeps_its_sum() {
    let seat = |owner: u64, other: u64| ChunkSeat {
        holders: vec![NodeId(owner), NodeId(other)],
        ..ChunkSeat::default()
    };
    let mut bench = Bench::new(1, 4);
    bench.partial(0, 2);
    bench.act(|h, scene, post| h.install(&seat(1, 2), scene, post));
    assert_eq!(adds(&bench.partial(0, 2)), 0, "still there");
    let gone = bench.act(|h, scene, post| h.install(&seat(2, 1), scene, post));
    assert!(gone.contains(&Effect::ZeroSum { chunk: CHUNK }));
    bench.act(|h, scene, post| h.install(&seat(1, 2), scene, post));
    assert_eq!(adds(&bench.partial(0, 2)), 1, "an empty sum");
}
