//! The exact sum of gradients: fp32 rounded once to a fixed grid, added in i64.
//!
//! Integer addition has no order, so any node, any thread and any tree of additions gives the same
//! bits. The grid's step is `2^-k`; a value is rounded to a multiple of it, ties to even. A value that
//! is not finite, or so large that the sum of all could wrap, sets a flag *before* conversion.
//!
//! A value on the grid is exact in fp32 (its integer has at most 24 significant bits). Two of them
//! add up in fp32 with one rounding: the same bits as the i64 sum rounded once. So a parameter that
//! gets one or two emissions a step needs no i64 at all; [`crate::gradients`] keeps it in the fp32
//! gradient.

use crate::kernels::Isa;
use crate::kernels::exact;
use planaria_base::rng::CounterRng;
use planaria_base::{Leaf, Site};

/// The grid of one parameter's sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// The step is `2^-k`.
    pub k: i32,
    /// Largest magnitude of one addend, in steps: `(2^63 - 1) / emissions`.
    pub limit: i64,
}

impl Grid {
    /// The grid for sums of `emissions` (leaves times sites) whose elements stay below
    /// `2^max_log2`: `k = 62 - ceil(log2 emissions) - max_log2`.
    ///
    /// # Panics
    /// If there are no emissions.
    #[must_use]
    pub fn new(emissions: u64, max_log2: i32) -> Grid {
        assert!(emissions > 0, "a sum has addends");
        let ceil_log2 = emissions.next_power_of_two().trailing_zeros() as i32;
        Grid { k: 62 - ceil_log2 - max_log2, limit: i64::MAX / emissions.min(1 << 62) as i64 }
    }

    /// `2^k`.
    #[must_use]
    pub fn scale(&self) -> f32 {
        power_of_two(self.k)
    }

    /// `2^-k`.
    #[must_use]
    pub fn step(&self) -> f32 {
        power_of_two(-self.k)
    }

    /// The smallest fp32 that no addend's scaled magnitude may reach.
    #[must_use]
    pub fn bound(&self) -> f32 {
        let near = self.limit as f32;
        // `as` rounds to nearest: step down while it passed the limit, then one up: the first value
        // that is refused.
        let within = if near as i128 > i128::from(self.limit) { near.next_down() } else { near };
        within.next_up()
    }
}

fn power_of_two(exponent: i32) -> f32 {
    assert!((-126..128).contains(&exponent), "2^{exponent} is a normal fp32");
    f32::from_bits(((exponent + 127) as u32) << 23)
}

/// The tag that (leaf, site) adds to a sum's tag lane, once.
#[must_use]
pub fn tag(leaf: Leaf, site: Site) -> u64 {
    CounterRng::new(0x7461_6773).fork(u64::from(site.0)).at(u64::from(leaf.0))
}

/// What the tag lane must hold when every leaf and site was added exactly once.
#[must_use]
pub fn tag_total(leaves: u32, sites: u8) -> u64 {
    let all = (0..sites).flat_map(|s| (0..leaves).map(move |l| tag(Leaf(l), Site(s))));
    all.fold(0, u64::wrapping_add)
}

/// The checksum lane of a partial sum: word `i` weighted by `2i + 1`, modulo 2^64. A plain sum would
/// miss two words that changed places.
#[must_use]
pub fn checksum(words: &[i64]) -> u64 {
    words
        .iter()
        .zip((1u64..).step_by(2))
        .fold(0, |sum, (&w, weight)| sum.wrapping_add((w as u64).wrapping_mul(weight)))
}

/// Rounds `values` to the grid in place (they stay fp32). Returns whether any is flagged; a flagged
/// value becomes zero.
#[must_use]
pub fn round_to_grid(isa: Isa, grid: Grid, values: &mut [f32]) -> bool {
    exact::round(isa, grid, values)
}

/// `sum += values`, all on the grid: one fp32 rounding of an exact sum. Right for a second emission
/// only.
pub fn add_second(isa: Isa, sum: &mut [f32], values: &[f32]) {
    exact::add_second(isa, sum, values);
}

