//! Element types of tensors, in memory and on disk.

use serde::{Deserialize, Serialize};
use std::fmt;

/// An element type.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// bfloat16: the upper half of an f32.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary64.
    F64,
    /// Signed 64-bit integer.
    I64,
    /// Signed 32-bit integer.
    I32,
    /// Signed 16-bit integer.
    I16,
    /// Signed byte.
    I8,
    /// Unsigned byte.
    U8,
    /// One byte, 0 or 1.
    Bool,
}

impl DType {
    /// Bytes of one element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::Bf16 | DType::F16 | DType::I16 => 2,
            DType::I8 | DType::U8 | DType::Bool => 1,
        }
    }

    /// The name that safetensors files use.
    #[must_use]
    pub const fn safetensors_name(self) -> &'static str {
        match self {
            DType::F32 => "F32",
            DType::Bf16 => "BF16",
            DType::F16 => "F16",
            DType::F64 => "F64",
            DType::I64 => "I64",
            DType::I32 => "I32",
            DType::I16 => "I16",
            DType::I8 => "I8",
            DType::U8 => "U8",
            DType::Bool => "BOOL",
        }
    }

    /// The dtype with this safetensors name, if we know it.
    #[must_use]
    pub fn from_safetensors_name(name: &str) -> Option<DType> {
        use DType::{Bf16, Bool, F16, F32, F64, I8, I16, I32, I64, U8};
        [F32, Bf16, F16, F64, I64, I32, I16, I8, U8, Bool]
            .into_iter()
            .find(|d| d.safetensors_name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.safetensors_name().to_lowercase())
    }
}
