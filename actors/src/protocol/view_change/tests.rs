//! Promises (PROTOCOL.md rule 6).

use super::ViewChange;
use crate::protocol::effect::{Effect, Post};
use crate::protocol::message::Message;
use crate::protocol::view::Ballot;
use planaria_base::{NodeId, ViewId};

fn ballot(number: u64, candidate: u64) -> Ballot {
    Ballot { number: ViewId(number), candidate: NodeId(candidate) }
}

/// A member refuses a lower number; of equal ones, one candidate gets the promise.
#[test]
fn a_promise_stops_lower_proposals() {
    let mut spec = crate::protocol::node::test_spec();
    let mut post = Post { me: NodeId(9), ..Post::default() };
    let mut change = ViewChange::default();
    assert!(change.on_propose(ballot(5, 2), &spec, 1, &mut post));
    assert!(change.closed);
    assert!(!change.on_propose(ballot(4, 7), &spec, 1, &mut post));
    assert!(!change.on_propose(ballot(5, 1), &spec, 1, &mut post));
    let refusals = post.effects.iter().filter(|e| match e {
        Effect::Send { frame, .. } => {
            matches!(frame.message, Message::Refuse { promised } if promised == ballot(5, 2))
        }
        _ => false,
    });
    assert_eq!(refusals.count(), 2);
    assert!(change.on_propose(ballot(5, 2), &spec, 1, &mut post), "said again");
    assert!(change.on_propose(ballot(5, 3), &spec, 1, &mut post), "the later candidate");
    assert_eq!(change.next_ballot(NodeId(9)), ballot(6, 9));
    spec.bugs.push(crate::protocol::spec::Mutation::ForgetPromises);
    assert!(change.on_propose(ballot(4, 7), &spec, 1, &mut post), "with the bug put back");
}
