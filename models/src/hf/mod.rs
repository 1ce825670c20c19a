//! Hugging Face folders: config.json and named tensors in, and out again.
//!
//! Files are somebody else's: tensors come through [`TensorSource`], and an [`Export`] says what to
//! write. Rules:
//!
//! - Names are taken with or without their first part (`transformer.`, `model.`), and norms may say
//!   `gamma` and `beta`.
//! - Every parameter must be there in its shape, in F32, BF16 or F16; every tensor must be known.
//!   Buffers that older files carry (`attn.bias`, `attn.masked_bias`, `rotary_emb.inv_freq`) are
//!   ignored and listed.
//! - A tied head needs no `lm_head.weight`. If the file has one that equals the embedding, fine; if
//!   it differs, the embedding is used, as in transformers, and a note says so. If the file has only
//!   the head, it is the embedding. An untied head must be there.

mod config;
mod export;
mod fields;
mod names;

pub use config::HfConfig;
pub use export::{
    Export, ExportTensor, METADATA, SpecialIds, encode, export, from_f32, write_config,
};

use crate::block::{Model, ParamSpec};
use crate::families::ModelSpec;
use half::{bf16, f16};
use planaria_base::DType;
use planaria_base::tensor_source::{StoredTensor, TensorSource};
use std::fmt;
use thiserror::Error;

/// Largest layer count, context and other size that a config may name: what a hostile file can make
/// us hold before a tensor is looked at.
const LAYERS_MAX: usize = 1 << 12;
const LENGTH_MAX: usize = 1 << 22;
const SIZE_MAX: usize = 1 << 24;

fn limit(key: &str) -> usize {
    match key {
        "n_layer" | "num_hidden_layers" => LAYERS_MAX,
        "n_positions" | "n_ctx" | "max_position_embeddings" => LENGTH_MAX,
        _ => SIZE_MAX,
    }
}

/// Names listed in one error at most.
const LISTED: usize = 8;

/// Something that a person should know about a model that was read.
#[derive(Clone, PartialEq, Debug)]
pub enum Note {
    /// The config asks for dropout, which is not built.
    Dropout {
        /// The largest probability.
        probability: f64,
    },
    /// The file has a head of its own although the config ties it.
    HeadDiffers {
        /// Elements that differ.
        elements: usize,
    },
    /// Tensors that carry no parameters.
    Ignored {
        /// Their names.
        names: Vec<String>,
    },
    /// Config and file disagree about the dtype.
    DtypeDiffers {
        /// What config.json says.
        config: DType,
        /// How most elements are stored.
        file: DType,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Note::Dropout { probability } => {
                write!(f, "config.json asks for dropout {probability}; dropout is not built")
            }
            Note::HeadDiffers { elements } => write!(
                f,
                "tie_word_embeddings is true, but lm_head.weight differs from the embedding in \
                 {elements} elements; the embedding is used for both"
            ),
            Note::Ignored { names } => {
                write!(f, "ignored {} buffers: {}", names.len(), names.join(", "))
            }
            Note::DtypeDiffers { config, file } => {
                write!(f, "config.json says {config}, the tensors are {file}")
            }
        }
    }
}

