//! The step loop allocates nothing after warm-up: on the compute threads not a byte, on the device's
//! thread nothing but the mailbox envelopes of its reports, a few hundred bytes each.

use planaria_actors::data::LeafSource;
use planaria_actors::device::{Device, DeviceSetup};
use planaria_actors::spec::{RunSpec, SPEC_VERSION};
use planaria_actors::step::schedule::Order;
use planaria_actors::trainer::Trainer;
use planaria_base::Digest;
use planaria_models::block::Precision;
use planaria_models::families::ModelSpec;
use planaria_models::kernels::Isa;
use planaria_models::loss_scale::{DynamicScale, LossScaleSpec};
use planaria_models::optimizers::{Adam, Muon, OptimizerSpec};
use planaria_models::schedules::ScheduleSpec;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct Counting;

static ARMED: AtomicBool = AtomicBool::new(false);
static COMPUTE: AtomicUsize = AtomicUsize::new(0);
static DEVICE_LARGEST: AtomicUsize = AtomicUsize::new(0);
static DEVICE: AtomicUsize = AtomicUsize::new(0);

/// Bytes of a mailbox envelope at most.
const ENVELOPE: usize = 512;

thread_local! {
    /// 0 not asked yet, 1 another thread, 2 a compute thread, 3 the device's.
    static KIND: Cell<u8> = const { Cell::new(0) };
}

fn kind() -> u8 {
    KIND.with(|kind| {
        if kind.get() == 0 {
            kind.set(1);
            let name = std::thread::current().name().map_or(1, |name| {
                if name.starts_with("compute") {
                    2
                } else if name == "device" {
                    3
                } else {
                    1
                }
            });
            kind.set(name);
        }
        kind.get()
    })
}

fn count(size: usize) {
    if !ARMED.load(Ordering::Relaxed) {
        return;
    }
    match kind() {
        2 => {
            COMPUTE.fetch_add(1, Ordering::Relaxed);
        }
        3 => {
            DEVICE.fetch_add(1, Ordering::Relaxed);
            DEVICE_LARGEST.fetch_max(size, Ordering::Relaxed);
        }
        _ => {}
    }
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as the caller promised.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: as the caller promised.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Tokens;

impl LeafSource for Tokens {
    fn samples(&self) -> u64 {
        100
    }

    fn load(&self, sample: u64, tokens: &mut [u32], labels: &mut [i32]) -> Result<(), String> {
        for (i, (t, l)) in tokens.iter_mut().zip(labels).enumerate() {
            *t = ((sample as usize * 7 + i * 3) % 61) as u32;
            *l = ((sample as usize * 5 + i) % 61) as i32;
        }
        Ok(())
    }
}

fn spec(precision: Precision, leaves: u32) -> RunSpec {
    RunSpec {
        version: SPEC_VERSION,
        model: ModelSpec::gpt2(2, 64, 4, 61, 48),
        init_from: None,
        data: Digest::of(b"tokens"),
        sequences: 3,
        length: 48,
        leaves,
        seed: 1,
        precision,
        loss_scale: None,
        optimizer: OptimizerSpec::Adam(Adam {
            betas: [0.9, 0.95],
            eps: 1e-8,
            weight_decay: 0.1,
            decoupled: true,
            bias_correction: true,
        }),
        schedule: ScheduleSpec::Constant { rate: 1e-3 },
        clip: 1.0,
        grid_max_log2: 8,
        chunk_elements: 10_000,
    }
}

/// All precisions, one leaf and several, kept and recomputed activations; Muon with its scratch.
#[test]
fn the_step_loop_allocates_nothing() {
    for (precision, leaves, recompute) in [
        (Precision::F32, 1, false),
        (Precision::Bf16, 3, false),
        (Precision::F32, 2, true),
        (Precision::F16, 2, false),
    ] {
        let mut spec = spec(precision, leaves);
        if precision == Precision::F16 {
            spec.loss_scale = Some(LossScaleSpec::Dynamic(DynamicScale::default()));
            spec.optimizer = OptimizerSpec::Muon(Muon::default());
        }
        let order = Order::BreadthFirst;
        let setup = DeviceSetup { threads: 2, isa: Isa::detect(), order, recompute };
        let device = Device::new(&spec, &setup, Box::new(Tokens));
        let chunks = device.layout().table.chunks.len();
        let mut trainer = Trainer::start(spec, &setup, device).expect("threads start");
        (0..3).for_each(|_| drop(trainer.step().expect("a step")));
        for counter in [&COMPUTE, &DEVICE, &DEVICE_LARGEST] {
            counter.store(0, Ordering::Relaxed);
        }
        ARMED.store(true, Ordering::Relaxed);
        const STEPS: usize = 5;
        (0..STEPS).for_each(|_| drop(trainer.step().expect("a step")));
        ARMED.store(false, Ordering::Relaxed);
        assert_eq!(COMPUTE.load(Ordering::Relaxed), 0, "{precision:?}, {leaves} leaves");
        assert!(DEVICE_LARGEST.load(Ordering::Relaxed) <= ENVELOPE);
        // A report per op, record and applied chunk: load, forward, loss, backward, reduce.
        let ops = leaves as usize * (2 * 3 + 2) + 4;
        let reports = STEPS * (ops + 2 * chunks);
        // An envelope and its box, and now and then a block of a mailbox's queue.
        let found = DEVICE.load(Ordering::Relaxed);
        assert!(found <= 4 * reports, "{found} allocations for {reports} reports");
    }
}
