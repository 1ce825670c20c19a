//! A node's side: the sink that a lot's leaves emit into.

use super::{
    Form, Lanes, NOT_FINITE, OFF_GRID, Part, PartTable, Partial, Rows, Run, SumPools, Values,
    loss_to_grid,
};
use crate::block::{GradSink, LossStats};
use crate::compute::Kit;
use crate::exact_sum::{Grid, tag};
use crate::kernels::piece::Piece;
use crate::kernels::{Isa, exact};
use planaria_base::{ChunkId, Leaf, ParamId, Site};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a (chunk, site) has of the lot so far.
#[derive(Default)]
struct PartSum {
    values: Option<Values>,
    /// Emissions that are in whole.
    complete: u32,
    /// Elements of the emission under way.
    progress: usize,
    tags: u64,
    flags: u8,
}

/// The sums of one lot at a time.
pub struct LotSums {
    isa: Isa,
    table: Arc<PartTable>,
    pools: SumPools,
    /// Leaves of the lot.
    leaves: u32,
    /// `[chunk][site]`.
    sums: Vec<Vec<Mutex<PartSum>>>,
    stats: LossStats,
    loss: i64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LotSums {
    /// Sums over `table`, with buffers from `pools`.
    #[must_use]
    pub fn new(table: Arc<PartTable>, isa: Isa, pools: SumPools) -> LotSums {
        let parts = |c: &super::ChunkPlace| c.emitted.iter().map(|_| Mutex::default()).collect();
        let sums = table.chunks.iter().map(parts).collect();
        LotSums { isa, table, pools, leaves: 1, sums, stats: LossStats::default(), loss: 0 }
    }

    /// Forgets everything: a lot of `leaves` leaves starts.
    pub fn begin(&mut self, leaves: u32) {
        self.leaves = leaves;
        (self.stats, self.loss) = (LossStats::default(), 0);
        for sum in self.sums.iter_mut().flatten() {
            *sum.get_mut().unwrap_or_else(PoisonError::into_inner) = PartSum::default();
        }
    }

    /// Counts a leaf's loss.
    pub fn add_loss(&mut self, stats: LossStats) {
        self.stats.labels += stats.labels;
        self.stats.loss_sum += stats.loss_sum;
        self.loss = self.loss.wrapping_add(loss_to_grid(stats.loss_sum));
    }

    /// The sink of one leaf.
    #[must_use]
    pub fn sink(&self, leaf: Leaf) -> LotSink<'_> {
        LotSink { sums: self, leaf }
    }

    /// Takes the finished partial of a part; `carries_loss`: it is the one that carries labels and
    /// loss; `checked`: it leaves this node, so its words are summed with weights.
    ///
    /// # Panics
    /// If some leaf's emission is not whole.
    pub fn take(&mut self, part: Part, carries_loss: bool, checked: bool) -> Partial {
        let Part { chunk, site } = part;
        let place = &self.table.chunks[chunk.index()];
        let sum = self.sums[chunk.index()][usize::from(site.0)]
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let sum = std::mem::take(sum);
        assert!(
            sum.complete == self.leaves && sum.progress == 0,
            "law 2: {} of {} leaves emitted into {chunk}, site {site}",
            sum.complete,
            self.leaves
        );
        let values = sum.values.unwrap_or(Values::Rows(Rows::default()));
        let form = match &values {
            Values::Single(_) => Form::Single,
            Values::Wide(_) => Form::Wide,
            Values::Rows(rows) => Form::Rows { runs: rows.runs.len() as u32 / 2 },
        };
        let checksum = checked.then(|| super::sum::checksum_of(self.isa, values.view(), place));
        let (labels, loss) = if carries_loss { (self.stats.labels, self.loss) } else { (0, 0) };
        Partial {
            lanes: Lanes { form, tags: sum.tags, labels, loss, flags: sum.flags, checksum },
            values,
        }
    }

