use super::*;
use proptest::prelude::*;

const RATES: Rates = Rates {
    flops_per_s: 1e11,
    memory_bytes_per_s: 1e10,
    wire_bytes_per_s: 1e9,
    host_link_bytes_per_s: 1e10,
    disk_bytes_per_s: 2e9,
};

fn machine(nodes: u64, gib: u64) -> Machine {
    let (host_bytes, disk_bytes) = (None, None);
    Machine { nodes, device_bytes: gib << 30, host_bytes, disk_bytes, rates: RATES }
}

/// P parameters, all in matrices under Adam, in blocks that are alike; no activations.
fn states_only(params: u64, blocks: u64) -> ModelCost {
    let one = |group| ParamCost {
        elements: params / blocks,
        matrix: true,
        moments: 2,
        group,
        tied: false,
    };
    ModelCost {
        params: (0..blocks).map(one).collect(),
        blocks,
        input_bytes: 0,
        stream_bytes: 0,
        saved_bytes: 0,
        largest_saved_bytes: 0,
        scratch_bytes: 0,
        packing_bytes: 0,
        forward_flops: 2 * params,
        backward_flops: 4 * params,
        update_flops: 0,
        process_bytes: 0,
    }
}

fn adam(precision: Precision, leaves: u64) -> Workload {
    Workload { leaves, precision, replicas: 0 }
}

fn staged(stage: u8) -> Layout {
    Layout { stage, order: Order::BreadthFirst, ..Layout::plain() }
}

fn item(plan: &MemoryPlan, name: &str) -> u64 {
    plan.items.iter().find(|i| i.name == name).map_or(0, |i| i.bytes)
}

/// ZeRO's figure 1: 7.5 billion parameters on 64 ranks take 120, 31.4, 16.6 and 1.9 GB.
#[test]
fn the_papers_table() {
    for (stage, gb) in [(0, "120.0"), (1, "31.4"), (2, "16.6"), (3, "1.9")] {
        let bytes: u64 = model_states(StateBytes::PAPER, stage, 7_500_000_000, 64).iter().sum();
        assert_eq!(format!("{:.1}", bytes as f64 / 1e9), gb, "stage {stage}");
    }
}

/// Ours: 18 bytes a parameter in mixed precision and 16 in fp32; 2 + 16/N at stages 1 and 2, 18/N at
/// stage 3; a replica takes 16/N.
#[test]
fn our_states_by_stage() {
    let (params, nodes) = (1_000_000_000u64, 8);
    let cost = states_only(params, 10);
    let total = |precision, stage, replicas| {
        let work = Workload { replicas, ..adam(precision, 8) };
        let plan = memory(&cost, &work, &machine(nodes, 1), &staged(stage));
        let names = ["parameter values", "reduced gradients", "optimizer states", "replicas"];
        names.iter().map(|n| item(&plan, n)).sum::<u64>()
    };
    assert_eq!(total(Precision::Bf16, 0, 0), 18 * params);
    assert_eq!(total(Precision::Fp32, 0, 0), 16 * params);
    assert_eq!(total(Precision::Bf16, 1, 0), 2 * params + 16 * params / nodes);
    assert_eq!(total(Precision::Bf16, 2, 0), 2 * params + 16 * params / nodes);
    assert_eq!(total(Precision::Bf16, 3, 0), 18 * params / nodes);
    assert_eq!(total(Precision::Bf16, 3, 1), 34 * params / nodes);
}

/// Accumulators cover a block breadth first, everything depth first; activations the other way.
#[test]
fn the_order_of_leaves_trades_accumulators_for_activations() {
    let cost = ModelCost {
        stream_bytes: 100,
        saved_bytes: 5000,
        largest_saved_bytes: 700,
        ..states_only(1_000_000, 10)
    };
    let work = adam(Precision::Fp32, 4);
    let plan = |layout| memory(&cost, &work, &machine(1, 1), &layout);
    let depth = plan(Layout::plain());
    assert_eq!(item(&depth, "64-bit accumulators"), 10 * 800_000);
    assert_eq!(item(&depth, "saved activations"), 5000);
    assert_eq!(item(&depth, "residual streams"), 1100);
    let breadth = plan(staged(0));
    assert_eq!(item(&breadth, "64-bit accumulators"), 800_000, "one block at a time");
    let two = memory(&cost, &work, &machine(2, 1), &staged(0));
    assert_eq!(item(&two, "64-bit accumulators"), 1_600_000, "one more on the wire");
    assert_eq!(item(&breadth, "saved activations"), 20_000);
    assert_eq!(item(&breadth, "residual streams"), 4400);
    let recompute = plan(Layout { recompute: true, ..staged(0) });
    assert_eq!(item(&recompute, "saved activations"), 700);
}

