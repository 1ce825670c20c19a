//! A fixed pool of compute threads: one parallel loop at a time, no allocation, no queue.
//!
//! Tasks are handed out one by one from an atomic counter, so a descheduled thread delays one task
//! and not a share of all; and a worker that has not woken when the last task is taken is not waited
//! for: it finds the loop closed. Which thread runs a task never shows in a result: tasks write disjoint
//! outputs and draw nothing from the thread.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Spins of an idle worker before it parks: about 100 microseconds, longer than what lies between
/// most loops of a training step.
const SPINS: u32 = 10_000;

/// In [`Shared::gate`]: whether workers may join the loop under way. Below it is how many are inside,
/// above it the loop's number.
const OPEN: u64 = 1 << 31;
const INSIDE: u64 = OPEN - 1;

type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// A lifetime-free pointer to the loop body under way.
#[derive(Clone, Copy)]
struct Job(*const Task<'static>);

// SAFETY: the body is `Sync`, and `Pool::run` keeps it alive until the gate is closed and empty.
unsafe impl Send for Job {}

struct Shared {
    job: Mutex<(Option<Job>, usize)>,
    /// Number of the latest loop, [`OPEN`], workers inside.
    gate: AtomicU64,
    next: AtomicUsize,
    panicked: AtomicBool,
    stop: AtomicBool,
}

/// Compute threads. The caller of [`Pool::run`] is worker 0.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    busy: Mutex<()>,
}

impl Pool {
    /// A pool of `threads` threads in all, the caller's among them.
    ///
    /// # Panics
    /// If a thread cannot be started.
    #[must_use]
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            job: Mutex::new((None, 0)),
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let spawn = |worker| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("compute-{worker}"))
                .spawn(move || work(&shared, worker))
                .expect("the system can start a compute thread")
        };
        let workers = (1..threads.max(1)).map(spawn).collect();
        Pool { shared, workers, busy: Mutex::new(()) }
    }

    /// Threads, the caller's included.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body(task, worker)` once for each task in `0..tasks`, and returns when all are done.
    ///
    /// # Panics
    /// If a task panicked, or if called from inside a task.
    pub fn run(&self, tasks: usize, body: &Task<'_>) {
        if self.workers.is_empty() || tasks <= 1 {
            return (0..tasks).for_each(|task| body(task, 0));
        }
        let _busy = self.busy.try_lock().unwrap_or_else(|e| match e {
            std::sync::TryLockError::Poisoned(p) => PoisonError::into_inner(p),
            std::sync::TryLockError::WouldBlock => panic!("a parallel loop inside another"),
        });
        self.publish(tasks, body);
        let own = catch_unwind(AssertUnwindSafe(|| drain(&self.shared, tasks, body, 0)));
        if own.is_err() {
            self.shared.next.store(tasks, Ordering::Relaxed);
        }
        self.wait();
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!self.shared.panicked.load(Ordering::Acquire), "a compute task panicked");
    }

    fn publish(&self, tasks: usize, body: &Task<'_>) {
        let body: *const Task<'_> = body;
        // SAFETY: only the lifetime changes; `run` does not return before the gate is closed and
        // empty, after which no worker reads the pointer.
        let job =
            Job(unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(body) });
        *self.shared.job.lock().unwrap_or_else(PoisonError::into_inner) = (Some(job), tasks);
        self.shared.next.store(0, Ordering::Relaxed);
        self.shared.panicked.store(false, Ordering::Relaxed);
        let number = (self.shared.gate.load(Ordering::Relaxed) >> 32) + 1;
        self.shared.gate.store(number << 32 | OPEN, Ordering::Release);
        self.workers.iter().map(JoinHandle::thread).for_each(Thread::unpark);
    }

    /// Closes the loop to workers, and waits for those inside.
    fn wait(&self) {
        self.shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while self.shared.gate.load(Ordering::Acquire) & INSIDE != 0 {
            spins += 1;
            if spins.is_multiple_of(SPINS) {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            let _ = worker.join();
        }
    }
}

fn drain(shared: &Shared, tasks: usize, body: &Task<'_>, worker: usize) {
    loop {
        let task = shared.next.fetch_add(1, Ordering::Relaxed);
        if task >= tasks {
            return;
        }
        body(task, worker);
    }
}

fn work(shared: &Shared, worker: usize) {
    let mut seen = 0;
    while let Some(number) = enter(shared, seen) {
        seen = number;
        let (job, tasks) = *shared.job.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Job(body)) = job {
            // SAFETY: `run` keeps the body alive until the gate is closed and empty, and this worker
            // is counted in it.
            let body = unsafe { &*body };
            let done = catch_unwind(AssertUnwindSafe(|| drain(shared, tasks, body, worker)));
            if done.is_err() {
                shared.panicked.store(true, Ordering::Release);
                shared.next.store(tasks, Ordering::Relaxed);
            }
        }
        shared.gate.fetch_sub(1, Ordering::Release);
    }
}

/// Waits for an open loop after number `seen`, and joins it; nothing if the pool ends.
fn enter(shared: &Shared, seen: u64) -> Option<u64> {
    let mut spins = 0;
    while !shared.stop.load(Ordering::Acquire) {
        let gate = shared.gate.load(Ordering::Acquire);
        if gate & OPEN != 0 && gate >> 32 != seen {
            let joined = shared.gate.compare_exchange_weak(
                gate,
                gate + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            );
            if joined.is_ok() {
                return Some(gate >> 32);
            }
            continue;
        }
        spins += 1;
        if spins < SPINS { std::hint::spin_loop() } else { std::thread::park() }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every task runs exactly once, loop after loop, on 1, 2 and 3 threads.
    #[test]
    fn every_task_runs_once() {
        for threads in 1..=3 {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 7, 1000] {
                let counts: Vec<AtomicU64> = (0..tasks).map(|_| AtomicU64::new(0)).collect();
                pool.run(tasks, &|task, worker| {
                    assert!(worker < threads);
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            }
        }
    }

    /// A panic in a task reaches the caller, and the pool goes on working.
    #[test]
    fn a_panic_reaches_the_caller() {
        let pool = Pool::new(2);
        let failed = catch_unwind(AssertUnwindSafe(|| {
            pool.run(100, &|task, _| assert_ne!(task, 50));
        }));
        assert!(failed.is_err());
        let sum = AtomicU64::new(0);
        pool.run(10, &|task, _| {
            sum.fetch_add(task as u64, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }
}
