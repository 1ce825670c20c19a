//! A trained model on disk: a checkpoint of ours, a Hugging Face folder, or a GGUF file.

use anyhow::{Context, bail};
use planaria_actors::spec::RunSpec;
use planaria_base::tensor_source::TensorSource;
use planaria_base::{DType, Digest};
use planaria_models::families::ModelSpec;
use planaria_models::generate::Decoder;
use planaria_models::generate::chat::ChatTemplate;
use planaria_models::gguf::{self, Gguf};
use planaria_models::hf;
use planaria_models::kernels::Isa;
use planaria_models::tokenizers::{Tokenizer, TokenizerSpec};
use planaria_storage::checkpoint::{Checkpoint, Checkpoints, MANIFEST};
use planaria_storage::mapped::MappedFile;
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
    /// How it was taught to chat, if it says so.
    pub(crate) chat: Option<ChatTemplate>,
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

/// Whether a path is a file that begins as GGUF does.
pub(crate) fn is_gguf(path: &Path) -> bool {
    path.is_file() && MappedFile::open(path).is_ok_and(|map| map.starts_with(b"GGUF"))
}

/// Opens a checkpoint, a run's folder, a Hugging Face folder or a GGUF file.
///
/// # Errors
/// Says what is missing or wrong.
pub(crate) fn open(path: &Path) -> anyhow::Result<ModelFolder> {
    let path = &resolve(path)?;
    if is_gguf(path) || path.extension().is_some_and(|e| e == "gguf") {
        open_gguf(path)
    } else if path.join(MANIFEST).is_file() {
        open_checkpoint(path)
    } else if path.join("config.json").is_file() {
        open_hugging_face(path)
    } else {
        bail!(
            "{} is neither a checkpoint ({MANIFEST}), a Hugging Face folder (config.json) nor a GGUF file",
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
        chat: serde_json::from_value(checkpoint.manifest.extra["chat"].clone())?,
        notes: Vec::new(),
    })
}

fn open_gguf(path: &Path) -> anyhow::Result<ModelFolder> {
    let name = || path.display().to_string();
    let map = MappedFile::open(path).with_context(name)?;
    let file = Gguf::parse(&map).with_context(name)?;
    let import = gguf::import(&file).with_context(name)?;
    let mut notes = import.notes.clone();
    // Weights without a tokenizer that we know still take ids.
    let tokenizer = match gguf::tokenizer_json(&file) {
        Ok(json) => {
            let spec = json.map(|json| TokenizerSpec::HuggingFace { json });
            spec.map(Tokenizer::from_spec).transpose().with_context(name)?
        }
        Err(error) => {
            notes.push(format!("its tokenizer is not read: {error}"));
            None
        }
    };
    let chat =
        if tokenizer.is_some() { gguf::chat_template(&file).with_context(name)? } else { None };
    Ok(ModelFolder {
        path: path.to_owned(),
        weights: import.values(),
        spec: import.spec,
        tokenizer,
        chat,
        notes,
    })
}

/// The chat template of a Hugging Face folder: `chat_template.jinja`, or the one that
/// tokenizer_config.json holds.
fn chat_of_folder(path: &Path) -> anyhow::Result<Option<ChatTemplate>> {
    let config = path.join("tokenizer_config.json");
    let config: serde_json::Value = if config.is_file() {
        let text = std::fs::read(&config).with_context(|| config.display().to_string())?;
        serde_json::from_slice(&text).with_context(|| config.display().to_string())?
    } else {
        serde_json::Value::Null
    };
    let jinja = path.join("chat_template.jinja");
    let template = if jinja.is_file() {
        std::fs::read_to_string(&jinja).with_context(|| jinja.display().to_string())?
    } else {
        let held = &config["chat_template"];
        // A list names several; the default is meant for talk without tools.
        let list = held.as_array().into_iter().flatten();
        let default = list.into_iter().find(|t| t["name"] == "default").map(|t| &t["template"]);
        let Some(text) = default.unwrap_or(held).as_str() else { return Ok(None) };
        text.to_owned()
    };
    let token = |key: &str| {
        let held = &config[key];
        held.as_str().or_else(|| held["content"].as_str()).unwrap_or_default().to_owned()
    };
    let (bos_token, eos_token) = (token("bos_token"), token("eos_token"));
    Ok(Some(ChatTemplate { template, bos_token, eos_token }))
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
        chat: chat_of_folder(path)?,
    })
}

impl ModelFolder {
    /// A folder with the model's `tokenizer.json`: its own, or one written below the run's.
    ///
    /// # Errors
    /// If the disk refuses.
    pub(crate) fn tokenizer_folder(&self, run: &Path) -> anyhow::Result<PathBuf> {
        let Some(TokenizerSpec::HuggingFace { json }) =
            self.tokenizer.as_ref().map(Tokenizer::spec)
        else {
            return Ok(self.path.clone());
        };
        if self.path.join("tokenizer.json").is_file() {
            return Ok(self.path.clone());
        }
        let folder = run.join("model");
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        planaria_storage::atomic::write_file(&folder.join("tokenizer.json"), json.as_bytes())?;
        Ok(folder)
    }

    /// Ids of the texts that begin and end, where the tokenizer has one token for each.
    pub(crate) fn special_ids(&self) -> hf::SpecialIds {
        let one = |text: &str| {
            let ids = self.tokenizer.as_ref()?.encode_control(text.as_bytes()).ok()?;
            if let [id] = ids[..] { Some(id) } else { None }
        };
        let chat = self.chat.as_ref();
        hf::SpecialIds {
            bos: chat.and_then(|c| one(&c.bos_token)),
            eos: chat.and_then(|c| one(&c.eos_token)),
        }
    }

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
