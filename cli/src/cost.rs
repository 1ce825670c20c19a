//! What a run costs on this machine: the model's own plan as the planner's numbers, and the choice of
//! how to execute it.

use crate::machine;
use crate::output::Usage;
use planaria_actors::device::DeviceSetup;
use planaria_actors::layout::Layout as Chunks;
use planaria_actors::spec::RunSpec;
use planaria_actors::step::schedule::Order;
use planaria_base::units::format_bytes;
use planaria_config::plan::Precision as PlanPrecision;
use planaria_config::planner::{
    Candidate, Layout, Machine, ModelCost, Order as PlanOrder, ParamCost, Rates, Verdict, Workload,
    evaluate,
};
use planaria_models::block::{LeafShape, Model, ParamSpec, Precision};
use planaria_models::buffer::Buffer;
use planaria_models::compute::Kit;
use planaria_models::families::{Family, ModelSpec};
use planaria_models::kernels::gemm::Dims;
use planaria_models::packing::PackingPlan;

/// Bytes that a process has besides what it plans: the binary's pages, stacks, actors, mailboxes.
pub(crate) const PROCESS_BYTES: u64 = 16 << 20;

/// Share of a step's time in which products run at their own rate; the rest is everything else.
const PRODUCTS_SHARE: f64 = 0.85;

/// Bytes of the rotary tables that a model is built with: cosines and sines of every position.
fn table_bytes(spec: &ModelSpec) -> u64 {
    let elements = (spec.max_length as u64).saturating_mul(spec.head_dim as u64);
    if spec.family == Family::Gpt2 { 0 } else { elements.saturating_mul(4) }
}

/// Refuses a model whose tables alone are more than this machine has: they are made before its plan
/// can be read.
///
/// # Errors
/// Says how large they are.
pub(crate) fn check_tables(spec: &ModelSpec) -> anyhow::Result<()> {
    let (tables, there) = (table_bytes(spec), machine::available_bytes());
    if tables > there {
        let (tables, there) = (format_bytes(tables), format_bytes(there));
        let reason = format!(
            "the rotary tables of {} positions take {tables}, {there} are there: lower max_length",
            spec.max_length
        );
        return Err(Usage(reason).into());
    }
    Ok(())
}

/// What a model and one of its leaves cost.
pub(crate) fn model_cost(spec: &RunSpec, model: &Model, setup: &DeviceSetup) -> ModelCost {
    let leaf = LeafShape { sequences: spec.sequences, length: spec.length };
    let plans: Vec<_> = model.blocks.iter().map(|b| b.plan(leaf, spec.precision)).collect();
    let head = model.head.plan(leaf, spec.precision);
    let saved = plans.iter().map(|p| Buffer::<u8>::bytes_for(p.saved_bytes) as u64);
    let scratch = plans.iter().chain([&head]).map(|p| p.scratch_bytes).max();
    let scratch = scratch.unwrap_or(0).max(spec.optimizer.scratch_bytes(&model.params));
    let packing = PackingPlan {
        spec: &spec.model,
        model,
        optimizer: &spec.optimizer,
        leaf,
        precision: spec.precision,
        machine: (setup.isa, setup.threads),
    };
    let n = leaf.tokens();
    ModelCost {
        params: params(spec, model),
        blocks: model.blocks.len() as u64,
        input_bytes: (Buffer::<u32>::bytes_for(n) + Buffer::<i32>::bytes_for(n)) as u64,
        stream_bytes: Buffer::<f32>::bytes_for(n * model.width) as u64,
        saved_bytes: saved.clone().sum(),
        largest_saved_bytes: saved.max().unwrap_or(0),
        scratch_bytes: scratch as u64,
        packing_bytes: packing.bytes() as u64,
        forward_flops: plans.iter().map(|p| p.forward_flops).sum::<u64>() + head.forward_flops,
        backward_flops: plans.iter().map(|p| p.backward_flops).sum::<u64>() + head.backward_flops,
        update_flops: spec.optimizer.update_flops(&model.params),
        process_bytes: PROCESS_BYTES + table_bytes(&spec.model),
    }
}

fn params(spec: &RunSpec, model: &Model) -> Vec<ParamCost> {
    let chunks = Chunks::of(model, spec.chunk_elements, &spec.optimizer);
    let group = |p: &ParamSpec| chunks.groups.iter().position(|g| g.contains(&p.id)).unwrap_or(0);
    let one = |p: &ParamSpec| ParamCost {
        elements: p.elements() as u64,
        matrix: p.is_matrix(),
        moments: spec.optimizer.state_names(p).len() as u64,
        group: group(p) as u64,
        tied: p.sites > 1,
    };
    model.params.iter().map(one).collect()
}

