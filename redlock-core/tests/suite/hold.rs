//! Work under the lock.

use core::time::Duration;
use std::cell::Cell;

use redlock_core::mock::{MemoryNode, MockClock};
use redlock_core::{Clock, HoldError, Instant, LossCause, Options};

use crate::world::*;

const VALIDITY: Duration = Duration::from_micros(9_898_000);

#[test]
fn work_gets_the_lease_and_gives_its_result() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    let result = clock.run(client(&nodes, &clock, 1).hold(KEY, async |lease| {
        assert_eq!(nodes[0].token(KEY).as_ref(), Some(lease.token()));
        42
    }));
    assert_eq!(result.unwrap(), 42);
    assert_eq!(key_count(&nodes), 0, "released");
}

#[test]
fn work_that_is_not_begun_is_told_from_work_that_was_stopped() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    nodes.iter().for_each(|node| node.set(KEY, thief(), TTL));
    let result = clock.run(client(&nodes, &clock, 1).hold(KEY, async |_| unreachable!()));
    assert!(matches!(result, Err(HoldError::NotAcquired(_))));
}

#[test]
fn the_lease_is_extended_each_time_a_third_of_its_validity_has_passed() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    let extensions = Cell::new(0_u64);
    let result = clock.run(client(&nodes, &clock, 1).hold(KEY, async |_| {
        let mut last = None;
        while micros(&clock) < 60_000_000 {
            clock.sleep_until(clock.now().saturating_add(ms(10))).await;
            let ttl = nodes[0].ttl(KEY);
            assert!(
                ttl.is_some_and(|ttl| ttl > TTL - VALIDITY / 3 - ms(20)),
                "{ttl:?}"
            );
            if ttl > last {
                extensions.set(extensions.get() + 1);
            }
            last = ttl;
        }
    }));
    result.unwrap();
    let expected = 60_000_000 / (VALIDITY / 3).as_micros();
    assert_eq!(u128::from(extensions.get()) - 1, expected);
}

#[test]
fn work_is_stopped_when_its_validity_ends_while_the_majority_hangs_or_is_dead() {
    for fault in Fault::ALL {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
        let last_alive = Cell::new(Instant::from_micros(0));
        let result = clock.run(client(&nodes, &clock, 1).hold(KEY, async |lease| {
            nodes[..3].iter().for_each(|node| fault.begin(node));
            loop {
                assert!(
                    lease.is_valid(clock.now()),
                    "the work runs past the validity"
                );
                last_alive.set(clock.now());
                clock.sleep_until(clock.now().saturating_add(ms(1))).await;
            }
        }));
        let Err(HoldError::<_, 5>::Lost(cause)) = result else {
            panic!("the lock was lost")
        };
        assert!(matches!(cause, LossCause::Unreachable(_)), "{cause}");
        let end = at(VALIDITY);
        assert!(
            end.saturating_duration_since(last_alive.get()) <= ms(2),
            "and not long before"
        );
    }
}

#[test]
fn work_is_stopped_at_the_next_extension_when_the_lock_is_stolen() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    let result = clock.run(client(&nodes, &clock, 1).hold(KEY, async |_| {
        nodes[..3]
            .iter()
            .for_each(|node| node.set(KEY, thief(), TTL));
        core::future::pending::<()>().await;
    }));
    assert!(
        matches!(result, Err(HoldError::Lost(LossCause::Lost(_)))),
        "{result:?}"
    );
    assert!(clock.now() <= at(VALIDITY / 3));
    assert_eq!(holders(&nodes), 3, "the thief's; ours are released");
}

#[test]
fn a_majority_that_is_away_for_less_than_the_validity_is_not_noticed_by_the_work() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    let result = clock.run(client(&nodes, &clock, 1).hold(KEY, async |_| {
        for _ in 0..3 {
            nodes[..3].iter().for_each(MemoryNode::hang);
            clock
                .sleep_until(clock.now().saturating_add(ms(6_000)))
                .await;
            nodes[..3].iter().for_each(MemoryNode::resume);
            clock
                .sleep_until(clock.now().saturating_add(ms(1_000)))
                .await;
        }
    }));
    result.unwrap();
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn extensions_are_limited() {
    for limit in [0, 1, 3] {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
        let options = one_round().max_extensions(limit);
        let result = clock.run(
            client_with(&nodes, &clock, 1, options).hold(KEY, async |_| {
                core::future::pending::<()>().await;
            }),
        );
        assert_eq!(result, Err(HoldError::Lost(LossCause::ExtensionsSpent)));
        let end = (VALIDITY / 3).as_micros() * u128::from(limit) + VALIDITY.as_micros();
        let late = u128::from(micros(&clock)).abs_diff(end);
        assert!(
            late <= 2 * u128::from(limit) + 1,
            "{limit}: off by {late} us"
        );
        assert_eq!(key_count(&nodes), 0);
    }
}

#[test]
fn work_may_run_for_ever_when_the_caller_asks_for_it() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    let options = one_round().unlimited_extensions();
    let day = Instant::from_micros(86_400_000_000);
    let result = clock.run(
        client_with(&nodes, &clock, 1, options).hold(KEY, async |_| clock.sleep_until(day).await),
    );
    result.unwrap();
}

#[test]
fn work_that_keeps_the_task_busy_past_the_validity_has_not_held_the_lock() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    let result = clock.run(client(&nodes, &clock, 1).hold(KEY, async |_| {
        // Stands still: no timer of anybody runs.
        clock.advance(VALIDITY);
    }));
    assert_eq!(result, Err(HoldError::Lost(LossCause::Expired)));
}

#[test]
fn work_does_not_run_on_after_a_pause_past_the_validity() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MemoryNode::fleet(&clock);
    let has_run_on = Cell::new(false);
    let mut redlock = client_with(&nodes, &clock, 1, Options::new(TTL).unwrap());
    let result = clock.run(async {
        let mut hold = core::pin::pin!(redlock.hold(KEY, async |_| {
            clock.sleep_until(Instant::from_micros(1_000)).await;
            has_run_on.set(true);
        }));
        let mut context = core::task::Context::from_waker(core::task::Waker::noop());
        assert!(hold.as_mut().poll(&mut context).is_pending());
        clock.advance(TTL);
        hold.await
    });
    assert_eq!(result, Err(HoldError::Lost(LossCause::Expired)));
    assert!(!has_run_on.get());
}
