//! How a model's parameters are cut into chunks, and which blocks read which chunks.

use planaria_base::{BlockId, ChunkId, ChunkTable, ParamId};
use planaria_models::block::{Model, ParamSpec};
use planaria_models::optimizers::OptimizerSpec;

/// A model's chunks, grouped by block.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Every element of every parameter that is trained, once; a frozen one has none here.
    pub table: ChunkTable,
    /// By block, the loss block last: the parameters whose last emission is in its backward.
    pub groups: Vec<Vec<ParamId>>,
    /// By block, the loss block last: the chunks whose sums are complete once its backward is.
    pub group_chunks: Vec<Vec<ChunkId>>,
    /// By block, the loss block last: the chunks that it reads.
    pub block_chunks: Vec<Vec<ChunkId>>,
}

impl Layout {
    /// Cuts a model into chunks of at most `chunk_elements`; a parameter that the optimizer needs as
    /// a whole is not cut.
    ///
    /// A parameter belongs to the group of the block whose backward emits into it last: the first
    /// block that reads it, since backward runs from the loss block down.
    ///
    /// # Panics
    /// If a parameter is read by no block.
    #[must_use]
    pub fn of(model: &Model, chunk_elements: u64, optimizer: &OptimizerSpec) -> Layout {
        let readers: Vec<&[ParamId]> = model
            .blocks
            .iter()
            .map(|b| b.params())
            .chain(std::iter::once(model.head.params()))
            .collect();
        let first_reader = |param: &ParamId| readers.iter().position(|r| r.contains(param));
        let groups: Vec<Vec<ParamId>> = (0..readers.len())
            .map(|b| {
                let ids = model.params.iter().map(|p| p.id);
                ids.filter(|id| first_reader(id) == Some(b)).collect()
            })
            .collect();
        let size = |p: &ParamSpec| if p.frozen { 0 } else { p.elements() as u64 };
        let sizes: Vec<u64> = model.params.iter().map(size).collect();
        let whole = |id: ParamId| optimizer.needs_whole(&model.params[id.index()]);
        let table = ChunkTable::cut(&sizes, &groups, chunk_elements, &whole);
        let chunks_of = |params: &[ParamId]| -> Vec<ChunkId> {
            let holds =
                |c: &&planaria_base::Chunk| c.spans.iter().any(|s| params.contains(&s.param));
            table.chunks.iter().filter(holds).map(|c| c.id).collect()
        };
        Layout {
            group_chunks: groups.iter().map(|g| chunks_of(g)).collect(),
            block_chunks: readers.iter().map(|r| chunks_of(r)).collect(),
            groups,
            table,
        }
    }

    /// The chunks of a block's group.
    #[must_use]
    pub fn group(&self, block: BlockId) -> &[ChunkId] {
        &self.group_chunks[block.index()]
    }
}
