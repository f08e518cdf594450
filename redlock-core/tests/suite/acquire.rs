//! Taking the lock.

use core::time::Duration;
use std::cell::Cell;
use std::collections::HashSet;

use embassy_futures::join::join;
use redlock_core::mock::{MemoryNode, MockClock, SeededEntropy};
use redlock_core::{AcquireError, BuildError, Clock, Entropy, Instant, Options, Redlock};

use crate::world::*;

#[test]
fn a_lease_is_on_every_node_and_ends_at_the_start_plus_ttl_minus_drift_minus_one_tick() {
    for tick in [Duration::from_micros(1), ms(1), ms(10)] {
        let clock = MockClock::with_resolution(tick);
        clock.advance(ms(1_234));
        let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
        nodes.iter().for_each(|node| node.set_latency(ms(7)));
        let lease = clock
            .run(client(&nodes, &clock, 1).try_acquire(KEY))
            .unwrap();
        // 1 % and 2 ms of ten seconds; the seven milliseconds of the round are in it.
        let until = ms(1_234) + TTL - ms(102) - tick;
        assert_eq!(
            lease.valid_until(),
            Instant::from_micros(0).saturating_add(until)
        );
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
    for count in 1..=5 {
        for pattern in 0..1_u32 << count {
            let clock = MockClock::new();
            let fleet: [Node<'_>; 5] = MemoryNode::fleet(&clock);
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
                assert_eq!(micros(&clock), 0, "nobody has waited for the others");
                let released = clock.run(redlock.release(lease));
                assert!(released.released() + released.unanswered() >= alive);
            } else {
                let error = result.unwrap_err();
                assert!(matches!(error, AcquireError::Unreachable(_)), "{error}");
                assert!(clock.now() <= Instant::from_micros(0).saturating_add(TIMEOUT));
            }
            faulty().for_each(|node| fault.end(node));
            assert_eq!(key_count(nodes), 0, "{count} nodes, {pattern:b}");
        }
    }
}

#[test]
fn with_any_pattern_of_held_nodes_the_lock_is_taken_if_and_only_if_a_quorum_is_free() {
    for count in 1..=5 {
        for pattern in 0..1_u32 << count {
            let clock = MockClock::new();
            let fleet: [Node<'_>; 5] = MemoryNode::fleet(&clock);
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
            // Only the other one's keys are left, and all of them.
            assert_eq!(key_count(nodes), held, "{count} nodes, {pattern:b}");
        }
    }
}

#[test]
fn an_even_split_is_won_by_nobody_and_cleaned_up_by_both() {
    for count in [2, 4] {
        let clock = MockClock::new();
        let fleet: [Node<'_>; 5] = MemoryNode::fleet(&clock);
        let nodes = &fleet[..count];
        // Each client is faster at its own half: the other half's commands are on their way.
        for (mine, theirs) in [
            (0..count / 2, count / 2..count),
            (count / 2..count, 0..count / 2),
        ] {
            nodes[mine]
                .iter()
                .for_each(|node| node.set(KEY, thief(), TTL));
            let error = clock
                .run(client(nodes, &clock, 1).try_acquire(KEY))
                .unwrap_err();
            assert!(matches!(error, AcquireError::Held(_)), "{error}");
            assert!(nodes[theirs].iter().all(MemoryNode::is_empty), "cleaned up");
            nodes.iter().for_each(MemoryNode::clear);
        }
    }
}

#[test]
fn held_by_another_is_told_from_no_quorum_whatever_the_rest_does() {
    // Three of five hold another's key: held, whether the other two are free, dead or hung.
    // Three of five are silent: no quorum, whether the other two are free or held.
    for fault in Fault::ALL {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
        nodes[..3]
            .iter()
            .for_each(|node| node.set(KEY, thief(), TTL));
        nodes[3..].iter().for_each(|node| fault.begin(node));
        let error = clock
            .run(client(&nodes, &clock, 1).try_acquire(KEY))
            .unwrap_err();
        assert!(matches!(error, AcquireError::Held(_)), "{error}");

        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
        nodes[..2]
            .iter()
            .for_each(|node| node.set(KEY, thief(), TTL));
        nodes[2..].iter().for_each(|node| fault.begin(node));
        let error = clock
            .run(client(&nodes, &clock, 1).try_acquire(KEY))
            .unwrap_err();
        assert!(matches!(error, AcquireError::Unreachable(_)), "{error}");
    }
}

#[test]
fn a_majority_that_hangs_for_ever_costs_one_node_time_out_and_keeps_no_key_on_live_nodes() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    nodes[2..].iter().for_each(MemoryNode::hang);
    let error = clock
        .run(client(&nodes, &clock, 1).try_acquire(KEY))
        .unwrap_err();
    assert!(matches!(error, AcquireError::Unreachable(_)), "{error}");
    assert_eq!(clock.now(), Instant::from_micros(0).saturating_add(TIMEOUT));
    assert_eq!(
        key_count(&nodes),
        0,
        "also the late grants are gone once they resume"
    );
}

#[test]
fn a_straggler_that_grants_after_the_attempt_has_failed_is_released() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    nodes[..3]
        .iter()
        .for_each(|node| node.set(KEY, thief(), TTL));
    nodes[4].hang();
    let error = clock
        .run(client(&nodes, &clock, 1).try_acquire(KEY))
        .unwrap_err();
    assert!(matches!(error, AcquireError::Held(_)), "{error}");
    nodes[4].resume();
    assert_eq!(holders(&nodes), 3, "only the other's keys");
}

#[test]
fn a_grant_that_comes_when_the_validity_is_over_is_too_late_and_cleaned_up() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MemoryNode::fleet(&clock);
    // Valid for 988 ms; the replies come at that moment, and one tick before it.
    let options = Options::new(ms(1_000)).unwrap().wait(Duration::ZERO);
    let options = options.node_timeout(ms(987)).unwrap();
    let mut redlock = client_with(&nodes, &clock, 1, options);
    let lease = clock.run(async {
        let mut attempt = core::pin::pin!(redlock.try_acquire(KEY));
        let mut context = core::task::Context::from_waker(core::task::Waker::noop());
        nodes.iter().for_each(|node| node.set_latency(ms(100)));
        assert!(attempt.as_mut().poll(&mut context).is_pending());
        // The process stands still, and finds all replies in when it goes on.
        clock.advance(ms(988));
        attempt.await
    });
    assert!(matches!(lease, Err(AcquireError::TooLate(_))), "{lease:?}");
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn every_attempt_has_a_token_of_its_own() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    let mut redlock = client(&nodes, &clock, 1);
    let mut tokens = HashSet::new();
    for _ in 0..5_000 {
        let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
        assert!(tokens.insert(*lease.token()));
        clock.run(redlock.release(lease));
    }
}

