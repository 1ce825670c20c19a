//! The container: header, metadata, tensor table.

use super::{Gguf, GgufError, KEY_LIMIT, RANK_LIMIT, TENSOR_LIMIT, TensorInfo, TensorType};
use std::collections::BTreeMap;

/// A metadata value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value<'a> {
    /// An unsigned integer of any width.
    Unsigned(u64),
    /// A signed integer of any width.
    Signed(i64),
    /// A floating-point number.
    Float(f64),
    /// A flag.
    Bool(bool),
    /// A string.
    Text(&'a str),
    /// A list, still in its bytes.
    Array(Array<'a>),
}

/// A list whose elements are read when asked for.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Array<'a> {
    kind: u32,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements in order; the first that cannot be read ends them with its error.
    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, GgufError>> + use<'a> {
        let mut cursor = Cursor { file: self.bytes, at: 0 };
        let kind = self.kind;
        (0..self.len).map(move |_| cursor.value(kind, "a list's element"))
    }
}

/// Type codes of the metadata.
const TEXT: u32 = 8;
const ARRAY: u32 = 9;

/// Where reading stands.
struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: u64, what: &str) -> Result<&'a [u8], GgufError> {
        let left = self.file.len() - self.at;
        let Some(len) = usize::try_from(len).ok().filter(|&len| len <= left) else {
            let what = what.to_owned();
            return Err(GgufError::Truncated { what, at: self.at, needed: len, left });
        };
        let bytes = &self.file[self.at..self.at + len];
        self.at += len;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N as u64, what)?);
        Ok(out)
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn text(&mut self, what: &str) -> Result<&'a str, GgufError> {
        let len = self.u64(what)?;
        let bytes = self.take(len, what)?;
        std::str::from_utf8(bytes).map_err(|e| GgufError::invalid(what, format!("not UTF-8: {e}")))
    }

    fn value(&mut self, kind: u32, what: &str) -> Result<Value<'a>, GgufError> {
        Ok(match kind {
            0 => Value::Unsigned(self.array::<1>(what)?[0].into()),
            1 => Value::Signed(i8::from_le_bytes(self.array(what)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array(what)?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array(what)?).into()),
            4 => Value::Unsigned(self.u32(what)?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array(what)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array(what)?).into()),
            7 => match self.array::<1>(what)?[0] {
                flag @ 0..=1 => Value::Bool(flag == 1),
                other => return Err(GgufError::invalid(what, format!("a flag is {other}"))),
            },
            TEXT => Value::Text(self.text(what)?),
            ARRAY => Value::Array(self.list(what)?),
            10 => Value::Unsigned(self.u64(what)?),
            11 => Value::Signed(i64::from_le_bytes(self.array(what)?)),
            12 => Value::Float(f64::from_le_bytes(self.array(what)?)),
            other => return Err(GgufError::invalid(what, format!("unknown type {other}"))),
        })
    }

    fn list(&mut self, what: &str) -> Result<Array<'a>, GgufError> {
        let (kind, len) = (self.u32(what)?, self.u64(what)?);
        let start = self.at;
        match kind {
            0 | 1 | 7 => drop(self.take(len, what)?),
            2 | 3 => drop(self.take(len.saturating_mul(2), what)?),
            4..=6 => drop(self.take(len.saturating_mul(4), what)?),
            10..=12 => drop(self.take(len.saturating_mul(8), what)?),
            TEXT => {
                // Each takes 8 bytes at least, so a list longer than the file ends at once.
                for _ in 0..len {
                    let len = self.u64(what)?;
                    self.take(len, what)?;
                }
            }
            other => {
                return Err(GgufError::invalid(what, format!("a list of type {other}")));
            }
        }
        Ok(Array { kind, len: len as usize, bytes: &self.file[start..self.at] })
    }
}

/// A row of the tensor table.
struct Row<'a> {
    name: &'a str,
    kind: TensorType,
    dims: [usize; RANK_LIMIT],
    rank: usize,
    offset: u64,
    bytes: u64,
}

pub(super) fn parse(file: &[u8]) -> Result<Gguf<'_>, GgufError> {
    let mut cursor = Cursor { file, at: 0 };
    let magic = &file[..file.len().min(4)];
    if magic != b"GGUF" {
        return Err(GgufError::Magic { found: magic.to_vec() });
    }
    cursor.at = 4;
    let version = cursor.u32("the header")?;
    if !(2..=3).contains(&version) {
        return Err(GgufError::Version { found: version });
    }
    let (tensors, keys) = (cursor.u64("the header")?, cursor.u64("the header")?);
    limit("tensors", tensors, TENSOR_LIMIT)?;
    limit("metadata keys", keys, KEY_LIMIT)?;
    let keys = metadata(&mut cursor, keys)?;
    let mut rows = Vec::new();
    for _ in 0..tensors {
        rows.push(row(&mut cursor)?);
    }
    let alignment = alignment(&keys)?;
    let start = cursor.at.next_multiple_of(alignment).min(file.len());
    let tensors = place(rows, &file[start..], alignment)?;
    Ok(Gguf { version, keys, tensors })
}

