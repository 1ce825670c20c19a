//! The ring key: one secret from which everything that identifies a ring follows.

use crate::Error;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The environment variable that may hold a ring key.
pub const KEY_VARIABLE: &str = "PLANARIA_RING_KEY";

/// 32 secret bytes; written as 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct RingKey([u8; 32]);

impl std::fmt::Debug for RingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RingKey({})", self.fingerprint())
    }
}

fn key_error(path: &Path, reason: impl Into<String>) -> Error {
    Error::Key { path: path.display().to_string(), reason: reason.into() }
}

impl RingKey {
    /// A key from its bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 32]) -> RingKey {
        RingKey(bytes)
    }

    /// A key from its hexadecimal text.
    #[must_use]
    pub fn parse(text: &str) -> Option<RingKey> {
        let text = text.trim();
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        let mut bytes = [0; 32];
        for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(RingKey(bytes))
    }

    /// A fresh random key.
    ///
    /// # Errors
    /// If the system has no randomness.
    pub fn generate() -> Result<RingKey, Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|e| Error::Tls(e.to_string()))?;
        Ok(RingKey(bytes))
    }

    /// Reads a key file, or makes one (mode 0600) if there is none.
    ///
    /// # Errors
    /// If the file is readable by others, malformed, or cannot be read or made.
    pub fn load_or_create(path: &Path) -> Result<RingKey, Error> {
        match RingKey::load(path) {
            Err(Error::Key { reason, .. }) if reason == MISSING => {}
            other => return other,
        }
        let key = RingKey::generate()?;
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(|e| key_error(path, e.to_string()))?;
        }
        let made = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        match made {
            Ok(mut file) => {
                let text = format!("{}\n", key.text());
                file.write_all(text.as_bytes()).map_err(|e| key_error(path, e.to_string()))?;
                Ok(key)
            }
            // Another node of this machine was faster.
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => RingKey::load(path),
            Err(e) => Err(key_error(path, e.to_string())),
        }
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// As [`RingKey::load_or_create`], and if there is none.
    pub fn load(path: &Path) -> Result<RingKey, Error> {
        let mut file = match fs::File::open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(key_error(path, MISSING));
            }
            Err(e) => return Err(key_error(path, e.to_string())),
        };
        let mode = file.metadata().map_err(|e| key_error(path, e.to_string()))?.mode();
        if mode & 0o077 != 0 {
            let mode = mode & 0o777;
            let reason = format!(
                "others may read it (mode {mode:o}): chmod 600 it, or make a new key if it leaked"
            );
            return Err(key_error(path, reason));
        }
        let mut text = String::new();
        let read = Read::by_ref(&mut file).take(1024).read_to_string(&mut text);
        read.map_err(|e| key_error(path, e.to_string()))?;
        RingKey::parse(&text).ok_or_else(|| key_error(path, "it is not 64 hexadecimal digits"))
    }

    /// The key as hexadecimal text.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.iter().map(|b| format!("{b:02x}")).collect()
    }

    /// A short name for people, from which the key cannot be found.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.derive("planaria 2026 fingerprint")
            .iter()
            .take(4)
            .map(|b| format!("{b:02x}"))
            .collect()
    }

    /// A key of its own for one purpose.
    #[must_use]
    pub(crate) fn derive(&self, purpose: &str) -> [u8; 32] {
        blake3::derive_key(purpose, &self.0)
    }
}

const MISSING: &str = "there is no such file";

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Made once with mode 0600, then read; refused when others may read it.
    #[test]
    fn a_key_file_is_made_once_and_guarded() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("deep/ring.key");
        assert!(RingKey::load(&path).is_err());
        let key = RingKey::load_or_create(&path).expect("it is made");
        assert_eq!(RingKey::load_or_create(&path).expect("it is read"), key);
        let mode = |m| fs::set_permissions(&path, fs::Permissions::from_mode(m)).expect("chmod");
        assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
        mode(0o644);
        let error = RingKey::load(&path).expect_err("others may read it").to_string();
        assert!(error.contains("chmod 600"), "{error}");
        mode(0o600);
        fs::write(&path, "not a key").expect("written");
        assert!(RingKey::load_or_create(&path).is_err());
    }

    /// Text and back; other text is not a key.
    #[test]
    fn keys_are_64_digits() {
        let key = RingKey::from_bytes([0xa5; 32]);
        assert_eq!(RingKey::parse(&format!(" {}\n", key.text())), Some(key.clone()));
        assert_eq!(RingKey::parse(&key.text()[1..]), None);
        assert_eq!(RingKey::parse(&"é".repeat(32)), None);
        assert!(!format!("{key:?}").contains("a5a5"));
    }
}
