//! Clocks that are coarse, fast or slow: the lease is over before the first of its keys is.

use core::time::Duration;

use redlock_core::mock::{MockClock, MockNode, SeededEntropy};
use redlock_core::{AcquireError, Clock, Instant, Lease, Options, Redlock};

use crate::world::*;

/// A clock that truncates its reading to whole ticks and wakes on whole ticks, like a counter of ticks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Coarse<'c> {
    pub(crate) clock: &'c MockClock,
    pub(crate) tick: Duration,
}

impl Coarse<'_> {
    fn ticks(&self, instant: Instant) -> u64 {
        instant.as_micros() / self.tick_micros()
    }

    fn tick_micros(&self) -> u64 {
        u64::try_from(self.tick.as_micros()).unwrap()
    }
}

impl Clock for Coarse<'_> {
    fn now(&self) -> Instant {
        Instant::from_micros(self.ticks(self.clock.now()) * self.tick_micros())
    }

    fn resolution(&self) -> Duration {
        self.tick
    }

    async fn sleep_until(&self, deadline: Instant) {
        let ticks = deadline.as_micros().div_ceil(self.tick_micros());
        let woken_at = Instant::from_micros(ticks * self.tick_micros());
        self.clock.sleep_until(woken_at).await;
    }
}

/// A clock that is fast by this many millionths; slow if negative.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Skewed<'c> {
    pub(crate) clock: &'c MockClock,
    pub(crate) ppm: i64,
}

impl Skewed<'_> {
    const MILLION: u64 = 1_000_000;

    fn rate(&self) -> u64 {
        Self::MILLION.checked_add_signed(self.ppm).unwrap()
    }
}

impl Clock for Skewed<'_> {
    fn now(&self) -> Instant {
        Instant::from_micros(self.clock.now().as_micros() * self.rate() / Self::MILLION)
    }

    fn resolution(&self) -> Duration {
        self.clock.resolution()
    }

    async fn sleep_until(&self, deadline: Instant) {
        let micros = u128::from(deadline.as_micros()) * u128::from(Self::MILLION);
        let micros = micros.div_ceil(u128::from(self.rate()));
        let true_deadline = Instant::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
        self.clock.sleep_until(true_deadline).await;
    }
}