fn limit(what: &str, found: u64, limit: u64) -> Result<(), GgufError> {
    if found <= limit {
        return Ok(());
    }
    Err(GgufError::invalid("the header", format!("{found} {what}, the limit is {limit}")))
}

fn metadata<'a>(
    cursor: &mut Cursor<'a>,
    count: u64,
) -> Result<BTreeMap<&'a str, Value<'a>>, GgufError> {
    let mut keys = BTreeMap::new();
    for _ in 0..count {
        let name = cursor.text("a metadata key")?;
        let kind = cursor.u32(name)?;
        let value = cursor.value(kind, name)?;
        if keys.insert(name, value).is_some() {
            return Err(GgufError::invalid(name, "the key stands twice"));
        }
    }
    Ok(keys)
}

fn alignment(keys: &BTreeMap<&str, Value<'_>>) -> Result<usize, GgufError> {
    match keys.get("general.alignment") {
        None => Ok(32),
        Some(Value::Unsigned(n @ 1..=65_536)) if n.is_power_of_two() => Ok(*n as usize),
        Some(other) => Err(GgufError::invalid("general.alignment", format!("{other:?}"))),
    }
}

fn row<'a>(cursor: &mut Cursor<'a>) -> Result<Row<'a>, GgufError> {
    let name = cursor.text("a tensor's name")?;
    let what = format!("tensor {name}");
    let bad = |reason: String| GgufError::invalid(&what, reason);
    let rank = cursor.u32(&what)? as usize;
    if rank == 0 || rank > RANK_LIMIT {
        return Err(bad(format!("{rank} dimensions; 1 to {RANK_LIMIT} are possible")));
    }
    let mut dims = [1usize; RANK_LIMIT];
    let mut elements = 1u64;
    for dim in &mut dims[..rank] {
        let size = cursor.u64(&what)?;
        if size == 0 {
            return Err(bad("a dimension is 0".to_owned()));
        }
        let product = elements.checked_mul(size).filter(|n| *n <= i64::MAX as u64);
        elements = product.ok_or_else(|| bad("more elements than a file can hold".to_owned()))?;
        *dim = usize::try_from(size).map_err(|_| bad(format!("a dimension is {size}")))?;
    }
    let code = cursor.u32(&what)?;
    let kind = TensorType::from_code(code).map_err(|e| GgufError::unsupported(&what, e))?;
    let block = kind.block();
    if !(dims[0] as u64).is_multiple_of(block.elements) {
        let n = block.elements;
        return Err(bad(format!("rows of {} elements are not whole blocks of {n}", dims[0])));
    }
    let bytes = (elements / block.elements).checked_mul(block.bytes);
    let bytes = bytes.ok_or_else(|| bad("more bytes than a file can hold".to_owned()))?;
    let offset = cursor.u64(&what)?;
    Ok(Row { name, kind, dims, rank, offset, bytes })
}

/// Finds each tensor's bytes; none may lie outside of the data or over another.
fn place<'a>(
    mut rows: Vec<Row<'a>>,
    data: &'a [u8],
    alignment: usize,
) -> Result<BTreeMap<&'a str, TensorInfo<'a>>, GgufError> {
    rows.sort_by_key(|row| row.offset);
    let (mut tensors, mut end, mut before) = (BTreeMap::new(), 0, "");
    for Row { name, kind, dims, rank, offset, bytes } in rows {
        let bad = |reason: String| GgufError::invalid(&format!("tensor {name}"), reason);
        if !offset.is_multiple_of(alignment as u64) {
            return Err(bad(format!("offset {offset} is no multiple of {alignment}")));
        }
        let last = offset.checked_add(bytes).filter(|end| *end <= data.len() as u64);
        let Some(last) = last else {
            let left = data.len();
            let reason = format!("{bytes} bytes from {offset} are not in the file's {left}");
            return Err(bad(format!("truncated, or its offset is wrong: {reason}")));
        };
        if offset < end {
            return Err(bad(format!("shares bytes with tensor {before}")));
        }
        (end, before) = (last, name);
        let bytes = &data[offset as usize..last as usize];
        if tensors.insert(name, TensorInfo { kind, bytes, dims, rank }).is_some() {
            return Err(bad("the name stands twice".to_owned()));
        }
    }
    Ok(tensors)
}
