//! Row and elementwise kernels: against naive twins in f64, their gradients against central
//! differences of those twins, and the same bits whatever the threads and the ISA.

use super::activation::{Gelu, SwigluBackward, gelu, gelu_backward, swiglu, swiglu_backward};
use super::elementwise::{squares_partials, sum_of_squares, sum_of_squares_parallel};
use super::embedding::{embed, sum_rows_by_token};
use super::norm::{
    Norm, NormBackward, NormWeights, norm, norm_again, norm_backward, norm_backward_scratch,
};
use super::rope::{RopeHeads, RopeScaling, RopeTable, rope};
use super::*;
use crate::compute::Kit;
use half::bf16;
use planaria_base::rng::CounterRng;

/// Step of central differences in f64.
const H: f64 = 1e-5;

fn noise(n: usize, stream: u64) -> Vec<f32> {
    let rng = CounterRng::new(5).fork(stream);
    (0..n as u64).map(|i| (rng.uniform(i) * 4.0 - 2.0) as f32).collect()
}

/// Runs on every ISA with 1, 2 and 3 threads; all must give the same bits.
fn everywhere(what: &str, run: impl Fn(&Kit) -> Vec<f32>) -> Vec<f32> {
    let want = run(&Kit::new(1, Isa::Scalar));
    for isa in Isa::available() {
        for threads in 1..=3 {
            let got = run(&Kit::new(threads, isa));
            let same = got.iter().zip(&want).all(|(g, w)| g.to_bits() == w.to_bits());
            assert!(same && got.len() == want.len(), "{what} with {threads} threads on {isa}");
        }
    }
    want
}

fn close(what: &str, got: f32, want: f64, bound: f64) {
    assert!((f64::from(got) - want).abs() <= bound * (1.0 + want.abs()), "{what}: {got} {want}");
}

/// One row of the twin.
fn norm_twin(n: Norm, x: &[f64], w: &[f64], b: &[f64]) -> Vec<f64> {
    let count = x.len() as f64;
    let mean = if n.center { x.iter().sum::<f64>() / count } else { 0.0 };
    let variance = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / count;
    let rstd = 1.0 / libm::sqrt(variance + f64::from(n.eps));
    x.iter().zip(w).zip(b).map(|((x, w), b)| (x - mean) * rstd * w + b).collect()
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| f64::from(v)).collect()
}

const NORMS: [(bool, usize); 6] =
    [(true, 5), (true, 37), (true, 64), (false, 5), (false, 37), (false, 64)];
const ROWS: usize = 131;

#[test]
fn norms_match_their_twin() {
    for (center, width) in NORMS {
        let n = Norm { center, width, eps: 1e-5 };
        let (x, w, b) = (noise(ROWS * width, 1), noise(width, 2), noise(width, 3));
        let weights = NormWeights { w: &w, b: center.then_some(&b[..]) };
        let y = everywhere("norm", |kit| {
            let (mut y, mut stats) = (vec![0.0f32; x.len()], vec![0.0; 2 * ROWS]);
            norm(kit, n, &x, weights, (&mut y, &mut stats));
            let mut again = vec![bf16::ZERO; x.len()];
            norm_again(kit, n, &x, weights, (&mut again, &stats));
            let rounded = y.iter().map(|&v| bf16::from_f32(v));
            assert!(again.iter().copied().eq(rounded), "a second time, rounded to bf16");
            y
        });
        let b = if center { wide(&b) } else { vec![0.0; width] };
        for (x, y) in x.chunks(width).zip(y.chunks(width)) {
            let want = norm_twin(n, &wide(x), &wide(&w), &b);
            y.iter().zip(&want).for_each(|(&y, &want)| close("norm", y, want, 2e-6));
        }
    }
}

