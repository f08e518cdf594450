//! Work under the lock.

use core::future::Ready;
use core::pin::pin;
use core::time::Duration;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use embassy_futures::join::join;
use embassy_futures::select::{Either, select};
use redlock_core::mock::{MockClock, MockNode};
use redlock_core::transport::Command;
use redlock_core::{Clock, HoldError, Instant, Lease, LossCause, Options, Redlock, Report};

use crate::world::*;

const VALIDITY: Duration = Duration::from_micros(9_898_000);

#[test]
fn work_gets_the_lease_and_gives_its_result() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
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
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    steal(&nodes);
    let result = clock.run(client(&nodes, &clock, 1).hold(KEY, async |_| unreachable!()));
    assert!(matches!(result, Err(HoldError::NotAcquired(_))));
}

#[test]
fn the_lease_is_extended_each_time_a_third_of_its_validity_has_passed() {
    const END: u64 = unless_miri(60_000_000, 10_000_000);

    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let extensions = Cell::new(0_u64);
    let result = clock.run(client(&nodes, &clock, 1).hold(KEY, async |_| {
        let mut last = None;
        while micros(&clock) < END {
            let step = ms(unless_miri(10, 500));
            clock.sleep_until(clock.now().saturating_add(step)).await;
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
    let expected = u128::from(END) / (VALIDITY / 3).as_micros();
    assert_eq!(u128::from(extensions.get()) - 1, expected);
}

#[test]
fn work_is_stopped_when_its_validity_ends_while_the_majority_hangs_or_is_dead() {
    const STEP: Duration = ms(unless_miri(1, 1_000));

    for fault in unless_miri(&Fault::ALL[..], &[Fault::Hang]) {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        let last_alive = Cell::new(Instant::from_micros(0));
        let options = one_round().retry_delay(ms(500), ms(500)).unwrap();
        let mut redlock = client_with(&nodes, &clock, 1, options);
        let result = clock.run(redlock.hold(KEY, async |lease| {
            nodes[..3].iter().for_each(|node| fault.begin(node));
            loop {
                assert!(
                    lease.is_valid(clock.now()),
                    "the work runs past the validity"
                );
                last_alive.set(clock.now());
                clock.sleep_until(clock.now().saturating_add(STEP)).await;
            }
        }));
        let Err(HoldError::<_, 5>::Lost(cause)) = result else {
            panic!("the lock was lost")
        };
        assert!(matches!(cause, LossCause::Unreachable(_)), "{cause}");
        let end = at(VALIDITY);
        assert!(
            end.saturating_duration_since(last_alive.get()) <= 2 * STEP,
            "and not long before"
        );
        nodes[..3].iter().for_each(|node| fault.end(node));
        clock.advance(TTL);
        assert_eq!(key_count(&nodes), 0);
    }
}

#[test]
fn work_is_gone_before_the_lock_is_given_back() {
    struct Work<'a>(&'a dyn Fn());

    impl Drop for Work<'_> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    // When it is done, and when it is stopped.
    for ends_at in [at(ms(1)), at(2 * TTL)] {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        let is_gone = Cell::new(false);
        let goes = || {
            assert_eq!(holders(&nodes), 5);
            is_gone.set(true);
        };
        let options = one_round().max_extensions(0);
        let mut redlock = client_with(&nodes, &clock, 1, options);
        let result = clock.run(redlock.hold(KEY, async |_| {
            let _work = Work(&goes);
            clock.sleep_until(ends_at).await;
        }));
        assert_eq!(result.is_ok(), ends_at < at(TTL));
        assert!(is_gone.get());
        assert_eq!(key_count(&nodes), 0);
    }
}

#[test]
fn work_that_panics_leaves_the_lock_to_the_next_operation() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let mut redlock = client(&nodes, &clock, 1);
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let hold = redlock.hold(KEY, async |_| resume_unwind(Box::new(())));
        clock.run(hold).is_ok()
    }));
    assert!(panicked.is_err());
    assert_eq!(redlock.abandoned().copied(), nodes[0].token(KEY));
    clock.run(redlock.release_abandoned());
    assert_eq!(key_count(&nodes), 0);
}

