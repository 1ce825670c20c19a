//! Model families as block lists.

mod embed;
mod gpt2;
mod head;
mod llama;
pub mod spec;

pub use spec::{Family, ModelSpec};

use crate::block::{Batch, Block, Init, Model, ParamSpec};
use crate::ops::{Lora, NormLayer};
use head::Head;
use planaria_base::{ParamId, Site};

/// Collects a model's parameters while its blocks are built.
#[derive(Default)]
struct Builder {
    params: Vec<ParamSpec>,
}

impl Builder {
    fn add(&mut self, name: String, shape: &[usize], init: Init) -> ParamId {
        let id = ParamId(self.params.len() as u32);
        self.params.push(ParamSpec {
            id,
            name,
            shape: shape.to_vec(),
            init,
            sites: 1,
            frozen: false,
        });
        id
    }

    /// The adapter of a linear layer, if the spec asks for one.
    fn lora(
        &mut self,
        spec: &ModelSpec,
        name: &str,
        (inputs, outputs): (usize, usize),
    ) -> Option<Lora> {
        let lora = spec.lora.as_ref().filter(|l| l.adapts(name))?;
        // PEFT draws A uniformly below 1 / sqrt(inputs); this is a normal of the same variance.
        let init = Init::Normal { std: 1.0 / (3.0 * inputs as f32).sqrt() };
        let a = self.add(format!("{name}.lora_A.weight"), &[lora.rank, inputs], init);
        let b = self.add(format!("{name}.lora_B.weight"), &[outputs, lora.rank], Init::Zeros);
        Some(Lora { a, b, rank: lora.rank, scale: lora.scale() })
    }

    /// The model, its head over the embedding's matrix or over one of its own.
    fn finish(
        mut self,
        spec: &ModelSpec,
        blocks: Vec<Box<dyn Block>>,
        embedding: ParamId,
        norm: NormLayer,
    ) -> Model {
        let (weights, site) = if spec.tied {
            self.params[embedding.index()].sites = 2;
            (embedding, Site(1))
        } else {
            let init = Init::Normal { std: spec.init_std };
            (self.add("lm_head.weight".to_owned(), &[spec.vocab, spec.width], init), Site(0))
        };
        if spec.lora.is_some() {
            self.params.iter_mut().for_each(|p| p.frozen = !crate::lora::is_adapter(&p.name));
        }
        let head = Box::new(Head::new(norm, weights, site, spec.vocab));
        let (width, vocab, max_length) = (spec.width, spec.vocab, spec.max_length);
        Model { params: self.params, blocks, head, width, vocab, max_length }
    }
}

impl ModelSpec {
    /// The model as blocks.
    #[must_use]
    pub fn build(&self) -> Model {
        match self.family {
            Family::Gpt2 => gpt2::build(self),
            Family::Llama => llama::build(self),
        }
    }
}

/// What the blocks here do not do yet, they refuse rather than ignore.
fn check_batch(batch: &Batch<'_>) {
    assert!(batch.positions.is_none(), "positions other than 0..length are not built");
    assert!(batch.documents.is_none(), "attention that stays inside documents is not built");
}
