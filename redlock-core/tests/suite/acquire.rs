//! Acquiring the lock.

use core::pin::pin;
use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::HashSet;

use embassy_futures::join::join;
use redlock_core::mock::{MockClock, MockError, MockName, MockNode, SeededEntropy};
use redlock_core::{AcquireError, BuildError, Clock, Entropy, NodeError, Options, Redlock, Token};

use crate::world::*;

#[test]
fn a_lease_is_on_every_node_and_ends_at_the_start_plus_ttl_minus_drift_minus_one_tick() {
    for tick in [Duration::from_micros(1), ms(1), ms(10)] {
        let clock = MockClock::with_resolution(tick);
        clock.advance(ms(1_234));
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        nodes.iter().for_each(|node| node.set_latency(ms(7)));
        let lease = try_once(&nodes, &clock).unwrap();
        // 1 % and 2 ms of ten seconds; the seven milliseconds of the round are in it.
        let until = ms(1_234) + TTL - ms(102) - tick;
        assert_eq!(lease.valid_until(), at(until));
        assert_eq!(micros(&clock), 1_241_000);
        assert_eq!(holders(&nodes), 5);
        for node in &nodes {
            assert_eq!(node.token(KEY).as_ref(), Some(lease.token()));
            assert!(node.ttl(KEY).unwrap() > lease.remaining(clock.now()));
        }
    }
}

#[test]
fn with_any_pattern_of_faulty_nodes_the_lock_is_taken_if_and_only_if_a_quorum_lives() {
    for fault in Fault::ALL {
        with_any_pattern_of_nodes_in(fault);
    }
}

