//! A clock that stands still until it is moved.

use core::cell::{Cell, RefCell};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use crate::mock::slots::Slots;
use crate::time::{Clock, Instant};

/// Virtual time: it passes only when a test says so, by [`advance`](Self::advance) or in
/// [`run`](Self::run). Pass it by reference; all that share it live at one time.
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

    /// How many polls in a row must be pending before time moves on. The tasks of a test may wake each
    /// other many times at one instant; with no allocator there is no waker that could tell.
    const QUIET_POLLS: usize = 16;

    /// A clock at zero that tells microseconds.
    #[must_use]
    pub const fn new() -> Self {
        Self::with_resolution(Duration::from_micros(1))
    }

    /// A clock that claims to be as coarse as `resolution`.
    #[must_use]
    pub const fn with_resolution(resolution: Duration) -> Self {
        Self {
            now: Cell::new(Instant::from_micros(0)),
            resolution,
            sleepers: RefCell::new(Slots::new()),
        }
    }

    /// Lets `by` pass and wakes whoever has slept long enough.
    pub fn advance(&self, by: Duration) {
        self.set(self.now.get().saturating_add(by));
    }

    /// Runs `future` to its end: whenever nothing else is to be done, time jumps to the next deadline
    /// that somebody sleeps for.
    ///
    /// # Panics
    ///
    /// When the future waits for something that time does not bring.
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
                None => panic!("the future waits, but for no time: nothing can wake it"),
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
    fn lie_down(&self, deadline: Instant, waker: &Waker, bed: Option<usize>) -> usize {
        let mut sleepers = self.sleepers.borrow_mut();
        let sleeper = Sleeper {
            deadline,
            waker: waker.clone(),
        };
        if let Some(bed) = bed
            && let Some(place) = sleepers.get_mut(bed)
        {
            *place = sleeper;
            return bed;
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
            bed: None,
        }
        .await;
    }
}

/// Leaves its place when the sleep is over or dropped.
///
/// A type and not a closure: a future that refers to a part of itself with `&mut` is refused by Miri
/// when it stands in a slice, for the slice's iterator takes a look at all of it.
struct Sleep<'a> {
    clock: &'a MockClock,
    deadline: Instant,
    bed: Option<usize>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.clock.now() >= self.deadline {
            return Poll::Ready(());
        }
        let bed = self
            .clock
            .lie_down(self.deadline, context.waker(), self.bed);
        self.bed = Some(bed);
        Poll::Pending
    }
}

impl Drop for Sleep<'_> {
    fn drop(&mut self) {
        if let Some(bed) = self.bed {
            self.clock.sleepers.borrow_mut().take(bed);
        }
    }
}