#[test]
fn keep_tells_of_each_extension_and_ends_with_the_cause() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder_with(&nodes, &clock, one_round().max_extensions(3));
    let mut ends = vec![lease.valid_until()];
    let cause = clock.run(redlock.keep(&mut lease, |lease| {
        assert!(lease.valid_until() > *ends.last().unwrap());
        ends.push(lease.valid_until());
    }));
    assert_eq!((cause, ends.len()), (LossCause::ExtensionsSpent, 4));
    assert_eq!(ends.last(), Some(&lease.valid_until()));
    assert_eq!(clock.now(), lease.valid_until(), "not before, not after");
}

#[test]
fn a_lease_is_kept_by_its_own_validity_whatever_the_options_are_now() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder(&nodes, &clock);
    redlock.set_options(Options::new(ms(1_000)).unwrap().max_extensions(1));
    let mut extended_at = None;
    let cause = clock.run(redlock.keep(&mut lease, |_| extended_at = Some(clock.now())));
    assert_eq!(cause, LossCause::ExtensionsSpent);
    // To the microsecond, rounded up.
    let third = at(VALIDITY / 3);
    let late = extended_at.unwrap().saturating_duration_since(third);
    assert!(extended_at >= Some(third) && late <= Duration::from_micros(1));
}

#[test]
fn a_lease_that_two_clients_extend_has_one_validity() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let mut redlock = client_with(&nodes, &clock, 1, one_round().max_extensions(0));
    let mut other = client(&nodes, &clock, 2);
    let mut lease = clock.run(redlock.acquire(KEY)).unwrap();
    let mut copy = lease.clone();
    let shared = Cell::new(lease.valid_until());
    let extensions = async {
        for extension in 1..=3 {
            clock.sleep_until(at(extension * VALIDITY / 2)).await;
            other.extend(&mut copy).await.unwrap();
            shared.set(copy.valid_until());
        }
    };
    let update = |lease: &mut Lease<_>| lease.extended_elsewhere(shared.get());
    let admit = |_| -> Ready<()> { unreachable!() };
    let kept = redlock.keep_shared(&mut lease, update, admit, |(), _| unreachable!());
    let (cause, ()) = clock.run(join(kept, extensions));
    assert!(matches!(cause, LossCause::ExtensionsSpent), "{cause}");
    assert_eq!(clock.now(), copy.valid_until());
    // An end that is not later than the known one changes nothing.
    copy.extended_elsewhere(at(Duration::ZERO));
    assert_eq!(copy.valid_until(), shared.get());
}

#[test]
fn an_extension_of_a_shared_lease_begins_when_it_is_admitted() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let mut redlock = client_with(&nodes, &clock, 1, one_round().max_extensions(1));
    let mut lease = clock.run(redlock.acquire(KEY)).unwrap();
    let (end, late) = (lease.valid_until(), at(VALIDITY / 2));
    let admit = |valid_until| {
        assert_eq!(valid_until, end);
        let clock = &clock;
        async move {
            clock.sleep_until(late).await;
            "admitted"
        }
    };
    let extended = Cell::new(None);
    let tried = |admitted, result: Result<&Lease<_>, &Report<_, 5>>| {
        extended.set(Some((admitted, result.unwrap().valid_until())));
    };
    let cause = clock.run(redlock.keep_shared(&mut lease, |_| (), admit, tried));
    assert!(matches!(cause, LossCause::ExtensionsSpent), "{cause}");
    let expected = late.saturating_add(end.saturating_duration_since(at(Duration::ZERO)));
    assert_eq!(extended.get(), Some(("admitted", expected)));
}

