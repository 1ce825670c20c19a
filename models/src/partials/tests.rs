//! However a step's emissions are dealt into lots and forms, the bits are those of one i64 sum.

use super::*;
use crate::block::GradSink;
use crate::compute::Kit;
use crate::exact_sum::{Grid, accumulate, reduce};
use crate::families::ModelSpec;
use crate::kernels::Isa;
use planaria_base::rng::CounterRng;
use planaria_base::{ChunkId, ChunkTable, Leaf, ParamId, Site};
use proptest::prelude::*;
use std::sync::Arc;

const GRID_MAX: i32 = 8;

/// A tied GPT-2 of one block, cut into chunks that hold several parameters and parts of them.
fn table(leaves: u32, chunk: u64) -> (crate::block::Model, Arc<PartTable>) {
    let model = ModelSpec::gpt2(1, 8, 2, 13, 6).build();
    let sizes: Vec<u64> = model.params.iter().map(|p| p.elements() as u64).collect();
    let ids: Vec<ParamId> = model.params.iter().map(|p| p.id).collect();
    let cut = ChunkTable::cut(&sizes, &[ids], chunk, &|_| false);
    let table = PartTable::new(&model, &cut, leaves, GRID_MAX);
    (model, Arc::new(table))
}

fn emission(param: usize, leaf: u32, site: u8, len: usize) -> Vec<f32> {
    let rng = CounterRng::new(9).fork(param as u64).fork(u64::from(leaf)).fork(u64::from(site));
    (0..len as u64).map(|i| (rng.uniform(i) * 8.0 - 4.0) as f32).collect()
}

/// Only these rows of a listed emission are not zero.
fn listed_rows(rows: usize) -> Vec<u32> {
    (0..rows as u32).filter(|r| r % 3 == 1).collect()
}

/// The embeddings (parameters 0 and 1) list rows at site 0.
fn is_listed(param: usize, site: u8) -> bool {
    param < 2 && site == 0
}

fn dense_emission(model: &crate::block::Model, param: usize, leaf: u32, site: u8) -> Vec<f32> {
    let spec = &model.params[param];
    let mut values = emission(param, leaf, site, spec.elements());
    if is_listed(param, site) {
        let (rows, width) = (spec.shape[0], spec.shape[1]);
        let keep = listed_rows(rows);
        for row in (0..rows).filter(|r| !keep.contains(&(*r as u32))) {
            values[row * width..(row + 1) * width].fill(0.0);
        }
    }
    values
}

fn emit(model: &crate::block::Model, sums: &LotSums, kit: &Kit, leaf: u32) {
    let sink = sums.sink(Leaf(leaf));
    for (index, spec) in model.params.iter().enumerate().rev() {
        for site in (0..spec.sites).rev() {
            let mut values = dense_emission(model, index, leaf, site);
            let (id, site) = (spec.id, Site(site));
            if is_listed(index, site.0) {
                let width = spec.shape[1];
                let rows = listed_rows(spec.shape[0]);
                let mut list: Vec<f32> = rows
                    .iter()
                    .flat_map(|&r| values[r as usize * width..][..width].to_vec())
                    .collect();
                sink.rows(id, site, &rows, &mut list);
            } else if site.0 == 1 {
                sink.in_place(kit, (id, site), values.len(), &mut |out| {
                    out.copy_from_slice(&values);
                });
            } else {
                let cut = values.len() / 3;
                let (low, high) = values.split_at_mut(cut);
                sink.dense(id, site, cut, high);
                sink.dense(id, site, 0, low);
            }
        }
    }
}

/// All emissions of a parameter through one i64 sum.
fn oracle(model: &crate::block::Model, param: usize, leaves: u32) -> Vec<u32> {
    let spec = &model.params[param];
    let grid = Grid::new(u64::from(leaves) * u64::from(spec.sites), GRID_MAX);
    let (mut sum, mut out) = (vec![0i64; spec.elements()], vec![0.0; spec.elements()]);
    for leaf in 0..leaves {
        for site in 0..spec.sites {
            let values = dense_emission(model, param, leaf, site);
            assert!(!accumulate(Isa::Scalar, grid, &values, &mut sum, false));
        }
    }
    reduce(Isa::Scalar, grid, &sum, &mut out);
    out.iter().map(|v| v.to_bits()).collect()
}

fn parts(table: &PartTable) -> Vec<Part> {
    table.in_emission_order().map(|(_, p)| p).collect()
}

