//! An owner's side: partials added up in any order, converted once.

use super::{ChunkPlace, Form, Lanes, PartTable, Partial, SumPools, Values, ValuesRef};
use crate::exact_sum::{Grid, tag_total};
use crate::kernels::piece::Piece;
use crate::kernels::{Isa, exact};
use planaria_base::ChunkId;
use std::sync::Arc;

/// What a full sum came to.
pub struct Fixed {
    /// The reduced gradient, `[elements of the chunk]`.
    pub gradient: Piece<f32>,
    /// OR of all partials' flags.
    pub flags: u8,
    /// Labels counted.
    pub labels: u64,
    /// The loss lane.
    pub loss: i64,
}

/// Why a partial or a sum is not taken; the sum must be zeroed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SumError {
    /// A partial's body does not fit the chunk.
    #[error("a partial does not fit its chunk")]
    Shape,
    /// Not every (leaf, site) was added exactly once.
    #[error("the tag lane is wrong: some leaf was not added exactly once")]
    Tags,
    /// A word changed or moved after it was summed.
    #[error("the checksum lane is wrong: a word of the sum is not what was sent")]
    Checksum,
}

/// The sum in the making of one chunk.
pub struct ChunkSum {
    isa: Isa,
    table: Arc<PartTable>,
    chunk: ChunkId,
    values: Option<Values>,
    tags: u64,
    labels: u64,
    loss: i64,
    flags: u8,
    checksum: Option<u64>,
}

impl ChunkSum {
    /// An empty sum.
    #[must_use]
    pub fn new(table: Arc<PartTable>, isa: Isa, chunk: ChunkId) -> ChunkSum {
        let (tags, labels, loss, flags) = (0, 0, 0, 0);
        ChunkSum { isa, table, chunk, values: None, tags, labels, loss, flags, checksum: Some(0) }
    }

    fn place(&self) -> &ChunkPlace {
        &self.table.chunks[self.chunk.index()]
    }

    /// An element gets at most two emissions a step: fp32 holds the sum exactly rounded.
    fn is_short(&self) -> bool {
        self.table.leaves as usize * self.place().emitted.len() <= 2
    }

    /// Adds a partial that nobody else needs: the first one's buffer becomes the sum's.
    ///
    /// # Errors
    /// As [`ChunkSum::add`].
    pub fn add_owned(&mut self, partial: Partial, pools: &SumPools) -> Result<(), SumError> {
        let keeps = match &partial.values {
            Values::Single(_) => self.is_short(),
            Values::Wide(_) => true,
            Values::Rows(_) => false,
        };
        if self.values.is_some() || !keeps {
            return self.add(partial.lanes, partial.values.view(), pools);
        }
        self.count(partial.lanes);
        self.values = Some(partial.values);
        Ok(())
    }

    /// Adds a partial's numbers.
    ///
    /// # Errors
    /// [`SumError::Shape`], and nothing was added.
    pub fn add(
        &mut self,
        lanes: Lanes,
        values: ValuesRef<'_>,
        pools: &SumPools,
    ) -> Result<(), SumError> {
        if !fits(lanes.form, values, self.place()) {
            return Err(SumError::Shape);
        }
        self.count(lanes);
        let (isa, short, len) = (self.isa, self.is_short(), self.place().len);
        if short && !matches!(values, ValuesRef::Wide(_)) {
            let first = self.values.is_none();
            let sum = self.values.get_or_insert_with(|| Values::Single(pools.single.take(len)));
            if let Values::Single(sum) = sum {
                add_single(isa, values, sum, first);
                return Ok(());
            }
        }
        let stretches = &self.table.chunks[self.chunk.index()].stretches;
        let first = self.values.is_none();
        if !matches!(self.values, Some(Values::Wide(_))) {
            let mut wide = pools.wide.take(len);
            if let Some(Values::Single(single)) = &self.values {
                for s in stretches {
                    let at = s.offset..s.offset + s.len;
                    let _ = exact::put(isa, s.grid, &single[at.clone()], &mut wide[at]);
                }
            }
            self.values = Some(Values::Wide(wide));
        }
        let Some(Values::Wide(sum)) = &mut self.values else { unreachable!("made wide above") };
        match values {
            ValuesRef::Wide(v) if first => sum.copy_from_slice(v),
            ValuesRef::Wide(v) => exact::add_wide(isa, sum, v),
            ValuesRef::Single(v) => {
                for s in stretches {
                    let at = s.offset..s.offset + s.len;
                    let _ = if first {
                        exact::put(isa, s.grid, &v[at.clone()], &mut sum[at])
                    } else {
                        exact::add(isa, s.grid, &v[at.clone()], &mut sum[at])
                    };
                }
            }
            ValuesRef::Rows(runs, v) => {
                if first {
                    sum.fill(0);
                }
                each_run(runs, v, |at, v| {
                    let grid = grid_at(stretches, at);
                    let _ = exact::add(isa, grid, v, &mut sum[at..at + v.len()]);
                });
            }
        }
        Ok(())
    }

