//! Joining, draining, falling back, splitting and healing.

use crate::rig::{finish, holders, members, ring, ring_of};
use planaria_actors::protocol::Node;
use planaria_actors::protocol::effect::{Line, Stop};
use planaria_actors::protocol::message::Request;
use planaria_actors::protocol::{Effect, Event, Spec};
use planaria_base::Step;
use planaria_chaos_tests::faults::Fault;
use planaria_chaos_tests::shell::Load;
use planaria_chaos_tests::swarm::toy_spec;
use planaria_chaos_tests::toy::Toy;
use planaria_chaos_tests::world::{Place, World};

fn last_states(world: &World) -> Vec<u64> {
    let last = world.spec.last_step;
    let chunks = 0..world.spec.chunks.len();
    let state = |chunk: usize| {
        let holder = holders(world, chunk)[0];
        let id = planaria_base::ChunkId(chunk as u32);
        let (step, state) = world.slots[holder as usize].shell.states[&id];
        assert_eq!(step, last);
        state
    };
    chunks.map(state).collect()
}

/// Law 1: one node, five nodes, and five nodes of which two die and one joins late end with the
/// same states, and so does the computation without any protocol.
#[test]
fn the_end_does_not_depend_on_the_ring() {
    let run = |nodes: u64, faults: &[Fault]| {
        let mut world = ring(nodes, 2);
        for fault in faults {
            world.run_until(world.now + 500_000);
            world.fault(fault.clone());
        }
        finish(&mut world);
        last_states(&world)
    };
    let alone = run(1, &[]);
    assert_eq!(run(5, &[]), alone);
    assert_eq!(run(5, &[Fault::Kill(2), Fault::Kill(0), Fault::Restart(2)]), alone);
    let mut world = ring(1, 2);
    let log = planaria_actors::protocol::log::CommandLog::default();
    assert_eq!(world.golden.at(Step(60), &log).0, alone);
}

/// A stampede: all join in one instant, and it costs a few view changes, not one each.
#[test]
fn a_stampede_is_folded() {
    let world = ring_of(40, toy_spec(80, 6, 2, 60));
    let number = world.running().find_map(|(_, n)| n.view()).expect("a view").name.number;
    assert!(number.0 <= 12, "{number} views for 39 joins");
}

/// A drained node gives its chunks away, then leaves; nothing is recomputed, and nobody falls back.
#[test]
fn a_drained_node_leaves_with_nothing() {
    for id in 0..4 {
        let mut world = ring(4, 2);
        world.fault(Fault::Leave(id));
        world.run_until(world.now + 2_000_000);
        assert!(!members(&world).contains(&id) && !world.is_alive(id), "{id} has left");
        finish(&mut world);
    }
}

/// Both holders of a chunk die: the ring says so, goes back to the last checkpoint after the wait,
/// and follows the trajectory again.
#[test]
fn losing_all_copies_falls_back_on_the_checkpoint() {
    let mut world = ring(5, 2);
    world.may_fall_back = true;
    world.verbose = true;
    world.run_until(world.now + 1_000_000);
    for id in holders(&world, 3) {
        world.fault(Fault::Kill(id));
    }
    finish(&mut world);
    assert!(world.lines.iter().any(|l| l.contains("Waiting")));
    assert!(world.lines.iter().any(|l| l.contains("FellBack")));
}

