//! The digest of plain data, the same on every machine.

use planaria_base::Digest;
use std::hash::{Hash, Hasher};

/// Collects what `Hash` feeds it as little-endian bytes, lengths as 64 bits: unlike the default
/// hashers it has no seed and does not depend on the platform's word.
#[derive(Default)]
struct Bytes(Vec<u8>);

impl Hasher for Bytes {
    fn finish(&self) -> u64 {
        0
    }
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
    fn write_u16(&mut self, i: u16) {
        self.write(&i.to_le_bytes());
    }
    fn write_u32(&mut self, i: u32) {
        self.write(&i.to_le_bytes());
    }
    fn write_u64(&mut self, i: u64) {
        self.write(&i.to_le_bytes());
    }
    fn write_usize(&mut self, i: usize) {
        self.write_u64(i as u64);
    }
    fn write_isize(&mut self, i: isize) {
        self.write_u64(i as u64);
    }
}

/// The digest of `value`'s fields, in order.
#[must_use]
pub(super) fn content_digest(value: &impl Hash) -> Digest {
    let mut bytes = Bytes::default();
    value.hash(&mut bytes);
    Digest::of(&bytes.0)
}
