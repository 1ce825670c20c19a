//! Checkpoints of a ring: every node writes its own chunks into one folder.

use crate::ring::intro::RunIntro;
use planaria_actors::protocol::decision::Decision;
use planaria_actors::protocol::log::{CommandLog, LogMark};
use planaria_actors::ring::vault::{Vault, draw};
use planaria_base::tensor_source::TensorSource;
use planaria_base::{Chunk, DType, Digest, Span, Step};
use planaria_models::block::ParamSpec;
use planaria_storage::checkpoint::{Checkpoint, Checkpoints, SaveRequest, SharedSave};
use planaria_storage::safetensors::{SafetensorsFile, TensorInfo};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Saves = BTreeMap<(Step, String), Arc<SharedSave>>;

/// A run's first values and checkpoints on disk.
pub(crate) struct CheckpointVault {
    intro: RunIntro,
    params: Vec<ParamSpec>,
    states: &'static [&'static str],
    checkpoints: Checkpoints,
    saves: Mutex<Saves>,
    loaded: Mutex<Option<(Step, Arc<SafetensorsFile>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CheckpointVault {
    /// The vault of a run whose checkpoints lie in `checkpoints`.
    pub(crate) fn new(intro: RunIntro, checkpoints: Checkpoints) -> CheckpointVault {
        let params = intro.spec.model.build().params;
        let states = intro.spec.optimizer.state_names(&params[0]);
        let (saves, loaded) = (Mutex::default(), Mutex::default());
        CheckpointVault { intro, params, states, checkpoints, saves, loaded }
    }

    fn names(&self, param: &ParamSpec) -> Vec<String> {
        let state = |s: &&str| format!("{}.{s}", param.name);
        std::iter::once(param.name.clone()).chain(self.states.iter().map(state)).collect()
    }

    fn tensors(&self) -> Vec<TensorInfo> {
        let info = |p: &ParamSpec| {
            let of = |name| TensorInfo { name, dtype: DType::F32, shape: p.shape.clone() };
            self.names(p).into_iter().map(of).collect::<Vec<_>>()
        };
        self.params.iter().flat_map(info).collect()
    }

    fn save(&self, (step, log): (Step, LogMark)) -> Result<Arc<SharedSave>, String> {
        let branch = log.hash.short().to_string();
        let mut saves = lock(&self.saves);
        if let Some(save) = saves.get(&(step, branch.clone())) {
            return Ok(save.clone());
        }
        // A checkpoint that never came about is given up when the next begins.
        saves.retain(|key, _| key.0.0 + 2 > step.0);
        let at = (self.intro.spec.run_id(), step, branch.as_str());
        let save = SharedSave::open(&self.checkpoints, at, &self.tensors());
        let save = Arc::new(save.map_err(|e| e.to_string())?);
        saves.insert((step, branch), save.clone());
        Ok(save)
    }

    fn state_of(&self, step: Step) -> Result<Arc<SafetensorsFile>, String> {
        let mut loaded = lock(&self.loaded);
        if let Some((at, file)) = loaded.as_ref().filter(|l| l.0 == step) {
            let _ = at;
            return Ok(file.clone());
        }
        let all = self.checkpoints.list().map_err(|e| e.to_string())?;
        let run = self.intro.spec.run_id().to_string();
        let name = format!("step-{:010}-{}", step.0, &run[..8]);
        let path = all.into_iter().find(|p| p.ends_with(&name));
        let path = path.ok_or_else(|| format!("there is no checkpoint {name}"))?;
        let state = Checkpoint::open(&path, true).and_then(|c| c.state());
        let state = Arc::new(state.map_err(|e| e.to_string())?);
        *loaded = Some((step, state.clone()));
        Ok(state)
    }
}

impl Vault for CheckpointVault {
    fn initial(&self, span: &Span, values: &mut [f32]) -> Result<(), String> {
        draw(&self.params[span.param.index()], self.intro.spec.seed, span, values);
        Ok(())
    }

    fn load(
        &self,
        (step, _): (Step, LogMark),
        chunk: &Chunk,
        tensors: &mut [&mut [f32]],
    ) -> Result<(), String> {
        let file = self.state_of(step)?;
        let mut at = 0;
        for span in &chunk.spans {
            let len = span.len as usize;
            for (name, to) in self.names(&self.params[span.param.index()]).iter().zip(&mut *tensors)
            {
                let tensor = file.tensor(name).ok_or_else(|| format!("{name} is missing"))?;
                let bytes = tensor.bytes.get(4 * span.start as usize..4 * span.end() as usize);
                let bytes = bytes.ok_or_else(|| format!("{name} is too short"))?;
                for (to, from) in to[at..at + len].iter_mut().zip(bytes.chunks_exact(4)) {
                    *to = f32::from_le_bytes([from[0], from[1], from[2], from[3]]);
                }
            }
            at += len;
        }
        Ok(())
    }

    fn store(&self, at: (Step, LogMark), chunk: &Chunk, tensors: &[&[f32]]) -> Result<(), String> {
        let save = self.save(at)?;
        let per_param = 1 + self.states.len();
        let mut offset = 0;
        for span in &chunk.spans {
            let len = span.len as usize;
            for (part, tensor) in tensors.iter().enumerate() {
                let index = span.param.index() * per_param + part;
                let values = &tensor[offset..offset + len];
                save.write(index, span.start, values).map_err(|e| e.to_string())?;
            }
            offset += len;
        }
        Ok(())
    }

    fn publish(
        &self,
        decision: &Decision,
        log: &CommandLog,
        state_hash: Digest,
    ) -> Result<(), String> {
        let save = self.save((decision.step, decision.log))?;
        let mut extra = self.intro.extra.clone();
        extra["decision"] = json!(decision);
        extra["log"] = json!(log);
        let request = SaveRequest {
            run: self.intro.spec.run_id(),
            step: decision.step,
            updates: decision.updates,
            state_hash,
            spec: serde_json::to_value(&self.intro.spec).map_err(|e| e.to_string())?,
            extra,
            tensors: self.tensors(),
        };
        let published = save.publish(&request).map(drop).map_err(|e| e.to_string());
        lock(&self.saves).retain(|key, _| key.0 > decision.step);
        published
    }
}
