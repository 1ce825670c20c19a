//! Generation with a real pretrained model, and the rules for the edges.

use crate::support::{Tensors, golden};
use planaria_models::generate::{Decoder, GenerateError, Generated, Sampling};
use planaria_models::hf;
use planaria_models::kernels::Isa;
use serde_json::Value;

/// karpathy's stories260K.
fn stories(threads: usize, isa: Isa) -> Decoder {
    let folder = golden("stories260k");
    let config = std::fs::read(folder.join("config.json")).unwrap();
    let source = Tensors::open(&folder.join("model.safetensors"));
    let import = hf::import(&config, &source).unwrap();
    let weights = import.values(&source);
    Decoder::new(import.model, weights, threads, isa)
}

fn decoder() -> Decoder {
    stories(1, Isa::detect())
}

fn meta() -> Value {
    serde_json::from_slice(&std::fs::read(golden("stories260k/golden.json")).unwrap()).unwrap()
}

/// What its greedy text is.
fn greedy_ids() -> Vec<u32> {
    let ids = meta()["greedy_ids"].as_array().unwrap().clone();
    ids.iter().map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
}

fn greedy(decoder: &mut Decoder, prompt: &[u32], count: usize) -> Generated {
    decoder.generate(prompt, count, Sampling::greedy(), |_| true).unwrap()
}

/// All 255 greedy tokens, from the first token alone and from any longer prompt; and the likelihood.
#[test]
fn greedy_text_is_the_published_one() {
    let mut decoder = decoder();
    let mut text = vec![1];
    text.extend(greedy_ids());
    assert_eq!(text.len(), 256);
    let got = greedy(&mut decoder, &text[..1], 255);
    assert_eq!(got.ids, text[1..]);
    let want = meta()["mean_nll_nats_teacher_forced"].as_f64().unwrap();
    assert!((got.mean_nll().unwrap() - want).abs() < 1e-4, "{:?} {want}", got.mean_nll());
    let nll = decoder.mean_nll(&text).unwrap();
    assert!((nll - want).abs() < 1e-4, "{nll} {want}");
    for prompt in [2, 127, 128, 129, 200] {
        let got = greedy(&mut decoder, &text[..prompt], 256 - prompt);
        assert_eq!(got.ids, text[prompt..], "prompt of {prompt}");
    }
}

/// A prompt in one piece, token by token, or in odd pieces gives the same bits, for any thread count
/// and ISA.
#[test]
fn how_a_prompt_is_fed_does_not_show() {
    let text = &greedy_ids()[..40];
    let mut want: Option<Vec<u32>> = None;
    let setups = Isa::available().map(|isa| (1, isa, &[1, 7, 40][..]));
    for (threads, isa, pieces) in setups.chain([(3, Isa::detect(), &[9][..])]) {
        let mut decoder = stories(threads, isa);
        for &piece in pieces {
            decoder.reset();
            let mut bits = Vec::new();
            for part in text.chunks(piece) {
                bits = decoder.extend(part).iter().map(|s| s.to_bits()).collect();
            }
            let want = want.get_or_insert_with(|| bits.clone());
            assert!(*want == bits, "{isa} {threads} threads, pieces of {piece}");
        }
    }
}

/// Prompts around the context: 511, 512, 513 and 5,000 tokens, and 500 with 100 new ones.
#[test]
fn long_prompts_are_cut_from_the_left() {
    let mut decoder = decoder();
    let long: Vec<u32> = greedy_ids().into_iter().cycle().take(5_000).collect();
    let want = greedy(&mut decoder, &long[5_000 - 512..], 3);
    let got = greedy(&mut decoder, &long, 3);
    assert_eq!((got.cut, &got.ids), (5_000 - 512, &want.ids));
    for (prompt, cut) in [(511, 0), (512, 0), (513, 1)] {
        let got = greedy(&mut decoder, &long[..prompt], 3);
        assert_eq!((got.ids.len(), got.cut, got.slides), (3, cut, 1), "{prompt}");
    }
    let got = greedy(&mut decoder, &long[..500], 100);
    assert_eq!((got.ids.len(), got.cut, got.slides), (100, 0, 1));
}

/// No tokens, no prompt, unknown ids, ids of padding, a caller who ends the text.
#[test]
fn edges_have_a_meaning() {
    let mut decoder = decoder().with_vocab_limit(300);
    let ids = greedy_ids();
    assert_eq!(greedy(&mut decoder, &[1], 0), Generated::default());
    let mut fails =
        |prompt: &[u32]| decoder.generate(prompt, 5, Sampling::greedy(), |_| true).unwrap_err();
    assert_eq!(fails(&[]), GenerateError::EmptyPrompt);
    assert_eq!(fails(&[1, 512]), GenerateError::UnknownToken { id: 512, at: 1, vocab: 512 });
    let hot = Sampling { temperature: 5.0, ..Sampling::default() };
    let got = decoder.generate(&[1], 400, hot, |_| true).unwrap();
    assert!(got.ids.iter().all(|&id| id < 300));
    let mut decoder = stories(1, Isa::detect());
    let got = decoder.generate(&[1], 50, Sampling::greedy(), |id| id != ids[4]).unwrap();
    assert_eq!(got.ids, ids[..5]);
}

/// The seed decides the text; another seed gives another one.
#[test]
fn the_seed_decides() {
    let mut decoder = decoder();
    let mut with = |seed| {
        let sampling = Sampling { seed, ..Sampling::default() };
        decoder.generate(&[1], 40, sampling, |_| true).unwrap()
    };
    let first = with(7);
    assert_eq!(first, with(7));
    assert_ne!(first.ids, with(8).ids);
}

/// A text longer than the context is scored in windows, every token but the first once.
#[test]
fn long_texts_are_scored_in_windows() {
    let mut decoder = decoder();
    let long: Vec<u32> = [1].into_iter().chain(greedy_ids()).cycle().take(700).collect();
    let mut nll = |tokens: &[u32]| decoder.mean_nll(tokens);
    let (all, first, second) = (nll(&long), nll(&long[..513]), nll(&long[512..]));
    let want = (first.unwrap() * 512.0 + second.unwrap() * 187.0) / 699.0;
    assert!((all.unwrap() - want).abs() < 1e-9);
    assert_eq!(nll(&[1]), Err(GenerateError::NothingToScore));
    assert_eq!(nll(&[]), Err(GenerateError::EmptyPrompt));
}
