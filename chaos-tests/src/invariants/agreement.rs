//! No two nodes decide a step differently: with the same commands, a decision's numbers are the
//! one-node run's; a view's number names one content, and no node goes back to an earlier view.

use super::Invariant;
use crate::world::{Seen, World};
use planaria_actors::protocol::view::{Ballot, NamedView};
use planaria_base::{Digest, Step};
use std::collections::BTreeMap;

#[derive(Default)]
pub(super) struct Agreement {
    /// Per node: what was compared already.
    seen: BTreeMap<u64, (u64, u32, Step)>,
    /// Per node: its life and the latest view it installed in it.
    installed: BTreeMap<u64, (u64, Ballot)>,
    /// Every view seen, by ballot.
    views: BTreeMap<Ballot, Digest>,
}

impl Agreement {
    fn check_view(&mut self, id: u64, life: u64, view: &NamedView) -> Result<(), String> {
        let ballot = view.view.ballot;
        let before = self.installed.insert(id, (life, ballot));
        if before == Some((life, ballot)) {
            return Ok(());
        }
        if before.is_some_and(|(l, b)| l == life && b > ballot) {
            return Err(format!("node {id} went from view {before:?} back to {ballot:?}"));
        }
        let content = *self.views.entry(ballot).or_insert(view.name.content);
        if content != view.name.content {
            return Err(format!("two views have the number {ballot:?}"));
        }
        Ok(())
    }
}

impl Invariant for Agreement {
    fn name(&self) -> &'static str {
        "agreement"
    }

    fn observe(&mut self, seen: &Seen, world: &mut World) -> Result<(), String> {
        let Seen::Swapped { node, step, .. } = seen else { return Ok(()) };
        let slot = &world.slots[*node as usize];
        let Some(machine) = &slot.node else { return Ok(()) };
        let Some(decision) = machine.decisions().get(step).cloned() else { return Ok(()) };
        let key = (slot.life, decision.log.len, *step);
        if self.seen.get(node) == Some(&key) {
            return Ok(());
        }
        self.seen.insert(*node, key);
        let log = machine.log().clone();
        let (_, golden) = world.golden.at(*step, &log);
        match golden {
            Some(golden) if golden.same_numbers(&decision) => Ok(()),
            other => Err(format!("node {node} decided {decision:?}, the one-node run {other:?}")),
        }
    }

    fn after_tick(&mut self, world: &World) -> Result<(), String> {
        for (id, node) in world.running() {
            if let Some(view) = node.view() {
                self.check_view(id, world.slots[id as usize].life, view)?;
            }
        }
        Ok(())
    }
}