#[test]
fn a_lease_on_a_clock_of_coarse_ticks_is_over_before_the_first_key_expires() {
    // No drift: two milliseconds and one tick are taken off the TTL.
    let options = Options::new(ms(500)).unwrap().drift_ppm(0).unwrap();
    let options = options.wait(Duration::ZERO).node_timeout(ms(50)).unwrap();
    for tick in unless_miri(&[ms(1), ms(10), ms(100)][..], &[ms(100)])
        .iter()
        .copied()
    {
        let just_before = tick - Duration::from_micros(1);
        for begins in [just_before, tick / 2, Duration::ZERO]
            .into_iter()
            .take(unless_miri(3, 1))
        {
            let clock = MockClock::new();
            let nodes: [Node<'_>; 3] = MockNode::array(&clock);
            clock.advance(10 * tick + begins);
            let coarse = Coarse {
                clock: &clock,
                tick,
            };
            let seeded = SeededEntropy::new(1);
            let mut redlock = Redlock::<_, _, _, 3>::new(&nodes, coarse, seeded, options).unwrap();
            let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
            never_outlives_its_keys(&lease, &coarse, &nodes);
            clock.run(redlock.release(lease));

            let mut lease = clock.run(redlock.try_acquire(KEY)).unwrap();
            clock.advance(ms(200));
            clock.run(redlock.extend(&mut lease)).unwrap();
            never_outlives_its_keys(&lease, &coarse, &nodes);
        }
    }
}

#[test]
fn a_lock_that_is_released_on_a_clock_of_coarse_ticks_stays_held_for_its_min_hold() {
    let min_hold = ms(500);
    let options = Options::new(ms(1_000)).unwrap().min_hold(min_hold).unwrap();
    let options = options.wait(Duration::ZERO).node_timeout(ms(50)).unwrap();
    for tick in unless_miri(&[ms(1), ms(10), ms(100)][..], &[ms(100)])
        .iter()
        .copied()
    {
        let just_before = tick - Duration::from_micros(1);
        for begins in [just_before, tick / 2, Duration::ZERO] {
            // Until the release. The tick may have passed, or not.
            for work in [Duration::ZERO, Duration::from_micros(1), tick] {
                let clock = MockClock::new();
                let nodes: [Node<'_>; 3] = MockNode::array(&clock);
                clock.advance(10 * tick + begins);
                let coarse = Coarse {
                    clock: &clock,
                    tick,
                };
                let seeded = SeededEntropy::new(1);
                let mut redlock =
                    Redlock::<_, _, _, 3>::new(&nodes, coarse, seeded, options).unwrap();
                let lease = clock.run(redlock.try_acquire(KEY)).unwrap();
                let acquired_at = clock.now();
                clock.advance(work);
                assert_eq!(clock.run(redlock.release(lease)).kept(), 3);
                let passed = clock.now().saturating_duration_since(acquired_at);
                let just_before_end = min_hold - passed - Duration::from_micros(1);
                clock.advance(just_before_end);
                assert_eq!(key_count(&nodes), 3, "{tick:?}, {begins:?}, {work:?}");
                clock.advance(2 * tick + ms(2));
                assert_eq!(key_count(&nodes), 0, "{tick:?}, {begins:?}, {work:?}");
            }
        }
    }
}

fn never_outlives_its_keys<K>(lease: &Lease<K>, coarse: &Coarse<'_>, nodes: &[Node<'_>]) {
    assert!(lease.is_valid(coarse.now()));
    while lease.is_valid(coarse.now()) {
        assert_eq!(holders(nodes), nodes.len(), "{:?}", coarse.clock.now());
        let step = unless_miri(Duration::from_micros(250), ms(10));
        coarse.clock.advance(step);
    }
}

#[test]
fn a_lease_is_over_before_its_keys_are_while_clocks_differ_by_no_more_than_the_drift() {
    // 1 % and two milliseconds are taken off ten seconds.
    for (node_ppm, client_ppm) in [(10_000, 0), (0, -9_900), (5_000, -4_950), (-10_000, 0)] {
        assert!(
            keys_outlive_the_lease(node_ppm, client_ppm),
            "{node_ppm}, {client_ppm}"
        );
    }
}

/// What the guarantee excludes: clocks that differ by more.
#[test]
fn exclusion_rests_on_clocks_that_differ_by_no_more_than_the_drift() {
    assert!(!keys_outlive_the_lease(11_000, 0));
    assert!(!keys_outlive_the_lease(0, -11_000));
}

/// Whether no other client gets the lock in the last moment of a lease.
fn keys_outlive_the_lease(node_ppm: i64, client_ppm: i64) -> bool {
    let clock = MockClock::new();
    let node_clock = Skewed {
        clock: &clock,
        ppm: node_ppm,
    };
    let client_clock = Skewed {
        clock: &clock,
        ppm: client_ppm,
    };
    let nodes: [_; 5] = MockNode::array(node_clock);
    let build = |seed| {
        let seeded = SeededEntropy::new(seed);
        Redlock::<_, _, _, 5>::new(&nodes, client_clock, seeded, one_round()).unwrap()
    };
    let lease = clock.run(build(1).try_acquire(KEY)).unwrap();
    let end = lease.valid_until();
    let last = Instant::from_micros(end.as_micros() - 10);
    clock.run(client_clock.sleep_until(last));
    assert!(lease.is_valid(client_clock.now()));
    let second = clock.run(build(2).try_acquire(KEY));
    assert!(
        matches!(second, Ok(_) | Err(AcquireError::Held(_))),
        "{second:?}"
    );
    second.is_err()
}
