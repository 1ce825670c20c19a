//! One chunk's numbers on one node: master, optimizer states, the sum in the making, the record.
//!
//! The protocol's holder decides; a shard does. It never looks at views or peers, and what it does is
//! a function of what it is told, in order.

use super::values::ValuesLayout;
use super::vault::Vault;
use super::working::Working;
use crate::layout::Layout;
use crate::protocol::decision::Decision;
use crate::protocol::log::LogMark;
use crate::protocol::record::{Flags, Record};
use bytes::Bytes;
use planaria_base::{ChunkId, Digest, Step};
use planaria_models::buffer::Buffer;
use planaria_models::compute::Kit;
use planaria_models::kernels::elementwise::sum_of_squares_parallel;
use planaria_models::kernels::optimizer::update_parallel;
use planaria_models::kernels::piece::Piece;
use planaria_models::optimizers::{Elements, OptimizerSpec, Update};
use planaria_models::partials::{
    ChunkPlace, ChunkSum, Lanes, PartTable, Partial, SumPools, ValuesRef,
};
use planaria_models::schedules::ScheduleSpec;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What all shards of a node share.
pub struct ShardCx {
    /// Parameters and chunks.
    pub layout: Arc<Layout>,
    /// Where gradients lie.
    pub parts: Arc<PartTable>,
    /// Where working values lie.
    pub values: Arc<ValuesLayout>,
    /// Threads of updates and sums.
    pub kit: Kit,
    /// Free buffers.
    pub pools: SumPools,
    /// The optimizer: one whose updates are elementwise.
    pub optimizer: OptimizerSpec,
    /// Cycles betas, if it does.
    pub schedule: ScheduleSpec,
    /// Optimizer states of a chunk.
    pub states: usize,
    /// First values and checkpoints.
    pub vault: Arc<dyn Vault>,
    /// In fp32 with resident values the working value is the master.
    pub master_in_working: bool,
    /// Partial sums of squares.
    pub squares: Buffer<f64>,
    /// Scratch states that are free.
    pub spare: Vec<Scratch>,
}

/// The next state of a chunk, before its hash is compared.
pub struct Scratch {
    step: Step,
    master: Buffer<f32>,
    states: Vec<Buffer<f32>>,
    hash: Digest,
    /// A skipped step: the state stays as it is.
    unchanged: bool,
}

/// A reduced gradient: our own, or as it came.
#[derive(Clone)]
enum Gradient {
    Own(Arc<Piece<f32>>),
    Came(Bytes),
}

struct PieceBytes(Arc<Piece<f32>>);

impl AsRef<[u8]> for PieceBytes {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

impl Gradient {
    fn bytes(&self) -> Bytes {
        match self {
            Gradient::Own(piece) => Bytes::from_owner(PieceBytes(piece.clone())),
            Gradient::Came(bytes) => bytes.clone(),
        }
    }

    fn values(&self) -> &[f32] {
        match self {
            Gradient::Own(piece) => piece,
            Gradient::Came(bytes) => bytemuck::cast_slice(bytes),
        }
    }
}

/// Records that a shard keeps at most: what a learner may queue, and one more.
const QUEUED: usize = 8;

/// One chunk's numbers.
pub struct Shard {
    chunk: ChunkId,
    /// The state is that after this step.
    step: Option<Step>,
    /// `None` where the working value is the master.
    master: Option<Buffer<f32>>,
    states: Vec<Buffer<f32>>,
    agreed: Digest,
    sum: Option<ChunkSum>,
    /// Records of later steps: one, or a learner's queue.
    records: BTreeMap<Step, (Record, Gradient)>,
    scratch: Option<Scratch>,
    /// The values for the wire, made once a step.
    body: Option<(Step, Bytes)>,
}

/// Bytes on a 4-byte boundary, copied only if they are not.
fn aligned(bytes: Bytes) -> Bytes {
    if bytes.as_ptr().align_offset(8) == 0 {
        return bytes;
    }
    let mut copy = Buffer::<u8>::zeroed(bytes.len());
    copy.copy_from_slice(&bytes);
    Bytes::from_owner(OwnedBuffer(copy))
}

struct OwnedBuffer(Buffer<u8>);

impl AsRef<[u8]> for OwnedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The digest of a chunk's state: of each parameter's stretch, its master and its states.
fn digest(place: &ChunkPlace, master: &[f32], states: &[Buffer<f32>]) -> Digest {
    let parts = place.stretches.iter().flat_map(|s| {
        let at = s.offset..s.offset + s.len;
        let tensors = std::iter::once(master).chain(states.iter().map(|t| &**t));
        tensors.map(move |t| Digest::of(bytemuck::cast_slice(&t[at.clone()])))
    });
    Digest::of_all(parts)
}

impl Shard {
    /// A shard without a state.
    #[must_use]
    pub fn new(chunk: ChunkId) -> Shard {
        Shard {
            chunk,
            step: None,
            master: None,
            states: Vec::new(),
            agreed: Digest::default(),
            sum: None,
            records: BTreeMap::new(),
            scratch: None,
            body: None,
        }
    }

