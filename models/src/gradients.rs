//! A node's gradient sums of one step: the sink that leaves emit into, exact and order-free.
//!
//! Each parameter has an fp32 gradient. With one leaf a step it is also the sum: values are rounded
//! to the grid in place, and a tied parameter's second emission is added in fp32 (exact: see
//! [`crate::exact_sum`]). With more leaves an i64 sum is taken from a free list at the first emission
//! and given back when the sum is reduced, so that breadth-first backward holds the sums of the
//! blocks in flight only.
//!
//! Law 2 is checked here: an emission counts when all its elements are in, adds its tag once, and the
//! tags' total must be the known constant.

use crate::block::{GradSink, ParamSpec};
use crate::buffer::Buffer;
use crate::compute::Kit;
use crate::exact_sum::{Grid, add_second, round_to_grid, tag, tag_total};
use crate::kernels::{Isa, exact};
use planaria_base::{Leaf, ParamId, Site};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One parameter's sum.
struct Sum {
    grid: Grid,
    sites: u8,
    width: usize,
    gradient: Buffer<f32>,
    frozen: bool,
    wide: Option<Buffer<i64>>,
    /// Emissions that are in whole.
    complete: u32,
    /// Elements of the emission under way.
    progress: usize,
    tags: u64,
    /// A value did not fit the grid.
    flagged: bool,
    /// An emission had more elements than the parameter.
    overrun: bool,
}

/// What the sum of a parameter came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SumOutcome {
    /// A value was not finite or did not fit the grid.
    pub flagged: bool,
    /// Each (leaf, site) was added exactly once.
    pub exactly_once: bool,
}

/// All parameters' sums.
pub struct Gradients {
    isa: Isa,
    leaves: u32,
    sums: Vec<Mutex<Sum>>,
    free: Mutex<Vec<Buffer<i64>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gradients {
    /// Sums for steps of `leaves` leaves whose gradients stay below `2^grid_max_log2`.
    #[must_use]
    pub fn new(isa: Isa, params: &[ParamSpec], leaves: u32, grid_max_log2: i32) -> Gradients {
        let sum = |p: &ParamSpec| {
            Mutex::new(Sum {
                grid: Grid::new(u64::from(leaves) * u64::from(p.sites), grid_max_log2),
                sites: p.sites,
                width: p.shape.last().copied().unwrap_or(1),
                gradient: Buffer::zeroed(if p.frozen { 0 } else { p.elements() }),
                frozen: p.frozen,
                wide: None,
                complete: 0,
                progress: 0,
                tags: 0,
                flagged: false,
                overrun: false,
            })
        };
        let sums = params.iter().map(sum).collect();
        Gradients { isa, leaves, sums, free: Mutex::default() }
    }

    /// Bytes of the fp32 gradients.
    #[must_use]
    pub fn bytes(params: &[ParamSpec]) -> usize {
        let trained = params.iter().filter(|p| !p.frozen);
        trained.map(|p| Buffer::<f32>::bytes_for(p.elements())).sum()
    }

    /// Bytes of i64 sums that exist at once, at most: none with one leaf; with more, of all
    /// parameters if `all_at_once`, else of the largest group and of the parameters in two groups.
    #[must_use]
    pub fn wide_bytes(
        params: &[ParamSpec],
        leaves: u32,
        groups: &[Vec<ParamId>],
        all: bool,
    ) -> usize {
        let bytes = |id: &ParamId| Buffer::<i64>::bytes_for(params[id.index()].elements());
        let tied = |id: &&ParamId| params[id.index()].sites > 1;
        if leaves == 1 {
            return 0;
        }
        if all {
            return params.iter().filter(|p| !p.frozen).map(|p| bytes(&p.id)).sum();
        }
        let shared: usize = groups.iter().flatten().filter(tied).map(bytes).sum();
        let own = |g: &Vec<ParamId>| g.iter().filter(|id| !tied(id)).map(bytes).sum::<usize>();
        shared + groups.iter().map(own).max().unwrap_or(0)
    }

    /// Forgets all sums: an attempt starts.
    pub fn begin(&mut self) {
        let free = self.free.get_mut().unwrap_or_else(PoisonError::into_inner);
        for sum in &mut self.sums {
            let sum = sum.get_mut().unwrap_or_else(PoisonError::into_inner);
            (sum.complete, sum.progress, sum.tags) = (0, 0, 0);
            (sum.flagged, sum.overrun) = (false, false);
            free.extend(sum.wide.take());
        }
    }

    /// The sink of one leaf.
    #[must_use]
    pub fn sink(&self, leaf: Leaf) -> LeafSink<'_> {
        LeafSink { gradients: self, leaf }
    }

