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

use crate::block::{GradSink, LossScale, ParamSpec};
use crate::buffer::Buffer;
use crate::compute::Kit;
use crate::exact_sum::{Grid, add_second, round_to_grid, tag, tag_total};
use crate::kernels::{Isa, exact};
use planaria_base::{Leaf, ParamId, Site};
use std::collections::BTreeMap;
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
    /// A value was not finite; looked for only where the loss is scaled.
    not_finite: bool,
    /// An emission had more elements than the parameter.
    overrun: bool,
}

/// What the sum of a parameter came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SumOutcome {
    /// A value was not finite or did not fit the grid.
    pub flagged: bool,
    /// A value was not finite: the loss scale may be at fault. Told only where there is one.
    pub not_finite: bool,
    /// Each (leaf, site) was added exactly once.
    pub exactly_once: bool,
}

/// All parameters' sums.
pub struct Gradients {
    isa: Isa,
    leaves: u32,
    /// What each value is multiplied by first, where the loss is scaled.
    unscale: Option<f32>,
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
                not_finite: false,
                overrun: false,
            })
        };
        let sums = params.iter().map(sum).collect();
        Gradients { isa, leaves, unscale: None, sums, free: Mutex::default() }
    }

    /// Bytes of the fp32 gradients.
    #[must_use]
    pub fn bytes(params: &[ParamSpec]) -> usize {
        let trained = params.iter().filter(|p| !p.frozen);
        trained.map(|p| Buffer::<f32>::bytes_for(p.elements())).sum()
    }

    /// Bytes of i64 sums that a step leaves allocated: none with one leaf; with more, of all
    /// parameters if `all` groups are summed at once, else of those of a group at a time and of the
    /// parameters in two groups. A sum is used again for a parameter of its length only.
    #[must_use]
    pub fn wide_bytes(
        params: &[ParamSpec],
        leaves: u32,
        groups: &[Vec<ParamId>],
        all: bool,
    ) -> usize {
        if leaves == 1 {
            return 0;
        }
        let bytes = |id: &ParamId| Buffer::<i64>::bytes_for(params[id.index()].elements());
        if all {
            return params.iter().filter(|p| !p.frozen).map(|p| bytes(&p.id)).sum();
        }
        let tied = |id: &&ParamId| params[id.index()].sites > 1;
        let shared: usize = groups.iter().flatten().filter(tied).map(bytes).sum();
        let mut most = BTreeMap::<usize, usize>::new();
        for group in groups {
            let mut counts = BTreeMap::<usize, usize>::new();
            for id in group.iter().filter(|id| !tied(id)) {
                *counts.entry(params[id.index()].elements()).or_default() += 1;
            }
            for (len, count) in counts {
                let most = most.entry(len).or_default();
                *most = count.max(*most);
            }
        }
        shared + most.iter().map(|(&len, n)| n * Buffer::<i64>::bytes_for(len)).sum::<usize>()
    }

    /// Bytes of i64 sums allocated so far.
    #[must_use]
    pub fn wide_bytes_held(&self) -> usize {
        let used = self.sums.iter().map(|s| lock(s).wide.as_ref().map_or(0, |w| w.len()));
        let free = lock(&self.free).iter().map(|w| w.len()).collect::<Vec<_>>();
        used.chain(free).map(Buffer::<i64>::bytes_for).sum()
    }

    /// Forgets all sums: an attempt starts.
    pub fn begin(&mut self) {
        let free = self.free.get_mut().unwrap_or_else(PoisonError::into_inner);
        for sum in &mut self.sums {
            let sum = sum.get_mut().unwrap_or_else(PoisonError::into_inner);
            (sum.complete, sum.progress, sum.tags) = (0, 0, 0);
            (sum.flagged, sum.not_finite, sum.overrun) = (false, false, false);
            free.extend(sum.wide.take());
        }
    }

    /// From the next emission on, values are divided by the loss scale (a power of two, so exactly)
    /// before they are rounded to the grid, and looked at for infinities; `None` for no loss scale.
    pub fn set_loss_scale(&mut self, scale: Option<LossScale>) {
        self.unscale = scale.map(|s| 1.0 / s.factor);
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
        let exactly_once = whole && tags && !sum.overrun;
        SumOutcome { flagged: sum.flagged, not_finite: sum.not_finite, exactly_once }
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
    /// Takes the loss scale out of values.
    fn unscale(&mut self, gradients: &Gradients, values: &mut [f32]) {
        if let Some(factor) = gradients.unscale {
            self.not_finite |= exact::unscale(gradients.isa, factor, values);
        }
    }

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
        sum.unscale(self.gradients, values);
        sum.add(self.gradients.isa, first, values);
        sum.count(values.len(), self.leaf, site);
    }

    fn rows(&self, param: ParamId, site: Site, rows: &[u32], values: &mut [f32]) {
        let mut sum = self.sum(param);
        sum.unscale(self.gradients, values);
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
        assert!(
            sum.wide.is_some() || sum.complete == 0,
            "a gradient built in place is the first of its step"
        );
        fill(&mut sum.gradient);
        if let Some(factor) = self.gradients.unscale {
            sum.not_finite |= exact::unscale_parallel(kit, factor, &mut sum.gradient);
        }
        if let Some(wide) = &mut sum.wide {
            let first = sum.complete == 0;
            sum.flagged |= exact::accumulate_parallel(kit, sum.grid, &sum.gradient, wide, first);
        } else {
            sum.flagged |= exact::round_parallel(kit, sum.grid, &mut sum.gradient);
        }
        sum.count(len, self.leaf, site);
    }
}

#[cfg(test)]
mod tests;