    /// The state is that after this step.
    #[must_use]
    pub fn step(&self) -> Option<Step> {
        self.step
    }

    fn allocate(&mut self, cx: &ShardCx) {
        let len = cx.parts.chunks[self.chunk.index()].len;
        if self.states.is_empty() {
            self.states = (0..cx.states).map(|_| Buffer::zeroed(len)).collect();
        }
        if !cx.master_in_working {
            self.master.get_or_insert_with(|| Buffer::zeroed(len));
        }
    }

    fn master<'a>(&'a self, cx: &ShardCx, working: &'a Working) -> &'a [f32] {
        match &self.master {
            Some(master) => master,
            None => {
                let values = working.values(self.chunk).expect("resident values are there");
                &values.single[cx.values.chunks[self.chunk.index()].single.clone()]
            }
        }
    }

    fn digest(&self, cx: &ShardCx, working: &Working) -> Digest {
        digest(&cx.parts.chunks[self.chunk.index()], self.master(cx, working), &self.states)
    }

    fn with_tensors<R>(
        &mut self,
        cx: &ShardCx,
        working: &mut Working,
        f: impl FnOnce(&mut [&mut [f32]]) -> R,
    ) -> R {
        let master: &mut [f32] = match &mut self.master {
            Some(master) => master,
            None => {
                let range = cx.values.chunks[self.chunk.index()].single.clone();
                &mut working.values_mut(self.chunk).single[range]
            }
        };
        let mut tensors = vec![master];
        tensors.extend(self.states.iter_mut().map(|s| &mut **s));
        f(&mut tensors)
    }

    /// Loads the state after `step`: the first values, or a checkpoint's.
    ///
    /// # Errors
    /// As the vault's.
    pub fn restore(
        &mut self,
        cx: &ShardCx,
        working: &mut Working,
        (step, log): (Step, LogMark),
    ) -> Result<Digest, String> {
        self.forget();
        self.allocate(cx);
        let chunk = cx.layout.table.chunk(self.chunk);
        self.with_tensors(cx, working, |tensors| {
            if step.0 > 0 {
                return cx.vault.load((step, log), chunk, tensors);
            }
            tensors[1..].iter_mut().for_each(|t| t.fill(0.0));
            let mut at = 0;
            for span in &chunk.spans {
                let len = span.len as usize;
                cx.vault.initial(span, &mut tensors[0][at..at + len])?;
                at += len;
            }
            Ok(())
        })?;
        self.arrive(cx, working, step);
        self.agreed = self.digest(cx, working);
        Ok(self.agreed)
    }

    /// A whole state lies in master and states: the working values follow.
    fn arrive(&mut self, cx: &ShardCx, working: &mut Working, step: Step) {
        self.step = Some(step);
        self.body = None;
        // Later values, gathered for a lot, are not overwritten by a copy that lags.
        if !working.is_resident() || working.at(self.chunk) > Some(step) {
            return;
        }
        if let Some(master) = &self.master {
            cx.values.write_master(self.chunk, master, working.values_mut(self.chunk));
        }
        if cx.master_in_working {
            self.master = None;
        }
        working.mark(self.chunk, Some(step));
    }