    /// Ends a parameter's sum: the gradient holds the reduced value from here on.
    pub fn finish(&mut self, kit: &Kit, param: ParamId) -> SumOutcome {
        let leaves = self.leaves;
        let sum = self.sums[param.index()].get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(wide) = sum.wide.take() {
            exact::reduce_parallel(kit, sum.grid, &wide, &mut sum.gradient);
            lock(&self.free).push(wide);
        }
        let whole = sum.complete == leaves * u32::from(sum.sites) && sum.progress == 0;
        let tags = sum.tags == tag_total(leaves, sum.sites);
        SumOutcome { flagged: sum.flagged, exactly_once: whole && tags && !sum.overrun }
    }

    /// A parameter's reduced gradient.
    pub fn gradient(&mut self, param: ParamId) -> &[f32] {
        &self.sums[param.index()].get_mut().unwrap_or_else(PoisonError::into_inner).gradient
    }

    fn wide(&self, len: usize) -> Buffer<i64> {
        let mut free = lock(&self.free);
        match free.iter().position(|b| b.len() == len) {
            Some(at) => free.swap_remove(at),
            None => Buffer::zeroed(len),
        }
    }
}

impl Sum {
    /// Adds part of a dense emission.
    fn add(&mut self, isa: Isa, first: usize, values: &mut [f32]) {
        let at = first..first + values.len();
        if let Some(wide) = &mut self.wide {
            let is_first = self.complete == 0;
            let wide = &mut wide[at];
            self.flagged |= if is_first {
                exact::put(isa, self.grid, values, wide)
            } else {
                exact::add(isa, self.grid, values, wide)
            };
            return;
        }
        self.flagged |= round_to_grid(isa, self.grid, values);
        let gradient = &mut self.gradient[at];
        if self.complete == 0 {
            gradient.copy_from_slice(values);
        } else {
            add_second(isa, gradient, values);
        }
    }

    /// Makes every element zero, if this is the first emission: a sparse one follows.
    fn clear_if_first(&mut self) {
        if self.complete == 0 {
            match &mut self.wide {
                Some(wide) => wide.fill(0),
                None => self.gradient.fill(0.0),
            }
        }
    }

    fn add_row(&mut self, isa: Isa, row: usize, values: &mut [f32]) {
        let at = row * self.width..(row + 1) * self.width;
        if let Some(wide) = &mut self.wide {
            self.flagged |= exact::add(isa, self.grid, values, &mut wide[at]);
        } else {
            self.flagged |= round_to_grid(isa, self.grid, values);
            add_second(isa, &mut self.gradient[at], values);
        }
    }

    fn count(&mut self, elements: usize, leaf: Leaf, site: Site) {
        self.progress += elements;
        self.overrun |= self.progress > self.gradient.len() || site.0 >= self.sites;
        if self.progress >= self.gradient.len() {
            self.progress = 0;
            self.complete += 1;
            self.tags = self.tags.wrapping_add(tag(leaf, site));
        }
    }
}

/// Where one leaf's gradients go.
pub struct LeafSink<'a> {
    gradients: &'a Gradients,
    leaf: Leaf,
}

impl LeafSink<'_> {
    /// The parameter's sum, with an i64 buffer if the step needs one.
    fn sum(&self, param: ParamId) -> MutexGuard<'_, Sum> {
        let mut sum = lock(&self.gradients.sums[param.index()]);
        if self.gradients.leaves > 1 && sum.wide.is_none() {
            sum.wide = Some(self.gradients.wide(sum.gradient.len()));
        }
        sum
    }
}

impl GradSink for LeafSink<'_> {
    fn wants(&self, param: ParamId) -> bool {
        !lock(&self.gradients.sums[param.index()]).frozen
    }

    fn dense(&self, param: ParamId, site: Site, first: usize, values: &mut [f32]) {
        let mut sum = self.sum(param);
        sum.add(self.gradients.isa, first, values);
        sum.count(values.len(), self.leaf, site);
    }

    fn rows(&self, param: ParamId, site: Site, rows: &[u32], values: &mut [f32]) {
        let mut sum = self.sum(param);
        sum.clear_if_first();
        let width = sum.width;
        for (&row, values) in rows.iter().zip(values.chunks_exact_mut(width)) {
            sum.add_row(self.gradients.isa, row as usize, values);
        }
        let len = sum.gradient.len();
        sum.count(len, self.leaf, site);
    }

    fn in_place(
        &self,
        kit: &Kit,
        (param, site): (ParamId, Site),
        len: usize,
        fill: &mut dyn FnMut(&mut [f32]),
    ) {
        let mut guard = self.sum(param);
        let sum = &mut *guard;
        assert_eq!(len, sum.gradient.len(), "the buffer is the parameter's gradient");
        if let Some(wide) = &mut sum.wide {
            fill(&mut sum.gradient);
            let first = sum.complete == 0;
            sum.flagged |= exact::accumulate_parallel(kit, sum.grid, &sum.gradient, wide, first);
        } else {
            assert_eq!(sum.complete, 0, "a gradient built in place is the first of its step");
            fill(&mut sum.gradient);
            sum.flagged |= exact::round_parallel(kit, sum.grid, &mut sum.gradient);
        }
        sum.count(len, self.leaf, site);
    }
}

#[cfg(test)]
mod tests;
