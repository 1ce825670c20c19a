//! Spans and chunks: how a model's parameters are cut into pieces that actors own.
//!
//! A [`Span`] is an element range of one parameter. A [`Chunk`] is a list of spans, a few MiB in
//! all. [`ChunkTable::cut`] is a pure function of the parameters' sizes, so every node computes the
//! same table; it is part of the run spec and does not depend on any bucket key.

use crate::ids::{ChunkId, ParamId};
use serde::{Deserialize, Serialize};

/// The elements `start..start + len` of one parameter, in row-major order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Span {
    /// Whose elements.
    pub param: ParamId,
    /// The first element.
    pub start: u64,
    /// How many.
    pub len: u64,
}

impl Span {
    /// One past the last element.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// The elements as an index range.
    #[must_use]
    pub fn range(&self) -> std::ops::Range<usize> {
        self.start as usize..self.end() as usize
    }

    /// The part of this span that lies in `start..end` of the same parameter.
    #[must_use]
    pub fn intersect(&self, start: u64, end: u64) -> Option<Span> {
        let (lo, hi) = (self.start.max(start), self.end().min(end));
        (lo < hi).then(|| Span { param: self.param, start: lo, len: hi - lo })
    }
}

/// The spans that one shard actor owns.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Chunk {
    /// Its place in the table.
    pub id: ChunkId,
    /// In (parameter, start) order.
    pub spans: Vec<Span>,
}

impl Chunk {
    /// Elements in all spans.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.spans.iter().map(|s| s.len).sum()
    }
}

/// All chunks of a model: every element of every parameter exactly once.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ChunkTable {
    /// In id order.
    pub chunks: Vec<Chunk>,
    /// Elements of each parameter, by id.
    pub param_elements: Vec<u64>,
}

impl ChunkTable {
    /// Cuts parameters into chunks of at most `max_elements`.
    ///
    /// `groups` lists the parameters of one block each; a chunk never spans two groups, so that a
    /// block can be gathered alone. Inside a group the parameters' elements are laid end to end and
    /// cut every `max_elements`.
    ///
    /// A parameter that is `whole` (its optimizer needs all of it at once) lies in one chunk: the
    /// chunk begun, if it has room for it, else the next; a chunk of its own may then be larger than
    /// `max_elements`.
    ///
    /// # Panics
    /// If `max_elements` is zero, or `groups` names a parameter twice or not at all.
    #[must_use]
    pub fn cut(
        param_elements: &[u64],
        groups: &[Vec<ParamId>],
        max_elements: u64,
        whole: &dyn Fn(ParamId) -> bool,
    ) -> ChunkTable {
        assert!(max_elements > 0, "a chunk holds at least one element");
        let mut seen = vec![false; param_elements.len()];
        let mut chunks = Vec::new();
        for group in groups {
            let mut cutter = Cutter { chunks: &mut chunks, spans: Vec::new(), room: max_elements };
            for &param in group {
                let taken = std::mem::replace(&mut seen[param.index()], true);
                assert!(!taken, "parameter {param} is in two groups");
                let elements = param_elements[param.index()];
                if whole(param) {
                    cutter.add_whole(param, elements, max_elements);
                } else {
                    cutter.add(param, elements, max_elements);
                }
            }
            cutter.close(max_elements);
        }
        assert!(seen.iter().all(|&s| s), "every parameter is in a group");
        ChunkTable { chunks, param_elements: param_elements.to_vec() }
    }

    /// The chunk with this id.
    #[must_use]
    pub fn chunk(&self, id: ChunkId) -> &Chunk {
        &self.chunks[id.index()]
    }

    /// Elements of all parameters.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.param_elements.iter().sum()
    }
}

struct Cutter<'a> {
    chunks: &'a mut Vec<Chunk>,
    spans: Vec<Span>,
    room: u64,
}

impl Cutter<'_> {
    fn add(&mut self, param: ParamId, elements: u64, max_elements: u64) {
        let mut start = 0;
        while start < elements {
            let len = self.room.min(elements - start);
            self.spans.push(Span { param, start, len });
            start += len;
            self.room -= len;
            if self.room == 0 {
                self.close(max_elements);
            }
        }
    }

    fn add_whole(&mut self, param: ParamId, elements: u64, max_elements: u64) {
        if elements == 0 {
            return;
        }
        if elements > self.room {
            self.close(max_elements);
        }
        self.spans.push(Span { param, start: 0, len: elements });
        self.room = self.room.saturating_sub(elements);
        if self.room == 0 {
            self.close(max_elements);
        }
    }

    fn close(&mut self, max_elements: u64) {
        if !self.spans.is_empty() {
            let id = ChunkId(self.chunks.len() as u32);
            self.chunks.push(Chunk { id, spans: std::mem::take(&mut self.spans) });
        }
        self.room = max_elements;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Every element of every parameter lies in exactly one span; no chunk is too large, but one
        /// that is a single whole parameter; and whole parameters are whole.
        #[test]
        fn a_cut_covers_every_element_once(
            sizes in prop::collection::vec(0u64..500, 1..20),
            max in 1u64..200,
            split in 0usize..20,
            wholes in 0u32..1 << 20,
        ) {
            let ids: Vec<ParamId> = (0..sizes.len() as u32).map(ParamId).collect();
            let at = split.min(ids.len());
            let groups = vec![ids[..at].to_vec(), ids[at..].to_vec()];
            let whole = |p: ParamId| wholes >> p.0 & 1 == 1;
            let table = ChunkTable::cut(&sizes, &groups, max, &whole);
            let mut hits: Vec<Vec<u32>> = sizes.iter().map(|&n| vec![0; n as usize]).collect();
            for (i, chunk) in table.chunks.iter().enumerate() {
                prop_assert_eq!(chunk.id.index(), i);
                let single = chunk.spans.len() == 1 && whole(chunk.spans[0].param);
                prop_assert!(chunk.elements() > 0 && (chunk.elements() <= max || single));
                for span in &chunk.spans {
                    prop_assert!(!whole(span.param) || span.len == sizes[span.param.index()]);
                    hits[span.param.index()][span.range()].iter_mut().for_each(|h| *h += 1);
                }
            }
            prop_assert!(hits.iter().flatten().all(|&h| h == 1));
        }
    }
}
