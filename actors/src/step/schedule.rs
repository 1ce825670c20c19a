//! The order of a stage's ops: a pure function of the number of blocks and leaves.

use super::Op;
use planaria_base::{BlockId, Leaf};
use serde::{Deserialize, Serialize};

/// In which order a stage walks its blocks and leaves. Never changes a bit of the result: gradients
/// are summed exactly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Block `b` for all leaves, then block `b + 1`: a block's parameters are fetched once per pass,
    /// its exact sum lives only while it runs; activations of all leaves are held.
    BreadthFirst,
    /// Leaf by leaf: activations of one leaf are held, and exact sums of the whole model.
    #[default]
    DepthFirst,
}

/// All ops of one step, in order.
///
/// A group's `Reduce` stands right behind the last op that emits into it. Group `blocks` is the loss
/// block's own; group `b` belongs to block `b`. A parameter shared by two blocks is in the group of
/// the one that runs its backward last.
#[must_use]
pub fn ops(order: Order, blocks: u32, leaves: u32) -> Vec<Op> {
    let mut out = Vec::new();
    match order {
        Order::BreadthFirst => breadth_first(blocks, leaves, &mut out),
        Order::DepthFirst => depth_first(blocks, leaves, &mut out),
    }
    out
}

fn breadth_first(blocks: u32, leaves: u32, out: &mut Vec<Op>) {
    let all = || (0..leaves).map(Leaf);
    out.extend(all().map(Op::Load));
    for b in (0..blocks).map(BlockId) {
        out.extend(all().map(|leaf| Op::Forward(b, leaf)));
    }
    out.extend(all().map(Op::Loss));
    out.push(Op::Reduce(BlockId(blocks)));
    for b in (0..blocks).rev().map(BlockId) {
        out.extend(all().map(|leaf| Op::Backward(b, leaf)));
        out.push(Op::Reduce(b));
    }
}

fn depth_first(blocks: u32, leaves: u32, out: &mut Vec<Op>) {
    for leaf in (0..leaves).map(Leaf) {
        let last = leaf.0 + 1 == leaves;
        out.push(Op::Load(leaf));
        out.extend((0..blocks).map(|b| Op::Forward(BlockId(b), leaf)));
        out.push(Op::Loss(leaf));
        if last {
            out.push(Op::Reduce(BlockId(blocks)));
        }
        for b in (0..blocks).rev().map(BlockId) {
            out.push(Op::Backward(b, leaf));
            if last {
                out.push(Op::Reduce(b));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Both orders hold the same ops, each once, and each after what it needs.
        #[test]
        fn every_op_once_and_after_what_it_needs(blocks in 1u32..6, leaves in 1u32..5) {
            let breadth = ops(Order::BreadthFirst, blocks, leaves);
            let depth = ops(Order::DepthFirst, blocks, leaves);
            prop_assert_eq!(breadth.len(), depth.len());
            for program in [&breadth, &depth] {
                let at = |op: Op| program.iter().position(|&o| o == op);
                for leaf in (0..leaves).map(Leaf) {
                    let loss = at(Op::Loss(leaf)).expect("a loss per leaf");
                    prop_assert!(at(Op::Load(leaf)).expect("a load") < loss);
                    for b in (0..blocks).map(BlockId) {
                        let forward = at(Op::Forward(b, leaf)).expect("a forward");
                        let backward = at(Op::Backward(b, leaf)).expect("a backward");
                        prop_assert!(forward < loss && loss < backward);
                        prop_assert!(backward < at(Op::Reduce(b)).expect("a reduce"));
                    }
                }
            }
        }
    }
}
