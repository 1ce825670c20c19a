//! `planaria inspect`: what a checkpoint, a folder or a file holds.

use crate::folder;
use crate::output::{self, Done};
use clap::Args;
use planaria_storage::checkpoint::{Checkpoint, MANIFEST};
use serde_json::json;
use std::path::PathBuf;

/// Show shapes, dtypes, hash and counts of a checkpoint, a Hugging Face folder or a safetensors file.
#[derive(Args)]
pub(crate) struct Inspect {
    /// A checkpoint, a run's folder, a Hugging Face folder, or a safetensors file
    path: PathBuf,
    /// End with one JSON object: tensors, elements, state_hash, step
    #[arg(long)]
    json: bool,
}

impl Inspect {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        let path = folder::resolve(&self.path)?;
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
}