fn with_any_pattern_of_nodes_in(fault: Fault) {
    for count in 1..=NODES_MAX {
        for pattern in 0..1_u32 << count {
            let clock = MockClock::new();
            let fleet: [Node<'_>; NODES_MAX] = MockNode::array(&clock);
            let nodes = &fleet[..count];
            let faulty = || {
                (0..count)
                    .filter(|node| is_in(pattern, *node))
                    .map(|node| &nodes[node])
            };
            faulty().for_each(|node| fault.begin(node));
            let alive = count - faulty().count();
            let mut redlock = client(nodes, &clock, 1);
            let result = clock.run(redlock.try_acquire(KEY));
            if 2 * alive > count {
                let lease = result.unwrap();
                assert_eq!(holders(nodes), alive, "{count} nodes, {pattern:b}");
                assert_eq!(
                    micros(&clock),
                    0,
                    "the acquire has not waited for the others"
                );
                let released = clock.run(redlock.release(lease));
                assert!(released.released() + released.unanswered() >= alive);
            } else {
                let error = result.unwrap_err();
                assert!(matches!(error, AcquireError::Unreachable(_)), "{error}");
                assert!(clock.now() <= at(TIMEOUT));
            }
            faulty().for_each(|node| fault.end(node));
            assert_eq!(key_count(nodes), 0, "{count} nodes, {pattern:b}");
        }
    }
}

#[test]
fn with_any_pattern_of_held_nodes_the_lock_is_taken_if_and_only_if_a_quorum_is_free() {
    for count in 1..=NODES_MAX {
        for pattern in 0..1_u32 << count {
            let clock = MockClock::new();
            let fleet: [Node<'_>; NODES_MAX] = MockNode::array(&clock);
            let nodes = &fleet[..count];
            let held = (0..count).filter(|node| is_in(pattern, *node));
            held.clone()
                .for_each(|node| nodes[node].set(KEY, thief(), TTL));
            let held = held.count();
            let mut redlock = client(nodes, &clock, 1);
            let result = clock.run(redlock.try_acquire(KEY));
            if 2 * (count - held) > count {
                clock.run(redlock.release(result.unwrap()));
            } else {
                let error = result.unwrap_err();
                assert!(matches!(error, AcquireError::Held(_)), "{error}");
            }
            // Only the keys of the other client are left, and all of them.
            assert_eq!(key_count(nodes), held, "{count} nodes, {pattern:b}");
        }
    }
}

#[test]
fn any_mixture_of_free_held_hung_and_dead_nodes_ends_as_the_rule_says() {
    for count in 1..=NODES_MAX {
        for mixture in Mixture::all(count) {
            let clock = MockClock::new();
            let fleet: [Node<'_>; NODES_MAX] = MockNode::array(&clock);
            let nodes = &fleet[..count];
            mixture.begin(nodes);
            let result = clock.run(attempt(&mut client(nodes, &clock, 1)));

            let [free, hung, dead] = [Condition::Well, Condition::Hung, Condition::Dead]
                .map(|condition| mixture.count(condition));
            let majority = count / 2 + 1;
            let is_decided_at_once = free >= majority || free + hung < majority;
            // A node that was not waited for is not silent.
            let silent = if is_decided_at_once {
                dead
            } else {
                dead + hung
            };
            let ours = match result {
                Ok(_) => {
                    assert!(free >= majority, "{mixture:?}");
                    free + hung
                }
                Err(AcquireError::Held(report)) => {
                    assert!(free < majority && count - silent >= majority, "{mixture:?}");
                    assert_eq!(report.tally().granted, free);
                    0
                }
                Err(AcquireError::Unreachable(report)) => {
                    assert!(count - silent < majority, "{mixture:?}");
                    assert_eq!(report.failures().count(), silent);
                    0
                }
                Err(other) => panic!("{mixture:?}: {other}"),
            };
            let waited = if is_decided_at_once { ms(0) } else { TIMEOUT };
            assert_eq!(clock.now(), at(waited), "{mixture:?}");
            mixture.end(nodes);
            assert!(mixture.thief_has_its_keys(nodes), "{mixture:?}");
            let taken = mixture.count(Condition::Taken);
            assert_eq!(key_count(nodes), taken + ours, "{mixture:?}");
        }
    }
}

#[test]
fn an_even_split_is_won_by_no_client_and_cleaned_up_by_both() {
    for count in [2, 4] {
        let clock = MockClock::new();
        let fleet: [Node<'_>; 5] = MockNode::array(&clock);
        let nodes = &fleet[..count];
        // Each client is faster at its own half: the other half's commands are on their way.
        for (mine, theirs) in [
            (0..count / 2, count / 2..count),
            (count / 2..count, 0..count / 2),
        ] {
            steal(&nodes[mine]);
            let error = try_once(nodes, &clock).unwrap_err();
            assert!(matches!(error, AcquireError::Held(_)), "{error}");
            assert!(nodes[theirs].iter().all(MockNode::is_empty), "cleaned up");
            nodes.iter().for_each(MockNode::clear);
        }
    }
}

#[test]
fn held_by_another_is_told_from_no_quorum_whatever_the_rest_does() {
    // If three of five nodes hold the key of another client, the lock is held, for any state of the other two.
    // If three of five nodes are silent, there is no quorum, whether the other two are free or held.
    let attempt = |held: usize, fault: Fault| {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        steal(&nodes[..held]);
        nodes[held..].iter().for_each(|node| fault.begin(node));
        try_once(&nodes, &clock).unwrap_err()
    };
    for fault in Fault::ALL {
        let error = attempt(3, fault);
        assert!(matches!(error, AcquireError::Held(_)), "{error}");
        let error = attempt(2, fault);
        assert!(matches!(error, AcquireError::Unreachable(_)), "{error}");
    }
}

#[test]
fn a_majority_that_hangs_forever_costs_one_node_timeout_and_keeps_no_key_on_live_nodes() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    nodes[2..].iter().for_each(MockNode::hang);
    let error = try_once(&nodes, &clock).unwrap_err();
    assert!(matches!(error, AcquireError::Unreachable(_)), "{error}");
    assert_eq!(clock.now(), at(TIMEOUT));
    assert_eq!(
        key_count(&nodes),
        0,
        "also the late grants are gone once they resume"
    );
}

#[test]
fn a_straggler_that_grants_after_the_attempt_has_failed_is_released() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    steal(&nodes[..3]);
    nodes[4].hang();
    let error = try_once(&nodes, &clock).unwrap_err();
    assert!(matches!(error, AcquireError::Held(_)), "{error}");
    nodes[4].resume();
    assert_eq!(holders(&nodes), 3, "only the other's keys");
}

#[test]
fn keys_of_a_lost_round_are_deleted_before_its_error_is_returned() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    steal(&nodes[..3]);
    nodes[..3].iter().for_each(|node| node.set_latency(ms(8)));
    nodes[3].set_latency(ms(4));
    nodes[4].set_latency(ms(6));
    let error = clock
        .run(attempt(&mut client(&nodes, &clock, 1)))
        .unwrap_err();
    assert_eq!(error.report().unwrap().tally().granted, 2);
    assert_eq!(holders(&nodes), 3, "the thief's");
    assert_eq!(
        micros(&clock),
        14_000,
        "the round, and the way to both that granted and back"
    );
}

#[test]
fn a_clean_up_waits_for_nodes_that_granted_and_not_for_the_others() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    nodes[..3].iter().for_each(MockNode::hang);
    let mut redlock = client(&nodes, &clock, 1);
    let others = async {
        // Two nodes have granted, and are slow from now on; three resume after the round has ended.
        nodes[3..].iter().for_each(|node| node.set_latency(ms(8)));
        clock.sleep_until(at(TIMEOUT)).await;
        nodes[..3].iter().for_each(MockNode::resume);
    };
    let (result, ()) = clock.run(join(redlock.try_acquire(KEY), others));
    assert!(matches!(result, Err(AcquireError::Unreachable(_))));
    assert_eq!(clock.now(), at(TIMEOUT + ms(8)));
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn a_grant_that_comes_when_the_validity_is_over_is_too_late_and_cleaned_up() {
    // Of 1000 ms, 988 ms less a tick of one microsecond are valid.
    let valid_for = ms(988) - Duration::from_micros(1);
    for late in [Duration::ZERO, Duration::from_micros(1), ms(5_000)] {
        let (result, keys) = acquired_after_a_pause_of(valid_for + late);
        assert!(
            matches!(result, Err(AcquireError::TooLate(_))),
            "{late:?}: {result:?}"
        );
        assert_eq!(keys, 0);
    }
    let (result, keys) = acquired_after_a_pause_of(valid_for - Duration::from_micros(1));
    assert!(result.is_ok(), "a microsecond is left");
    assert_eq!(keys, 3);
}

/// The process stands still between command and reply; and how many keys there are then.
fn acquired_after_a_pause_of(
    pause: Duration,
) -> (
    Result<(), AcquireError<NodeError<MockName, MockError>, 5>>,
    usize,
) {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let options = Options::new(ms(1_000)).unwrap().wait(Duration::ZERO);
    let options = options.node_timeout(ms(987)).unwrap();
    let mut redlock = client_with(&nodes, &clock, 1, options);
    let result = clock.run(async {
        let mut attempt = pin!(redlock.try_acquire(KEY));
        nodes.iter().for_each(|node| node.set_latency(ms(100)));
        assert!(poll_once(attempt.as_mut()).is_pending());
        // All replies have arrived when it resumes.
        clock.advance(pause);
        attempt.await
    });
    (result.map(drop), key_count(&nodes))
}

#[test]
fn every_attempt_has_a_token_of_its_own() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let mut redlock = client(&nodes, &clock, 1);
    let mut tokens = HashSet::new();
    for _ in 0..unless_miri(5_000, 5) {
        let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
        assert!(tokens.insert(*lease.token()));
        clock.run(redlock.release(lease));
    }
}

