//! Pooled buffers that are owned in disjoint pieces.
//!
//! A large gradient is computed in one contiguous buffer, and its chunks then go different ways: one
//! is added here, another is on its way to its owner. Each [`Piece`] owns its range alone, so no
//! lock and no copy is needed; when the last piece of a buffer is dropped, the buffer returns to its
//! [`PiecePool`].

use crate::buffer::Buffer;
use bytemuck::Pod;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

struct Home<T> {
    /// The first element of `owner`, which nobody touches but through pieces.
    base: *mut T,
    len: usize,
    _owner: Buffer<T>,
    /// Pieces alive.
    pieces: AtomicUsize,
    pool: Weak<Shelf<T>>,
}

// SAFETY: the buffer is only reached through pieces, whose ranges are disjoint; see `Piece`.
unsafe impl<T: Pod + Send> Send for Home<T> {}
// SAFETY: as above.
unsafe impl<T: Pod + Send + Sync> Sync for Home<T> {}

type Shelf<T> = Mutex<Vec<Arc<Home<T>>>>;

/// Buffers that are free, by length.
pub struct PiecePool<T> {
    free: Arc<Shelf<T>>,
}

impl<T> Clone for PiecePool<T> {
    fn clone(&self) -> PiecePool<T> {
        PiecePool { free: self.free.clone() }
    }
}

impl<T> Default for PiecePool<T> {
    fn default() -> PiecePool<T> {
        PiecePool { free: Arc::default() }
    }
}

impl<T: Pod> PiecePool<T> {
    /// A buffer of exactly `len` elements as one piece; contents are unspecified.
    #[must_use]
    pub fn take(&self, len: usize) -> Piece<T> {
        let home = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = |h: &Arc<Home<T>>| h.len == len;
            free.iter().rposition(fits).map(|at| free.swap_remove(at))
        };
        let home = home.unwrap_or_else(|| {
            let mut owner = Buffer::zeroed(len);
            Arc::new(Home {
                base: owner.as_mut_ptr(),
                len,
                _owner: owner,
                pieces: AtomicUsize::new(0),
                pool: Arc::downgrade(&self.free),
            })
        });
        home.pieces.store(1, Ordering::Relaxed);
        Piece { home, start: 0, len }
    }

    /// Frees the buffers that nobody uses.
    pub fn trim(&self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A range of a pooled buffer, owned alone.
pub struct Piece<T: Pod> {
    home: Arc<Home<T>>,
    start: usize,
    len: usize,
}

impl<T: Pod> Piece<T> {
    /// Cuts the piece in two; the first part has `at` elements.
    ///
    /// # Panics
    /// If `at` is past the end.
    #[must_use]
    pub fn split(self, at: usize) -> (Piece<T>, Piece<T>) {
        assert!(at <= self.len, "a piece is cut inside");
        self.home.pieces.fetch_add(1, Ordering::Relaxed);
        let rest = Piece { home: self.home.clone(), start: self.start + at, len: self.len - at };
        let mut first = self;
        first.len = at;
        (first, rest)
    }
}

impl<T: Pod> Deref for Piece<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: ranges of living pieces are disjoint and inside the buffer (`take` makes one for
        // the whole, `split` divides), so only this piece reaches these elements; the home keeps the
        // buffer alive.
        unsafe { std::slice::from_raw_parts(self.home.base.add(self.start), self.len) }
    }
}

impl<T: Pod> DerefMut for Piece<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and this piece is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.home.base.add(self.start), self.len) }
    }
}

impl<T: Pod> Drop for Piece<T> {
    fn drop(&mut self) {
        if self.home.pieces.fetch_sub(1, Ordering::AcqRel) == 1
            && let Some(pool) = self.home.pool.upgrade()
        {
            pool.lock().unwrap_or_else(PoisonError::into_inner).push(self.home.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pieces are written apart, and the buffer comes back once all are gone, in any order.
    #[test]
    fn pieces_are_disjoint_and_come_home() {
        let pool = PiecePool::<i64>::default();
        let whole = pool.take(100);
        let address = whole.as_ptr();
        let (mut a, rest) = whole.split(40);
        let (mut b, mut c) = rest.split(25);
        std::thread::scope(|s| {
            s.spawn(|| a.fill(1));
            s.spawn(|| b.fill(2));
            s.spawn(|| c.fill(3));
        });
        assert_eq!((a.len(), b.len(), c.len()), (40, 25, 35));
        assert!(a.iter().all(|&x| x == 1) && b.iter().all(|&x| x == 2));
        drop(b);
        drop(a);
        assert_ne!(pool.take(100).as_ptr(), address, "a piece is still alive");
        drop(c);
        assert!(pool.free.lock().expect("no panic").len() == 2);
        pool.trim();
        assert!(pool.free.lock().expect("no panic").is_empty());
    }
}
