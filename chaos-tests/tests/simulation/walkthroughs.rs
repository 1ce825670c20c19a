//! The walk-throughs of PROTOCOL.md §3, as scripts that strike at an exact point.

use crate::rig::{conductor, finish, holders, is_record, kill, once, ring, soon};
use planaria_actors::protocol::message::Message;
use planaria_chaos_tests::faults::Fault;
use planaria_chaos_tests::world::{Tap, World};
use std::cell::Cell;
use std::rc::Rc;

fn is_decision(message: &Message, step: u64) -> bool {
    matches!(message, Message::Decided(d) if d.step.0 >= step)
}

/// Runs with a script, and sees that what it waits for happened.
fn finish_scripted(world: &mut World, struck: &Rc<Cell<u32>>, times: u32) {
    finish(world);
    assert_eq!(struck.get(), times, "the script struck");
}

/// 8d, 8e: the owner dies before forwarding its record; a replica becomes owner, empty, and the
/// senders, who freed nothing, send again.
#[test]
fn owner_dies_before_forwarding() {
    let mut world = ring(4, 2);
    let step = soon(&world);
    let struck = Rc::new(Cell::new(0));
    let count = struck.clone();
    once(
        &mut world,
        move |_, _, frame| is_record(frame, step),
        move |from, _| {
            count.set(1);
            Tap::Drop(kill(from))
        },
    );
    finish_scripted(&mut world, &struck, 1);
}

/// 8a: the conductor dies after telling one node; that node's decision goes to all.
#[test]
fn conductor_dies_after_telling_one() {
    let mut world = ring(4, 2);
    let struck = Rc::new(Cell::new(0));
    let (count, chief, step) = (struck.clone(), conductor(&world), soon(&world));
    world.script = Some(Box::new(move |from, _, frame| {
        if from != chief || !is_decision(&frame.message, step) {
            return Tap::Pass;
        }
        count.set(count.get() + 1);
        if count.get() == 1 { Tap::Pass } else { Tap::Drop(kill(chief)) }
    }));
    finish_scripted(&mut world, &struck, 2);
}

/// The conductor dies after telling one, and that one dies too: the next computes the decision
/// again from the records, with the same bits.
#[test]
fn conductor_and_the_one_it_told_die() {
    let mut world = ring(5, 3);
    let struck = Rc::new(Cell::new(0));
    let (count, chief, step) = (struck.clone(), conductor(&world), soon(&world));
    world.script = Some(Box::new(move |from, to, frame| {
        if from != chief || !is_decision(&frame.message, step) {
            return Tap::Pass;
        }
        count.set(count.get() + 1);
        if count.get() == 1 { Tap::Then(kill(to)) } else { Tap::Drop(kill(chief)) }
    }));
    finish_scripted(&mut world, &struck, 2);
}

/// Rule 3: a replica misses records for a while; Final waits for it, and no step is lost when the
/// owner dies right after.
#[test]
fn replica_with_a_gap() {
    let mut world = ring(4, 2);
    let struck = Rc::new(Cell::new(0));
    let count = struck.clone();
    let (owner, replica, step) = (holders(&world, 0)[0], holders(&world, 0)[1], soon(&world));
    world.script = Some(Box::new(move |from, to, frame| {
        if (from, to) != (owner, replica) || !is_record(frame, step) || count.get() >= 3 {
            return Tap::Pass;
        }
        count.set(count.get() + 1);
        Tap::Drop(if count.get() == 3 { kill(owner) } else { Vec::new() })
    }));
    finish_scripted(&mut world, &struck, 3);
}

/// Rule 2: every partial of the run arrives twice; each is added once.
#[test]
fn partials_arrive_twice() {
    let mut world = ring(4, 2);
    let struck = Rc::new(Cell::new(0));
    let count = struck.clone();
    world.script = Some(Box::new(move |_, _, frame| match frame.message {
        Message::Partial { .. } => {
            count.set(1);
            Tap::Twice
        }
        _ => Tap::Pass,
    }));
    finish_scripted(&mut world, &struck, 1);
    let duplicates: u64 = world.running().map(|(_, n)| n.counters().duplicates).sum();
    assert!(duplicates > 100, "{duplicates} duplicates were acknowledged and not added");
}

/// Rule 6: a member dies while the view change for another's death is under way in the same step.
#[test]
fn two_view_changes_in_one_step() {
    let mut world = ring(5, 3);
    let struck = Rc::new(Cell::new(0));
    let count = struck.clone();
    world.script = Some(Box::new(move |_, to, frame| match frame.message {
        Message::Propose { .. } if count.get() == 0 => {
            count.set(1);
            Tap::Then(kill(to))
        }
        _ => Tap::Pass,
    }));
    let victim = holders(&world, 1)[0];
    world.fault(Fault::Kill(if victim == 0 { holders(&world, 1)[1] } else { victim }));
    finish_scripted(&mut world, &struck, 1);
    assert_eq!(world.kills, 2);
}

/// The new owner dies while it is being promoted: when its Install is on the way, and when it
/// forwards its first record.
#[test]
fn new_owner_dies_during_promotion() {
    let mut world = ring(5, 3);
    let struck = Rc::new(Cell::new(0));
    let count = struck.clone();
    let victim = (0..6).map(|c| holders(&world, c)).find(|h| h[0] != 0).expect("not all are 0's");
    let (old, heir) = (victim[0], victim[1..].iter().copied().find(|&n| n != 0).expect("R is 3"));
    world.script = Some(Box::new(move |_, to, frame| match frame.message {
        Message::Install { .. } if to == heir && count.get() == 0 => {
            count.set(1);
            Tap::Then(kill(heir))
        }
        _ => Tap::Pass,
    }));
    world.fault(Fault::Kill(old));
    finish_scripted(&mut world, &struck, 1);
}

/// The conductor dies during its own view change, after installing the view at one member.
#[test]
fn conductor_dies_after_installing_at_one() {
    let mut world = ring(5, 3);
    let struck = Rc::new(Cell::new(0));
    let (count, chief) = (struck.clone(), conductor(&world));
    world.script = Some(Box::new(move |from, _, frame| match frame.message {
        Message::Install { .. } if from == chief => {
            count.set(count.get() + 1);
            if count.get() == 1 { Tap::Pass } else { Tap::Drop(kill(chief)) }
        }
        _ => Tap::Pass,
    }));
    let victim = if chief == 4 { 3 } else { 4 };
    world.fault(Fault::Kill(victim));
    finish_scripted(&mut world, &struck, 2);
}