/// Derivative of `f` by its argument number `at`.
fn slope(x: &[f64], at: usize, f: impl Fn(&[f64]) -> f64) -> f64 {
    let moved = |by: f64| {
        let mut x = x.to_vec();
        x[at] += by;
        f(&x)
    };
    (moved(H) - moved(-H)) / (2.0 * H)
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[test]
fn norm_gradients_match_differences() {
    for (center, width) in NORMS {
        let n = Norm { center, width, eps: 1e-5 };
        let (x, w, b) = (noise(ROWS * width, 1), noise(width, 2), noise(width, 3));
        let (dy, before) = (noise(ROWS * width, 4), noise(ROWS * width, 5));
        let weights = NormWeights { w: &w, b: center.then_some(&b[..]) };
        let all = everywhere("norm_backward", |kit| {
            let (mut y, mut stats) = (vec![0.0f32; x.len()], vec![0.0; 2 * ROWS]);
            norm(kit, n, &x, weights, (&mut y, &mut stats));
            let mut out = [before.clone(), vec![9.0; 2 * width]].concat();
            let (dx, dwb) = out.split_at_mut(x.len());
            let mut scratch = vec![9.0; norm_backward_scratch(ROWS, width)];
            let io = NormBackward { x: &x, stats: &stats, w: &w, dy: &dy };
            norm_backward(kit, n, io, (dx, dwb), &mut scratch);
            out
        });
        let (dx, dwb) = all.split_at(x.len());
        let (w, b) = (wide(&w), wide(&b));
        for row in [0, 63, 64, ROWS - 1] {
            let at = row * width..(row + 1) * width;
            let (x, dy) = (wide(&x[at.clone()]), wide(&dy[at.clone()]));
            for j in 0..width {
                let want = slope(&x, j, |x| dot(&norm_twin(n, x, &w, &b), &dy));
                let got = dx[at.start + j] - before[at.start + j];
                close("dx", got, want, 3e-5);
            }
        }
        for j in 0..width {
            let loss = |w: &[f64], b: &[f64]| -> f64 {
                let rows = x.chunks(width).zip(dy.chunks(width));
                rows.map(|(x, dy)| dot(&norm_twin(n, &wide(x), w, b), &wide(dy))).sum()
            };
            close("dw", dwb[j], slope(&w, j, |w| loss(w, &b)), 3e-5);
            if center {
                close("db", dwb[width + j], slope(&b, j, |b| loss(&w, b)), 3e-5);
            }
        }
    }
}

fn gelu_twin(kind: Gelu, x: f64) -> f64 {
    let inner = match kind {
        Gelu::Tanh => {
            libm::tanh(libm::sqrt(2.0 / std::f64::consts::PI) * (x + 0.044715 * x * x * x))
        }
        Gelu::Erf => libm::erf(x / std::f64::consts::SQRT_2),
    };
    0.5 * x * (1.0 + inner)
}

/// Values over the whole useful range, and far outside it.
fn activations() -> Vec<f32> {
    let mut x: Vec<f32> = (0..40_001).map(|i| (i as f32 - 20_000.0) * 6e-4).collect();
    x.extend([-1e4, -100.0, -0.0, 1e-30, 88.0, 90.0, 1e4]);
    x
}

#[test]
fn gelus_match_their_twin_and_its_differences() {
    let x = activations();
    for kind in [Gelu::Tanh, Gelu::Erf] {
        let y = everywhere("gelu", |kit| {
            let mut y = vec![0.0f32; x.len()];
            gelu(kit, kind, &x, &mut y);
            y
        });
        let d = everywhere("gelu_backward", |kit| {
            let (mut d, mut again) = (vec![2.0f32; x.len()], vec![0.0f32; x.len()]);
            gelu_backward(kit, kind, &x, &mut d, &mut again);
            assert_eq!(again, y, "the output again");
            d
        });
        for ((&x, &y), &d) in x.iter().zip(&y).zip(&d) {
            let x = f64::from(x);
            close("gelu", y, gelu_twin(kind, x), 2e-6);
            let h = H * (1.0 + x.abs());
            let want = (gelu_twin(kind, x + h) - gelu_twin(kind, x - h)) / (2.0 * h);
            close("gelu slope", d / 2.0, want, 4e-6);
        }
    }
}

#[test]
fn swiglu_matches_its_twin_and_its_differences() {
    let gate = activations();
    let (up, dy) = (noise(gate.len(), 6), noise(gate.len(), 7));
    let len = gate.len();
    let y = everywhere("swiglu", |kit| {
        let mut y = vec![0.0f32; len];
        swiglu(kit, &gate, &up, &mut y);
        y
    });
    let all = everywhere("swiglu_backward", |kit| {
        let (mut g, mut u, mut d) = (gate.clone(), up.clone(), dy.clone());
        swiglu_backward(kit, SwigluBackward { gate: &mut g, up: &mut u, dy: &mut d });
        assert_eq!(d, y, "the output again");
        [g, u].concat()
    });
    let silu = |x: f64| x / (1.0 + libm::exp(-x));
    for i in 0..len {
        let (g, u, d) = (f64::from(gate[i]), f64::from(up[i]), f64::from(dy[i]));
        close("swiglu", y[i], silu(g) * u, 2e-6);
        let h = H * (1.0 + g.abs());
        close("dgate", all[i], d * u * (silu(g + h) - silu(g - h)) / (2.0 * h), 4e-6);
        close("dup", all[len + i], d * silu(g), 2e-6);
    }
}

#[test]
fn rope_turns_heads_by_their_position_and_back() {
    let (rows, heads, half, stride) = (50, 2, 6, 40);
    let at = RopeHeads { row_stride: stride, heads, length: 20, first: 3 };
    let table = RopeTable::new(64, 2 * half, 10_000.0, RopeScaling::Default);
    let x = noise(rows * stride, 8);
    let turned = everywhere("rope", |kit| {
        let mut y = x.clone();
        rope(kit, at, &mut y, &table, false);
        y
    });
    let back = everywhere("rope back", |kit| {
        let mut y = turned.clone();
        rope(kit, at, &mut y, &table, true);
        y
    });
    for (i, &x0) in x.iter().enumerate() {
        let (row, col) = (i / stride, i % stride);
        close("there and back", back[i], f64::from(x0), 1e-6);
        if col >= heads * 2 * half {
            assert_eq!(turned[i].to_bits(), x0.to_bits(), "other columns stay");
            continue;
        }
        let j = col % half;
        let position = (at.first + row % at.length) as f64;
        let angle = position * libm::pow(10_000.0, -((2 * j) as f64) / (2 * half) as f64);
        let (sin, cos) = (libm::sin(angle), libm::cos(angle));
        let low = (col / half) % 2 == 0;
        let partner = f64::from(if low { x[i + half] } else { x[i - half] });
        let want = f64::from(x0) * cos + if low { -partner * sin } else { partner * sin };
        close("rope", turned[i], want, 1e-6);
    }
}

/// Llama 3.1's rule: short wavelengths stay, long ones are divided by 8, those between lie between.
#[test]
fn llama3_stretches_long_wavelengths_only() {
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192.0,
    };
    let turn = |scaling| {
        let table = RopeTable::new(2, 128, 500_000.0, scaling);
        let mut x: Vec<f32> = vec![1.0; 64].into_iter().chain(vec![0.0; 64]).collect();
        let at = RopeHeads { row_stride: 128, heads: 1, length: 1, first: 1 };
        rope(&Kit::new(1, Isa::detect()), at, &mut x, &table, false);
        // The sine of the angle at position 1, which is the frequency.
        x[64..].iter().map(|&s| libm::asin(f64::from(s))).collect::<Vec<_>>()
    };
    let (plain, long) = (turn(RopeScaling::Default), turn(scaling));
    for (j, (p, l)) in plain.iter().zip(&long).enumerate() {
        let wavelength = 2.0 * std::f64::consts::PI * libm::pow(500_000.0, j as f64 / 64.0);
        let ratio = p / l;
        let fine = if wavelength < 2048.0 {
            (ratio - 1.0).abs() < 1e-5
        } else if wavelength > 8192.0 {
            (ratio - 8.0).abs() < 1e-4
        } else {
            ratio > 1.0 && ratio < 8.0
        };
        assert!(fine, "frequency {j}: {p} became {l}");
    }
    let linear = turn(RopeScaling::Linear { factor: 4.0 });
    assert!(plain[1..].iter().zip(&linear[1..]).all(|(p, l)| (p / l - 4.0).abs() < 1e-4));
}

