//! Attention of new tokens over a cache of keys and values, for decoding.

use super::{AttentionShape, QkvLayout};
use crate::compute::Kit;
use crate::kernels::gemm::epilogue::Out;

/// Adds the new tokens' keys and values to the cache `[max_length, 2*g*e]` (keys, then values), and
/// writes each new token's attention to `out [m, h*e]`. A row's bits do not depend on how many rows
/// are decoded together.
///
/// # Panics
/// If the cache is too short.
pub fn cached_attention(
    kit: &Kit,
    shape: AttentionShape,
    (qkv, position): (&[f32], usize),
    cache: &mut [f32],
    out: &mut [f32],
) {
    let layout = QkvLayout::fused(shape);
    let (e, kv) = (shape.head_dim, shape.kv_heads * shape.head_dim);
    for (i, row) in qkv.chunks_exact(layout.row).enumerate() {
        let slot = &mut cache[(position + i) * 2 * kv..][..2 * kv];
        slot[..kv].copy_from_slice(&row[layout.k..][..kv]);
        slot[kv..].copy_from_slice(&row[layout.v..][..kv]);
    }
    let (cache, rows) = (&*cache, qkv.len() / layout.row);
    let out = Out::new(out, shape.heads * e);
    kit.pool.run(rows * shape.heads, &|task, _| {
        let (i, h) = (task / shape.heads, task % shape.heads);
        let q = &qkv[i * layout.row + layout.q + h * e..][..e];
        let first = h / (shape.heads / shape.kv_heads) * e;
        // SAFETY: each task has its own head's columns of one row.
        let to = unsafe { out.columns(i, h * e, e) };
        let (from, end) = (shape.first_key(position + i), position + i + 1);
        attend(q, &cache[from * 2 * kv..end * 2 * kv], (2 * kv, first, kv), shape.scale, to);
    });
}

/// Softmax attention of one query, by the running maximum (Milakov and Gimelshein 2018).
fn attend(
    q: &[f32],
    cache: &[f32],
    (row, first, kv): (usize, usize, usize),
    scale: f32,
    out: &mut [f32],
) {
    let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0f32);
    out.fill(0.0);
    for slot in cache.chunks_exact(row) {
        let k = &slot[first..first + q.len()];
        let v = &slot[kv + first..][..q.len()];
        let score = q.iter().zip(k).fold(0.0f32, |s, (a, b)| a.mul_add(*b, s)) * scale;
        if score > max {
            let shrink = libm::expf(max - score);
            out.iter_mut().for_each(|o| *o *= shrink);
            (max, sum) = (score, sum * shrink);
        }
        let weight = libm::expf(score - max);
        sum += weight;
        out.iter_mut().zip(v).for_each(|(o, v)| *o = weight.mul_add(*v, *o));
    }
    out.iter_mut().for_each(|o| *o /= sum);
}
