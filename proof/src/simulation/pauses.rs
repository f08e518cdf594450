//! When processes run: pauses at any point, and timers.

use std::task::Waker;

use redlock_core::Instant;

use super::assumption::Assumption;
use super::clock::{Moment, NEVER};
use super::fault::Kind;
use super::history::What;
use super::place::Route;
use super::slab::Name;
use super::state::{Event, State};

impl State {
    /// Where a process is in true time: later than the world after a stall in the middle of a poll.
    pub(crate) fn moment_of(&self, client: usize) -> Moment {
        self.now.max(self.processes[client].free_at)
    }

    /// Whether `client` may be polled now. It may be paused at this very moment.
    pub(crate) fn is_free(&mut self, client: usize) -> bool {
        let process = &self.processes[client];
        if process.free_at > self.now {
            return false;
        }
        if self.now < self.calm_at && self.chance.one_in(process.pause_odds) {
            self.count(Kind::Pause);
            let length = self.lateness();
            self.pause(client, length);
        }
        self.processes[client].free_at <= self.now
    }

    /// The process may be paused here, in the middle of a poll.
    ///
    /// Called where a poll touches a connection, and nowhere else: what a client does between its last look at
    /// the clock and its next touch takes no time, so that a lease is either over when it is handed out or not.
    pub(super) fn touch(&mut self, client: usize) {
        let at = self.moment_of(client);
        if at < self.calm_at && self.chance.one_in(self.processes[client].stall_odds) {
            self.count(Kind::Stall);
            let length = self.lateness();
            self.pause(client, length);
        }
    }

    /// The same where a poll touches a stream of a device. Whether it may go on: a client that repeats itself may not.
    pub(super) fn touch_stream(&mut self, route: Route) -> bool {
        self.touch(route.client);
        !self.is_endless()
    }

    pub(super) fn pause(&mut self, client: usize, length: u64) {
        let at = self.moment_of(client);
        if at == NEVER {
            return;
        }
        let until = at + length;
        let process = &mut self.processes[client];
        process.free_at = until;
        let dial = process.clock.dial();
        let local = dial.reads(until) - dial.reads(at);
        self.tell_at(at, What::Paused(client, until, local));
        self.queue.add(until, Event::Free);
    }

    /// By how much something is late: next to one of the lengths that matter here, or a little.
    pub(super) fn lateness(&mut self) -> u64 {
        if self.chance.one_in(2) {
            return self.chance.below(1_000);
        }
        let length = self.chance.pick(&self.lengths);
        self.chance.about(length)
    }

    /// Wakes the task when the clock of its client reads `deadline`.
    pub(super) fn set_timer(
        &mut self,
        client: usize,
        deadline: Instant,
        timer: &mut Option<Name>,
        waker: Waker,
    ) {
        if let Some(set) = timer.and_then(|timer| self.timers.get_mut(timer)) {
            *set = waker;
            return;
        }
        let name = self.timers.insert(waker);
        *timer = Some(name);
        let at = self.processes[client].clock.first(deadline.as_micros());
        self.queue.add(at, Event::Timer(name));
    }

    pub(super) fn ring(&mut self, timer: Name) {
        let is_lost = self.fails(Assumption::Wake) && self.chance.one_in(20);
        if let Some(waker) = self.timers.get_mut(timer)
            && !is_lost
        {
            waker.wake_by_ref();
        }
    }
}