#[test]
fn randomness_that_repeats_itself_or_gives_zeros_is_refused() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 3] = MemoryNode::fleet(&clock);
    let zeros = |_: &mut [u8]| ();
    let mut redlock = Redlock::<_, _, _, 3>::new(&nodes, &clock, zeros, one_round()).unwrap();
    let refused = clock.run(redlock.acquire(KEY));
    assert!(matches!(refused, Err(AcquireError::Entropy)), "{refused:?}");
    assert_eq!(key_count(&nodes), 0, "nothing was sent");

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
    let nodes: [Node<'_>; 3] = MemoryNode::fleet(&clock);
    let mut redlock = Redlock::<_, _, _, 3>::new(&nodes, &clock, entropy, one_round()).unwrap();
    let lease = clock.run(redlock.acquire(KEY)).unwrap();
    clock.run(redlock.release(lease));
    let refused = clock.run(redlock.acquire(KEY));
    assert!(matches!(refused, Err(AcquireError::Entropy)), "{refused:?}");
}

#[test]
fn acquire_waits_as_long_as_the_option_says_and_one_round_more() {
    for wait in [Duration::ZERO, ms(1), ms(300), ms(2_000)] {
        for fault in Fault::ALL {
            let clock = MockClock::new();
            let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
            nodes[..3].iter().for_each(|node| fault.begin(node));
            let mut redlock = client_with(&nodes, &clock, 1, one_round().wait(wait));
            assert!(clock.run(redlock.acquire(KEY)).is_err());
            let waited = clock
                .now()
                .saturating_duration_since(Instant::from_micros(0));
            assert!(
                waited >= wait && waited <= wait + TIMEOUT,
                "{wait:?}: {waited:?}"
            );
        }
    }
}