#[test]
fn embeddings_add_positions_and_sum_by_token() {
    let (vocab, width, n) = (11, 19, 500);
    let rng = CounterRng::new(9);
    let tokens: Vec<u32> = (0..n).map(|i| rng.below(i, vocab) as u32 * 7 % 11).collect();
    let (wte, wpe, dy) = (noise(11 * width, 10), noise(60 * width, 11), noise(500 * width, 12));
    let y = everywhere("embed", |kit| {
        let mut y = vec![0.0; 500 * width];
        embed(kit, &tokens, &wte, Some((&wpe[..], 10, 50)), (&mut y, width));
        y
    });
    for (i, y) in y.chunks(width).enumerate() {
        let token = &wte[tokens[i] as usize * width..][..width];
        let position = &wpe[(10 + i % 50) * width..][..width];
        assert!(y.iter().zip(token.iter().zip(position)).all(|(y, (t, p))| *y == t + p));
    }
    let all = everywhere("sum_rows_by_token", |kit| {
        let (mut order, mut rows, mut starts) = (vec![0; 500], vec![0; 500], vec![0; 500]);
        let mut sums = vec![0.0; 500 * width];
        let scratch = (&mut order[..], &mut rows[..], &mut starts[..]);
        let count = sum_rows_by_token(kit, &tokens, &dy, scratch, &mut sums);
        assert!(rows[..count].is_sorted_by(|a, b| a < b), "distinct rows, ascending");
        let mut out: Vec<f32> = rows[..count].iter().map(|&r| r as f32).collect();
        out.extend(&sums[..count * width]);
        out
    });
    let count = all.len() / (width + 1);
    for (row, sums) in all[..count].iter().zip(all[count..].chunks(width)) {
        for (j, &sum) in sums.iter().enumerate() {
            let mine = (0..tokens.len()).filter(|&i| tokens[i] == *row as u32);
            let want = mine.fold(0.0f32, |s, i| s + dy[i * width + j]);
            assert_eq!(sum.to_bits(), want.to_bits(), "in token order");
        }
    }
}

#[test]
fn sums_of_squares_are_right_and_do_not_depend_on_threads() {
    let x = noise(150_001, 13);
    let exact: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    let run = |kit: &Kit| {
        let mut partials = vec![0.0; squares_partials(x.len())];
        sum_of_squares_parallel(kit, &x, &mut partials)
    };
    let want = run(&Kit::new(1, Isa::Scalar));
    assert!((want - exact).abs() < 1e-6 * exact, "{want} {exact}");
    assert!((sum_of_squares(Isa::Scalar, &x) - exact).abs() < 1e-6 * exact);
    for isa in Isa::available() {
        for threads in 1..=3 {
            assert_eq!(run(&Kit::new(threads, isa)).to_bits(), want.to_bits(), "{isa} {threads}");
        }
    }
}