#[test]
fn keep_may_be_dropped_at_any_point_and_leaves_a_lease_that_is_valid() {
    // Under Miri in the middle of an extension only.
    for dropped_at in unless_miri(&[0, 1, 3_000, 3_310, 5_000, 9_000][..], &[3_310])
        .iter()
        .copied()
    {
        let clock = MockClock::new();
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
        let (mut redlock, mut lease) = holder(&nodes, &clock);
        nodes.iter().for_each(|node| node.set_latency(ms(40)));
        let alarm = clock.sleep_until(at(ms(dropped_at)));
        let either = clock.run(select(redlock.keep(&mut lease, |_| ()), alarm));
        assert!(matches!(either, Either::Second(())));
        assert!(lease.is_valid(clock.now()));
        assert!(
            nodes
                .iter()
                .all(|node| node.token(KEY).as_ref() == Some(lease.token()))
        );
        clock.run(redlock.extend(&mut lease)).unwrap();
        assert_eq!(clock.run(redlock.release(lease)).gone(), 0);
    }
}

#[test]
fn an_extension_whose_replies_are_read_too_late_is_not_to_blame() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder(&nodes, &clock);
    nodes.iter().for_each(|node| node.set_latency(ms(10)));
    let cause = clock.run(async {
        let mut keep = pin!(redlock.keep(&mut lease, |_| unreachable!()));
        assert!(poll_once(keep.as_mut()).is_pending());
        clock.advance(VALIDITY / 2);
        assert!(
            poll_once(keep.as_mut()).is_pending(),
            "the extension is out"
        );
        clock.advance(VALIDITY / 2);
        keep.await
    });
    assert_eq!(cause, LossCause::Expired);
}

#[test]
fn a_lease_that_is_over_is_not_kept() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let (mut redlock, mut lease) = holder(&nodes, &clock);
    let mut adopted = Lease::adopt(KEY, *lease.token());
    let cause = clock.run(redlock.keep(&mut adopted, |_| unreachable!()));
    assert_eq!((cause, micros(&clock)), (LossCause::Expired, 0));
    clock.advance(lease.remaining(clock.now()));
    let over_at = clock.now();
    let cause = clock.run(redlock.keep(&mut lease, |_| unreachable!()));
    assert_eq!((cause, clock.now()), (LossCause::Expired, over_at));
}

#[test]
fn a_failure_that_was_overcome_is_not_blamed_for_the_end() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let options = one_round().max_extensions(1);
    let options = options.retry_delay(ms(500), ms(500)).unwrap();
    let (mut redlock, mut lease) = holder_with(&nodes, &clock, options);
    nodes[..3].iter().for_each(MockNode::stop);
    let back = async {
        clock.sleep_until(at(ms(5_000))).await;
        nodes[..3].iter().for_each(MockNode::restart);
    };
    let (cause, ()) = clock.run(join(redlock.keep(&mut lease, |_| ()), back));
    assert_eq!(cause, LossCause::ExtensionsSpent);
    assert!(
        clock.now() > at(ms(14_000)),
        "extended after the failures, which did not count"
    );
}

#[test]
fn extensions_are_retried_after_delays_that_start_again_after_a_success() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 1] = MockNode::array(&clock);
    let sent_at = RefCell::new(Vec::new());
    let tapped = Tap {
        node: &nodes[0],
        spy: |_: &Command<'_>| sent_at.borrow_mut().push(clock.now()),
    };
    let options = one_round().retry_delay(ms(100), ms(100)).unwrap();
    // The highest number there is draws the longest delay.
    let entropy = |bytes: &mut [u8]| bytes.fill(0xff);
    let mut redlock = Redlock::<_, _, _, 1>::new([tapped], &clock, entropy, options).unwrap();
    let mut lease = clock.run(redlock.try_acquire(KEY)).unwrap();
    let outages = async {
        nodes[0].stop();
        clock.sleep_until(at(ms(5_000))).await;
        nodes[0].restart();
        clock.sleep_until(at(ms(6_000))).await;
        nodes[0].stop();
        clock.sleep_until(at(ms(9_500))).await;
    };
    clock.run(select(redlock.keep(&mut lease, |_| ()), outages));
    let sent_at = sent_at.borrow();
    let delays: Vec<_> = sent_at
        .windows(2)
        .map(|pair| {
            pair[1]
                .saturating_duration_since(pair[0])
                .as_millis()
                .next_multiple_of(100)
        })
        .collect();
    assert_eq!(
        delays,
        [3_300, 100, 200, 400, 400, 400, 400, 3_300, 100, 200, 400],
        "the first one is the acquire"
    );
}

