//! A reader of safetensors, a sink that adds in fp32, and one call for a leaf's loss and gradients.

use half::{bf16, f16};
use planaria_base::dtype::DType;
use planaria_base::tensor_source::{StoredTensor, TensorSource};
use planaria_base::{ParamId, Site};
use planaria_models::block::{
    Batch, GradSink, LeafShape, LossScale, LossStats, Model, ParamValue, Params, Precision,
};
use planaria_models::compute::{Compute, Kit};
use planaria_models::families::ModelSpec;
use planaria_models::hf::{self, Import};
use planaria_models::kernels::Isa;
use planaria_models::leaf::{Leaf, LeafBuffers, LeafPlan};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// All tensors of a safetensors file.
#[derive(Default, Clone)]
pub(crate) struct Tensors(pub(crate) BTreeMap<String, (DType, Vec<usize>, Vec<u8>)>);

impl Tensors {
    pub(crate) fn open(path: &Path) -> Tensors {
        let bytes = std::fs::read(path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let all = file.iter().map(|(name, t)| {
            let dtype = DType::from_safetensors_name(&t.dtype().to_string()).unwrap();
            (name.to_owned(), (dtype, t.shape().to_vec(), t.data().to_vec()))
        });
        Tensors(all.collect())
    }

    pub(crate) fn i64(&self, name: &str) -> Vec<i64> {
        let (dtype, _, bytes) = &self.0[name];
        assert_eq!(*dtype, DType::I64, "{name}");
        bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

impl Tensors {
    pub(crate) fn f32(&self, name: &str) -> Vec<f32> {
        let (dtype, _, bytes) = &self.0[name];
        assert_eq!(*dtype, DType::F32, "{name}");
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}

impl TensorSource for Tensors {
    fn names(&self) -> Vec<&str> {
        self.0.keys().map(String::as_str).collect()
    }

    fn tensor(&self, name: &str) -> Option<StoredTensor<'_>> {
        let (dtype, shape, bytes) = self.0.get(name)?;
        Some(StoredTensor { dtype: *dtype, shape, bytes })
    }
}

/// Adds gradients in fp32, in the order in which leaves come; checks that every element of every
/// (parameter, site) comes once.
pub(crate) struct Sink {
    grads: Mutex<Vec<Vec<f32>>>,
    seen: Mutex<BTreeMap<(u32, u8), Vec<u8>>>,
    frozen: Vec<bool>,
}

impl Sink {
    pub(crate) fn new(model: &Model) -> Sink {
        let grads = model.params.iter().map(|p| vec![0.0; p.elements()]).collect();
        let frozen = model.params.iter().map(|p| p.frozen).collect();
        Sink { grads: Mutex::new(grads), seen: Mutex::default(), frozen }
    }

    fn add(&self, param: ParamId, site: Site, first: usize, values: &[f32]) {
        let grads = &mut self.grads.lock().unwrap()[param.index()];
        let mut seen = self.seen.lock().unwrap();
        let seen = seen.entry((param.0, site.0)).or_insert_with(|| vec![0; grads.len()]);
        for (i, value) in values.iter().enumerate() {
            grads[first + i] += value;
            seen[first + i] += 1;
        }
    }

    /// All gradients; every site of every parameter that is trained must have emitted every element exactly once.
    pub(crate) fn finish(self, model: &Model) -> Vec<Vec<f32>> {
        let seen = self.seen.into_inner().unwrap();
        let trained = || model.params.iter().filter(|p| !p.frozen);
        for spec in trained() {
            for site in 0..spec.sites {
                let seen = seen.get(&(spec.id.0, site));
                let seen = seen.unwrap_or_else(|| panic!("{} site {site} is missing", spec.name));
                assert!(seen.iter().all(|&c| c == 1), "{} site {site}: {seen:?}", spec.name);
            }
        }
        assert_eq!(seen.len(), trained().map(|p| usize::from(p.sites)).sum::<usize>());
        self.grads.into_inner().unwrap()
    }
}

impl GradSink for Sink {
    fn wants(&self, param: ParamId) -> bool {
        !self.frozen[param.index()]
    }

    fn dense(&self, param: ParamId, site: Site, first: usize, values: &mut [f32]) {
        self.add(param, site, first, values);
        values.fill(f32::NAN);
    }

    fn in_place(
        &self,
        _: &Kit,
        (param, site): (ParamId, Site),
        len: usize,
        fill: &mut dyn FnMut(&mut [f32]),
    ) {
        let mut values = vec![f32::NAN; len];
        fill(&mut values);
        self.add(param, site, 0, &values);
    }

    fn rows(&self, param: ParamId, site: Site, rows: &[u32], values: &mut [f32]) {
        assert!(rows.is_sorted_by(|a, b| a < b), "rows ascend");
        let width = values.len() / rows.len();
        let total = self.grads.lock().unwrap()[param.index()].len() / width;
        let mut all = vec![0.0; total * width];
        for (row, values) in rows.iter().zip(values.chunks_exact(width)) {
            all[*row as usize * width..][..width].copy_from_slice(values);
        }
        self.add(param, site, 0, &all);
        values.fill(f32::NAN);
    }
}

/// Working values: fp32, and 16 bits of both kinds beside them for matrices.
pub(crate) struct Weights {
    pub(crate) f32: Vec<Vec<f32>>,
    bf16: Vec<Vec<bf16>>,
    f16: Vec<Vec<f16>>,
}

impl Weights {
    pub(crate) fn new(values: Vec<Vec<f32>>) -> Weights {
        let bf16 = values.iter().map(|v| v.iter().map(|&x| bf16::from_f32(x)).collect()).collect();
        let f16 = values.iter().map(|v| v.iter().map(|&x| f16::from_f32(x)).collect()).collect();
        Weights { f32: values, bf16, f16 }
    }

    /// All parameters of an imported model.
    pub(crate) fn read(import: &Import, source: &Tensors) -> Weights {
        Weights::new(import.values(source))
    }

    pub(crate) fn values(&self, model: &Model, precision: Precision) -> Vec<ParamValue<'_>> {
        let value = |(i, spec): (usize, &planaria_models::block::ParamSpec)| match precision {
            Precision::Bf16 if spec.is_matrix() => ParamValue::Bf16(&self.bf16[i]),
            Precision::F16 if spec.is_matrix() => ParamValue::F16(&self.f16[i]),
            _ => ParamValue::F32(&self.f32[i]),
        };
        model.params.iter().enumerate().map(value).collect()
    }
}

/// How a leaf is run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mode {
    pub(crate) threads: usize,
    pub(crate) isa: Isa,
    pub(crate) precision: Precision,
    pub(crate) recompute: bool,
}

impl Mode {
    pub(crate) fn plain() -> Mode {
        Mode { threads: 2, isa: Isa::detect(), precision: Precision::F32, recompute: false }
    }
}

/// A golden model, loaded as any Hugging Face folder.
pub(crate) struct Case {
    pub(crate) spec: ModelSpec,
    pub(crate) model: Model,
    pub(crate) weights: Weights,
    pub(crate) leaves: Vec<Inputs>,
}

impl Case {
    pub(crate) fn open(name: &str) -> Case {
        let folder = golden(name);
        let config = std::fs::read(folder.join("config.json")).unwrap();
        let source = Tensors::open(&folder.join("model.safetensors"));
        let import = hf::import(&config, &source).unwrap();
        let weights = Weights::read(&import, &source);
        let tensors = Tensors::open(&folder.join("golden.safetensors"));
        let leaves = leaves(&tensors);
        Case { spec: import.spec, model: import.model, weights, leaves }
    }
}

fn leaves(tensors: &Tensors) -> Vec<Inputs> {
    let shape = &tensors.0["input_ids"].1;
    let shape = LeafShape { sequences: shape[1], length: shape[2] };
    let (ids, labels) = (tensors.i64("input_ids"), tensors.i64("labels"));
    let pairs = ids.chunks(shape.tokens()).zip(labels.chunks(shape.tokens()));
    let leaf = |(ids, labels): (&[i64], &[i64])| Inputs {
        shape,
        tokens: ids.iter().map(|&x| u32::try_from(x).unwrap()).collect(),
        labels: labels.iter().map(|&x| i32::try_from(x).unwrap()).collect(),
    };
    pairs.map(leaf).collect()
}

/// Owned inputs of a leaf.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    pub(crate) shape: LeafShape,
    pub(crate) tokens: Vec<u32>,
    pub(crate) labels: Vec<i32>,
}

