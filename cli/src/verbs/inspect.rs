//! `planaria inspect`: what a checkpoint, a folder or a file holds.

use crate::folder;
use crate::output::{self, Done};
use anyhow::Context;
use clap::Args;
use planaria_models::gguf::{Gguf, TensorInfo, Value};
use planaria_storage::checkpoint::{Checkpoint, MANIFEST};
use planaria_storage::mapped::MappedFile;
use serde_json::json;
use std::path::{Path, PathBuf};

/// Show shapes, dtypes, hash and counts of a checkpoint, a Hugging Face folder, a safetensors or GGUF
/// file; of a GGUF file also its metadata.
#[derive(Args)]
pub(crate) struct Inspect {
    /// A checkpoint, a run's folder, a Hugging Face folder, a safetensors or GGUF file
    path: PathBuf,
    /// End with one JSON object: tensors, elements, state_hash, step
    #[arg(long)]
    json: bool,
}

impl Inspect {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        let path = folder::resolve(&self.path)?;
        if folder::is_gguf(&path) {
            return self.gguf(&path);
        }
        let tensors = folder::tensors(&path)?;
        let elements: usize = tensors.iter().map(|(_, _, s)| s.iter().product::<usize>()).sum();
        let manifest = path.join(MANIFEST).is_file();
        let manifest =
            manifest.then(|| Checkpoint::open(&path, true)).transpose()?.map(|c| c.manifest);
        if self.json {
            let list: Vec<_> = tensors
                .iter()
                .map(|(name, dtype, shape)| {
                    json!({ "name": name, "dtype": dtype.to_string(), "shape": shape })
                })
                .collect();
            output::json(&json!({
                "tensors": list,
                "elements": elements,
                "state_hash": manifest.as_ref().map(|m| m.state_hash),
                "step": manifest.as_ref().map(|m| m.step),
            }));
            return Ok(Done::All);
        }
        let width = tensors.iter().map(|(n, ..)| n.len()).max().unwrap_or(0);
        for (name, dtype, shape) in &tensors {
            output::line(&format!("{name:width$}  {dtype:4}  {shape:?}"));
        }
        output::line(&format!("{} tensors, {elements} elements", tensors.len()));
        if let Some(manifest) = manifest {
            output::line(&format!("step {}, {} updates", manifest.step, manifest.updates));
            output::line(&format!("state hash {}", manifest.state_hash));
        }
        Ok(Done::All)
    }

    fn gguf(&self, path: &Path) -> anyhow::Result<Done> {
        let name = || path.display().to_string();
        let map = MappedFile::open(path).with_context(name)?;
        let file = Gguf::parse(&map).with_context(name)?;
        let (count, elements) =
            file.tensors().fold((0, 0), |(n, sum), (_, t)| (n + 1, sum + t.elements()));
        if self.json {
            let tensor = |(name, t): (&str, TensorInfo<'_>)| json!({ "name": name, "dtype": t.kind.name(), "shape": t.shape() });
            let tensors: Vec<_> = file.tensors().map(tensor).collect();
            let keys = file.keys().map(|(k, v)| (k.to_owned(), plain(v)));
            let metadata: serde_json::Map<_, _> = keys.collect();
            output::json(
                &json!({ "tensors": tensors, "elements": elements, "metadata": metadata }),
            );
            return Ok(Done::All);
        }
        for (key, value) in file.keys() {
            let text = plain(value).to_string();
            let short: String = text.chars().take(100).collect();
            let more = if short.len() < text.len() { "..." } else { "" };
            output::line(&format!("{key} = {short}{more}"));
        }
        let width = file.tensors().map(|(n, _)| n.len()).max().unwrap_or(0);
        for (name, t) in file.tensors() {
            output::line(&format!("{name:width$}  {:5} {:?}", t.kind.name(), t.shape()));
        }
        output::line(&format!(
            "GGUF version {}, {count} tensors, {elements} elements",
            file.version()
        ));
        Ok(Done::All)
    }
}

/// A metadata value as JSON; of a list, how long it is.
fn plain(value: Value<'_>) -> serde_json::Value {
    match value {
        Value::Unsigned(n) => n.into(),
        Value::Signed(n) => n.into(),
        Value::Float(x) => x.into(),
        Value::Bool(b) => b.into(),
        Value::Text(t) => t.into(),
        Value::Array(list) => format!("a list of {}", list.len()).into(),
    }
}