#[test]
fn randomness_that_repeats_itself_or_gives_zeros_is_refused() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let zeros = |_: &mut [u8]| ();
    let mut redlock = Redlock::<_, _, _, 3>::new(&nodes, &clock, zeros, one_round()).unwrap();
    redlock.set_options(one_round().wait(TTL));
    let refused = clock.run(redlock.acquire(KEY));
    assert!(matches!(refused, Err(AcquireError::Entropy)), "{refused:?}");
    assert_eq!(key_count(&nodes), 0, "nothing was sent");
    assert_eq!(
        micros(&clock),
        0,
        "a source that has failed is not asked again"
    );

    let stuck = |bytes: &mut [u8]| bytes.fill(4);
    let mut works = true;
    let fails_later = move |bytes: &mut [u8]| {
        if core::mem::take(&mut works) {
            bytes.fill(4);
        }
    };
    second_token_is_refused(stuck);
    second_token_is_refused(fails_later);
}

fn second_token_is_refused(entropy: impl Entropy) {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let mut redlock = Redlock::<_, _, _, 3>::new(&nodes, &clock, entropy, one_round()).unwrap();
    let lease = clock.run(redlock.acquire(KEY)).unwrap();
    clock.run(redlock.release(lease));
    let refused = clock.run(redlock.acquire(KEY));
    assert!(matches!(refused, Err(AcquireError::Entropy)), "{refused:?}");
}

