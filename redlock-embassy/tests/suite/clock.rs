//! The clock of embassy.

use core::pin::pin;
use core::time::Duration;

use embassy_time::MockDriver;
use redlock_core::{Clock, Instant};
use redlock_embassy::EmbassyClock;

use crate::world::{embassy_time, poll_once, poll_times};

#[test]
fn the_clock_of_embassy_tells_the_time_and_never_wakes_early() {
    let _turn = embassy_time();
    let driver = MockDriver::get();
    let advance = |micros| driver.advance(embassy_time::Duration::from_micros(micros));
    let clock = EmbassyClock;
    let at = Instant::from_micros;

    // It tells what embassy does; the tick of the mock driver is a microsecond.
    assert_eq!(clock.now(), at(0));
    for (by, now) in [(1, 1), (999, 1_000), (5_000_000_000, 5_000_001_000)] {
        advance(by);
        assert_eq!(clock.now(), at(now));
    }
    assert_eq!(clock.resolution(), Duration::from_micros(1));

    // A sleep until a passed deadline takes one poll.
    for deadline in [at(0), at(4_000_000_000), clock.now()] {
        assert_eq!(poll_times(1, clock.sleep_until(deadline)), Some(()));
    }

    // A sleep ends at its instant, and not at the tick before.
    for length in [1, 2, 3, 999, 1_000_000, 3_600_000_001] {
        let deadline = clock.now().saturating_add(Duration::from_micros(length));
        let mut sleep = pin!(clock.sleep_until(deadline));
        assert!(poll_once(sleep.as_mut()).is_pending());
        advance(length - 1);
        assert!(
            poll_once(sleep.as_mut()).is_pending(),
            "one tick before {length}"
        );
        advance(1);
        assert!(poll_once(sleep.as_mut()).is_ready());
        assert_eq!(clock.now(), deadline);
    }

    // The end of time does not come, and is no overflow; sleeps may be dropped.
    for _ in 0..20 {
        assert_eq!(poll_times(2, clock.sleep_until(Instant::MAX)), None);
        let next = clock.now().saturating_add(Duration::from_micros(5));
        assert_eq!(poll_times(2, clock.sleep_until(next)), None);
    }
    advance(10);
    assert_eq!(poll_times(1, clock.sleep_until(clock.now())), Some(()));
}
