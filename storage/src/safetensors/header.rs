//! The header of a safetensors file: 8 bytes of length, then JSON.

use super::{HEADER_LIMIT, RANK_LIMIT, TENSOR_LIMIT};
use planaria_base::DType;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// One tensor's place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    /// Bytes behind the header.
    pub(super) range: Range<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    dtype: String,
    shape: Short<u64>,
    data_offsets: Short<i128>,
}

/// A list of at most [`RANK_LIMIT`] numbers, so that a header cannot ask for many times its own
/// size.
struct Short<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Short<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Short<T>, D::Error> {
        struct Walk<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Walk<T> {
            type Value = Short<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {RANK_LIMIT} numbers")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Short<T>, A::Error> {
                let mut numbers = Vec::new();
                while let Some(number) = seq.next_element()? {
                    if numbers.len() == RANK_LIMIT {
                        return Err(A::Error::custom(format!("more than {RANK_LIMIT} numbers")));
                    }
                    numbers.push(number);
                }
                Ok(Short(numbers))
            }
        }
        deserializer.deserialize_seq(Walk(std::marker::PhantomData))
    }
}

/// The header's pairs, in order, doubled names refused.
struct Pairs(Vec<(String, Raw)>);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Pairs, D::Error> {
        struct Walk;
        impl<'de> Visitor<'de> for Walk {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs, A::Error> {
                let mut pairs = Vec::new();
                let mut metadata = false;
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        if std::mem::replace(&mut metadata, true) {
                            return Err(A::Error::custom("__metadata__ stands twice"));
                        }
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        if pairs.len() == TENSOR_LIMIT {
                            return Err(A::Error::custom(format!(
                                "more tensors than the limit of {TENSOR_LIMIT}"
                            )));
                        }
                        let raw = map
                            .next_value::<Raw>()
                            .map_err(|e| A::Error::custom(format!("tensor {name}: {e}")))?;
                        pairs.push((name, raw));
                    }
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Walk)
    }
}

/// Checks a whole file; returns where its data begins, and its tensors.
pub(super) fn parse(file: &[u8]) -> Result<(usize, BTreeMap<String, Entry>), String> {
    if file.starts_with(b"version https://git-lfs") {
        return Err(
            "a Git LFS pointer, not weights: fetch the real file with `git lfs pull`".into()
        );
    }
    let length = u64::from_le_bytes(file[..8].try_into().expect("8 bytes"));
    if length > HEADER_LIMIT {
        return Err(format!("the header claims {length} bytes, the limit is {HEADER_LIMIT}"));
    }
    let data = 8 + length as usize;
    let header = file.get(8..data).ok_or_else(|| {
        format!("truncated: the header ends at byte {data}, the file has {}", file.len())
    })?;
    let Pairs(pairs) = serde_json::from_slice(header).map_err(|e| format!("bad header: {e}"))?;
    let mut entries = BTreeMap::new();
    for (name, raw) in pairs {
        let entry = check(&raw).map_err(|reason| format!("tensor {name}: {reason}"))?;
        if entries.insert(name.clone(), entry).is_some() {
            return Err(format!("tensor {name} stands twice in the header"));
        }
    }
    check_layout(&entries, file.len() - data)?;
    Ok((data, entries))
}

fn check(raw: &Raw) -> Result<Entry, String> {
    let dtype = DType::from_safetensors_name(&raw.dtype)
        .ok_or_else(|| format!("dtype {} is not known", raw.dtype))?;
    let [start, end] = raw.data_offsets.0[..] else {
        return Err(format!("data_offsets has {} numbers, not 2", raw.data_offsets.0.len()));
    };
    let bytes =
        raw.shape.0.iter().try_fold(dtype.bytes() as u64, |n, &d| n.checked_mul(d)).ok_or_else(
            || format!("shape {:?} has more elements than can be addressed", raw.shape.0),
        )?;
    if start < 0 || end < start || end > i128::from(i64::MAX) {
        return Err(format!("data_offsets [{start}, {end}] are not a range"));
    }
    if end - start != i128::from(bytes) {
        let shape = &raw.shape.0;
        return Err(format!(
            "{} of {shape:?} is {bytes} bytes, its offsets hold {}",
            raw.dtype,
            end - start
        ));
    }
    let shape = raw.shape.0.iter().map(|&d| d as usize).collect();
    Ok(Entry { dtype, shape, range: start as usize..end as usize })
}

