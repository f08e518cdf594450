//! A worker, which acquires, counts and releases in a loop.

use core::time::Duration;
use std::rc::Rc;

use redlock_core::mock::SeededEntropy;
use redlock_core::{AcquireError, Clock, Instant, Lease};
use redlock_std::{MAX_NODES, SystemClock};
use tokio::time::sleep;

use super::KEY;
use super::checker::Hold;
use super::link::Link;
use super::random::Random;
use super::world::World;

/// An ordinary client: it knows the key and the nodes, but not the other workers.
pub(crate) struct Worker {
    number: usize,
    redlock: Redlock,
    random: Random,
    record: Record,
}

type Redlock = redlock_core::Redlock<Link, SystemClock, SeededEntropy, MAX_NODES>;

/// The counters of a worker.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Record {
    pub(crate) acquired: u64,
    pub(crate) extended: u64,
    /// Work whose result was not written, because the lease had ended.
    pub(crate) given_up: u64,
    pub(crate) refused: u64,
    pub(crate) unreachable: u64,
    pub(crate) too_late: u64,
    pub(crate) longest_wait: Duration,
}

impl Worker {
    pub(crate) fn new(number: usize, redlock: Redlock, random: Random) -> Self {
        Self {
            number,
            redlock,
            random,
            record: Record::default(),
        }
    }

    pub(crate) async fn run(mut self, world: Rc<World>) -> Record {
        while let Some(lease) = self.acquire(&world).await {
            let lease = self.count(lease, &world).await;
            self.redlock.release(lease).await;
            // Pause, so that the other workers can acquire.
            sleep(self.random.between_ms(1, 4)).await;
        }
        self.record
    }

    /// Tries until the lock is acquired, round by round to count them, unlike `Redlock::acquire`.
    async fn acquire(&mut self, world: &World) -> Option<Lease<&'static str>> {
        let asked_at = SystemClock.now();
        while !world.is_over() {
            match self.redlock.try_acquire(KEY).await {
                Ok(lease) => {
                    let wait = SystemClock.now().saturating_duration_since(asked_at);
                    self.record.acquired += 1;
                    self.record.longest_wait = self.record.longest_wait.max(wait);
                    world.say_sometimes(|| self.holds(&lease, wait, world));
                    return Some(lease);
                }
                Err(AcquireError::Held(_)) => self.record.refused += 1,
                Err(AcquireError::TooLate(_)) => self.record.too_late += 1,
                Err(_) => self.record.unreachable += 1,
            }
            sleep(self.random.between_ms(1, 8)).await;
        }
        None
    }

    /// Increments the counter, in a way that loses counts if two workers do it at once.
    async fn count(
        &mut self,
        mut lease: Lease<&'static str>,
        world: &World,
    ) -> Lease<&'static str> {
        let from = SystemClock.now();
        let count = world.count();
        let work = self.work();
        let extended = &mut self.record.extended;
        let is_done = tokio::select! {
            biased;
            _lost = self.redlock.keep(&mut lease, |_| *extended += 1) => false,
            () = sleep(work) => true,
        };
        // Checked right before the write: no other worker runs between the two.
        let now = SystemClock.now();
        if is_done && lease.is_valid(now) {
            world.write(self.number, count + 1);
        } else {
            self.record.given_up += 1;
        }
        let until: Instant = now.min(lease.valid_until());
        world.record(Hold {
            worker: self.number,
            from,
            until,
        });
        lease
    }

    /// Mostly short; sometimes longer than the TTL, so that the lease must be extended.
    fn work(&mut self) -> Duration {
        if self.random.one_in(400) {
            self.random.between_ms(350, 700)
        } else {
            self.random.between_ms(0, 2)
        }
    }

    fn holds(&self, lease: &Lease<&'static str>, wait: Duration, world: &World) -> String {
        format!(
            "worker {} holds the lock, on nodes{}, after {} ms; the counter says {}",
            self.number,
            world.carriers(lease.token()),
            wait.as_millis(),
            world.count(),
        )
    }
}
