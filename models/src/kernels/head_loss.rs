//! The output head fused with softmax and cross-entropy: tokens x vocabulary is never stored.
//!
//! The leaf's tokens are walked in even chunks of at most [`CHUNK`]. Per chunk, scores are computed
//! transposed, `[v, chunk]`, so that a softmax's lanes are tokens and never mix. Then strips of the
//! vocabulary are turned into gradients and used twice while they lie in the shared cache:
//! `dh += ds^T · W`, and `dW += ds · h` straight into the buffer that the gradient sink lends. In all
//! 6·n·v·d floating-point operations: nothing is computed twice.
//!
//! Memory: `v * chunk` fp32 of scratch, and a strip in bf16. Traffic per chunk: the scores written
//! once and read twice, W read twice, dW read and written once (the first chunk only writes it). In
//! vocabulary order dW would be written once in all, but the softmax's denominators must be known
//! first, so every score would be computed twice: a third more operations against a few percent of
//! traffic. The loss is the f64 sum over tokens in order of `lse - score[label]`.

use super::gemm::epilogue::{Add, Out, Store, load, store};
use super::gemm::{Dims, GemmElement, K_BLOCK, MatRef, gemm};
use super::math::exp;
use super::simd::{Element, Simd};
use crate::block::LossStats;
use crate::compute::{Arena, Kit, slot_bytes};
use crate::simd_kernel;

/// Most tokens whose scores are held at once: a packed word of W is used `CHUNK / 16` times, and dW
/// travels once a chunk.
pub const CHUNK: usize = 512;

/// Vocabulary rows of one partial of the softmax: fixed, so that threads do not show.
const ROWS: usize = 256;

/// Vocabulary rows whose scores are computed at once, then looked at while in the shared cache.
const SPAN: usize = 16 * ROWS;

/// Vocabulary rows of a task that turns scores into gradients.
const PIECE: usize = 64;

/// Sizes of a head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeadShape {
    /// Tokens.
    pub tokens: usize,
    /// Model width.
    pub width: usize,
    /// Vocabulary.
    pub vocab: usize,
}

impl HeadShape {
    fn chunk(&self) -> usize {
        let chunks = self.tokens.div_ceil(CHUNK).max(1);
        self.tokens.div_ceil(chunks).next_multiple_of(32).min(self.tokens)
    }

    /// Elements of a strip's gradients, where they cannot replace the scores.
    fn rounded<A: GemmElement>(&self) -> usize {
        if size_of::<A>() == 4 { 0 } else { self.strip::<A>() * self.chunk() }
    }

    /// Vocabulary rows of a strip: as many as one block of a product's sum, so that adding strips is
    /// the same as one product.
    fn strip<A: GemmElement>(&self) -> usize {
        (K_BLOCK * A::PER_WORD).min(self.vocab)
    }

    /// The products of [`head_loss_grad`], by size: scores, and both gradients of a strip.
    #[must_use]
    pub fn products<A: GemmElement>(&self) -> Vec<Dims> {
        let (width, strip) = (self.width, self.strip::<A>());
        // The last chunk of tokens and the last rows of the vocabulary are shorter.
        let shorter = |all: usize, step: usize| [step.min(all), all % step.max(1)];
        let mut products = Vec::new();
        for n in shorter(self.tokens, self.chunk()).into_iter().filter(|&n| n > 0) {
            for m in shorter(self.vocab, SPAN).into_iter().filter(|&m| m > 0) {
                products.push(Dims { m, n, k: width });
            }
            for rows in shorter(self.vocab, strip).into_iter().filter(|&r| r > 0) {
                products.push(Dims { m: n, n: width, k: rows });
                products.push(Dims { m: rows, n: width, k: n });
            }
        }
        products
    }

    /// Bytes of scratch that [`head_loss_grad`] takes from its arena.
    #[must_use]
    pub fn scratch_bytes<A: GemmElement>(&self) -> usize {
        let scores = self.vocab * self.chunk();
        let rounded = slot_bytes::<A>(self.rounded::<A>());
        let partials = 2 * self.vocab.div_ceil(ROWS) * self.chunk();
        slot_bytes::<f32>(scores)
            + rounded
            + slot_bytes::<f32>(partials)
            + 4 * slot_bytes::<f32>(self.chunk())
    }
}

