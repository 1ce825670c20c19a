//! Many seeds.

use planaria_chaos_tests::swarm::run_seed;

/// Every seed ends clean. The full sweep is `cargo run -p planaria-chaos-tests --release -- sim
/// --seeds 10000`.
#[test]
fn three_hundred_seeds_are_clean() {
    for seed in 0..300 {
        let outcome = run_seed(seed, &[], false);
        assert!(
            outcome.violation.is_none(),
            "seed {seed}: {:?}; replay: cargo run -p planaria-chaos-tests --release -- sim --seed {seed} --verbose",
            outcome.violation
        );
    }
}

/// A seed replays exactly: same events, same virtual time, same lines.
#[test]
fn a_seed_replays_exactly() {
    for seed in [3, 17, 40] {
        let (a, b) = (run_seed(seed, &[], true), run_seed(seed, &[], true));
        assert_eq!((a.events, a.time, &a.lines), (b.events, b.time, &b.lines));
    }
}
