//! Working values: what a block's kernels read, one buffer pair per group of parameters.
//!
//! A group is what one block brings (see [`crate::layout::Layout`]). Its parameters lie end to end in
//! chunk order, so a parameter is contiguous for kernels and a chunk is contiguous for gathers. Under
//! bf16 matrices lie in a second buffer, vectors stay fp32.

use crate::layout::Layout;
use half::bf16;
use half::slice::HalfFloatSliceExt;
use planaria_base::{ChunkId, ParamId};
use planaria_models::block::{Model, ParamSpec, ParamTable, ParamValue, Precision};
use planaria_models::buffer::Buffer;
use std::ops::Range;
use std::sync::Arc;

/// One group's values.
pub struct Values {
    /// fp32 values: all in fp32, the vectors in bf16.
    pub single: Buffer<f32>,
    /// bf16 values: the matrices in bf16.
    pub half: Buffer<bf16>,
}

/// A run of one parameter inside a chunk, and where its values lie in the group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ValueRun {
    /// First element in the chunk.
    pub offset: usize,
    /// Elements.
    pub len: usize,
    /// Whether the values lie in [`Values::half`].
    pub is_half: bool,
    /// First element in that buffer.
    pub at: usize,
}

/// Where a chunk's values lie.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkValues {
    /// The group.
    pub group: usize,
    /// Its elements in [`Values::single`].
    pub single: Range<usize>,
    /// Its elements in [`Values::half`].
    pub half: Range<usize>,
    /// By parameter.
    pub runs: Vec<ValueRun>,
}

impl ChunkValues {
    /// Bytes that the values take on the wire.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.single.len() * 4 + self.half.len() * 2
    }
}

#[derive(Clone, Copy, Debug)]
struct ParamPlace {
    group: usize,
    is_half: bool,
    at: usize,
    len: usize,
}

/// Where everything lies; a pure function of the run spec.
#[derive(Clone, Debug)]
pub struct ValuesLayout {
    params: Vec<ParamPlace>,
    /// By chunk.
    pub chunks: Vec<ChunkValues>,
    /// By group: elements of both buffers, and the chunks.
    pub groups: Vec<(usize, usize, Vec<ChunkId>)>,
    /// By block, the loss block last: the groups that it reads.
    pub block_groups: Vec<Vec<usize>>,
}

impl ValuesLayout {
    /// The layout of a model's working values.
    #[must_use]
    pub fn new(model: &Model, layout: &Layout, precision: Precision) -> ValuesLayout {
        let unplaced = ParamPlace { group: 0, is_half: false, at: 0, len: 0 };
        let mut params = vec![unplaced; model.params.len()];
        let mut chunks = Vec::with_capacity(layout.table.chunks.len());
        let mut groups = Vec::with_capacity(layout.groups.len());
        for (group, ids) in layout.group_chunks.iter().enumerate() {
            let (mut single, mut half) = (0, 0);
            for &id in ids {
                let mut place = ChunkValues {
                    group,
                    single: single..single,
                    half: half..half,
                    runs: Vec::new(),
                };
                let mut offset = 0;
                for span in &layout.table.chunk(id).spans {
                    let spec = &model.params[span.param.index()];
                    let is_half = has_half(spec, precision);
                    let next = if is_half { &mut half } else { &mut single };
                    let len = span.len as usize;
                    if span.start == 0 {
                        let len = spec.elements();
                        params[span.param.index()] = ParamPlace { group, is_half, at: *next, len };
                    }
                    place.runs.push(ValueRun { offset, len, is_half, at: *next });
                    *next += len;
                    offset += len;
                }
                (place.single.end, place.half.end) = (single, half);
                chunks.push(place);
            }
            groups.push((single, half, ids.clone()));
        }
        let group_of = |c: &ChunkId| chunks[c.index()].group;
        let mut block_groups: Vec<Vec<usize>> =
            layout.block_chunks.iter().map(|ids| ids.iter().map(group_of).collect()).collect();
        for groups in &mut block_groups {
            groups.sort_unstable();
            groups.dedup();
        }
        ValuesLayout { params, chunks, groups, block_groups }
    }

    /// Fresh buffers for a group.
    #[must_use]
    pub fn allocate(&self, group: usize) -> Values {
        let (single, half, _) = &self.groups[group];
        Values { single: Buffer::zeroed(*single), half: Buffer::zeroed(*half) }
    }

