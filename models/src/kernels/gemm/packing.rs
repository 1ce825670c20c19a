//! The buffers that packed operands live in: they grow to the largest product and stay.

use bytemuck::Zeroable;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; 16]);

// SAFETY: sixteen fp32 are valid when all bytes are zero.
unsafe impl Zeroable for Line {}

/// A buffer of words that grows and is never given back.
#[derive(Default)]
pub(crate) struct Words(Vec<Line>);

impl Words {
    /// The first `len` words; their contents are unspecified.
    pub(crate) fn get(&mut self, len: usize) -> &mut [f32] {
        let lines = len.div_ceil(16);
        if self.0.len() < lines {
            // Freed first, so that the two never exist together.
            self.0 = Vec::new();
            self.0 = bytemuck::zeroed_vec(lines);
        }
        // SAFETY: a line is 16 fp32 without padding.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}

/// The packing buffers of a kit: one for B, shared, and one per worker for A and partial sums.
pub struct Packing {
    b: Mutex<Words>,
    a: Vec<Mutex<Words>>,
}

impl Packing {
    /// Empty buffers for `threads` workers.
    #[must_use]
    pub fn new(threads: usize) -> Packing {
        let a = (0..threads.max(1)).map(|_| Mutex::default()).collect();
        Packing { b: Mutex::default(), a }
    }

    /// Bytes held at present.
    #[must_use]
    pub fn bytes(&self) -> usize {
        std::iter::once(&self.b).chain(&self.a).map(|w| lock(w).0.len() * 64).sum()
    }

    /// Grows every worker's buffer to `len` words, so that none grows later because tasks fell to
    /// threads differently.
    pub(crate) fn reserve(&self, len: usize) {
        self.a.iter().for_each(|w| {
            lock(w).get(len);
        });
    }

    pub(crate) fn shared(&self) -> MutexGuard<'_, Words> {
        lock(&self.b)
    }

    pub(crate) fn own(&self, worker: usize) -> MutexGuard<'_, Words> {
        lock(&self.a[worker])
    }
}

fn lock(words: &Mutex<Words>) -> MutexGuard<'_, Words> {
    words.lock().unwrap_or_else(PoisonError::into_inner)
}
