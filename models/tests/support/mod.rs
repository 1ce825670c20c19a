//! Reads golden files, and runs a model's leaves depth first.

use half::{bf16, f16};
use planaria_base::{Leaf, ParamId};
use planaria_models::block::{
    Backward, Batch, Forward, LeafShape, LossGrad, LossScale, LossStats, Model, ParamValue, Params,
    Precision,
};
use planaria_models::compute::Compute;
use planaria_models::families::{Family, ModelSpec};
use planaria_models::gradients::{Gradients, SumOutcome};
use planaria_models::kernels::Isa;
use planaria_models::kernels::rope::RopeScaling;
use safetensors::SafeTensors;
use std::path::PathBuf;

pub(crate) struct Golden {
    name: String,
    weights: Vec<u8>,
    numbers: Vec<u8>,
    pub loss_per_leaf: Vec<f64>,
    pub ten_losses: Vec<f64>,
}

impl Golden {
    pub(crate) fn load(name: &str) -> Golden {
        let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let read = |file: &str| std::fs::read(dir.join(file)).expect("a golden file");
        let meta: serde_json::Value = serde_json::from_slice(&read("golden.json")).expect("JSON");
        let list = |key: &str| {
            let values = meta[key].as_array().expect("a list");
            values.iter().map(|v| v.as_f64().expect("a number")).collect()
        };
        Golden {
            name: name.to_owned(),
            weights: read("model.safetensors"),
            numbers: read("golden.safetensors"),
            loss_per_leaf: list("loss_per_leaf"),
            ten_losses: list("ten_losses"),
        }
    }

    pub(crate) fn tensor(&self, name: &str) -> Vec<f32> {
        floats(&self.numbers, name)
    }

    fn integers(&self, name: &str) -> Vec<i64> {
        let file = SafeTensors::deserialize(&self.numbers).expect("safetensors");
        let tensor = file.tensor(name).expect("a tensor");
        let eight = tensor.data().chunks_exact(8);
        eight.map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes"))).collect()
    }

    fn spec(&self) -> ModelSpec {
        let mut spec = ModelSpec::gpt2(2, 32, 4, 96, 24);
        if self.name == "gpt2" {
            return spec;
        }
        spec.family = Family::Llama;
        (spec.mlp_width, spec.attention_bias, spec.mlp_bias) = (88, false, false);
        spec.tied = self.name == "llama_tied";
        spec.kv_heads = if spec.tied { 4 } else { 2 };
        spec.norm_eps = if spec.tied { 1e-6 } else { 1e-5 };
        spec.rope_theta = if spec.tied { 500_000.0 } else { 10_000.0 };
        spec.rope_scaling = RopeScaling::Default;
        spec
    }
}

fn floats(file: &[u8], name: &str) -> Vec<f32> {
    let file = SafeTensors::deserialize(file).expect("safetensors");
    let tensor = file.tensor(name).unwrap_or_else(|_| panic!("no tensor {name}"));
    let four = tensor.data().chunks_exact(4);
    four.map(|b| f32::from_le_bytes(b.try_into().expect("4 bytes"))).collect()
}

const SHAPE: LeafShape = LeafShape { sequences: 2, length: 24 };

pub(crate) struct Run {
    pub model: Model,
    pub values: Vec<Vec<f32>>,
    pub gradients: Gradients,
    compute: Compute,
    tokens: Vec<Vec<u32>>,
    labels: Vec<Vec<i32>>,
}

fn aligned(bytes: usize) -> planaria_models::buffer::Buffer<u8> {
    planaria_models::buffer::Buffer::zeroed(bytes)
}

impl Run {
    pub(crate) fn new(golden: &Golden, isa: Isa, threads: usize, precision: Precision) -> Run {
        let model = golden.spec().build();
        let values = model.params.iter().map(|p| floats(&golden.weights, &p.name)).collect();
        let plans = model.blocks.iter().map(|b| b.plan(SHAPE, precision));
        let scratch = plans.map(|p| p.scratch_bytes).max().unwrap_or(0);
        let scratch = scratch.max(model.head.plan(SHAPE, precision).scratch_bytes);
        let split = |x: Vec<i64>| x.chunks(SHAPE.tokens()).map(<[i64]>::to_vec).collect::<Vec<_>>();
        Run {
            gradients: Gradients::new(isa, &model.params, 3, 8),
            values,
            compute: Compute::new(threads, isa, precision, scratch),
            tokens: split(golden.integers("input_ids"))
                .iter()
                .map(|l| l.iter().map(|&t| t as u32).collect())
                .collect(),
            labels: split(golden.integers("labels"))
                .iter()
                .map(|l| l.iter().map(|&t| t as i32).collect())
                .collect(),
            model,
        }
    }

    pub(crate) fn factor(&self) -> f32 {
        1.0 / 64.0
    }