#[test]
fn acquire_waits_as_long_as_the_option_says_and_one_round_more() {
    for wait in unless_miri(&[0, 1, 300, 2_000][..], &[20])
        .iter()
        .copied()
        .map(ms)
    {
        for fault in Fault::ALL {
            let clock = MockClock::new();
            let nodes: [Node<'_>; 5] = MockNode::array(&clock);
            nodes[..3].iter().for_each(|node| fault.begin(node));
            let mut redlock = client_with(&nodes, &clock, 1, one_round().wait(wait));
            assert!(clock.run(redlock.acquire(KEY)).is_err());
            let waited = clock.now().saturating_duration_since(at(Duration::ZERO));
            assert!(
                waited >= wait && waited <= wait + TIMEOUT,
                "{wait:?}: {waited:?}"
            );
        }
    }
}

#[test]
fn nodes_that_hang_after_their_grant_cost_the_clean_up_one_more_node_timeout_and_no_more() {
    for wait in [0, unless_miri(300, 0)].map(ms) {
        let is_over = Cell::new(false);
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        nodes[2..].iter().for_each(MockNode::hang);
        let mut redlock = client_with(&nodes, &clock, 1, one_round().wait(wait));
        // Two grant at once; a moment before each round is over they hang, and resume a moment after
        // its clean-up has given them up.
        let hanging = async {
            while !is_over.get() {
                if holders(&nodes[..2]) == 2 {
                    clock.sleep_until(clock.now().saturating_add(ms(49))).await;
                    nodes[..2].iter().for_each(MockNode::hang);
                    clock.sleep_until(clock.now().saturating_add(ms(52))).await;
                    nodes[..2].iter().for_each(MockNode::resume);
                }
                clock
                    .sleep_until(clock.now().saturating_add(Duration::from_micros(100)))
                    .await;
            }
        };
        let acquiring = async {
            let result = redlock.acquire(KEY).await;
            assert!(matches!(result, Err(AcquireError::Unreachable(_))));
            is_over.set(true);
            clock.now()
        };
        let (ended_at, ()) = clock.run(join(acquiring, hanging));
        assert!(
            ended_at >= at(wait + TIMEOUT) && ended_at <= at(wait + 2 * TIMEOUT),
            "{wait:?}: {ended_at:?}"
        );
        if wait.is_zero() {
            assert_eq!(ended_at, at(2 * TIMEOUT), "both were waited for");
        }
        nodes.iter().for_each(MockNode::resume);
        assert_eq!(key_count(&nodes), 0);
    }
}

#[test]
fn acquire_without_options_for_it_waits_for_the_ttl_its_drift_and_two_rounds() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    steal_for(10 * TTL, &nodes);
    let mut redlock = client_with(&nodes, &clock, 1, Options::new(ms(500)).unwrap());
    assert!(clock.run(redlock.acquire(KEY)).is_err());
    assert_eq!(clock.now(), at(ms(500 + 7 + 2 * 100)));
}

