//! Generation: a prompt through the model once, then token by token against cached keys and values.
//!
//! Rules for the edges, so that nothing has to be guessed:
//!
//! - An empty prompt is refused: begin with the tokenizer's begin-of-text id.
//! - A prompt longer than the context is cut from the left to the context's length;
//!   [`Generated::cut`] says by how many tokens.
//! - When the context is full, the older half is dropped and the newer half is run again from
//!   position 0; [`Generated::slides`] counts how often.
//! - `temperature` 0 is greedy: the highest score, the lowest id among equals.
//! - `top_k` 0 and any `top_k` of at least the vocabulary keep every token.
//! - `top_p` 1 keeps every token; `top_p` 0 keeps the most likely one. Otherwise the most likely tokens
//!   are kept until their probability, at this temperature, reaches `top_p`.
//! - A `count` of 0 gives no tokens, and runs nothing.
//! - With [`Decoder::with_vocab_limit`], ids beyond the tokenizer's are never produced: rows that only
//!   pad the embedding.
//! - What ends a text (an id, a stop word over several ids) is the caller's: answer `false`.
//!
//! Decoding is in fp32. A position's result does not depend on how many came in one call, so a
//! prompt in one piece and token by token give the same bits.

pub mod chat;
mod sample;

pub use sample::{Sampling, SamplingError, sample};

use crate::block::{Decode, LeafShape, Model, ParamValue, Params, Precision};
use crate::buffer::Buffer;
use crate::compute::Compute;
use crate::kernels::Isa;
use planaria_base::rng::CounterRng;
use thiserror::Error;

/// Tokens that go through the model at once.
pub const PIECE: usize = 128;

/// Rows of scores that are held at once when a text is scored.
const SCORED: usize = 16;

/// Names the stream of sampling among a run's streams.
const STREAM: u64 = 0x7361_6d70;

/// What was generated.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Generated {
    /// The new ids.
    pub ids: Vec<u32>,
    /// Sum of the new ids' negative log-likelihoods in nats, at temperature 1.
    pub nll_sum: f64,
    /// Tokens cut from the left of the prompt.
    pub cut: usize,
    /// How often the context was full.
    pub slides: usize,
}

impl Generated {
    /// Mean negative log-likelihood of the new ids in nats; `None` if there are none.
    #[must_use]
    pub fn mean_nll(&self) -> Option<f64> {
        (!self.ids.is_empty()).then(|| self.nll_sum / self.ids.len() as f64)
    }
}

/// Why nothing was generated. The generator can be used again.
#[derive(Debug, Error, PartialEq)]
pub enum GenerateError {
    /// No token to go on from.
    #[error("the prompt is empty; begin with the tokenizer's begin-of-text id, or any token")]
    EmptyPrompt,
    /// One token has no likelihood.
    #[error("a text of one token has nothing to score; give at least two")]
    NothingToScore,
    /// Not a row of the embedding.
    #[error("token id {id} at {at} of the text is not below the vocabulary's size {vocab}")]
    UnknownToken {
        /// The id.
        id: u32,
        /// Its index in the text.
        at: usize,
        /// Rows of the vocabulary.
        vocab: usize,
    },
    /// A setting that has no meaning.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
}

/// A model with its weights and caches, decoding one sequence at a time.
pub struct Decoder {
    model: Model,
    /// By parameter id.
    weights: Vec<Vec<f32>>,
    compute: Compute,
    /// Each block's keys and values, `[max_length, cache_width]`.
    caches: Vec<Buffer<f32>>,
    /// The stream into and out of a block, `[PIECE, width]` each.
    streams: [Buffer<f32>; 2],
    scores: Buffer<f32>,
    /// Tokens in the caches.
    position: usize,
    /// Ids from here on are not produced.
    limit: usize,
}

impl Decoder {
    /// A decoder with all its buffers.
    #[must_use]
    pub fn new(model: Model, weights: Vec<Vec<f32>>, threads: usize, isa: Isa) -> Decoder {
        let rows = PIECE.min(model.max_length);
        let caches = model.blocks.iter().map(|b| model.max_length * b.cache_width());
        let stream = || Buffer::zeroed(rows * model.width);
        Decoder {
            compute: Compute::new(threads, isa, Precision::F32, scratch_bytes(&model, rows)),
            caches: caches.map(Buffer::zeroed).collect(),
            streams: [stream(), stream()],
            scores: Buffer::zeroed(model.vocab),
            position: 0,
            limit: model.vocab,
            weights,
            model,
        }
    }

    /// Never produces ids from `tokens` on: the tokenizer's size, where the embedding has more rows.
    #[must_use]
    pub fn with_vocab_limit(mut self, tokens: usize) -> Decoder {
        self.limit = tokens.clamp(1, self.model.vocab);
        self
    }

    /// Forgets the sequence.
    pub fn reset(&mut self) {
        self.position = 0;
    }

    /// Adds tokens to the sequence; returns the vocabulary's scores after the last of them.
    ///
    /// # Panics
    /// If there are none, one is beyond the vocabulary, or they do not fit the context.
    pub fn extend(&mut self, tokens: &[u32]) -> &mut [f32] {
        assert!(!tokens.is_empty(), "a sequence is extended by at least one token");
        let mut last = 0;
        for piece in tokens.chunks(PIECE) {
            self.run_blocks(piece);
            last = piece.len() - 1;
        }
        self.score(last, 1)
    }

