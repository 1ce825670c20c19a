//! Small rings for named tests.

use planaria_actors::protocol::message::{Frame, Message};
use planaria_actors::protocol::spec::Spec;
use planaria_base::NodeId;
use planaria_chaos_tests::faults::Fault;
use planaria_chaos_tests::swarm::toy_spec;
use planaria_chaos_tests::toy::Toy;
use planaria_chaos_tests::world::{Place, Tap, World};

/// A ring of `nodes` hosts with `replicas` copies of each of 6 chunks, 12 leaves, 60 steps of about
/// 100 ms. The world may not fall back on a checkpoint unless a test allows it.
pub(crate) fn ring(nodes: u64, replicas: usize) -> World {
    ring_of(nodes, toy_spec(12, 6, replicas, 60))
}

/// A ring for this run, after all have joined and every copy is there.
pub(crate) fn ring_of(nodes: u64, spec: Spec) -> World {
    let parts = spec.chunks.len() as u64 * u64::from(spec.leaves);
    let place = |host| Place { host, capacity: 1, leaf_time: 100_000 * nodes / parts };
    let places: Vec<Place> = (0..nodes).map(place).collect();
    let mut world = World::new(spec, Toy::new(11, 0), &places, 11);
    world.may_fall_back = false;
    world.found(0);
    (1..nodes).for_each(|id| world.join(id));
    for _ in 0..400 {
        if everyone_is_in(&world, nodes) && world.replicated().is_ok() {
            break;
        }
        world.run_until(world.now + 20_000);
    }
    assert!(everyone_is_in(&world, nodes), "the ring forms: {:?}", world.violation);
    world
}

fn everyone_is_in(world: &World, nodes: u64) -> bool {
    let members = |n: &planaria_actors::protocol::Node| n.view().map(|v| v.view.members.len());
    world.running().filter(|(_, n)| members(n) == Some(nodes as usize)).count() as u64 == nodes
}

/// The latest view's conductor.
pub(crate) fn conductor(world: &World) -> u64 {
    let views = world.running().filter_map(|(_, n)| n.view());
    views.max_by_key(|v| v.name.number).expect("a ring has a view").view.conductor().0
}

/// The members of the latest view.
pub(crate) fn members(world: &World) -> Vec<u64> {
    let views = world.running().filter_map(|(_, n)| n.view());
    let latest = views.max_by_key(|v| v.name.number).expect("a ring has a view");
    latest.view.members.iter().map(|m| m.node.0).collect()
}

/// The owner and replicas of a chunk.
pub(crate) fn holders(world: &World, chunk: usize) -> Vec<u64> {
    let views = world.running().filter_map(|(_, n)| n.view());
    let latest = views.max_by_key(|v| v.name.number).expect("a ring has a view");
    latest.view.seats[chunk].holders.iter().map(|n: &NodeId| n.0).collect()
}

/// A step that the ring has not begun.
pub(crate) fn soon(world: &World) -> u64 {
    world.running().map(|(_, n)| n.step().0).max().expect("a node runs") + 2
}

/// Runs to the end of the run; everything must have healed and every invariant held.
pub(crate) fn finish(world: &mut World) {
    world.run_to_convergence(120_000_000);
    let told = world.lines.join("\n");
    assert!(world.violation.is_none(), "{:?}\n{told}", world.violation);
    assert!(world.has_healed(), "{:?} {:?}\n{told}", world.converged(), world.replicated());
}

/// A script that acts on the first frame that `is` accepts, and then lets all pass.
pub(crate) fn once(
    world: &mut World,
    is: impl Fn(u64, u64, &Frame) -> bool + 'static,
    act: impl Fn(u64, u64) -> Tap + 'static,
) {
    let mut done = false;
    world.script = Some(Box::new(move |from, to, frame| {
        if done || !is(from, to, frame) {
            return Tap::Pass;
        }
        done = true;
        act(from, to)
    }));
}

/// A frame that forwards a record of `step` or later.
pub(crate) fn is_record(frame: &Frame, step: u64) -> bool {
    matches!(&frame.message, Message::Record { record, .. } if record.step.0 >= step)
}

/// The faults of one kill.
pub(crate) fn kill(id: u64) -> Vec<Fault> {
    vec![Fault::Kill(id)]
}
