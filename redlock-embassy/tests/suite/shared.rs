//! Several tasks that share one lock.

use core::cell::Cell;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use embassy_futures::join::{join, join3};
use embassy_futures::select::select;
use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use redlock_core::mock::{MockClock, MockNode, SeededEntropy};
use redlock_core::{AcquireError, Clock, HoldError, Instant, LossCause, Redlock};
use redlock_embassy::{Options, Shared};

use crate::fleet::*;
use crate::wire::Who;
use crate::world::*;

type SharedMocks<'a, const N: usize> =
    Shared<NoopRawMutex, &'a MockNode<&'a MockClock>, &'a MockClock, SeededEntropy, N>;

/// A lease of ten seconds and a wait of twenty, over three nodes that take 4 ms to answer.
fn shared<'a>(clock: &'a MockClock, nodes: &'a [MockNode<&'a MockClock>; 3]) -> SharedMocks<'a, 3> {
    let options = Options::new(ms(10_000)).unwrap().wait(ms(20_000));
    let options = options.node_timeout(ms(50)).unwrap();
    for node in nodes {
        node.set_latency(ms(4));
    }
    Shared::new(Redlock::new(nodes, clock, SeededEntropy::new(1), options).unwrap())
}

async fn sleep(clock: &MockClock, time: Duration) {
    clock.sleep_until(clock.now().saturating_add(time)).await;
}

fn now_ms(clock: &MockClock) -> u64 {
    clock.now().as_micros() / 1_000
}

#[test]
fn tasks_that_share_a_lock_wait_for_a_holder_among_them_and_hold_other_keys_meanwhile() {
    let world = &World::default();
    let servers = fleet::<3>(world, Who::default());
    let options = one_round().wait(ms(2_000));
    let shared = &Shared::<NoopRawMutex, _, _, _, 3>::new(lock(servers.each_ref(), 1, options));
    let clock = &&world.clock;
    let holder = async {
        let lease = shared.acquire("dock-7").await.unwrap();
        clock.sleep_until(world.after(ms(1_000))).await;
        shared.release(lease).await;
    };
    let waiting = async {
        clock.sleep_until(world.after(ms(1))).await;
        let lease = shared.acquire("dock-7").await.unwrap();
        let waited = world.now_ms();
        shared.release(lease).await;
        waited
    };
    let elsewhere = async {
        clock.sleep_until(world.after(ms(500))).await;
        let lease = shared.acquire("dock-8").await.unwrap();
        let was_elsewhere = world.now_ms();
        shared.release(lease).await;
        was_elsewhere
    };
    let ((), waited, was_elsewhere) = world.run(join3(holder, waiting, elsewhere));
    assert!((1_000..1_300).contains(&waited), "{waited}");
    assert_eq!(was_elsewhere, 500);
}

#[test]
fn two_tasks_hold_two_keys_for_longer_than_a_lease_while_a_third_one_waits() {
    let clock = &MockClock::new();
    let nodes = MockNode::array(clock);
    let shared = &shared(clock, &nodes);
    // Another client holds the key of the third task for most of the time.
    let other = redlock_core::Token::from_bytes([9; 20]);
    nodes
        .iter()
        .for_each(|node| node.set("dock-9", other, ms(15_000)));
    let hold = async |key| {
        let hold = shared.hold(key, async |_| sleep(clock, ms(35_000)).await);
        hold.await.unwrap();
        now_ms(clock)
    };
    let third = async {
        let lease = shared.acquire("dock-9").await.unwrap();
        let acquired_at = now_ms(clock);
        shared.release(lease).await;
        acquired_at
    };
    let (seventh, eighth, third) = clock.run(join3(hold("dock-7"), hold("dock-8"), third));
    for ended_at in [seventh, eighth] {
        assert!((35_000..35_100).contains(&ended_at), "{ended_at}");
    }
    assert!((15_000..16_000).contains(&third), "{third}");
    for node in &nodes {
        assert!(node.is_empty());
    }
}

/// Locks again and again until `until`, and never waits for anything else.
async fn busy(shared: &SharedMocks<'_, 3>, clock: &MockClock, until: u64) {
    while now_ms(clock) < until {
        let lease = shared.acquire("dock-8").await.unwrap();
        shared.release(lease).await;
    }
}

