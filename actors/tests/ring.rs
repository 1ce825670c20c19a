//! Law 1 over rings: whatever the number of nodes, the ZeRO stage, and what happens to the nodes, the
//! run ends with the same bits.

mod support;

use planaria_actors::device::{Device, DeviceSetup};
use planaria_actors::protocol::effect::Stop;
use planaria_actors::ring::node::RunEvent;
use planaria_actors::spec::RunSpec;
use planaria_actors::step::schedule::Order;
use planaria_actors::trainer::Trainer;
use planaria_base::Digest;
use planaria_models::block::Precision;
use planaria_models::kernels::Isa;
use support::{Ring, Toy, spec};

/// The trainer of one process.
fn undisturbed(precision: Precision, leaves: u32, steps: u64) -> Digest {
    trained_alone(spec(leaves, precision), steps)
}

fn trained_alone(spec: RunSpec, steps: u64) -> Digest {
    let setup = DeviceSetup {
        threads: 1,
        isa: Isa::detect(),
        order: Order::BreadthFirst,
        recompute: false,
    };
    let device = Device::new(&spec, &setup, Box::new(Toy));
    let mut trainer = Trainer::start(spec, &setup, device).expect("threads start");
    (0..steps).for_each(|_| drop(trainer.step().expect("a step")));
    trainer.state_hash().expect("a hash")
}

/// One node through the ring's actors.
#[test]
fn one_node_trains() {
    let mut ring = Ring::new(spec(2, Precision::F32), 0, 1, 40);
    ring.found();
    let mut losses = Vec::new();
    loop {
        match ring.next(0) {
            RunEvent::Decided(decision, _) => {
                losses.push(
                    planaria_models::partials::loss_from_grid(decision.loss)
                        / decision.labels as f64,
                );
            }
            RunEvent::Stopped(Stop::Finished) => break,
            RunEvent::Stopped(other) => panic!("{other:?}"),
            _ => {}
        }
    }
    assert_eq!(losses.len(), 40);
    assert!(losses[0] > 3.9 && losses[39] < 3.5, "{losses:?}");
}

/// ZeRO 0 to 3, one to three nodes, replicas: one hash.
#[test]
fn nodes_and_stages_do_not_show() {
    for precision in [Precision::F32, Precision::Bf16] {
        let want = undisturbed(precision, 5, 12);
        for stage in 0..4 {
            for nodes in [1, 2, 3] {
                let mut ring = Ring::new(spec(5, precision), stage, 2, 12);
                ring.found();
                (1..nodes).for_each(|_| ring.join());
                assert_eq!(ring.finish(), want, "{precision:?}, stage {stage}, {nodes} nodes");
            }
        }
    }
}

/// One-leaf steps of a tied model stay in fp32 sums, and give the same bits.
#[test]
fn short_sums_do_not_show() {
    let want = undisturbed(Precision::F32, 1, 12);
    for nodes in [1, 2] {
        let mut ring = Ring::new(spec(1, Precision::F32), 2, 2, 12);
        ring.found();
        (1..nodes).for_each(|_| ring.join());
        assert_eq!(ring.finish(), want, "{nodes} nodes");
    }
}

/// Nodes die without a word while the ring trains, others join; the hash is that of the run in which
/// nothing happened.
#[test]
fn deaths_and_joins_do_not_show() {
    for stage in [0, 2, 3] {
        let mut ring = Ring::new(spec(5, Precision::F32), stage, 2, 1_000_000);
        ring.found();
        (0..3).for_each(|_| ring.join());
        ring.wait_replicated(1, 4);
        ring.kill(2);
        ring.wait_replicated(1, 3);
        ring.join();
        ring.wait_replicated(1, 4);
        ring.kill(0);
        ring.wait_replicated(1, 3);
        let (steps, hash) = ring.stop(1);
        assert_eq!(hash, undisturbed(Precision::F32, 5, steps), "stage {stage}, {steps} steps");
    }
}
