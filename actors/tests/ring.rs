//! Law 1 over rings: whatever the number of nodes, the ZeRO stage, and what happens to the nodes, the
//! run ends with the same bits.

mod support;

use planaria_actors::protocol::effect::Stop;
use planaria_actors::ring::node::RunEvent;
use planaria_base::Digest;
use planaria_models::block::Precision;
use support::{Ring, spec};

fn undisturbed(precision: Precision, leaves: u32, steps: u64) -> Digest {
    let mut ring = Ring::new(spec(leaves, precision), 0, 1, steps);
    ring.found();
    ring.finish()
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
