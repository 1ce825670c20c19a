//! What is built, said once: change a feature's line to [`Status::Built`] when it is.

use super::key::Status;
use Status::{Built, NotBuilt};

/// `fp16.enabled` and its loss scale.
pub const FP16: Status = Built;
/// `bf16.enabled`.
pub const BF16: Status = Built;
/// Optimizer `adamw`, and `adam` in its AdamW mode.
pub const ADAMW: Status = Built;
/// Optimizer `adam` with `adam_w_mode` off: decay added to the gradient.
pub const ADAM_L2: Status = Built;
/// Optimizer `sgd`.
pub const SGD: Status = Built;
/// Optimizer `lion`.
pub const LION: Status = Built;
/// Optimizer `adagrad`.
pub const ADAGRAD: Status = Built;
/// Optimizer `lamb`.
pub const LAMB: Status = Built;
/// Optimizer `muon`.
pub const MUON: Status = Built;
/// DeepSpeed's five learning-rate schedules.
pub const SCHEDULES: Status = Built;
/// The `activation_checkpointing` block: recomputation per block.
pub const RECOMPUTATION: Status = Built;
/// `offload_optimizer` and `offload_param` to `cpu` and `nvme`.
pub const OFFLOAD: Status = NotBuilt("offload is not built yet: values live in host memory");
/// More than one node.
pub const RING: Status = NotBuilt("runs of more than one node are not built yet");
/// `planaria.numerics.mode` `fast`.
pub const FAST_SUMS: Status = NotBuilt("inexact sums are not built; leave the key out");
/// `tensorboard`.
pub const TENSORBOARD: Status = Built;
/// Dropout.
pub const DROPOUT: Status = NotBuilt("dropout is not built; most pretraining uses none");
/// `planaria.model.init_from`: a Hugging Face folder, a GGUF file or a run.
pub const INIT_FROM: Status = Built;
