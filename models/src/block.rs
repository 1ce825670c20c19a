//! The model interface: a model is a list of blocks.
//!
//! A block has parameters, a `forward` that saves what its `backward` needs into planned slots, and
//! a `backward` that emits gradients into a [`GradSink`]. There is no global tape: the block list is
//! what ZeRO-3, recomputation, offload and pipeline cuts work on. Between blocks flows the residual
//! stream, fp32 `[tokens, width]`. The last block is a [`LossBlock`]: it turns the stream into a
//! loss, and since its logits are never stored, it computes loss and gradients in one go.
//!
//! A leaf's loss is the *sum* over its labels times a constant power of two
//! ([`LossScale::factor`]); whoever holds the reduced gradient divides by the global number of
//! labels, once. So nobody needs the global label count before backward.

use crate::compute::{Compute, Kit};
use crate::kernels::simd::Element;
use half::{bf16, f16};
use planaria_base::{DType, ParamId, Site};
use serde::{Deserialize, Serialize};

/// Label of a position that is not counted.
pub const IGNORED_LABEL: i32 = -100;

/// The arithmetic of matrix products and the storage of activations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// fp32 throughout.
    F32,
    /// Matrices and most activations in bf16, products accumulated in fp32; the residual stream,
    /// norms, softmax and loss in fp32; fp32 master weights in the optimizer.
    Bf16,
    /// As [`Precision::Bf16`], in fp16: more digits and less range, hence the loss scale
    /// ([`crate::loss_scale`]). What is too large to store becomes infinite.
    F16,
}

impl Precision {
    /// The element of matrices and stored activations.
    #[must_use]
    pub fn dtype(self) -> DType {
        match self {
            Precision::F32 => DType::F32,
            Precision::Bf16 => DType::Bf16,
            Precision::F16 => DType::F16,
        }
    }
}

/// How a parameter is filled when a run starts from nothing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// Normal with mean zero; drawn from a counter generator keyed by (seed, parameter, element).
    Normal {
        /// Standard deviation.
        std: f32,
    },
}

/// One parameter of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct ParamSpec {
    /// Its place in [`Model::params`].
    pub id: ParamId,
    /// Its Hugging Face name.
    pub name: String,
    /// Row-major shape, as Hugging Face stores it.
    pub shape: Vec<usize>,
    /// How it starts.
    pub init: Init,
    /// Emission sites: 2 for a tied embedding, else 1.
    pub sites: u8,
    /// It stays as it was loaded: it emits no gradient and has no optimizer state.
    pub frozen: bool,
}

impl ParamSpec {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the working value is kept in 16 bits under [`Precision::Bf16`] and
    /// [`Precision::F16`]: matrices are, vectors (norms, biases) stay fp32.
    #[must_use]
    pub fn is_matrix(&self) -> bool {
        self.shape.len() >= 2
    }
}

/// Shape of one leaf: `sequences` rows of `length` tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafShape {
    /// Sequences in the micro-batch.
    pub sequences: usize,
    /// Tokens of each.
    pub length: usize,
}

impl LeafShape {
    /// Tokens in all.
    #[must_use]
    pub fn tokens(self) -> usize {
        self.sequences * self.length
    }
}

/// A leaf's named inputs; any block may read any of them. All are `[sequences, length]`, row-major.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Shape of all inputs.
    pub shape: LeafShape,
    /// Token ids.
    pub tokens: &'a [u32],
    /// Already shifted: `labels[t]` is scored against the logits at `t`; [`IGNORED_LABEL`] is not.
    pub labels: &'a [i32],
    /// Position of each token; `None` means `0..length` in each sequence.
    pub positions: Option<&'a [u32]>,
    /// Document of each token; attention stays inside a document. `None` means one per sequence.
    pub documents: Option<&'a [u32]>,
    /// Further real-valued inputs by name, for science models.
    pub fields: &'a [(&'a str, &'a [f32])],
}

/// A parameter's working value.
#[derive(Clone, Copy, Debug)]
pub enum ParamValue<'a> {
    /// fp32 elements.
    F32(&'a [f32]),
    /// bf16 elements.
    Bf16(&'a [bf16]),
    /// fp16 elements.
    F16(&'a [f16]),
    /// Not gathered at present.
    Absent,
}

/// Something that holds working values, by parameter id.
pub trait ParamTable: Sync {
    /// The working value of a parameter, or [`ParamValue::Absent`].
    fn value(&self, id: ParamId) -> ParamValue<'_>;
}

#[derive(Clone, Copy)]
enum Source<'a> {
    Slice(&'a [ParamValue<'a>]),
    Table(&'a dyn ParamTable),
}

/// The working values that a block may read, by parameter id.
#[derive(Clone, Copy)]
pub struct Params<'a> {
    source: Source<'a>,
}

