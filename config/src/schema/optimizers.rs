//! `optimizer`: DeepSpeed's types and parameters, and what PyTorch has besides.

use super::features;
use super::key::{Auto, Block, Key, Kind, Status, Variant, Variants};

const NO_FUSION: &str = "kernels are always fused";
const TORCH: Status = Status::NotBuilt("this optimizer of PyTorch is not built; use adamw");
const MUP: Status = Status::NotBuilt("mu-parametrisation is not built; use adamw");
const ONE_BIT: Status =
    Status::Refused("DeepSpeed removed the 1-bit optimizers after 0.19.6 (#8490); use adamw");
const BETA: Kind = Kind::Float(0.0, 0.999_999_999);
const BETAS: Kind = Kind::List(&BETA, 2, 2);

const LR: Key = Key::number("lr", "1e-3", "Learning rate").auto(Auto::FineTuningRate);
const BETAS_KEY: Key = Key::new("betas", BETAS, "[0.9, 0.999]", "Decay of the two moments");
const EPS: Key =
    Key::new("eps", Kind::FloatAbove(0.0, f64::MAX), "1e-8", "Added to the denominator");
const DECAY: Key = Key::number("weight_decay", "0", "Weight decay");
const BIAS_CORRECTION: Key = Key::on("bias_correction", "Correct the moments' start at zero");
const AMSGRAD: Key = Key::off("amsgrad", "Keep the largest second moment")
    .not_built("amsgrad is not built; DeepSpeed's fused Adam refuses it too");
const TORCH_ADAM: Key = Key::off("torch_adam", "Use PyTorch's own Adam")
    .no_effect("the update follows the same formula");
const FP32_STATES: Key =
    Key::on("fp32_optimizer_states", "Moments in fp32").not_built("moments are always fp32");
const MAX_GRAD_NORM: Key =
    Key::new("max_grad_norm", Kind::Float(0.0, f64::MAX), "null", "Clipping")
        .refused("DeepSpeed refuses it too: clip with the top-level gradient_clipping");
const FUSED: Key =
    Key::new("fused", Kind::Bool, "null", "PyTorch's fused update").no_effect(NO_FUSION);

const ADAM: &[Key] = &[
    LR,
    BETAS_KEY,
    EPS,
    DECAY,
    BIAS_CORRECTION,
    AMSGRAD,
    Key::on(
        "adam_w_mode",
        "Decoupled decay: \"adam\" is AdamW unless this is false; \"adamw\" ignores it",
    ),
    TORCH_ADAM,
    FP32_STATES,
    MAX_GRAD_NORM,
    FUSED,
];

const LAMB: &[Key] = &[
    LR,
    BETAS_KEY,
    EPS,
    DECAY,
    BIAS_CORRECTION,
    AMSGRAD,
    Key::number("max_coeff", "10", "Largest trust ratio"),
    Key::number("min_coeff", "0.01", "Smallest trust ratio"),
    Key::off("eps_inside_sqrt", "Add eps under the root"),
    MAX_GRAD_NORM,
];

const LION: &[Key] = &[LR, BETAS_KEY, DECAY, MAX_GRAD_NORM];

const ADAGRAD: &[Key] = &[
    Key::number("lr", "1e-2", "Learning rate").auto(Auto::FineTuningRate),
    Key::new("eps", Kind::FloatAbove(0.0, f64::MAX), "1e-10", "Added to the denominator"),
    DECAY,
    MAX_GRAD_NORM,
];

const SGD: &[Key] = &[
    LR,
    Key::number("momentum", "0", "Momentum"),
    Key::number("dampening", "0", "Dampening of the momentum"),
    DECAY,
    Key::off("nesterov", "Nesterov's momentum"),
    Key::off("maximize", "Go uphill").not_built("a run minimises its loss"),
    MAX_GRAD_NORM,
    FUSED,
];

const MUON: &[Key] = &[
    Key::number(
        "lr",
        "0.02",
        "Learning rate of both groups unless theirs is given; if none is, the \
         Adam group's is 3e-4",
    )
    .auto(Auto::Default),
    Key::number("momentum", "0.95", "Momentum of the Muon group"),
    DECAY,
    Key::choice("ns_method", &["gram", "standard"], "\"gram\"", "Newton-Schulz iteration"),
    Key::number("muon_lr", "null", "Learning rate of the Muon group: matrices inside blocks"),
    Key::number("adam_lr", "null", "Learning rate of the Adam group: everything else"),
    Key::new("betas", BETAS, "[0.9, 0.95]", "Decay of the Adam group's two moments"),
    Key::new("eps", Kind::FloatAbove(0.0, f64::MAX), "1e-10", "Added to its denominator"),
    MAX_GRAD_NORM,
];

const fn variant(
    name: &'static str,
    status: Status,
    keys: &'static [Key],
    doc: &'static str,
) -> Variant {
    Variant { name, status, keys, open: false, doc }
}

const fn recognised(name: &'static str, status: Status, doc: &'static str) -> Variant {
    Variant { name, status, keys: &[], open: true, doc }
}

/// The types of `optimizer`.
pub const OPTIMIZERS: Variants = Variants {
    what: "optimizer",
    any_case: true,
    beside: &[Key::off("legacy_fusion", "Old fusion of fp16 groups").no_effect(NO_FUSION)],
    list: &[
        variant("adamw", features::ADAMW, ADAM, "Adam with decoupled weight decay"),
        variant("adam", features::ADAMW, ADAM, "AdamW, unless adam_w_mode is false"),
        variant("sgd", features::SGD, SGD, "Stochastic gradient descent, PyTorch's rules"),
        variant("lion", features::LION, LION, "Sign of an interpolated momentum"),
        variant("adagrad", features::ADAGRAD, ADAGRAD, "Adagrad"),
        variant("lamb", features::LAMB, LAMB, "Adam with a trust ratio per tensor"),
        variant("muon", features::MUON, MUON, "Orthogonalised momentum; Adam for the rest"),
        recognised("onebitadam", ONE_BIT, "1-bit Adam"),
        recognised("onebitlamb", ONE_BIT, "1-bit LAMB"),
        recognised("zerooneadam", ONE_BIT, "0/1 Adam"),
        recognised("muadam", MUP, "mu-P Adam"),
        recognised("muadamw", MUP, "mu-P AdamW"),
        recognised("musgd", MUP, "mu-P SGD"),
        recognised("adadelta", TORCH, "PyTorch's Adadelta"),
        recognised("adafactor", TORCH, "PyTorch's Adafactor"),
        recognised("adamax", TORCH, "PyTorch's Adamax"),
        recognised("asgd", TORCH, "PyTorch's averaged SGD"),
        recognised("lbfgs", TORCH, "PyTorch's L-BFGS"),
        recognised("nadam", TORCH, "PyTorch's NAdam"),
        recognised("radam", TORCH, "PyTorch's RAdam"),
        recognised("rmsprop", TORCH, "PyTorch's RMSprop"),
        recognised("rprop", TORCH, "PyTorch's Rprop"),
        recognised("sparseadam", TORCH, "PyTorch's SparseAdam"),
    ],
};

/// `aio`.
pub(super) const AIO: Block = Block::new(&[
    Key::positive("block_size", "1048576", "Bytes of one request"),
    Key::positive("queue_depth", "8", "Requests in flight"),
    Key::positive("intra_op_parallelism", "1", "Threads that submit").alias(&["thread_count"]),
    Key::off("single_submit", "Submit one by one"),
    Key::on("overlap_events", "Overlap submission and completion"),
    Key::off("use_gds", "GPU direct storage").not_built("GPU direct storage needs CUDA"),
]);
