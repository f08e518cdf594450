//! Futures that are dropped in the middle.

use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use redlock_core::mock::{MockClock, MockNode, SeededEntropy};
use redlock_core::{Clock, Lease, Redlock};

use crate::world::*;

/// Polls `future` `polls` times, a millisecond apart, and drops it. Returns whether it was done.
fn poll_times(clock: &MockClock, polls: usize, future: impl Future) -> bool {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..polls {
        if let Poll::Ready(_output) = future.as_mut().poll(&mut context) {
            return true;
        }
        clock.advance(ms(1));
    }
    false
}

/// Drops what `operation` makes after 0, 1, 2 .. polls, on slow nodes of which `hung` hang, until it
/// is done; each time nothing may be left once the next operation has released the abandoned token.
fn leaves_nothing(operation: impl AsyncFn(&mut Lock<'_>), hung: usize) {
    let mut polls = 0;
    loop {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        nodes.iter().for_each(|node| node.set_latency(ms(4)));
        let options = one_round().node_timeout(ms(10)).unwrap().wait(ms(30));
        let mut redlock = client_with(&nodes, &clock, 1, options);
        nodes[..hung].iter().for_each(MockNode::hang);
        let done = poll_times(&clock, polls, operation(&mut redlock));
        clock.run(redlock.release_abandoned());
        assert_eq!(redlock.abandoned(), None);
        nodes[..hung].iter().for_each(MockNode::resume);
        clock.advance(ms(100));
        assert_eq!(key_count(&nodes), 0, "{polls} polls, {hung} hung");
        assert!(
            clock
                .run(client(&nodes, &clock, 2).try_acquire(KEY))
                .is_ok()
        );
        if done {
            break;
        }
        polls += unless_miri(1, 10);
    }
    assert!(polls > 4, "it was dropped in the middle");
}

#[test]
fn a_dropped_acquire_leaves_nothing() {
    for hung in (0..=5).step_by(unless_miri(1, 6)) {
        // Released if it was not dropped: the test looks only for what dropping leaves.
        leaves_nothing(
            async |redlock| {
                if let Ok(lease) = redlock.acquire(KEY).await {
                    redlock.release(lease).await;
                }
            },
            hung,
        );
    }
}

#[test]
fn a_dropped_hold_leaves_nothing() {
    for hung in (0..=2).step_by(unless_miri(1, 3)) {
        leaves_nothing(
            async |redlock| {
                let wake_at = redlock.clock().now().saturating_add(ms(30));
                let clock = *redlock.clock();
                drop(
                    redlock
                        .hold(KEY, async |_| clock.sleep_until(wake_at).await)
                        .await,
                );
            },
            hung,
        );
    }
}

/// What comes after the future that was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Nothing: then nothing may be left, unless the lock says that something is.
    Nothing,
    Tidy,
    TryAcquire,
    Acquire,
    Extend,
    Release,
    Keep,
    Hold,
}

impl Next {
    const ALL: [Self; 8] = [
        Self::Nothing,
        Self::Tidy,
        Self::TryAcquire,
        Self::Acquire,
        Self::Extend,
        Self::Release,
        Self::Keep,
        Self::Hold,
    ];

    /// Begins it, on another key than the dropped one's, and waits for no answer.
    fn begin(self, redlock: &mut Lock<'_>, mut other: Lease<&str>) {
        match self {
            Self::Nothing => {}
            Self::Tidy => drop(poll_once(pin!(redlock.release_abandoned()))),
            Self::TryAcquire => drop(poll_once(pin!(redlock.try_acquire("third")))),
            Self::Acquire => drop(poll_once(pin!(redlock.acquire("third")))),
            Self::Extend => drop(poll_once(pin!(redlock.extend(&mut other)))),
            Self::Release => drop(poll_once(pin!(redlock.release(other)))),
            Self::Keep => drop(poll_once(pin!(redlock.keep(&mut other, |_| ())))),
            Self::Hold => drop(poll_once(pin!(redlock.hold("third", async |_| ())))),
        }
    }
}

