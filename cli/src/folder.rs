//! A trained model on disk: a checkpoint of ours, or a Hugging Face folder.

use anyhow::{Context, bail};
use planaria_actors::spec::RunSpec;
use planaria_base::tensor_source::TensorSource;
use planaria_base::{DType, Digest};
use planaria_models::families::ModelSpec;
use planaria_models::generate::Decoder;
use planaria_models::hf;
use planaria_models::kernels::Isa;
use planaria_models::tokenizers::{Tokenizer, TokenizerSpec};
use planaria_storage::checkpoint::{Checkpoint, Checkpoints, MANIFEST};
use planaria_storage::safetensors::Folder;
use std::path::{Path, PathBuf};

/// A model with its weights.
pub(crate) struct ModelFolder {
    /// Where it lies.
    pub(crate) path: PathBuf,
    /// Its shape.
    pub(crate) spec: ModelSpec,
    /// By parameter id.
    pub(crate) weights: Vec<Vec<f32>>,
    /// Its tokenizer, if one lies with it.
    pub(crate) tokenizer: Option<Tokenizer>,
    /// What there is to say about it.
    pub(crate) notes: Vec<String>,
}

/// A run's folder stands for its newest good checkpoint; every other path for itself.
///
/// # Errors
/// If the run has no good checkpoint.
pub(crate) fn resolve(path: &Path) -> anyhow::Result<PathBuf> {
    let checkpoints = path.join("checkpoints");
    if checkpoints.is_dir() {
        return Ok(Checkpoints::open(&checkpoints).newest_good()?.0.path);
    }
    Ok(path.to_owned())
}

/// Opens a checkpoint, a run's folder or a Hugging Face folder.
///
/// # Errors
/// Says what is missing or wrong.
pub(crate) fn open(path: &Path) -> anyhow::Result<ModelFolder> {
    let path = &resolve(path)?;
    if path.join(MANIFEST).is_file() {
        open_checkpoint(path)
    } else if path.join("config.json").is_file() {
        open_hugging_face(path)
    } else {
        bail!(
            "{} is neither a checkpoint ({MANIFEST}) nor a Hugging Face folder (config.json)",
            path.display()
        )
    }
}

fn open_checkpoint(path: &Path) -> anyhow::Result<ModelFolder> {
    let checkpoint = Checkpoint::open(path, true)?;
    let spec: RunSpec =
        serde_json::from_value(checkpoint.manifest.spec.clone()).context("the manifest's spec")?;
    let state = checkpoint.state()?;
    let model = spec.model.build();
    let weights = hf::load(&spec.model, &model, &state)?;
    let tokenizer: Option<TokenizerSpec> =
        serde_json::from_value(checkpoint.manifest.extra["tokenizer"].clone())?;
    Ok(ModelFolder {
        path: path.to_owned(),
        spec: spec.model,
        weights: weights.values,
        tokenizer: tokenizer.map(Tokenizer::from_spec).transpose()?,
        notes: Vec::new(),
    })
}

fn open_hugging_face(path: &Path) -> anyhow::Result<ModelFolder> {
    let config = path.join("config.json");
    let text = std::fs::read(&config).with_context(|| config.display().to_string())?;
    let source = Folder::open(path)?;
    let import = hf::import(&text, &source).with_context(|| path.display().to_string())?;
    let json = path.join("tokenizer.json");
    let tokenizer = if json.is_file() { Some(Tokenizer::from_file(&json)?) } else { None };
    Ok(ModelFolder {
        path: path.to_owned(),
        weights: import.values(&source),
        notes: import.notes.iter().map(ToString::to_string).collect(),
        spec: import.spec,
        tokenizer,
    })
}

impl ModelFolder {
    /// Digest of the weights.
    pub(crate) fn digest(&self) -> Digest {
        Digest::of_all(self.weights.iter().map(|w| Digest::of(bytemuck::cast_slice(w))))
    }

    /// A decoder over the weights, which move into it.
    pub(crate) fn decoder(self, threads: usize) -> Decoder {
        Decoder::new(self.spec.build(), self.weights, threads, Isa::detect())
    }
}

/// Names, dtypes and shapes of a folder's tensors.
///
/// # Errors
/// Says what is wrong with the folder or file.
pub(crate) fn tensors(path: &Path) -> anyhow::Result<Vec<(String, DType, Vec<usize>)>> {
    let source: Box<dyn TensorSource> = if path.is_file() {
        Box::new(planaria_storage::safetensors::SafetensorsFile::open(path)?)
    } else if path.join(MANIFEST).is_file() {
        Box::new(Checkpoint::open(path, true)?.state()?)
    } else {
        Box::new(Folder::open(path)?)
    };
    let names = source.names();
    let one = |n: &str| source.tensor(n).map(|t| (n.to_owned(), t.dtype, t.shape.to_vec()));
    Ok(names.into_iter().filter_map(one).collect())
}