/// Operations a second over a whole step: the rate of products like those of the run's MLP, and the
/// share of a step that they take.
pub(crate) fn flops_per_s(kit: &Kit, spec: &RunSpec) -> f64 {
    let m = spec.sequences * spec.length;
    let dims = Dims { m, n: spec.model.mlp_width, k: spec.model.width };
    PRODUCTS_SHARE * machine::product_flops_per_s(kit, spec.precision, dims)
}

/// What the run asks for.
pub(crate) fn workload(spec: &RunSpec) -> Workload {
    let precision = match spec.precision {
        Precision::F32 => PlanPrecision::Fp32,
        Precision::Bf16 => PlanPrecision::Bf16,
        Precision::F16 => PlanPrecision::Fp16,
    };
    Workload { leaves: u64::from(spec.leaves), precision, replicas: 0 }
}

/// One node with so much memory; its rates do not matter to what fits.
pub(crate) fn this_node(device_bytes: u64) -> Machine {
    let rates = Rates {
        flops_per_s: 1e11,
        memory_bytes_per_s: 1e10,
        wire_bytes_per_s: 1e9,
        host_link_bytes_per_s: 1e10,
        disk_bytes_per_s: 1e9,
    };
    Machine { nodes: 1, device_bytes, host_bytes: None, disk_bytes: None, rates }
}

/// The first way to execute a run on this node that fits: leaves side by side before one after
/// another, and, where it is left to us, no recomputation before recomputation. None of it changes a
/// bit of the result.
///
/// # Errors
/// If none fits: the sum of the smallest, part by part.
pub(crate) fn choose(
    spec: &RunSpec,
    model: &Model,
    setup: DeviceSetup,
    (recompute, limit): (Option<bool>, Option<u64>),
) -> anyhow::Result<(DeviceSetup, Candidate)> {
    let cost = model_cost(spec, model, &setup);
    let available = machine::available_bytes();
    let machine = this_node(limit.unwrap_or(u64::MAX).min(available));
    let orders: &[_] = if spec.leaves > 1 {
        &[
            (PlanOrder::BreadthFirst, Order::BreadthFirst),
            (PlanOrder::DepthFirst, Order::DepthFirst),
        ]
    } else {
        &[(PlanOrder::DepthFirst, Order::DepthFirst)]
    };
    let mut smallest: Option<Candidate> = None;
    for recompute in recompute.map_or(vec![false, true], |r| vec![r]) {
        for &(plan_order, order) in orders {
            let layout = Layout { recompute, order: plan_order, ..Layout::plain() };
            let found = evaluate(&cost, &workload(spec), &machine, layout);
            if found.verdict == Verdict::Fits {
                return Ok((DeviceSetup { order, recompute, ..setup }, found));
            }
            if smallest.as_ref().is_none_or(|s| bytes(&found) < bytes(s)) {
                smallest = Some(found);
            }
        }
    }
    let smallest = smallest.map_or(String::new(), |c| refusal(&c, machine.device_bytes, recompute));
    Err(Usage(smallest).into())
}

/// Bytes of a layout where the computation is.
pub(crate) fn bytes(candidate: &Candidate) -> u64 {
    candidate.memory.bytes(planaria_config::planner::Place::Device)
}

