//! What the exact sum costs: each loop over as many elements as a 124 M parameter model has.
//!
//! `cargo bench -p planaria-models --bench exact -- [THREADS]`

#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a benchmark prints and reads the clock"
)]

use planaria_models::compute::Kit;
use planaria_models::exact_sum::Grid;
use planaria_models::kernels::{Isa, exact};
use std::time::Instant;

const ELEMENTS: usize = 124_046_592;

fn best_ms(mut run: impl FnMut()) -> f64 {
    let one = |_| {
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64() * 1e3
    };
    (0..5).map(one).fold(f64::INFINITY, f64::min)
}

fn main() {
    let threads = std::env::args().filter_map(|a| a.parse().ok()).next().unwrap_or(2);
    let kit = Kit::new(threads, Isa::detect());
    let mut values: Vec<f32> = (0..ELEMENTS).map(|i| (i % 1000) as f32 * 1e-6).collect();
    let mut sum = vec![0i64; ELEMENTS];
    let grid = Grid::new(2, 8);
    let round = best_ms(|| {
        exact::round_parallel(&kit, grid, &mut values);
    });
    let put = best_ms(|| {
        exact::accumulate_parallel(&kit, grid, &values, &mut sum, true);
    });
    let add = best_ms(|| {
        exact::accumulate_parallel(&kit, grid, &values, &mut sum, false);
    });
    let reduce = best_ms(|| exact::reduce_parallel(&kit, grid, &sum, &mut values));
    println!("{ELEMENTS} elements, {threads} threads, {}", kit.isa);
    println!("one leaf a step:      round in place {round:6.1} ms");
    println!(
        "several: first leaf   {put:6.1} ms, each further {add:6.1} ms, reduce {reduce:6.1} ms"
    );
}
