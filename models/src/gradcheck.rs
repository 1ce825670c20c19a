//! Finite differences: checks a block's backward against its forward.
//!
//! For people who bring their own blocks. The loss is a fixed random projection of the block's output;
//! its derivative along random directions of the input and of each parameter, by central differences
//! in fp32, must agree with what backward says.

use crate::block::{
    Backward, Batch, Block, Forward, GradSink, ParamSpec, ParamValue, Params, Precision,
};
use crate::buffer::Buffer;
use crate::compute::Compute;
use crate::kernels::Isa;
use planaria_base::rng::CounterRng;
use planaria_base::{ParamId, Site};
use std::sync::{Mutex, PoisonError};

/// Half the distance of the two points of a difference, for a direction of unit length per element.
const STEP: f32 = 1e-2;

/// Directions tried for the input and for each parameter.
const DIRECTIONS: u64 = 4;

/// A derivative that disagrees.
#[derive(Clone, PartialEq, Debug)]
pub struct Mismatch {
    /// `input`, or the parameter's name.
    pub what: String,
    /// The derivative that backward gives.
    pub backward: f64,
    /// The central difference.
    pub difference: f64,
    /// The error that was allowed.
    pub allowed: f64,
}

/// A block to check.
pub struct GradCheck<'a> {
    /// The block.
    pub block: &'a dyn Block,
    /// All parameters of its model.
    pub specs: &'a [ParamSpec],
    /// Their values.
    pub values: &'a [Vec<f32>],
    /// A leaf.
    pub batch: Batch<'a>,
    /// Elements of the stream per token.
    pub width: usize,
    /// Whether the block reads a stream; an input block does not.
    pub reads_stream: bool,
    /// Relative error that is allowed; 1e-2 suits most blocks.
    pub tolerance: f64,
}

/// Collects a block's gradients, all sites together.
struct Collect(Mutex<Vec<Vec<f32>>>);

impl Collect {
    fn add(&self, param: ParamId, first: usize, values: &[f32]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let to = &mut all[param.index()][first..first + values.len()];
        to.iter_mut().zip(values).for_each(|(to, v)| *to += v);
    }
}

impl GradSink for Collect {
    fn dense(&self, param: ParamId, _: Site, first: usize, values: &mut [f32]) {
        self.add(param, first, values);
    }

    fn rows(&self, param: ParamId, _: Site, rows: &[u32], values: &mut [f32]) {
        let width = values.len() / rows.len().max(1);
        for (&row, values) in rows.iter().zip(values.chunks_exact(width.max(1))) {
            self.add(param, row as usize * width, values);
        }
    }
}

impl GradCheck<'_> {
    /// Compares; returns every derivative that disagrees.
    ///
    /// # Panics
    /// If the block needs more scratch or slots than it planned.
    #[must_use]
    pub fn run(&self) -> Vec<Mismatch> {
        let plan = self.block.plan(self.batch.shape, Precision::F32);
        let mut cx = Compute::new(1, Isa::detect(), Precision::F32, plan.scratch_bytes);
        let len = self.batch.shape.tokens() * self.width;
        let x = random(1, len, 1.0);
        let weights = random(2, len, 1.0);
        let mut saved = Buffer::zeroed(plan.saved_bytes);
        self.output(&mut cx, self.values, &x, &mut saved);
        let zeros = self.specs.iter().map(|p| vec![0.0; p.elements()]).collect();
        let sink = Collect(Mutex::new(zeros));
        let mut dx = weights.clone();
        let table = table(self.values);
        let params = Params::new(&table);
        let io = Backward { params, batch: self.batch, x: &x, saved: &mut saved, dy: &mut dx };
        self.block.backward(&mut cx, io, &sink);
        let grads = sink.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut found = Vec::new();
        for direction in 0..DIRECTIONS {
            if self.reads_stream {
                let step = random(100 + direction, len, STEP);
                let mut loss = |sign: f32| {
                    let x = moved(&x, &step, sign);
                    dot(&self.output(&mut cx, self.values, &x, &mut saved), &weights)
                };
                let difference = (loss(1.0) - loss(-1.0)) / 2.0;
                self.compare("input", dot(&dx, &step), difference, &mut found);
            }
            for id in self.block.params() {
                let i = id.index();
                let step = random(200 + direction, self.values[i].len(), STEP);
                let mut values = self.values.to_vec();
                let mut loss = |sign: f32| {
                    values[i] = moved(&self.values[i], &step, sign);
                    dot(&self.output(&mut cx, &values, &x, &mut saved), &weights)
                };
                let difference = (loss(1.0) - loss(-1.0)) / 2.0;
                let name = &self.specs[i].name;
                self.compare(name, dot(&grads[i], &step), difference, &mut found);
            }
        }
        found
    }

    fn compare(&self, what: &str, backward: f64, difference: f64, found: &mut Vec<Mismatch>) {
        let scale = f64::from(STEP) * libm::sqrt((self.batch.shape.tokens() * self.width) as f64);
        let allowed = self.tolerance * (difference.abs() + 0.1 * scale);
        let close = (backward - difference).abs() <= allowed;
        if !close {
            found.push(Mismatch { what: what.to_owned(), backward, difference, allowed });
        }
    }

    fn output(
        &self,
        cx: &mut Compute,
        values: &[Vec<f32>],
        x: &[f32],
        saved: &mut [u8],
    ) -> Vec<f32> {
        let mut y = vec![0.0; x.len()];
        let table = table(values);
        let params = Params::new(&table);
        self.block.forward(cx, Forward { params, batch: self.batch, x, y: &mut y, saved });
        y
    }
}

fn table(values: &[Vec<f32>]) -> Vec<ParamValue<'_>> {
    values.iter().map(|v| ParamValue::F32(v)).collect()
}

fn random(seed: u64, len: usize, scale: f32) -> Vec<f32> {
    let rng = CounterRng::new(seed);
    (0..len as u64).map(|i| scale * (2.0 * rng.uniform(i) as f32 - 1.0)).collect()
}

fn moved(x: &[f32], step: &[f32], sign: f32) -> Vec<f32> {
    x.iter().zip(step).map(|(x, s)| x + sign * s).collect()
}

fn dot(x: &[f32], y: &[f32]) -> f64 {
    x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}