    fn part(&self, chunk: ChunkId, site: Site) -> MutexGuard<'_, PartSum> {
        lock(&self.sums[chunk.index()][usize::from(site.0)])
    }

    /// A dense sum; zeroed where some of its elements are not emitted at this site.
    fn fresh(&self, chunk: ChunkId, site: Site) -> Values {
        let place = &self.table.chunks[chunk.index()];
        let whole = place.emitted[usize::from(site.0)] == place.len;
        if self.leaves == 1 {
            let mut single = self.pools.single.take(place.len);
            if !whole {
                single.fill(0.0);
            }
            Values::Single(single)
        } else {
            let mut wide = self.pools.wide.take(place.len);
            if !whole {
                wide.fill(0);
            }
            Values::Wide(wide)
        }
    }

    /// Makes every element's value explicit: a dense emission meets listed rows in one chunk.
    fn densify(&self, chunk: ChunkId, site: Site, sum: &mut PartSum) {
        let Some(Values::Rows(rows)) = &sum.values else { return };
        let mut dense = self.fresh(chunk, site);
        let grid_at = |at: usize| {
            let stretches = &self.table.chunks[chunk.index()].stretches;
            stretches[stretches.partition_point(|s| s.offset + s.len <= at)].grid
        };
        match &mut dense {
            Values::Single(v) => v.fill(0.0),
            Values::Wide(v) => v.fill(0),
            Values::Rows(_) => unreachable!("fresh values are dense"),
        }
        let mut values = &rows.values[..];
        for run in rows.runs.chunks_exact(2) {
            let (at, n) = (run[0] as usize, run[1] as usize);
            let (these, rest) = values.split_at(n);
            values = rest;
            match &mut dense {
                Values::Single(v) => exact::add_second(self.isa, &mut v[at..at + n], these),
                Values::Wide(v) => {
                    let _ = exact::add(self.isa, grid_at(at), these, &mut v[at..at + n]);
                }
                Values::Rows(_) => unreachable!("fresh values are dense"),
            }
        }
        sum.values = Some(dense);
    }
}

/// Why values were flagged.
fn reasons(values: &[f32]) -> u8 {
    if values.iter().all(|v| v.is_finite()) { OFF_GRID } else { NOT_FINITE }
}

/// Where one leaf's gradients go.
pub struct LotSink<'a> {
    sums: &'a LotSums,
    leaf: Leaf,
}

impl LotSink<'_> {
    /// Puts a dense stretch into its part.
    fn put(&self, run: Run, site: Site, grid: Grid, values: &[f32]) {
        let isa = self.sums.isa;
        let mut sum = self.sums.part(run.chunk, site);
        let sum = &mut *sum;
        self.sums.densify(run.chunk, site, sum);
        let first = sum.complete == 0;
        let into = sum.values.get_or_insert_with(|| self.sums.fresh(run.chunk, site));
        let at = run.offset..run.offset + run.len;
        let flagged = match into {
            Values::Single(into) => {
                into[at.clone()].copy_from_slice(values);
                exact::round(isa, grid, &mut into[at])
            }
            Values::Wide(into) if first => exact::put(isa, grid, values, &mut into[at]),
            Values::Wide(into) => exact::add(isa, grid, values, &mut into[at]),
            Values::Rows(_) => unreachable!("made dense above"),
        };
        if flagged {
            sum.flags |= reasons(values);
        }
        self.count(sum, run.chunk, site, run.len);
    }

    fn count(&self, sum: &mut PartSum, chunk: ChunkId, site: Site, elements: usize) {
        sum.progress += elements;
        let whole = self.sums.table.chunks[chunk.index()].emitted[usize::from(site.0)];
        assert!(sum.progress <= whole, "law 2: chunk {chunk}, site {site} got too much of a leaf");
        if sum.progress == whole {
            sum.progress = 0;
            sum.complete += 1;
            sum.tags = sum.tags.wrapping_add(tag(self.leaf, site));
        }
    }

    /// Lists one row's elements that lie in `run`, rounded.
    fn list(&self, run: Run, site: Site, grid: Grid, values: &mut [f32]) {
        let isa = self.sums.isa;
        let mut sum = self.sums.part(run.chunk, site);
        let sum = &mut *sum;
        let why = reasons(values);
        if exact::round(isa, grid, values) {
            sum.flags |= why;
        }
        let at = run.offset..run.offset + run.len;
        match sum.values.get_or_insert_with(|| Values::Rows(Rows::default())) {
            Values::Rows(rows) => {
                rows.runs.extend([run.offset as u32, run.len as u32]);
                rows.values.extend_from_slice(values);
            }
            Values::Single(into) => exact::add_second(isa, &mut into[at], values),
            Values::Wide(into) => {
                let _ = exact::add(isa, grid, values, &mut into[at]);
            }
        }
    }

    /// Zeroes a parameter's stretch in a dense part, before the rows of the first leaf.
    fn clear(&self, run: Run, site: Site) {
        let mut sum = self.sums.part(run.chunk, site);
        if sum.complete > 0 {
            return;
        }
        let at = run.offset..run.offset + run.len;
        match &mut sum.values {
            Some(Values::Single(into)) => into[at].fill(0.0),
            Some(Values::Wide(into)) => into[at].fill(0),
            Some(Values::Rows(_)) | None => {}
        }
    }
}

