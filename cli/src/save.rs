//! Saving a run's state between steps.

use planaria_actors::trainer::Trainer;
use planaria_base::DType;
use planaria_models::generate::chat::ChatTemplate;
use planaria_models::tokenizers::TokenizerSpec;
use planaria_storage::checkpoint::{Checkpoints, SaveRequest};
use planaria_storage::safetensors::TensorInfo;
use serde_json::json;
use std::path::PathBuf;

/// Saves the state after the last step; returns the checkpoint's folder.
///
/// # Errors
/// If the disk is too small or refuses; older checkpoints are untouched.
pub(crate) fn save(
    trainer: &Trainer,
    to: &Checkpoints,
    tokenizer: Option<TokenizerSpec>,
    chat: Option<&ChatTemplate>,
) -> anyhow::Result<PathBuf> {
    let (to, spec) = (to.clone(), serde_json::to_value(trainer.spec())?);
    let (run, chat) = (trainer.spec().run_id(), serde_json::to_value(chat)?);
    let saved = trainer.call(move |device| {
        let (step, updates) = device.state();
        let info = |t: planaria_actors::device::TensorExport| TensorInfo {
            name: t.name,
            dtype: DType::F32,
            shape: t.shape,
        };
        let request = SaveRequest {
            run,
            step,
            updates,
            state_hash: device.state_hash(),
            spec,
            extra: json!({
                "tokenizer": tokenizer,
                "chat": chat,
                "loss_scale": device.loss_scale(),
            }),
            tensors: device.tensors().into_iter().map(info).collect(),
        };
        to.save(&request, |i, out| out.write_all(bytemuck::cast_slice(device.tensor(i))))
    })?;
    Ok(saved?)
}
