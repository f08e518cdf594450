//! The order in which the tasks of a shared lock take turns.

use core::cell::RefCell;
use core::task::{Context, Poll, Waker};

use embassy_sync::blocking_mutex::Mutex;
use embassy_sync::blocking_mutex::raw::RawMutex;
use heapless::Vec;

use super::change;

/// The tasks that wait for their turn, the first one first.
pub(super) struct Turns<M: RawMutex>(Mutex<M, RefCell<Waiters>>);

struct Waiters {
    places: Vec<(Ticket, Waker), PLACES_MAX>,
    next: Ticket,
}

type Ticket = u32;

/// Tasks that find no place poll until there is one.
const PLACES_MAX: usize = 8;

/// How often a task lets those before it go first while the turn is free. An executor polls each woken task once before it polls one
/// of them again. So a task that has not taken its turn by then is no longer polled.
const COURTESY: u8 = 2;

impl<M: RawMutex> Turns<M> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(RefCell::new(Waiters {
            places: Vec::new(),
            next: 0,
        })))
    }

    /// A task that begins to wait.
    pub(super) const fn enter(&self) -> Entrant<'_, M> {
        Entrant {
            turns: self,
            ticket: None,
            given_way: 0,
        }
    }

    /// Wakes the tasks that wait: the turn has ended.
    pub(super) fn wake(&self) {
        change(&self.0, |waiters| {
            waiters
                .places
                .iter()
                .for_each(|(_, waker)| waker.wake_by_ref());
        });
    }
}

/// A task that waits for its turn. If it is dropped, those behind it move up.
pub(super) struct Entrant<'a, M: RawMutex> {
    turns: &'a Turns<M>,
    ticket: Option<Ticket>,
    given_way: u8,
}

impl<M: RawMutex> Entrant<'_, M> {
    /// Takes the turn by `take`, if it is free, and no task waits that came earlier.
    pub(super) fn poll<R>(&mut self, cx: &Context<'_>, take: impl Fn() -> Option<R>) -> Poll<R> {
        // It has its place before it looks, because the turn may end in between, on another core or in an interrupt.
        let is_first = self.stand(cx.waker());
        let Some(turn) = take() else {
            self.given_way = 0;
            if self.ticket.is_none() {
                cx.waker().wake_by_ref();
            }
            return Poll::Pending;
        };
        if is_first || self.given_way >= COURTESY {
            return Poll::Ready(turn);
        }
        self.given_way += 1;
        // The end of this turn wakes all, this task too.
        drop(turn);
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Takes the last place, or keeps its own. Returns whether no task is before it.
    fn stand(&mut self, waker: &Waker) -> bool {
        change(&self.turns.0, |waiters| {
            let own = self.ticket.and_then(|ticket| waiters.position(ticket));
            if let Some((_, known)) = own.and_then(|own| waiters.places.get_mut(own)) {
                known.clone_from(waker);
            } else if !waiters.places.is_full() {
                let ticket = waiters.next;
                waiters.next = ticket.wrapping_add(1);
                let _has_room = waiters.places.push((ticket, waker.clone()));
                self.ticket = Some(ticket);
            }
            let first = waiters.places.first();
            first.is_some_and(|(first, _)| Some(*first) == self.ticket)
        })
    }
}

impl Waiters {
    fn position(&self, ticket: Ticket) -> Option<usize> {
        self.places.iter().position(|(other, _)| *other == ticket)
    }
}

impl<M: RawMutex> Drop for Entrant<'_, M> {
    fn drop(&mut self) {
        change(&self.turns.0, |waiters| {
            let own = self.ticket.and_then(|ticket| waiters.position(ticket));
            if let Some(own) = own {
                waiters.places.remove(own);
            }
        });
    }
}