/// Rounds `values` and stores (`first`) or adds them to `sum`. Returns whether any is flagged; a
/// flagged value counts as zero.
#[must_use]
pub fn accumulate(isa: Isa, grid: Grid, values: &[f32], sum: &mut [i64], first: bool) -> bool {
    if first { exact::put(isa, grid, values, sum) } else { exact::add(isa, grid, values, sum) }
}

/// The reduced gradient: each sum converted to fp32 with one rounding.
pub fn reduce(isa: Isa, grid: Grid, sum: &[i64], gradient: &mut [f32]) {
    exact::reduce(isa, grid, sum, gradient);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn each_isa(test: impl Fn(Isa)) {
        Isa::available().for_each(test);
    }

    /// Section 1: k = 62 - ceil(log2 V') - grid_max_log2.
    #[test]
    fn the_grid_follows_the_formula() {
        assert_eq!(Grid::new(1, 8).k, 54);
        assert_eq!(Grid::new(2, 8).k, 53);
        assert_eq!(Grid::new(3, 8).k, 52);
        assert_eq!(Grid::new(16, 8).k, 50);
        assert_eq!(Grid::new(3, 8).limit, i64::MAX / 3);
    }

    /// Rounding is to the nearest multiple, ties to even.
    #[test]
    fn ties_go_to_even() {
        let grid = Grid { k: 2, limit: 1 << 40 };
        each_isa(|isa| {
            let mut v = [0.125, 0.375, 0.625, -0.125, -0.375, 0.3];
            assert!(!round_to_grid(isa, grid, &mut v));
            assert_eq!(v, [0.0, 0.5, 0.5, 0.0, -0.5, 0.25], "{isa}");
            let mut sum = [0; 6];
            assert!(!accumulate(
                isa,
                grid,
                &[0.125, 0.375, 0.625, -0.125, -0.375, 0.3],
                &mut sum,
                true
            ));
            assert_eq!(sum, [0, 2, 2, 0, -2, 1], "{isa}");
        });
    }

    /// A value that is not finite, or whose grid value exceeds the limit, is flagged before
    /// conversion; `as i64` would have made a NaN zero and an infinity the largest integer.
    #[test]
    fn what_does_not_fit_is_flagged_before_conversion() {
        let grid = Grid::new(4, 8);
        let largest = grid.bound().next_down() * grid.step();
        each_isa(|isa| {
            for bad in
                [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 512.0, -600.0, f32::MAX]
            {
                for at in [0, 17, 39] {
                    let mut v = vec![0.5f32; 40];
                    v[at] = bad;
                    let mut sum = vec![7i64; 40];
                    assert!(accumulate(isa, grid, &v, &mut sum, false), "{isa} {bad}");
                    assert_eq!(sum[at], 7, "a flagged value adds nothing");
                    assert!(round_to_grid(isa, grid, &mut v), "{isa} {bad}");
                }
            }
            let mut fine = [largest, -largest, 0.0, -0.0, 1e-38, f32::MIN_POSITIVE / 4.0];
            assert!(!round_to_grid(isa, grid, &mut fine), "{isa}: {largest}");
        });
    }

    /// If nothing is flagged, no partial sum can wrap: the largest addends, all of them.
    #[test]
    fn unflagged_sums_never_wrap() {
        for emissions in [1u64, 2, 3, 5, 64, 1000] {
            let grid = Grid::new(emissions, 8);
            let largest = grid.bound().next_down() * grid.step();
            let one = (f64::from(largest) * f64::from(grid.scale())) as i64;
            assert!(one.checked_mul(emissions as i64).is_some(), "{emissions}");
        }
    }

    /// i64 to fp32 rounds once: 2^24 + 1 and its neighbours at a place where going through f64
    /// rounds twice.
    #[test]
    fn reduction_rounds_once() {
        let grid = Grid { k: 0, limit: i64::MAX };
        // 2^53 + 2^29 + 1: nearest fp32 is up by one ulp; via f64 the 1 is lost and the tie goes down.
        let tie = (1i64 << 53) + (1 << 29) + 1;
        let sums = [tie, -tie, (1 << 24) + 1, (1 << 24) + 3, 0, i64::MAX, i64::MIN + 1, 12_345];
        each_isa(|isa| {
            let mut g = [0.0f32; 8];
            reduce(isa, grid, &sums, &mut g);
            assert_eq!(g[0], ((1i64 << 53) + (1 << 30)) as f32, "{isa}");
            assert_eq!(g, sums.map(|s| s as f32), "{isa}");
        });
    }

    /// A tied weight has two sites, each rounded on its own, each with its own tag.
    #[test]
    fn sites_have_their_own_tags() {
        assert_ne!(tag(Leaf(0), Site(0)), tag(Leaf(0), Site(1)));
        assert_ne!(tag(Leaf(0), Site(0)), tag(Leaf(1), Site(0)));
        let once = tag_total(3, 2);
        assert_ne!(once, tag_total(3, 1));
        let twice_and_missing =
            once.wrapping_add(tag(Leaf(0), Site(0))).wrapping_sub(tag(Leaf(1), Site(0)));
        assert_ne!(once, twice_and_missing, "a leaf twice in place of another shows");
    }

    /// The checksum lane sees a changed word and two words that changed places.
    #[test]
    fn the_checksum_sees_swaps() {
        let words = [5, -3, 1 << 60, 0, 77];
        assert_ne!(checksum(&words), checksum(&[-3, 5, 1 << 60, 0, 77]));
        assert_ne!(checksum(&words), checksum(&[5, -3, 1 << 60, 1, 77]));
    }

    proptest! {
        /// The order of addition does not show, nor does splitting the leaves over nodes; and the
        /// error is at most V' 2^-(k+1).
        #[test]
        fn order_does_not_show(
            leaves in prop::collection::vec(prop::collection::vec(-200.0f32..200.0, 21), 1..6),
            split in 0usize..6,
        ) {
            let grid = Grid::new(leaves.len() as u64, 8);
            let sum = |order: &[usize]| {
                let mut acc = vec![0i64; 21];
                for &i in order {
                    assert!(!accumulate(Isa::detect(), grid, &leaves[i], &mut acc, false));
                }
                acc
            };
            let forward: Vec<usize> = (0..leaves.len()).collect();
            let backward: Vec<usize> = forward.iter().rev().copied().collect();
            let whole = sum(&forward);
            prop_assert_eq!(&whole, &sum(&backward));
            let at = split.min(leaves.len());
            let (a, b) = (sum(&forward[..at]), sum(&forward[at..]));
            let merged: Vec<i64> = a.iter().zip(&b).map(|(x, y)| x + y).collect();
            prop_assert_eq!(&whole, &merged);
            let bound = leaves.len() as f64 * f64::from(grid.step()) / 2.0;
            for (j, &w) in whole.iter().enumerate() {
                let exact: f64 = leaves.iter().map(|l| f64::from(l[j])).sum();
                prop_assert!((w as f64 * f64::from(grid.step()) - exact).abs() <= bound + 1e-13);
            }
        }

        /// Two emissions added in fp32 give the bits of the i64 sum rounded once, on every ISA.
        #[test]
        fn two_emissions_need_no_i64(
            a in prop::collection::vec(-250.0f32..250.0, 37),
            shift in -60i32..1,
            b in prop::collection::vec(-250.0f32..250.0, 37),
        ) {
            let grid = Grid::new(2, 8);
            let b: Vec<f32> = b.iter().map(|x| x * (f64::from(shift)).exp2() as f32).collect();
            for isa in Isa::available() {
                let mut sum = vec![0i64; 37];
                prop_assert!(!accumulate(isa, grid, &a, &mut sum, true));
                prop_assert!(!accumulate(isa, grid, &b, &mut sum, false));
                let mut want = vec![0.0f32; 37];
                reduce(isa, grid, &sum, &mut want);
                let (mut x, mut y) = (a.clone(), b.clone());
                prop_assert!(!round_to_grid(isa, grid, &mut x));
                prop_assert!(!round_to_grid(isa, grid, &mut y));
                add_second(isa, &mut x, &y);
                let bits = |v: &[f32]| v.iter().map(|x| (x + 0.0).to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(&x), bits(&want));
            }
        }
    }
}
