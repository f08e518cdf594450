//! A world: true time, and everything that the clients of the lock stand on.

use std::cell::{RefCell, RefMut};
use std::task::Waker;

use redlock_core::{Instant, Reply, Token};

use super::agenda::Agenda;
use super::chance::Chance;
use super::clock::{Moment, Ticker};
use super::fault::{Fault, Kind};
use super::history::{Fact, Task, What};
use super::link::{Ghost, Link};
use super::machine::Machine;
use super::scenario::{Assumption, Scenario};
use super::slab::{Name, Slab};

/// What the tasks share. Each of them looks at it for a moment at a time.
#[derive(Debug)]
pub(crate) struct World(RefCell<State>);

#[derive(Debug)]
pub(crate) struct State {
    pub(super) now: Moment,
    pub(super) calm_at: Moment,
    pub(super) agenda: Agenda<Event>,
    pub(super) chance: Chance,
    pub(super) machines: Vec<Machine>,
    pub(super) processes: Vec<Process>,
    links: Vec<Link>,
    pub(super) ghosts: Slab<Ghost>,
    pub(super) calls: Slab<PendingCall>,
    pub(super) timers: Slab<Waker>,
    /// The name of no call.
    pub(super) nobody: Name,
    /// The bytes of each token, by the number that it has in the history.
    pub(super) tokens: Vec<Token>,
    /// Acquires that a task has sent during its call: the key and the token.
    pub(super) attempts: Vec<(Task, usize, usize)>,
    pub(super) parcels: u64,
    pub(super) commands: u64,
    pub(super) faults: [u64; Kind::ALL.len()],
    facts: Vec<Fact>,
    /// What is to go wrong, by its number.
    plan: Vec<Fault>,
    broken: Option<Assumption>,
    lengths: [u64; 4],
}

/// A client's process: the same clock and the same connections for all its tasks.
#[derive(Debug)]
pub(crate) struct Process {
    pub(super) clock: Ticker,
    /// It is not run before this moment; within a poll, the moment at which it is.
    pub(super) free_at: Moment,
    /// Of being paused when one of its tasks is woken: one in so many.
    pub(super) pause_odds: u64,
    /// Of being paused where a poll touches a connection: one in so many.
    pub(super) stall_odds: u64,
}

/// What is going to happen.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Event {
    /// Somebody can run again.
    Free,
    Timer(Name),
    Arrival {
        client: usize,
        node: usize,
        epoch: u32,
    },
    Answer {
        client: usize,
        node: usize,
        epoch: u32,
    },
    Ghost(Name),
    Notice {
        client: usize,
        node: usize,
        epoch: u32,
    },
    Reconnect {
        client: usize,
        node: usize,
    },
    Restart {
        node: usize,
        forgets: bool,
    },
    Fault(usize),
    Calm,
}

/// A call that waits for its reply, or for a connection.
#[derive(Debug, Default)]
pub(crate) struct PendingCall {
    pub(super) waker: Option<Waker>,
    /// An error means that the connection is gone.
    pub(super) result: Option<Result<Reply, ()>>,
}

impl World {
    pub(crate) fn new(scenario: &Scenario, chance: &mut Chance) -> Self {
        let mut calls = Slab::new();
        let nobody = calls.insert(PendingCall::default());
        calls.remove(nobody);
        let mut agenda = Agenda::new(chance.child());
        for (number, (at, _)) in scenario.plan.iter().enumerate() {
            agenda.add(*at, Event::Fault(number));
        }
        agenda.add(scenario.calm_at, Event::Calm);
        let state = State {
            now: 0,
            calm_at: scenario.calm_at,
            agenda,
            chance: chance.child(),
            machines: scenario.nodes.iter().copied().map(Machine::new).collect(),
            processes: scenario
                .clients
                .iter()
                .map(|client| client.process())
                .collect(),
            links: scenario.links.iter().copied().map(Link::new).collect(),
            ghosts: Slab::new(),
            calls,
            timers: Slab::new(),
            nobody,
            tokens: Vec::new(),
            attempts: Vec::new(),
            parcels: 0,
            commands: 0,
            faults: [0; Kind::ALL.len()],
            facts: Vec::with_capacity(4_096),
            plan: scenario.plan.iter().map(|(_, fault)| *fault).collect(),
            broken: scenario.broken,
            lengths: scenario.lengths,
        };
        Self(RefCell::new(state))
    }

    /// Not across an await, and not while a task is polled.
    pub(crate) fn look(&self) -> RefMut<'_, State> {
        self.0.borrow_mut()
    }
}

