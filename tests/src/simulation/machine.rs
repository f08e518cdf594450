//! A node on its machine: with a clock of its own, which may be set, and a life that may end.

use redlock_core::{Instant, Reply};

use super::clock::{Dial, Moment};
use super::fault::Kind;
use super::history::{KEYS, Message, Place, Route, Verb, What};
use super::node::Node;
use super::scenario::Assumption;
use super::world::{Event, State};

#[derive(Debug)]
pub(crate) struct Machine {
    node: Node,
    pub(super) dial: Dial,
    pub(super) hung_until: Moment,
    pub(super) is_down: bool,
    /// How many times it has died.
    pub(super) life: u32,
    /// Clients that wait for it to come back.
    pub(super) callers: Vec<usize>,
}

impl Machine {
    pub(crate) fn new(dial: Dial) -> Self {
        Self {
            node: Node::default(),
            dial,
            hung_until: 0,
            is_down: false,
            life: 0,
            callers: Vec::new(),
        }
    }

    const fn reads(&self, now: Moment) -> Instant {
        Instant::from_micros(self.dial.reads(now))
    }
}

impl State {
    pub(super) fn execute(&mut self, route: Route, message: Message) -> Reply {
        let Message {
            key, token, verb, ..
        } = message;
        let place = Place {
            node: route.node,
            key,
        };
        let bytes = self.tokens[token];
        let machine = &mut self.machines[route.node];
        let now = machine.reads(self.now);
        let mut reply = machine.node.execute(&message.command(&bytes), now);
        if verb == Verb::Release && self.fails(Assumption::Compare) {
            self.machines[route.node].node.remove(KEYS[key].as_bytes());
            reply = Reply::Released;
        }
        self.commands += 1;
        self.tell(What::Executed(route, message, reply));
        match reply {
            Reply::Acquired | Reply::Extended | Reply::Released => self.tell_what_stands(place),
            _ => (),
        }
        reply
    }

    pub(super) fn probe(&mut self, route: Route, key: usize, token: usize) {
        let machine = &self.machines[route.node];
        let entry = machine
            .node
            .entry(KEYS[key].as_bytes(), machine.reads(self.now));
        let stands = entry.is_some_and(|entry| entry.token == self.tokens[token]);
        self.tell(What::Probed(route, key, token, stands));
    }

    pub(super) fn crash(&mut self, node: usize, until: Moment, forgets: bool) {
        let machine = &mut self.machines[node];
        if machine.is_down {
            return;
        }
        machine.is_down = true;
        machine.life += 1;
        self.count(match forgets {
            _ if until == Moment::MAX => Kind::DeadForGood,
            true if self.fails(Assumption::Forget) => Kind::BrokenAssumption,
            true => Kind::CrashWithLoss,
            false => Kind::Crash,
        });
        for client in 0..self.processes.len() {
            self.lose_connection(Route { client, node });
        }
        self.queue.add(until, Event::Restart(node, forgets));
    }

    pub(super) fn restart(&mut self, node: usize, forgets: bool) {
        let machine = &mut self.machines[node];
        machine.is_down = false;
        machine.hung_until = 0;
        let callers = core::mem::take(&mut machine.callers);
        if forgets {
            machine.node.clear();
            self.tell(What::Forgets(node));
        }
        for client in callers {
            let at = self.now + self.chance.below(2_000);
            self.queue.add(at, Event::Reconnect(Route { client, node }));
        }
    }

    pub(super) fn set_clock(&mut self, node: usize, reading: u64) {
        let machine = &mut self.machines[node];
        machine.dial = machine.dial.set(self.now, reading);
        (0..KEYS.len()).for_each(|key| self.tell_what_stands(Place { node, key }));
    }

    fn tell_what_stands(&mut self, place: Place) {
        let machine = &self.machines[place.node];
        let entry = machine
            .node
            .entry(KEYS[place.key].as_bytes(), machine.reads(self.now));
        let what = entry.map_or(What::Falls(place), |entry| {
            let until = machine.dial.first(entry.expires_at.as_micros());
            let token = self.tokens.iter().rposition(|token| *token == entry.token);
            What::Stands(place, token.unwrap_or_default(), until)
        });
        self.tell(what);
    }
}
