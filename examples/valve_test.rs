//! A function that works under a lock, and its test on a host, in virtual time.
//!
//! `cargo test --example valve_test`

use redlock_core::{Clock, Entropy, HoldError, NodeErrorOf, Redlock, Transport};

fn main() {}

/// Opens the valve, waters while the lock is held, and closes the valve in any case.
///
/// # Errors
///
/// Fails if the lock was not acquired, or was lost.
pub async fn water<T: Transport, C: Clock, E: Entropy, const N: usize>(
    redlock: &mut Redlock<T, C, E, N>,
    valve: &Valve,
    watering: impl Future<Output = ()>,
) -> Result<(), HoldError<NodeErrorOf<T>, N>> {
    redlock
        .hold("valve-3", async |_lease| {
            // The valve is closed when `_open` goes out of scope, also if the work is dropped.
            let _open = valve.open();
            watering.await;
        })
        .await
}

/// A valve that is open while an [`Open`] exists.
#[derive(Debug, Default)]
pub struct Valve {
    is_open: core::cell::Cell<bool>,
}

/// Keeps the valve open.
#[derive(Debug)]
pub struct Open<'a>(&'a Valve);

impl Valve {
    fn open(&self) -> Open<'_> {
        self.is_open.set(true);
        Open(self)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.is_open.set(false);
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use redlock_core::mock::{MockClock, MockNode, SeededEntropy};
    use redlock_core::{Clock, HoldError, Instant, Options, Redlock};

    use super::{Valve, water};

    #[test]
    fn the_valve_is_closed_when_the_lock_is_lost_half_way() {
        let clock = MockClock::new();
        let nodes: [_; 3] = MockNode::array(&clock);
        let options = Options::new(Duration::from_secs(10)).unwrap();
        let random = SeededEntropy::new(1);
        let mut redlock = Redlock::<_, _, _, 3>::new(&nodes, &clock, random, options).unwrap();
        let valve = Valve::default();

        let result = clock.run(water(&mut redlock, &valve, async {
            assert!(valve.is_open.get());
            clock.sleep_until(Instant::from_micros(30_000_000)).await;
            nodes[1..].iter().for_each(MockNode::stop);
            core::future::pending::<()>().await;
        }));

        assert!(matches!(result, Err(HoldError::Lost(_))));
        assert!(!valve.is_open.get());
        // Within the validity of one lease after the last extension.
        assert!(clock.now() < Instant::from_micros(40_000_000));
    }
}