impl State {
    /// Lets the next event happen. There is none at the end.
    pub(crate) fn step(&mut self) -> bool {
        let Some((at, event)) = self.agenda.next() else {
            return false;
        };
        self.now = at;
        if let Event::Notice { client, .. } | Event::Reconnect { client, .. } = event
            && self.moment_of(client) > at
        {
            // A process that is not run does nothing about its connections either.
            self.agenda.add(self.moment_of(client), event);
            return true;
        }
        match event {
            Event::Free => (),
            Event::Timer(timer) => self.ring(timer),
            Event::Arrival {
                client,
                node,
                epoch,
            } => self.arrive(client, node, epoch),
            Event::Answer {
                client,
                node,
                epoch,
            } => self.answer(client, node, epoch),
            Event::Ghost(ghost) => self.haunt(ghost),
            Event::Notice {
                client,
                node,
                epoch,
            } => self.notice(client, node, epoch),
            Event::Reconnect { client, node } => self.reconnect(client, node),
            Event::Restart { node, forgets } => self.restart(node, forgets),
            Event::Fault(number) => self.inject(self.plan[number]),
            Event::Calm => self.tell(What::Calm),
        }
        true
    }

    pub(crate) fn tell(&mut self, what: What) {
        self.tell_at(self.now, what);
    }

    pub(crate) fn tell_at(&mut self, at: Moment, what: What) {
        self.facts.push(Fact { at, what });
    }

    /// Something that a client did, at its own moment.
    pub(crate) fn tell_of(&mut self, client: usize, what: What) {
        self.tell_at(self.moment_of(client), what);
    }

    /// All that happened, in the order of time.
    pub(crate) fn take_facts(&mut self) -> Vec<Fact> {
        let mut facts = core::mem::take(&mut self.facts);
        facts.sort_by_key(|fact| fact.at);
        facts
    }

    pub(super) fn link(&mut self, client: usize, node: usize) -> &mut Link {
        &mut self.links[client * self.machines.len() + node]
    }

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

    /// A poll touches a connection: the process may be paused here, with no clock read before the next poll
    /// of a connection is over.
    pub(super) fn touch(&mut self, client: usize) {
        let at = self.moment_of(client);
        if at < self.calm_at && self.chance.one_in(self.processes[client].stall_odds) {
            self.count(Kind::Stall);
            let length = self.lateness();
            self.pause(client, length);
        }
    }

    pub(super) fn pause(&mut self, client: usize, length: u64) {
        let at = self.moment_of(client);
        let until = at + length;
        let process = &mut self.processes[client];
        process.free_at = until;
        let dial = process.clock.dial();
        let local = dial.reads(until) - dial.reads(at);
        self.tell_at(
            at,
            What::Paused {
                client,
                until,
                local,
            },
        );
        self.agenda.add(until, Event::Free);
    }

    /// By how much something is late: next to one of the lengths that matter here, or a little.
    pub(super) fn lateness(&mut self) -> u64 {
        if self.chance.one_in(2) {
            return self.chance.below(1_000);
        }
        let length = self.chance.pick(&self.lengths);
        self.chance.about(length)
    }

    /// The number of `token` in the history.
    pub(crate) fn number_of(&mut self, token: &Token) -> usize {
        // The latest ones are asked for most.
        let known = self.tokens.iter().rposition(|known| known == token);
        known.unwrap_or_else(|| {
            self.tokens.push(*token);
            self.tokens.len() - 1
        })
    }

    pub(super) fn finish_call(&mut self, call: Name, result: Result<Reply, ()>) {
        if let Some(pending) = self.calls.get_mut(call) {
            pending.result = Some(result);
        }
        self.wake_call(call);
    }

    pub(super) fn wake_call(&mut self, call: Name) {
        if let Some(waker) = self
            .calls
            .get_mut(call)
            .and_then(|pending| pending.waker.take())
        {
            waker.wake();
        }
    }

    /// Wakes whoever sleeps when the clock of its client reads `deadline`.
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
        self.agenda.add(at, Event::Timer(name));
    }

    fn ring(&mut self, timer: Name) {
        let is_lost = self.broken == Some(Assumption::Wake) && self.chance.one_in(20);
        if let Some(waker) = self.timers.get_mut(timer)
            && !is_lost
        {
            waker.wake_by_ref();
        }
    }

    pub(crate) fn fails(&self, assumption: Assumption) -> bool {
        self.broken == Some(assumption)
    }
}

impl Task {
    pub(crate) const fn new(client: usize, number: usize) -> Self {
        Self { client, number }
    }
}
