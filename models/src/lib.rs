//! Numbers on one process: kernels, ops, blocks, families, optimizers, tokenizers.
//!
//! ```text
//! families ── blocks ── ops ── kernels        (GPT-2, LLaMA and kin: block lists over SIMD kernels)
//!     │          │               │
//!  Hugging    saved slots     compute         (a pinned pool, one ISA, preallocated scratch)
//!   Face      gradients ──> exact_sum         (fp32 rounded to a grid, added in i64)
//!                                │
//!                            optimizers
//! ```
//!
//! It knows no files beyond the tensors handed to it through `TensorSource`, no sockets and no
//! clock. Read [`block`] first: it is the interface that every model implements.

pub mod anomaly;
pub mod block;
pub mod buffer;
pub mod compute;
pub mod exact_sum;
pub mod families;
pub mod generate;
pub mod gguf;
pub mod gradcheck;
pub mod gradients;
pub mod hf;
pub mod kernels;
pub mod leaf;
pub mod lora;
pub mod loss_scale;
pub mod ops;
pub mod optimizers;
pub mod packing;
pub mod partials;
pub mod schedules;
pub mod tokenizers;