/// Drops each operation that can leave something after 1, 2, 3 .. polls, on slow nodes of which some
/// hang, until it is done; lets one other operation begin, and looks for what is left.
fn leaves_nothing_whatever_comes_next(operation: impl AsyncFn(&mut Lock<'_>, Lease<&'static str>)) {
    for next in unless_miri(&Next::ALL[..], &[Next::TryAcquire])
        .iter()
        .copied()
    {
        for hung in unless_miri(&[0, 2, 3, 5][..], &[2]).iter().copied() {
            for polls in (1..).step_by(unless_miri(1, 25)) {
                let clock = MockClock::new();
                let nodes: [Node<'_>; 5] = MockNode::array(&clock);
                let options = one_round().node_timeout(ms(6)).unwrap().wait(ms(20));
                let options = options.retry_delay(ms(1), ms(3)).unwrap();
                let mut redlock = client_with(&nodes, &clock, 1, options);
                let mine = clock.run(redlock.try_acquire("mine")).unwrap();
                let other = clock.run(redlock.try_acquire("other")).unwrap();
                // Another client holds a majority of the key for a while.
                steal_for(ms(9), &nodes[2..]);
                nodes.iter().for_each(|node| node.set_latency(ms(2)));
                nodes[..hung].iter().for_each(MockNode::hang);
                let done = poll_times(&clock, polls, operation(&mut redlock, mine));
                let is_told = redlock.abandoned().is_some();
                next.begin(&mut redlock, other);
                nodes[..hung].iter().for_each(MockNode::resume);
                clock.advance(ms(50));
                let left = nodes
                    .iter()
                    .filter(|node| node.token(KEY).is_some() || node.token("mine").is_some());
                let left = left.count();
                assert!(
                    left == 0 || next == Next::Nothing && is_told,
                    "{polls} polls, {hung} hung, then {next:?}: left on {left} nodes"
                );
                if done {
                    assert!(polls > 2, "it was dropped in the middle");
                    break;
                }
            }
        }
    }
}

#[test]
fn the_token_of_a_dropped_acquire_under_contention_is_released_by_any_next_operation() {
    leaves_nothing_whatever_comes_next(async |redlock, mine| {
        redlock.release(mine).await;
        if let Ok(lease) = redlock.acquire(KEY).await {
            redlock.release(lease).await;
        }
    });
}

#[test]
fn the_token_of_a_dropped_try_acquire_is_released_by_any_next_operation() {
    leaves_nothing_whatever_comes_next(async |redlock, mine| {
        redlock.release(mine).await;
        if let Ok(lease) = redlock.try_acquire(KEY).await {
            redlock.release(lease).await;
        }
    });
}

#[test]
fn the_token_of_a_dropped_release_is_released_by_any_next_operation() {
    leaves_nothing_whatever_comes_next(async |redlock, mine| {
        redlock.release(mine).await;
    });
}

#[test]
fn a_release_that_is_never_polled_has_done_nothing_and_the_keys_expire() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    drop(redlock.release(lease));
    assert_eq!(redlock.abandoned(), None);
    clock.run(redlock.release_abandoned());
    assert_eq!(holders(&nodes), 5);
    clock.advance(EXPIRED);
    assert_eq!(holders(&nodes), 0);
}

#[test]
fn a_dropped_release_is_told_until_something_has_made_it_good() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    let token = *lease.token();
    nodes.iter().for_each(MockNode::hang);
    assert!(!poll_times(&clock, 2, redlock.release(lease)));
    assert_eq!(redlock.abandoned(), Some(&token));
    // Nor is it forgotten if `release_abandoned` is dropped, any number of times.
    for polls in [0, 1, 7] {
        assert!(!poll_times(&clock, polls, redlock.release_abandoned()));
        assert_eq!(redlock.abandoned(), Some(&token));
    }
    let before = clock.now();
    clock.run(redlock.release_abandoned());
    assert_eq!(clock.now(), before.saturating_add(TIMEOUT), "for no longer");
    assert_eq!(redlock.abandoned(), None);
    nodes.iter().for_each(MockNode::resume);
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn a_token_left_while_its_nodes_were_unreachable_is_released_by_release_abandoned() {
    const DELAY: Duration = ms(3);

    for releases in [false, true] {
        for polls in (1..).step_by(unless_miri(1, 3)) {
            let clock = MockClock::new();
            let nodes: [Node<'_>; 5] = MockNode::array(&clock);
            let detours = nodes.each_ref().map(|node| Detour {
                node,
                clock: &clock,
                delay: DELAY,
            });
            let seeded = SeededEntropy::new(1);
            let mut redlock =
                Redlock::<_, _, _, 5>::new(detours, &clock, seeded, one_round()).unwrap();
            let done = if releases {
                let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
                poll_times(&clock, polls, redlock.release(lease))
            } else {
                poll_times(&clock, polls, async {
                    let lease = redlock.try_acquire(KEY).await.unwrap();
                    redlock.release(lease).await;
                })
            };
            clock.run(redlock.release_abandoned());
            assert_eq!(key_count(&nodes), 0, "{polls} polls");
            if done {
                assert!(polls > 3);
                break;
            }
        }
    }
}

#[test]
fn a_dropped_extension_leaves_the_lease_usable() {
    for polls in (0..8).step_by(unless_miri(1, 6)) {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        let (mut redlock, mut lease) = holder(&nodes, &clock);
        let before = lease.valid_until();
        nodes.iter().for_each(|node| node.set_latency(ms(4)));
        if !poll_times(&clock, polls, redlock.extend(&mut lease)) {
            assert_eq!(lease.valid_until(), before);
        }
        // Its own replies, not the abandoned ones.
        clock.run(redlock.extend(&mut lease)).unwrap();
        assert_eq!(clock.run(redlock.release(lease)).gone(), 0);
        clock.advance(ms(10));
        assert_eq!(key_count(&nodes), 0);
    }
}

#[test]
fn the_next_operation_releases_what_a_dropped_acquire_has_left() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let mut redlock = client(&nodes, &clock, 1);
    nodes.iter().for_each(MockNode::hang);
    assert!(!poll_times(&clock, 1, redlock.acquire(KEY)));
    nodes.iter().for_each(MockNode::resume);
    assert_eq!(holders(&nodes), 5, "granted, and no lease is returned");
    assert_eq!(redlock.abandoned().copied(), nodes[0].token(KEY));
    // Another key: any operation releases it, not only one on the same lock.
    let lease = clock.run(redlock.try_acquire("dock-8")).unwrap();
    assert_eq!(holders(&nodes), 0);
    assert_eq!(redlock.abandoned(), None);
    clock.run(redlock.release(lease));
}

