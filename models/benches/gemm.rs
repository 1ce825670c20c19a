//! Matrix products beside the measured multiply-add peak and the `gemm` crate.
//!
//! `cargo bench -p planaria-models --bench gemm -- [--threads N] [filter ...]`: each filter is a part
//! of a row's name, such as `768x3072`, `f32`, `dw`. Figures are the best of several short runs.
#![allow(clippy::print_stdout, reason = "a bench prints its table")]
#![allow(clippy::disallowed_methods, reason = "a bench reads the clock")]

use half::bf16;
use planaria_models::block::Precision;
use planaria_models::compute::{Compute, Kit};
use planaria_models::kernels::attention::{
    AttentionBackward, AttentionShape, QkvLayout, attention, attention_backward,
};
use planaria_models::kernels::gemm::epilogue::{Out, Store};
use planaria_models::kernels::gemm::{Dims, GemmElement, MatRef, gemm, gemm_long};
use planaria_models::kernels::head_loss::{HeadInput, HeadShape, head_loss_grad};
use planaria_models::kernels::simd::Element;
use planaria_models::kernels::{Isa, peak};
use std::time::Instant;

/// Tokens.
const M: usize = 1024;
/// Inputs and outputs of a linear layer.
const LAYERS: [(usize, usize); 7] =
    [(384, 1536), (768, 768), (768, 2304), (768, 3072), (3072, 768), (384, 50257), (768, 50257)];

fn best(flops: f64, mut f: impl FnMut()) -> f64 {
    f();
    let runs = (12e9 / flops).clamp(2.0, 20.0) as usize;
    let seconds = |f: &mut dyn FnMut()| {
        let start = Instant::now();
        f();
        start.elapsed().as_secs_f64()
    };
    flops / (0..runs).map(|_| seconds(&mut f)).fold(f64::MAX, f64::min) / 1e9
}

fn random<T: Element>(len: usize) -> Vec<T> {
    let mut x = 1u32;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        T::from_f32((x >> 8) as f32 / (1 << 24) as f32 - 0.5)
    };
    (0..len).map(|_| next()).collect()
}

/// Peak of `threads` threads in GFLOP/s.
fn peak_of(kit: &Kit, precision: Precision) -> f64 {
    let threads = kit.pool.threads();
    let flops = peak::multiply_adds(kit.isa, precision, 100) as f64 * threads as f64;
    best(flops, || {
        kit.pool.run(threads, &|_, _| {
            let _ = peak::multiply_adds(kit.isa, precision, 100);
        });
    })
}

/// The three products of a linear layer `y = x W^T`, `W: [n, k]`.
fn roles(k: usize, n: usize) -> [(&'static str, Dims); 3] {
    [
        ("fwd", Dims { m: M, n, k }),
        ("dx", Dims { m: M, n: k, k: n }),
        ("dw", Dims { m: n, n: k, k: M }),
    ]
}

/// The operands of a role as views.
fn operands<'a, T: GemmElement>(
    role: &str,
    dims: Dims,
    a: &'a [T],
    b: &'a [T],
) -> (MatRef<'a, T>, MatRef<'a, T>) {
    match role {
        "fwd" => (MatRef::rows(a, dims.k), MatRef::rows(b, dims.k).t()),
        "dx" => (MatRef::rows(a, dims.k), MatRef::rows(b, dims.n)),
        _ => (MatRef::rows(a, dims.m).t(), MatRef::rows(b, dims.n)),
    }
}

fn ours<T: GemmElement>(kit: &Kit, role: &str, dims: Dims) -> f64 {
    let (a, b) = (random::<T>(dims.m * dims.k), random::<T>(dims.k * dims.n));
    let (a, b) = operands(role, dims, &a, &b);
    let flops = 2.0 * (dims.m * dims.n * dims.k) as f64;
    if role == "fwd" {
        let mut c = vec![T::default(); dims.m * dims.n];
        return best(flops, || gemm(kit, dims, a, b, &Store(Out::new(&mut c, dims.n))));
    }
    let mut c = vec![0.0; dims.m * dims.n];
    best(flops, || gemm_long(kit, dims, a, b, &mut c))
}

/// The `gemm` crate, single-threaded on each thread's share of C's rows.
fn theirs(kit: &Kit, role: &str, dims: Dims) -> f64 {
    let (a, b) = (random::<f32>(dims.m * dims.k), random::<f32>(dims.k * dims.n));
    let (a, b) = operands(role, dims, &a, &b);
    let mut c = vec![0.0f32; dims.m * dims.n];
    let strides = (a.row_stride, a.col_stride);
    let s = |x: usize| x as isize;
    let threads = kit.pool.threads();
    let c_address = c.as_mut_ptr() as usize;
    best(2.0 * (dims.m * dims.n * dims.k) as f64, || {
        kit.pool.run(threads, &|part, _| {
            let (first, end) = (dims.m * part / threads, dims.m * (part + 1) / threads);
            let c = (c_address as *mut f32).wrapping_add(first * dims.n);
            let a = &a.data[first * a.row_stride..];
            // SAFETY: the views lie in their buffers, C is row-major, the rows are this part's own.
            unsafe {
                gemm::gemm(
                    end - first,
                    dims.n,
                    dims.k,
                    c,
                    1,
                    s(dims.n),
                    false,
                    a.as_ptr(),
                    s(strides.1),
                    s(strides.0),
                    b.data.as_ptr(),
                    s(b.col_stride),
                    s(b.row_stride),
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    gemm::Parallelism::None,
                );
            }
        });
    })
}

