use super::epilogue::{Out, Store};
use super::*;
use crate::compute::Kit;
use crate::kernels::Isa;
use crate::kernels::simd::Element;
use half::{bf16, f16};
use planaria_base::rng::CounterRng;

fn random<T: Element>(seed: u64, len: usize) -> Vec<T> {
    let rng = CounterRng::new(seed);
    (0..len as u64).map(|i| T::from_f32(rng.uniform(i) as f32 - 0.5)).collect()
}

fn view<T>(data: &[T], rows: usize, cols: usize, transposed: bool) -> MatRef<'_, T> {
    if transposed { MatRef::rows(data, rows).t() } else { MatRef::rows(data, cols) }
}

fn product<T: GemmElement>(kit: &Kit, dims: Dims, layout: (bool, bool)) -> Vec<f32> {
    let a: Vec<T> = random(1, dims.m * dims.k);
    let b: Vec<T> = random(2, dims.k * dims.n);
    let mut c = vec![0.0; dims.m * dims.n];
    let a = view(&a, dims.m, dims.k, layout.0);
    let b = view(&b, dims.k, dims.n, layout.1);
    gemm(kit, dims, a, b, &Store(Out::new(&mut c, dims.n)));
    c
}

fn naive<T: GemmElement>(dims: Dims, layout: (bool, bool)) -> Vec<f64> {
    let a: Vec<T> = random(1, dims.m * dims.k);
    let b: Vec<T> = random(2, dims.k * dims.n);
    let (a, b) = (view(&a, dims.m, dims.k, layout.0), view(&b, dims.k, dims.n, layout.1));
    let at = |x: &MatRef<'_, T>, i: usize, j: usize| {
        f64::from(x.data[i * x.row_stride + j * x.col_stride].to_f32())
    };
    let element = |i, j| (0..dims.k).map(|k| at(&a, i, k) * at(&b, k, j)).sum();
    (0..dims.m).flat_map(|i| (0..dims.n).map(move |j| (i, j))).map(|(i, j)| element(i, j)).collect()
}

/// One row and more, one column, one step, odd everything, and sums of several blocks.
const SIZES: [(usize, usize, usize); 10] = [
    (1, 1, 1),
    (1, 33, 7),
    (15, 1, 9),
    (14, 32, 16),
    (29, 65, 127),
    (113, 40, 64),
    (3, 5, 1024),
    (128, 96, 1),
    (31, 70, 2 * K_BLOCK + 453),
    (2, 37, 4 * K_BLOCK + 3),
];
const LAYOUTS: [(bool, bool); 4] = [(false, false), (false, true), (true, false), (true, true)];

fn check_against_naive<T: GemmElement>() {
    for (m, n, k) in SIZES {
        for layout in LAYOUTS {
            let dims = Dims { m, n, k };
            let want = naive::<T>(dims, layout);
            for isa in Isa::available() {
                let got = product::<T>(&Kit::new(2, isa), dims, layout);
                for (g, w) in got.iter().zip(&want) {
                    let error = (f64::from(*g) - w).abs();
                    assert!(error < 1e-5 * (k as f64).sqrt(), "{isa} {dims:?} {layout:?}: {g} {w}");
                }
            }
        }
    }
}

/// All sizes and layouts against a naive product in f64.
#[test]
fn products_are_right() {
    check_against_naive::<f32>();
    check_against_naive::<bf16>();
    check_against_naive::<f16>();
}

/// The same bits on every ISA, in fp32, in fp16 (widened) and (the hardware's dot product emulated) in
/// bf16; with one, two and three threads; and for a row computed alone.
#[test]
fn bits_do_not_depend_on_isa_threads_or_split() {
    for (m, n, k) in SIZES {
        let dims = Dims { m, n, k };
        let want = product::<f32>(&Kit::new(1, Isa::Scalar), dims, (false, true));
        let want16 = product::<bf16>(&Kit::new(1, Isa::Scalar), dims, (false, true));
        let want_half = product::<f16>(&Kit::new(1, Isa::Scalar), dims, (false, true));
        for isa in Isa::available() {
            for threads in 1..=3 {
                let kit = Kit::new(threads, isa);
                assert_eq!(product::<f16>(&kit, dims, (false, true)), want_half, "{isa} {dims:?}");
                assert_eq!(product::<f32>(&kit, dims, (false, true)), want, "{isa} {dims:?}");
                assert_eq!(product::<bf16>(&kit, dims, (false, true)), want16, "{isa} {dims:?}");
            }
        }
        let alone = product::<f32>(&Kit::new(2, Isa::detect()), Dims { m: 1, n, k }, (false, true));
        if n == 1 || k == 1 || m == 1 {
            continue;
        }
        // Row 0 of A is the same data; B's layout (transposed) has n rows of k, also the same.
        assert_eq!(alone[..], want[..n]);
    }
}

/// Sums above the limit are split at fixed places and still right.
#[test]
fn long_sums_are_split() {
    let dims = Dims { m: 5, n: 33, k: 2 * K_BLOCK + 17 };
    let a: Vec<f32> = random(1, dims.m * dims.k);
    let b: Vec<f32> = random(2, dims.k * dims.n);
    let mut c = vec![0.0; dims.m * dims.n];
    let (a, b) = (MatRef::rows(&a, dims.k), MatRef::rows(&b, dims.n));
    gemm_long(&Kit::new(2, Isa::detect()), dims, a, b, &mut c);
    for (g, w) in c.iter().zip(naive::<f32>(dims, (false, false))) {
        assert!((f64::from(*g) - w).abs() < 1e-3, "{g} {w}");
    }
}

/// Row panels hand over every row once, with the values of the plain product.
#[test]
fn panels_hand_over_every_row() {
    let dims = Dims { m: 300, n: 40, k: 20 };
    let kit = Kit::new(2, Isa::detect());
    let want = product::<f32>(&kit, dims, (false, false));
    let a: Vec<f32> = random(1, dims.m * dims.k);
    let b: Vec<f32> = random(2, dims.k * dims.n);
    let got = std::sync::Mutex::new(vec![f32::NAN; dims.m * dims.n]);
    let (a, b) = (MatRef::rows(&a, dims.k), MatRef::rows(&b, dims.n));
    gemm_panels(&kit, dims, a, b, &|row, panel| {
        got.lock().expect("no panic")[row * dims.n..][..panel.len()].copy_from_slice(panel);
    });
    assert_eq!(got.into_inner().expect("no panic"), want);
}
