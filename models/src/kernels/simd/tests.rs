//! Every operation, on random and special values, gives the same bits on every ISA.

use super::{LANES, Simd};
use crate::kernels::Isa;
use crate::simd_kernel;
use half::{bf16, f16};
use planaria_base::rng::CounterRng;

/// Results that [`operations`] writes for one triple of vectors.
const RESULTS: usize = 21;

#[inline(always)]
unsafe fn operations<S: Simd>(a: &[f32], b: &[f32], c: &[f32], out: &mut [f32]) {
    // SAFETY: inputs have 16 elements, `out` has `RESULTS` times 16.
    unsafe {
        let (x, y, z) = (S::load(a.as_ptr()), S::load(b.as_ptr()), S::load(c.as_ptr()));
        let integral = S::min(S::splat(127.0), S::max(S::splat(-126.0), S::round(x)));
        let results = [
            S::add(x, y),
            S::sub(x, y),
            S::mul(x, y),
            S::div(x, y),
            S::fma(x, y, z),
            S::fnma(x, y, z),
            S::dot_bf16(z, x, y),
            S::sqrt(x),
            S::max(x, y),
            S::min(x, y),
            S::round(x),
            S::exp2_int(integral),
            S::select(S::lt(x, y), y, z),
            S::splat(S::sum(x)),
            S::splat(S::hmax(x)),
        ];
        for (i, &v) in results.iter().enumerate() {
            S::store(out.as_mut_ptr().add(i * LANES), v);
        }
        let rest = &mut out[results.len() * LANES..];
        rest.fill(7.0);
        let n = (a[0].to_bits() % 16) as usize;
        S::store_n(rest.as_mut_ptr(), S::load_n(b.as_ptr(), n), n);
        S::store(rest.as_mut_ptr().add(LANES), S::load_n(b.as_ptr(), n));
        let mut halves = [bf16::ONE; LANES];
        S::store_bf16(halves.as_mut_ptr(), x);
        S::store(rest.as_mut_ptr().add(2 * LANES), S::load_bf16_n(halves.as_ptr(), n));
        S::store_bf16_n(halves.as_mut_ptr(), y, n);
        S::store(rest.as_mut_ptr().add(3 * LANES), S::load_bf16(halves.as_ptr()));
        let mut halves = [f16::ONE; LANES];
        S::store_f16(halves.as_mut_ptr(), x);
        S::store(rest.as_mut_ptr().add(4 * LANES), S::load_f16_n(halves.as_ptr(), n));
        S::store_f16_n(halves.as_mut_ptr(), y, n);
        S::store(rest.as_mut_ptr().add(5 * LANES), S::load_f16(halves.as_ptr()));
    }
}
simd_kernel!(fn run(a: &[f32], b: &[f32], c: &[f32], out: &mut [f32]) = operations);

/// Zeros, infinities, NaN, denormals, ties, extremes.
const SPECIAL: [f32; 20] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    f32::MIN_POSITIVE,
    -f32::MIN_POSITIVE,
    1e-40,
    -1e-45,
    f32::MAX,
    f32::MIN,
    0.5,
    1.5,
    -2.5,
    8_388_607.5,
    16_777_216.0,
    3e9,
    1.003_906_2,
];

fn inputs(rng: CounterRng) -> Vec<f32> {
    let value = |i: u64| match rng.fork(1).below(i, 4) {
        0 => SPECIAL[rng.below(i, SPECIAL.len() as u64) as usize],
        1 => f32::from_bits(rng.at(i) as u32),
        2 => (rng.uniform(i) * 8.0 - 4.0) as f32,
        _ => (rng.uniform(i) * 300.0 - 150.0) as f32,
    };
    (0..LANES as u64).map(value).collect()
}

/// Bits, with all NaNs alike: which operand's payload survives is the processor's choice.
fn bits(v: &[f32]) -> Vec<u32> {
    v.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

#[test]
fn all_operations_agree_on_every_isa() {
    for round in 0..2000 {
        let rng = CounterRng::new(11).fork(round);
        let (a, b, c) = (inputs(rng.fork(1)), inputs(rng.fork(2)), inputs(rng.fork(3)));
        let mut want = vec![0.0; RESULTS * LANES];
        run(Isa::Scalar, &a, &b, &c, &mut want);
        for isa in Isa::available() {
            let mut got = vec![0.0; RESULTS * LANES];
            run(isa, &a, &b, &c, &mut got);
            for (op, (got, want)) in got.chunks(LANES).zip(want.chunks(LANES)).enumerate() {
                assert_eq!(bits(got), bits(want), "{isa} result {op}: {a:?} {b:?} {c:?}");
            }
        }
    }
}