    /// The last block's output, into the first stream.
    fn run_blocks(&mut self, tokens: &[u32]) {
        assert!(self.position + tokens.len() <= self.model.max_length, "the context is full");
        let len = tokens.len() * self.model.width;
        let values: Vec<ParamValue<'_>> = self.weights.iter().map(|w| ParamValue::F32(w)).collect();
        for (block, cache) in self.model.blocks.iter().zip(&mut self.caches) {
            let [x, y] = &mut self.streams;
            let (params, position) = (Params::new(&values), self.position);
            let io = Decode { params, tokens, position, x: &x[..len], y: &mut y[..len], cache };
            block.decode(&mut self.compute, io);
            self.streams.swap(0, 1);
        }
        self.position += tokens.len();
    }

    /// Scores of some rows of the first stream.
    fn score(&mut self, first: usize, rows: usize) -> &mut [f32] {
        let (width, vocab) = (self.model.width, self.model.vocab);
        if self.scores.len() < rows * vocab {
            self.scores = Buffer::zeroed(rows * vocab);
        }
        let values: Vec<ParamValue<'_>> = self.weights.iter().map(|w| ParamValue::F32(w)).collect();
        let x = &self.streams[0][first * width..(first + rows) * width];
        let scores = &mut self.scores[..rows * vocab];
        self.model.head.logits(&mut self.compute, Params::new(&values), x, scores);
        scores
    }

    /// Continues `prompt` by up to `count` tokens. `take` is told of each and ends the text by
    /// answering `false`.
    ///
    /// # Errors
    /// If the prompt is empty or has an unknown id, or the sampling has no meaning.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        count: usize,
        sampling: Sampling,
        mut take: impl FnMut(u32) -> bool,
    ) -> Result<Generated, GenerateError> {
        sampling.check()?;
        self.check(prompt)?;
        let context = self.model.max_length;
        let mut out =
            Generated { cut: prompt.len().saturating_sub(context), ..Generated::default() };
        let mut text = prompt[out.cut..].to_vec();
        let rng = CounterRng::new(sampling.seed).fork(STREAM);
        self.reset();
        let mut new = 0;
        while out.ids.len() < count {
            let limit = self.limit;
            let scores = &self.extend(&text[new..])[..limit];
            let id = sample(scores, sampling, rng.uniform(out.ids.len() as u64));
            out.nll_sum += nll(scores, id);
            out.ids.push(id);
            if !take(id) {
                break;
            }
            new = text.len();
            text.push(id);
            if text.len() > context {
                text.drain(..text.len() - context.div_ceil(2));
                (new, out.slides) = (0, out.slides + 1);
                self.reset();
            }
        }
        Ok(out)
    }

    /// Mean negative log-likelihood in nats of every token but the first. A text longer than the
    /// context is scored in windows of the context's length, each starting afresh.
    ///
    /// # Errors
    /// If there are fewer than two tokens, or one is beyond the vocabulary.
    pub fn mean_nll(&mut self, tokens: &[u32]) -> Result<f64, GenerateError> {
        self.check(tokens)?;
        let scored = tokens.len() - 1;
        if scored == 0 {
            return Err(GenerateError::NothingToScore);
        }
        let (mut sum, vocab, window) = (0.0, self.model.vocab, self.model.max_length);
        let mut at = 0;
        while at < scored {
            let in_window = at % window;
            if in_window == 0 {
                self.reset();
            }
            let len = PIECE.min(window - in_window).min(scored - at);
            self.run_blocks(&tokens[at..at + len]);
            for row in (0..len).step_by(SCORED) {
                let rows = SCORED.min(len - row);
                let next = &tokens[at + row + 1..][..rows];
                let scores = self.score(row, rows).chunks_exact(vocab);
                sum += scores.zip(next).map(|(scores, &id)| nll(scores, id)).sum::<f64>();
            }
            at += len;
        }
        Ok(sum / scored as f64)
    }

    fn check(&self, tokens: &[u32]) -> Result<(), GenerateError> {
        if tokens.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        let vocab = self.model.vocab;
        match tokens.iter().position(|&id| id as usize >= vocab) {
            Some(at) => Err(GenerateError::UnknownToken { id: tokens[at], at, vocab }),
            None => Ok(()),
        }
    }
}

/// Scratch for decoding `rows` tokens at once: what a block keeps and works with in training covers
/// what it works with in decoding.
fn scratch_bytes(model: &Model, rows: usize) -> usize {
    let shape = LeafShape { sequences: 1, length: rows };
    let blocks = model.blocks.iter().map(|b| b.plan(shape, Precision::F32));
    let blocks = blocks.map(|p| p.saved_bytes + p.scratch_bytes).max().unwrap_or(0);
    let scored = LeafShape { sequences: 1, length: SCORED };
    blocks.max(model.head.plan(scored, Precision::F32).scratch_bytes)
}

/// Negative log-likelihood of one id, in f64.
fn nll(scores: &[f32], id: u32) -> f64 {
    let best = f64::from(scores.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = scores.iter().map(|&s| libm::exp(f64::from(s) - best)).sum();
    best + libm::log(sum) - f64::from(scores[id as usize])
}