impl GradSink for LotSink<'_> {
    fn dense(&self, param: ParamId, site: Site, first: usize, values: &mut [f32]) {
        let grid = self.sums.table.params[param.index()].grid;
        for run in self.sums.table.runs(param, first, values.len()) {
            let at = run.first - first;
            self.put(run, site, grid, &values[at..at + run.len]);
        }
    }

    fn rows(&self, param: ParamId, site: Site, rows: &[u32], values: &mut [f32]) {
        let place = &self.sums.table.params[param.index()];
        let (width, grid) = (place.width, place.grid);
        place.runs.iter().for_each(|&run| self.clear(run, site));
        for (&row, values) in rows.iter().zip(values.chunks_exact_mut(width)) {
            let first = row as usize * width;
            for run in self.sums.table.runs(param, first, width) {
                let at = run.first - first;
                self.list(run, site, grid, &mut values[at..at + run.len]);
            }
        }
        for run in &place.runs {
            let mut sum = self.sums.part(run.chunk, site);
            self.count(&mut sum, run.chunk, site, run.len);
        }
    }

    fn in_place(
        &self,
        kit: &Kit,
        (param, site): (ParamId, Site),
        len: usize,
        fill: &mut dyn FnMut(&mut [f32]),
    ) {
        let place = &self.sums.table.params[param.index()];
        let mut whole = self.sums.pools.single.take(len);
        fill(&mut whole);
        if self.sums.leaves == 1 {
            return self.keep(kit, whole, place, site);
        }
        let grain = 1 << 16;
        kit.pool.run(len.div_ceil(grain), &|task, _| {
            let (first, end) = (task * grain, len.min((task + 1) * grain));
            for run in self.sums.table.runs(param, first, end - first) {
                self.put(run, site, place.grid, &whole[run.first..run.first + run.len]);
            }
        });
    }
}

impl LotSink<'_> {
    /// One leaf's gradient that was built in place: its chunks are cut out of it without a copy,
    /// but for chunks that hold other parameters too.
    fn keep(&self, kit: &Kit, mut whole: Piece<f32>, place: &super::ParamPlace, site: Site) {
        let flagged = reasons_parallel(kit, &whole, place.grid);
        let _ = exact::round_parallel(kit, place.grid, &mut whole);
        for run in &place.runs {
            let (piece, rest) = whole.split(run.len);
            whole = rest;
            let alone = self.sums.table.chunks[run.chunk.index()].len == run.len;
            let mut sum = self.sums.part(run.chunk, site);
            let sum = &mut *sum;
            if alone {
                sum.values = Some(Values::Single(piece));
            } else {
                self.sums.densify(run.chunk, site, sum);
                let into = sum.values.get_or_insert_with(|| self.sums.fresh(run.chunk, site));
                let Values::Single(into) = into else { unreachable!("the lot has one leaf") };
                into[run.offset..run.offset + run.len].copy_from_slice(&piece);
            }
            sum.flags |= flagged;
            self.count(sum, run.chunk, site, run.len);
        }
    }
}

/// The flags of values that are about to be rounded.
fn reasons_parallel(kit: &Kit, values: &[f32], grid: Grid) -> u8 {
    use std::sync::atomic::{AtomicU8, Ordering};
    let bound = grid.bound() * grid.step();
    let flags = AtomicU8::new(0);
    let grain = 1 << 16;
    kit.pool.run(values.len().div_ceil(grain), &|task, _| {
        let values = &values[task * grain..values.len().min((task + 1) * grain)];
        // NaN compares false: it is not below the bound either.
        if !values.iter().all(|v| v.abs() < bound) {
            flags.fetch_or(reasons(values), Ordering::Relaxed);
        }
    });
    flags.into_inner()
}
