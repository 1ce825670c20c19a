//! Text to tokens: gathers what the configuration names, once, and keeps the token file in the run's
//! folder.

#![allow(clippy::disallowed_methods, reason = "cargo's home is found through the environment")]

use crate::output::Usage;
use anyhow::Context;
use planaria_actors::data::LeafSource;
use planaria_base::Digest;
use planaria_config::plan::{DataPlan, TextSource, TokenizerPlan};
use planaria_models::tokenizers::{Builtin, Tokenizer};
use planaria_storage::corpus;
use planaria_storage::tokens::{TokenFile, TokenWriter, Windows};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of text at most, where the configuration names no limit.
const DEFAULT_LIMIT: u64 = 1 << 30;

/// A run's data.
pub(crate) struct Data {
    /// Digest of the token stream.
    pub(crate) digest: Digest,
    /// How the text was tokenized; `None` for token files without one.
    pub(crate) tokenizer: Option<Tokenizer>,
    /// Ids are below this.
    pub(crate) vocab: usize,
    /// Training samples.
    pub(crate) train: Samples,
    /// Validation samples, if any are kept.
    pub(crate) validation: Option<Arc<dyn LeafSource>>,
    /// For people: where the text came from.
    pub(crate) note: String,
    /// The token file, and where training ends in it.
    pub(crate) stretch: Stretch,
}

/// A stretch of a token file, as other nodes of a run find it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Stretch {
    /// The file.
    pub(crate) path: PathBuf,
    /// Digest of its tokens.
    pub(crate) digest: Digest,
    /// Training tokens are those before this one.
    pub(crate) end: u64,
    /// Tokens of a sequence.
    pub(crate) length: usize,
}

impl Stretch {
    /// Opens the stretch as training samples.
    ///
    /// # Errors
    /// If the file is not there, or is another one.
    pub(crate) fn open(&self) -> anyhow::Result<Samples> {
        let file = TokenFile::open(&self.path)?;
        let path = self.path.display();
        anyhow::ensure!(file.digest == self.digest, "{path} holds other tokens than the run's");
        Ok(Samples(file.windows((0, self.end), self.length)?))
    }
}

/// Windows of a token file as samples.
pub(crate) struct Samples(Windows);

impl LeafSource for Samples {
    fn samples(&self) -> u64 {
        self.0.samples()
    }

    fn load(&self, sample: u64, tokens: &mut [u32], labels: &mut [i32]) -> Result<(), String> {
        self.0.load(sample, tokens, labels);
        Ok(())
    }
}

/// Gathers the data of a run.
///
/// # Errors
/// Names the file or key that is wrong.
pub(crate) fn prepare(
    plan: &DataPlan,
    run_dir: &Path,
    model_folder: Option<&Path>,
) -> anyhow::Result<Data> {
    let (file, tokenizer, note, path) = match plan.tokens.as_slice() {
        [] => tokenize(plan, run_dir, model_folder)?,
        [path] if path.ends_with(".bin") => {
            let (file, tokenizer, note) = import(plan, path)?;
            (file, tokenizer, note, PathBuf::from(path))
        }
        [path] => (TokenFile::open(Path::new(path))?, None, path.clone(), PathBuf::from(path)),
        _ => {
            return Err(Usage("several token files are understood but not built yet".into()).into());
        }
    };
    if let Some(want) = &plan.fingerprint
        && *want != file.digest.to_string()
    {
        let found = file.digest;
        anyhow::bail!("the data's fingerprint is {found}, the configuration wants {want}");
    }
    let kept = (file.count as f64 * plan.validation_fraction) as u64;
    let cut = file.count - kept;
    let length = plan.sequence_length as usize;
    let train = Samples(file.windows((0, cut), length)?);
    let validation = if kept == 0 {
        None
    } else {
        let samples = Samples(file.windows((cut, file.count), length)?);
        Some(Arc::new(samples) as Arc<dyn LeafSource>)
    };
    let (digest, vocab) = (file.digest, file.vocab as usize);
    let path = std::path::absolute(&path).unwrap_or(path);
    let stretch = Stretch { path, digest, end: cut, length };
    Ok(Data { digest, tokenizer, vocab, train, validation, note, stretch })
}

/// A token file of nanoGPT, llm.c or Megatron; the tokenizer says which ids are right.
fn import(plan: &DataPlan, path: &str) -> anyhow::Result<(TokenFile, Option<Tokenizer>, String)> {
    let tokenizer = match &plan.tokenizer {
        TokenizerPlan::None | TokenizerPlan::FromModel | TokenizerPlan::Char => {
            let reason = format!(
                "data.tokens {path}: such a file does not say which vocabulary it has; name data.tokenizer (gpt2 for nanoGPT's and llm.c's GPT-2 files)"
            );
            return Err(Usage(reason).into());
        }
        _ => tokenizer(plan, &[], 0, None)?,
    };
    let file = TokenFile::import(Path::new(path), tokenizer.vocab() as u64)?;
    Ok((file, Some(tokenizer), path.to_owned()))
}