#[test]
fn the_delay_between_rounds_is_drawn_again_and_grows_to_four_times() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    steal_for(10 * TTL, &nodes);
    let options = one_round()
        .wait(ms(unless_miri(9_000, 1_000)))
        .retry_delay(ms(10), ms(20))
        .unwrap();
    // Each attempt draws a token of 20 bytes.
    let attempts = RefCell::new(Vec::new());
    let mut seeded = SeededEntropy::new(1);
    let entropy = |bytes: &mut [u8]| {
        if bytes.len() == Token::LEN {
            attempts.borrow_mut().push(micros(&clock));
        }
        seeded.fill(bytes);
    };
    let mut redlock = Redlock::<_, _, _, 3>::new(&nodes, &clock, entropy, options).unwrap();
    assert!(clock.run(redlock.acquire(KEY)).is_err());
    let attempts = attempts.borrow();
    let delays: Vec<_> = attempts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    // The last one is cut by the end of the wait.
    let (_last, delays) = delays.split_last().unwrap();
    assert!((10_000..20_000).contains(&delays[0]));
    assert!((10_000..40_000).contains(&delays[1]));
    assert!(delays.iter().all(|delay| (10_000..80_000).contains(delay)));
    assert!(delays.iter().any(|delay| *delay > 70_000), "it has grown");
    let mut different = delays.to_vec();
    different.sort_unstable();
    different.dedup();
    assert!(different.len() > delays.len() - 3, "drawn anew: {delays:?}");
}

#[test]
fn acquire_gets_a_lock_that_comes_free_while_it_waits() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    steal_for(ms(700), &nodes);
    let options = one_round().wait(ms(1_000));
    let lease = clock
        .run(client_with(&nodes, &clock, 1, options).acquire(KEY))
        .unwrap();
    assert!(lease.is_valid(clock.now()));
    // Free after 700 ms, and asked for again after 200 ms at the latest.
    assert!(
        (700_000..=900_000).contains(&micros(&clock)),
        "{}",
        micros(&clock)
    );
}

#[test]
fn a_retry_delay_of_zero_does_not_spin() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    steal(&nodes);
    let ticks_max = unless_miri(50, 5);
    let options = one_round()
        .wait(2 * ticks_max * ms(1))
        .retry_delay(Duration::ZERO, Duration::ZERO)
        .unwrap();
    let ticks = Cell::new(0);
    let other_task = async {
        for _ in 0..ticks_max {
            clock.sleep_until(clock.now().saturating_add(ms(1))).await;
            ticks.set(ticks.get() + 1);
        }
    };
    let mut redlock = client_with(&nodes, &clock, 1, options);
    let (result, ()) = clock.run(join(redlock.acquire(KEY), other_task));
    assert!(matches!(result, Err(AcquireError::Held(_))));
    assert_eq!(ticks.get(), ticks_max);
    assert_eq!(clock.now(), at(2 * ticks_max * ms(1)));
}