/// What the head reads.
#[derive(Clone, Copy)]
pub struct HeadInput<'a, A> {
    /// Normed hidden states, `[tokens, width]`.
    pub hidden: &'a [A],
    /// The head's weights, `[vocab, width]`.
    pub weights: &'a [A],
    /// One label per token; negative ones are not counted.
    pub labels: &'a [i32],
    /// Scores' gradients are multiplied by this.
    pub factor: f32,
}

/// Loss and gradients: `dh [tokens, width]` is overwritten, and so is `dw [vocab, width]`.
///
/// # Panics
/// If a label is beyond the vocabulary, or a buffer too short.
pub fn head_loss_grad<A: GemmElement>(
    kit: &Kit,
    shape: HeadShape,
    input: HeadInput<'_, A>,
    (dh, dw): (&mut [f32], Option<&mut [f32]>),
    arena: &mut Arena<'_>,
) -> LossStats {
    let mut work = Work::take(shape, arena);
    let rounded: &mut [A] = arena.take(shape.rounded::<A>());
    let (mut stats, mut dw) = (LossStats::default(), dw);
    for first in (0..shape.tokens).step_by(shape.chunk()) {
        let n = shape.chunk().min(shape.tokens - first);
        let part = input.rows(first, n, shape.width);
        scores(kit, shape, part, n, &mut work);
        add_losses(&mut stats, &work, part.labels, n);
        let dh = &mut dh[first * shape.width..][..n * shape.width];
        for row in (0..shape.vocab).step_by(shape.strip::<A>()) {
            let strip = Strip { row, rows: shape.strip::<A>().min(shape.vocab - row), n };
            let ds = gradient::<A>(kit, strip, part, &mut work, rounded);
            let at = row * shape.width..(row + strip.rows) * shape.width;
            let weights = &part.weights[at.clone()];
            strip.token_gradient(kit, ds, weights, (&mut *dh, row == 0));
            if let Some(dw) = dw.as_deref_mut() {
                strip.weight_gradient(kit, ds, part.hidden, (&mut dw[at], first == 0));
            }
        }
    }
    stats
}

/// Some rows of the vocabulary against a chunk of tokens.
#[derive(Clone, Copy)]
struct Strip {
    row: usize,
    rows: usize,
    n: usize,
}

impl Strip {
    /// `dh += ds^T · W`, or overwrites it.
    fn token_gradient<A: GemmElement>(
        self,
        kit: &Kit,
        ds: &[A],
        weights: &[A],
        dh: (&mut [f32], bool),
    ) {
        let width = weights.len() / self.rows;
        let dims = Dims { m: self.n, n: width, k: self.rows };
        multiply_into(kit, dims, (MatRef::rows(ds, self.n).t(), MatRef::rows(weights, width)), dh);
    }

    /// `dW += ds · h`, or overwrites it.
    fn weight_gradient<A: GemmElement>(
        self,
        kit: &Kit,
        ds: &[A],
        hidden: &[A],
        dw: (&mut [f32], bool),
    ) {
        let width = hidden.len() / self.n;
        let dims = Dims { m: self.rows, n: width, k: self.n };
        multiply_into(kit, dims, (MatRef::rows(ds, self.n), MatRef::rows(hidden, width)), dw);
    }
}

/// `c = a·b` if fresh, else `c += a·b`.
fn multiply_into<A: GemmElement>(
    kit: &Kit,
    dims: Dims,
    (a, b): (MatRef<'_, A>, MatRef<'_, A>),
    (c, fresh): (&mut [f32], bool),
) {
    let out = Out::new(c, dims.n);
    if fresh { gemm(kit, dims, a, b, &Store(out)) } else { gemm(kit, dims, a, b, &Add(out)) }
}

/// The loss alone, by the same scores.
pub fn head_loss<A: GemmElement>(
    kit: &Kit,
    shape: HeadShape,
    input: HeadInput<'_, A>,
    arena: &mut Arena<'_>,
) -> LossStats {
    let mut work = Work::take(shape, arena);
    let mut stats = LossStats::default();
    for first in (0..shape.tokens).step_by(shape.chunk()) {
        let n = shape.chunk().min(shape.tokens - first);
        let part = input.rows(first, n, shape.width);
        scores(kit, shape, part, n, &mut work);
        add_losses(&mut stats, &work, part.labels, n);
    }
    stats
}