/// A side that is not primary goes on computing, refuses commands, and healing makes one ring.
#[test]
fn a_split_ring_computes_on_both_sides_and_heals() {
    let mut world = ring_of(5, toy_spec(12, 6, 5, 200));
    let ages = members(&world);
    let (minority, majority) = (ages[..2].to_vec(), ages[2..].to_vec());
    world.fault(Fault::Cut(minority.clone(), true));
    world.run_until(world.now + 4_000_000);
    let step = |world: &World, id: u64| world.slots[id as usize].node.as_ref().map(Node::step);
    let (small, large) = (step(&world, minority[0]), step(&world, majority[0]));
    world.run_until(world.now + 2_000_000);
    assert!(step(&world, minority[0]) > small && step(&world, majority[0]) > large);
    let primary = |id: u64| {
        let node = world.slots[id as usize].node.as_ref();
        node.and_then(Node::view).map(|v| v.view.primary)
    };
    assert_eq!((primary(minority[0]), primary(majority[0])), (Some(false), Some(true)));
    let ask = Event::Ask(Request::ScaleRate(0.5f32.to_bits()));
    let mut effects = Vec::new();
    let now = world.now;
    let small_chief = world.slots[minority[0] as usize].node.as_mut().expect("it runs");
    small_chief.handle(now, ask.clone(), &mut effects);
    let refused = |e: &Effect| matches!(e, Effect::Report(Line::RequestRefused(_)));
    assert!(effects.iter().any(refused));
    world.handle(majority[0], ask, Load::None);
    world.run_until(world.now + 500_000);
    world.fault(Fault::HealNetwork);
    finish(&mut world);
    assert!(world.running().all(|(_, n)| n.log().entries().len() == 1), "the command survived");
}

/// A promoted side may take commands, and its branch, being longer, wins.
#[test]
fn a_promoted_side_takes_commands_and_wins() {
    let mut world = ring_of(5, toy_spec(12, 6, 5, 200));
    let ages = members(&world);
    let minority = ages[..2].to_vec();
    world.fault(Fault::Cut(minority.clone(), true));
    world.run_until(world.now + 4_000_000);
    world.handle(minority[0], Event::Ask(Request::Promote), Load::None);
    world.run_until(world.now + 1_000_000);
    world.handle(minority[0], Event::Ask(Request::ScaleRate(2f32.to_bits())), Load::None);
    world.run_until(world.now + 1_000_000);
    world.fault(Fault::HealNetwork);
    finish(&mut world);
    assert!(world.running().all(|(_, n)| n.log().entries().len() == 2), "promotion and command");
}

/// `stop` ends the run at the end of a step, at every node, and that step is durable.
#[test]
fn stop_stops_everyone_at_a_durable_step() {
    let mut world = ring(4, 2);
    world.handle(2, Event::Ask(Request::Stop), Load::None);
    world.run_until(world.now + 1_000_000);
    let ends: Vec<Step> = world.running().map(|(_, n)| n.last_step()).collect();
    assert!(ends.iter().all(|&e| e == ends[0] && e < toy_spec(4, 2, 1, 60).last_step), "{ends:?}");
    assert!(world.running().all(|(_, n)| n.step().0 == ends[0].0 + 1));
    assert!(world.running().all(|(_, n)| n.durable().step == ends[0]));
}

/// Where a run stops whose every step overflows.
fn stop_of(spec: Spec) -> Option<Stop> {
    let place = Place { host: 0, capacity: 1, leaf_time: 100 };
    let mut world = World::new(spec, Toy::new(5, 1), &[place], 5);
    world.may_halt = true;
    world.found(0);
    world.run_until(5_000_000);
    world.running().find_map(|(_, n)| n.stopped().cloned())
}

/// Eight skips in a row stop the run and name the chunks. With a loss scale of 2^16 the run goes on
/// while the scale can be halved: the first overflow uses the hysteresis, sixteen halve, and the
/// eighteenth finds the scale at 1.
#[test]
fn skips_running_stop_the_run() {
    let mut plain = toy_spec(4, 2, 1, 30);
    plain.rule.loss_scale = None;
    let reason = "8 steps skipped in a row up to step 8; chunks 0, 1".to_owned();
    assert_eq!(stop_of(plain), Some(Stop::Halted(reason)));
    let reason = "gradients are not finite at the smallest loss scale at step 18; chunks 0, 1";
    assert_eq!(stop_of(toy_spec(4, 2, 1, 30)), Some(Stop::Halted(reason.to_owned())));
}
