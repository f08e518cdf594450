//! Releasing the lock.

use redlock_core::mock::{MockClock, MockNode};
use redlock_core::{Clock, Failure, KeyName, Lease, NodeError, Outcome, Transport};

use crate::world::*;

#[test]
fn every_node_deletes_the_key_although_the_release_returns_at_the_quorum() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    nodes[3..].iter().for_each(|node| node.set_latency(ms(40)));
    let released = clock.run(redlock.release(lease));
    assert_eq!(
        (released.released(), released.gone(), released.unanswered()),
        (3, 0, 2)
    );
    assert_eq!(micros(&clock), 0, "at the quorum");
    clock.advance(ms(20));
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn the_text_of_a_release_tells_what_each_node_did() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    steal(&nodes[..1]);
    nodes[4].stop();
    let released = clock.run(redlock.release(lease)).to_string();
    let [on, gone] = [
        "KEY: released on 3, gone on 1",
        "; 1 of 5 nodes had not answered or failed (node 5: ",
    ];
    let on = on.replace("KEY", &KeyName::new(KEY.as_bytes()).to_string());
    assert!(released.starts_with(&(on + gone)), "{released}");

    let min_hold = one_round().min_hold(ms(100)).unwrap();
    let (mut redlock, lease) = holder_with(&nodes, &clock, min_hold);
    let released = clock.run(redlock.release(lease)).to_string();
    assert!(
        released.contains(": kept for its min_hold on 3, gone on 1; "),
        "{released}"
    );
}

#[test]
fn an_expired_lease_is_gone_and_not_an_error() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    clock.advance(EXPIRED);
    let released = clock.run(redlock.release(lease));
    assert_eq!(
        (released.released(), released.gone(), released.unanswered()),
        (0, 5, 0)
    );
}

#[test]
fn a_stolen_lock_is_left_to_the_thief() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    steal(&nodes[1..]);
    let released = clock.run(redlock.release(lease));
    assert_eq!(
        (released.released(), released.gone(), released.unanswered()),
        (1, 4, 0)
    );
    assert_eq!(nodes[0].token(KEY), None);
    assert!(
        nodes[1..]
            .iter()
            .all(|node| node.token(KEY) == Some(thief()))
    );
}

#[test]
fn a_hung_minority_costs_nothing_and_deletes_the_key_when_it_resumes() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    nodes[..2].iter().for_each(MockNode::hang);
    let released = clock.run(redlock.release(lease));
    assert_eq!(
        (released.released(), released.unanswered(), micros(&clock)),
        (3, 2, 0)
    );
    nodes[..2].iter().for_each(MockNode::resume);
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn any_mixture_of_nodes_is_reported_as_it_is_and_nodes_that_do_not_matter_are_not_waited_for() {
    for count in 1..=NODES_MAX {
        for mixture in Mixture::all(count) {
            let clock = MockClock::new();
            let fleet: [Node<'_>; NODES_MAX] = MockNode::array(&clock);
            let nodes = &fleet[..count];
            let (mut redlock, lease) = holder(nodes, &clock);
            mixture.begin(nodes);
            let released = clock.run(redlock.release(lease));

            let [mine, taken, hung, dead] = [
                Condition::Well,
                Condition::Taken,
                Condition::Hung,
                Condition::Dead,
            ]
            .map(|condition| mixture.count(condition));
            assert_eq!(
                (released.released(), released.gone(), released.unanswered()),
                (mine, taken, hung + dead),
                "{mixture:?}"
            );
            let majority = count / 2 + 1;
            // Without a quorum, it waits for each node that may still delete the key.
            let is_decided_at_once = mine + taken >= majority || hung == 0;
            let waited = if is_decided_at_once { ms(0) } else { TIMEOUT };
            assert_eq!(clock.now(), at(waited), "{mixture:?}");
            assert_eq!(redlock.abandoned(), None);
            // A node that hung deletes the key when it resumes; a dead node keeps it until it expires.
            mixture.end(nodes);
            assert!(mixture.thief_has_its_keys(nodes), "{mixture:?}");
            assert_eq!(key_count(nodes), taken + dead, "{mixture:?}");
            clock.advance(EXPIRED);
            assert_eq!(key_count(nodes), 0);
        }
    }
}

#[test]
fn a_key_that_is_gone_is_as_good_an_answer_as_one_that_is_deleted() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    nodes[..2].iter().for_each(|node| node.remove(KEY));
    nodes[4].hang();
    let released = clock.run(redlock.release(lease));
    assert_eq!((released.released(), released.gone()), (2, 2));
    assert_eq!(
        micros(&clock),
        0,
        "four have answered, the release does not wait for the fifth"
    );
}

#[test]
fn a_hung_majority_costs_one_node_timeout_and_is_named() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    nodes[..3].iter().for_each(MockNode::hang);
    let released = clock.run(redlock.release(lease));
    assert_eq!((released.released(), released.unanswered()), (2, 3));
    assert_eq!(clock.now(), at(TIMEOUT));
    let outcomes = released.report().outcomes();
    assert!(
        outcomes[..3]
            .iter()
            .all(|outcome| matches!(outcome, Outcome::Failed(_)))
    );
    nodes[..3].iter().for_each(MockNode::resume);
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn a_node_that_is_silent_until_the_timeout_is_named_although_the_others_are_a_quorum() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    // The answers of two nodes arrive at the timeout.
    nodes[..2].iter().for_each(|node| node.set_latency(TIMEOUT));
    nodes[2].hang();
    let released = clock.run(redlock.release(lease));
    assert_eq!((released.released(), released.unanswered()), (2, 1));
    let failures: Vec<_> = released.report().failures().collect();
    let timed_out = NodeError::new((&nodes[2]).name(), Failure::TimedOut(TIMEOUT));
    assert_eq!(failures, [&timed_out]);
}

#[test]
fn a_client_that_knows_the_token_can_release() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let lease = try_once(&nodes, &clock).unwrap();
    let adopted = Lease::adopt(KEY, *lease.token());
    assert!(
        !adopted.is_valid(clock.now()),
        "a token says nothing about validity"
    );
    let released = clock.run(client(&nodes, &clock, 2).release(adopted));
    assert_eq!(released.released(), 5);
}
