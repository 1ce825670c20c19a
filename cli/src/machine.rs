//! The machine: cores, memory of this process, arithmetic peak.

#![allow(clippy::disallowed_methods, reason = "the command line measures wall time")]

use planaria_models::block::Precision;
use planaria_models::compute::Kit;
use planaria_models::kernels::gemm::{Dims, GemmElement, MatRef, gemm_long};
use planaria_models::kernels::optimizer::update_parallel;
use planaria_models::kernels::peak;
use planaria_models::optimizers::{Adam, Elements, OptimizerSpec, Update};
use std::path::Path;
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

/// Bytes that this process can still get, from the system and from its control group; the largest
/// number where neither says.
#[must_use]
pub(crate) fn available_bytes() -> u64 {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    system_bytes().min(group_bytes(Path::new("/sys/fs/cgroup"), &groups))
}

/// Bytes that the control group (version 2) and those above it leave to this process.
fn group_bytes(root: &Path, groups: &str) -> u64 {
    let Some(own) = groups.lines().find_map(|l| l.strip_prefix("0::/")) else { return u64::MAX };
    let mut left = u64::MAX;
    for group in Path::new(own).ancestors() {
        let number = |file: &str| {
            let text = std::fs::read_to_string(root.join(group).join(file)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        // Without a limit the file says "max", and the system's root has none.
        if let Some(limit) = number("memory.max") {
            left = left.min(limit.saturating_sub(number("memory.current").unwrap_or(0)));
        }
    }
    left
}

fn system_bytes() -> u64 {
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

/// Arithmetic in the products of a step, per second: the best of a few products as long and as wide as
/// the step's, up to a limit.
#[must_use]
pub(crate) fn product_flops_per_s(kit: &Kit, precision: Precision, dims: Dims) -> f64 {
    let dims = Dims { m: dims.m.clamp(1, 1024), n: dims.n.min(3072), k: dims.k.min(1024) };
    match precision {
        Precision::F32 => products::<f32>(kit, dims),
        Precision::Bf16 => products::<half::bf16>(kit, dims),
        Precision::F16 => products::<half::f16>(kit, dims),
    }
}

fn products<T: GemmElement>(kit: &Kit, dims: Dims) -> f64 {
    let (a, b) = (vec![T::default(); dims.m * dims.k], vec![T::default(); dims.k * dims.n]);
    let mut c = vec![0.0; dims.m * dims.n];
    let mut run = || {
        let start = Instant::now();
        let (a, b) = (MatRef::rows(&a, dims.k), MatRef::rows(&b, dims.n));
        gemm_long(kit, dims, a, b, &mut c);
        2.0 * (dims.m * dims.n * dims.k) as f64 / start.elapsed().as_secs_f64()
    };
    (0..5).map(|_| run()).fold(0.0, f64::max)
}

/// Bytes of memory read or written by all threads together, per second: Adam's pass over 32 MiB.
#[must_use]
pub(crate) fn memory_bytes_per_s(kit: &Kit) -> f64 {
    const ELEMENTS: usize = 2 << 20;
    const BYTES: f64 = 28.0 * ELEMENTS as f64;
    let [gradient, mut master, mut first, mut second] =
        std::array::from_fn(|_| vec![0.0f32; ELEMENTS]);
    let adam = OptimizerSpec::Adam(Adam::default());
    let update = Update { t: 1, learning_rate: 1e-3, gradient_factor: 1.0, ..Update::default() };
    let mut run = || {
        let start = Instant::now();
        let elements = Elements {
            gradient: &gradient,
            master: &mut master,
            first: &mut first,
            second: &mut second,
            working: None,
        };
        update_parallel(kit, &adam, update, elements);
        BYTES / start.elapsed().as_secs_f64()
    };
    (0..4).map(|_| run()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tightest limit on the way up counts, less what is in use there; no limit is no bound.
    #[test]
    fn control_groups_bound_memory() {
        let root = tempfile::tempdir().expect("a folder");
        let group = root.path().join("job/step");
        std::fs::create_dir_all(&group).expect("made");
        let write = |file: &str, text: &str| std::fs::write(root.path().join(file), text);
        let left = || group_bytes(root.path(), "1:name=x:/\n0::/job/step\n");
        assert_eq!(left(), u64::MAX);
        write("job/step/memory.max", "max\n").expect("written");
        write("job/memory.max", "1000\n").expect("written");
        write("job/memory.current", "300\n").expect("written");
        assert_eq!(left(), 700);
        write("job/step/memory.max", "500\n").expect("written");
        write("job/step/memory.current", "900\n").expect("written");
        assert_eq!(left(), 0);
        assert_eq!(group_bytes(root.path(), ""), u64::MAX);
    }
}
