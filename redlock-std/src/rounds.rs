//! Limits how many acquires and extensions of this process are in flight at once, to what the nodes answer in time.
//!
//! If all acquires of a burst were sent at once, their commands would wait in our own queues for longer than a round may
//! take, and none would be granted. So rounds are admitted one after the other: extensions first, the lease that ends
//! soonest ahead; then acquires, first come, first served. The time of a round begins when it is admitted.
//!
//! The limit for extensions ignores acquires, so that no acquire delays an extension.

mod limit;
mod round_queue;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redlock_core::{Clock, Instant};

use crate::lock_clock::LockClock;
use crate::sync::{Mutex, MutexGuard, Notify};
use limit::Limit;
use round_queue::{RoundQueue, Ticket};

/// The rounds of a handle and its clones. Here a *round* is one attempt or one extension. In the core, an attempt of a
/// fenced lock takes up to three rounds and one that cleans up, and an extension takes up to two.
#[derive(Clone, Default)]
pub(crate) struct Rounds {
    state: Arc<Mutex<State>>,
    clock: LockClock,
}

struct State {
    limit: Limit,
    extensions: RoundQueue,
    acquires: RoundQueue,
    /// Acquires whose future was dropped. Each counts until its commands have left our queues.
    dropped: VecDeque<(Kind, Ticket, HaveLeft)>,
    last_number: u64,
    /// When the next waiting task checks for a free slot.
    next_check: Instant,
    nodes_answer: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Extension,
    Acquire,
}

/// Whether the commands of a round have left our queues.
type HaveLeft = Box<dyn Fn() -> bool + Send>;

/// The least time between two checks of the rounds in flight by waiting tasks, apart from the one task that checks as soon
/// as a slot may be free. If many tasks wait, each of them checks rarely. Otherwise they would leave no time for the tasks of
/// the nodes.
const BETWEEN_CHECKS: Duration = Duration::from_micros(200);

/// An admitted round. Dropping it frees its slot. It does not change the limit unless it has [ended](Round::end).
pub(crate) struct Round<'a> {
    rounds: &'a Rounds,
    kind: Kind,
    ticket: Ticket,
    started_at: Instant,
    result: Option<RoundResult>,
    leaves: Option<HaveLeft>,
}

struct RoundResult {
    /// Whether a quorum of nodes answered within `node_timeout`.
    has_answered: bool,
    node_timeout: Duration,
}

/// A task that waits for a round. Dropping it leaves the queue.
struct Waiter<'a> {
    rounds: &'a Rounds,
    kind: Kind,
    ticket: Ticket,
    woken: Arc<Notify>,
}

impl Rounds {
    pub(crate) fn new(clock: LockClock) -> Self {
        Self {
            state: Arc::default(),
            clock,
        }
    }

    /// Waits until an acquire may begin. Returns `None` if it cannot begin by `give_up_at`.
    ///
    /// The round counts as in flight until it is dropped, for `longest` at most. Dropping the future leaves the queue.
    pub(crate) async fn admit_acquire(
        &self,
        give_up_at: Instant,
        longest: Duration,
    ) -> Option<Round<'_>> {
        self.admit(Kind::Acquire, Instant::MAX, give_up_at, longest)
            .await
    }

    /// Waits until an extension may begin, at most until `valid_until`, the end of the lease. Otherwise like
    /// [`admit_acquire`](Self::admit_acquire).
    pub(crate) async fn admit_extension(
        &self,
        valid_until: Instant,
        longest: Duration,
    ) -> Option<Round<'_>> {
        self.admit(Kind::Extension, valid_until, valid_until, longest)
            .await
    }

    /// Whether a quorum of nodes answered the round that ended last.
    pub(crate) fn nodes_answer(&self) -> bool {
        self.lock().nodes_answer
    }

    async fn admit(
        &self,
        kind: Kind,
        due: Instant,
        give_up_at: Instant,
        longest: Duration,
    ) -> Option<Round<'_>> {
        // The common case: no task waits, and a slot is free.
        let waiter = match self.enter(kind, due, longest) {
            Ok(round) => return Some(round),
            Err(waiter) => waiter,
        };
        waiter.wait(give_up_at, longest).await
    }

    /// Begins a round if no other task waits and a slot is free. Otherwise joins the queue.
    fn enter(&self, kind: Kind, due: Instant, longest: Duration) -> Result<Round<'_>, Waiter<'_>> {
        let now = self.clock.now();
        let mut state = self.lock();
        state.last_number += 1;
        let number = state.last_number;
        let ticket = Ticket { due, number };
        let slots = state.slots(kind);
        let queue = state.queue(kind);
        if queue.waiting() == 0 && queue.in_flight() < slots {
            queue.begin_now(ticket, now.saturating_add(longest));
            return Ok(self.round(kind, ticket, now));
        }
        let woken = Arc::new(Notify::new());
        queue.enter(ticket, Arc::clone(&woken));
        Err(Waiter {
            rounds: self,
            kind,
            ticket,
            woken,
        })
    }

    const fn round(&self, kind: Kind, ticket: Ticket, started_at: Instant) -> Round<'_> {
        Round {
            rounds: self,
            kind,
            ticket,
            started_at,
            result: None,
            leaves: None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rounds").finish_non_exhaustive()
    }
}

