//! Precision blocks: fp16, bf16, amp, torch_autocast, data_types.

use super::features;
use super::key::{Auto, Block, Key, Kind};

const MASTER: &str = "Planaria keeps fp32 masters and moments; 16-bit states are not built";
const DTYPES: &[&str] = &["fp32", "fp16", "bf16"];

/// `fp16`.
pub(super) const FP16: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Compute in fp16 with a loss scale").status(features::FP16),
        Key::off("auto_cast", "Cast inputs to fp16").no_effect("token ids are not cast"),
        Key::number("loss_scale", "0", "A fixed loss scale; 0 is dynamic"),
        Key::new("initial_scale_power", Kind::Int(0, 127), "16", "log2 of the first loss scale"),
        Key::positive("loss_scale_window", "1000", "Good steps until the scale doubles"),
        Key::positive("hysteresis", "2", "Overflows until the scale halves"),
        Key::off("consecutive_hysteresis", "A good step refills the hysteresis"),
        Key::new(
            "min_loss_scale",
            Kind::FloatAbove(0.0, f64::MAX),
            "1",
            "The scale never falls below this",
        ),
        Key::off("fp16_master_weights_and_grads", "fp16 masters").not_built(MASTER),
    ],
);

/// `bf16`.
pub(super) const BF16: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "Compute in bf16 with fp32 master weights")
            .status(features::BF16)
            .auto(Auto::PreferBf16),
        Key::off("immediate_grad_update", "Add each gradient at once")
            .no_effect("gradients are added when their block's backward is done"),
        Key::on("check_grad_overflow", "Skip a step whose gradient is not finite")
            .no_effect("gradients that are not finite are always a skip, never applied"),
        Key::off("bf16_master_weights_and_grads", "bf16 masters").not_built(MASTER),
        Key::off("bf16_optimizer_states", "bf16 moments").not_built(MASTER),
    ],
);

/// `amp`.
pub(super) const AMP: Block =
    Block::switched("enabled", &[Key::off("enabled", "NVIDIA Apex's mixed precision")]);

/// `torch_autocast`.
pub(super) const AUTOCAST: Block = Block::switched(
    "enabled",
    &[
        Key::off("enabled", "PyTorch's per-operation low precision"),
        Key::text("dtype", "null", "The low precision"),
        Key::new("lower_precision_safe_modules", Kind::Texts, "null", "Modules to run low"),
    ],
);

/// `data_types`.
pub(super) const DATA_TYPES: Block = Block::new(&[
    Key::choice("grad_accum_dtype", DTYPES, "null", "Where gradients are accumulated")
        .no_effect("gradients are summed exactly, in 64-bit integers"),
    Key::choice("param_dtype", DTYPES, "null", "Working precision; must agree with fp16 and bf16"),
    Key::choice("buffer_dtype", DTYPES, "null", "Precision of buffers")
        .no_effect("models have no buffers that are trained"),
]);
