//! `planaria chat`: talk with a model, by its own chat template.

use super::generate::{ModelArgument, show};
use crate::machine;
use crate::output::{self, Done, Usage};
use clap::Args;
use planaria_models::generate::chat::{ChatTemplate, Message};
use planaria_models::generate::{Decoder, Sampling};
use planaria_models::tokenizers::Tokenizer;
use serde_json::json;
use std::io::{BufRead, IsTerminal, Write};

/// Talk with a model. Without --prompt, each line of the input is a message, and the conversation is
/// kept; an empty line or the end of the input ends it.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  planaria chat model.gguf\n  planaria chat runs/smollm2 --prompt 'Why is the sky blue?' --temperature 0\n  echo 'Hello' | planaria chat --model path/to/hf-folder"
)]
pub(crate) struct Chat {
    #[command(flatten)]
    model: ModelArgument,
    /// Answer this message and end
    #[arg(long)]
    prompt: Option<String>,
    /// What the model is told before the conversation
    #[arg(long)]
    system: Option<String>,
    /// Tokens of an answer at most
    #[arg(long, default_value_t = 512)]
    tokens: usize,
    /// 0 is greedy
    #[arg(long, default_value_t = 0.7)]
    temperature: f64,
    /// Keep the likeliest tokens that together have this probability
    #[arg(long, default_value_t = 0.9)]
    top_p: f64,
    /// Seeds the draws
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Compute threads
    #[arg(long, default_value_t = machine::cores())]
    threads: usize,
    /// With --prompt: say nothing but one JSON object: prompt_ids, ids, text
    #[arg(long, requires = "prompt")]
    json: bool,
}

/// A conversation under way.
struct Talk {
    decoder: Decoder,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    end: Option<u32>,
    messages: Vec<Message>,
    sampling: Sampling,
    tokens: usize,
    quiet: bool,
}

/// One answer.
struct Answer {
    prompt: Vec<u32>,
    ids: Vec<u32>,
    text: String,
}

impl Chat {
    /// Runs the verb.
    pub(crate) fn run(self) -> anyhow::Result<Done> {
        let mut talk = self.talk()?;
        if let Some(prompt) = &self.prompt {
            let answer = talk.answer(prompt)?;
            if self.json {
                let Answer { prompt, ids, text } = answer;
                output::json(&json!({ "prompt_ids": prompt, "ids": ids, "text": text }));
            }
            return Ok(Done::All);
        }
        let prompts = std::io::stdin().is_terminal();
        let mut lines = std::io::stdin().lock().lines();
        loop {
            if prompts {
                let _ = write!(std::io::stderr(), "> ");
            }
            match lines.next().transpose()? {
                Some(line) if !line.trim().is_empty() => drop(talk.answer(&line)?),
                _ => return Ok(Done::All),
            }
        }
    }

    fn talk(&self) -> anyhow::Result<Talk> {
        let mut folder = self.model.open()?;
        let end = folder.special_ids().eos;
        let template = folder.chat.take();
        let Some(tokenizer) = folder.tokenizer.take() else {
            return Err(Usage("no tokenizer lies with the model".into()).into());
        };
        let chatml = || {
            let known = tokenizer.encode_control(b"<|im_start|>").is_ok_and(|ids| ids.len() == 1);
            known.then(ChatTemplate::chatml)
        };
        let Some(template) = template.or_else(chatml) else {
            let reason =
                "the model has no chat template, and no ChatML tokens: use `planaria generate`";
            return Err(Usage(reason.into()).into());
        };
        let last = tokenizer.encode_control(template.eos_token.as_bytes()).ok();
        let end = end.or(last.filter(|ids| ids.len() == 1).map(|ids| ids[0]));
        let system = self.system.iter().map(|text| Message::new("system", text));
        let (temperature, top_p, seed) = (self.temperature, self.top_p, self.seed);
        Ok(Talk {
            messages: system.collect(),
            decoder: folder.decoder(self.threads).with_vocab_limit(tokenizer.vocab()),
            tokenizer,
            template,
            end,
            sampling: Sampling { temperature, top_p, seed, ..Sampling::default() },
            tokens: self.tokens,
            quiet: self.json,
        })
    }
}

impl Talk {
    /// Adds a message and its answer to the conversation, and prints the answer as it comes.
    fn answer(&mut self, message: &str) -> anyhow::Result<Answer> {
        self.messages.push(Message::new("user", message));
        let text = self.template.render(&self.messages)?;
        let prompt = self.tokenizer.encode_control(text.as_bytes())?;
        let (mut ids, mut shown) = (Vec::new(), 0);
        let (tokenizer, end, quiet) = (&self.tokenizer, self.end, self.quiet);
        let out = self.decoder.generate(&prompt, self.tokens, self.sampling, |id| {
            if Some(id) == end {
                return false;
            }
            ids.push(id);
            if !quiet {
                show(Some(tokenizer.decode(&ids)), &mut shown, id);
            }
            true
        })?;
        if out.cut > 0 && !quiet {
            output::note(&format!(
                "note: the first {} tokens of the conversation were cut",
                out.cut
            ));
        }
        let text = String::from_utf8_lossy(&self.tokenizer.decode(&ids)).into_owned();
        if !self.quiet {
            output::line("");
        }
        self.messages.push(Message::new("assistant", &text));
        Ok(Answer { prompt, ids, text })
    }
}
