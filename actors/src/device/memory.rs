//! A node's parameters: working values, masters, moments and reduced gradients, one buffer each.
//!
//! A parameter's elements lie end to end, so that a block's kernels read it in place; a chunk is a
//! list of ranges of these buffers. In fp32 the working value *is* the master.

use half::bf16;
use planaria_base::{ParamId, Span};
use planaria_models::block::{ParamSpec, ParamTable, ParamValue, Precision};
use planaria_models::buffer::Buffer;

/// One parameter's buffers.
pub(super) struct ParamMemory {
    pub(super) master: Buffer<f32>,
    /// bf16 working values; `None` where the master is the working value.
    pub(super) working: Option<Buffer<bf16>>,
    /// The optimizer's states, in its order.
    pub(super) states: Vec<Buffer<f32>>,
}

/// All parameters' buffers, by id.
pub(super) struct ParamsMemory {
    params: Vec<ParamMemory>,
}

/// A span of a parameter, borrowed for an update.
pub(super) struct SpanMut<'a> {
    pub(super) master: &'a mut [f32],
    pub(super) working: Option<&'a mut [bf16]>,
    pub(super) states: [&'a mut [f32]; 2],
}

impl ParamsMemory {
    pub(super) fn new(specs: &[ParamSpec], precision: Precision, states: usize) -> ParamsMemory {
        let one = |spec: &ParamSpec| ParamMemory {
            master: Buffer::zeroed(spec.elements()),
            working: has_working(spec, precision).then(|| Buffer::zeroed(spec.elements())),
            states: (0..states_of(spec, states)).map(|_| Buffer::zeroed(spec.elements())).collect(),
        };
        ParamsMemory { params: specs.iter().map(one).collect() }
    }

    /// Bytes that [`ParamsMemory::new`] allocates, exactly.
    pub(super) fn bytes(specs: &[ParamSpec], precision: Precision, states: usize) -> usize {
        let one = |spec: &ParamSpec| {
            let fp32 = Buffer::<f32>::bytes_for(spec.elements()) * (1 + states_of(spec, states));
            let working = Buffer::<bf16>::bytes_for(spec.elements());
            fp32 + if has_working(spec, precision) { working } else { 0 }
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
                for (w, m) in working.iter_mut().zip(param.master.iter()) {
                    *w = bf16::from_f32(*m);
                }
            }
        }
    }

    /// A span's master, states and working values.
    pub(super) fn span_mut(&mut self, span: &Span) -> SpanMut<'_> {
        let param = &mut self.params[span.param.index()];
        let mut states = param.states.iter_mut().map(|s| &mut s[span.range()]);
        SpanMut {
            master: &mut param.master[span.range()],
            working: param.working.as_mut().map(|w| &mut w[span.range()]),
            states: [states.next().unwrap_or(&mut []), states.next().unwrap_or(&mut [])],
        }
    }
}

impl ParamTable for ParamsMemory {
    fn value(&self, id: ParamId) -> ParamValue<'_> {
        let param = self.param(id);
        match &param.working {
            Some(working) => ParamValue::Bf16(working),
            None => ParamValue::F32(&param.master),
        }
    }
}

/// A parameter that stays as it is has no states.
fn states_of(spec: &ParamSpec, states: usize) -> usize {
    if spec.frozen { 0 } else { states }
}

fn has_working(spec: &ParamSpec, precision: Precision) -> bool {
    precision == Precision::Bf16 && spec.is_matrix()
}
