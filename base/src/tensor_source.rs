//! Where a model's tensors come from: the one door between files and models.

use crate::dtype::DType;

/// A named tensor as stored: row-major little-endian bytes.
#[derive(Clone, Copy, Debug)]
pub struct StoredTensor<'a> {
    /// How each element is stored.
    pub dtype: DType,
    /// Row-major shape.
    pub shape: &'a [usize],
    /// `shape.product() * dtype.bytes()` bytes.
    pub bytes: &'a [u8],
}

/// A set of named tensors. `storage` implements it over checked safetensors files.
pub trait TensorSource {
    /// Every name, sorted.
    fn names(&self) -> Vec<&str>;
    /// The tensor with this name, if there is one.
    fn tensor(&self, name: &str) -> Option<StoredTensor<'_>>;
}