    /// Bytes of a group's buffers.
    #[must_use]
    pub fn group_bytes(&self, group: usize) -> usize {
        let (single, half, _) = &self.groups[group];
        Buffer::<f32>::bytes_for(*single) + Buffer::<bf16>::bytes_for(*half)
    }

    /// Writes a chunk's values from its fp32 master.
    pub fn write_master(&self, chunk: ChunkId, master: &[f32], into: &mut Values) {
        for run in &self.chunks[chunk.index()].runs {
            let from = &master[run.offset..run.offset + run.len];
            if run.is_half {
                into.half[run.at..run.at + run.len].convert_from_f32_slice(from);
            } else {
                into.single[run.at..run.at + run.len].copy_from_slice(from);
            }
        }
    }

    /// A chunk's values for the wire: fp32 values, then bf16 values.
    #[must_use]
    pub fn body(&self, chunk: ChunkId, from: &Values) -> Vec<u8> {
        let place = &self.chunks[chunk.index()];
        let mut body = Vec::with_capacity(place.bytes());
        body.extend_from_slice(bytemuck::cast_slice(&from.single[place.single.clone()]));
        body.extend_from_slice(bytemuck::cast_slice(&from.half[place.half.clone()]));
        body
    }

    /// The same from a master.
    #[must_use]
    pub fn body_of_master(&self, chunk: ChunkId, master: &[f32]) -> Vec<u8> {
        let place = &self.chunks[chunk.index()];
        let mut body = Vec::with_capacity(place.bytes());
        for run in place.runs.iter().filter(|r| !r.is_half) {
            body.extend_from_slice(bytemuck::cast_slice(&master[run.offset..run.offset + run.len]));
        }
        for run in place.runs.iter().filter(|r| r.is_half) {
            let at = body.len();
            body.resize(at + 2 * run.len, 0);
            let from = &master[run.offset..run.offset + run.len];
            for (to, &x) in body[at..].chunks_exact_mut(2).zip(from) {
                to.copy_from_slice(&bf16::from_f32(x).to_le_bytes());
            }
        }
        body
    }

    /// Takes a chunk's values from the wire; false if the length is wrong.
    pub fn read_body(&self, chunk: ChunkId, body: &[u8], into: &mut Values) -> bool {
        let place = &self.chunks[chunk.index()];
        if body.len() != place.bytes() {
            return false;
        }
        let (single, half) = body.split_at(place.single.len() * 4);
        bytemuck::cast_slice_mut::<f32, u8>(&mut into.single[place.single.clone()])
            .copy_from_slice(single);
        bytemuck::cast_slice_mut::<bf16, u8>(&mut into.half[place.half.clone()])
            .copy_from_slice(half);
        true
    }
}

fn has_half(spec: &ParamSpec, precision: Precision) -> bool {
    precision == Precision::Bf16 && spec.is_matrix()
}

/// The groups that the device holds at present, as kernels look parameters up.
pub struct Lent {
    layout: Arc<ValuesLayout>,
    /// By group: the values, and how many blocks hold them.
    groups: Vec<Option<(Arc<Values>, usize)>>,
}

impl Lent {
    /// Nothing is lent.
    #[must_use]
    pub fn new(layout: Arc<ValuesLayout>) -> Lent {
        let groups = layout.groups.iter().map(|_| None).collect();
        Lent { layout, groups }
    }

    /// A block's groups, one more time.
    pub fn lend(&mut self, groups: Vec<(usize, Arc<Values>)>) {
        for (group, values) in groups {
            match &mut self.groups[group] {
                Some((_, holders)) => *holders += 1,
                empty => *empty = Some((values, 1)),
            }
        }
    }

    /// A block no longer reads its groups.
    pub fn release(&mut self, block: usize) {
        for &group in &self.layout.block_groups[block] {
            if let Some((_, holders)) = &mut self.groups[group] {
                *holders -= 1;
                if *holders == 0 {
                    self.groups[group] = None;
                }
            }
        }
    }

    /// Everything is given back.
    pub fn clear(&mut self) {
        self.groups.fill_with(|| None);
    }
}

impl ParamTable for Lent {
    fn value(&self, id: ParamId) -> ParamValue<'_> {
        let place = self.layout.params[id.index()];
        let Some((values, _)) = &self.groups[place.group] else { return ParamValue::Absent };
        let range = place.at..place.at + place.len;
        if place.is_half {
            ParamValue::Bf16(&values.half[range])
        } else {
            ParamValue::F32(&values.single[range])
        }
    }
}