#[test]
fn a_task_that_locks_without_a_pause_keeps_no_other_from_its_turns() {
    let clock = &MockClock::new();
    let nodes = MockNode::array(clock);
    let shared = &shared(clock, &nodes);
    let other = async {
        sleep(clock, ms(2)).await;
        let lease = shared.try_acquire("dock-7").await.unwrap();
        shared.release(lease).await;
        now_ms(clock)
    };
    let held = async {
        let hold = shared.hold("dock-9", async |_| sleep(clock, ms(35_000)).await);
        hold.await.unwrap();
    };
    let busy = || busy(shared, clock, 60_000);
    let (took, (), _) = clock.run(join3(other, held, join(busy(), busy())));
    // An acquire and a release, and before each a round of the three others.
    assert!(took <= 2 + 8 * 4, "{took} ms");
}

#[test]
fn tasks_take_turns_in_the_order_in_which_they_asked() {
    let clock = &MockClock::new();
    let nodes = MockNode::array(clock);
    let shared = &shared(clock, &nodes);
    let order = core::cell::RefCell::new(Vec::new());
    let task = async |number: u64| {
        sleep(clock, ms(number)).await;
        let _turn = shared.turn().await;
        order.borrow_mut().push(number);
        sleep(clock, ms(20)).await;
    };
    // The last one is polled first.
    clock.run(join3(
        join3(task(8), task(7), task(6)),
        join3(task(5), task(4), task(3)),
        join(task(2), task(1)),
    ));
    assert_eq!(*order.borrow(), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn a_future_that_is_no_longer_polled_keeps_no_other_from_its_turn() {
    let clock = &MockClock::new();
    let nodes = MockNode::array(clock);
    let shared = &shared(clock, &nodes);
    let mut context = Context::from_waker(Waker::noop());
    let holder = pin!(shared.turn());
    let Poll::Ready(turn) = holder.poll(&mut context) else {
        panic!("the first turn is free");
    };
    let mut forgotten = pin!(shared.turn());
    assert!(forgotten.as_mut().poll(&mut context).is_pending());
    drop(turn);
    let lease = clock.run(shared.try_acquire("dock-7"));
    assert!(lease.is_ok(), "{lease:?}");
}

#[test]
fn a_try_that_finds_the_key_held_ends_at_once() {
    let clock = &MockClock::new();
    let nodes = MockNode::array(clock);
    let shared = &shared(clock, &nodes);
    let result = clock.run(async {
        let _lease = shared.try_acquire("dock-7").await.unwrap();
        shared.try_acquire("dock-7").await
    });
    assert!(matches!(result, Err(AcquireError::Held(_))), "{result:?}");
    assert!(now_ms(clock) < 100);
}

#[test]
fn work_is_dropped_when_its_lease_is_lost() {
    let clock = &MockClock::new();
    let nodes = MockNode::array(clock);
    let shared = &shared(clock, &nodes);
    let hold = shared.hold("dock-7", async |_| {
        nodes.iter().for_each(MockNode::clear);
        sleep(clock, ms(60_000)).await;
    });
    let result = clock.run(hold);
    assert!(matches!(result, Err(HoldError::Lost(_))), "{result:?}");
    assert!(now_ms(clock) < 4_000, "at the first extension");
}

#[test]
fn work_is_dropped_when_its_lease_expires_although_another_task_keeps_its_turn() {
    let clock = &MockClock::new();
    let nodes = MockNode::array(clock);
    let shared = &shared(clock, &nodes);
    let hold = shared.hold("dock-7", async |_| sleep(clock, ms(60_000)).await);
    let keeps_its_turn = async {
        sleep(clock, ms(100)).await;
        let turn = shared.turn().await;
        sleep(clock, ms(20_000)).await;
        drop(turn);
    };
    let ended = async {
        let result = hold.await;
        (result, now_ms(clock))
    };
    let ((result, ended_at), ()) = clock.run(join(ended, keeps_its_turn));
    assert!(matches!(result, Err(HoldError::Lost(_))), "{result:?}");
    // The work has ended with the validity. Then its release has waited for the turn.
    assert!((20_000..21_000).contains(&ended_at), "{ended_at}");
}

/// The other task asks for its turn during the acquire, so it gets the turn before the first extension.
#[test]
fn work_is_dropped_when_its_lease_expires_although_another_task_has_the_turn_after_the_acquire() {
    let clock = &MockClock::new();
    let nodes = MockNode::array(clock);
    let shared = &shared(clock, &nodes);
    let (valid_until, worked_at) = (Cell::new(clock.now()), Cell::new(clock.now()));
    let hold = shared.hold("dock-7", async |lease| {
        valid_until.set(lease.valid_until());
        loop {
            worked_at.set(clock.now());
            sleep(clock, ms(10)).await;
        }
    });
    let keeps_its_turn = async {
        sleep(clock, ms(2)).await;
        let turn = shared.turn().await;
        sleep(clock, ms(20_000)).await;
        drop(turn);
    };
    let (result, ()): (Result<(), _>, ()) = clock.run(join(hold, keeps_its_turn));
    assert!(matches!(result, Err(HoldError::Lost(_))), "{result:?}");
    let (worked_at, valid_until) = (worked_at.get(), valid_until.get());
    assert!(worked_at < valid_until, "{worked_at:?}, {valid_until:?}");
}

/// The limit is that of the options with which the hold began.
#[test]
fn a_shared_hold_extends_its_lease_no_more_often_than_the_options_allow() {
    for max_extensions in [0, 1, 3] {
        let clock = &MockClock::new();
        let nodes = MockNode::array(clock);
        let shared = &shared(clock, &nodes);
        let mut turn = clock.run(shared.turn());
        let options = turn.options().max_extensions(max_extensions);
        turn.set_options(options);
        drop(turn);
        let begun_at = clock.now();
        let hold = shared.hold("dock-7", async |_| sleep(clock, ms(600_000)).await);
        let result = clock.run(hold);
        let cause = match result {
            Err(HoldError::Lost(cause)) => cause,
            result => panic!("{result:?}"),
        };
        assert!(matches!(cause, LossCause::ExtensionsSpent), "{cause:?}");
        // Each extension comes after a third of a validity of ten seconds.
        let held = clock.now().saturating_duration_since(begun_at);
        let expected = ms(10_000 + u64::from(max_extensions) * 3_333);
        assert!(held.abs_diff(expected) < ms(200), "{held:?}");
    }
}

/// A clock that counts whole ticks and wakes on whole ticks.
#[derive(Clone, Copy)]
struct Coarse<'c> {
    clock: &'c MockClock,
    tick_micros: u64,
}

impl Clock for Coarse<'_> {
    fn now(&self) -> Instant {
        let ticks = self.clock.now().as_micros() / self.tick_micros;
        Instant::from_micros(ticks * self.tick_micros)
    }

    fn resolution(&self) -> Duration {
        Duration::from_micros(self.tick_micros)
    }

    async fn sleep_until(&self, deadline: Instant) {
        let ticks = deadline.as_micros().div_ceil(self.tick_micros);
        let woken_at = Instant::from_micros(ticks * self.tick_micros);
        self.clock.sleep_until(woken_at).await;
    }
}

