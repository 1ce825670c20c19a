//! Finds where a number first stops being finite: which block, in which direction, in which tensor.
//!
//! [`watch`] wraps every block of a model. The wrapped model computes the same bits; after each block
//! its output, the gradient that it passes on and every gradient that it emits are looked at, and the
//! first NaN or infinity is kept. Whoever drives the model says which leaf runs ([`Watch::at`]), and
//! asks at the end of a step ([`Watch::found`]).

use crate::block::{
    Backward, Batch, Block, BlockPlan, Decode, Forward, GradSink, LeafShape, LossBlock, LossGrad,
    LossStats, Model, ParamValue, Params, Precision,
};
use crate::compute::{Compute, Kit};
use planaria_base::{ParamId, Site};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which way a block ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// From tokens to the loss.
    Forward,
    /// From the loss to gradients.
    Backward,
}

/// The first number that was not finite.
#[derive(Clone, PartialEq, Debug)]
pub struct Anomaly {
    /// The step under way.
    pub step: u64,
    /// The leaf that ran.
    pub leaf: u32,
    /// The block's name.
    pub block: String,
    /// Which way it ran.
    pub direction: Direction,
    /// The tensor, in words.
    pub tensor: String,
    /// The first element that is not finite, in the tensor or in the part of it that was looked at.
    pub element: usize,
    /// Its value.
    pub value: f32,
    /// A parameter of the block that was not finite already, which then is the cause.
    pub parameter: Option<String>,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.direction {
            Direction::Forward => "forward",
            Direction::Backward => "backward",
        };
        let Anomaly { step, leaf, block, tensor, element, value, .. } = self;
        write!(f, "step {step}, leaf {leaf}, {way} of block {block}: ")?;
        write!(f, "{tensor} is {value} at element {element}, the first that is not finite")?;
        match &self.parameter {
            Some(name) => write!(f, "; the block's parameter {name} was not finite before"),
            None => write!(f, "; the block's input and parameters are finite"),
        }
    }
}

/// What was seen so far.
#[derive(Debug, Default)]
pub struct Watch {
    at: Mutex<(u64, u32)>,
    found: Mutex<Option<Anomaly>>,
    names: Vec<String>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watch {
    /// Which step and leaf run from here on.
    pub fn at(&self, step: u64, leaf: u32) {
        *lock(&self.at) = (step, leaf);
    }

    /// The first anomaly, if there was one.
    #[must_use]
    pub fn found(&self) -> Option<Anomaly> {
        lock(&self.found).clone()
    }

    fn look(&self, seen: &Seen<'_>, tensor: &dyn Fn() -> String, values: &[f32]) {
        let Some(element) = values.iter().position(|v| !v.is_finite()) else { return };
        let mut found = lock(&self.found);
        if found.is_some() {
            return;
        }
        let (step, leaf) = *lock(&self.at);
        let bad = |id: &&ParamId| !is_finite(seen.params.value(**id));
        *found = Some(Anomaly {
            step,
            leaf,
            block: seen.block.to_owned(),
            direction: seen.direction,
            tensor: tensor(),
            element,
            value: values[element],
            parameter: seen.ids.iter().find(bad).map(|id| self.names[id.index()].clone()),
        });
    }
}

fn is_finite(value: ParamValue<'_>) -> bool {
    match value {
        ParamValue::F32(v) => v.iter().all(|x| x.is_finite()),
        ParamValue::Bf16(v) => v.iter().all(|x| x.is_finite()),
        ParamValue::F16(v) => v.iter().all(|x| x.is_finite()),
        ParamValue::Absent => true,
    }
}

/// Where a tensor was seen.
struct Seen<'a> {
    block: &'a str,
    ids: &'a [ParamId],
    params: Params<'a>,
    direction: Direction,
}

/// Passes gradients on, after a look.
struct WatchedSink<'a> {
    inner: &'a dyn GradSink,
    watch: &'a Watch,
    seen: Seen<'a>,
}

impl WatchedSink<'_> {
    fn look(&self, param: ParamId, values: &[f32]) {
        let name = || format!("the gradient of {}", self.watch.names[param.index()]);
        self.watch.look(&self.seen, &name, values);
    }
}

impl GradSink for WatchedSink<'_> {
    fn dense(&self, param: ParamId, site: Site, first: usize, values: &mut [f32]) {
        self.look(param, values);
        self.inner.dense(param, site, first, values);
    }

    fn rows(&self, param: ParamId, site: Site, rows: &[u32], values: &mut [f32]) {
        self.look(param, values);
        self.inner.rows(param, site, rows, values);
    }

    fn in_place(
        &self,
        kit: &Kit,
        at: (ParamId, Site),
        len: usize,
        fill: &mut dyn FnMut(&mut [f32]),
    ) {
        self.inner.in_place(kit, at, len, &mut |values| {
            fill(values);
            self.look(at.0, values);
        });
    }

    fn wants(&self, param: ParamId) -> bool {
        self.inner.wants(param)
    }
}