    /// Finishes a parameter's sum.
    pub(crate) fn finish(&mut self, id: ParamId) -> SumOutcome {
        self.gradients.finish(&self.compute.kit, id)
    }

    pub(crate) fn gradient_bits(&mut self) -> Vec<u32> {
        let mut bits = Vec::new();
        for id in (0..self.model.params.len() as u32).map(ParamId) {
            self.finish(id);
            bits.extend(self.gradients.gradient(id).iter().map(|g| g.to_bits()));
        }
        bits
    }

    pub(crate) fn logits(&mut self, leaf: Leaf) -> Vec<f32> {
        let streams = self.forward(leaf).0;
        let working = working(&self.model, &self.values, self.compute.precision);
        let values: Vec<ParamValue<'_>> = working.iter().map(Working::value).collect();
        let x = streams.last().expect("blocks");
        let mut logits = vec![0.0; SHAPE.tokens() * self.model.vocab];
        self.model.head.logits(&mut self.compute, Params::new(&values), x, &mut logits);
        logits
    }

    /// All three leaves, forward and backward.
    pub(crate) fn step(&mut self, reversed: bool) -> Vec<LossStats> {
        self.gradients.begin();
        let mut stats = vec![LossStats::default(); 3];
        let order = if reversed { [2, 1, 0] } else { [0, 1, 2] };
        for leaf in order {
            stats[leaf as usize] = self.leaf(Leaf(leaf));
        }
        stats
    }

    fn forward(&mut self, leaf: Leaf) -> (Vec<Vec<f32>>, Vec<planaria_models::buffer::Buffer<u8>>) {
        let working = working(&self.model, &self.values, self.compute.precision);
        let values: Vec<ParamValue<'_>> = working.iter().map(Working::value).collect();
        let (mut streams, mut saved): (Vec<Vec<f32>>, Vec<_>) = (Vec::new(), Vec::new());
        let batch = batch(&self.tokens[leaf.index()], &self.labels[leaf.index()]);
        for block in &self.model.blocks {
            let plan = block.plan(SHAPE, self.compute.precision);
            let mut y = vec![0.0; SHAPE.tokens() * self.model.width];
            let mut slots = aligned(plan.saved_bytes);
            let io = Forward {
                params: Params::new(&values),
                batch,
                x: streams.last().map_or(&[], |s| s),
                y: &mut y,
                saved: &mut slots,
            };
            block.forward(&mut self.compute, io);
            streams.push(y);
            saved.push(slots);
        }
        (streams, saved)
    }

    fn leaf(&mut self, leaf: Leaf) -> LossStats {
        let (streams, mut saved) = self.forward(leaf);
        let working = working(&self.model, &self.values, self.compute.precision);
        let values: Vec<ParamValue<'_>> = working.iter().map(Working::value).collect();
        let scale = LossScale { factor: self.factor() };
        let batch = batch(&self.tokens[leaf.index()], &self.labels[leaf.index()]);
        let mut dx = vec![0.0; SHAPE.tokens() * self.model.width];
        let sink = self.gradients.sink(leaf);
        let x = streams.last().expect("blocks");
        let params = Params::new(&values);
        let io = LossGrad { params, batch, x, dx: &mut dx, scale };
        let stats = self.model.head.loss_and_grad(&mut self.compute, io, &sink);
        for (i, block) in self.model.blocks.iter().enumerate().rev() {
            let x = if i == 0 { &[][..] } else { &streams[i - 1] };
            let io = Backward { params, batch, x, saved: &mut saved[i], dy: &mut dx };
            block.backward(&mut self.compute, io, &sink);
        }
        stats
    }
}

enum Working {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl Working {
    fn value(&self) -> ParamValue<'_> {
        match self {
            Working::F32(v) => ParamValue::F32(v),
            Working::Bf16(v) => ParamValue::Bf16(v),
            Working::F16(v) => ParamValue::F16(v),
        }
    }
}

fn batch<'a>(tokens: &'a [u32], labels: &'a [i32]) -> Batch<'a> {
    Batch { shape: SHAPE, tokens, labels, positions: None, documents: None, fields: &[] }
}

fn working(model: &Model, values: &[Vec<f32>], precision: Precision) -> Vec<Working> {
    let one = |(spec, v): (&planaria_models::block::ParamSpec, &Vec<f32>)| match precision {
        Precision::Bf16 if spec.is_matrix() => {
            Working::Bf16(v.iter().map(|&x| bf16::from_f32(x)).collect())
        }
        Precision::F16 if spec.is_matrix() => {
            Working::F16(v.iter().map(|&x| f16::from_f32(x)).collect())
        }
        _ => Working::F32(v.clone()),
    };
    model.params.iter().zip(values).map(one).collect()
}
