use super::*;
use crate::compute::Kit;
use half::bf16;
use planaria_base::rng::CounterRng;

const SHAPE: AttentionShape = AttentionShape {
    sequences: 2,
    length: 131,
    heads: 4,
    kv_heads: 2,
    head_dim: 24,
    scale: 0.2,
    window: None,
};

/// All keys, and windows within a block, across blocks, of one key, and longer than the sequence.
fn shapes() -> impl Iterator<Item = AttentionShape> {
    let windows = [None, Some(1), Some(7), Some(40), Some(119), Some(1000)];
    windows.into_iter().map(|window| AttentionShape { window, ..SHAPE })
}

fn random<T: GemmElement>(seed: u64, len: usize) -> Vec<T> {
    let rng = CounterRng::new(seed);
    (0..len as u64).map(|i| T::from_f32(2.0 * rng.uniform(i) as f32 - 1.0)).collect()
}

struct Run {
    out: Vec<f32>,
    dqkv: Vec<f32>,
}

fn run<T: GemmElement>(kit: &Kit, shape: AttentionShape) -> Run {
    let layout = QkvLayout::fused(shape);
    let n = shape.sequences * shape.length;
    let qkv: Vec<T> = random(1, n * layout.row);
    let dout: Vec<T> = random(2, n * shape.heads * shape.head_dim);
    let mut out = vec![T::default(); dout.len()];
    let mut lse = vec![0.0; n * shape.heads];
    attention(kit, shape, (&qkv, layout), &mut out, &mut lse);
    let mut dqkv = vec![T::default(); qkv.len()];
    let io =
        AttentionBackward { qkv: &qkv, layout, out: &out, lse: &lse, dout: &dout, dqkv: &mut dqkv };
    attention_backward(kit, shape, io);
    let wide = |x: &[T]| x.iter().map(|v| v.to_f32()).collect();
    Run { out: wide(&out), dqkv: wide(&dqkv) }
}

/// The definition, in f64, with its gradient written out.
fn naive(s: AttentionShape) -> (Vec<f64>, Vec<f64>) {
    let layout = QkvLayout::fused(s);
    let (n, e) = (s.sequences * s.length, s.head_dim);
    let qkv: Vec<f64> = random::<f32>(1, n * layout.row).iter().map(|&x| f64::from(x)).collect();
    let dout: Vec<f64> = random::<f32>(2, n * s.heads * e).iter().map(|&x| f64::from(x)).collect();
    let (mut out, mut d) = (vec![0.0; dout.len()], vec![0.0; qkv.len()]);
    for (b, h) in (0..s.sequences).flat_map(|b| (0..s.heads).map(move |h| (b, h))) {
        let kv = h / (s.heads / s.kv_heads);
        let q_at = |i: usize| (b * s.length + i) * layout.row + layout.q + h * e;
        let k_at = |i: usize| (b * s.length + i) * layout.row + layout.k + kv * e;
        let v_at = |i: usize| (b * s.length + i) * layout.row + layout.v + kv * e;
        for i in 0..s.length {
            let o = (b * s.length + i) * s.heads * e + h * e;
            let score = |j: usize| -> f64 {
                (0..e).map(|c| qkv[q_at(i) + c] * qkv[k_at(j) + c]).sum::<f64>()
                    * f64::from(s.scale)
            };
            let first = s.window.map_or(0, |w| (i + 1).saturating_sub(w));
            let seen = |j: usize| if j < first { 0.0 } else { score(j).exp() };
            let weights: Vec<f64> = (0..=i).map(seen).collect();
            let z: f64 = weights.iter().sum();
            let dp = |j: usize| -> f64 { (0..e).map(|c| dout[o + c] * qkv[v_at(j) + c]).sum() };
            let delta: f64 = (0..=i).map(|j| weights[j] / z * dp(j)).sum();
            for j in 0..=i {
                let p = weights[j] / z;
                let ds = p * (dp(j) - delta) * f64::from(s.scale);
                for c in 0..e {
                    out[o + c] += p * qkv[v_at(j) + c];
                    d[v_at(j) + c] += p * dout[o + c];
                    d[q_at(i) + c] += ds * qkv[k_at(j) + c];
                    d[k_at(j) + c] += ds * qkv[q_at(i) + c];
                }
            }
        }
    }
    (out, d)
}

fn close(got: &[f32], want: &[f64], tolerance: f64) {
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*g) - w).abs() < tolerance * (1.0 + w.abs()), "{i}: {g} {w}");
    }
}

/// Output and gradients against the definition, with grouped queries, a ragged last block, and windows.
#[test]
fn attention_is_right() {
    let kit = Kit::new(2, crate::kernels::Isa::detect());
    for shape in shapes() {
        let (out, d) = naive(shape);
        let got = run::<f32>(&kit, shape);
        close(&got.out, &out, 2e-6);
        close(&got.dqkv, &d, 1e-5);
        let got = run::<bf16>(&kit, shape);
        close(&got.out, &out, 2e-2);
        close(&got.dqkv, &d, 5e-2);
    }
}

/// The same bits for every thread count and ISA.
#[test]
fn attention_does_not_depend_on_threads_or_isa() {
    for shape in shapes() {
        let want = run::<f32>(&Kit::new(1, crate::kernels::Isa::Scalar), shape);
        for isa in crate::kernels::Isa::available() {
            for threads in 1..=3 {
                let got = run::<f32>(&Kit::new(threads, isa), shape);
                let same = got.out == want.out && got.dqkv == want.dqkv;
                assert!(same, "{isa}, {threads} threads, window {:?}", shape.window);
            }
        }
    }
}
