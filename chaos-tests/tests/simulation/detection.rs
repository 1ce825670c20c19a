//! PROTOCOL.md §5: who is evicted, when, and who never.

use crate::rig::{conductor, finish, members, ring, ring_of, soon};
use planaria_actors::protocol::effect::Stop;
use planaria_actors::protocol::spec::{Limits, Timing};
use planaria_chaos_tests::faults::Fault;
use planaria_chaos_tests::swarm::toy_spec;

/// A pause of half a second never evicts, at whatever node.
#[test]
fn short_pauses_never_evict() {
    for id in 0..4 {
        let mut world = ring(4, 2);
        let before = world.running().find_map(|(_, n)| n.view()).expect("a view").name;
        world.fault(Fault::Pause(id, 500_000));
        world.run_until(world.now + 3_000_000);
        assert!(world.running().all(|(_, n)| n.view().map(|v| v.name) == Some(before)));
        finish(&mut world);
    }
}

/// A pause of five seconds evicts; the sleeper finds itself fenced and is back within five more.
#[test]
fn long_pauses_evict_and_the_sleeper_rejoins() {
    for id in 0..4 {
        let mut world = ring(4, 2);
        world.fault(Fault::Pause(id, 5_000_000));
        world.run_until(world.now + 4_000_000);
        assert!(!members(&world).contains(&id), "{id} is out");
        world.run_until(world.now + 6_000_000);
        assert!(members(&world).contains(&id), "{id} is back");
        finish(&mut world);
    }
}

/// After a kill, every survivor has the next view within half a second.
#[test]
fn a_kill_is_settled_within_half_a_second() {
    for id in 0..4 {
        let mut world = ring(4, 2);
        world.fault(Fault::Kill(id));
        let end = world.now + 500_000;
        let told = |n: &planaria_actors::protocol::Node| {
            n.view().is_some_and(|v| v.view.members.len() == 3) && !n.is_closed()
        };
        while !world.running().all(|(_, n)| told(n)) {
            world.run_until(world.now + 10_000);
            assert!(world.now < end, "after the death of {id}");
        }
        finish(&mut world);
    }
}

/// An edge that swallows everything, both of whose ends others reach: the younger end goes.
#[test]
fn the_younger_end_of_a_broken_edge_leaves() {
    let mut world = ring(4, 2);
    let ages = members(&world);
    let (older, younger) = (ages[1], ages[3]);
    world.network.blocked.extend([(older, younger), (younger, older)]);
    world.verbose = true;
    world.run_until(world.now + 4_000_000);
    let evicted = |id: u64| world.lines.iter().any(|l| l.contains(&format!("(NodeId({id}), ")));
    assert!(evicted(younger) && !evicted(older), "{:?}", world.lines);
    world.fault(Fault::HealNetwork);
    finish(&mut world);
}

/// A deaf node, which all others hear, does not stop the ring.
#[test]
fn a_deaf_node_leaves_alone() {
    for deaf in 0..4 {
        let mut world = ring(4, 2);
        let others: Vec<u64> = (0..4).filter(|n| *n != deaf).collect();
        world.fault(Fault::Cut(others.clone(), false));
        world.run_until(world.now + 8_000_000);
        let ring = world.running().filter(|(id, _)| *id != deaf);
        let (_, one) = ring.max_by_key(|(_, n)| n.step()).expect("others run");
        let view = one.view().expect("a view");
        assert!(view.view.members.iter().all(|m| m.node.0 != deaf), "{deaf} is out");
        world.fault(Fault::HealNetwork);
        finish(&mut world);
    }
}

/// A node whose compute never ends is evicted as stuck, although its heartbeats go on.
#[test]
fn the_stuck_are_evicted() {
    let mut spec = toy_spec(12, 6, 2, 60);
    spec.timing = Timing { stuck: 3_000_000, ..spec.timing };
    let mut world = ring_of(4, spec);
    let stuck = members(&world)[2];
    world.fault(Fault::Wedge(stuck));
    world.verbose = true;
    world.run_until(world.now + 6_000_000);
    let evicted = format!("(NodeId({stuck}), Stuck)");
    assert!(world.lines.iter().any(|l| l.contains(&evicted)), "{:?}", world.lines);
    let chief = conductor(&world);
    assert_ne!(chief, stuck);
    world.fault(Fault::Kill(stuck));
    finish(&mut world);
}

/// A slow node is never evicted: under ZeRO-3 everybody waits for it, and that is no vote.
#[test]
fn the_slow_are_never_evicted() {
    let mut spec = toy_spec(12, 6, 2, 12);
    spec.timing = Timing { stuck: 5_000_000, ..spec.timing };
    let mut world = ring_of(4, spec);
    world.slots[2].leaf_time *= 40;
    finish(&mut world);
    assert_eq!(members(&world).len(), 4);
}

/// Two nodes dead on one leaf stop the run, and the leaf is named.
#[test]
fn a_poisoned_leaf_stops_the_run() {
    let mut spec = toy_spec(12, 6, 2, 60);
    spec.limits = Limits::default();
    let mut world = ring_of(6, spec);
    world.may_halt = true;
    let step = soon(&world);
    world.fault(Fault::Poison(step, 7));
    world.run_until(world.now + 20_000_000);
    let halted = world.running().find_map(|(_, n)| match n.stopped() {
        Some(Stop::Halted(reason)) => Some(reason.clone()),
        _ => None,
    });
    assert_eq!(halted, Some(format!("2 nodes died on leaf 7 of step {step}")));
    assert_eq!(world.kills, 2);
}

/// A node that comes and goes is kept out for longer and longer, and the ring runs on.
#[test]
fn the_flapping_are_kept_out() {
    let mut world = ring_of(4, toy_spec(12, 6, 2, 120));
    let mut ins = 0;
    for _ in 0..8 {
        world.fault(Fault::Kill(3));
        world.run_until(world.now + 300_000);
        world.fault(Fault::Restart(3));
        world.run_until(world.now + 700_000);
        ins += u32::from(members(&world).contains(&3));
    }
    assert!(ins <= 3, "it was let in {ins} times of 8");
    finish(&mut world);
}
