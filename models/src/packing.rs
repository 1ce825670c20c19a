//! What matrix products will pack in a training step, before anything is allocated.
//!
//! Packing buffers grow to the largest product and stay ([`crate::kernels::gemm::Packing`]). A block's
//! products follow from its matrices' shapes: forward, the input's gradient, the weight's.

use crate::block::{LeafShape, Model, ParamSpec, Precision};
use crate::families::ModelSpec;
use crate::kernels::Isa;
use crate::kernels::attention::{AttentionShape, packing_words};
use crate::kernels::gemm::{Dims, GemmElement, PackedWords, packed_by_gemm, packed_by_panels};
use crate::kernels::head_loss::HeadShape;
use crate::optimizers::OptimizerSpec;
use half::{bf16, f16};

/// Everything that the sizes depend on.
#[derive(Clone, Copy)]
pub struct PackingPlan<'a> {
    /// The model's shape.
    pub spec: &'a ModelSpec,
    /// The model.
    pub model: &'a Model,
    /// What updates it.
    pub optimizer: &'a OptimizerSpec,
    /// One leaf.
    pub leaf: LeafShape,
    /// Of products.
    pub precision: Precision,
    /// Instruction set and compute threads.
    pub machine: (Isa, usize),
}

impl PackingPlan<'_> {
    /// Bytes of the packing buffers once every kind of op and update has run.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let step = match self.precision {
            Precision::F32 => self.step::<f32>(),
            Precision::Bf16 => self.step::<bf16>(),
            Precision::F16 => self.step::<f16>(),
        };
        step.max(self.update()).bytes(self.machine.1)
    }

    fn step<A: GemmElement>(&self) -> PackedWords {
        // The input block looks rows up and multiplies nothing.
        let layers = self.model.blocks.iter().skip(1).flat_map(|b| b.params());
        let matrices = layers.map(|id| &self.model.params[id.index()]).filter(|p| p.is_matrix());
        let most = matrices.fold(self.head::<A>(), |most, p| most.max(self.linear::<A>(p)));
        let s = self.spec;
        let own = packing_words::<A>(
            self.machine.0,
            AttentionShape {
                sequences: self.leaf.sequences,
                length: self.leaf.length,
                heads: s.heads,
                kv_heads: s.kv_heads,
                head_dim: s.head_dim,
                scale: 1.0,
                window: s.window,
            },
        );
        most.max(PackedWords { shared: 0, own })
    }

    fn linear<A: GemmElement>(&self, param: &ParamSpec) -> PackedWords {
        let (n, rows) = (self.leaf.tokens(), param.shape[0]);
        let cols = param.elements() / rows.max(1);
        packed_by_gemm::<A>(self.machine, Dims { m: n, n: rows, k: cols })
            .max(packed_by_gemm::<A>(self.machine, Dims { m: n, n: cols, k: rows }))
            .max(packed_by_panels::<A>(self.machine, Dims { m: rows, n: cols, k: n }))
    }

    fn head<A: GemmElement>(&self) -> PackedWords {
        let (width, vocab) = (self.model.width, self.model.vocab);
        let shape = HeadShape { tokens: self.leaf.tokens(), width, vocab };
        let all = shape.products::<A>().into_iter();
        all.fold(PackedWords::default(), |m, dims| m.max(packed_by_gemm::<A>(self.machine, dims)))
    }

    fn update(&self) -> PackedWords {
        let all = self.model.params.iter().flat_map(|p| self.optimizer.products(p));
        all.fold(PackedWords::default(), |m, dims| m.max(packed_by_gemm::<f32>(self.machine, dims)))
    }
}