#[test]
fn a_shared_hold_is_extended_in_time_wherever_in_a_tick_it_began() {
    for (tick, ttl) in [
        (ms(1_000), ms(2_500)),
        (ms(1_000), ms(3_000)),
        (ms(10), ms(30)),
    ] {
        for tenth in 0..10 {
            let clock = &MockClock::new();
            clock.advance(tick * 10 + tick / 10 * tenth);
            let nodes: [_; 3] = MockNode::array(clock);
            let tick_micros = u64::try_from(tick.as_micros()).unwrap();
            let coarse = Coarse { clock, tick_micros };
            let options = Options::new(ttl).unwrap();
            let redlock = Redlock::new(nodes.each_ref(), coarse, SeededEntropy::new(1), options);
            let shared = Shared::<NoopRawMutex, _, _, _, 3>::new(redlock.unwrap());
            let held = clock.run(shared.hold("dock-7", async |_| sleep(clock, ttl * 20).await));
            assert!(held.is_ok(), "{tick:?}, {ttl:?}, {tenth}: {held:?}");
        }
    }
}

/// Drops the future after each number of milliseconds. Then nothing is left on any node after the next operation.
fn leaves_nothing(future: impl AsyncFn(&SharedMocks<'_, 3>, &MockClock)) {
    for time in 0..80 {
        let clock = &MockClock::new();
        let nodes = MockNode::array(clock);
        let shared = &shared(clock, &nodes);
        clock.run(async {
            select(future(shared, clock), sleep(clock, ms(time))).await;
            // Of another task, for another key.
            let lease = shared.acquire("dock-8").await.unwrap();
            shared.release(lease).await;
            sleep(clock, ms(20)).await;
        });
        for node in &nodes {
            assert_eq!(node.token("dock-7"), None, "dropped after {time} ms");
            assert!(node.is_empty());
        }
    }
}

#[test]
fn a_dropped_acquire_leaves_no_key() {
    leaves_nothing(async |shared, _| {
        let lease = shared.acquire("dock-7").await.unwrap();
        // Held, not leaked: this future is dropped by the caller at any time.
        shared.release(lease).await;
    });
}

#[test]
fn a_dropped_hold_leaves_no_key() {
    leaves_nothing(async |shared, clock| {
        let hold = shared.hold("dock-7", async |_| sleep(clock, ms(50)).await);
        hold.await.unwrap();
    });
}

#[test]
fn a_hold_and_a_release_that_are_dropped_while_they_wait_for_their_turn_leave_no_key() {
    leaves_nothing(async |shared, clock| {
        let lease = shared.acquire("dock-7").await.unwrap();
        let slow = async {
            let turn = shared.turn().await;
            sleep(clock, ms(60)).await;
            drop(turn);
        };
        join(slow, shared.release(lease)).await;
    });
    leaves_nothing(async |shared, clock| {
        let hold = shared.hold("dock-7", async |_| sleep(clock, ms(20)).await);
        let slow = async {
            sleep(clock, ms(10)).await;
            let turn = shared.turn().await;
            sleep(clock, ms(60)).await;
            drop(turn);
        };
        drop(join(slow, hold).await);
    });
}

#[test]
#[cfg(feature = "min-hold")]
fn a_shared_hold_that_is_dropped_before_its_work_is_done_keeps_no_key_for_its_min_hold() {
    for work_takes in [ms(20), ms(500)] {
        let clock = &MockClock::new();
        let nodes = MockNode::array(clock);
        let shared = &shared(clock, &nodes);
        clock.run(async {
            let options = *shared.turn().await.options();
            let options = options.min_hold(ms(8_000)).unwrap();
            shared.turn().await.set_options(options);
            let hold = shared.hold("dock-7", async |_| sleep(clock, work_takes).await);
            select(hold, sleep(clock, ms(100))).await;
            shared.release_abandoned().await;
            sleep(clock, ms(20)).await;
        });
        let is_kept = work_takes < ms(100);
        assert!(nodes.iter().all(|node| node.is_empty() != is_kept));
    }
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn tasks_that_wait_for_their_turn_do_not_wake_each_other() {
    let clock = &MockClock::new();
    let nodes = MockNode::array(clock);
    let shared = &shared(clock, &nodes);
    let turn = clock.run(shared.turn());
    let counts: [Arc<Count>; 3] = Default::default();
    let wakers = counts
        .each_ref()
        .map(|count| Waker::from(Arc::clone(count)));
    let mut waiting = [0; 3].map(|_| Box::pin(shared.turn()));
    for _ in 0..5 {
        for (waiting, waker) in waiting.iter_mut().zip(&wakers) {
            let poll = waiting.as_mut().poll(&mut Context::from_waker(waker));
            assert!(poll.is_pending());
        }
    }
    let woken = || {
        counts
            .each_ref()
            .map(|count| count.0.load(Ordering::Relaxed))
    };
    assert_eq!(woken(), [0; 3]);
    drop(turn);
    assert_eq!(
        woken(),
        [1; 3],
        "once, and no task is forgotten if one is dropped"
    );
    let [first, second, _third] = waiting;
    drop(first);
    let mut second = pin!(second);
    let poll = second.as_mut().poll(&mut Context::from_waker(&wakers[1]));
    assert!(matches!(poll, Poll::Ready(_)));
}