fn refusal(smallest: &Candidate, limit: u64, recompute: Option<bool>) -> String {
    let (needed, there) = (bytes(smallest), format_bytes(limit));
    let advice = match recompute {
        Some(false) => "planaria.compute.recompute \"auto\", a smaller micro-batch",
        _ => "a smaller micro-batch, a shorter sequence",
    };
    format!(
        "the run needs {}, {there} are there; nothing was allocated\n{}take {advice}, 16-bit \
         precision or an optimizer with fewer moments; planaria plan shows every layout",
        format_bytes(needed),
        smallest.memory.to_text()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use planaria_actors::device::MemoryPlan;
    use planaria_actors::spec::SPEC_VERSION;
    use planaria_base::Digest;
    use planaria_models::kernels::Isa;
    use planaria_models::optimizers::{Adam, Muon, OptimizerSpec};
    use planaria_models::schedules::ScheduleSpec;

    fn spec(model: ModelSpec, precision: Precision, leaves: u32) -> RunSpec {
        RunSpec {
            version: SPEC_VERSION,
            model,
            init_from: None,
            data: Digest::default(),
            sequences: 3,
            length: 40,
            leaves,
            seed: 0,
            precision,
            loss_scale: None,
            optimizer: OptimizerSpec::Adam(Adam::default()),
            schedule: ScheduleSpec::Constant { rate: 1e-3 },
            clip: 1.0,
            grid_max_log2: 8,
            chunk_elements: 1 << 20,
        }
    }

    fn specs() -> Vec<RunSpec> {
        let gpt2 = ModelSpec::gpt2(3, 36, 4, 61, 40);
        let llama = ModelSpec {
            family: Family::Llama,
            kv_heads: 2,
            head_dim: 10,
            mlp_width: 90,
            tied: false,
            ..gpt2.clone()
        };
        let muon = OptimizerSpec::Muon(Muon::default());
        vec![
            spec(gpt2.clone(), Precision::F32, 1),
            spec(gpt2, Precision::F16, 3),
            spec(llama.clone(), Precision::Bf16, 2),
            RunSpec { optimizer: muon, ..spec(llama, Precision::F32, 4) },
        ]
    }

    const SETUP: DeviceSetup =
        DeviceSetup { threads: 2, isa: Isa::Scalar, order: Order::DepthFirst, recompute: false };

    /// On one node the planner's bytes are the device's, part by part.
    #[test]
    fn a_plan_is_what_the_device_allocates() {
        for spec in specs() {
            let model = spec.model.build();
            for (recompute, order, plan_order) in [
                (false, Order::DepthFirst, PlanOrder::DepthFirst),
                (false, Order::BreadthFirst, PlanOrder::BreadthFirst),
                (true, Order::BreadthFirst, PlanOrder::BreadthFirst),
            ] {
                let setup = DeviceSetup { recompute, order, ..SETUP };
                let cost = model_cost(&spec, &model, &setup);
                let layout = Layout { recompute, order: plan_order, ..Layout::plain() };
                let found = evaluate(&cost, &workload(&spec), &this_node(1 << 40), layout);
                let item = |names: &[&str]| {
                    let named = found.memory.items.iter().filter(|i| names.contains(&i.name));
                    named.map(|i| i.bytes as usize).sum::<usize>()
                };
                let device = MemoryPlan::of(&spec, &model, &setup);
                let streams = ["saved activations", "residual streams", "tokens and labels"];
                assert_eq!(item(&["parameter values", "optimizer states"]), device.parameters);
                assert_eq!(item(&["reduced gradients"]), device.gradients);
                assert_eq!(item(&["64-bit accumulators"]), device.sums, "{spec:?} {setup:?}");
                assert_eq!(item(&streams), device.activations);
                assert_eq!(item(&["scratch"]), device.scratch);
                let others = PROCESS_BYTES + table_bytes(&spec.model);
                assert_eq!(bytes(&found), device.total() as u64 + others);
            }
        }
    }

    /// Leaves side by side while they fit, then one by one, then with recomputation where that is left
    /// to the planner; then the sum, part by part.
    #[test]
    fn the_first_way_that_fits_is_taken() {
        let spec = specs().remove(1);
        let model = spec.model.build();
        let at = |recompute, order| {
            let layout = Layout { recompute, order, ..Layout::plain() };
            let cost = model_cost(&spec, &model, &SETUP);
            bytes(&evaluate(&cost, &workload(&spec), &this_node(u64::MAX), layout))
        };
        let (breadth, depth) =
            (at(false, PlanOrder::BreadthFirst), at(false, PlanOrder::DepthFirst));
        let least = at(true, PlanOrder::DepthFirst).min(at(true, PlanOrder::BreadthFirst));
        assert!(least < depth && depth < breadth, "{least} {depth} {breadth}");
        let choice = |recompute, limit| choose(&spec, &model, SETUP, (recompute, Some(limit)));
        let way = |recompute, limit| {
            let setup = choice(recompute, limit).expect("it fits").0;
            (setup.order, setup.recompute)
        };
        assert_eq!(way(None, breadth), (Order::BreadthFirst, false));
        assert_eq!(way(None, breadth - 1), (Order::DepthFirst, false));
        assert!(way(None, depth - 1).1);
        assert!(way(Some(true), breadth).1);
        let text = choice(None, least - 1).expect_err("too little").to_string();
        assert!(
            text.contains("optimizer states") && text.contains("nothing was allocated"),
            "{text}"
        );
        let fixed = choice(Some(false), depth - 1).expect_err("too little").to_string();
        assert!(fixed.contains("recompute"), "{fixed}");
    }
}
