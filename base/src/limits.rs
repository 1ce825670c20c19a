//! Limits that more than one crate must agree on. ARCHITECTURE.md holds the table of all limits.

/// Elements of a chunk at most: 4 MiB of fp32. Part of the run spec, so changing it changes hashes.
pub const CHUNK_ELEMENTS: u64 = 1 << 20;

/// Leaves of one step at most.
pub const LEAVES_PER_STEP: u32 = 1 << 16;

/// Parameters of one model at most.
pub const PARAMS_PER_MODEL: usize = 1 << 20;

/// Alignment in bytes of every tensor buffer: a cache line and an AVX-512 register.
pub const TENSOR_ALIGN: usize = 64;