    /// Other values are about to be written over a master that lies in the working values.
    pub fn detach(&mut self, cx: &ShardCx, working: &Working) {
        if self.master.is_none() && self.step.is_some() {
            let from = self.master(cx, working);
            let mut own = Buffer::zeroed(from.len());
            own.copy_from_slice(from);
            self.master = Some(own);
        }
    }

    fn forget(&mut self) {
        self.step = None;
        self.sum = None;
        self.records.clear();
        self.scratch = None;
        self.body = None;
    }

    /// Adds a partial that came, or that is needed elsewhere too. False: it does not fit.
    pub fn add(&mut self, cx: &ShardCx, lanes: Lanes, values: ValuesRef<'_>) -> bool {
        let sum = self.sum.get_or_insert_with(|| new_sum(cx, self.chunk));
        sum.add(lanes, values, &cx.pools).is_ok()
    }

    /// Adds a partial's body.
    pub fn add_body(&mut self, cx: &ShardCx, lanes: Lanes, body: Bytes) -> bool {
        let body = aligned(body);
        ValuesRef::parse(lanes.form, &body).is_some_and(|values| self.add(cx, lanes, values))
    }

    /// Adds a partial that nobody else needs.
    pub fn add_owned(&mut self, cx: &ShardCx, partial: Partial) -> bool {
        let sum = self.sum.get_or_insert_with(|| new_sum(cx, self.chunk));
        sum.add_owned(partial, &cx.pools).is_ok()
    }

    /// Forgets the sum.
    pub fn zero_sum(&mut self) {
        self.sum = None;
    }

    /// Turns the sum into the record; nothing if a lane is wrong.
    pub fn fix(&mut self, cx: &mut ShardCx, step: Step, alone: bool) -> Option<Record> {
        let fixed = match self.sum.take()?.fix(&cx.pools) {
            Ok(fixed) => fixed,
            Err(error) => {
                tracing::warn!(chunk = %self.chunk, %error, "a sum is in doubt");
                return None;
            }
        };
        let mut squares = 0.0;
        for s in &cx.parts.chunks[self.chunk.index()].stretches {
            let stretch = &fixed.gradient[s.offset..s.offset + s.len];
            squares += sum_of_squares_parallel(&cx.kit, stretch, &mut cx.squares);
        }
        let digest = if alone {
            Digest::default()
        } else {
            Digest::of(bytemuck::cast_slice(&fixed.gradient))
        };
        let record = Record {
            step,
            digest,
            flags: Flags(fixed.flags),
            sum_of_squares: squares.to_bits(),
            labels: fixed.labels,
            loss: fixed.loss,
        };
        let gradient = Gradient::Own(Arc::new(fixed.gradient));
        self.records.insert(step, (record, gradient));
        Some(record)
    }

    /// Keeps a record that came; a body that is not what the record says is dropped.
    pub fn store_record(&mut self, cx: &ShardCx, record: Record, body: Bytes) {
        let body = aligned(body);
        let whole = body.len() == 4 * cx.parts.chunks[self.chunk.index()].len;
        if whole && (record.digest == Digest::default() || record.digest == Digest::of(&body)) {
            self.records.insert(record.step, (record, Gradient::Came(body)));
            // What the protocol no longer queues is not kept either.
            while self.records.len() > QUEUED {
                self.records.pop_first();
            }
        }
    }

    /// The reduced gradient, for a replica.
    #[must_use]
    pub fn record_body(&self, step: Step) -> Option<Bytes> {
        self.records.get(&step).map(|r| r.1.bytes())
    }

