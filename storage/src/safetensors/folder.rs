//! A Hugging Face folder's weights: one file, or the shards that an index names.

use super::{HEADER_LIMIT, SafetensorsError, SafetensorsFile};
use planaria_base::tensor_source::{StoredTensor, TensorSource};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::{Path, PathBuf};

/// All tensors of a folder.
#[derive(Debug)]
pub struct Folder {
    files: Vec<SafetensorsFile>,
    /// By tensor: which file holds it.
    places: BTreeMap<String, usize>,
    notes: Vec<String>,
}

/// The part of an index that is read.
#[derive(Deserialize)]
struct Index {
    weight_map: WeightMap,
    #[serde(default)]
    metadata: serde_json::Map<String, serde_json::Value>,
}

/// Tensor to shard, doubled names refused: a parser that keeps the last would hide one.
struct WeightMap(BTreeMap<String, String>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WeightMap, D::Error> {
        struct Walk;
        impl<'de> Visitor<'de> for Walk {
            type Value = WeightMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from tensor to file name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let mut places = BTreeMap::new();
                while let Some((tensor, shard)) = map.next_entry::<String, String>()? {
                    if places.contains_key(&tensor) {
                        return Err(A::Error::custom(format!("tensor {tensor} stands twice")));
                    }
                    places.insert(tensor, shard);
                }
                Ok(WeightMap(places))
            }
        }
        deserializer.deserialize_map(Walk)
    }
}

impl Folder {
    /// Opens `model.safetensors`, or the shards of `model.safetensors.index.json`. Other files in
    /// the folder are not read, whatever their names.
    ///
    /// # Errors
    /// Names what is missing or wrong.
    pub fn open(dir: &Path) -> Result<Folder, SafetensorsError> {
        let index = dir.join("model.safetensors.index.json");
        if index.is_file() {
            return Folder::open_index(dir, &index);
        }
        let path = dir.join("model.safetensors");
        if !path.is_file() {
            let reason = "neither model.safetensors nor model.safetensors.index.json is there";
            return Err(SafetensorsError::invalid(dir, reason));
        }
        let file = SafetensorsFile::open(&path)?;
        let places = file.names().into_iter().map(|n| (n.to_owned(), 0)).collect();
        Ok(Folder { files: vec![file], places, notes: Vec::new() })
    }

    /// What is odd but harmless: a wrong total size, tensors that the index does not name.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn open_index(dir: &Path, index: &Path) -> Result<Folder, SafetensorsError> {
        let bad = |reason: String| SafetensorsError::invalid(index, reason);
        let Index { weight_map, metadata } = read_index(index).map_err(bad)?;
        let (paths, places) = shards(dir, weight_map.0).map_err(bad)?;
        if let Some(missing) = paths.iter().find(|p| !p.is_file()) {
            return Err(bad(format!("shard {} is not there", missing.display())));
        }
        let files: Vec<SafetensorsFile> =
            paths.iter().map(|p| SafetensorsFile::open(p)).collect::<Result<_, _>>()?;
        for (tensor, &at) in &places {
            if files[at].tensor(tensor).is_none() {
                let shard = paths[at].display();
                return Err(bad(format!("stale: {shard} does not hold tensor {tensor}")));
            }
        }
        let mut folder = Folder { files, places, notes: Vec::new() };
        folder.notes = folder.oddities(index, metadata.get("total_size"));
        Ok(folder)
    }

    fn oddities(&self, index: &Path, claimed: Option<&serde_json::Value>) -> Vec<String> {
        let mut notes = Vec::new();
        let total: usize =
            self.names().iter().filter_map(|n| self.tensor(n)).map(|t| t.bytes.len()).sum();
        if let Some(claimed) = claimed.and_then(serde_json::Value::as_u64)
            && claimed != total as u64
        {
            notes.push(format!(
                "{}: total_size says {claimed}, the tensors have {total} bytes",
                index.display()
            ));
        }
        for (at, file) in self.files.iter().enumerate() {
            let strays = file.names().into_iter().filter(|n| self.places.get(*n) != Some(&at));
            notes.extend(
                strays.map(|n| format!("tensor {n} is not read: the index names no such place")),
            );
        }
        notes
    }
}

fn read_index(index: &Path) -> Result<Index, String> {
    let len = std::fs::metadata(index).map_err(|e| e.to_string())?.len();
    if len > HEADER_LIMIT {
        return Err(format!("{len} bytes, the limit is {HEADER_LIMIT}"));
    }
    let text = std::fs::read(index).map_err(|e| e.to_string())?;
    serde_json::from_slice(&text).map_err(|e| e.to_string())
}

/// Where the shards lie, and which of them holds each tensor.
fn shards(
    dir: &Path,
    map: BTreeMap<String, String>,
) -> Result<(Vec<PathBuf>, BTreeMap<String, usize>), String> {
    let (mut paths, mut known) = (Vec::new(), HashMap::new());
    let mut places = BTreeMap::new();
    for (tensor, shard) in map {
        if shard.contains(['/', '\\']) {
            return Err(format!("{tensor}: shard {shard} is not in the folder"));
        }
        let path = dir.join(&shard);
        let at = *known.entry(shard).or_insert_with(|| {
            paths.push(path);
            paths.len() - 1
        });
        places.insert(tensor, at);
    }
    Ok((paths, places))
}

impl TensorSource for Folder {
    fn names(&self) -> Vec<&str> {
        self.places.keys().map(String::as_str).collect()
    }

    fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        self.files[*self.places.get(name)?].tensor(name)
    }
}
