//! How many acquires and extensions of this process ask the nodes at once: as many as the nodes answer in time.
//!
//! If all of a burst asked at once, their commands would wait in our own queues for longer than a round may take, and
//! none would be granted. So they are admitted one after the other: extensions first, the lease that ends soonest ahead;
//! then acquires, first come, first served. The clock of a round begins when it is admitted.
//!
//! Extensions count only among themselves, so that no acquire keeps a lease from being extended.

mod limit;
mod line;

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redlock_core::{Clock, Instant};
use tokio::sync::Notify;

use crate::clock::SystemClock;
use limit::Limit;
use line::{Line, Ticket};

/// The rounds of a lock and its clones. A round is an attempt here: up to three rounds of a fenced lock, and one that
/// cleans up; or an extension, up to two.
#[derive(Clone, Default)]
pub(crate) struct Rounds {
    state: Arc<Mutex<State>>,
}

struct State {
    limit: Limit,
    extensions: Line,
    acquires: Line,
    /// Acquires whose future was dropped: each counts until its commands have left our queues.
    dropped: VecDeque<(Ticket, HaveLeft)>,
    last_number: u64,
    /// When one of the tasks in line looks next.
    next_look: Instant,
    nodes_answer: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Extension,
    Acquire,
}

/// Whether the commands of a round have left our queues.
type HaveLeft = Box<dyn Fn() -> bool + Send>;

/// How many looks at the rounds in flight all tasks in line together take a second, beside that one that looks as soon as
/// there may be room: one in so long. In a long line each looks seldom, or they would leave the nodes' tasks no time on a
/// busy machine.
const BETWEEN_LOOKS: Duration = Duration::from_micros(200);

/// An admitted round. Dropping it makes room for the next one, and says nothing about the nodes.
pub(crate) struct Round<'a> {
    rounds: &'a Rounds,
    kind: Kind,
    ticket: Ticket,
    started_at: Instant,
    leaves: Option<HaveLeft>,
}

/// A task that wants a round. Dropping it leaves the line.
struct Place<'a> {
    rounds: &'a Rounds,
    kind: Kind,
    ticket: Ticket,
    called: Arc<Notify>,
}

impl Rounds {
    /// Waits until an acquire may begin; `None` if it may not by `give_up_at`. It counts as in flight until it is
    /// dropped, for `longest` at most. Dropping the future leaves the line.
    pub(crate) async fn admit_acquire(
        &self,
        give_up_at: Instant,
        longest: Duration,
    ) -> Option<Round<'_>> {
        let place = self.enter(Kind::Acquire, Instant::MAX);
        place.wait(give_up_at, longest).await
    }

    /// Waits until an extension of a lease may begin that is valid until `valid_until`, and no longer; otherwise as
    /// [`admit_acquire`](Self::admit_acquire).
    pub(crate) async fn admit_extension(
        &self,
        valid_until: Instant,
        longest: Duration,
    ) -> Option<Round<'_>> {
        let place = self.enter(Kind::Extension, valid_until);
        place.wait(valid_until, longest).await
    }

    /// Whether a quorum of nodes has answered the round that ended last.
    pub(crate) fn nodes_answer(&self) -> bool {
        self.lock().nodes_answer
    }

    fn enter(&self, kind: Kind, due: Instant) -> Place<'_> {
        let called = Arc::new(Notify::new());
        let mut state = self.lock();
        state.last_number += 1;
        let number = state.last_number;
        let ticket = Ticket { due, number };
        state.line(kind).enter(ticket, Arc::clone(&called));
        Place {
            rounds: self,
            kind,
            ticket,
            called,
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
    /// The round is over: whether a quorum of nodes `has_answered`, each of which it waited for up to `node_timeout`.
    pub(crate) fn end(self, has_answered: bool, node_timeout: Duration) {
        let now = SystemClock.now();
        let mut state = self.rounds.lock();
        state.nodes_answer = has_answered;
        let is_full = state.is_full();
        if has_answered {
            let limit = &mut state.limit;
            limit.answered(self.started_at, now, node_timeout, is_full);
        } else {
            state.limit.unanswered(self.started_at, now, node_timeout);
        }
    }

    /// The future of the round is being dropped: it counts until its commands `have_left` our queues.
    pub(crate) fn leave_behind(&mut self, have_left: impl Fn() -> bool + Send + 'static) {
        self.leaves = Some(Box::new(have_left));
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let mut state = self.rounds.lock();
        match self.leaves.take() {
            Some(have_left) => state.dropped.push_back((self.ticket, have_left)),
            None => state.line(self.kind).end(self.ticket),
        }
        state.pass_on(SystemClock.now());
    }
}

impl<'a> Place<'a> {
    /// `None` if it is not admitted by `give_up_at`.
    async fn wait(&self, give_up_at: Instant, longest: Duration) -> Option<Round<'a>> {
        loop {
            let now = SystemClock.now();
            let look_at = {
                let mut state = self.rounds.lock();
                state.pass_on(now);
                let places = state.places(self.kind);
                let until = now.saturating_add(longest);
                let line = state.line(self.kind);
                if line.begin(self.ticket, &self.called, places, until) {
                    return Some(Round {
                        rounds: self.rounds,
                        kind: self.kind,
                        ticket: self.ticket,
                        started_at: now,
                        leaves: None,
                    });
                }
                state.look_again_at(now)
            };
            if now >= give_up_at {
                return None;
            }
            tokio::select! {
                biased;
                () = self.called.notified() => {}
                () = SystemClock.sleep_until(look_at.min(give_up_at)) => {}
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.rounds.lock();
        if state.line(self.kind).leave(self.ticket) {
            state.pass_on(SystemClock.now());
        }
    }
}

impl State {
    /// Forgets the rounds that do not count any more, and calls those who wait, as far as there is room.
    fn pass_on(&mut self, now: Instant) {
        // In the order in which they were dropped, which is about that in which their commands leave.
        while let Some((ticket, have_left)) = self.dropped.front()
            && (have_left() || !self.acquires.counts(*ticket))
        {
            self.acquires.end(*ticket);
            self.dropped.pop_front();
        }
        self.extensions.call(now, self.places(Kind::Extension));
        self.acquires.call(now, self.places(Kind::Acquire));
    }

