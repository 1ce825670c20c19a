//! The compute side of a process: a thread pool, one ISA, preallocated scratch.

use crate::block::Precision;
use crate::kernels::gemm::Packing;
use crate::kernels::{Isa, Pool};
use bytemuck::{Pod, Zeroable};

/// What kernels need: threads, an instruction set, packing buffers. Shared by reference.
pub struct Kit {
    /// The instruction set of every kernel.
    pub isa: Isa,
    /// The compute threads.
    pub pool: Pool,
    /// Where matrix products lay out their operands; grows to the largest product and stays.
    pub packing: Packing,
}

impl Kit {
    /// A kit of `threads` threads.
    #[must_use]
    pub fn new(threads: usize, isa: Isa) -> Kit {
        Kit { isa, pool: Pool::new(threads), packing: Packing::new(threads) }
    }
}

/// A process's compute: the kit, the precision, and scratch that blocks carve up.
pub struct Compute {
    /// Threads and ISA.
    pub kit: Kit,
    /// Of matrix products and stored activations.
    pub precision: Precision,
    scratch: Box<[Line]>,
}

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Compute {
    /// A compute side with `scratch_bytes` of scratch: the largest that any block plans.
    #[must_use]
    pub fn new(threads: usize, isa: Isa, precision: Precision, scratch_bytes: usize) -> Compute {
        let scratch = bytemuck::zeroed_slice_box(scratch_bytes.div_ceil(64));
        Compute { kit: Kit::new(threads, isa), precision, scratch }
    }

    /// The kit, and all scratch as an arena.
    pub fn split(&mut self) -> (&Kit, Arena<'_>) {
        (&self.kit, Arena::new(bytemuck::cast_slice_mut(&mut self.scratch)))
    }
}

/// Bytes that a slot of `len` elements of `T` takes in an arena.
#[must_use]
pub const fn slot_bytes<T>(len: usize) -> usize {
    (len * size_of::<T>()).next_multiple_of(64)
}

/// Hands out disjoint, 64-byte aligned slices of one block of memory. Contents are unspecified.
pub struct Arena<'a> {
    rest: &'a mut [u8],
}

impl<'a> Arena<'a> {
    /// An arena over `bytes`.
    ///
    /// # Panics
    /// If `bytes` is not 64-byte aligned.
    #[must_use]
    pub fn new(bytes: &'a mut [u8]) -> Arena<'a> {
        assert!((bytes.as_ptr() as usize).is_multiple_of(64), "an arena starts on a cache line");
        Arena { rest: bytes }
    }

    /// An arena over what is left; what it hands out is free again when it is gone.
    pub fn child(&mut self) -> Arena<'_> {
        Arena { rest: self.rest }
    }

    /// The next `len` elements.
    ///
    /// # Panics
    /// If the plan was too small.
    pub fn take<T: Pod>(&mut self, len: usize) -> &'a mut [T] {
        let bytes = slot_bytes::<T>(len);
        let rest = std::mem::take(&mut self.rest);
        assert!(bytes <= rest.len(), "the plan gives {} bytes, {bytes} are needed", rest.len());
        let (slot, rest) = rest.split_at_mut(bytes);
        self.rest = rest;
        bytemuck::cast_slice_mut(&mut slot[..len * size_of::<T>()])
    }
}