#[test]
fn a_ttl_that_a_tick_of_the_clock_uses_up_is_refused_when_the_lock_is_made() {
    let clock = MockClock::with_resolution(ms(10));
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let build = |ttl| {
        let options = Options::new(ms(ttl)).unwrap();
        Redlock::<_, _, _, 3>::new(&nodes, &clock, SeededEntropy::new(1), options).map(drop)
    };
    // Of 12 ms, 1 % and 2 ms are drift: 9.88 ms are valid, less than a tick.
    assert_eq!(build(12), Err(BuildError::ClockTooCoarse));
    assert_eq!(build(13), Ok(()));
    // Of 12 ms, 2 ms are drift: what is valid is just one tick.
    let options = Options::new(ms(12)).unwrap().drift_ppm(0).unwrap();
    let just_one_tick =
        Redlock::<_, _, _, 3>::new(&nodes, &clock, SeededEntropy::new(1), options).map(drop);
    assert_eq!(just_one_tick, Err(BuildError::ClockTooCoarse));
    // Options that are set later are not compared with the clock: no lock is granted with them.
    let mut redlock = client(&nodes, &clock, 1);
    redlock.set_options(options.wait(Duration::ZERO));
    let result = clock.run(redlock.acquire(KEY));
    assert!(
        matches!(result, Err(AcquireError::TooLate(_))),
        "{result:?}"
    );
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn a_lock_has_at_least_one_node_and_at_most_as_many_as_there_is_room_for() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 4] = MockNode::array(&clock);
    let build = |nodes| {
        Redlock::<_, _, _, 3>::new(nodes, &clock, SeededEntropy::new(1), one_round()).map(drop)
    };
    assert_eq!(build(&nodes[..0]), Err(BuildError::NoNode));
    assert_eq!(build(&nodes[..3]), Ok(()));
    assert_eq!(build(&nodes), Err(BuildError::TooManyNodes { max: 3 }));
    // Whatever the room, no more than 32.
    let many = |count| {
        let nodes = nodes.iter().cycle().take(count);
        Redlock::<_, _, _, 40>::new(nodes, &clock, SeededEntropy::new(1), one_round()).map(drop)
    };
    assert_eq!(many(32), Ok(()));
    assert_eq!(many(33), Err(BuildError::TooManyNodes { max: 32 }));
}

#[test]
fn a_fork_is_another_client_over_the_same_nodes() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MockNode::array(&clock);
    let mut redlock = client(&nodes, &clock, 1);
    nodes.iter().for_each(MockNode::hang);
    assert!(poll_once(pin!(redlock.try_acquire(KEY))).is_pending());
    nodes.iter().for_each(MockNode::resume);
    let mut fork = redlock.fork(SeededEntropy::new(2));
    assert_eq!(
        fork.abandoned(),
        None,
        "what the other one has left is not its"
    );
    assert_eq!(fork.options(), redlock.options());
    assert_eq!(fork.nodes_mut().count(), 3);
    let held = clock.run(fork.try_acquire(KEY));
    assert!(matches!(held, Err(AcquireError::Held(_))), "{held:?}");
    clock.run(redlock.release_abandoned());
    let lease = clock.run(fork.try_acquire(KEY)).unwrap();
    assert_eq!(nodes[0].token(KEY).as_ref(), Some(lease.token()));
}

#[test]
fn a_minority_that_comes_back_with_its_data_changes_nothing() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let options = one_round().restart_guard(false);
    let lease = clock
        .run(client_with(&nodes, &clock, 1, options).try_acquire(KEY))
        .unwrap();
    nodes.iter().for_each(MockNode::restart);
    let error = clock
        .run(client_with(&nodes, &clock, 2, options).try_acquire(KEY))
        .unwrap_err();
    assert!(matches!(error, AcquireError::Held(_)), "{error}");
    assert!(lease.is_valid(clock.now()));
}

/// What the guarantee excludes: a node that loses a key that has not expired.
#[test]
fn exclusion_rests_on_nodes_that_do_not_forget() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let options = one_round().restart_guard(false);
    nodes[3..].iter().for_each(MockNode::stop);
    let first = try_once(&nodes, &clock).unwrap();
    nodes[3..].iter().for_each(MockNode::restart);
    let held = clock.run(client_with(&nodes, &clock, 2, options).try_acquire(KEY));
    assert!(matches!(held, Err(AcquireError::Held(_))));
    nodes[0].restart_empty();
    let second = clock
        .run(client_with(&nodes, &clock, 2, options).try_acquire(KEY))
        .unwrap();
    assert!(
        first.is_valid(clock.now()) && second.is_valid(clock.now()),
        "two at once"
    );
}
