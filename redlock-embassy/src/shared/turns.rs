//! The order in which the tasks of a shared lock take turns.

use core::cell::RefCell;
use core::task::Waker;

use embassy_sync::blocking_mutex::Mutex;
use embassy_sync::blocking_mutex::raw::RawMutex;
use heapless::Vec;
use redlock_core::Instant;

use super::change;

/// The tasks that wait for their turn.
pub(super) struct Turns<M: RawMutex>(Mutex<M, RefCell<Waiters>>);

struct Waiters {
    /// In no order: their tickets tell it.
    places: Vec<(Ticket, Waker), PLACES_MAX>,
    /// The first task that found no place. Those that asked later leave it the next one.
    outside: Option<Ticket>,
    next: Ticket,
    /// How many turns were taken.
    taken: u32,
}

/// Smaller for a task that asked earlier. Wraps.
type Ticket = u32;

/// The end of a turn wakes the tasks that have a place. The others look again and again.
const PLACES_MAX: usize = 8;

/// For each task that asked earlier, a task leaves the turn free for so long, and then passes those that have not taken it. They are
/// no longer polled, or their executor is busy.
///
/// This is a time, not a number of polls: while the tasks of an executor of high priority wait for it, one of lower priority runs.
/// It is also how often a task without a place looks.
const COURTESY_MICROS: u64 = 10_000;

impl<M: RawMutex> Turns<M> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(RefCell::new(Waiters {
            places: Vec::new(),
            outside: None,
            next: 0,
            taken: 0,
        })))
    }

    /// A task that begins to wait.
    pub(super) const fn enter(&self) -> Entrant<'_, M> {
        Entrant {
            turns: self,
            ticket: None,
            free: None,
            look_at: None,
        }
    }

    /// Wakes the tasks that wait: the turn has ended.
    pub(super) fn wake(&self) {
        change(&self.0, |waiters| waiters.wake());
    }
}

/// A task that waits for its turn. If it is dropped, those that asked later move up.
pub(super) struct Entrant<'a, M: RawMutex> {
    turns: &'a Turns<M>,
    /// Since its first poll.
    ticket: Option<Ticket>,
    /// Since when this task has known the turn to be free, after how many turns.
    free: Option<(u32, Instant)>,
    look_at: Option<Instant>,
}

impl<M: RawMutex> Entrant<'_, M> {
    /// When to ask again, even if nothing wakes the task.
    pub(super) const fn look_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// Takes the turn by `take`, if it is free, and no task waits that asked earlier and still takes turns. Otherwise the end of the
    /// turn wakes the task, if there is a place for it.
    pub(super) fn ask<R>(
        &mut self,
        waker: &Waker,
        now: Instant,
        take: impl FnOnce() -> Option<R>,
    ) -> Option<R> {
        // In one step, because the turn may end at any moment, on another core or in an interrupt.
        change(&self.turns.0, |waiters| {
            let own = *self.ticket.get_or_insert_with(|| waiters.issue());
            let turn = take();
            let free_until = turn.as_ref().map(|_| {
                let since = match self.free {
                    Some((taken, since)) if taken == waiters.taken => since,
                    _ => now,
                };
                self.free = Some((waiters.taken, since));
                after(since, COURTESY_MICROS * waiters.before(own))
            });
            if free_until.is_some_and(|until| until <= now) {
                waiters.pass(own);
                return turn;
            }
            self.look_at = match waiters.stand(own, waker) {
                true => free_until,
                false => match self.look_at {
                    Some(at) if at > now => Some(at),
                    _ => Some(after(now, COURTESY_MICROS)),
                },
            };
            None
        })
    }
}

const fn after(instant: Instant, micros: u64) -> Instant {
    Instant::from_micros(instant.as_micros().saturating_add(micros))
}

impl Waiters {
    const fn issue(&mut self) -> Ticket {
        let ticket = self.next;
        self.next = ticket.wrapping_add(1);
        ticket
    }

    /// How many tasks are known that asked earlier.
    fn before(&self, own: Ticket) -> u64 {
        let mut before = 0;
        let mut has_place = false;
        for (ticket, _) in &self.places {
            before += u64::from(is_before(*ticket, own));
            has_place |= *ticket == own;
        }
        // A task that has a place does not wait for one without: that one has been passed, and takes the next place.
        let is_outside = !has_place && self.outside.is_some_and(|ticket| is_before(ticket, own));
        before + u64::from(is_outside)
    }

    /// Records that a task takes the turn. It needs no place any more, and those that asked earlier lose theirs. They are woken: each
    /// that is still polled comes back with its ticket.
    fn pass(&mut self, own: Ticket) {
        let has_passed = self.before(own) > 0;
        self.places.retain(|(ticket, waker)| {
            if is_before(*ticket, own) {
                // The task that ended its turn may be interrupted before it has woken this one.
                waker.wake_by_ref();
            }
            is_before(own, *ticket)
        });
        if self.outside == Some(own) || has_passed {
            self.outside = self.outside.filter(|ticket| is_before(own, *ticket));
        }
        self.taken = self.taken.wrapping_add(1);
    }

    /// Takes a place, or keeps its own. Returns whether the task has one.
    fn stand(&mut self, own: Ticket, waker: &Waker) -> bool {
        for (ticket, known) in &mut self.places {
            if *ticket == own {
                known.clone_from(waker);
                return true;
            }
        }
        let is_next = self.outside.is_none_or(|ticket| !is_before(ticket, own));
        if is_next && self.places.push((own, waker.clone())).is_ok() {
            self.outside = self.outside.filter(|ticket| *ticket != own);
            return true;
        }
        if is_next {
            self.outside = Some(own);
        }
        false
    }

    /// Forgets a task that does not wait any more.
    fn leave(&mut self, own: Ticket) {
        let was_first = self.before(own) == 0;
        let count = self.places.len();
        self.places.retain(|(ticket, _)| *ticket != own);
        self.outside = self.outside.filter(|ticket| *ticket != own);
        // The turn may be free, and was this task's.
        if was_first && self.places.len() < count {
            self.wake();
        }
    }

    fn wake(&self) {
        self.places
            .iter()
            .for_each(|(_, waker)| waker.wake_by_ref());
    }
}

const fn is_before(ticket: Ticket, other: Ticket) -> bool {
    ticket.wrapping_sub(other).cast_signed() < 0
}

impl<M: RawMutex> Drop for Entrant<'_, M> {
    fn drop(&mut self) {
        if let Some(own) = self.ticket {
            change(&self.turns.0, |waiters| waiters.leave(own));
        }
    }
}
