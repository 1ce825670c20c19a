//! The machine: cores, memory of this process, arithmetic peak.

#![allow(clippy::disallowed_methods, reason = "the command line measures wall time")]

use planaria_models::block::Precision;
use planaria_models::compute::Kit;
use planaria_models::kernels::peak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Resident bytes of this process: now, and at most so far. Zero where the system does not say.
#[must_use]
pub(crate) fn resident_bytes() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name: &str| {
        let line = status.lines().find(|l| l.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    (field("VmRSS:").unwrap_or(0) * 1024, field("VmHWM:").unwrap_or(0) * 1024)
}

/// Bytes that the system can still give to processes; the largest number where it does not say.
#[must_use]
pub(crate) fn available_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = info.lines().find(|l| l.starts_with("MemAvailable:"));
    let kib = line.and_then(|l| l.split_whitespace().nth(1)).and_then(|n| n.parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib * 1024)
}

/// Threads that can run at once.
#[must_use]
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The multiply-add peak of `kit`'s threads together, in operations per second: the best of several
/// short bursts.
#[must_use]
pub(crate) fn peak_flops_per_s(kit: &Kit, precision: Precision) -> f64 {
    const ROUNDS: usize = 4000;
    (0..5)
        .map(|_| {
            let start = Instant::now();
            let flops = AtomicU64::new(0);
            kit.pool.run(kit.pool.threads(), &|_, _| {
                let done = peak::multiply_adds(kit.isa, precision, ROUNDS);
                flops.fetch_add(done, Ordering::Relaxed);
            });
            flops.into_inner() as f64 / start.elapsed().as_secs_f64()
        })
        .fold(0.0, f64::max)
}