/// The tensors must cover the data exactly once.
fn check_layout(entries: &BTreeMap<String, Entry>, data: usize) -> Result<(), String> {
    let mut order: Vec<(&String, &Entry)> = entries.iter().collect();
    order.sort_by_key(|(_, e)| (e.range.start, e.range.end));
    let (mut at, mut before) = (0, None::<&String>);
    for (name, entry) in order {
        let start = entry.range.start;
        if start < at {
            let other = before.map_or("", |b| b);
            return Err(format!("tensors {other} and {name} share bytes {start}..{at}"));
        }
        if start > at {
            return Err(format!("no tensor covers bytes {at}..{start}, before {name}"));
        }
        (at, before) = (entry.range.end, Some(name));
    }
    match at.cmp(&data) {
        std::cmp::Ordering::Greater => {
            Err(format!("truncated: tensors need {at} bytes behind the header, {data} are there"))
        }
        std::cmp::Ordering::Less => {
            Err(format!("{} bytes behind the last tensor belong to none", data - at))
        }
        std::cmp::Ordering::Equal => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    }

    const TWO: &str = r#"{"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},
        "a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;

    /// A header in any order, scalars and empty tensors load.
    #[test]
    fn good_files_load() {
        let (_, entries) = parse(&file(TWO, 12)).expect("good");
        assert_eq!(entries["b"].range, 4..12);
        let odd = r#"{"__metadata__":{"format":"pt"},"z":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]},
            "s":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}"#;
        assert_eq!(parse(&file(odd, 2)).expect("good").1.len(), 2);
    }

    /// Each fault of the kinds seen in public is one clear error.
    #[test]
    fn bad_files_are_refused_by_name() {
        let tensor = |shape: &str, offsets: &str| {
            format!(r#"{{"t":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let overlap = TWO.replace("[4,12]", "[0,8]");
        let gap = TWO.replace("[4,12]", "[8,16]");
        let twice = TWO.replace("\"b\"", "\"a\"");
        let cases: Vec<(Vec<u8>, &str)> = vec![
            (file(TWO, 11), "truncated: tensors need 12"),
            (file(TWO, 13), "1 bytes behind the last tensor"),
            (file(TWO, 12)[..40].to_vec(), "truncated: the header ends"),
            (b"version https://git-lfs.github.com/spec/v1\noid".to_vec(), "LFS pointer"),
            ([&(1u64 << 60).to_le_bytes()[..], b"{}"].concat(), "the limit is"),
            (file(&overlap, 12), "share bytes"),
            (file(&gap, 16), "no tensor covers bytes 4..8"),
            (file(&twice, 12), "tensor a stands twice"),
            (file(&tensor("[16]", "[64,0]"), 64), "not a range"),
            (file(&tensor("[4]", "[-8,8]"), 16), "not a range"),
            (file(&tensor("[4]", "[0]"), 16), "1 numbers"),
            (file(&tensor("[4]", "[0,18446744073709551615]"), 16), "not a range"),
            (file(&tensor("[4294967296,4294967296]", "[0,16]"), 16), "more elements"),
            (file(&tensor("[4]", "[0,12]"), 12), "its offsets hold 12"),
            (file(r#"{"t":{"dtype":"Q9","shape":[1],"data_offsets":[0,4]}}"#, 4), "dtype Q9"),
            (file("[1,2", 0), "bad header"),
            (
                file(&tensor(&format!("[{}1]", "1,".repeat(32)), "[0,4]"), 4),
                "tensor t: more than 32",
            ),
            (file(&tensor("[-1]", "[0,4]"), 4), "tensor t: "),
            (file(&TWO.replace("\"shape\":[1]", "\"shape\":[1],\"shape\":[1]"), 12), "duplicate"),
        ];
        for (bytes, want) in cases {
            let got = parse(&bytes).expect_err(want);
            assert!(got.contains(want), "{got} should say {want}");
        }
    }

    proptest! {
        /// A good file with some bytes changed or cut off: read or refused, and what is read lies
        /// within the file.
        #[test]
        fn damaged_files_never_panic(
            changes in prop::collection::vec((0usize..200, 0u8..=255), 1..4),
            cut in 8usize..200,
        ) {
            let mut bytes = file(TWO, 12);
            for (at, to) in changes {
                let at = at % bytes.len();
                bytes[at] = to;
            }
            bytes.truncate(cut);
            if let Ok((data, entries)) = parse(&bytes) {
                prop_assert!(entries.values().all(|e| data + e.range.end <= bytes.len()));
            }
        }

        /// Random bytes behind a plausible length: an error, never a panic.
        #[test]
        fn random_headers_never_panic(header in "[ -~]{0,200}", data in 0usize..64) {
            let _ = parse(&file(&header, data));
        }
    }
}
