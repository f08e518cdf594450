//! Error messages.

use core::error::Error;
use core::pin::pin;
use core::time::Duration;
use std::format;
use std::string::ToString;

use redlock_core::mock::{MockClock, MockError, MockName, MockNode};
use redlock_core::{
    AcquireError, BuildError, Clock, ExtendError, HoldError, LossCause, NodeError, Options,
    OptionsError, Redlock,
};

use crate::world::*;

#[test]
fn a_held_lock_is_reported_with_how_many_nodes_refused_and_which_did_not_answer() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    steal(&nodes);
    let error = try_once(&nodes, &clock).unwrap_err();
    assert_eq!(
        error.to_string(),
        "dock-7 is held by another client: 5 of 5 nodes refused"
    );
    assert!(!error.is_split());

    nodes[4].stop();
    nodes[3].stop();
    let error = try_once(&nodes, &clock).unwrap_err();
    assert_eq!(
        error.to_string(),
        "dock-7 is held by another client: 3 of 5 nodes refused \
         (node 4: connection refused; node 5: connection refused)",
    );
}

#[test]
fn a_split_vote_is_reported_with_how_many_nodes_granted() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes[..2]
        .iter()
        .for_each(|node| node.set(KEY, thief(), TTL));
    let error = clock
        .run(client(&nodes, &clock, 1).try_acquire(KEY))
        .unwrap_err();
    assert!(error.is_split());
    assert_eq!(
        error.to_string(),
        "dock-7 is held by another client, or split with others: 1 granted, 2 of 3 nodes refused"
    );
}

#[test]
fn no_quorum_names_each_node_that_failed_and_why() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    nodes[2].hang();
    nodes[3].stop();
    nodes[4].hang();
    let error = try_once(&nodes, &clock).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no quorum for dock-7: 2 of 5 nodes voted (node 3: timed out after 50 ms; \
         node 4: connection refused; node 5: timed out after 50 ms)",
    );
}

#[test]
fn a_node_that_answers_that_it_has_no_vote_yet_does_not_count_as_one_that_voted() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes.iter().for_each(MockNode::restart);
    let error = try_once(&nodes, &clock).unwrap_err();
    let words = "no quorum for dock-7: 0 of 3 nodes voted (node 1: restarted just now, ";
    assert!(error.to_string().starts_with(words), "{error}");
}

#[test]
fn the_debug_output_of_a_report_has_as_many_outcomes_as_there_are_nodes() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    let released = format!("{:?}", clock.run(redlock.release(lease)));
    let outcomes = released.matches("Granted").count() + released.matches("Unanswered").count();
    assert_eq!(outcomes, 3, "{released}");
}

#[test]
fn every_node_that_granted_or_refused_counts_as_one_that_voted() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    nodes[0].set(KEY, thief(), TTL);
    nodes[2..].iter().for_each(MockNode::stop);
    let error = try_once(&nodes, &clock).unwrap_err();
    // One refused, one granted.
    assert!(
        error
            .to_string()
            .starts_with("no quorum for dock-7: 2 of 5 nodes voted (node 3: "),
        "{error}"
    );
}

#[test]
fn a_node_that_was_not_waited_for_is_not_reported_as_failed() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    nodes[..3].iter().for_each(MockNode::stop);
    nodes[3..].iter().for_each(|node| node.set_latency(ms(10)));
    let error = try_once(&nodes, &clock).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no quorum for dock-7: 3 of 5 nodes failed (node 1: connection refused; \
         node 2: connection refused; node 3: connection refused)",
    );
}

#[test]
fn a_lost_lock_says_what_was_lost_and_how() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let options = one_round().retry_delay(ms(500), ms(500)).unwrap();
    let (mut redlock, mut lease) = holder_with(&nodes, &clock, options);
    nodes[1].set(KEY, thief(), TTL);
    nodes[2].remove(KEY);
    let error = clock.run(redlock.extend(&mut lease)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the lock dock-7 is lost: 2 of 3 nodes no longer carry its token",
    );
    let hold = clock.run(redlock.hold("dock-8", async |_| {
        nodes.iter().for_each(MockNode::stop);
        core::future::pending::<()>().await;
    }));
    let Err(HoldError::<_, 5>::Lost(cause)) = hold else {
        panic!("all nodes are dead")
    };
    assert_eq!(
        cause.to_string(),
        "the lease could not be extended: no quorum for dock-8: 0 of 3 nodes extended it \
         (node 1: connection refused; node 2: connection refused; node 3: connection refused)",
    );
    assert!(clock.now().as_micros() > 9_000_000);
}

#[test]
fn an_extension_without_a_quorum_counts_a_node_that_lost_the_key_as_none_that_has_extended_it() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder_with(&nodes, &clock, one_round());
    nodes[1].remove(KEY);
    nodes[2].stop();
    let error = clock.run(redlock.extend(&mut lease)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no quorum for dock-7: 1 no longer carry its token, 1 of 3 nodes extended it (node 3: connection refused)",
    );
}

