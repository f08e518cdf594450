//! Nodes that can be reached and have no vote.

use core::time::Duration;
use std::string::ToString;

use redlock_core::mock::{MockClock, MockNode};
use redlock_core::{AcquireError, Clock, Denial, Failure};

use crate::world::*;

/// How long a node has no vote after a restart: the TTL and its drift, 1 % and 2 ms.
const QUARANTINE: Duration = ms(10_102);

#[test]
fn a_node_that_restarted_has_no_vote_until_all_that_it_may_have_forgotten_is_over() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let mut redlock = client(&nodes, &clock, 1);
    nodes[2].stop();
    nodes[0].restart_empty();
    clock.advance(ms(3_000));
    let error = clock.run(redlock.try_acquire(KEY)).unwrap_err();
    assert!(matches!(error, AcquireError::Unreachable(_)), "{error:?}");
    let words = error.to_string();
    let wanted = "node 1: restarted at least 3 s ago, its vote counts again in 8 s";
    assert!(words.contains(wanted), "{words}");
    assert_eq!(key_count(&nodes), 0);

    clock.advance(QUARANTINE - ms(3_000) - Duration::from_micros(1));
    assert!(
        clock.run(redlock.try_acquire(KEY)).is_err(),
        "a moment too soon"
    );
    clock.advance(Duration::from_micros(1));
    assert!(clock.run(redlock.try_acquire(KEY)).is_ok());
}

#[test]
fn a_wait_that_is_long_enough_outlasts_the_quarantine() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let options = one_round().wait(Duration::from_secs(20));
    nodes.iter().for_each(MockNode::restart_empty);
    let lease = clock.run(client_with(&nodes, &clock, 1, options).acquire(KEY));
    assert!(lease.is_ok());
    let now = clock.now();
    // The last delay may be as long as four times the longest of its range.
    assert!(
        now >= at(QUARANTINE) && now < at(QUARANTINE + ms(200)),
        "{now:?}"
    );
}

#[test]
fn the_default_wait_outlasts_the_quarantine_of_nodes_that_are_met_late() {
    for (ttl, drift_ppm) in [
        (ms(100), 10_000),
        (ms(1_000), 200_000),
        (ms(10_000), 10_000),
        (ms(10_000), 50_000),
        (ms(3_600_000), 10_000),
    ] {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 3] = MockNode::array(&clock);
        for node in &nodes {
            node.restart_empty();
            node.set_latency(ms(20));
        }
        let options = redlock_core::Options::new(ttl).unwrap();
        let options = options.drift_ppm(drift_ppm).unwrap();
        let lease = clock.run(client_with(&nodes, &clock, 1, options).acquire(KEY));
        assert!(lease.is_ok(), "{ttl:?}: {lease:?}");
    }
}

#[test]
fn the_default_wait_outlasts_the_quarantine_of_new_nodes_also_with_a_longer_max_ttl_and_with_fences()
 {
    use redlock_core::{Fencing, Options};

    let plain = Options::new(ms(10_000)).unwrap();
    let fenced = |fencing| plain.fenced(fencing).unwrap();
    let short = Fencing::new(ms(20)).unwrap().with_max_ttl(ms(10_000));
    let short = short.unwrap().with_step_back(Duration::ZERO).unwrap();
    for options in [
        plain.max_ttl(ms(60_000)).unwrap(),
        fenced(Fencing::default()),
        fenced(short),
    ] {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 3] = MockNode::array(&clock);
        for node in &nodes {
            node.restart_empty();
            node.set_latency(ms(20));
        }
        let lease = clock.run(client_with(&nodes, &clock, 1, options).acquire(KEY));
        assert!(lease.is_ok(), "{options:?}: {lease:?}");
    }
    // An hour is too long to wait for in silence.
    let hour = Fencing::default().with_max_ttl(ms(3_600_000)).unwrap();
    assert_eq!(fenced(hour).wait_time(), plain.wait_time());
}

#[test]
fn two_that_ask_one_after_the_other_do_not_both_hold_when_the_node_between_them_forgets() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes[2].stop();
    let lease = try_once(&nodes, &clock).unwrap();
    nodes[2].restart();
    nodes[1].restart_empty();
    let mut other = client(&nodes, &clock, 2);
    while lease.is_valid(clock.now()) {
        assert!(clock.run(other.try_acquire(KEY)).is_err());
        clock.advance(ms(unless_miri(100, 3_000)));
    }
    clock.advance(ms(300));
    assert!(clock.run(other.try_acquire(KEY)).is_ok());
}

#[test]
fn a_lease_is_extended_and_released_on_nodes_that_have_restarted_with_their_data() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder(&nodes, &clock);
    nodes.iter().for_each(MockNode::restart);
    assert_eq!(clock.run(redlock.extend(&mut lease)), Ok(()));
    let released = clock.run(redlock.release(lease));
    assert!(released.released() >= 2, "{released:?}");
}

#[test]
fn a_server_that_is_named_twice_has_one_vote_and_the_error_names_both() {
    let clock = MockClock::new();
    let fleet: [Node<'_>; 2] = MockNode::array(&clock);
    let nodes = [&fleet[0], &fleet[1], &fleet[0]];
    let build = || {
        let tokens = redlock_core::mock::SeededEntropy::new(1);
        redlock_core::Redlock::<_, _, _, 3>::new(nodes, &clock, tokens, one_round()).unwrap()
    };
    let mut redlock = build();
    let mut lease = clock.run(redlock.try_acquire(KEY)).unwrap();
    // One of the two servers is not a quorum of three nodes, under any name.
    fleet[1].stop();
    let error = clock.run(redlock.extend(&mut lease)).unwrap_err();
    assert!(error.is_retryable(), "{error:?}");
    drop(lease);
    clock.advance(EXPIRED);
    let error = clock.run(build().try_acquire(KEY)).unwrap_err();
    assert!(matches!(error, AcquireError::Unreachable(_)), "{error}");
    let words = error.to_string();
    let wanted = "node 1: the same server as node 1; name each server once";
    assert!(words.contains(wanted), "{words}");
    assert_eq!(key_count(&fleet), 0);
}

#[test]
fn a_denial_does_not_tell_whether_the_lock_is_held() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes.iter().for_each(MockNode::restart);
    let error = try_once(&nodes, &clock).unwrap_err();
    let AcquireError::Unreachable(report) = error else {
        panic!("{error:?}")
    };
    for failure in report.failures() {
        let denial = Denial::Restarted {
            ago_ms: 0,
            left_ms: 10_102,
            has_record: false,
        };
        assert_eq!(*failure.failure(), Failure::Denied(denial), "{failure}");
    }
    assert_eq!(report.tally().unknown, 3);
}