/// Why a Hugging Face model cannot be read. Nothing was changed.
#[derive(Debug, Error)]
pub enum ImportError {
    /// Not JSON.
    #[error("config.json is not JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// Not an object.
    #[error("config.json is not a JSON object")]
    NotAnObject,
    /// Another model family.
    #[error("model_type {found:?} is not supported; supported are {}", config::FAMILIES.join(", "))]
    UnknownFamily {
        /// What the config names.
        found: String,
    },
    /// A key is missing.
    #[error("config.json has no {key}")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A key has a value of the wrong kind.
    #[error("config.json: {key} is {found}; expected {expected}")]
    WrongValue {
        /// The key.
        key: String,
        /// What was expected.
        expected: &'static str,
        /// What was found.
        found: String,
    },
    /// A key asks for something that is not built.
    #[error("config.json: {key} = {value} is not supported")]
    Unsupported {
        /// The key.
        key: String,
        /// Its value.
        value: String,
    },
    /// A kind of rotary scaling that is not built.
    #[error("rope_type {found:?} is not supported; supported are default, linear and llama3")]
    UnknownRope {
        /// What the config names.
        found: String,
    },
    /// A rotary key that is not known, and so cannot be obeyed.
    #[error("config.json: the rotary parameters have an unknown key {key}")]
    UnknownRopeKey {
        /// The key.
        key: String,
    },
    /// Two forms that say different things.
    #[error("config.json: rope_scaling and rope_parameters disagree; keep one of them")]
    RopeDisagrees,
    /// The sizes make no model.
    #[error("config.json: {0}")]
    Spec(String),
    /// A size beyond the limits.
    #[error("config.json: {key} is {size}; at most {limit} is supported")]
    TooLarge {
        /// The key.
        key: String,
        /// Its value.
        size: usize,
        /// The limit.
        limit: usize,
    },
    /// A parameter is not in the file.
    #[error("{missing} of {total} tensors are missing: {}", names.join(", "))]
    Missing {
        /// The first few.
        names: Vec<String>,
        /// How many.
        missing: usize,
        /// Parameters of the model.
        total: usize,
    },
    /// The file has tensors that the model has no place for.
    #[error("the file has {extra} tensors that the model does not know: {}", names.join(", "))]
    Extra {
        /// The first few.
        names: Vec<String>,
        /// How many.
        extra: usize,
    },
    /// A tensor has another shape.
    #[error("tensor {name} has shape {found:?}; config.json makes it {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// What the model expects.
        expected: Vec<usize>,
    },
    /// A tensor has a dtype that weights do not come in.
    #[error("tensor {name} is {found}; weights are read from f32, bf16 or f16")]
    Dtype {
        /// The tensor.
        name: String,
        /// Its dtype.
        found: DType,
    },
    /// A tensor's bytes do not fit its shape.
    #[error("tensor {name} has {found} bytes; its shape and dtype need {expected}")]
    Bytes {
        /// The tensor.
        name: String,
        /// Bytes found.
        found: usize,
        /// Bytes needed.
        expected: usize,
    },
    /// Two names for one parameter.
    #[error("the file has both {first} and {second}, which are the same parameter; remove one")]
    Twice {
        /// One name.
        first: String,
        /// The other.
        second: String,
    },
}

/// A Hugging Face model whose tensors were found and checked.
pub struct Import {
    /// What the config says.
    pub spec: ModelSpec,
    /// The model.
    pub model: Model,
    /// How the tensors are stored (most elements); what "same as loaded" means for an export.
    pub dtype: DType,
    /// The largest dropout probability that the config names.
    pub dropout: f64,
    /// What a person should know.
    pub notes: Vec<Note>,
    names: Vec<String>,
}

/// Checks a config and the tensors beside it.
///
/// # Errors
/// If the model cannot be built from them; see [`ImportError`].
pub fn import(config: &[u8], source: &dyn TensorSource) -> Result<Import, ImportError> {
    let HfConfig { spec, dtype: said, dropout, mut notes } = HfConfig::parse(config)?;
    let model = spec.build();
    let (names, dtype, found) = locate(&spec, &model, source)?;
    notes.extend(found);
    if let Some(config) = said.filter(|&said| said != dtype) {
        notes.push(Note::DtypeDiffers { config, file: dtype });
    }
    Ok(Import { spec, model, dtype, dropout, notes, names })
}

/// The spec of a config.json, in its old or its new form.
///
/// # Errors
/// As [`HfConfig::parse`].
pub fn read_config(text: &[u8]) -> Result<ModelSpec, ImportError> {
    Ok(HfConfig::parse(text)?.spec)
}

/// A model's weights, read whole.
pub struct Weights {
    /// By parameter id.
    pub values: Vec<Vec<f32>>,
    /// How they were stored (most elements).
    pub dtype: DType,
    /// What a person should know.
    pub notes: Vec<String>,
}

/// Reads all weights of a model out of named tensors: a Hugging Face folder's, or a checkpoint's, whose
/// optimizer states (`PARAMETER.STATE`) are passed over.
///
/// # Errors
/// If a tensor is missing, is unknown, or has the wrong shape or dtype.
pub fn load(
    spec: &ModelSpec,
    model: &Model,
    source: &dyn TensorSource,
) -> Result<Weights, ImportError> {
    let (names, dtype, notes) = locate(spec, model, source)?;
    let notes = notes.iter().map(Note::to_string).collect();
    Ok(Weights { values: values(model, &names, source), dtype, notes })
}

/// Finds and checks every parameter's tensor: their names, the common dtype, and what to say.
fn locate(
    spec: &ModelSpec,
    model: &Model,
    source: &dyn TensorSource,
) -> Result<(Vec<String>, DType, Vec<Note>), ImportError> {
    let found = names::find(model, spec.tied, source)?;
    for (param, name) in model.params.iter().zip(&found.names) {
        check(name, &param.shape, source)?;
    }
    let mut notes = Vec::new();
    if let Some(head) = &found.tied_head {
        check(head, &[spec.vocab, spec.width], source)?;
        let elements = differing(source, &found.names[0], head);
        if elements > 0 {
            notes.push(Note::HeadDiffers { elements });
        }
    }
    if !found.ignored.is_empty() {
        notes.push(Note::Ignored { names: found.ignored });
    }
    let dtype = most_common(model, &found.names, source);
    Ok((found.names, dtype, notes))
}

