//! How many acquires of this process ask the nodes at once: as many as the nodes answer in time.
//!
//! If all of a burst asked at once, their commands would wait in our own queues for longer than a round may take, and
//! none would be granted. So they are admitted one after the other, first come, first served. The clock of a round
//! begins when it is admitted.

mod limit;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redlock_core::{Clock, Instant};
use tokio::sync::Notify;

use crate::clock::SystemClock;
use limit::Limit;

/// The rounds of a lock and its clones. A round is an attempt here: up to three rounds of a fenced lock, and one that
/// cleans up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rounds {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    limit: Limit,
    /// By their number: when each of those in flight does not count any more. The task may not be polled until its
    /// future is dropped, and must not keep the others waiting for so long.
    in_flight: BTreeMap<u64, Instant>,
    /// None of those in flight stops to count before.
    next_overdue: Instant,
    waiting: VecDeque<Arc<Waiter>>,
    last_number: u64,
    nodes_answer: bool,
}

/// A task in the queue.
#[derive(Debug)]
struct Waiter {
    /// How long its round counts.
    longest: Duration,
    /// The number of its round, once that is admitted; else [`WAITS`], or [`GONE`] when the round was begun.
    number: AtomicU64,
    admitted: Notify,
}

const WAITS: u64 = 0;
const GONE: u64 = u64::MAX;

/// How many looks at the rounds in flight all tasks in the queue together take a second, at most: twenty microseconds for
/// each. In a long queue each looks seldom, or they would leave the nodes' tasks no time.
const BETWEEN_LOOKS: Duration = Duration::from_micros(20);

/// An admitted round. Dropping it makes room for the next one, and says nothing about the nodes.
#[derive(Debug)]
pub(crate) struct Round<'a> {
    rounds: &'a Rounds,
    number: u64,
    started_at: Instant,
}

/// A place in the queue. Dropping it leaves the queue.
struct Place<'a> {
    rounds: &'a Rounds,
    waiter: Arc<Waiter>,
}