    /// How many rounds of this kind may be in flight.
    fn places(&self, kind: Kind) -> usize {
        let places = self.limit.places();
        match kind {
            Kind::Extension => places,
            Kind::Acquire => places.saturating_sub(self.extensions.in_flight()),
        }
    }

    /// Whether no other acquire could begin.
    fn is_full(&self) -> bool {
        self.acquires.waiting() > 0 || self.acquires.in_flight() >= self.places(Kind::Acquire)
    }

    /// When a task in line looks again at the rounds in flight. It relies on no other one being polled: one of them
    /// looks as soon as there may be room, and if it has not looked by then, the next one that does takes over.
    fn look_again_at(&mut self, now: Instant) -> Instant {
        let overdue = self.extensions.next_overdue();
        let mut due = overdue.min(self.acquires.next_overdue());
        if !self.dropped.is_empty() {
            due = now;
        }
        let due = due.max(now.saturating_add(SystemClock.resolution()));
        if now >= self.next_look || due < self.next_look {
            self.next_look = due;
            return due;
        }
        let others = self.extensions.waiting() + self.acquires.waiting();
        let others = u32::try_from(others).unwrap_or(u32::MAX);
        due.max(now.saturating_add(BETWEEN_LOOKS.saturating_mul(others)))
    }

    const fn line(&mut self, kind: Kind) -> &mut Line {
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
            extensions: Line::new(),
            acquires: Line::new(),
            dropped: VecDeque::new(),
            last_number: 0,
            next_look: Instant::from_micros(0),
            nodes_answer: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Poll;

    use super::*;

    const LONGEST: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    fn after(time: Duration) -> Instant {
        SystemClock.now().saturating_add(time)
    }

    /// As many as are admitted at once, and one more that waits.
    async fn crowd(rounds: &Rounds, longest: Duration) -> Vec<Round<'_>> {
        let mut admitted = Vec::new();
        while let Some(round) = rounds.admit_acquire(Instant::from_micros(0), longest).await {
            admitted.push(round);
        }
        assert_eq!(waiting(rounds), 0, "who gives up leaves the line");
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
    async fn who_waits_is_admitted_when_a_round_ends_first_come_first_served() {
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
    async fn extensions_wait_for_no_acquire_and_the_lease_that_ends_soonest_goes_first() {
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
        // Acquires have what extensions leave.
        drop(acquires);
        assert!(poll_once(acquire.as_mut()).await.is_none());
        extensions.pop();
        extensions.push(poll_once(later.as_mut()).await.flatten().unwrap());
        assert!(poll_once(acquire.as_mut()).await.is_none());
        let over = SystemClock.now();
        assert!(rounds.admit_extension(over, LONG).await.is_none());
        extensions.pop();
        assert!(poll_once(acquire.as_mut()).await.unwrap().is_some());
        assert_eq!(waiting(&rounds), 0, "whose lease is over leaves the line");
    }

    #[tokio::test]
    async fn rounds_of_tasks_that_are_not_polled_keep_nobody_for_longer_than_they_may_take() {
        let rounds = Rounds::default();
        let stuck = crowd(&rounds, LONGEST).await;
        let start = SystemClock.now();
        assert!(rounds.admit_acquire(after(LONG), LONGEST).await.is_some());
        assert!(SystemClock.now() >= start.saturating_add(LONGEST / 2));
        drop(stuck);
    }

    #[tokio::test]
    async fn tasks_in_line_that_are_not_polled_keep_nobody_for_the_time_of_a_round() {
        const STUCK: usize = 2_000;

        let rounds = Rounds::default();
        let admitted = crowd(&rounds, LONG).await;
        let mut stuck = Vec::new();
        for _ in 0..STUCK {
            let mut place = Box::pin(rounds.admit_acquire(after(LONG), LONG));
            assert!(poll_once(place.as_mut()).await.is_none());
            stuck.push(place);
        }
        let places = admitted.len();
        drop(admitted);
        let start = SystemClock.now();
        let round = rounds.admit_acquire(after(LONG), LONG).await.unwrap();
        let took = SystemClock.now().saturating_duration_since(start);
        assert!(took < LONG / 100, "{took:?}");
        drop(round);
        // They have kept their places in line: the first of them begin at once, and no more than may.
        let mut begun = Vec::new();
        for place in &mut stuck {
            begun.extend(poll_once(place.as_mut()).await.flatten());
        }
        assert_eq!(begun.len(), places);
        assert_eq!(in_flight(&rounds), places);
    }

    #[tokio::test]
    async fn who_is_dropped_while_waiting_keeps_no_place() {
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
    async fn a_long_line_is_left_from_its_end_as_fast_as_from_its_front() {
        const TASKS: usize = 30_000;

        let rounds = Rounds::default();
        let _admitted = crowd(&rounds, LONG).await;
        let [from_the_front, from_the_end] = [false, true].map(|is_reversed| {
            let places = (0..TASKS).map(|_| rounds.enter(Kind::Acquire, Instant::MAX));
            let mut places: VecDeque<_> = places.collect();
            let started_at = std::time::Instant::now();
            while let Some(place) = match is_reversed {
                true => places.pop_back(),
                false => places.pop_front(),
            } {
                drop(place);
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

    /// What it has come to, if it is ready. Its value is lost with it.
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
