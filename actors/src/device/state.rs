//! Making a device, and its state at a step boundary: first values, updates, digests, tensors out
//! and in.

use super::Device;
use super::leaves::{ActivationPlan, LeafMemory};
use super::memory::ParamsMemory;
use crate::data::{LeafSource, SampleOrder};
use crate::layout::Layout;
use crate::spec::RunSpec;
use crate::step::Attempt;
use crate::step::decision::{Decision, Skip, Verdict};
use crate::step::schedule::Order;
use planaria_base::rng::CounterRng;
use planaria_base::tensor_source::TensorSource;
use planaria_base::{ChunkId, DType, Digest, ParamId, Span, Step};
use planaria_models::block::{Init, LeafShape, LossScale, Model, ParamSpec};
use planaria_models::buffer::Buffer;
use planaria_models::compute::Compute;
use planaria_models::gradients::{Gradients, SumOutcome};
use planaria_models::kernels::Isa;
use planaria_models::kernels::elementwise::squares_partials;
use planaria_models::loss_scale::ScaleState;
use planaria_models::optimizers::{Elements, Update};
use planaria_models::packing::PackingPlan;

/// Parameters that a message names at most.
const NAMED: usize = 4;

/// How a device executes a run: nothing here changes a bit of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceSetup {
    /// Compute threads.
    pub threads: usize,
    /// Instruction set.
    pub isa: Isa,
    /// Order of blocks and leaves.
    pub order: Order,
    /// Recompute what backward needs instead of keeping it.
    pub recompute: bool,
}

/// What a device allocates, by purpose, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct MemoryPlan {
    /// Masters, moments and working values.
    pub parameters: usize,
    /// fp32 gradients.
    pub gradients: usize,
    /// i64 sums that exist at once.
    pub sums: usize,
    /// Inputs, streams and saved slots of the leaves in flight.
    pub activations: usize,
    /// Scratch that blocks carve up.
    pub scratch: usize,
    /// Packed operands of matrix products.
    pub packing: usize,
}

impl MemoryPlan {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> usize {
        let kept = self.parameters + self.gradients + self.sums;
        kept + self.activations + self.scratch + self.packing
    }

    /// What a device for `spec` allocates under `setup`.
    #[must_use]
    pub fn of(spec: &RunSpec, model: &Model, setup: &DeviceSetup) -> MemoryPlan {
        let activation = plan(spec, setup);
        let layout = Layout::of(model, spec.chunk_elements, &spec.optimizer);
        let all = setup.order == Order::DepthFirst;
        MemoryPlan {
            parameters: ParamsMemory::bytes(&model.params, spec.precision, &spec.optimizer),
            gradients: Gradients::bytes(&model.params),
            sums: Gradients::wide_bytes(&model.params, spec.leaves, &layout.groups, all),
            activations: LeafMemory::bytes(model, spec.precision, activation),
            scratch: scratch_bytes(spec, model),
            packing: PackingPlan {
                spec: &spec.model,
                model,
                optimizer: &spec.optimizer,
                leaf: shape(spec),
                precision: spec.precision,
                machine: (setup.isa, setup.threads),
            }
            .bytes(),
        }
    }
}

fn plan(spec: &RunSpec, setup: &DeviceSetup) -> ActivationPlan {
    ActivationPlan {
        order: setup.order,
        recompute: setup.recompute,
        leaves: spec.leaves,
        shape: shape(spec),
    }
}

fn shape(spec: &RunSpec) -> LeafShape {
    LeafShape { sequences: spec.sequences, length: spec.length }
}

fn scratch_bytes(spec: &RunSpec, model: &Model) -> usize {
    let (shape, precision) = (shape(spec), spec.precision);
    let blocks = model.blocks.iter().map(|b| b.plan(shape, precision).scratch_bytes);
    let head = model.head.plan(shape, precision).scratch_bytes;
    let optimizer = spec.optimizer.scratch_bytes(&model.params);
    blocks.chain([head, optimizer]).max().unwrap_or(0)
}

/// A tensor of the state, as a checkpoint stores it: fp32, by name.
#[derive(Clone, PartialEq, Debug)]
pub struct TensorExport {
    /// The parameter's name, or `name.state` for a moment.
    pub name: String,
    /// Row-major shape.
    pub shape: Vec<usize>,
}