fn tokenize(
    plan: &DataPlan,
    run_dir: &Path,
    model_folder: Option<&Path>,
) -> anyhow::Result<(TokenFile, Option<Tokenizer>, String, PathBuf)> {
    let limit = plan.max_bytes.unwrap_or(DEFAULT_LIMIT);
    let (files, note) = gather(&plan.text)?;
    let tokenizer = tokenizer(plan, &files, limit, model_folder)?;
    let key = Digest::of(format!("{note}\n{limit}\n{}", tokenizer.fingerprint()).as_bytes());
    let path = run_dir.join("data").join(format!("{}.tokens", key.short()));
    // An earlier run's file is taken if its tokens still have its digest; a damaged one is made anew.
    if let Ok(file) = TokenFile::open(&path)
        && file.verify()
    {
        return Ok((file, Some(tokenizer), note, path));
    }
    let mut writer = TokenWriter::create(&path, tokenizer.vocab() as u64)?;
    let total = corpus::read::<anyhow::Error>(&files, limit, |path, text| {
        let ids = tokenizer.encode(text).with_context(|| path.display().to_string())?;
        Ok(writer.push(&ids)?)
    })?;
    anyhow::ensure!(total > 0, "{note}: no text (.rs, .md or .txt) is there");
    Ok((writer.finish()?, Some(tokenizer), note, path))
}

fn gather(sources: &[TextSource]) -> anyhow::Result<(Vec<PathBuf>, String)> {
    let (mut files, mut notes) = (Vec::new(), Vec::new());
    for source in sources {
        let root = match source {
            TextSource::Registry => registry(),
            TextSource::Pattern(pattern) if pattern.contains(['*', '?', '[']) => {
                let reason = format!(
                    "data.text {pattern}: patterns are understood but not built yet; name a file or a folder"
                );
                return Err(Usage(reason).into());
            }
            TextSource::Pattern(path) => PathBuf::from(path),
        };
        let found = corpus::walk(&root).with_context(|| format!("data.text {}", root.display()))?;
        notes.push(format!("{} files of {}", found.len(), root.display()));
        files.extend(found);
    }
    Ok((files, notes.join(", ")))
}

/// Cargo's registry sources, or the working folder where there are none.
fn registry() -> PathBuf {
    let home = std::env::var("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|_| std::env::var("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    home.ok().and_then(|home| corpus::registry(&home)).unwrap_or_else(|| PathBuf::from("."))
}

fn tokenizer(
    plan: &DataPlan,
    files: &[PathBuf],
    limit: u64,
    model_folder: Option<&Path>,
) -> anyhow::Result<Tokenizer> {
    match &plan.tokenizer {
        TokenizerPlan::Byte => Ok(Tokenizer::Byte),
        TokenizerPlan::Char => {
            let mut text = Vec::new();
            corpus::read::<anyhow::Error>(files, limit, |_, part| {
                text.extend_from_slice(part);
                Ok(())
            })?;
            let text = String::from_utf8(text)
                .map_err(|e| anyhow::anyhow!("the text is not UTF-8: {}", e.utf8_error()))?;
            Ok(Tokenizer::characters_of(&text))
        }
        TokenizerPlan::File(path) => Ok(Tokenizer::from_file(Path::new(path))?),
        TokenizerPlan::FromModel => match model_folder {
            Some(folder) => Ok(Tokenizer::from_file(&folder.join("tokenizer.json"))?),
            None => Err(Usage("the model names no folder with a tokenizer".into()).into()),
        },
        TokenizerPlan::Gpt2 => Ok(Tokenizer::builtin(Builtin::Gpt2)?),
        TokenizerPlan::Cl100k => Ok(Tokenizer::builtin(Builtin::Cl100k)?),
        TokenizerPlan::O200k => Ok(Tokenizer::builtin(Builtin::O200k)?),
        TokenizerPlan::None => Err(Usage("text needs a tokenizer".into()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A nanoGPT file trains with the vocabulary of the tokenizer that is named; an id beyond it, or
    /// no tokenizer, is one error.
    #[test]
    fn token_files_of_others_need_a_tokenizer() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("t.bin");
        let ids: Vec<u8> = (0..20u16).flat_map(u16::to_le_bytes).collect();
        std::fs::write(&path, &ids).expect("written");
        let mut plan = DataPlan {
            text: Vec::new(),
            tokens: vec![path.display().to_string()],
            tokenizer: TokenizerPlan::Gpt2,
            sequence_length: 4,
            validation_fraction: 0.0,
            max_bytes: None,
            fingerprint: None,
            mask_documents: false,
        };
        let data = prepare(&plan, dir.path(), None).expect("imported");
        assert_eq!((data.vocab, data.train.samples()), (50_257, 4));
        std::fs::write(&path, [ids, vec![0xff, 0xff]].concat()).expect("written");
        let error = prepare(&plan, dir.path(), None).err().expect("beyond").to_string();
        assert!(error.contains("token 20 is 65535, the vocabulary has 50257"), "{error}");
        plan.tokenizer = TokenizerPlan::None;
        let error = prepare(&plan, dir.path(), None).err().expect("no tokenizer").to_string();
        assert!(error.contains("name data.tokenizer"), "{error}");
    }
}