    fn count(&mut self, lanes: Lanes) {
        self.tags = self.tags.wrapping_add(lanes.tags);
        self.labels += lanes.labels;
        self.loss = self.loss.wrapping_add(lanes.loss);
        self.flags |= lanes.flags;
        let both = self.checksum.zip(lanes.checksum);
        self.checksum = both.map(|(a, b)| a.wrapping_add(b));
    }

    /// Checks the lanes and converts the sum, rounding once.
    ///
    /// # Errors
    /// If a lane is wrong.
    pub fn fix(self, pools: &SumPools) -> Result<Fixed, SumError> {
        let place = self.place();
        if self.tags != tag_total(self.table.leaves, place.emitted.len() as u8) {
            return Err(SumError::Tags);
        }
        let gradient = match &self.values {
            None => {
                let mut zeros = pools.single.take(place.len);
                zeros.fill(0.0);
                zeros
            }
            Some(Values::Wide(sum)) => {
                let kept = self.checksum.filter(|_| self.flags == 0);
                if kept.is_some_and(|c| c != exact::weigh(self.isa, 0, sum)) {
                    return Err(SumError::Checksum);
                }
                let mut gradient = pools.single.take(place.len);
                for s in &place.stretches {
                    let at = s.offset..s.offset + s.len;
                    exact::reduce(self.isa, s.grid, &sum[at.clone()], &mut gradient[at]);
                }
                gradient
            }
            _ => return self.fix_single(),
        };
        let (flags, labels, loss) = (self.flags, self.labels, self.loss);
        Ok(Fixed { gradient, flags, labels, loss })
    }

    fn fix_single(self) -> Result<Fixed, SumError> {
        let (flags, labels, loss) = (self.flags, self.labels, self.loss);
        match self.values {
            Some(Values::Single(gradient)) => Ok(Fixed { gradient, flags, labels, loss }),
            _ => Err(SumError::Shape),
        }
    }
}

fn add_single(isa: Isa, values: ValuesRef<'_>, sum: &mut [f32], first: bool) {
    match values {
        ValuesRef::Single(v) if first => sum.copy_from_slice(v),
        ValuesRef::Single(v) => exact::add_second(isa, sum, v),
        ValuesRef::Rows(runs, v) => {
            if first {
                sum.fill(0.0);
            }
            each_run(runs, v, |at, v| exact::add_second(isa, &mut sum[at..at + v.len()], v));
        }
        ValuesRef::Wide(_) => unreachable!("wide partials are added in i64"),
    }
}

fn each_run(runs: &[u32], mut values: &[f32], mut f: impl FnMut(usize, &[f32])) {
    for run in runs.chunks_exact(2) {
        let (these, rest) = values.split_at(run[1] as usize);
        values = rest;
        f(run[0] as usize, these);
    }
}

fn grid_at(stretches: &[super::Stretch], at: usize) -> Grid {
    stretches[stretches.partition_point(|s| s.offset + s.len <= at)].grid
}

/// Whether a body, perhaps a stranger's, is what its form says and lies inside the chunk; a run lies
/// inside one stretch.
fn fits(form: Form, values: ValuesRef<'_>, place: &ChunkPlace) -> bool {
    match (form, values) {
        (Form::Single, ValuesRef::Single(v)) => v.len() == place.len,
        (Form::Wide, ValuesRef::Wide(v)) => v.len() == place.len,
        (Form::Rows { runs: n }, ValuesRef::Rows(runs, v)) => {
            let inside = |run: &[u32]| {
                let (at, len) = (run[0] as usize, run[1] as usize);
                let next = place.stretches.partition_point(|s| s.offset + s.len <= at);
                place.stretches.get(next).is_some_and(|s| at + len <= s.offset + s.len)
            };
            let total: usize = runs.chunks_exact(2).map(|r| r[1] as usize).sum();
            runs.len() == 2 * n as usize && total == v.len() && runs.chunks_exact(2).all(inside)
        }
        _ => false,
    }
}

/// A partial's integers weighted by 2i + 1.
pub(super) fn checksum_of(isa: Isa, values: ValuesRef<'_>, place: &ChunkPlace) -> u64 {
    let mut sum = 0u64;
    match values {
        ValuesRef::Wide(v) => sum = exact::weigh(isa, 0, v),
        ValuesRef::Single(v) => {
            for s in &place.stretches {
                let part = &v[s.offset..s.offset + s.len];
                sum = sum.wrapping_add(exact::weigh_single(isa, s.grid, s.offset as u64, part));
            }
        }
        ValuesRef::Rows(runs, v) => each_run(runs, v, |at, v| {
            let grid = grid_at(&place.stretches, at);
            sum = sum.wrapping_add(exact::weigh_single(isa, grid, at as u64, v));
        }),
    }
    sum
}
