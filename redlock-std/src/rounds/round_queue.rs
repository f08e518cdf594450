//! The rounds of one kind, waiting and in flight.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redlock_core::Instant;

use crate::sync::Notify;

/// The order of rounds of one kind: by due time, then by arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Ticket {
    pub(super) due: Instant,
    pub(super) number: u64,
}

/// The queue of one kind of rounds. A waiting task is woken when a slot is free, and begins its round when it is polled.
#[derive(Debug)]
pub(super) struct RoundQueue {
    waiting: BTreeMap<Ticket, Arc<Notify>>,
    /// Rounds whose tasks have been woken, but not polled yet.
    woken: Counted,
    begun: Counted,
}

/// Rounds in flight. Each counts until its instant at most, because a task that is not polled must not delay the others.
#[derive(Debug)]
struct Counted {
    until: BTreeMap<Ticket, Instant>,
    /// No round stops counting before this instant.
    next_overdue: Instant,
}

/// A woken task is normally polled within this time. After that, another task is woken as well.
const NOTICE: Duration = Duration::from_millis(5);

impl RoundQueue {
    pub(super) const fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            woken: Counted::new(),
            begun: Counted::new(),
        }
    }

    /// Adds a waiting task.
    pub(super) fn enter(&mut self, ticket: Ticket, woken: Arc<Notify>) {
        self.waiting.insert(ticket, woken);
    }

    /// Wakes waiting tasks while less than `slots` rounds are in flight.
    pub(super) fn wake(&mut self, now: Instant, slots: usize) {
        self.woken.forget_overdue(now);
        self.begun.forget_overdue(now);
        while self.in_flight() < slots
            && let Some((ticket, woken)) = self.waiting.pop_first()
        {
            self.woken.insert(ticket, now.saturating_add(NOTICE));
            woken.notify_one();
        }
    }

    /// Begins a round that counts until `until`, for a task that has not waited.
    pub(super) fn begin_now(&mut self, ticket: Ticket, until: Instant) {
        self.begun.insert(ticket, until);
    }

    /// Begins a round that counts until `until`, and returns whether it did. If its task has not been woken, it does not
    /// begin. If its task was polled so late that there is no free slot, it waits again, at its old position.
    pub(super) fn begin(
        &mut self,
        ticket: Ticket,
        woken: &Arc<Notify>,
        slots: usize,
        until: Instant,
    ) -> bool {
        if self.waiting.contains_key(&ticket) {
            return false;
        }
        self.woken.remove(ticket);
        let has_room = self.begun.until.len() < slots;
        if has_room {
            self.begun.insert(ticket, until);
        } else {
            self.enter(ticket, Arc::clone(woken));
        }
        has_room
    }

    /// Ends the round.
    pub(super) fn end(&mut self, ticket: Ticket) {
        self.begun.remove(ticket);
    }

    /// Removes a task whose round has not begun. Returns whether it had been woken.
    pub(super) fn leave(&mut self, ticket: Ticket) -> bool {
        self.waiting.remove(&ticket);
        self.woken.remove(ticket)
    }

    /// Whether the round has begun, and counts.
    pub(super) fn counts(&self, ticket: Ticket) -> bool {
        self.begun.until.contains_key(&ticket)
    }

    pub(super) fn in_flight(&self) -> usize {
        self.woken.until.len() + self.begun.until.len()
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns an instant before which no round in flight stops counting.
    pub(super) fn next_overdue(&self) -> Instant {
        self.woken.next_overdue.min(self.begun.next_overdue)
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