impl<'a> Params<'a> {
    /// One value per parameter id.
    #[must_use]
    pub fn new(values: &'a [ParamValue<'a>]) -> Params<'a> {
        Params { source: Source::Slice(values) }
    }

    /// The values that a table holds.
    #[must_use]
    pub fn of(table: &'a dyn ParamTable) -> Params<'a> {
        Params { source: Source::Table(table) }
    }

    /// The working value of a parameter.
    #[must_use]
    pub fn value(&self, id: ParamId) -> ParamValue<'a> {
        match self.source {
            Source::Slice(values) => values[id.index()],
            Source::Table(table) => table.value(id),
        }
    }

    /// The elements of a matrix in the compute dtype.
    ///
    /// # Panics
    /// If it is kept in another dtype or not gathered.
    #[must_use]
    pub fn matrix<A: Element>(&self, id: ParamId) -> &'a [A] {
        match (self.value(id), A::DTYPE) {
            (ParamValue::F32(v), DType::F32) => bytemuck::cast_slice(v),
            (ParamValue::Bf16(v), DType::Bf16) => bytemuck::cast_slice(v),
            (ParamValue::F16(v), DType::F16) => bytemuck::cast_slice(v),
            (ParamValue::Absent, _) => panic!("parameter {id} is not gathered"),
            (_, dtype) => panic!("parameter {id} is not kept in {dtype}"),
        }
    }

    /// The fp32 elements of a parameter.
    ///
    /// # Panics
    /// If it is kept in 16 bits or not gathered: the caller asked for a vector, or runs in fp32.
    #[must_use]
    pub fn f32(&self, id: ParamId) -> &'a [f32] {
        match self.value(id) {
            ParamValue::F32(v) => v,
            ParamValue::Bf16(_) | ParamValue::F16(_) => {
                panic!("parameter {id} is kept in 16 bits")
            }
            ParamValue::Absent => panic!("parameter {id} is not gathered"),
        }
    }
}

/// Receives a leaf's gradients, element by element exactly once per (parameter, site).
///
/// Called from several compute threads at once, on disjoint elements.
pub trait GradSink: Sync {
    /// The elements `first..first + values.len()` of `param`'s gradient from `site`. The slice is
    /// scratch: the sink may overwrite it.
    fn dense(&self, param: ParamId, site: Site, first: usize, values: &mut [f32]);

    /// Some rows of a matrix parameter; the rows not listed are zero. `rows` ascends, and `values`
    /// is `[rows.len(), width]`. Called once per (leaf, parameter, site).
    fn rows(&self, param: ParamId, site: Site, rows: &[u32], values: &mut [f32]);

    /// The whole gradient of `param` from `site`, built up in place: `fill` gets a buffer of all its
    /// elements, with unspecified contents, and leaves the gradient in it. A sink that has such a
    /// buffer anyway lends it, so that a gradient that is summed in parts needs no memory of its own.
    fn in_place(
        &self,
        kit: &Kit,
        (param, site): (ParamId, Site),
        len: usize,
        fill: &mut dyn FnMut(&mut [f32]),
    ) {
        let _ = kit;
        let mut values = vec![0.0; len];
        fill(&mut values);
        self.dense(param, site, 0, &mut values);
    }

    /// Whether this parameter's gradient is wanted at all (frozen parameters emit nothing).
    fn wants(&self, param: ParamId) -> bool {
        let _ = param;
        true
    }
}

/// What a leaf's loss block found.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct LossStats {
    /// Sum of the labels' negative log-likelihoods in nats, in token order, in f64; not scaled.
    pub loss_sum: f64,
    /// Labels counted.
    pub labels: u64,
}

/// The power of two that a leaf's loss is multiplied by before backward.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LossScale {
    /// A power of two.
    pub factor: f32,
}

/// What one leaf costs in one block, exactly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockPlan {
    /// Bytes of the saved arena (slots 64-byte aligned).
    pub saved_bytes: usize,
    /// Bytes of scratch that forward or backward needs at most.
    pub scratch_bytes: usize,
    /// Floating-point operations of forward: 2 per multiply-add of each matrix product.
    pub forward_flops: u64,
    /// The same for backward.
    pub backward_flops: u64,
}

