//! A ring of a thousand.

use crate::rig::members;
use planaria_actors::protocol::Node;
use planaria_actors::protocol::spec::Limits;
use planaria_chaos_tests::faults::Fault;
use planaria_chaos_tests::swarm::toy_spec;
use planaria_chaos_tests::toy::Toy;
use planaria_chaos_tests::world::{Place, World};

const NODES: u64 = 1000;
/// Membership messages that one death may cost, per member: a suspicion with its probe (one retry),
/// proposal, promise, install, acknowledgement.
const MESSAGES_PER_MEMBER: u64 = 12;

fn sent(world: &World, but: u64) -> u64 {
    world.running().filter(|n| n.0 != but).map(|(_, n)| n.counters().membership_sent).sum()
}

fn all_have(world: &World, count: usize) -> bool {
    let has = |n: &Node| n.view().is_some_and(|v| v.view.members.len() == count) && !n.is_closed();
    world.running().all(|(_, n)| has(n))
}

/// A death costs O(N) messages in all and is settled in two seconds of virtual time, be it a
/// member's or the conductor's.
#[test]
fn a_death_among_a_thousand_costs_a_few_messages_each() {
    let mut spec = toy_spec(1024, 8, 2, 1000);
    spec.limits = Limits { joiners: 1024, ..spec.limits };
    spec.checkpoint_every = 1_000_000;
    let places: Vec<Place> =
        (0..NODES).map(|host| Place { host, capacity: 1, leaf_time: 100_000 }).collect();
    let mut world = World::new(spec, Toy::new(3, 0), &places, 3);
    world.found(0);
    (1..NODES).for_each(|id| world.join(id));
    let mut alive = NODES as usize;
    while !all_have(&world, alive) {
        world.run_until(world.now + 100_000);
        assert!(world.violation.is_none() && world.now < 300_000_000, "{:?}", world.violation);
    }
    world.run_until(world.now + 2_000_000);
    for victim in [members(&world)[500], members(&world)[0]] {
        let (before, began) = (sent(&world, victim), world.now);
        world.fault(Fault::Kill(victim));
        alive -= 1;
        while !all_have(&world, alive) {
            world.run_until(world.now + 20_000);
            assert!(world.now < began + 2_000_000, "settled in two seconds");
        }
        let cost = sent(&world, victim) - before;
        assert!(cost > NODES && cost <= MESSAGES_PER_MEMBER * NODES, "{cost} messages");
        println!("death of {victim}: {cost} messages, {} ms", (world.now - began) / 1000);
        world.run_until(world.now + 500_000);
    }
    assert!(world.violation.is_none(), "{:?}", world.violation);
}