#[test]
fn acquire_gets_a_lock_that_comes_free_while_it_waits() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    nodes
        .iter()
        .for_each(|node| node.set(KEY, thief(), ms(700)));
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
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    nodes.iter().for_each(|node| node.set(KEY, thief(), TTL));
    let options = one_round()
        .wait(ms(100))
        .retry_delay(Duration::ZERO, Duration::ZERO)
        .unwrap();
    let ticks = Cell::new(0);
    let other_task = async {
        for _ in 0..50 {
            clock.sleep_until(clock.now().saturating_add(ms(1))).await;
            ticks.set(ticks.get() + 1);
        }
    };
    let mut redlock = client_with(&nodes, &clock, 1, options);
    let (result, ()) = clock.run(join(redlock.acquire(KEY), other_task));
    assert!(matches!(result, Err(AcquireError::Held(_))));
    assert_eq!((ticks.get(), micros(&clock)), (50, 100_000));
}

#[test]
fn a_ttl_that_a_tick_of_the_clock_uses_up_is_refused_when_the_lock_is_made() {
    let clock = MockClock::with_resolution(ms(10));
    let nodes: [Node<'_>; 3] = MemoryNode::fleet(&clock);
    let build = |ttl| {
        let options = Options::new(ms(ttl)).unwrap();
        Redlock::<_, _, _, 3>::new(&nodes, &clock, SeededEntropy::new(1), options).map(drop)
    };
    // 12.12 ms of 12 ms and 1 % and 2 ms: 9.88 ms are valid, less than a tick.
    assert_eq!(build(12), Err(BuildError::ClockTooCoarse));
    assert_eq!(build(13), Ok(()));
}

#[test]
fn a_lock_has_at_least_one_node_and_at_most_as_many_as_there_is_room_for() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 4] = MemoryNode::fleet(&clock);
    let build = |nodes| {
        Redlock::<_, _, _, 3>::new(nodes, &clock, SeededEntropy::new(1), one_round()).map(drop)
    };
    assert_eq!(build(&nodes[..0]), Err(BuildError::NoNode));
    assert_eq!(build(&nodes[..3]), Ok(()));
    assert_eq!(build(&nodes), Err(BuildError::TooManyNodes { max: 3 }));
}

#[test]
fn a_minority_that_comes_back_with_its_data_changes_nothing() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    let lease = clock
        .run(client(&nodes, &clock, 1).try_acquire(KEY))
        .unwrap();
    nodes.iter().for_each(MemoryNode::restart);
    let error = clock
        .run(client(&nodes, &clock, 2).try_acquire(KEY))
        .unwrap_err();
    assert!(matches!(error, AcquireError::Held(_)), "{error}");
    assert!(lease.is_valid(clock.now()));
}

/// What the guarantee excludes: a node that forgets a key that lives.
#[test]
fn exclusion_rests_on_nodes_that_do_not_forget() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    nodes[3..].iter().for_each(MemoryNode::stop);
    let first = clock
        .run(client(&nodes, &clock, 1).try_acquire(KEY))
        .unwrap();
    nodes[3..].iter().for_each(MemoryNode::restart);
    let held = clock.run(client(&nodes, &clock, 2).try_acquire(KEY));
    assert!(matches!(held, Err(AcquireError::Held(_))));
    nodes[0].restart_empty();
    let second = clock
        .run(client(&nodes, &clock, 2).try_acquire(KEY))
        .unwrap();
    assert!(
        first.is_valid(clock.now()) && second.is_valid(clock.now()),
        "two at once"
    );
}
