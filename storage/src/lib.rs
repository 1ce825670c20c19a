//! Bytes at rest: safetensors, checkpoints, token files, tiers.
