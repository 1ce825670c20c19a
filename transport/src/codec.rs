//! Words to bytes and back: the one place that names `bincode`.
//!
//! Version 2.0.1 is pinned: later releases are empty, and every release is unmaintained
//! (RUSTSEC-2025-0141). What that costs is paid here: a version byte in front, a cap on the frame, a
//! limit on what decoding may allocate, and no trailing bytes. Types on the wire hold no recursion
//! and no zero-sized elements in collections. Numbers never come through here.

use crate::WIRE_VERSION;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes of an encoded value at most.
pub const FRAME_LIMIT: usize = 64 << 20;

/// Why bytes are not what they should be; nothing was allocated beyond [`FRAME_LIMIT`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// It is too long.
    #[error("a frame of {0} bytes is longer than {FRAME_LIMIT}")]
    TooLong(usize),
    /// It is of another version.
    #[error("a frame of wire version {0}, this is {WIRE_VERSION}")]
    Version(u8),
    /// It is not such a value.
    #[error("a malformed frame: {0}")]
    Malformed(String),
    /// Something follows the value.
    #[error("a frame with {0} bytes too many")]
    Trailing(usize),
}

fn config() -> bincode::config::Configuration<
    bincode::config::LittleEndian,
    bincode::config::Varint,
    bincode::config::Limit<FRAME_LIMIT>,
> {
    bincode::config::standard().with_limit::<FRAME_LIMIT>()
}

/// Encodes a value.
///
/// # Panics
/// If it takes more than [`FRAME_LIMIT`], or its type cannot be encoded: both are programming errors.
#[must_use]
pub fn encode<T: Serialize>(value: &T) -> Bytes {
    let mut bytes = vec![WIRE_VERSION];
    bincode::serde::encode_into_std_write(value, &mut bytes, config())
        .expect("values on the wire are plain data below the frame limit");
    Bytes::from(bytes)
}

/// Decodes a value that fills `bytes` exactly.
///
/// # Errors
/// Says what is wrong with the bytes.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    if bytes.len() > FRAME_LIMIT {
        return Err(DecodeError::TooLong(bytes.len()));
    }
    let (version, rest) =
        bytes.split_first().ok_or_else(|| DecodeError::Malformed("it is empty".to_owned()))?;
    if *version != WIRE_VERSION {
        return Err(DecodeError::Version(*version));
    }
    let (value, used) = bincode::serde::decode_from_slice(rest, config())
        .map_err(|e| DecodeError::Malformed(e.to_string()))?;
    if used == rest.len() { Ok(value) } else { Err(DecodeError::Trailing(rest.len() - used)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde::Deserialize;

    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    enum Word {
        Nothing,
        Numbers(Vec<u64>),
        Names { text: String, some: Option<Box<i32>>, pair: (u8, [u8; 3]) },
    }

    fn words() -> impl Strategy<Value = Word> {
        prop_oneof![
            Just(Word::Nothing),
            prop::collection::vec(any::<u64>(), 0..50).prop_map(Word::Numbers),
            (".*", any::<Option<i32>>(), any::<(u8, [u8; 3])>()).prop_map(|(text, some, pair)| {
                Word::Names { text, some: some.map(Box::new), pair }
            }),
        ]
    }

    proptest! {
        /// What was encoded is decoded, and any cut or appendix is refused.
        #[test]
        fn there_and_back(word in words(), extra in 1usize..9) {
            let bytes = encode(&word);
            prop_assert_eq!(decode::<Word>(&bytes), Ok(word));
            prop_assert!(decode::<Word>(&bytes[..bytes.len() - 1]).is_err());
            let mut long = bytes.to_vec();
            long.resize(bytes.len() + extra, 0);
            prop_assert_eq!(decode::<Word>(&long), Err(DecodeError::Trailing(extra)));
        }

        /// No bytes make decoding panic.
        #[test]
        fn garbage_is_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<Word>(&bytes);
        }
    }

    /// Lengths that claim more than the limit allocate nothing.
    #[test]
    fn huge_lengths_are_refused() {
        let mut bytes = vec![WIRE_VERSION, 1, 253];
        bytes.extend((1u64 << 60).to_le_bytes());
        assert!(matches!(decode::<Word>(&bytes), Err(DecodeError::Malformed(_))));
    }

    /// The format is fixed: another release must not change it unnoticed.
    #[test]
    fn golden_bytes() {
        let word =
            Word::Names { text: "ring".into(), some: Some(Box::new(-2)), pair: (7, [1, 2, 3]) };
        let want = [1, 2, 4, b'r', b'i', b'n', b'g', 1, 3, 7, 1, 2, 3];
        assert_eq!(encode(&word)[..], want);
        assert_eq!(decode::<Word>(&[9, 0]), Err(DecodeError::Version(9)));
    }
}
