//! DeepSpeed-compatible JSON to a RunPlan; the memory and time planner.
