//! The families as Hugging Face folders, against themselves, against finite differences, and writing
//! text.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod anomaly;
mod folder;
mod further;
mod gradients;
mod invariance;
mod lora;
mod support;
mod text;
