//! Each invariant is alive: with a known bug put back, it is the one that complains.

use crate::rig::{finish, holders, ring_of};
use planaria_actors::protocol::spec::Mutation;
use planaria_chaos_tests::faults::Fault;
use planaria_chaos_tests::swarm::{run_seed, toy_spec};

/// Seeds tried before a bug counts as not found.
const SEEDS: u64 = 200;

fn is_caught(bug: Mutation, invariant: &str) {
    let mut others = Vec::new();
    for seed in 0..SEEDS {
        match run_seed(seed, &[bug], false).violation {
            Some(v) if v.invariant == invariant => return,
            Some(v) => others.push(v),
            None => {}
        }
    }
    panic!("{bug:?} is not caught by {invariant} in {SEEDS} seeds, but: {others:?}");
}

#[test]
fn adding_duplicates_breaks_exactly_once() {
    is_caught(Mutation::AcceptDuplicates, "exactly-once");
}

#[test]
fn taking_other_views_frames_breaks_fencing() {
    is_caught(Mutation::SkipFence, "fencing");
}

#[test]
fn final_before_held_breaks_replication() {
    is_caught(Mutation::FinalBeforeHeld, "replication");
}

#[test]
fn no_re_replication_breaks_replication() {
    is_caught(Mutation::NoRereplication, "replication");
}

#[test]
fn swapping_without_comparing_is_silent_corruption() {
    is_caught(Mutation::SkipHashExchange, "no silent corruption");
}

#[test]
fn never_pruning_breaks_hygiene() {
    is_caught(Mutation::NeverPrune, "hygiene");
}

#[test]
fn losing_dead_lots_breaks_liveness() {
    is_caught(Mutation::LoseDeadLots, "liveness");
}

#[test]
fn deciding_in_arrival_order_breaks_agreement() {
    is_caught(Mutation::DecideInArrivalOrder, "agreement");
}

#[test]
fn durable_too_early_breaks_durability() {
    is_caught(Mutation::DurableTooEarly, "durability");
}

#[test]
fn unheard_commands_break_the_trajectory() {
    is_caught(Mutation::TakeCommandsUnheard, "trajectory");
}

/// Rule 10: all holders of a chunk sleep and are evicted; when they wake, the ring goes on from
/// their copies. A node that deletes its copies when it finds itself fenced loses steps.
#[test]
fn dropping_copies_when_fenced_breaks_durability() {
    for (bugs, broken) in [(vec![], None), (vec![Mutation::DropWhenFenced], Some("durability"))] {
        let mut spec = toy_spec(12, 6, 2, 60);
        spec.bugs = bugs;
        let mut world = ring_of(5, spec);
        for id in holders(&world, 2) {
            world.fault(Fault::Pause(id, 5_000_000));
        }
        world.run_to_convergence(60_000_000);
        assert_eq!(world.violation.as_ref().map(|v| v.invariant), broken);
        if broken.is_none() {
            finish(&mut world);
        }
    }
}