    /// Computes the state after the decision's step: in place where nobody compares it, else in
    /// scratch. Returns its hash (zero where nobody compares it).
    pub fn update(
        &mut self,
        cx: &mut ShardCx,
        working: &mut Working,
        decision: &Decision,
        alone: bool,
    ) -> Option<Digest> {
        let hash_now = |shard: &Shard, cx: &ShardCx, working: &Working| {
            if alone { Digest::default() } else { shard.digest(cx, working) }
        };
        if self.step == Some(decision.step) {
            self.agreed = hash_now(self, cx, working);
            return Some(self.agreed);
        }
        if self.step.map(|s| s.0 + 1) != Some(decision.step.0) {
            return None;
        }
        if !decision.commit {
            let hash = hash_now(self, cx, working);
            self.scratch = Some(Scratch {
                step: decision.step,
                master: Buffer::zeroed(0),
                states: Vec::new(),
                hash,
                unchanged: true,
            });
            return Some(hash);
        }
        let gradient = self.records.get(&decision.step)?.1.clone();
        if alone {
            self.update_in_place(cx, working, decision, gradient.values());
            self.step = Some(decision.step);
            self.agreed = Digest::default();
            return Some(self.agreed);
        }
        let mut scratch = self.scratch_copy(cx, working, decision.step);
        apply(cx, decision, gradient.values(), &mut scratch.master, &mut scratch.states);
        let place = &cx.parts.chunks[self.chunk.index()];
        scratch.hash = digest(place, &scratch.master, &scratch.states);
        let hash = scratch.hash;
        self.scratch = Some(scratch);
        Some(hash)
    }

    fn update_in_place(
        &mut self,
        cx: &ShardCx,
        working: &mut Working,
        decision: &Decision,
        gradient: &[f32],
    ) {
        let place = &cx.values.chunks[self.chunk.index()];
        if self.master.is_none() {
            let master = &mut working.values_mut(self.chunk).single[place.single.clone()];
            return apply(cx, decision, gradient, master, &mut self.states);
        }
        let Some(master) = &mut self.master else { return };
        apply(cx, decision, gradient, master, &mut self.states);
    }

    fn scratch_copy(&self, cx: &mut ShardCx, working: &Working, step: Step) -> Scratch {
        let master = self.master(cx, working);
        let fits = |s: &Scratch| s.master.len() == master.len();
        let at = cx.spare.iter().position(fits);
        let mut scratch = at.map_or_else(
            || Scratch {
                step,
                master: Buffer::zeroed(master.len()),
                states: self.states.iter().map(|s| Buffer::zeroed(s.len())).collect(),
                hash: Digest::default(),
                unchanged: false,
            },
            |at| cx.spare.swap_remove(at),
        );
        scratch.step = step;
        scratch.master.copy_from_slice(master);
        for (to, from) in scratch.states.iter_mut().zip(&self.states) {
            to.copy_from_slice(from);
        }
        scratch
    }

    /// State and record are what was agreed.
    #[must_use]
    pub fn verify(&self, cx: &ShardCx, working: &Working) -> bool {
        let unnamed = |d: Digest| d == Digest::default();
        let state = unnamed(self.agreed) || self.agreed == self.digest(cx, working);
        let record = self.records.values().all(|(record, gradient)| {
            unnamed(record.digest) || record.digest == Digest::of(&gradient.bytes())
        });
        state && record
    }

    /// The compared next state becomes the state.
    pub fn swap(&mut self, cx: &mut ShardCx, working: &mut Working, step: Step) {
        self.records = self.records.split_off(&Step(step.0 + 1));
        if let Some(mut scratch) = self.scratch.take_if(|s| s.step == step) {
            self.agreed = scratch.hash;
            if !scratch.unchanged {
                match &mut self.master {
                    Some(master) => std::mem::swap(master, &mut scratch.master),
                    None => {
                        let range = cx.values.chunks[self.chunk.index()].single.clone();
                        working.values_mut(self.chunk).single[range]
                            .copy_from_slice(&scratch.master);
                    }
                }
                std::mem::swap(&mut self.states, &mut scratch.states);
                cx.spare.push(scratch);
            }
        }
        self.arrive(cx, working, step);
    }

