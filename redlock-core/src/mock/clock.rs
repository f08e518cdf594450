//! A virtual clock.

use core::cell::{Cell, RefCell};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use crate::mock::slots::Slots;
use crate::time::{Clock, Instant};

/// A virtual clock: time passes only in [`advance`](Self::advance) and [`run`](Self::run). Pass it by
/// reference: all users of one clock share its time.
#[derive(Debug)]
pub struct MockClock {
    now: Cell<Instant>,
    resolution: Duration,
    sleepers: RefCell<Slots<Sleeper, { Self::SLEEPERS }>>,
}

#[derive(Debug)]
struct Sleeper {
    deadline: Instant,
    waker: Waker,
}

impl MockClock {
    /// How many futures can sleep at once.
    const SLEEPERS: usize = 256;

    /// How many polls in a row must be pending before time advances. The tasks of a test may wake each other many times at
    /// one instant. Without an allocator, no waker can track this.
    const QUIET_POLLS: usize = 16;

    /// A clock at zero with a resolution of one microsecond.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_resolution(Duration::from_micros(1))
    }

    /// A clock that reports this `resolution`.
    #[must_use]
    pub const fn with_resolution(resolution: Duration) -> Self {
        Self {
            now: Cell::new(Instant::from_micros(0)),
            resolution,
            sleepers: RefCell::new(Slots::new()),
        }
    }

    /// Advances the clock by `by` and wakes the futures whose deadline has passed.
    pub fn advance(&self, by: Duration) {
        self.set(self.now.get().saturating_add(by));
    }

    /// Runs `future` to its end. Whenever it is idle, the time jumps to the next deadline of a sleeping future.
    ///
    /// # Panics
    ///
    /// Panics if the future is pending and no future sleeps: then nothing can wake it.
    #[expect(
        clippy::panic,
        reason = "a test that can never end is a defect of the test"
    )]
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            for _ in 0..Self::QUIET_POLLS {
                if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                    return output;
                }
            }
            match self.next_deadline() {
                Some(deadline) => self.set(deadline),
                None => panic!("the future waits for no deadline: nothing can wake it"),
            }
        }
    }

    fn set(&self, now: Instant) {
        self.now.set(self.now.get().max(now));
        for sleeper in self.sleepers.borrow().iter() {
            if sleeper.deadline <= now {
                sleeper.waker.wake_by_ref();
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let sleepers = self.sleepers.borrow();
        let deadlines = sleepers.iter().map(|sleeper| sleeper.deadline);
        deadlines
            .filter(|deadline| *deadline > self.now.get())
            .min()
    }

    #[expect(
        clippy::expect_used,
        reason = "a test that sleeps so often is a defect of the test"
    )]
    fn register(&self, deadline: Instant, waker: &Waker, slot: Option<usize>) -> usize {
        let mut sleepers = self.sleepers.borrow_mut();
        let sleeper = Sleeper {
            deadline,
            waker: waker.clone(),
        };
        if let Some(slot) = slot
            && let Some(registered) = sleepers.get_mut(slot)
        {
            *registered = sleeper;
            return slot;
        }
        sleepers
            .insert(sleeper)
            .expect("more futures sleep on one MockClock than it has room for (256)")
    }
}

impl Default for MockClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for MockClock {
    fn now(&self) -> Instant {
        self.now.get()
    }

    fn resolution(&self) -> Duration {
        self.resolution
    }

    async fn sleep_until(&self, deadline: Instant) {
        Sleep {
            clock: self,
            deadline,
            slot: None,
        }
        .await;
    }
}

/// Frees its slot when the sleep is over or dropped.
///
/// A type, not a closure: Miri rejects a future in a slice if the future refers to a part of itself with `&mut`, because the
/// iterator of the slice accesses the whole future.
struct Sleep<'a> {
    clock: &'a MockClock,
    deadline: Instant,
    slot: Option<usize>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.deadline {
            return Poll::Ready(());
        }
        let slot = self
            .clock
            .register(self.deadline, context.waker(), self.slot);
        self.slot = Some(slot);
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot {
            self.clock.sleepers.borrow_mut().take(slot);
        }
    }
}