impl Round<'_> {
    /// Ends the round: `has_answered` if a quorum of nodes answered within `node_timeout`.
    pub(crate) fn end(mut self, has_answered: bool, node_timeout: Duration) {
        self.result = Some(RoundResult {
            has_answered,
            node_timeout,
        });
    }

    /// Makes the round count even after it is dropped, until its commands `have_left` our queues.
    pub(crate) fn leave_behind(&mut self, have_left: impl Fn() -> bool + Send + 'static) {
        self.leaves = Some(Box::new(have_left));
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let now = self.rounds.clock.now();
        let mut state = self.rounds.lock();
        if let Some(result) = &self.result {
            state.adapt(self.started_at, now, result);
        }
        match self.leaves.take() {
            Some(have_left) => state.dropped.push_back((self.kind, self.ticket, have_left)),
            None => state.queue(self.kind).end(self.ticket),
        }
        state.pass_on(now);
    }
}

impl<'a> Waiter<'a> {
    /// Waits for admission. Returns `None` if there is none by `give_up_at`.
    async fn wait(&self, give_up_at: Instant, longest: Duration) -> Option<Round<'a>> {
        loop {
            let now = self.rounds.clock.now();
            let check_at = {
                let mut state = self.rounds.lock();
                state.pass_on(now);
                let slots = state.slots(self.kind);
                let until = now.saturating_add(longest);
                let queue = state.queue(self.kind);
                if queue.begin(self.ticket, &self.woken, slots, until) {
                    return Some(self.rounds.round(self.kind, self.ticket, now));
                }
                state.check_again_at(now, self.rounds.clock.resolution())
            };
            if now >= give_up_at {
                return None;
            }
            tokio::select! {
                biased;
                () = self.woken.notified() => {}
                () = self.rounds.clock.sleep_until(check_at.min(give_up_at)) => {}
            }
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut state = self.rounds.lock();
        if state.queue(self.kind).leave(self.ticket) {
            state.pass_on(self.rounds.clock.now());
        }
    }
}

impl State {
    /// Removes the rounds that no longer count, and wakes waiting tasks for the free slots.
    fn pass_on(&mut self, now: Instant) {
        // In the order of the drops, which is about the order in which their commands leave the queues.
        while let Some((kind, ticket, have_left)) = self.dropped.front() {
            let (kind, ticket, have_left) = (*kind, *ticket, have_left());
            if !have_left && self.queue(kind).counts(ticket) {
                break;
            }
            self.queue(kind).end(ticket);
            self.dropped.pop_front();
        }
        self.extensions.wake(now, self.slots(Kind::Extension));
        self.acquires.wake(now, self.slots(Kind::Acquire));
    }

    /// Adapts the limit to a round that has ended.
    fn adapt(&mut self, started_at: Instant, now: Instant, result: &RoundResult) {
        let node_timeout = result.node_timeout;
        self.nodes_answer = result.has_answered;
        if result.has_answered {
            let is_full = self.is_full();
            self.limit.answered(started_at, now, node_timeout, is_full);
        } else {
            self.limit.unanswered(started_at, now, node_timeout);
        }
    }

    /// The largest number of rounds of this kind in flight.
    fn slots(&self, kind: Kind) -> usize {
        let slots = self.limit.slots();
        match kind {
            Kind::Extension => slots,
            Kind::Acquire => slots.saturating_sub(self.extensions.in_flight()),
        }
    }

    /// Whether no further acquire can begin.
    fn is_full(&self) -> bool {
        self.acquires.waiting() > 0 || self.acquires.in_flight() >= self.slots(Kind::Acquire)
    }