    /// Takes a whole state that came; false if it is not what was said.
    pub fn store_copy(
        &mut self,
        cx: &ShardCx,
        working: &mut Working,
        (step, hash): (Step, Digest),
        body: &Bytes,
    ) -> bool {
        let body = aligned(body.clone());
        let len = cx.parts.chunks[self.chunk.index()].len;
        // Records of later steps that came before the copy are what it catches up with.
        let later = self.records.split_off(&Step(step.0 + 1));
        self.forget();
        self.records = later;
        self.master = None;
        if cx.master_in_working && working.at(self.chunk) > Some(step) {
            self.master = Some(Buffer::zeroed(len));
        }
        self.allocate(cx);
        if body.len() != 4 * len * (1 + self.states.len()) {
            return false;
        }
        let values: &[f32] = bytemuck::cast_slice(&body);
        self.with_tensors(cx, working, |tensors| {
            for (to, from) in tensors.iter_mut().zip(values.chunks_exact(len)) {
                to.copy_from_slice(from);
            }
        });
        self.agreed = hash;
        self.arrive(cx, working, step);
        hash == Digest::default() || hash == self.digest(cx, working)
    }

    /// The whole state after `step`, for a learner.
    #[must_use]
    pub fn copy_body(&self, cx: &ShardCx, working: &Working, step: Step) -> Option<Bytes> {
        if self.step != Some(step) {
            return None;
        }
        let mut body = Vec::with_capacity(4 * self.states.iter().map(|s| s.len()).sum::<usize>());
        body.extend_from_slice(bytemuck::cast_slice(self.master(cx, working)));
        for state in &self.states {
            body.extend_from_slice(bytemuck::cast_slice(state));
        }
        Some(Bytes::from(body))
    }

    /// The working values after `step`, for a member that gathers.
    pub fn values_body(&mut self, cx: &ShardCx, working: &Working, step: Step) -> Option<Bytes> {
        if self.step != Some(step) {
            return None;
        }
        if let Some((at, body)) = &self.body
            && *at == step
        {
            return Some(body.clone());
        }
        let made = match (&self.master, working.values(self.chunk)) {
            (Some(master), _) => cx.values.body_of_master(self.chunk, master),
            (None, Some(values)) => cx.values.body(self.chunk, values),
            (None, None) => return None,
        };
        let body = Bytes::from(made);
        self.body = Some((step, body.clone()));
        Some(body)
    }

    /// Writes the values into a group that is being gathered; false if they are of another step.
    pub fn fill(&self, cx: &ShardCx, working: &mut Working, step: Step) -> bool {
        let Some(master) = self.master.as_ref().filter(|_| self.step == Some(step)) else {
            return false;
        };
        cx.values.write_master(self.chunk, master, working.values_mut(self.chunk));
        working.mark(self.chunk, Some(step));
        true
    }

    /// Writes the state to the checkpoint of `step`.
    ///
    /// # Errors
    /// As the vault's, or if the state is of another step.
    pub fn persist(
        &self,
        cx: &ShardCx,
        working: &Working,
        (step, log): (Step, LogMark),
    ) -> Result<Digest, String> {
        if self.step != Some(step) {
            return Err(format!("chunk {} is past step {step}", self.chunk));
        }
        let mut tensors = vec![self.master(cx, working)];
        tensors.extend(self.states.iter().map(|s| &**s));
        cx.vault.store((step, log), cx.layout.table.chunk(self.chunk), &tensors)?;
        Ok(self.digest(cx, working))
    }
}

fn new_sum(cx: &ShardCx, chunk: ChunkId) -> ChunkSum {
    ChunkSum::new(cx.parts.clone(), cx.kit.isa, chunk)
}

fn apply(
    cx: &ShardCx,
    decision: &Decision,
    gradient: &[f32],
    master: &mut [f32],
    states: &mut [Buffer<f32>],
) {
    let update = Update {
        t: decision.updates,
        learning_rate: f64::from_bits(decision.rate),
        gradient_factor: f32::from_bits(decision.factor),
        betas: cx.schedule.betas(decision.updates - 1),
    };
    let mut states = states.iter_mut().map(|s| &mut **s);
    let first = states.next().unwrap_or(&mut []);
    let second = states.next().unwrap_or(&mut []);
    let elements = Elements { gradient, master, first, second, working: None };
    update_parallel(&cx.kit, &cx.optimizer, update, elements);
}