#[test]
fn keeping_a_lease_releases_what_a_dropped_acquire_has_left() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let mut redlock = client(&nodes, &clock, 1);
    let mut lease = clock.run(redlock.try_acquire("dock-8")).unwrap();
    nodes.iter().for_each(|node| node.set_latency(ms(4)));
    assert!(!poll_times(&clock, 1, redlock.acquire(KEY)));
    clock.advance(ms(4));
    assert_eq!(holders(&nodes), 5);
    poll_times(&clock, 4, redlock.keep(&mut lease, |_| ()));
    assert_eq!(holders(&nodes), 0);
}

#[test]
fn what_a_dropped_acquire_has_left_costs_the_next_operation_no_time_and_is_forgotten() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let mut redlock = client(&nodes, &clock, 1);
    let mut lease = clock.run(redlock.try_acquire("dock-8")).unwrap();
    nodes.iter().for_each(|node| node.set_latency(ms(4)));
    assert!(!poll_times(&clock, 1, redlock.acquire(KEY)));
    let before = micros(&clock);
    clock.run(redlock.extend(&mut lease)).unwrap();
    assert_eq!(
        micros(&clock) - before,
        4_000,
        "a way to the nodes and back"
    );
    assert_eq!((redlock.abandoned(), holders(&nodes)), (None, 0));
}

#[test]
fn a_release_that_is_dropped_while_nodes_are_away_is_made_good_when_they_are_back() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, lease) = holder(&nodes, &clock);
    nodes[..2].iter().for_each(MockNode::stop);
    nodes[2..].iter().for_each(|node| node.set_latency(ms(4)));
    assert!(!poll_times(&clock, 1, redlock.release(lease)));
    nodes[..2].iter().for_each(MockNode::restart);
    assert_eq!(holders(&nodes[..2]), 2);
    clock.run(redlock.release_abandoned());
    clock.advance(ms(4));
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn an_acquire_that_is_dropped_while_it_cleans_up_is_made_good() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    steal(&nodes[..3]);
    nodes[..3].iter().for_each(|node| node.set_latency(ms(4)));
    let mut redlock = client(&nodes, &clock, 1);
    {
        let mut attempt = pin!(redlock.try_acquire(KEY));
        let mut context = Context::from_waker(Waker::noop());
        assert!(attempt.as_mut().poll(&mut context).is_pending());
        // Refused by three: the clean-up is on its way to those that have granted, and gets lost.
        nodes[3..].iter().for_each(|node| node.set_latency(ms(20)));
        clock.advance(ms(4));
        assert!(attempt.as_mut().poll(&mut context).is_pending());
        nodes[3..].iter().for_each(MockNode::stop);
    }
    nodes[3..].iter().for_each(MockNode::restart);
    assert_eq!(
        holders(&nodes),
        5,
        "three of the thief and two that are abandoned"
    );
    clock.run(redlock.release_abandoned());
    clock.advance(ms(20));
    assert_eq!(holders(&nodes), 3);
}

#[test]
fn tidy_waits_for_a_quorum_and_remembers_until_then() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    nodes[..3].iter().for_each(|node| node.set_latency(ms(4)));
    nodes[3..].iter().for_each(|node| node.set_latency(ms(9)));
    let mut redlock = client(&nodes, &clock, 1);
    assert!(!poll_times(&clock, 1, redlock.acquire(KEY)));
    assert!(!poll_times(&clock, 1, redlock.release_abandoned()));
    assert!(redlock.abandoned().is_some(), "dropped in the middle");
    let before = micros(&clock);
    clock.run(redlock.release_abandoned());
    assert_eq!(
        micros(&clock) - before,
        4_000,
        "a way to the quick ones and back"
    );
    assert_eq!(redlock.abandoned(), None);
    clock.advance(ms(9));
    assert_eq!(key_count(&nodes), 0);
}