/// What a forward reads and writes.
pub struct Forward<'a> {
    /// Working values; the block's own are gathered.
    pub params: Params<'a>,
    /// The leaf.
    pub batch: Batch<'a>,
    /// The stream coming in, `[tokens, width]`. Unused by an input block.
    pub x: &'a [f32],
    /// The stream going out.
    pub y: &'a mut [f32],
    /// `plan().saved_bytes` bytes, 64-byte aligned; kept until the leaf's backward.
    pub saved: &'a mut [u8],
}

/// What a backward reads and writes.
pub struct Backward<'a> {
    /// Working values, the same bits as in the forward.
    pub params: Params<'a>,
    /// The leaf.
    pub batch: Batch<'a>,
    /// The stream that came in at forward.
    pub x: &'a [f32],
    /// What forward saved; backward may use it as scratch.
    pub saved: &'a mut [u8],
    /// In: the gradient at the block's output. Out: at its input.
    pub dy: &'a mut [f32],
}

/// A model unit with one forward and one backward.
pub trait Block: Send + Sync {
    /// For people: `h.3`, `embed`.
    fn name(&self) -> &str;
    /// The parameters it reads, in emission order of no importance.
    fn params(&self) -> &[ParamId];
    /// Exact cost of one leaf.
    fn plan(&self, leaf: LeafShape, precision: Precision) -> BlockPlan;
    /// Computes `y`, and saves what backward needs.
    fn forward(&self, cx: &mut Compute, io: Forward<'_>);
    /// Computes the input's gradient in place, and emits the parameters' gradients.
    fn backward(&self, cx: &mut Compute, io: Backward<'_>, sink: &dyn GradSink);
    /// Computes `y` for new tokens after those in the cache, and adds them to it; in fp32.
    fn decode(&self, cx: &mut Compute, io: Decode<'_>);
    /// fp32 elements that each cached token takes.
    fn cache_width(&self) -> usize {
        0
    }
}

/// What a decoding step reads and writes.
pub struct Decode<'a> {
    /// Working values, fp32.
    pub params: Params<'a>,
    /// The new tokens of one sequence.
    pub tokens: &'a [u32],
    /// Position of the first of them.
    pub position: usize,
    /// The stream coming in, `[tokens, width]`.
    pub x: &'a [f32],
    /// The stream going out.
    pub y: &'a mut [f32],
    /// This block's cache, `[max_length, cache_width]`; rows before `position` are filled.
    pub cache: &'a mut [f32],
}

/// The last block: from the stream to the loss.
pub trait LossBlock: Send + Sync {
    /// For people: `head`.
    fn name(&self) -> &str;
    /// The parameters it reads.
    fn params(&self) -> &[ParamId];
    /// Exact cost of one leaf (`saved_bytes` is zero).
    fn plan(&self, leaf: LeafShape, precision: Precision) -> BlockPlan;
    /// Scores of the whole vocabulary for each row of `x`, `[rows, vocab]`; in fp32.
    fn logits(&self, cx: &mut Compute, params: Params<'_>, x: &[f32], logits: &mut [f32]);
    /// The loss alone.
    fn loss(&self, cx: &mut Compute, params: Params<'_>, batch: Batch<'_>, x: &[f32]) -> LossStats;
    /// Loss and gradients: `dx` is overwritten with the gradient at the block's input.
    fn loss_and_grad(&self, cx: &mut Compute, io: LossGrad<'_>, sink: &dyn GradSink) -> LossStats;
}

/// What [`LossBlock::loss_and_grad`] reads and writes.
pub struct LossGrad<'a> {
    /// Working values.
    pub params: Params<'a>,
    /// The leaf.
    pub batch: Batch<'a>,
    /// The stream coming in.
    pub x: &'a [f32],
    /// Out: the gradient at the input.
    pub dx: &'a mut [f32],
    /// The constant that the loss is multiplied by.
    pub scale: LossScale,
}

/// A model: parameters and the blocks that use them.
pub struct Model {
    /// All parameters, by id.
    pub params: Vec<ParamSpec>,
    /// Input block first.
    pub blocks: Vec<Box<dyn Block>>,
    /// The loss block.
    pub head: Box<dyn LossBlock>,
    /// Elements of the residual stream per token.
    pub width: usize,
    /// Rows of the output vocabulary.
    pub vocab: usize,
    /// Longest sequence that the model takes.
    pub max_length: usize,
}
