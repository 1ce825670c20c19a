//! SIMD kernels, each written once over [`simd::Simd`] or with a scalar twin.
//!
//! Determinism: a kernel's bits depend on its inputs alone. Every output element is one chain of
//! fused multiply-adds in a fixed order, or a reduction over 16 virtual lanes with a fixed tree; so
//! thread count, row split and (for fp32) the ISA do not show.
//!
//! Shape letters: `b` sequences, `t` positions, `n` tokens (`b*t`), `d` model width, `h` query heads,
//! `g` key/value heads, `e` head width, `f` MLP width, `v` vocabulary.

pub mod activation;
pub mod attention;
pub mod elementwise;
pub mod embedding;
pub mod exact;
pub mod gemm;
pub mod head_loss;
pub mod isa;
pub mod lamb;
pub mod math;
pub mod muon;
pub mod norm;
pub mod optimizer;
pub mod peak;
pub mod piece;
pub mod pool;
pub mod rope;
pub mod simd;
#[cfg(test)]
mod tests;

pub use isa::Isa;
pub use pool::Pool;

/// Calls `body` for row ranges of about `grain` rows that together cover `0..rows`.
pub(crate) fn for_rows(
    kit: &crate::compute::Kit,
    rows: usize,
    grain: usize,
    body: &(dyn Fn(std::ops::Range<usize>) + Sync),
) {
    let grain = grain.max(1);
    kit.pool.run(rows.div_ceil(grain), &|task, _| {
        body(task * grain..rows.min((task + 1) * grain));
    });
}

/// Rows of `width` elements that make a task of about 32 K elements.
pub(crate) fn row_grain(width: usize) -> usize {
    (32_768 / width.max(1)).max(1)
}
