//! Byte pair encoding: a piece's bytes, merged by rank.

use super::split::Split;
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Mutex;

/// Pieces remembered at most, and the longest of them in bytes.
const CACHED: usize = 1 << 16;
const CACHED_BYTES: usize = 64;

/// Pieces up to so many bytes are merged by scanning, longer ones with a heap.
const SCANNED: usize = 128;

const NONE: u32 = u32::MAX;

/// A byte-level vocabulary with its merges.
pub(super) struct Bpe {
    split: Split,
    /// Bytes of each id; empty for an id that stands for nothing.
    bytes: Vec<Box<[u8]>>,
    /// Pieces that are one id before any merge.
    whole: FxHashMap<Box<[u8]>, u32>,
    /// Two neighbours to the rank of their merge and its id.
    pairs: FxHashMap<(u32, u32), (u32, u32)>,
    /// [`NONE`] for a byte without an id.
    byte_ids: [u32; 256],
    cache: Mutex<Cache>,
}

impl std::fmt::Debug for Bpe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Bpe({:?}, {} ids)", self.split, self.bytes.len())
    }
}

#[derive(Default)]
struct Cache {
    spans: FxHashMap<Box<[u8]>, (u32, u32)>,
    ids: Vec<u32>,
}

impl Bpe {
    /// Of a vocabulary where an id is the rank of its bytes (tiktoken's).
    ///
    /// `None` if one of the 256 bytes has no id.
    pub(super) fn from_ranks(split: Split, bytes: Vec<Box<[u8]>>) -> Option<Bpe> {
        let whole: FxHashMap<Box<[u8]>, u32> =
            bytes.iter().enumerate().map(|(id, b)| (b.clone(), id as u32)).collect();
        let mut pairs = FxHashMap::default();
        for (id, word) in bytes.iter().enumerate() {
            for cut in 1..word.len() {
                if let (Some(&a), Some(&b)) = (whole.get(&word[..cut]), whole.get(&word[cut..])) {
                    pairs.insert((a, b), (id as u32, id as u32));
                }
            }
        }
        Bpe::new(split, bytes, whole, pairs, true)
    }

    /// Of a vocabulary with a list of merges, first one first: (left, right, merged).
    ///
    /// A byte without an id is left out, as the `tokenizers` crate does where there is no unknown token.
    pub(super) fn from_merges(
        split: Split,
        bytes: Vec<Box<[u8]>>,
        merges: &[(u32, u32, u32)],
        whole_first: bool,
    ) -> Option<Bpe> {
        let whole: FxHashMap<Box<[u8]>, u32> =
            bytes.iter().enumerate().map(|(id, b)| (b.clone(), id as u32)).collect();
        let ranked = merges.iter().enumerate();
        let pairs = ranked.map(|(rank, &(a, b, id))| ((a, b), (rank as u32, id))).collect();
        let mut bpe = Bpe::new(split, bytes, whole, pairs, false)?;
        if !whole_first {
            bpe.whole = FxHashMap::default();
        }
        Some(bpe)
    }

    fn new(
        split: Split,
        bytes: Vec<Box<[u8]>>,
        whole: FxHashMap<Box<[u8]>, u32>,
        pairs: FxHashMap<(u32, u32), (u32, u32)>,
        bytes_needed: bool,
    ) -> Option<Bpe> {
        let mut byte_ids = [NONE; 256];
        for byte in 0..=255u8 {
            byte_ids[byte as usize] = whole.get(&[byte][..]).copied().unwrap_or(NONE);
        }
        if bytes_needed && byte_ids.contains(&NONE) {
            return None;
        }
        Some(Bpe { split, bytes, whole, pairs, byte_ids, cache: Mutex::default() })
    }

    /// The bytes of an id; none for an id that stands for nothing.
    pub(super) fn bytes_of(&self, id: u32) -> &[u8] {
        self.bytes.get(id as usize).map_or(&[], |b| b)
    }

