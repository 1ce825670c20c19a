//! Where each parameter's elements lie in the chunks, and who emits into which.

use crate::block::{Model, ParamSpec};
use crate::exact_sum::Grid;
use planaria_base::{BlockId, ChunkId, ChunkTable, ParamId, Site};
use std::collections::BTreeSet;

/// A run of elements that is contiguous both in its parameter and in its chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The chunk.
    pub chunk: ChunkId,
    /// The first element in the chunk.
    pub offset: usize,
    /// The first element in the parameter.
    pub first: usize,
    /// How many.
    pub len: usize,
}

/// What sums need to know of a parameter.
#[derive(Clone, Debug)]
pub struct ParamPlace {
    /// In element order.
    pub runs: Vec<Run>,
    /// Emission sites.
    pub sites: u8,
    /// Elements of a row.
    pub width: usize,
    /// The grid that its emissions are rounded to.
    pub grid: Grid,
}

/// A stretch of a chunk: one parameter's elements.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stretch {
    /// Whose.
    pub param: ParamId,
    /// The first element in the chunk.
    pub offset: usize,
    /// How many.
    pub len: usize,
    /// The grid of its sum.
    pub grid: Grid,
}

/// What sums need to know of a chunk.
#[derive(Clone, Debug)]
pub struct ChunkPlace {
    /// Elements.
    pub len: usize,
    /// In order.
    pub stretches: Vec<Stretch>,
    /// By site: elements that a leaf emits.
    pub emitted: Vec<usize>,
}

/// A (chunk, site) that a block's backward emits into.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Part {
    /// The chunk.
    pub chunk: ChunkId,
    /// The emission site.
    pub site: Site,
}

/// The map between parameters and chunks; a pure function of the run spec.
#[derive(Clone, Debug)]
pub struct PartTable {
    /// By parameter.
    pub params: Vec<ParamPlace>,
    /// By chunk.
    pub chunks: Vec<ChunkPlace>,
    /// By block, the loss block last: what its backward emits.
    pub emits: Vec<Vec<Part>>,
    /// Leaves of a step.
    pub leaves: u32,
}

impl PartTable {
    /// The table of a model cut into chunks, for steps of `leaves` leaves.
    #[must_use]
    pub fn new(model: &Model, cut: &ChunkTable, leaves: u32, grid_max_log2: i32) -> PartTable {
        let place = |p: &ParamSpec| ParamPlace {
            runs: Vec::new(),
            sites: p.sites,
            width: p.shape.last().copied().unwrap_or(1).max(1),
            grid: Grid::new(u64::from(leaves) * u64::from(p.sites), grid_max_log2),
        };
        let mut params: Vec<ParamPlace> = model.params.iter().map(place).collect();
        let mut chunks = Vec::with_capacity(cut.chunks.len());
        for chunk in &cut.chunks {
            let mut offset = 0;
            let mut stretches = Vec::with_capacity(chunk.spans.len());
            for span in &chunk.spans {
                let (first, len) = (span.start as usize, span.len as usize);
                let param = &mut params[span.param.index()];
                param.runs.push(Run { chunk: chunk.id, offset, first, len });
                stretches.push(Stretch { param: span.param, offset, len, grid: param.grid });
                offset += len;
            }
            let sites = stretches.iter().map(|s| params[s.param.index()].sites).max().unwrap_or(1);
            let emitted = (0..sites)
                .map(|site| {
                    let has = |s: &&Stretch| params[s.param.index()].sites > site;
                    stretches.iter().filter(has).map(|s| s.len).sum()
                })
                .collect();
            chunks.push(ChunkPlace { len: offset, stretches, emitted });
        }
        let emits = emitted_by_block(model, &params);
        PartTable { params, chunks, emits, leaves }
    }

    /// Every part in the order in which backward emits them: from the loss block down.
    pub fn in_emission_order(&self) -> impl Iterator<Item = (BlockId, Part)> + '_ {
        let blocks = self.emits.iter().enumerate().rev();
        blocks.flat_map(|(b, parts)| parts.iter().map(move |&p| (BlockId(b as u32), p)))
    }

    /// The runs of `param` that meet `first..first + len`, clipped to it.
    pub fn runs(&self, param: ParamId, first: usize, len: usize) -> impl Iterator<Item = Run> + '_ {
        let runs = &self.params[param.index()].runs;
        let begin = runs.partition_point(|r| r.first + r.len <= first);
        let end = first + len;
        runs[begin..].iter().take_while(move |r| r.first < end).map(move |r| {
            let (lo, hi) = (r.first.max(first), (r.first + r.len).min(end));
            Run { chunk: r.chunk, offset: r.offset + (lo - r.first), first: lo, len: hi - lo }
        })
    }
}

/// A parameter's sites are its readers in block order: the embedding is site 0, a tied head site 1.
/// A part that several blocks emit into belongs to the one whose backward comes last.
fn emitted_by_block(model: &Model, params: &[ParamPlace]) -> Vec<Vec<Part>> {
    let blocks = model.blocks.iter().map(|b| b.params());
    let readers: Vec<&[ParamId]> = blocks.chain([model.head.params()]).collect();
    let mut seen = vec![0u8; params.len()];
    let mut claimed = BTreeSet::new();
    let mut emits = Vec::with_capacity(readers.len());
    for reader in readers {
        let mut parts = Vec::new();
        for param in reader {
            let site = Site(seen[param.index()]);
            seen[param.index()] += 1;
            let runs = params[param.index()].runs.iter();
            parts.extend(runs.map(|r| Part { chunk: r.chunk, site }));
        }
        parts.sort_unstable();
        parts.retain(|&part| claimed.insert(part));
        emits.push(parts);
    }
    emits
}
