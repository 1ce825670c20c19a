//! SIMD kernels, each written once over [`simd::Simd`] or with a scalar twin.
//!
//! Determinism: a kernel's bits depend on its inputs alone. Every output element is one chain of
//! fused multiply-adds in a fixed order, or a reduction over 16 virtual lanes with a fixed tree; so
//! thread count, row split and (for fp32) the ISA do not show.
//!
//! Shape letters: `b` sequences, `t` positions, `n` tokens (`b*t`), `d` model width, `h` query heads,
//! `g` key/value heads, `e` head width, `f` MLP width, `v` vocabulary.

pub mod isa;
pub mod simd;

pub use isa::Isa;