impl Rounds {
    /// Waits until another round may begin; `None` if it may not by `give_up_at`. It counts as in flight until it is
    /// dropped, for `longest` at most. Dropping the future leaves the queue.
    pub(crate) async fn admit(&self, give_up_at: Instant, longest: Duration) -> Option<Round<'_>> {
        loop {
            let place = match self.enter(longest) {
                Ok(number) => return Some(self.begin(number)),
                Err(waiter) => Place {
                    rounds: self,
                    waiter,
                },
            };
            place.wait(give_up_at).await?;
            let number = place.waiter.number.swap(GONE, Ordering::Relaxed);
            // Unless it was admitted so long ago that it does not count any more: then from the end of the queue.
            if self.lock().in_flight.contains_key(&number) {
                return Some(self.begin(number));
            }
        }
    }

    /// Whether a quorum of nodes has answered the round that ended last.
    pub(crate) fn nodes_answer(&self) -> bool {
        self.lock().nodes_answer
    }

    /// The number of a round that may begin now, or else a place at the end of the queue.
    fn enter(&self, longest: Duration) -> Result<u64, Arc<Waiter>> {
        let now = SystemClock.now();
        let mut state = self.lock();
        state.pass_on(now);
        if state.has_room() {
            return Ok(state.begin(now, longest));
        }
        let waiter = Arc::new(Waiter {
            longest,
            number: AtomicU64::new(WAITS),
            admitted: Notify::new(),
        });
        state.waiting.push_back(Arc::clone(&waiter));
        Err(waiter)
    }

    fn begin(&self, number: u64) -> Round<'_> {
        Round {
            rounds: self,
            number,
            started_at: SystemClock.now(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Round<'_> {
    /// The round is over: whether a quorum of nodes `has_answered`, each of which it waited for up to `node_timeout`.
    pub(crate) fn end(self, has_answered: bool, node_timeout: Duration) {
        let now = SystemClock.now();
        let mut state = self.rounds.lock();
        state.nodes_answer = has_answered;
        let is_full = !state.has_room();
        if has_answered {
            let limit = &mut state.limit;
            limit.answered(self.started_at, now, node_timeout, is_full);
        } else {
            state.limit.unanswered(self.started_at, now, node_timeout);
        }
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let mut state = self.rounds.lock();
        state.in_flight.remove(&self.number);
        state.pass_on(SystemClock.now());
    }
}

impl Place<'_> {
    /// `None` if it is not admitted by `give_up_at`.
    async fn wait(&self, give_up_at: Instant) -> Option<()> {
        loop {
            if self.waiter.number.load(Ordering::Relaxed) != WAITS {
                return Some(());
            }
            let now = SystemClock.now();
            if now >= give_up_at {
                return None;
            }
            // All tasks in the queue watch the rounds in flight: none of them can rely on another one being polled.
            let look_at = {
                let mut state = self.rounds.lock();
                state.pass_on(now);
                let others = u32::try_from(state.waiting.len()).unwrap_or(u32::MAX);
                let pause = BETWEEN_LOOKS.saturating_mul(others);
                let soonest = now.saturating_add(pause.max(SystemClock.resolution()));
                state.next_overdue.max(soonest)
            };
            tokio::select! {
                biased;
                () = self.waiter.admitted.notified() => {}
                () = SystemClock.sleep_until(look_at.min(give_up_at)) => {}
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.waiter.number.load(Ordering::Relaxed) == GONE {
            return;
        }
        let mut state = self.rounds.lock();
        let number = self.waiter.number.load(Ordering::Relaxed);
        if number != WAITS {
            state.in_flight.remove(&number);
            state.pass_on(SystemClock.now());
            return;
        }
        let mut waiting = state.waiting.iter();
        if let Some(place) = waiting.position(|waiter| Arc::ptr_eq(waiter, &self.waiter)) {
            state.waiting.remove(place);
        }
    }
}

impl State {
    /// Forgets the rounds that do not count any more, and admits those who wait, as far as there is room.
    fn pass_on(&mut self, now: Instant) {
        if now >= self.next_overdue {
            self.in_flight.retain(|_, until| *until > now);
            let earliest = self.in_flight.values().min();
            self.next_overdue = earliest.copied().unwrap_or(Instant::MAX);
        }
        while self.in_flight.len() < self.limit.places()
            && let Some(waiter) = self.waiting.pop_front()
        {
            let number = self.begin(now, waiter.longest);
            waiter.number.store(number, Ordering::Relaxed);
            waiter.admitted.notify_one();
        }
    }

    /// Whether a round may begin, and nobody waits.
    fn has_room(&self) -> bool {
        self.waiting.is_empty() && self.in_flight.len() < self.limit.places()
    }

    fn begin(&mut self, now: Instant, longest: Duration) -> u64 {
        self.last_number += 1;
        let until = now.saturating_add(longest);
        self.in_flight.insert(self.last_number, until);
        self.next_overdue = self.next_overdue.min(until);
        self.last_number
    }
}

impl Default for State {
    fn default() -> Self {
        Self {
            limit: Limit::new(),
            in_flight: BTreeMap::new(),
            next_overdue: Instant::MAX,
            waiting: VecDeque::new(),
            last_number: 0,
            nodes_answer: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    const LONGEST: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    fn after(time: Duration) -> Instant {
        SystemClock.now().saturating_add(time)
    }

    /// As many as are admitted at once, and one more that waits.
    async fn crowd(rounds: &Rounds, longest: Duration) -> Vec<Round<'_>> {
        let mut admitted = Vec::new();
        while let Some(round) = rounds.admit(Instant::from_micros(0), longest).await {
            admitted.push(round);
        }
        assert!(
            rounds.lock().waiting.is_empty(),
            "who gives up leaves the queue"
        );
        admitted
    }

    #[tokio::test]
    async fn who_waits_is_admitted_when_a_round_ends_first_come_first_served() {
        let rounds = Rounds::default();
        let mut admitted = crowd(&rounds, LONG).await;
        let [mut first, mut second] = [(); 2].map(|()| Box::pin(rounds.admit(after(LONG), LONG)));
        for waiting in [&mut first, &mut second] {
            assert!(futures_poll(waiting.as_mut()).await.is_none());
        }
        admitted.pop();
        assert!(futures_poll(second.as_mut()).await.is_none());
        let round = futures_poll(first.as_mut()).await.unwrap();
        drop(round);
        assert!(futures_poll(second.as_mut()).await.unwrap().is_some());
    }

    #[tokio::test]
    async fn rounds_of_tasks_that_are_not_polled_keep_nobody_for_longer_than_they_may_take() {
        let rounds = Rounds::default();
        let stuck = crowd(&rounds, LONGEST).await;
        let start = SystemClock.now();
        assert!(rounds.admit(after(LONG), LONGEST).await.is_some());
        assert!(SystemClock.now() >= start.saturating_add(LONGEST / 2));
        // Nor those that were admitted while they waited, and have not noticed.
        drop(stuck);
        let stuck = crowd(&rounds, LONG).await;
        let mut sleepers = Vec::new();
        for _ in 0..stuck.len() {
            let mut sleeper = Box::pin(rounds.admit(after(LONG), LONGEST));
            assert!(futures_poll(sleeper.as_mut()).await.is_none());
            sleepers.push(sleeper);
        }
        drop(stuck);
        assert!(rounds.admit(after(LONG), LONGEST).await.is_some());
        // They begin again.
        for sleeper in sleepers {
            assert!(sleeper.await.is_some());
        }
    }

    #[tokio::test]
    async fn who_is_dropped_while_waiting_keeps_no_place() {
        let rounds = Rounds::default();
        let admitted = crowd(&rounds, LONG).await;
        {
            let mut waiting = pin!(rounds.admit(after(LONG), LONG));
            assert!(futures_poll(waiting.as_mut()).await.is_none());
            drop(admitted);
        }
        assert!(rounds.lock().in_flight.is_empty() && rounds.lock().waiting.is_empty());
    }

    async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(match future.as_mut().poll(context) {
                std::task::Poll::Ready(output) => Some(output),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
