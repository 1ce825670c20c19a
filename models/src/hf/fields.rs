//! Typed look-ups in a config.json, with errors that name the key.

use super::ImportError;
use serde_json::{Map, Value};

/// A JSON object that is read key by key. `null` counts as absent, as in transformers.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    object: &'a Map<String, Value>,
}

fn wrong(key: &str, expected: &'static str, found: &Value) -> ImportError {
    ImportError::WrongValue { key: key.to_owned(), expected, found: found.to_string() }
}

impl<'a> Fields<'a> {
    pub(super) fn new(object: &'a Map<String, Value>) -> Fields<'a> {
        Fields { object }
    }

    pub(super) fn keys(self) -> impl Iterator<Item = &'a str> {
        self.object.keys().map(String::as_str)
    }

    fn value(self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|v| !v.is_null())
    }

    pub(super) fn has(self, key: &str) -> bool {
        self.value(key).is_some()
    }

    /// Whether the key stands there, `null` or not.
    pub(super) fn names(self, key: &str) -> bool {
        self.object.contains_key(key)
    }

    pub(super) fn opt_size(self, key: &str) -> Result<Option<usize>, ImportError> {
        self.value(key).map(|v| size(key, v)).transpose()
    }

    pub(super) fn list(self, key: &str) -> Result<Option<&'a [Value]>, ImportError> {
        let list = |v: &'a Value| v.as_array().ok_or_else(|| wrong(key, "a list", v));
        Ok(self.value(key).map(list).transpose()?.map(Vec::as_slice))
    }

    fn required(self, key: &str) -> Result<&'a Value, ImportError> {
        self.value(key).ok_or_else(|| ImportError::MissingKey { key: key.to_owned() })
    }

    pub(super) fn size(self, key: &str) -> Result<usize, ImportError> {
        size(key, self.required(key)?)
    }

    pub(super) fn size_or(self, key: &str, default: usize) -> Result<usize, ImportError> {
        self.value(key).map_or(Ok(default), |v| size(key, v))
    }

    pub(super) fn number(self, key: &str) -> Result<f64, ImportError> {
        number(key, self.required(key)?)
    }

    pub(super) fn number_or(self, key: &str, default: f64) -> Result<f64, ImportError> {
        self.value(key).map_or(Ok(default), |v| number(key, v))
    }

    pub(super) fn flag_or(self, key: &str, default: bool) -> Result<bool, ImportError> {
        let flag = |v: &Value| v.as_bool().ok_or_else(|| wrong(key, "true or false", v));
        self.value(key).map_or(Ok(default), flag)
    }

    pub(super) fn text(self, key: &str) -> Result<Option<&'a str>, ImportError> {
        let text = |v: &'a Value| v.as_str().ok_or_else(|| wrong(key, "a string", v));
        self.value(key).map(text).transpose()
    }

    pub(super) fn object(self, key: &str) -> Result<Option<Fields<'a>>, ImportError> {
        let object = |v: &'a Value| v.as_object().ok_or_else(|| wrong(key, "an object", v));
        Ok(self.value(key).map(object).transpose()?.map(Fields::new))
    }

    /// A switch that we only know in one position.
    pub(super) fn only(self, key: &str, supported: bool) -> Result<(), ImportError> {
        if self.flag_or(key, supported)? == supported {
            return Ok(());
        }
        Err(ImportError::Unsupported { key: key.to_owned(), value: (!supported).to_string() })
    }
}

fn size(key: &str, value: &Value) -> Result<usize, ImportError> {
    let limit = super::limit(key);
    let size = value.as_u64().and_then(|v| usize::try_from(v).ok());
    match size {
        Some(size @ 1..) if size <= limit => Ok(size),
        Some(size @ 1..) => Err(ImportError::TooLarge { key: key.to_owned(), size, limit }),
        _ => Err(wrong(key, "a size of at least 1", value)),
    }
}

fn number(key: &str, value: &Value) -> Result<f64, ImportError> {
    value.as_f64().ok_or_else(|| wrong(key, "a number", value))
}