/// Head and loss, forward and backward, of a leaf of M tokens.
fn head<T: GemmElement>(threads: usize, precision: Precision, width: usize) -> f64 {
    let shape = HeadShape { tokens: M, width, vocab: 50257 };
    let bytes = shape.scratch_bytes::<T>();
    let mut compute = Compute::new(threads, Isa::detect(), precision, bytes);
    let (hidden, weights) = (random::<T>(M * width), random::<T>(shape.vocab * width));
    let labels: Vec<i32> = (0..M as i32).map(|i| i * 47 % 50257).collect();
    let input = HeadInput { hidden: &hidden, weights: &weights, labels: &labels, factor: 1.0 };
    let (mut dh, mut dw) = (vec![0.0; M * width], vec![0.0; shape.vocab * width]);
    best(6.0 * (M * width * shape.vocab) as f64, || {
        let (kit, mut arena) = compute.split();
        let _ = head_loss_grad(kit, shape, input, (&mut dh, Some(&mut dw)), &mut arena);
    })
}

/// Attention of M tokens, forward or backward; the operations are those of the causal half.
fn attend<T: GemmElement>(kit: &Kit, length: usize, heads: usize, backward: bool) -> f64 {
    let shape = AttentionShape {
        sequences: M / length,
        length,
        heads,
        kv_heads: heads,
        head_dim: 64,
        scale: 0.125,
        window: None,
    };
    let layout = QkvLayout::fused(shape);
    let qkv = random::<T>(M * layout.row);
    let mut out = vec![T::default(); M * heads * 64];
    let mut lse = vec![0.0; M * heads];
    let products = 2.0 * (M * (length + 1) / 2 * heads * 64) as f64;
    let rate = best(2.0 * products, || attention(kit, shape, (&qkv, layout), &mut out, &mut lse));
    if !backward {
        return rate;
    }
    let (dout, mut dqkv) = (random::<T>(out.len()), vec![T::default(); qkv.len()]);
    best(5.0 * products, || {
        let io = AttentionBackward {
            qkv: &qkv,
            layout,
            out: &out,
            lse: &lse,
            dout: &dout,
            dqkv: &mut dqkv,
        };
        attention_backward(kit, shape, io);
    })
}

/// Reading of the weights in GB/s while `rows` tokens pass a `[50257, 768]` head.
fn decode<T: GemmElement>(kit: &Kit, rows: usize) -> f64 {
    let dims = Dims { m: rows, n: 50257, k: 768 };
    let (a, b) = (random::<T>(rows * dims.k), random::<T>(dims.n * dims.k));
    let (a, b) = (MatRef::rows(&a, dims.k), MatRef::rows(&b, dims.k).t());
    let mut c = vec![0.0; rows * dims.n];
    let bytes = (dims.n * dims.k * size_of::<T>()) as f64;
    best(bytes, || gemm(kit, dims, a, b, &Store(Out::new(&mut c, dims.n))))
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let threads = args.iter().position(|a| a == "--threads");
    let threads = threads.map_or(1, |i| args[i + 1].parse().expect("--threads takes a number"));
    let value = args.iter().position(|a| a == "--threads").map_or(usize::MAX, |i| i + 1);
    let filters: Vec<&String> = args
        .iter()
        .enumerate()
        .filter(|(i, _)| *i != value && i + 1 != value)
        .map(|(_, a)| a)
        .collect();
    let kit = Kit::new(threads, Isa::detect());
    let (f32_peak, bf16_peak) = (peak_of(&kit, Precision::F32), peak_of(&kit, Precision::Bf16));
    println!("{threads} threads, {}: peak f32 {f32_peak:.1}, bf16 {bf16_peak:.1} GFLOP/s", kit.isa);
    println!("{:<30} {:>9} {:>7}", "K x N role", "GFLOP/s", "of peak");
    let row = |name: &str, rate: &dyn Fn() -> f64, peak: f64| {
        if filters.iter().all(|f| name.contains(f.as_str())) {
            let rate = rate();
            println!("{name:<30} {rate:>9.1} {:>6.1}%", 100.0 * rate / peak);
        }
    };
    for (k, n) in LAYERS {
        for (role, dims) in roles(k, n) {
            let name = |kind| format!("{k}x{n} {role} {kind}");
            row(&name("f32"), &|| ours::<f32>(&kit, role, dims), f32_peak);
            row(&name("bf16"), &|| ours::<bf16>(&kit, role, dims), bf16_peak);
            row(&name("crate"), &|| theirs(&kit, role, dims), f32_peak);
        }
    }
    for width in [384, 768] {
        let f32_rate = || head::<f32>(threads, Precision::F32, width);
        row(&format!("head {width} f32"), &f32_rate, f32_peak);
        let bf16_rate = || head::<bf16>(threads, Precision::Bf16, width);
        row(&format!("head {width} bf16"), &bf16_rate, bf16_peak);
    }
    for (length, heads) in [(256, 6), (512, 12)] {
        for (pass, backward) in [("forward", false), ("backward", true)] {
            let name = |kind| format!("attention {length} {pass} {kind}");
            row(&name("f32"), &|| attend::<f32>(&kit, length, heads, backward), f32_peak);
            row(&name("bf16"), &|| attend::<bf16>(&kit, length, heads, backward), bf16_peak);
        }
    }
    println!("decoding, GB/s of weights read:");
    for rows in [1, 8] {
        if filters.iter().all(|f| "decode".contains(f.as_str())) {
            let (f32_rate, bf16_rate) = (decode::<f32>(&kit, rows), decode::<bf16>(&kit, rows));
            println!("decode {rows} rows: f32 {f32_rate:.1}, bf16 {bf16_rate:.1}");
        }
    }
}
