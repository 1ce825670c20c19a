//! The compute side of a process: a thread pool, one ISA, preallocated scratch.

use crate::block::Precision;
use crate::kernels::Isa;

/// What kernels need: threads and an instruction set. Shared by reference, never cloned.
pub struct Kit {
    /// The instruction set of every kernel.
    pub isa: Isa,
}

/// A process's compute: the kit, the precision, and scratch that blocks carve up.
pub struct Compute {
    /// Threads and ISA.
    pub kit: Kit,
    /// Of matrix products and stored activations.
    pub precision: Precision,
}
