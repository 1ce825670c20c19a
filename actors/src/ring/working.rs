//! A node's working values: filled from its own shards and from gathers, lent to the device.
//!
//! Resident values (ZeRO 0 to 2, or one node) stay; in fp32 they are at the same time the masters of
//! the chunks that this node holds. Otherwise (ZeRO 3) a group exists from the moment a block is
//! asked for until the device has used it.

use super::values::{Values, ValuesLayout};
use planaria_base::{ChunkId, Step};
use std::sync::Arc;

/// One group's values, and after which step each of its chunks' are.
struct Slot {
    values: Option<Arc<Values>>,
    at: Vec<Option<Step>>,
}

/// All groups.
pub struct Working {
    layout: Arc<ValuesLayout>,
    resident: bool,
    slots: Vec<Slot>,
    /// By chunk: its place in its group.
    places: Vec<usize>,
}

impl Working {
    /// Working values; `resident` ones are allocated at once.
    #[must_use]
    pub fn new(layout: Arc<ValuesLayout>, resident: bool) -> Working {
        let mut places = vec![0; layout.chunks.len()];
        let mut slots = Vec::with_capacity(layout.groups.len());
        for (group, (_, _, chunks)) in layout.groups.iter().enumerate() {
            chunks.iter().enumerate().for_each(|(i, c)| places[c.index()] = i);
            let values = resident.then(|| Arc::new(layout.allocate(group)));
            slots.push(Slot { values, at: vec![None; chunks.len()] });
        }
        Working { layout, resident, slots, places }
    }

    /// Whether the values stay.
    #[must_use]
    pub fn is_resident(&self) -> bool {
        self.resident
    }

    /// A chunk's group, to read.
    #[must_use]
    pub fn values(&self, chunk: ChunkId) -> Option<&Values> {
        self.slots[self.layout.chunks[chunk.index()].group].values.as_deref()
    }

    /// A chunk's group, to write. A group that the device still reads (its lot was abandoned in the
    /// middle) is left to it and copied.
    pub fn values_mut(&mut self, chunk: ChunkId) -> &mut Values {
        let group = self.layout.chunks[chunk.index()].group;
        let slot = &mut self.slots[group];
        let values = slot.values.get_or_insert_with(|| Arc::new(self.layout.allocate(group)));
        if Arc::get_mut(values).is_none() {
            let mut copy = self.layout.allocate(group);
            copy.single.copy_from_slice(&values.single);
            copy.half.copy_from_slice(&values.half);
            *values = Arc::new(copy);
        }
        Arc::get_mut(values).expect("nobody else holds it")
    }

    /// A chunk's values are now those after `step`.
    pub fn mark(&mut self, chunk: ChunkId, step: Option<Step>) {
        let group = self.layout.chunks[chunk.index()].group;
        self.slots[group].at[self.places[chunk.index()]] = step;
    }

    /// After which step a chunk's values are, if they are there.
    #[must_use]
    pub fn at(&self, chunk: ChunkId) -> Option<Step> {
        let group = self.layout.chunks[chunk.index()].group;
        self.slots[group].at[self.places[chunk.index()]]
    }

    /// The chunks of a block's groups that are not those after `step`.
    #[must_use]
    pub fn missing(&self, block: usize, step: Step) -> Vec<ChunkId> {
        let groups = self.layout.block_groups[block].iter();
        let chunks = groups.flat_map(|&g| self.layout.groups[g].2.iter().copied());
        chunks.filter(|&c| self.at(c) != Some(step)).collect()
    }

    /// A block's groups for the device; what does not stay is given away.
    pub fn lend(&mut self, block: usize) -> Vec<(usize, Arc<Values>)> {
        let groups = self.layout.block_groups[block].clone();
        let mut lent = Vec::with_capacity(groups.len());
        for group in groups {
            let slot = &mut self.slots[group];
            let values = if self.resident {
                slot.values.clone()
            } else {
                slot.at.fill(None);
                slot.values.take()
            };
            let fresh = || Arc::new(self.layout.allocate(group));
            lent.push((group, values.unwrap_or_else(fresh)));
        }
        lent
    }

    /// Forgets what was gathered for a step that is over or abandoned.
    pub fn forget_gathered(&mut self) {
        if !self.resident {
            for slot in &mut self.slots {
                slot.values = None;
                slot.at.fill(None);
            }
        }
    }
}