    /// When a waiting task checks the rounds in flight again. No task relies on another one being polled: one of them
    /// checks as soon as there may be a free slot. If it is not polled, the next task that checks takes over.
    fn check_again_at(&mut self, now: Instant, tick: Duration) -> Instant {
        let overdue = self.extensions.next_overdue();
        let mut due = overdue.min(self.acquires.next_overdue());
        if !self.dropped.is_empty() {
            due = now;
        }
        let due = due.max(now.saturating_add(tick));
        if now >= self.next_check || due < self.next_check {
            self.next_check = due;
            return due;
        }
        let others = self.extensions.waiting() + self.acquires.waiting();
        let others = u32::try_from(others).unwrap_or(u32::MAX);
        due.max(now.saturating_add(BETWEEN_CHECKS.saturating_mul(others)))
    }

    const fn queue(&mut self, kind: Kind) -> &mut RoundQueue {
        match kind {
            Kind::Extension => &mut self.extensions,
            Kind::Acquire => &mut self.acquires,
        }
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            limit: Limit::new(),
            extensions: RoundQueue::new(),
            acquires: RoundQueue::new(),
            dropped: VecDeque::new(),
            last_number: 0,
            next_check: Instant::from_micros(0),
            nodes_answer: true,
        }
    }
}

#[cfg(test)]
#[cfg(redlock_loom)]
mod interleavings;

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Poll;

    use super::*;
    use crate::clock::SystemClock;

    const LONGEST: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    fn after(time: Duration) -> Instant {
        SystemClock.now().saturating_add(time)
    }

    /// Fills all slots. One more round is requested, and times out at once.
    async fn crowd(rounds: &Rounds, longest: Duration) -> Vec<Round<'_>> {
        let mut admitted = Vec::new();
        while let Some(round) = rounds.admit_acquire(Instant::from_micros(0), longest).await {
            admitted.push(round);
        }
        assert_eq!(waiting(rounds), 0, "a task that times out leaves the queue");
        admitted
    }

    fn waiting(rounds: &Rounds) -> usize {
        let state = rounds.lock();
        state.extensions.waiting() + state.acquires.waiting()
    }

    fn in_flight(rounds: &Rounds) -> usize {
        let state = rounds.lock();
        state.extensions.in_flight() + state.acquires.in_flight()
    }

    #[tokio::test]
    async fn waiting_tasks_are_admitted_in_order_when_rounds_end() {
        let rounds = Rounds::default();
        let mut admitted = crowd(&rounds, LONG).await;
        let [mut first, mut second] =
            [(); 2].map(|()| Box::pin(rounds.admit_acquire(after(LONG), LONG)));
        for waiting in [&mut first, &mut second] {
            assert!(poll_once(waiting.as_mut()).await.is_none());
        }
        admitted.pop();
        assert!(poll_once(second.as_mut()).await.is_none());
        let round = poll_once(first.as_mut()).await.unwrap();
        drop(round);
        assert!(poll_once(second.as_mut()).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn extensions_do_not_wait_for_acquires_and_the_lease_that_ends_soonest_goes_first() {
        let rounds = Rounds::default();
        let acquires = crowd(&rounds, LONG).await;
        let mut acquire = pin!(rounds.admit_acquire(after(LONG), LONG));
        assert!(poll_once(acquire.as_mut()).await.is_none());
        let mut extensions = Vec::new();
        for _ in 0..acquires.len() {
            let round = pin!(rounds.admit_extension(after(LONG), LONG));
            extensions.push(poll_once(round).await.flatten().unwrap());
        }
        let [mut later, mut sooner] = [LONG, LONG / 2]
            .map(|valid_for| Box::pin(rounds.admit_extension(after(valid_for), LONG)));
        for waiting in [&mut later, &mut sooner] {
            assert!(poll_once(waiting.as_mut()).await.is_none());
        }
        extensions.pop();
        assert!(poll_once(later.as_mut()).await.is_none());
        extensions.push(poll_once(sooner.as_mut()).await.flatten().unwrap());
        // Acquires get the slots that extensions leave free.
        drop(acquires);
        assert!(poll_once(acquire.as_mut()).await.is_none());
        extensions.pop();
        extensions.push(poll_once(later.as_mut()).await.flatten().unwrap());
        assert!(poll_once(acquire.as_mut()).await.is_none());
        let over = SystemClock.now();
        assert!(rounds.admit_extension(over, LONG).await.is_none());
        extensions.pop();
        assert!(poll_once(acquire.as_mut()).await.unwrap().is_some());
        assert_eq!(
            waiting(&rounds),
            0,
            "a task whose lease is over leaves the queue"
        );
    }

    #[tokio::test]
    async fn rounds_of_tasks_that_are_not_polled_keep_a_slot_for_no_longer_than_they_may_take() {
        let rounds = Rounds::default();
        let unpolled = crowd(&rounds, LONGEST).await;
        let start = SystemClock.now();
        assert!(rounds.admit_acquire(after(LONG), LONGEST).await.is_some());
        assert!(SystemClock.now() >= start.saturating_add(LONGEST / 2));
        drop(unpolled);
    }

    #[tokio::test]
    async fn waiting_tasks_that_are_not_polled_do_not_delay_others_for_the_time_of_a_round() {
        const UNPOLLED: usize = 2_000;

        let rounds = Rounds::default();
        let admitted = crowd(&rounds, LONG).await;
        let mut unpolled = Vec::new();
        for _ in 0..UNPOLLED {
            let mut waiter = Box::pin(rounds.admit_acquire(after(LONG), LONG));
            assert!(poll_once(waiter.as_mut()).await.is_none());
            unpolled.push(waiter);
        }
        let slots = admitted.len();
        drop(admitted);
        let start = SystemClock.now();
        let round = rounds.admit_acquire(after(LONG), LONG).await.unwrap();
        let took = SystemClock.now().saturating_duration_since(start);
        assert!(took < LONG / 100, "{took:?}");
        drop(round);
        // They have kept their positions: the first of them begin at once, as many as there are slots.
        let mut begun = Vec::new();
        for waiter in &mut unpolled {
            begun.extend(poll_once(waiter.as_mut()).await.flatten());
        }
        assert_eq!(begun.len(), slots);
        assert_eq!(in_flight(&rounds), slots);
    }

    #[tokio::test]
    async fn a_task_that_is_dropped_while_waiting_keeps_no_slot() {
        let rounds = Rounds::default();
        let admitted = crowd(&rounds, LONG).await;
        {
            let mut waiting = pin!(rounds.admit_acquire(after(LONG), LONG));
            assert!(poll_once(waiting.as_mut()).await.is_none());
            drop(admitted);
        }
        assert_eq!(in_flight(&rounds) + waiting(&rounds), 0);
    }

    #[tokio::test]
    async fn a_long_queue_is_left_from_its_end_as_fast_as_from_its_front() {
        const TASKS: usize = 30_000;

        let rounds = Rounds::default();
        let _admitted = crowd(&rounds, LONG).await;
        let [from_the_front, from_the_end] = [false, true].map(|is_reversed| {
            let entered = (0..TASKS).map(|_| rounds.enter(Kind::Acquire, Instant::MAX, LONG));
            let mut waiters: VecDeque<_> = entered.filter_map(Result::err).collect();
            assert_eq!(waiters.len(), TASKS);
            let started_at = std::time::Instant::now();
            while let Some(waiter) = match is_reversed {
                true => waiters.pop_back(),
                false => waiters.pop_front(),
            } {
                drop(waiter);
            }
            started_at.elapsed()
        });
        assert!(
            from_the_end < from_the_front * 30,
            "{from_the_end:?}, {from_the_front:?}"
        );
    }

    #[tokio::test]
    async fn a_dropped_round_counts_until_its_commands_have_left_or_its_time_is_over() {
        let rounds = Rounds::default();
        let mut admitted = crowd(&rounds, LONG).await;
        let have_left = Arc::new(AtomicBool::new(false));
        let mut leaving = admitted.pop().unwrap();
        let seen = Arc::clone(&have_left);
        leaving.leave_behind(move || seen.load(Ordering::Relaxed));
        drop(leaving);
        let mut next = pin!(rounds.admit_acquire(after(LONG), LONGEST));
        assert!(poll_once(next.as_mut()).await.is_none());
        have_left.store(true, Ordering::Relaxed);
        let mut leaving = next.await.unwrap();
        leaving.leave_behind(|| false);
        drop(leaving);
        let start = SystemClock.now();
        assert!(rounds.admit_acquire(after(LONG), LONG).await.is_some());
        assert!(SystemClock.now() >= start.saturating_add(LONGEST / 2));
        assert!(rounds.lock().dropped.is_empty());
    }

    /// Polls once. Returns the output if it is ready.
    async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|context| {
            Poll::Ready(match future.as_mut().poll(context) {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            })
        })
        .await
    }
}