impl Inputs {
    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch {
            shape: self.shape,
            tokens: &self.tokens,
            labels: &self.labels,
            positions: None,
            documents: None,
            fields: &[],
        }
    }
}

/// Loss and gradients of some leaves, depth first, and the scores of the first.
pub(crate) struct Outcome {
    pub(crate) stats: Vec<LossStats>,
    pub(crate) grads: Vec<Vec<f32>>,
    pub(crate) scores: Vec<f32>,
}

/// Runs leaves forward and backward; gradients are those of the sum of losses.
pub(crate) fn run(model: &Model, weights: &Weights, leaves: &[Inputs], mode: Mode) -> Outcome {
    let values = weights.values(model, mode.precision);
    let mut total: Vec<Vec<f32>> = model.params.iter().map(|p| vec![0.0; p.elements()]).collect();
    let (mut stats, mut scores) = (Vec::new(), Vec::new());
    for inputs in leaves {
        let plan = LeafPlan::new(model, inputs.shape, mode.precision, mode.recompute);
        let mut cx = Compute::new(mode.threads, mode.isa, mode.precision, plan.scratch_bytes());
        let mut buffers = LeafBuffers::new(&plan);
        let leaf = Leaf { model, params: Params::new(&values), batch: inputs.batch() };
        let sink = Sink::new(model);
        leaf.forward(&mut cx, &mut buffers, &mut |_| {});
        let loss = leaf.loss(&mut cx, &buffers);
        if scores.is_empty() && mode.precision == Precision::F32 {
            scores = vec![0.0; inputs.shape.tokens() * model.vocab];
            let x = buffers.stream(model.blocks.len() - 1);
            model.head.logits(&mut cx, leaf.params, x, &mut scores);
        }
        stats.push(leaf.loss_and_grad(&mut cx, &mut buffers, LossScale { factor: 1.0 }, &sink));
        let bits = |s: &LossStats| (s.loss_sum.to_bits(), s.labels);
        assert_eq!(bits(&loss), bits(&stats[stats.len() - 1]), "the loss alone is the same loss");
        leaf.backward(&mut cx, &mut buffers, &sink, &mut |_| {});
        for (total, grad) in total.iter_mut().zip(sink.finish(model)) {
            total.iter_mut().zip(grad).for_each(|(t, g)| *t += g);
        }
    }
    Outcome { stats, grads: total, scores }
}
