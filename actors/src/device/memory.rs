//! A node's parameters: working values, masters, moments and reduced gradients, one buffer each.
//!
//! A parameter's elements lie end to end, so that a block's kernels read it in place; a chunk is a
//! list of ranges of these buffers. In fp32 the working value *is* the master.

use half::{bf16, f16};
use planaria_base::{ParamId, Span};
use planaria_models::block::{ParamSpec, ParamTable, ParamValue, Precision};
use planaria_models::buffer::Buffer;
use planaria_models::optimizers::{OptimizerSpec, Working};

/// One parameter's buffers.
pub(super) struct ParamMemory {
    pub(super) master: Buffer<f32>,
    /// 16-bit working values; `None` where the master is the working value.
    pub(super) working: Option<WorkingMemory>,
    /// The optimizer's states, in its order.
    pub(super) states: Vec<Buffer<f32>>,
}

/// 16-bit working values.
pub(super) enum WorkingMemory {
    Bf16(Buffer<bf16>),
    F16(Buffer<f16>),
}

impl WorkingMemory {
    fn new(spec: &ParamSpec, precision: Precision) -> Option<WorkingMemory> {
        let len = spec.elements();
        match precision {
            Precision::Bf16 if spec.is_matrix() => Some(WorkingMemory::Bf16(Buffer::zeroed(len))),
            Precision::F16 if spec.is_matrix() => Some(WorkingMemory::F16(Buffer::zeroed(len))),
            _ => None,
        }
    }

    fn bytes(spec: &ParamSpec, precision: Precision) -> usize {
        let has = precision != Precision::F32 && spec.is_matrix();
        if has { Buffer::<u16>::bytes_for(spec.elements()) } else { 0 }
    }

    fn round(&mut self, master: &[f32]) {
        match self {
            WorkingMemory::Bf16(w) => {
                w.iter_mut().zip(master).for_each(|(w, &m)| *w = bf16::from_f32(m));
            }
            WorkingMemory::F16(w) => {
                w.iter_mut().zip(master).for_each(|(w, &m)| *w = f16::from_f32(m));
            }
        }
    }

    fn span(&mut self, at: std::ops::Range<usize>) -> Working<'_> {
        match self {
            WorkingMemory::Bf16(w) => Working::Bf16(&mut w[at]),
            WorkingMemory::F16(w) => Working::F16(&mut w[at]),
        }
    }
}

/// All parameters' buffers, by id.
pub(super) struct ParamsMemory {
    params: Vec<ParamMemory>,
}

/// A span of a parameter, borrowed for an update.
pub(super) struct SpanMut<'a> {
    pub(super) master: &'a mut [f32],
    pub(super) working: Option<Working<'a>>,
    pub(super) states: [&'a mut [f32]; 2],
}

impl ParamsMemory {
    pub(super) fn new(
        specs: &[ParamSpec],
        precision: Precision,
        optimizer: &OptimizerSpec,
    ) -> ParamsMemory {
        let one = |spec: &ParamSpec| ParamMemory {
            master: Buffer::zeroed(spec.elements()),
            working: WorkingMemory::new(spec, precision),
            states: optimizer
                .state_names(spec)
                .iter()
                .map(|_| Buffer::zeroed(spec.elements()))
                .collect(),
        };
        ParamsMemory { params: specs.iter().map(one).collect() }
    }

    /// Bytes that [`ParamsMemory::new`] allocates, exactly.
    pub(super) fn bytes(
        specs: &[ParamSpec],
        precision: Precision,
        optimizer: &OptimizerSpec,
    ) -> usize {
        let one = |spec: &ParamSpec| {
            let states = optimizer.state_names(spec).len();
            let fp32 = Buffer::<f32>::bytes_for(spec.elements()) * (1 + states);
            fp32 + WorkingMemory::bytes(spec, precision)
        };
        specs.iter().map(one).sum()
    }

    pub(super) fn param(&self, id: ParamId) -> &ParamMemory {
        &self.params[id.index()]
    }

    pub(super) fn param_mut(&mut self, id: ParamId) -> &mut ParamMemory {
        &mut self.params[id.index()]
    }

    /// Writes the working copy of every parameter from its master.
    pub(super) fn refresh_working(&mut self) {
        for param in &mut self.params {
            if let Some(working) = &mut param.working {
                working.round(&param.master);
            }
        }
    }

    /// A span's master, states and working values.
    pub(super) fn span_mut(&mut self, span: &Span) -> SpanMut<'_> {
        let param = &mut self.params[span.param.index()];
        let mut states = param.states.iter_mut().map(|s| &mut s[span.range()]);
        SpanMut {
            master: &mut param.master[span.range()],
            working: param.working.as_mut().map(|w| w.span(span.range())),
            states: [states.next().unwrap_or(&mut []), states.next().unwrap_or(&mut [])],
        }
    }
}

impl ParamTable for ParamsMemory {
    fn value(&self, id: ParamId) -> ParamValue<'_> {
        let param = self.param(id);
        match &param.working {
            Some(WorkingMemory::Bf16(working)) => ParamValue::Bf16(working),
            Some(WorkingMemory::F16(working)) => ParamValue::F16(working),
            None => ParamValue::F32(&param.master),
        }
    }
}
