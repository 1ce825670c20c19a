//! How GGUF stores elements: plain, or in blocks of small integers with scales.
//!
//! Source: ggml's `dequantize_row_*`; every product and sum in fp32, in its order.

use half::{bf16, f16};

/// How a tensor's elements are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TensorType {
    /// fp32.
    F32,
    /// fp16.
    F16,
    /// bf16.
    Bf16,
    /// 32 signed bytes and a scale.
    Q8_0,
    /// 32 half-bytes and a scale, around zero.
    Q4_0,
    /// 32 half-bytes, a scale and a minimum.
    Q4_1,
    /// 256 half-bytes; 8 scales and minima of 6 bits under two of fp16.
    Q4K,
    /// 256 elements of 6 bits; 16 scales of 8 bits under one of fp16.
    Q6K,
}

/// The unit that a type is stored in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Block {
    pub(super) elements: u64,
    pub(super) bytes: u64,
}

const READ: [(u32, TensorType, &str); 8] = [
    (0, TensorType::F32, "F32"),
    (1, TensorType::F16, "F16"),
    (2, TensorType::Q4_0, "Q4_0"),
    (3, TensorType::Q4_1, "Q4_1"),
    (8, TensorType::Q8_0, "Q8_0"),
    (12, TensorType::Q4K, "Q4_K"),
    (14, TensorType::Q6K, "Q6_K"),
    (30, TensorType::Bf16, "BF16"),
];

/// Names of the types that are not read, so that an error can say them.
const OTHERS: [(u32, &str); 22] = [
    (6, "Q5_0"),
    (7, "Q5_1"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (13, "Q5_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
];

impl TensorType {
    pub(super) fn from_code(code: u32) -> Result<TensorType, String> {
        if let Some((_, kind, _)) = READ.iter().find(|(c, ..)| *c == code) {
            return Ok(*kind);
        }
        let name = OTHERS.iter().find(|(c, _)| *c == code).map_or("unknown", |(_, name)| name);
        let read = READ.map(|(_, _, name)| name).join(", ");
        Err(format!("it is stored as {name} (type {code}); read are {read}"))
    }

    /// The name that ggml has for it.
    #[must_use]
    pub fn name(self) -> &'static str {
        READ.iter().find(|(_, kind, _)| *kind == self).map_or("", |(_, _, name)| name)
    }

    pub(super) fn block(self) -> Block {
        let (elements, bytes) = match self {
            TensorType::F32 => (1, 4),
            TensorType::F16 | TensorType::Bf16 => (1, 2),
            TensorType::Q8_0 => (32, 34),
            TensorType::Q4_0 => (32, 18),
            TensorType::Q4_1 => (32, 20),
            TensorType::Q4K => (256, 144),
            TensorType::Q6K => (256, 210),
        };
        Block { elements, bytes }
    }

    /// Writes the elements of whole blocks as fp32.
    pub(super) fn widen(self, bytes: &[u8], out: &mut [f32]) {
        let block = self.block();
        let blocks = bytes.chunks_exact(block.bytes as usize);
        for (bytes, out) in blocks.zip(out.chunks_exact_mut(block.elements as usize)) {
            match self {
                TensorType::F32 => {
                    out[0] = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
                TensorType::F16 => out[0] = half(bytes),
                TensorType::Bf16 => out[0] = bf16::from_le_bytes([bytes[0], bytes[1]]).to_f32(),
                TensorType::Q8_0 => q8_0(bytes, out),
                TensorType::Q4_0 => q4(half(bytes), None, &bytes[2..], out),
                TensorType::Q4_1 => q4(half(bytes), Some(half(&bytes[2..])), &bytes[4..], out),
                TensorType::Q4K => q4_k(bytes, out),
                TensorType::Q6K => q6_k(bytes, out),
            }
        }
    }
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

fn q8_0(bytes: &[u8], out: &mut [f32]) {
    let scale = half(bytes);
    out.iter_mut().zip(&bytes[2..]).for_each(|(out, q)| *out = f32::from(*q as i8) * scale);
}

/// The low half-bytes are the first 16 elements, the high ones the last.
fn q4(scale: f32, min: Option<f32>, bytes: &[u8], out: &mut [f32]) {
    let value = |q: u8| match min {
        Some(min) => f32::from(q) * scale + min,
        None => f32::from(q as i8 - 8) * scale,
    };
    let (low, high) = out.split_at_mut(16);
    for ((low, high), q) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (value(q & 15), value(q >> 4));
    }
}

/// Scale and minimum `j` of the eight, 6 bits each in 12 bytes.
fn scale_min(j: usize, packed: &[u8]) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let (low, high) = (packed[j + 4] & 15, packed[j + 4] >> 4);
        (low | packed[j - 4] >> 6 << 4, high | packed[j] >> 6 << 4)
    };
    (scale.into(), min.into())
}

fn q4_k(bytes: &[u8], out: &mut [f32]) {
    let (scale, min) = (half(bytes), half(&bytes[2..]));
    let (packed, quants) = (&bytes[4..16], &bytes[16..]);
    for (pair, (out, quants)) in out.chunks_exact_mut(64).zip(quants.chunks_exact(32)).enumerate() {
        for (part, out) in out.chunks_exact_mut(32).enumerate() {
            let (s, m) = scale_min(2 * pair + part, packed);
            let (s, m) = (scale * s, min * m);
            for (out, q) in out.iter_mut().zip(quants) {
                *out = s * f32::from(q >> (4 * part) & 15) - m;
            }
        }
    }
}

fn q6_k(bytes: &[u8], out: &mut [f32]) {
    let (low, rest) = bytes.split_at(128);
    let (high, rest) = rest.split_at(64);
    let (scales, scale) = (&rest[..16], half(&rest[16..]));
    for (half, out) in out.chunks_exact_mut(128).enumerate() {
        let (low, high) = (&low[64 * half..][..64], &high[32 * half..][..32]);
        for (quarter, out) in out.chunks_exact_mut(32).enumerate() {
            for (l, out) in out.iter_mut().enumerate() {
                let nibble = low[l + 32 * (quarter % 2)] >> (4 * (quarter / 2)) & 15;
                let top = high[l] >> (2 * quarter) & 3;
                let q = (nibble | top << 4) as i8 - 32;
                let s = scales[8 * half + 2 * quarter + l / 16] as i8;
                *out = scale * f32::from(s) * f32::from(q);
            }
        }
    }
}
