//! What a Hugging Face folder of ours holds.

use super::config;
use crate::block::Model;
use crate::families::ModelSpec;
use half::{bf16, f16};
use planaria_base::{DType, ParamId};

/// The metadata that transformers wants in every safetensors header.
pub const METADATA: [(&str, &str); 1] = [("format", "pt")];

/// Token ids that a config names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpecialIds {
    /// Begin of text.
    pub bos: Option<u32>,
    /// End of text.
    pub eos: Option<u32>,
}

/// One tensor to write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportTensor {
    /// Its name in the file.
    pub name: String,
    /// How to store it.
    pub dtype: DType,
    /// Row-major shape.
    pub shape: Vec<usize>,
    /// Whose values they are; [`encode`] makes the bytes.
    pub param: ParamId,
}

/// What to write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// The text of config.json.
    pub config: String,
    /// The tensors, sorted by name. A tied head is not among them: that is the form that standard
    /// tools load.
    pub tensors: Vec<ExportTensor>,
}

/// Says what a Hugging Face folder of this model holds.
#[must_use]
pub fn export(spec: &ModelSpec, model: &Model, dtype: DType, ids: SpecialIds) -> Export {
    let mut tensors: Vec<ExportTensor> = model
        .params
        .iter()
        .map(|p| ExportTensor { name: p.name.clone(), dtype, shape: p.shape.clone(), param: p.id })
        .collect();
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    Export { config: format!("{:#}\n", config::write(spec, dtype, ids)), tensors }
}

/// Writes values as little-endian bytes of a dtype, rounded to nearest even. Returns how many finite
/// values became infinite: more than zero means that the dtype cannot hold the tensor.
///
/// # Panics
/// If `out` has another size, or weights are not written in this dtype.
pub fn encode(values: &[f32], dtype: DType, out: &mut [u8]) -> usize {
    assert_eq!(out.len(), values.len() * dtype.bytes(), "the bytes have the values' size");
    let mut unfit = 0;
    let mut check = |value: f32, rounded: f32| {
        unfit += usize::from(value.is_finite() && !rounded.is_finite());
    };
    match dtype {
        DType::F32 => {
            let words = out.as_chunks_mut::<4>().0.iter_mut().zip(values);
            words.for_each(|(out, v)| *out = v.to_le_bytes());
        }
        DType::Bf16 => {
            for (out, &value) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                let rounded = bf16::from_f32(value);
                check(value, rounded.to_f32());
                *out = rounded.to_le_bytes();
            }
        }
        DType::F16 => {
            for (out, &value) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                let rounded = f16::from_f32(value);
                check(value, rounded.to_f32());
                *out = rounded.to_le_bytes();
            }
        }
        other => panic!("weights are not written as {other}"),
    }
    unfit
}

/// The config.json of a model without special tokens.
#[must_use]
pub fn write_config(spec: &ModelSpec, dtype: DType) -> serde_json::Value {
    config::write(spec, dtype, SpecialIds::default())
}

/// The bytes of values in a dtype, as [`encode`] writes them.
#[must_use]
pub fn from_f32(values: &[f32], dtype: DType) -> Vec<u8> {
    let mut out = vec![0; values.len() * dtype.bytes()];
    encode(values, dtype, &mut out);
    out
}
