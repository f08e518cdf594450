//! The rounds of one kind, in flight and waiting.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redlock_core::Instant;
use tokio::sync::Notify;

/// The place of a round among all of its kind: those that are due sooner go first, then those that came sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    pub(super) due: Instant,
    pub(super) number: u64,
}

/// A task that waits stands in line until it is called. It begins its round when it is polled.
#[derive(Debug)]
pub(super) struct Line {
    waiting: BTreeMap<Ticket, Arc<Notify>>,
    /// Those that have been called, and have not noticed yet.
    called: Counted,
    begun: Counted,
}

/// Rounds that count, each until an instant: the task may not be polled until its future is dropped, and must not keep
/// the others waiting for so long.
#[derive(Debug)]
struct Counted {
    until: BTreeMap<Ticket, Instant>,
    /// None of them stops to count before.
    next_overdue: Instant,
}

/// A task that is polled notices within this time that it has been called. After that others are called as well.
const NOTICE: Duration = Duration::from_millis(5);

impl Line {
    pub(super) const fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            called: Counted::new(),
            begun: Counted::new(),
        }
    }

    /// Takes a place in the line.
    pub(super) fn enter(&mut self, ticket: Ticket, called: Arc<Notify>) {
        self.waiting.insert(ticket, called);
    }

    /// Calls those who wait, as far as there is room among `places`.
    pub(super) fn call(&mut self, now: Instant, places: usize) {
        self.called.forget_overdue(now);
        self.begun.forget_overdue(now);
        while self.in_flight() < places
            && let Some((ticket, called)) = self.waiting.pop_first()
        {
            self.called.insert(ticket, now.saturating_add(NOTICE));
            called.notify_one();
        }
    }

    /// Begins a round that counts until `until`, if its task has been called. If there is no room any more, since it did
    /// not notice for long, it waits again, at its old place.
    pub(super) fn begin(
        &mut self,
        ticket: Ticket,
        called: &Arc<Notify>,
        places: usize,
        until: Instant,
    ) -> bool {
        if self.waiting.contains_key(&ticket) {
            return false;
        }
        self.called.remove(ticket);
        let has_room = self.begun.until.len() < places;
        if has_room {
            self.begun.insert(ticket, until);
        } else {
            self.enter(ticket, Arc::clone(called));
        }
        has_room
    }

    /// The round is over.
    pub(super) fn end(&mut self, ticket: Ticket) {
        self.begun.remove(ticket);
    }

    /// Takes a task out that has not begun its round, and says whether it had been called.
    pub(super) fn leave(&mut self, ticket: Ticket) -> bool {
        self.waiting.remove(&ticket);
        self.called.remove(ticket)
    }

    /// Whether its round has begun, and counts.
    pub(super) fn counts(&self, ticket: Ticket) -> bool {
        self.begun.until.contains_key(&ticket)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.called.until.len() + self.begun.until.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// None of those in flight stops to count before.
    pub(super) fn next_overdue(&self) -> Instant {
        self.called.next_overdue.min(self.begun.next_overdue)
    }
}

impl Counted {
    const fn new() -> Self {
        Self {
            until: BTreeMap::new(),
            next_overdue: Instant::MAX,
        }
    }

    fn insert(&mut self, ticket: Ticket, until: Instant) {
        self.until.insert(ticket, until);
        self.next_overdue = self.next_overdue.min(until);
    }

    fn remove(&mut self, ticket: Ticket) -> bool {
        self.until.remove(&ticket).is_some()
    }

    fn forget_overdue(&mut self, now: Instant) {
        if now >= self.next_overdue {
            self.until.retain(|_, until| *until > now);
            let earliest = self.until.values().min();
            self.next_overdue = earliest.copied().unwrap_or(Instant::MAX);
        }
    }
}