impl Device {
    /// A device with all its memory, its parameters drawn from the run's seed.
    #[must_use]
    pub fn new(spec: &RunSpec, setup: &DeviceSetup, source: Box<dyn LeafSource>) -> Device {
        let model = spec.model.build();
        let layout = Layout::of(&model, spec.chunk_elements, &spec.optimizer);
        let spans = layout.table.chunks.iter().flat_map(|c| &c.spans);
        let partials = squares_partials(spans.map(|s| s.len).max().unwrap_or(0) as usize);
        let samples = SampleOrder {
            seed: spec.seed,
            samples: source.samples(),
            leaves: spec.leaves,
            sequences: spec.sequences as u32,
        };
        let no_outcome = SumOutcome { flagged: false, not_finite: false, exactly_once: false };
        let mut params = ParamsMemory::new(&model.params, spec.precision, &spec.optimizer);
        model.params.iter().for_each(|p| draw(p, spec.seed, &mut params.param_mut(p.id).master));
        params.refresh_working();
        Device {
            compute: Compute::new(
                setup.threads,
                setup.isa,
                spec.precision,
                scratch_bytes(spec, &model),
            ),
            samples,
            source,
            scale: LossScale { factor: spec.leaf_factor() },
            scaler: spec.loss_scaler(),
            optimizer: spec.optimizer,
            schedule: spec.schedule,
            params,
            gradients: Gradients::new(setup.isa, &model.params, spec.leaves, spec.grid_max_log2),
            squares: Buffer::zeroed(partials),
            outcomes: vec![no_outcome; model.params.len()],
            leaves: LeafMemory::new(&model, spec.precision, plan(spec, setup)),
            states: vec![Step(0); layout.table.chunks.len()],
            updates: 0,
            at: Attempt::default(),
            watch: None,
            layout,
            model,
        }
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The chunks and groups.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The step whose result the memory holds, and updates applied so far.
    #[must_use]
    pub fn state(&self) -> (Step, u64) {
        (self.states.first().copied().unwrap_or_default(), self.updates)
    }

    /// Bytes of the i64 sums allocated so far.
    #[must_use]
    pub fn sum_bytes(&self) -> usize {
        self.gradients.wide_bytes_held()
    }

    /// Bytes that matrix products use for packing at present.
    #[must_use]
    pub fn packing_bytes(&self) -> usize {
        self.compute.kit.packing.bytes()
    }

    pub(super) fn update(&mut self, chunk: ChunkId, decision: &Decision) {
        let update = Update {
            t: decision.updates,
            learning_rate: decision.learning_rate,
            gradient_factor: decision.gradient_factor,
            betas: self.schedule.betas(decision.updates - 1),
        };
        for span in &self.layout.table.chunk(chunk).spans {
            let gradient = &self.gradients.gradient(span.param)[span.range()];
            let s = self.params.span_mut(span);
            let [first, second] = s.states;
            let elements =
                Elements { gradient, master: s.master, first, second, working: s.working };
            let param = &self.model.params[span.param.index()];
            self.optimizer.apply(self.compute.split(), param, update, elements);
        }
    }

    /// The loss scaler's state, in fp16.
    #[must_use]
    pub fn loss_scale(&self) -> Option<ScaleState> {
        self.scaler.map(|s| s.state())
    }

    /// Takes the loss scaler's state of a checkpoint.
    pub fn restore_loss_scale(&mut self, state: ScaleState) {
        self.scaler = self.scaler.map(|s| s.at(state));
    }

    /// Ends a step that applied nothing, or moves the loss scale after one that did.
    ///
    /// # Errors
    /// If the gradients overflowed at the smallest loss scale: names parameters with infinities. The
    /// state is that of the step.
    pub(crate) fn finish_step(&mut self, decision: &Decision) -> Result<(), String> {
        if !decision.is_commit() {
            self.states.fill(decision.step);
        }
        let overflowed = matches!(decision.verdict, Verdict::Skip(Skip::NotFinite(_)));
        let Some(scaler) = self.scaler.filter(|_| decision.is_commit() || overflowed) else {
            return Ok(());
        };
        self.scaler = Some(scaler.after(overflowed).map_err(|error| {
            let bad = self.model.params.iter().filter(|p| self.outcomes[p.id.index()].not_finite);
            let names: Vec<&str> = bad.map(|p| p.name.as_str()).take(NAMED).collect();
            format!("step {}: {error}; infinite in {}", decision.step, names.join(", "))
        })?);
        Ok(())
    }

    /// The digest of the state: of each chunk's masters and moments, in chunk order, of the step, of
    /// the updates applied and, in fp16, of the loss scaler.
    ///
    /// # Cost
    /// Reads every master and moment once.
    #[must_use]
    pub fn state_hash(&self) -> Digest {
        let (step, updates) = self.state();
        let mut header: Vec<u8> = [step.0, updates].iter().flat_map(|n| n.to_le_bytes()).collect();
        if let Some(s) = self.loss_scale() {
            let words = [u64::from(s.scale), s.step, s.clean_since, u64::from(s.hysteresis_left)];
            header.extend(words.iter().flat_map(|n| n.to_le_bytes()));
        }
        let chunks = &self.layout.table.chunks;
        let digests: Vec<std::sync::OnceLock<Digest>> =
            chunks.iter().map(|_| std::sync::OnceLock::new()).collect();
        self.compute.kit.pool.run(chunks.len(), &|i, _| {
            let _ = digests[i].set(self.chunk_digest(&chunks[i].spans));
        });
        let each = digests.iter().map(|d| d.get().copied().unwrap_or_default());
        Digest::of_all([Digest::of(&header)].into_iter().chain(each))
    }

    fn chunk_digest(&self, spans: &[Span]) -> Digest {
        let parts = spans.iter().flat_map(|span| {
            let param = self.params.param(span.param);
            let masters = std::iter::once(&param.master);
            masters.chain(&param.states).map(|b| Digest::of(bytemuck::cast_slice(&b[span.range()])))
        });
        Digest::of_all(parts)
    }

    /// Names and shapes of the state's tensors, in the order of [`Device::tensor`].
    #[must_use]
    pub fn tensors(&self) -> Vec<TensorExport> {
        let one = |p: &ParamSpec| {
            let names = self.optimizer.state_names(p);
            let masters = std::iter::once(p.name.clone());
            let names = if p.frozen { &[][..] } else { names };
            let all = masters.chain(names.iter().map(|n| format!("{}.{n}", p.name)));
            all.map(|name| TensorExport { name, shape: p.shape.clone() }).collect::<Vec<_>>()
        };
        self.model.params.iter().flat_map(one).collect()
    }

    /// The values of tensor `index` of [`Device::tensors`].
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn tensor(&self, index: usize) -> &[f32] {
        let (id, part) = self.locate(index);
        let param = self.params.param(id);
        match part {
            0 => &param.master,
            state => &param.states[state - 1],
        }
    }

    /// Whose tensor `index` is, and whether it is its master (0) or which of its states.
    fn locate(&self, index: usize) -> (ParamId, usize) {
        let mut part = index;
        for param in &self.model.params {
            let tensors = 1 + self.optimizer.state_names(param).len();
            if part < tensors {
                return (param.id, part);
            }
            part -= tensors;
        }
        panic!("tensor {index} is past the last")
    }

    /// Takes the state after `step` from named fp32 tensors.
    ///
    /// # Errors
    /// Names the first tensor that is missing or of another shape or dtype; the state is then mixed,
    /// and the device must not be used.
    pub fn restore(
        &mut self,
        source: &dyn TensorSource,
        step: Step,
        updates: u64,
    ) -> Result<(), String> {
        for (index, export) in self.tensors().into_iter().enumerate() {
            let (id, part) = self.locate(index);
            let param = self.params.param_mut(id);
            let to: &mut [f32] = match part {
                0 => &mut param.master,
                state => &mut param.states[state - 1],
            };
            copy_tensor(source, &export, to)?;
        }
        self.params.refresh_working();
        self.states.fill(step);
        self.updates = updates;
        self.at = Attempt { step, number: 0 };
        Ok(())
    }

    /// Takes only the masters, in any floating dtype: a run that starts from given weights.
    ///
    /// # Errors
    /// As [`Device::restore`].
    pub fn load_weights(&mut self, weights: Vec<Vec<f32>>) -> Result<(), String> {
        if weights.len() != self.model.params.len() {
            return Err("the weights are of another model".to_owned());
        }
        for (spec, values) in self.model.params.iter().zip(weights) {
            let master = &mut self.params.param_mut(spec.id).master;
            if values.len() != master.len() {
                return Err(format!("{} has {} elements", spec.name, values.len()));
            }
            master.copy_from_slice(&values);
        }
        self.params.refresh_working();
        Ok(())
    }
}

fn copy_tensor(
    source: &dyn TensorSource,
    export: &TensorExport,
    to: &mut [f32],
) -> Result<(), String> {
    let name = &export.name;
    let tensor = source.tensor(name).ok_or_else(|| format!("tensor {name} is missing"))?;
    if tensor.dtype != DType::F32 || tensor.shape != export.shape {
        let (dtype, shape) = (tensor.dtype, tensor.shape);
        return Err(format!("tensor {name} is {dtype} {shape:?}, expected f32 {:?}", export.shape));
    }
    for (to, from) in to.iter_mut().zip(tensor.bytes.chunks_exact(4)) {
        *to = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
    }
    Ok(())
}

/// Fills a parameter as its spec says. Normal values are Box and Muller's, from a counter generator
/// keyed by (seed, parameter, element), with `libm`'s functions in f64.
fn draw(spec: &ParamSpec, seed: u64, values: &mut [f32]) {
    match spec.init {
        Init::Zeros => values.fill(0.0),
        Init::Ones => values.fill(1.0),
        Init::Normal { std } => {
            let rng = CounterRng::new(seed).fork(0x696e_6974).fork(u64::from(spec.id.0));
            for (pair, values) in values.chunks_mut(2).enumerate() {
                let u = 1.0 - rng.uniform(2 * pair as u64);
                let angle = 2.0 * std::f64::consts::PI * rng.uniform(2 * pair as u64 + 1);
                let radius = f64::from(std) * libm::sqrt(-2.0 * libm::log(u));
                let both = [radius * libm::cos(angle), radius * libm::sin(angle)];
                values.iter_mut().zip(both).for_each(|(v, x)| *v = x as f32);
            }
        }
    }
}
