//! The sums of a step: whatever way emissions come in, the bits are those of the i64 sum.

use super::*;
use crate::block::Init;
use crate::exact_sum::{accumulate, reduce};
use planaria_base::rng::CounterRng;

const ROWS: usize = 6;
const WIDTH: usize = 21;
const LEN: usize = ROWS * WIDTH;
const PARAM: ParamId = ParamId(0);

fn gradients(leaves: u32, sites: u8) -> Gradients {
    let shape = vec![ROWS, WIDTH];
    let spec =
        ParamSpec { id: PARAM, name: "w".into(), shape, init: Init::Zeros, sites, frozen: false };
    Gradients::new(Isa::detect(), &[spec], leaves, 8)
}

fn values(leaf: u32, site: u8) -> Vec<f32> {
    let rng = CounterRng::new(3).fork(u64::from(leaf)).fork(u64::from(site));
    (0..LEN as u64).map(|i| (rng.uniform(i) * 20.0 - 10.0) as f32).collect()
}

/// What every test compares with: all emissions through one i64 sum.
fn oracle(leaves: u32, emissions: &[Vec<f32>]) -> Vec<u32> {
    let sites = emissions.len() as u64 / u64::from(leaves);
    let grid = Grid::new(u64::from(leaves) * sites, 8);
    let (mut sum, mut out) = (vec![0i64; LEN], vec![0.0; LEN]);
    for values in emissions {
        assert!(!accumulate(Isa::Scalar, grid, values, &mut sum, false));
    }
    reduce(Isa::Scalar, grid, &sum, &mut out);
    bits(&out)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

fn finish(gradients: &mut Gradients) -> (SumOutcome, Vec<u32>) {
    let outcome = gradients.finish(&Kit::new(2, Isa::detect()), PARAM);
    (outcome, bits(gradients.gradient(PARAM)))
}

const GOOD: SumOutcome = SumOutcome { flagged: false, not_finite: false, exactly_once: true };

/// Emits by a dense panel, a row list or in place.
fn emit(sums: &Gradients, leaf: u32, way: usize, mut values: Vec<f32>) {
    let sink = sums.sink(Leaf(leaf));
    match way {
        0 => sink.dense(PARAM, Site(0), 0, &mut values),
        1 => sink.rows(PARAM, Site(0), &[0, 1, 2, 3, 4, 5], &mut values),
        _ => {
            let fill = &mut |out: &mut [f32]| out.copy_from_slice(&values);
            sink.in_place(&Kit::new(2, Isa::detect()), (PARAM, Site(0)), LEN, fill);
        }
    }
}

/// A scaled loss leaves no trace in the sum, on any way in; an infinity is told from a value that is
/// merely off the grid, which a smaller scale would not mend.
#[test]
fn the_loss_scale_does_not_show() {
    for leaves in [1u32, 3] {
        let emissions: Vec<_> = (0..leaves).map(|l| values(l, 0)).collect();
        for way in 0..3 {
            let mut sums = gradients(leaves, 1);
            for factor in [1.0, 65536.0f32, 8.0] {
                sums.set_loss_scale(Some(LossScale { factor }));
                sums.begin();
                for (leaf, values) in (0..).zip(&emissions) {
                    emit(&sums, leaf, way, values.iter().map(|v| v * factor).collect());
                }
                assert_eq!(finish(&mut sums), (GOOD, oracle(leaves, &emissions)), "{factor}");
            }
            for (bad, not_finite) in [(f32::NEG_INFINITY, true), (f32::NAN, true), (8e3, false)] {
                sums.begin();
                let mut poisoned = values(0, 0);
                poisoned[LEN / 2] = bad;
                emit(&sums, 0, way, poisoned);
                let outcome = finish(&mut sums).0;
                assert_eq!((outcome.flagged, outcome.not_finite), (true, not_finite), "{bad}");
            }
        }
    }
}

/// Leaves in any order, panels in any order and from several threads: the same bits.
#[test]
fn the_order_of_leaves_panels_and_threads_does_not_show() {
    for leaves in [1u32, 2, 5] {
        let emissions: Vec<_> = (0..leaves).map(|l| values(l, 0)).collect();
        let want = oracle(leaves, &emissions);
        for threads in 1..=3 {
            let kit = Kit::new(threads, Isa::detect());
            let mut sums = gradients(leaves, 1);
            for _attempt in 0..2 {
                sums.begin();
                for leaf in (0..leaves).rev() {
                    let sink = sums.sink(Leaf(leaf));
                    kit.pool.run(ROWS, &|task, _| {
                        let at = (ROWS - 1 - task) * WIDTH;
                        let mut panel = emissions[leaf as usize][at..at + WIDTH].to_vec();
                        sink.dense(PARAM, Site(0), at, &mut panel);
                    });
                }
                assert_eq!(finish(&mut sums), (GOOD, want.clone()), "{leaves} leaves");
            }
        }
    }
}

/// A tied weight: a dense emission and a row list, each rounded on its own; the row list is the dense
/// emission whose other rows are zero, first or second.
#[test]
fn tied_sites_and_row_lists_give_the_dense_sum() {
    let rows = [1u32, 4];
    for leaves in [1u32, 3] {
        let mut emissions = Vec::new();
        for leaf in 0..leaves {
            emissions.push(values(leaf, 0));
            let mut sparse = values(leaf, 1);
            for row in (0..ROWS).filter(|r| !rows.contains(&(*r as u32))) {
                sparse[row * WIDTH..(row + 1) * WIDTH].fill(0.0);
            }
            emissions.push(sparse);
        }
        let want = oracle(leaves, &emissions);
        for rows_first in [false, true] {
            let mut sums = gradients(leaves, 2);
            sums.begin();
            for leaf in 0..leaves {
                let sink = sums.sink(Leaf(leaf));
                let mut dense = emissions[2 * leaf as usize].clone();
                let sparse = &emissions[2 * leaf as usize + 1];
                let mut listed: Vec<f32> = rows
                    .iter()
                    .flat_map(|&r| &sparse[r as usize * WIDTH..][..WIDTH])
                    .copied()
                    .collect();
                if rows_first {
                    sink.rows(PARAM, Site(1), &rows, &mut listed);
                }
                sink.dense(PARAM, Site(0), 0, &mut dense);
                if !rows_first {
                    sink.rows(PARAM, Site(1), &rows, &mut listed);
                }
            }
            assert_eq!(finish(&mut sums), (GOOD, want.clone()), "{leaves} leaves");
        }
    }
}

/// A gradient built in place is the same emission.
#[test]
fn an_emission_in_place_is_a_dense_one() {
    let kit = Kit::new(2, Isa::detect());
    for leaves in [1u32, 3] {
        let emissions: Vec<_> = (0..leaves).map(|l| values(l, 0)).collect();
        let mut sums = gradients(leaves, 1);
        sums.begin();
        for (leaf, values) in (0..).zip(&emissions) {
            let fill = &mut |out: &mut [f32]| out.copy_from_slice(values);
            sums.sink(Leaf(leaf)).in_place(&kit, (PARAM, Site(0)), LEN, fill);
        }
        assert_eq!(finish(&mut sums), (GOOD, oracle(leaves, &emissions)));
    }
}

/// Law 2: a leaf missing, a leaf twice, a leaf in place of another, part of a leaf: each shows.
#[test]
fn what_is_not_added_exactly_once_shows() {
    let add = |sums: &Gradients, leaf: u32, len: usize| {
        sums.sink(Leaf(leaf)).dense(PARAM, Site(0), 0, &mut values(leaf, 0)[..len]);
    };
    for (what, leaves) in [
        ("missing", &[(0u32, LEN)][..]),
        ("one too many", &[(0, LEN), (1, LEN), (0, LEN)]),
        ("twice in place of another", &[(1, LEN), (1, LEN)]),
        ("in part", &[(0, LEN), (1, LEN - 1)]),
    ] {
        let mut sums = gradients(2, 1);
        sums.begin();
        leaves.iter().for_each(|&(leaf, len)| add(&sums, leaf, len));
        assert!(!finish(&mut sums).0.exactly_once, "{what}");
    }
}

/// A value that is not finite or too large flags the step, on every way in; a new attempt starts
/// clean.
#[test]
fn flags_are_raised_on_every_way_in_and_forgotten_by_begin() {
    for leaves in [1u32, 2] {
        for bad in [f32::NAN, f32::INFINITY, -600.0] {
            for way in 0..3 {
                let mut sums = gradients(leaves, 1);
                sums.begin();
                let mut poisoned = values(0, 0);
                poisoned[LEN - 1] = bad;
                emit(&sums, 0, way, poisoned);
                assert!(finish(&mut sums).0.flagged, "{bad} by way {way}");
                sums.begin();
                (0..leaves).for_each(|leaf| {
                    sums.sink(Leaf(leaf)).dense(PARAM, Site(0), 0, &mut values(leaf, 0));
                });
                assert_eq!(finish(&mut sums).0, GOOD);
            }
        }
    }
}