fn values(model: &Model, names: &[String], source: &dyn TensorSource) -> Vec<Vec<f32>> {
    let value = |(p, name): (&ParamSpec, &String)| {
        let mut out = vec![0.0; p.elements()];
        decode(stored(source, name), 0, &mut out);
        out
    };
    model.params.iter().zip(names).map(value).collect()
}

impl Import {
    /// The tensor's name in the file.
    #[must_use]
    pub fn name(&self, param: &ParamSpec) -> &str {
        &self.names[param.id.index()]
    }

    /// All values, by parameter id.
    ///
    /// # Panics
    /// If the source is not the one that was checked.
    #[must_use]
    pub fn values(&self, source: &dyn TensorSource) -> Vec<Vec<f32>> {
        values(&self.model, &self.names, source)
    }

    /// Reads elements `first..first + out.len()` of a parameter.
    ///
    /// # Panics
    /// If the source is not the one that was checked, or the range is beyond the parameter.
    pub fn read(
        &self,
        source: &dyn TensorSource,
        param: &ParamSpec,
        first: usize,
        out: &mut [f32],
    ) {
        decode(stored(source, self.name(param)), first, out);
    }
}

fn stored<'a>(source: &'a dyn TensorSource, name: &str) -> StoredTensor<'a> {
    source.tensor(name).unwrap_or_else(|| panic!("tensor {name} was there when it was checked"))
}

fn decode(tensor: StoredTensor<'_>, first: usize, out: &mut [f32]) {
    let size = tensor.dtype.bytes();
    let bytes = &tensor.bytes[first * size..(first + out.len()) * size];
    match tensor.dtype {
        DType::F32 => {
            let words = bytes.as_chunks::<4>().0.iter().zip(out);
            words.for_each(|(b, out)| *out = f32::from_le_bytes(*b));
        }
        DType::Bf16 => {
            let words = bytes.as_chunks::<2>().0.iter().zip(out);
            words.for_each(|(b, out)| *out = bf16::from_le_bytes(*b).to_f32());
        }
        DType::F16 => {
            let words = bytes.as_chunks::<2>().0.iter().zip(out);
            words.for_each(|(b, out)| *out = f16::from_le_bytes(*b).to_f32());
        }
        other => panic!("{other} was refused when the tensor was checked"),
    }
}

fn check(name: &str, shape: &[usize], source: &dyn TensorSource) -> Result<(), ImportError> {
    let tensor = stored(source, name);
    let name = name.to_owned();
    if tensor.shape != shape {
        let (found, expected) = (tensor.shape.to_vec(), shape.to_vec());
        return Err(ImportError::Shape { name, found, expected });
    }
    if !matches!(tensor.dtype, DType::F32 | DType::Bf16 | DType::F16) {
        return Err(ImportError::Dtype { name, found: tensor.dtype });
    }
    let expected = shape.iter().product::<usize>() * tensor.dtype.bytes();
    if tensor.bytes.len() != expected {
        return Err(ImportError::Bytes { name, found: tensor.bytes.len(), expected });
    }
    Ok(())
}

/// Elements in which two tensors of one shape differ, compared in blocks.
fn differing(source: &dyn TensorSource, a: &str, b: &str) -> usize {
    const BLOCK: usize = 1 << 16;
    let (a, b) = (stored(source, a), stored(source, b));
    let elements = a.shape.iter().product::<usize>();
    let (mut x, mut y) = (vec![0.0; BLOCK], vec![0.0; BLOCK]);
    let mut count = 0;
    for first in (0..elements).step_by(BLOCK) {
        let len = BLOCK.min(elements - first);
        decode(a, first, &mut x[..len]);
        decode(b, first, &mut y[..len]);
        let pairs = x[..len].iter().zip(&y[..len]);
        count += pairs.filter(|(x, y)| x.to_bits() != y.to_bits()).count();
    }
    count
}

fn most_common(model: &Model, names: &[String], source: &dyn TensorSource) -> DType {
    let elements = |dtype: DType| -> usize {
        let of = model.params.iter().zip(names);
        of.filter(|(_, n)| stored(source, n).dtype == dtype).map(|(p, _)| p.elements()).sum()
    };
    let counts = [DType::F32, DType::Bf16, DType::F16].map(|d| (elements(d), d));
    counts.into_iter().max_by_key(|(count, _)| *count).map_or(DType::F32, |(_, dtype)| dtype)
}
