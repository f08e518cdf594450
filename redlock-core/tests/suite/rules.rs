//! Rules of a fleet that change, or of which nodes have gone back to old ones.

use core::time::Duration;

use redlock_core::Fencing;
use redlock_core::mock::{MockClock, MockNode};

use crate::world::*;

const MINUTE: Duration = ms(60_000);

fn rules(max_ttl: Duration) -> Fencing {
    let rules = Fencing::new(Fencing::WINDOW).unwrap();
    rules.with_max_ttl(max_ttl).unwrap()
}

fn client_of<'c>(nodes: &'c [Node<'c>], clock: &'c MockClock, rules: Fencing) -> Lock<'c> {
    let options = one_round().wait(3 * MINUTE).fenced(rules).unwrap();
    client_with(nodes, clock, rules.max_ttl().as_secs(), options)
}

/// The only node that knows the rules answers a little later than the others, which lead a client with other rules astray.
#[test]
fn a_client_with_other_rules_waits_for_the_node_that_knows_the_right_ones() {
    let clock = MockClock::new();
    let (right, wrong) = (rules(10 * MINUTE), rules(MINUTE));
    for latency in [1, 2, 5] {
        let nodes: [Node<'_>; 3] = MockNode::array(&clock);
        nodes[0].repair(wrong);
        nodes[1..].iter().for_each(|node| node.repair(right));
        clock.advance(12 * MINUTE);
        let options = one_round().fenced(right).unwrap();
        let mut holder = client_with(&nodes, &clock, 1, options);
        let lease = clock.run(holder.try_acquire(KEY)).unwrap();
        nodes.iter().for_each(|node| node.set_latency(ms(1)));
        nodes[1].clear();
        nodes[2].set_latency(ms(latency));
        let mut other = client_of(&nodes, &clock, wrong);
        let result = clock.run(other.acquire(KEY));
        assert!(result.is_err(), "{latency} ms: both hold {lease:?}");
    }
}

/// Most nodes crash, and come back with the data that they saved before an operator changed the rules.
#[test]
fn nodes_with_data_from_before_a_change_of_the_rules_do_not_bring_the_old_rules_back() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (before, after) = (rules(MINUTE), rules(10 * MINUTE));
    let mut old = client_of(&nodes, &clock, before);
    let lease = clock.run(old.acquire(KEY)).unwrap();
    clock.run(old.release(lease));
    nodes.iter().for_each(MockNode::save);
    nodes.iter().for_each(|node| node.repair(after));
    clock.advance(30 * MINUTE);
    let options = one_round().fenced(after).unwrap();
    let mut new = client_with(&nodes, &clock, 1, options);
    let lease = clock.run(new.try_acquire(KEY)).unwrap();
    for node in &nodes[..2] {
        node.fail_back();
        node.restart();
    }
    let result = clock.run(old.acquire(KEY));
    assert!(result.is_err(), "both hold {lease:?}");
}