impl<'a, A> HeadInput<'a, A> {
    fn rows(self, first: usize, n: usize, width: usize) -> HeadInput<'a, A> {
        let hidden = &self.hidden[first * width..][..n * width];
        HeadInput { hidden, labels: &self.labels[first..first + n], ..self }
    }
}

/// A chunk's scratch.
struct Work<'a> {
    /// Scores, then (in fp32) their gradients, `[vocab, n]`.
    scores: &'a mut [f32],
    /// Per block of [`ROWS`] rows: largest score and sum of exponentials, `[blocks, 2, n]`.
    partials: &'a mut [f32],
    /// Log-sum-exp per token.
    lse: &'a mut [f32],
    /// Score of the label per token.
    picked: &'a mut [f32],
    /// `factor`, or 0 where the label is not counted.
    factor: &'a mut [f32],
    max: &'a mut [f32],
}

impl<'a> Work<'a> {
    fn take(shape: HeadShape, arena: &mut Arena<'a>) -> Work<'a> {
        let chunk = shape.chunk();
        Work {
            scores: arena.take(shape.vocab * chunk),
            partials: arena.take(2 * shape.vocab.div_ceil(ROWS) * chunk),
            lse: arena.take(chunk),
            picked: arena.take(chunk),
            factor: arena.take(chunk),
            max: arena.take(chunk),
        }
    }
}

fn scores<A: GemmElement>(
    kit: &Kit,
    shape: HeadShape,
    part: HeadInput<'_, A>,
    n: usize,
    work: &mut Work<'_>,
) {
    let hidden = MatRef::rows(part.hidden, shape.width).t();
    let scores = &mut work.scores[..shape.vocab * n];
    let blocks = shape.vocab.div_ceil(ROWS);
    let partials = &mut work.partials[..2 * blocks * n];
    let out = Out::new(&mut *partials, 2 * n);
    for first in (0..shape.vocab).step_by(SPAN) {
        let rows = SPAN.min(shape.vocab - first);
        let span = &mut scores[first * n..][..rows * n];
        let weights = MatRef::rows(&part.weights[first * shape.width..], shape.width);
        let dims = Dims { m: rows, n, k: shape.width };
        gemm(kit, dims, weights, hidden, &Store(Out::new(&mut *span, n)));
        let span = &*span;
        kit.pool.run(rows.div_ceil(ROWS), &|i, _| {
            // SAFETY: each block has its own partial.
            let partial = unsafe { out.rows(first / ROWS + i, 1) };
            let rows = &span[i * ROWS * n..span.len().min((i + 1) * ROWS * n)];
            block_stats(kit.isa, rows, n, partial);
        });
    }
    let scores = &*scores;
    combine(partials, n, work.max, work.lse);
    for (t, &label) in part.labels.iter().enumerate() {
        let counted = label >= 0;
        assert!(
            !counted || (label as usize) < shape.vocab,
            "label {label} is beyond the vocabulary"
        );
        work.factor[t] = if counted { part.factor } else { 0.0 };
        work.picked[t] = if counted { scores[label as usize * n + t] } else { 0.0 };
    }
}

/// The blocks' sums on one scale, in block order; then the logarithm, by libm.
fn combine(partials: &[f32], n: usize, max: &mut [f32], lse: &mut [f32]) {
    for t in 0..n {
        let blocks = || partials.chunks_exact(2 * n).map(|p| (p[t], p[n + t]));
        max[t] =
            blocks().fold(f32::NEG_INFINITY, |m, (block, _)| if block > m { block } else { m });
        let shifted = |(block, sum): (f32, f32)| {
            f64::from(sum) * libm::exp(f64::from(block) - f64::from(max[t]))
        };
        let sum: f64 = blocks().map(shifted).sum();
        lse[t] = (f64::from(max[t]) + libm::log(sum)) as f32;
    }
}

fn add_losses(stats: &mut LossStats, work: &Work<'_>, labels: &[i32], n: usize) {
    for t in (0..n).filter(|&t| labels[t] >= 0) {
        stats.loss_sum += f64::from(work.lse[t]) - f64::from(work.picked[t]);
        stats.labels += 1;
    }
}

/// Columns are tokens: lanes never mix.
#[inline(always)]
unsafe fn block_stats_span<S: Simd>(rows: &[f32], n: usize, partial: &mut [f32]) {
    let (max, sum) = partial.split_at_mut(n);
    max.fill(f32::NEG_INFINITY);
    sum.fill(0.0);
    let (max, sum) = (max.as_mut_ptr(), sum.as_mut_ptr());
    for row in rows.chunks_exact(n) {
        for t in (0..n).step_by(16) {
            let w = (n - t).min(16);
            // SAFETY: rows and partials have `n` elements, the piece at `t` has `w`.
            unsafe {
                let x = load::<S, f32>(row.as_ptr().add(t), w);
                store::<S, f32>(max.add(t), S::max(x, load::<S, f32>(max.add(t), w)), w);
            }
        }
    }
    for row in rows.chunks_exact(n) {
        for t in (0..n).step_by(16) {
            let w = (n - t).min(16);
            // SAFETY: as above.
            unsafe {
                let x = load::<S, f32>(row.as_ptr().add(t), w);
                let e = exp::<S>(S::sub(x, load::<S, f32>(max.add(t), w)));
                store::<S, f32>(sum.add(t), S::add(load::<S, f32>(sum.add(t), w), e), w);
            }
        }
    }
}
simd_kernel!(fn block_stats(rows: &[f32], n: usize, partial: &mut [f32]) = block_stats_span);

/// Turns a strip's scores into their gradients, `factor * (softmax - onehot)`; returns them in `A`.
fn gradient<'w, A: GemmElement>(
    kit: &Kit,
    strip: Strip,
    part: HeadInput<'_, A>,
    work: &'w mut Work<'_>,
    rounded: &'w mut [A],
) -> &'w [A] {
    let n = strip.n;
    let scores = &mut work.scores[strip.row * n..][..strip.rows * n];
    // In fp32 the gradients replace the scores; bf16 ones have a buffer of their own.
    let (read, target): (Option<&[f32]>, &mut [A]) = if rounded.is_empty() {
        (None, bytemuck::cast_slice_mut(scores))
    } else {
        (Some(scores), &mut rounded[..strip.rows * n])
    };
    let (lse, factor, picked) = (&work.lse[..n], &work.factor[..n], &work.picked[..n]);
    let out = Out::new(&mut *target, n);
    kit.pool.run(strip.rows.div_ceil(PIECE), &|i, _| {
        let first = i * PIECE;
        let count = PIECE.min(strip.rows - first);
        // SAFETY: each piece has its own rows.
        let out = unsafe { out.rows(first, count) };
        let rows = read.map(|r| &r[first * n..][..count * n]);
        softmax_gradient::<A>(kit.isa, rows, lse, factor, out);
        let here = strip.row + first..strip.row + first + count;
        for (t, &label) in part.labels.iter().enumerate() {
            if label >= 0 && here.contains(&(label as usize)) {
                let p = libm::expf(picked[t] - lse[t]);
                out[(label as usize - here.start) * n + t] = A::from_f32((p - 1.0) * factor[t]);
            }
        }
    });
    target
}

