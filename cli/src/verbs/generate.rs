//! `planaria generate`: continue a prompt.

use crate::folder;
use crate::machine;
use crate::output::{self, Done, Usage};
use clap::Args;
use planaria_models::generate::Sampling;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Which model, as an argument or as an option.
#[derive(Args)]
pub(super) struct ModelArgument {
    /// A checkpoint, a run's folder, a Hugging Face folder, or a GGUF file
    #[arg(value_name = "MODEL", required_unless_present = "flag")]
    path: Option<PathBuf>,
    /// The same
    #[arg(long = "model", id = "flag", value_name = "MODEL", conflicts_with = "path")]
    flag: Option<PathBuf>,
}

impl ModelArgument {
    /// Opens it, and says what there is to say about it.
    pub(super) fn open(&self) -> anyhow::Result<folder::ModelFolder> {
        let path = self.path.as_deref().or(self.flag.as_deref()).unwrap_or(Path::new("."));
        let folder = folder::open(path)?;
        folder.notes.iter().for_each(|note| output::note(&format!("note: {note}")));
        Ok(folder)
    }
}

/// Continue a prompt with a trained model.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  planaria generate runs/quickstart --prompt 'fn main' --temperature 0.7\n  planaria generate path/to/hf-folder --prompt-ids 1 --temperature 0 --tokens 255 --json\n  planaria generate --model model.gguf --prompt 'Once upon a time'"
)]
pub(crate) struct Generate {
    #[command(flatten)]
    model: ModelArgument,
    /// Text to continue
    #[arg(long, conflicts_with = "prompt_ids")]
    prompt: Option<String>,
    /// Token ids to continue, separated by commas; needs no tokenizer
    #[arg(long, value_delimiter = ',')]
    prompt_ids: Option<Vec<u32>>,
    /// Tokens to generate
    #[arg(long, default_value_t = 200)]
    tokens: usize,
    /// 0 is greedy
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Keep the likeliest tokens that together have this probability
    #[arg(long, default_value_t = 1.0)]
    top_p: f64,
    /// Keep this many of the likeliest tokens; 0 keeps all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Seeds the draws
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Compute threads
    #[arg(long, default_value_t = machine::cores())]
    threads: usize,
    /// Say nothing but one JSON object: ids, text, mean_nll
    #[arg(long)]
    json: bool,
}

impl Generate {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        if !(0.0..=1.0).contains(&self.top_p) || self.temperature.is_nan() || self.temperature < 0.0
        {
            return Err(Usage("--top-p is from 0 to 1, --temperature at least 0".into()).into());
        }
        let mut folder = self.model.open()?;
        let tokenizer = folder.tokenizer.take();
        let prompt = match (&self.prompt_ids, &self.prompt, &tokenizer) {
            (Some(ids), ..) => ids.clone(),
            (None, Some(text), Some(tokenizer)) => tokenizer.encode_control(text.as_bytes())?,
            (None, Some(_), None) => {
                return Err(
                    Usage("no tokenizer lies with the model: use --prompt-ids".into()).into()
                );
            }
            (None, None, _) => return Err(Usage("give --prompt or --prompt-ids".into()).into()),
        };
        let mut decoder = folder.decoder(self.threads);
        let (temperature, top_p, seed) = (self.temperature, self.top_p, self.seed);
        let sampling = Sampling { temperature, top_p, top_k: self.top_k, seed };
        let (mut ids, mut shown) = (Vec::new(), 0);
        let text = |ids: &[u32]| tokenizer.as_ref().map(|t| t.decode(ids));
        decoder.generate(&prompt, self.tokens, sampling, |id| {
            ids.push(id);
            if !self.json {
                show(text(&ids), &mut shown, id);
            }
            true
        })?;
        if self.json {
            let all: Vec<u32> = prompt.iter().chain(&ids).copied().collect();
            let nll = if all.len() > 1 { Some(decoder.mean_nll(&all)?) } else { None };
            let text = text(&ids).map(|t| String::from_utf8_lossy(&t).into_owned());
            output::json(&json!({ "ids": ids, "text": text, "mean_nll": nll }));
        } else {
            output::line("");
        }
        Ok(Done::All)
    }
}

/// Prints what is new and whole: a character whose bytes are not all there waits.
pub(super) fn show(text: Option<Vec<u8>>, shown: &mut usize, id: u32) {
    let mut out = std::io::stdout().lock();
    let Some(bytes) = text else {
        let _ = write!(out, "{id} ").and_then(|()| out.flush());
        return;
    };
    let fresh = bytes.get(*shown..).unwrap_or_default();
    let whole = match std::str::from_utf8(fresh) {
        Ok(_) => fresh.len(),
        // Up to three bytes at the end may be the start of a character.
        Err(e) if e.error_len().is_none() => e.valid_up_to(),
        Err(_) => fresh.len(),
    };
    let _ = write!(out, "{}", String::from_utf8_lossy(&fresh[..whole])).and_then(|()| out.flush());
    *shown += whole;
}