#[test]
fn a_grant_that_is_too_late_says_so_and_what_helps() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes[2].stop();
    let mut redlock = client(&nodes, &clock, 1);
    let late = clock.run(async {
        nodes[..2].iter().for_each(|node| node.set_latency(ms(4)));
        let mut attempt = pin!(redlock.try_acquire(KEY));
        assert!(poll_once(attempt.as_mut()).is_pending());
        clock.advance(TTL);
        attempt.await.unwrap_err()
    });
    assert_eq!(
        late.to_string(),
        "dock-7 was granted too late, its validity was over: 2 of 3 nodes granted it \
         (node 3: connection refused); use a longer TTL",
    );
    let mut lease = clock.run(redlock.try_acquire(KEY)).unwrap();
    let late = clock.run(async {
        let mut extension = pin!(redlock.extend(&mut lease));
        assert!(poll_once(extension.as_mut()).is_pending());
        clock.advance(TTL - ms(102));
        extension.await.unwrap_err()
    });
    assert_eq!(
        late.to_string(),
        "dock-7 was extended only after its validity was over: 2 of 3 nodes extended it \
         (node 3: connection refused)",
    );
}

#[test]
fn an_error_names_the_key_in_one_line_whatever_its_bytes_are() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    nodes.iter().for_each(MockNode::stop);
    let mut redlock = client(&nodes, &clock, 1);
    let error = clock.run(redlock.try_acquire(b"a\nb\xff")).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("no quorum for a\\nb\\xff: 0 of 3"),
        "{error}"
    );
    let error = clock.run(redlock.try_acquire("k".repeat(65))).unwrap_err();
    let shown = format!("no quorum for {}..: 0 of 3", "k".repeat(64));
    assert!(error.to_string().starts_with(&shown), "{error}");
}

#[test]
fn errors_without_a_round_say_what_to_do() {
    type Acquire = AcquireError<NodeError<MockName, MockError>, 5>;
    type Extend = ExtendError<NodeError<MockName, MockError>, 5>;
    type Loss = LossCause<NodeError<MockName, MockError>, 5>;
    type Hold = HoldError<NodeError<MockName, MockError>, 5>;

    let says = |error: &dyn Error, text: &str| {
        assert_eq!(error.to_string(), text);
        assert!(error.source().is_none(), "its message is whole");
    };
    says(
        &Acquire::Entropy,
        "the source of randomness gave the same token twice or only zeros; no lock is safe with it",
    );
    says(&Extend::Expired, "the validity of the lease is over");
    says(
        &Hold::NotAcquired(Acquire::Entropy),
        "the source of randomness gave the same token twice or only zeros; no lock is safe with it",
    );
    says(
        &Hold::Lost(Loss::Expired),
        "the work was stopped: the validity of the lease is over: \
         it was not extended in time",
    );
    says(
        &Loss::ExtensionsSpent,
        "the validity of the lease is over: max_extensions allows no further extension; raise it, or set unlimited_extensions",
    );
    says(&BuildError::NoNode, "no node: name at least one");
    says(
        &BuildError::TooManyNodes { max: 5 },
        "too many nodes: at most 5",
    );
    says(
        &BuildError::ClockTooCoarse,
        "a tick of the clock is as long as the validity of the lease: use a longer TTL",
    );
    says(
        &OptionsError::TtlTooShort,
        "the TTL is too short: clock drift, 2 ms and, with tolerate_clock_jumps, 4 windows and clock_skew leave nothing of it; \
         use a longer one",
    );
    says(
        &OptionsError::TtlTooLong,
        "the time is too long: at most 4294967295 ms, about 49 days",
    );
    says(
        &OptionsError::NodeTimeout,
        "the node timeout must be longer than zero and shorter than the validity (the TTL minus clock drift, 2 ms and, with \
         tolerate_clock_jumps, 4 windows and clock_skew)",
    );
    says(
        &OptionsError::RetryDelay,
        "the shortest retry delay is longer than the longest",
    );
    says(
        &OptionsError::StepBack,
        "step_back is too long: at most 4294967295 ms, about 49 days",
    );
    says(
        &OptionsError::Quarantine,
        "the quarantine, max(max_ttl, step_back) + 4 window + 1 s, is too long: at most 4294967295 ms, about 49 days; \
         use a shorter max_ttl or step_back",
    );
}

#[test]
fn no_message_shows_the_token() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let options = Options::new(TTL).unwrap().wait(Duration::ZERO);
    let fill = |bytes: &mut [u8]| bytes.fill(0xab);
    let mut redlock = Redlock::<_, _, _, 3>::new(&nodes, &clock, fill, options).unwrap();
    nodes.iter().for_each(MockNode::hang);
    assert!(poll_once(pin!(redlock.acquire(KEY))).is_pending());
    nodes.iter().for_each(MockNode::resume);
    let secret = "ab".repeat(5);
    // What a dropped future has left, the last token, and the key on a node.
    for debug in [format!("{:?}", redlock.abandoned()), format!("{nodes:?}")] {
        assert!(
            debug.contains("Token(abababab..)") && !debug.contains(&secret),
            "{debug}"
        );
    }
}