/// Sums are not shared between lengths, tied ones live all along, and one leaf alone needs none; every
/// buffer is a whole number of cache lines; vectors are their own masters.
#[test]
fn buffers_are_counted_one_by_one() {
    let param =
        |elements, matrix, group, tied| ParamCost { elements, matrix, moments: 2, group, tied };
    let params = vec![
        param(1000, true, 0, true),
        param(33, false, 1, false),
        param(33, false, 1, false),
        param(500, true, 1, false),
        param(33, false, 2, false),
    ];
    let cost = ModelCost { params, ..states_only(10, 1) };
    let plan = |leaves| memory(&cost, &adam(Precision::Bf16, leaves), &machine(1, 1), &staged(0));
    let sums = |leaves| item(&plan(leaves), "64-bit accumulators");
    assert_eq!(sums(1), 0);
    assert_eq!(sums(2), 8000 + 2 * 320 + 4032);
    assert_eq!(item(&plan(1), "parameter values"), 2048 + 1024 + 3 * 192);
    assert_eq!(item(&plan(1), "optimizer states"), 3 * (4032 + 2048) + 3 * 2 * 192);
    assert_eq!(item(&plan(1), "reduced gradients"), 4032 + 2048 + 3 * 192);
}

/// The paper's volumes, in elements: 2P at stages 0 to 2, 3P at stage 3, less the share at home.
#[test]
fn elements_on_the_wire() {
    let (params, nodes) = (64_000_000u64, 64);
    let cost = states_only(params, 10);
    let work = adam(Precision::Bf16, 64);
    let at = |stage| traffic(&cost, &work, &machine(nodes, 1), &staged(stage));
    let away = params - params / nodes;
    for (stage, value_elements, width) in
        [(0, away, 4), (1, away, 2), (2, away, 2), (3, 2 * away, 2)]
    {
        let traffic = at(stage);
        assert_eq!(traffic.gradient_bytes, 8 * away, "stage {stage}");
        assert_eq!(traffic.value_bytes, width * value_elements, "stage {stage}");
    }
    let one = traffic(&cost, &work, &machine(1, 1), &staged(0));
    assert_eq!(one.wire_bytes, 0);
}

/// Depth first at stage 3 fetches every block for every leaf; breadth first once a pass: with eight
/// leaves an eighth.
#[test]
fn breadth_first_fetches_an_eighth() {
    let cost = states_only(1_000_000, 10);
    let work = adam(Precision::Bf16, 16);
    let breadth = traffic(&cost, &work, &machine(2, 1), &staged(3)).value_bytes;
    let deep = Layout { order: Order::DepthFirst, ..staged(3) };
    assert_eq!(traffic(&cost, &work, &machine(2, 1), &deep).value_bytes, 8 * breadth);
}

/// NVMe moves 24 bytes of states a parameter, and its gradient there and back.
#[test]
fn nvme_moves_32_bytes_a_parameter() {
    let cost = states_only(1_000_000, 10);
    let layout = Layout { optimizer: Place::Nvme, ..staged(3) };
    let moved = traffic(&cost, &adam(Precision::Bf16, 1), &machine(1, 1), &layout);
    assert_eq!(moved.disk_bytes, (24 + 8) * 1_000_000);
}

/// A 7B model on 24 GiB: nothing sharded fits; with eight nodes a sharded plan does, and the text
/// says what was too large.
#[test]
fn the_fastest_plan_that_fits_is_chosen() {
    let cost = states_only(7_000_000_000, 32);
    let work = adam(Precision::Bf16, 64);
    let alone = recommend(&cost, &work, &machine(1, 24));
    assert_eq!(alone.best, None);
    assert!(alone.to_text().contains("nothing fits"));
    let eight = recommend(&cost, &work, &machine(8, 24));
    let best = &eight.candidates[eight.best.unwrap()];
    assert_eq!(best.layout.stage, 3);
    let text = eight.to_text();
    assert!(
        text.contains("needs 1") && text.contains("the largest part is optimizer states"),
        "{text}"
    );
    let drive = Machine { disk_bytes: Some(1 << 40), ..machine(1, 24) };
    let with_drive = recommend(&cost, &work, &drive);
    let best = &with_drive.candidates[with_drive.best.unwrap()];
    assert_eq!(best.layout.optimizer, Place::Nvme, "{}", with_drive.to_text());
    assert!(best.not_built.is_some() && with_drive.to_text().contains("this would, but"));
}

/// With room for everything the plain layout wins: no recomputation, nothing moved.
#[test]
fn with_room_the_plain_plan_wins() {
    let cost = states_only(10_000_000, 6);
    let found = recommend(&cost, &adam(Precision::Fp32, 2), &machine(1, 24));
    assert_eq!(found.candidates[found.best.unwrap()].layout, staged(0), "leaves side by side");
    assert_eq!(found.candidates[found.best.unwrap()].not_built, None);
}

proptest! {
    /// No stage needs more memory than the one before it, and no choice of numbers overflows.
    #[test]
    fn higher_stages_need_less(
        params in 1u64..1 << 40,
        nodes in 1u64..2000,
        leaves in 1u64..1 << 16,
        replicas in 0u64..3,
    ) {
        let cost = states_only(params, 16);
        let work = Workload { replicas, ..adam(Precision::Bf16, leaves) };
        let machine = machine(nodes, 80);
        let states = |stage| {
            let plan = memory(&cost, &work, &machine, &staged(stage));
            ["parameter values", "reduced gradients", "optimizer states"]
                .iter()
                .map(|n| item(&plan, n))
                .sum::<u64>()
        };
        prop_assert!(states(0) >= states(1) && states(1) >= states(2) && states(2) >= states(3));
        let found = recommend(&cost, &work, &machine);
        prop_assert!(!found.candidates.is_empty());
        for c in &found.candidates {
            prop_assert!(c.time.step_s.is_finite() && c.time.step_s > 0.0);
        }
    }
}