/// A block that is looked after.
struct Watched<B: ?Sized> {
    inner: Box<B>,
    watch: Arc<Watch>,
}

const OUTPUT: &str = "the activation that it puts out";
const PASSED_ON: &str = "the gradient that it passes on";

impl Block for Watched<dyn Block> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn params(&self) -> &[ParamId] {
        self.inner.params()
    }

    fn plan(&self, leaf: LeafShape, precision: Precision) -> BlockPlan {
        self.inner.plan(leaf, precision)
    }

    fn forward(&self, cx: &mut Compute, io: Forward<'_>) {
        let Forward { params, batch, x, y, saved } = io;
        self.inner.forward(cx, Forward { params, batch, x, y: &mut *y, saved });
        let (block, ids) = (self.name(), self.params());
        let seen = Seen { block, ids, params, direction: Direction::Forward };
        self.watch.look(&seen, &|| OUTPUT.to_owned(), y);
    }

    fn backward(&self, cx: &mut Compute, io: Backward<'_>, sink: &dyn GradSink) {
        let Backward { params, batch, x, saved, dy } = io;
        let (block, ids) = (self.name(), self.params());
        let seen = || Seen { block, ids, params, direction: Direction::Backward };
        let sink = WatchedSink { inner: sink, watch: &self.watch, seen: seen() };
        self.inner.backward(cx, Backward { params, batch, x, saved, dy: &mut *dy }, &sink);
        // An input block passes nothing on.
        if !x.is_empty() {
            self.watch.look(&seen(), &|| PASSED_ON.to_owned(), dy);
        }
    }

    fn decode(&self, cx: &mut Compute, io: Decode<'_>) {
        self.inner.decode(cx, io);
    }

    fn cache_width(&self) -> usize {
        self.inner.cache_width()
    }
}

impl LossBlock for Watched<dyn LossBlock> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn params(&self) -> &[ParamId] {
        self.inner.params()
    }

    fn plan(&self, leaf: LeafShape, precision: Precision) -> BlockPlan {
        self.inner.plan(leaf, precision)
    }

    fn logits(&self, cx: &mut Compute, params: Params<'_>, x: &[f32], logits: &mut [f32]) {
        self.inner.logits(cx, params, x, logits);
    }

    fn loss(&self, cx: &mut Compute, params: Params<'_>, batch: Batch<'_>, x: &[f32]) -> LossStats {
        self.inner.loss(cx, params, batch, x)
    }

    fn loss_and_grad(&self, cx: &mut Compute, io: LossGrad<'_>, sink: &dyn GradSink) -> LossStats {
        let LossGrad { params, batch, x, dx, scale } = io;
        let (block, ids) = (self.name(), self.params());
        let seen = |direction| Seen { block, ids, params, direction };
        let sink = WatchedSink { inner: sink, watch: &self.watch, seen: seen(Direction::Backward) };
        let io = LossGrad { params, batch, x, dx: &mut *dx, scale };
        let stats = self.inner.loss_and_grad(cx, io, &sink);
        let loss = stats.loss_sum as f32;
        // The gradients were made of the loss's own numbers: a bad loss comes first.
        if !loss.is_finite() {
            self.watch.replace_by_loss(&seen(Direction::Forward), loss);
        }
        self.watch.look(&seen(Direction::Backward), &|| PASSED_ON.to_owned(), dx);
        stats
    }
}

impl Watch {
    /// What the loss block's own gradients showed goes back to the loss.
    fn replace_by_loss(&self, seen: &Seen<'_>, loss: f32) {
        {
            let (mut found, at) = (lock(&self.found), *lock(&self.at));
            let own = |a: &Anomaly| a.block == seen.block && (a.step, a.leaf) == at;
            if found.as_ref().is_some_and(own) {
                *found = None;
            }
        }
        self.look(seen, &|| "the loss".to_owned(), &[loss]);
    }
}

/// The same model, looked after.
#[must_use]
pub fn watch(model: Model) -> (Model, Arc<Watch>) {
    let names = model.params.iter().map(|p| p.name.clone()).collect();
    let watch = Arc::new(Watch { names, ..Watch::default() });
    let wrap = |inner: Box<dyn Block>| -> Box<dyn Block> {
        Box::new(Watched { inner, watch: Arc::clone(&watch) })
    };
    let blocks = model.blocks.into_iter().map(wrap).collect();
    let head = Box::new(Watched { inner: model.head, watch: Arc::clone(&watch) });
    (Model { blocks, head, ..model }, watch)
}