fn run(leaves: u32, chunk: u64, cuts: &[u32], (owned, checked): (bool, bool)) {
    let (model, table) = table(leaves, chunk);
    let isa = Isa::detect();
    let (pools, kit) = (SumPools::default(), Kit::new(2, isa));
    let chunks = table.chunks.len();
    let mut sums: Vec<ChunkSum> =
        (0..chunks).map(|c| ChunkSum::new(table.clone(), isa, ChunkId(c as u32))).collect();
    let mut lot = LotSums::new(table.clone(), isa, pools.clone());
    let mut edges = vec![0];
    edges.extend(cuts.iter().copied().filter(|&c| c < leaves));
    edges.push(leaves);
    edges.sort_unstable();
    edges.dedup();
    for pair in edges.windows(2).rev() {
        lot.begin(pair[1] - pair[0]);
        (pair[0]..pair[1]).for_each(|leaf| emit(&model, &lot, &kit, leaf));
        for part in parts(&table) {
            let partial = lot.take(part, false, checked);
            let sum = &mut sums[part.chunk.index()];
            if owned {
                sum.add_owned(partial, &pools).expect("it fits");
            } else {
                let body = partial.values.view().bytes().concat();
                let mut aligned = crate::buffer::Buffer::<u8>::zeroed(body.len());
                aligned.copy_from_slice(&body);
                let values = ValuesRef::parse(partial.lanes.form, &aligned).expect("a body");
                sum.add(partial.lanes, values, &pools).expect("it fits");
            }
        }
    }
    let fixed: Vec<Fixed> = sums.into_iter().map(|s| s.fix(&pools).expect("lanes")).collect();
    for param in 0..model.params.len() {
        let mut got = Vec::new();
        for r in &table.params[param].runs {
            let values = &fixed[r.chunk.index()].gradient[r.offset..r.offset + r.len];
            got.extend(values.iter().map(|v| v.to_bits()));
        }
        assert_eq!(got, oracle(&model, param, leaves), "{}", model.params[param].name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any deal of leaves into lots, any chunk size, own partials or received ones.
    #[test]
    fn the_bits_are_those_of_one_sum(
        leaves in 1u32..6,
        chunk in 5u64..400,
        cuts in prop::collection::vec(1u32..6, 0..3),
        owned: bool,
        checked: bool,
    ) {
        run(leaves, chunk, &cuts, (owned, checked));
    }
}

/// A leaf that is missing, or there twice, is seen by the tag lane; a changed word by the checksum.
#[test]
fn lanes_see_what_went_wrong() {
    let (model, table) = table(3, 50);
    let isa = Isa::detect();
    let (pools, kit) = (SumPools::default(), Kit::new(1, isa));
    let part = Part { chunk: ChunkId(2), site: Site(0) };
    let sites = table.chunks[2].emitted.len() as u8;
    let partial = |leaf: u32, site: u8| {
        let mut lot = LotSums::new(table.clone(), isa, pools.clone());
        lot.begin(1);
        emit(&model, &lot, &kit, leaf);
        lot.take(Part { site: Site(site), ..part }, false, true)
    };
    let sum_of = |leaves: &[u32], bend: bool| {
        let mut sum = ChunkSum::new(table.clone(), isa, part.chunk);
        for &leaf in leaves {
            for site in 0..sites {
                let mut partial = partial(leaf, site);
                if bend && leaf == 1 && site + 1 == sites {
                    bend_one(&mut partial.values);
                }
                sum.add(partial.lanes, partial.values.view(), &pools).expect("it fits");
            }
        }
        sum.fix(&pools).map(|_| ())
    };
    assert_eq!(sum_of(&[0, 1, 2], false), Ok(()));
    assert_eq!(sum_of(&[0, 1], false), Err(SumError::Tags));
    assert_eq!(sum_of(&[0, 1, 1], false), Err(SumError::Tags));
    assert_eq!(sum_of(&[0, 1, 2], true), Err(SumError::Checksum));
}

fn bend_one(values: &mut Values) {
    match values {
        Values::Single(v) => v[0] += 0.5,
        Values::Wide(v) => v[0] ^= 1 << 20,
        Values::Rows(rows) => rows.values[0] += 0.5,
    }
}

/// NaN and values past the grid are flagged, each with its reason.
#[test]
fn flags_say_why() {
    let (model, table) = table(2, 400);
    let isa = Isa::detect();
    for (bad, want) in [(f32::NAN, NOT_FINITE), (f32::INFINITY, NOT_FINITE), (1e9, OFF_GRID)] {
        let mut lot = LotSums::new(table.clone(), isa, SumPools::default());
        lot.begin(1);
        let kit = Kit::new(1, isa);
        let spec = &model.params[3];
        let mut values = vec![0.25; spec.elements()];
        values[1] = bad;
        let sink = lot.sink(Leaf(0));
        for other in model.params.iter().filter(|p| p.id != spec.id) {
            for site in 0..other.sites {
                sink.dense(other.id, Site(site), 0, &mut vec![0.0; other.elements()]);
            }
        }
        sink.in_place(&kit, (spec.id, Site(0)), values.len(), &mut |out| {
            out.copy_from_slice(&values);
        });
        let flags = parts(&table).into_iter().map(|p| lot.take(p, false, false).lanes.flags);
        assert_eq!(flags.fold(0, |a, b| a | b), want);
    }
}

/// A stranger's body that does not fit is refused, and nothing is added.
#[test]
fn a_body_that_does_not_fit_is_refused() {
    let (_, table) = table(3, 50);
    let pools = SumPools::default();
    let mut sum = ChunkSum::new(table, Isa::detect(), ChunkId(0));
    let lanes = |form| Lanes { form, ..Lanes::default() };
    let long = vec![0i64; 51];
    let wide = sum.add(lanes(Form::Wide), ValuesRef::Wide(&long), &pools);
    let outside = ValuesRef::Rows(&[48, 4], &[0.0; 4]);
    let rows = sum.add(lanes(Form::Rows { runs: 1 }), outside, &pools);
    let huge = ValuesRef::Rows(&[u32::MAX, u32::MAX], &[0.0; 4]);
    let overflow = sum.add(lanes(Form::Rows { runs: 1 }), huge, &pools);
    assert_eq!([wide, rows, overflow], [Err(SumError::Shape); 3]);
    assert!(ValuesRef::parse(Form::Rows { runs: u32::MAX }, &[0; 64]).is_none());
    assert!(ValuesRef::parse(Form::Wide, &[0; 63]).is_none());
}
