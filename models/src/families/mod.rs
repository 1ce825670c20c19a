//! Model families as block lists.

mod embed;
mod gpt2;
mod head;
mod llama;
pub mod spec;

pub use spec::{Family, ModelSpec};

use crate::block::{Batch, Init, Model, ParamSpec};
use planaria_base::ParamId;

/// Collects a model's parameters while its blocks are built.
#[derive(Default)]
struct Builder {
    params: Vec<ParamSpec>,
}

impl Builder {
    fn add(&mut self, name: String, shape: &[usize], init: Init) -> ParamId {
        let id = ParamId(self.params.len() as u32);
        self.params.push(ParamSpec { id, name, shape: shape.to_vec(), init, sites: 1 });
        id
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