    /// Ids of a text; every character of it is text.
    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        let mut out = Vec::with_capacity(text.len() / 3 + 1);
        match self.cache.try_lock() {
            Ok(mut cache) => self.split.each(text, |piece| self.piece(piece, &mut cache, &mut out)),
            Err(_) => {
                let mut cache = Cache::default();
                self.split.each(text, |piece| self.piece(piece, &mut cache, &mut out));
            }
        }
        out
    }

    fn piece(&self, piece: &[u8], cache: &mut Cache, out: &mut Vec<u32>) {
        if let [byte] = piece {
            return out.extend(self.ids(&[*byte]));
        }
        if let Some(&(start, end)) = cache.spans.get(piece) {
            return out.extend_from_slice(&cache.ids[start as usize..end as usize]);
        }
        let first = out.len();
        match self.whole.get(piece) {
            Some(&id) => out.push(id),
            None if piece.len() <= SCANNED => self.merge_by_scan(piece, out),
            None => self.merge_by_heap(piece, out),
        }
        if piece.len() <= CACHED_BYTES {
            if cache.spans.len() >= CACHED {
                *cache = Cache::default();
            }
            let start = cache.ids.len() as u32;
            cache.ids.extend_from_slice(&out[first..]);
            cache.spans.insert(piece.into(), (start, cache.ids.len() as u32));
        }
    }

    fn ids(&self, piece: &[u8]) -> impl Iterator<Item = u32> {
        piece.iter().map(|&b| self.byte_ids[b as usize]).filter(|&id| id != NONE)
    }

    fn pair(&self, a: u32, b: u32) -> (u32, u32) {
        self.pairs.get(&(a, b)).copied().unwrap_or((NONE, NONE))
    }

    /// Merges the best pair until none is left. Cost: the square of the piece's length.
    fn merge_by_scan(&self, piece: &[u8], out: &mut Vec<u32>) {
        let mut ids: Vec<u32> = self.ids(piece).collect();
        let mut merges: Vec<(u32, u32)> = ids.windows(2).map(|w| self.pair(w[0], w[1])).collect();
        // The first of equal ranks, as every implementation has it.
        while let Some((at, &(rank, id))) = merges.iter().enumerate().min_by_key(|(_, m)| m.0)
            && rank != NONE
        {
            ids[at] = id;
            ids.remove(at + 1);
            merges.remove(at);
            if at > 0 {
                merges[at - 1] = self.pair(ids[at - 1], id);
            }
            if at < merges.len() {
                merges[at] = self.pair(id, ids[at + 1]);
            }
        }
        out.append(&mut ids);
    }

    /// The same with a heap over linked neighbours. Cost: n log n.
    fn merge_by_heap(&self, piece: &[u8], out: &mut Vec<u32>) {
        let mut ids: Vec<u32> = self.ids(piece).collect();
        let count = ids.len();
        let mut next: Vec<u32> = (1..=count as u32).collect();
        let mut before: Vec<u32> = (0..count as u32).map(|i| i.wrapping_sub(1)).collect();
        let mut heap = BinaryHeap::new();
        let offer = |heap: &mut BinaryHeap<_>, at: u32, a: u32, b: u32| {
            let (rank, id) = self.pair(a, b);
            if rank != NONE {
                heap.push(Reverse((rank, at, a, b, id)));
            }
        };
        for at in 0..count.saturating_sub(1) {
            offer(&mut heap, at as u32, ids[at], ids[at + 1]);
        }
        while let Some(Reverse((_, at, a, b, id))) = heap.pop() {
            let (i, j) = (at as usize, next[at as usize] as usize);
            // An entry whose neighbours have changed since is stale.
            if ids[i] != a || j >= count || ids[j] != b {
                continue;
            }
            let after = next[j];
            (ids[i], ids[j], next[i]) = (id, NONE, after);
            if (after as usize) < count {
                before[after as usize] = at;
                offer(&mut heap, at, id, ids[after as usize]);
            }
            if before[i] != NONE {
                offer(&mut heap, before[i], ids[before[i] as usize], id);
            }
        }
        out.extend(ids.into_iter().filter(|&id| id != NONE));
    }

    #[cfg(test)]
    pub(super) fn both_merges(&self, piece: &[u8]) -> (Vec<u32>, Vec<u32>) {
        let (mut scan, mut heap) = (Vec::new(), Vec::new());
        self.merge_by_scan(piece, &mut scan);
        self.merge_by_heap(piece, &mut heap);
        (scan, heap)
    }
}