/// `out = factor * exp(score - lse)`; without `rows`, the scores lie in `out` (as fp32).
#[inline(always)]
unsafe fn softmax_gradient_span<S: Simd, A: Element>(
    rows: Option<&[f32]>,
    lse: &[f32],
    factor: &[f32],
    out: &mut [A],
) {
    let n = lse.len();
    let (to, count) = (out.as_mut_ptr(), out.len() / n);
    let from = rows.map_or(to.cast_const().cast::<f32>(), <[f32]>::as_ptr);
    for i in 0..count {
        for t in (0..n).step_by(16) {
            let (at, w) = (i * n + t, (n - t).min(16));
            // SAFETY: each row has `n` elements, the piece at `t` has `w`; in place, each piece is
            // read before it is written.
            unsafe {
                let x = load::<S, f32>(from.add(at), w);
                let p = exp::<S>(S::sub(x, load::<S, f32>(lse.as_ptr().add(t), w)));
                let d = S::mul(p, load::<S, f32>(factor.as_ptr().add(t), w));
                store::<S, A>(to.add(at), d, w);
            }
        }
    }
}
simd_kernel!(fn softmax_gradient<A: Element>(rows: Option<&[f32]>, lse: &[f32], factor: &[f32],
    out: &mut [A]) = softmax_gradient_span);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::Isa;
    use half::bf16;
    use planaria_base::rng::CounterRng;

    const SHAPE: HeadShape = HeadShape { tokens: 600, width: 24, vocab: 1100 };

    fn random<A: Element>(seed: u64, len: usize) -> Vec<A> {
        let rng = CounterRng::new(seed);
        (0..len as u64).map(|i| A::from_f32(2.0 * rng.uniform(i) as f32 - 1.0)).collect()
    }

    fn labels() -> Vec<i32> {
        let rng = CounterRng::new(9);
        let label = |i| if i % 7 == 3 { -100 } else { rng.below(i, SHAPE.vocab as u64) as i32 };
        (0..SHAPE.tokens as u64).map(label).collect()
    }

    fn run<A: GemmElement>(kit: &Kit) -> (LossStats, Vec<f32>, Vec<f32>) {
        let (hidden, weights) =
            (random::<A>(1, SHAPE.tokens * SHAPE.width), random::<A>(2, SHAPE.vocab * SHAPE.width));
        let labels = labels();
        let input = HeadInput { hidden: &hidden, weights: &weights, labels: &labels, factor: 0.25 };
        let mut dh = vec![0.0; hidden.len()];
        let mut dw = vec![0.0; weights.len()];
        let mut memory: Vec<u128> = vec![0; SHAPE.scratch_bytes::<A>() / 16 + 8];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut memory);
        let skip = bytes.as_ptr().align_offset(64);
        let len = SHAPE.scratch_bytes::<A>();
        let mut arena = Arena::new(&mut bytes[skip..skip + len]);
        let stats = head_loss_grad(kit, SHAPE, input, (&mut dh, Some(&mut dw)), &mut arena);
        let mut arena = Arena::new(&mut bytes[skip..skip + len]);
        assert_eq!(head_loss(kit, SHAPE, input, &mut arena), stats, "the loss alone is the same");
        (stats, dh, dw)
    }

    fn naive() -> (f64, Vec<f64>, Vec<f64>) {
        let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
        let (n, d, v) = (SHAPE.tokens, SHAPE.width, SHAPE.vocab);
        let (h, w) = (wide(random(1, n * d)), wide(random(2, v * d)));
        let (mut loss, mut dh, mut dw) = (0.0, vec![0.0; n * d], vec![0.0; v * d]);
        for (t, &label) in labels().iter().enumerate().filter(|(_, l)| **l >= 0) {
            let score = |r: usize| (0..d).map(|c| h[t * d + c] * w[r * d + c]).sum::<f64>();
            let e: Vec<f64> = (0..v).map(|r| score(r).exp()).collect();
            let z: f64 = e.iter().sum();
            loss += z.ln() - score(label as usize);
            for r in 0..v {
                let g = 0.25 * (e[r] / z - f64::from(u8::from(r == label as usize)));
                for c in 0..d {
                    dh[t * d + c] += g * w[r * d + c];
                    dw[r * d + c] += g * h[t * d + c];
                }
            }
        }
        (loss, dh, dw)
    }

    fn close(got: &[f32], want: &[f64], tolerance: f64) {
        for (g, w) in got.iter().zip(want) {
            assert!((f64::from(*g) - w).abs() < tolerance * (1.0 + w.abs()), "{g} {w}");
        }
    }

    /// Loss and both gradients against the definition in f64, with uncounted labels and a last chunk
    /// that is not full.
    #[test]
    fn the_head_is_right() {
        let (loss, dh, dw) = naive();
        let kit = Kit::new(2, Isa::detect());
        let (stats, gh, gw) = run::<f32>(&kit);
        assert!((stats.loss_sum - loss).abs() < 1e-3, "{} {loss}", stats.loss_sum);
        assert_eq!(stats.labels, labels().iter().filter(|&&l| l >= 0).count() as u64);
        close(&gh, &dh, 2e-6);
        close(&gw, &dw, 2e-6);
        let (stats, gh, gw) = run::<bf16>(&kit);
        assert!((stats.loss_sum / loss - 1.0).abs() < 5e-3, "{} {loss}", stats.loss_sum);
        close(&gh, &dh, 2e-2);
        close(&gw, &dw, 2e-2);
    }

    /// The same bits for every thread count and ISA.
    #[test]
    fn the_head_does_not_depend_on_threads_or_isa() {
        let want = run::<f32>(&Kit::new(1, Isa::Scalar));
        for isa in Isa::available() {
            for threads in 1..=3 {
                assert!(run::<f32>(&Kit::new(threads, isa)) == want, "{isa}, {threads} threads");
            }
        }
    }
}