#[test]
fn work_is_stopped_at_the_next_extension_when_the_lock_is_stolen() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let result = clock.run(client(&nodes, &clock, 1).hold(KEY, async |_| {
        steal(&nodes[..3]);
        core::future::pending::<()>().await;
    }));
    assert!(
        matches!(result, Err(HoldError::Lost(LossCause::Lost(_)))),
        "{result:?}"
    );
    // To the microsecond, rounded up.
    assert!(clock.now() <= at(VALIDITY / 3 + Duration::from_micros(1)));
    assert_eq!(holders(&nodes), 3, "the thief's; ours are released");
}

#[test]
fn a_majority_that_is_away_for_less_than_the_validity_is_not_noticed_by_the_work() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let result = clock.run(client(&nodes, &clock, 1).hold(KEY, async |_| {
        for _ in 0..unless_miri(3, 1) {
            nodes[..3].iter().for_each(MockNode::hang);
            // The first extension is tried at a third of the validity, after 3.3 seconds.
            let away = ms(unless_miri(6_000, 3_500));
            clock.sleep_until(clock.now().saturating_add(away)).await;
            nodes[..3].iter().for_each(MockNode::resume);
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
        let nodes: [Node<'_>; 5] = MockNode::array(&clock);
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
fn a_clock_whose_tick_is_a_third_of_the_validity_and_more_does_not_make_extensions_pile_up() {
    for ttl in unless_miri(&[13, 20, 28, 33, 40, 60, 100][..], &[20])
        .iter()
        .copied()
    {
        let clock = MockClock::with_resolution(ms(10));
        let nodes: [Node<'_>; 3] = MockNode::array(&clock);
        let options = Options::new(ms(ttl)).unwrap();
        let (mut redlock, mut lease) = holder_with(&nodes, &clock, options);
        let started_at = clock.now();
        let mut extensions = 0;
        let alarm = clock.sleep_until(at(ms(unless_miri(500, 100))));
        clock.run(select(redlock.keep(&mut lease, |_| extensions += 1), alarm));
        let passed = clock.now().saturating_duration_since(started_at);
        let third = options.validity() / 3;
        assert!(
            third * extensions <= passed,
            "TTL {ttl} ms: {extensions} in {passed:?}"
        );
    }
}

#[test]
fn work_may_run_forever_if_the_caller_asks_for_it() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let options = one_round().max_extensions(3).unlimited_extensions();
    // A day; under Miri a minute, which is four times the limit that is lifted.
    let day = Instant::from_micros(unless_miri(86_400_000_000, 60_000_000));
    let result = clock.run(
        client_with(&nodes, &clock, 1, options).hold(KEY, async |_| clock.sleep_until(day).await),
    );
    result.unwrap();
}

#[test]
fn work_that_keeps_the_task_busy_past_the_validity_has_not_held_the_lock() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let result = clock.run(client(&nodes, &clock, 1).hold(KEY, async |lease| {
        // The process is paused: no timer runs.
        clock.advance(lease.remaining(clock.now()));
    }));
    assert_eq!(result, Err(HoldError::Lost(LossCause::Expired)));
}

#[test]
fn work_does_not_run_on_after_a_pause_past_the_validity() {
    let clock = MockClock::new();
    let nodes: [Node<'_>; 5] = MockNode::array(&clock);
    let has_run_on = Cell::new(false);
    let mut redlock = client_with(&nodes, &clock, 1, Options::new(TTL).unwrap());
    let result = clock.run(async {
        let mut hold = pin!(redlock.hold(KEY, async |_| {
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
