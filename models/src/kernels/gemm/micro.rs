//! The register tile: `rows x cols` sums over a block of `k`, in registers throughout.

use crate::kernels::Isa;
use crate::kernels::simd::{Element, Scalar, Simd};
use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use crate::kernels::simd::{Avx2, Avx512};

/// Columns of the widest tile: the stride of a finished tile in memory.
pub const TILE_STRIDE: usize = 32;
/// Rows of the tallest tile.
pub const TILE_ROWS: usize = 14;

/// Rows and columns of the tile on an ISA.
#[must_use]
pub(crate) const fn tile_size(isa: Isa) -> (usize, usize) {
    match isa {
        Isa::Avx512 => (TILE_ROWS, TILE_STRIDE),
        Isa::Avx2 | Isa::Scalar => (6, 16),
    }
}

/// An element that matrix products take. Panels hold one 32-bit word per step of `k`: an fp32
/// element, an fp16 element widened to fp32, or two bf16.
pub trait GemmElement: Element {
    /// Elements in a word.
    const PER_WORD: usize;

    /// The word of two neighbouring steps of `k` (of one, if a word holds one).
    fn word(first: Self, second: Self) -> f32;

    /// `acc + a * b`, for all elements of a word.
    ///
    /// # Safety
    /// As for [`Simd`].
    unsafe fn step<S: Simd>(acc: S::V, a: S::V, b: S::V) -> S::V;
}

impl GemmElement for f32 {
    const PER_WORD: usize = 1;

    #[inline(always)]
    fn word(first: f32, _: f32) -> f32 {
        first
    }

    #[inline(always)]
    unsafe fn step<S: Simd>(acc: S::V, a: S::V, b: S::V) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::fma(a, b, acc) }
    }
}

impl GemmElement for bf16 {
    const PER_WORD: usize = 2;

    #[inline(always)]
    fn word(first: bf16, second: bf16) -> f32 {
        f32::from_bits(u32::from(second.to_bits()) << 16 | u32::from(first.to_bits()))
    }

    #[inline(always)]
    unsafe fn step<S: Simd>(acc: S::V, a: S::V, b: S::V) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::dot_bf16(acc, a, b) }
    }
}

impl GemmElement for f16 {
    const PER_WORD: usize = 1;

    #[inline(always)]
    fn word(first: f16, _: f16) -> f32 {
        first.to_f32()
    }

    #[inline(always)]
    unsafe fn step<S: Simd>(acc: S::V, a: S::V, b: S::V) -> S::V {
        // SAFETY: as the caller promised.
        unsafe { S::fma(a, b, acc) }
    }
}

/// A tile's operands and result, in words.
#[derive(Clone, Copy)]
pub(crate) struct TileSum {
    /// A's panel: word `(i, k)` at `k * rows + i`.
    pub(crate) a: *const f32,
    /// B's panel: word `(k, j)` at `k * cols + j`.
    pub(crate) b: *const f32,
    /// Words of the block.
    pub(crate) k: usize,
    /// Row `i` of the result is at `i * TILE_STRIDE`.
    pub(crate) out: *mut f32,
    /// Whether the block's sum is added to `out`, or overwrites it.
    pub(crate) add: bool,
}

/// A register tile of some height, compiled for one ISA.
///
/// # Safety
/// The processor has the ISA; the panels hold `k` steps, the result is writable.
pub(crate) type TileKernel = unsafe fn(TileSum);

/// The kernel for tiles of `rows` rows.
///
/// # Panics
/// If `rows` is zero or taller than the ISA's tile.
pub(crate) fn kernel<T: GemmElement>(isa: Isa, rows: usize) -> TileKernel {
    macro_rules! heights {
        ($f:ident: $($r:literal)*) => {
            [$($f::<T, $r> as TileKernel),*][rows - 1]
        };
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => heights!(avx512: 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => heights!(avx2: 1 2 3 4 5 6),
        _ => heights!(scalar: 1 2 3 4 5 6),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")]
unsafe fn avx512<T: GemmElement, const R: usize>(p: TileSum) {
    // SAFETY: this function has the features of `Avx512`; the rest as the caller promised.
    unsafe { sums::<Avx512, T, R, 2>(p) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2<T: GemmElement, const R: usize>(p: TileSum) {
    // SAFETY: this function has the features of `Avx2`; the rest as the caller promised.
    unsafe { sums::<Avx2, T, R, 1>(p) }
}

unsafe fn scalar<T: GemmElement, const R: usize>(p: TileSum) {
    // SAFETY: `Scalar` needs no feature; the rest as the caller promised.
    unsafe { sums::<Scalar, T, R, 1>(p) }
}

/// `R` rows of `16 * V` columns.
#[inline(always)]
unsafe fn sums<S: Simd, T: GemmElement, const R: usize, const V: usize>(p: TileSum) {
    // SAFETY: A holds `R` words a step and B `16 * V`, for `k` steps; `out` holds `R` rows.
    unsafe {
        let mut acc = [[S::splat(0.0); V]; R];
        let (mut a, mut b) = (p.a, p.b);
        for _ in 0..p.k {
            let b_v: [S::V; V] = std::array::from_fn(|v| S::load(b.add(16 * v)));
            for (i, row) in acc.iter_mut().enumerate() {
                let a_i = S::splat(*a.add(i));
                for v in 0..V {
                    row[v] = T::step::<S>(row[v], a_i, b_v[v]);
                }
            }
            a = a.add(R);
            b = b.add(16 * V);
        }
        for (i, row) in acc.iter().enumerate() {
            for (v, &x) in row.iter().enumerate() {
                let out = p.out.add(i * TILE_STRIDE + 16 * v);
                S::store(out, if p.add { S::add(S::load(out), x) } else { x });
            }
        }
    }
}
