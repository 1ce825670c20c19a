//! Zeroed buffers on cache-line boundaries, made before the first step and kept.

use bytemuck::{Pod, Zeroable};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// A fixed number of elements, 64-byte aligned. Zero pages are not touched until they are written.
pub struct Buffer<T> {
    lines: Box<[Line]>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// `len` zeroed elements.
    #[must_use]
    pub fn zeroed(len: usize) -> Buffer<T> {
        let lines = bytemuck::zeroed_slice_box(Self::bytes_for(len) / 64);
        Buffer { lines, len, element: PhantomData }
    }

    /// Bytes that a buffer of `len` elements takes.
    #[must_use]
    pub fn bytes_for(len: usize) -> usize {
        (len * size_of::<T>()).next_multiple_of(64)
    }
}

impl<T: Pod> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

impl<T: Pod> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.lines)[..self.len]
    }
}
