//! Writes a safetensors file tensor by tensor, never holding more than one.

use planaria_base::{DType, Digest};
use serde_json::json;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// A tensor to be written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// How its elements are stored.
    pub dtype: DType,
    /// Row-major shape.
    pub shape: Vec<usize>,
}

impl TensorInfo {
    pub(super) fn bytes(&self) -> usize {
        self.shape.iter().product::<usize>() * self.dtype.bytes()
    }
}

/// Hashes what passes through.
struct Hashing<W> {
    to: W,
    hasher: blake3::Hasher,
    bytes: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.to.write(buf)?;
        self.hasher.update(&buf[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// Writes and flushes a file; `fill(i, out)` writes the bytes of tensor `i`. Returns the file's
/// digest and size.
///
/// # Errors
/// If the disk refuses, or `fill` writes another number of bytes than the tensor has.
pub fn write(
    path: &Path,
    tensors: &[TensorInfo],
    fill: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
) -> io::Result<(Digest, u64)> {
    let mut file = File::create(path)?;
    let written = write_to(&mut file, tensors, fill)?;
    file.sync_all()?;
    Ok(written)
}

/// Like [`write()`], to anything; flushing it to a device is the caller's part.
///
/// # Errors
/// As [`write()`].
pub fn write_to(
    to: &mut dyn Write,
    tensors: &[TensorInfo],
    mut fill: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
) -> io::Result<(Digest, u64)> {
    let header = header(tensors);
    let to = BufWriter::with_capacity(1 << 20, to);
    let mut out = Hashing { to, hasher: blake3::Hasher::new(), bytes: 0 };
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for (i, tensor) in tensors.iter().enumerate() {
        let before = out.bytes;
        fill(i, &mut out)?;
        if out.bytes - before != tensor.bytes() as u64 {
            let (name, wrote) = (&tensor.name, out.bytes - before);
            return Err(io::Error::other(format!("tensor {name}: {wrote} bytes were written")));
        }
    }
    out.flush()?;
    Ok((Digest(*out.hasher.finalize().as_bytes()), out.bytes))
}

/// Everything before the first tensor's bytes.
pub(crate) fn file_header(tensors: &[TensorInfo]) -> Vec<u8> {
    let header = header(tensors);
    let mut all = (header.len() as u64).to_le_bytes().to_vec();
    all.extend(header);
    all
}

fn header(tensors: &[TensorInfo]) -> Vec<u8> {
    let mut map = serde_json::Map::new();
    map.insert("__metadata__".to_owned(), json!({ "format": "pt" }));
    let mut at = 0;
    for tensor in tensors {
        let end = at + tensor.bytes();
        let dtype = tensor.dtype.safetensors_name();
        let entry = json!({ "dtype": dtype, "shape": tensor.shape, "data_offsets": [at, end] });
        map.insert(tensor.name.clone(), entry);
        at = end;
    }
    let mut text = serde_json::Value::Object(map).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    text
}

#[cfg(test)]
mod tests {
    use super::super::SafetensorsFile;
    use super::*;
    use planaria_base::tensor_source::TensorSource;

    /// What is written is read back; a short fill is refused.
    #[test]
    fn files_round_trip() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.safetensors");
        let info = |name: &str, shape: &[usize]| TensorInfo {
            name: name.to_owned(),
            dtype: DType::F32,
            shape: shape.to_vec(),
        };
        let tensors = [info("b", &[2, 3]), info("a", &[]), info("none", &[0])];
        let fill = |i: usize, out: &mut dyn Write| out.write_all(&vec![i as u8 + 1; [24, 4, 0][i]]);
        let (digest, bytes) = write(&path, &tensors, fill).expect("written");
        let contents = std::fs::read(&path).expect("a file");
        assert_eq!((Digest::of(&contents), contents.len() as u64), (digest, bytes));
        let file = SafetensorsFile::open(&path).expect("good");
        assert_eq!(file.names(), ["a", "b", "none"]);
        assert_eq!(file.tensor("b").expect("b").bytes, [1; 24]);
        assert!(write(&path, &tensors, |_, out| out.write_all(&[0])).is_err());
    }
}
