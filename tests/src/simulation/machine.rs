//! A node on its machine: with a clock of its own, which may be set, and a life that may end.

use redlock_core::{Instant, Reply};

use super::clock::{Dial, Moment};
use super::history::{KEYS, Message, Verb, What};
use super::node::Node;
use super::scenario::Assumption;
use super::world::{Event, State};

#[derive(Debug)]
pub(crate) struct Machine {
    pub(super) node: Node,
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
    pub(super) fn execute(&mut self, client: usize, node: usize, message: Message) -> Reply {
        let Message { key, token, .. } = message;
        let bytes = self.tokens[token];
        let now = self.machines[node].reads(self.now);
        let machine = &mut self.machines[node];
        let mut reply = machine.node.execute(&message.command(&bytes), now);
        if message.verb == Verb::Release && self.fails(Assumption::Compare) {
            self.machines[node].node.remove(KEYS[key].as_bytes());
            reply = Reply::Released;
        }
        self.commands += 1;
        self.tell(What::Executed {
            client,
            node,
            message,
            reply,
        });
        match reply {
            Reply::Acquired | Reply::Extended => self.tell_what_stands(node, key, token),
            Reply::Released => self.tell(What::Falls { node, key }),
            _ => (),
        }
        reply
    }

    pub(super) fn probe(&mut self, client: usize, node: usize, key: usize, token: usize) {
        let machine = &self.machines[node];
        let now = machine.reads(self.now);
        let stands = machine
            .node
            .entry(KEYS[key].as_bytes(), now)
            .is_some_and(|entry| entry.token == self.tokens[token]);
        self.tell(What::Probed {
            client,
            node,
            key,
            token,
            stands,
        });
    }

    pub(super) fn restart(&mut self, node: usize, forgets: bool) {
        let machine = &mut self.machines[node];
        machine.is_down = false;
        machine.hung_until = 0;
        let callers = core::mem::take(&mut machine.callers);
        if forgets {
            machine.node.clear();
            self.tell(What::Forgets { node });
        }
        for client in callers {
            let at = self.now + self.chance.below(2_000);
            self.agenda.add(at, Event::Reconnect { client, node });
        }
    }

    pub(super) fn set_clock(&mut self, node: usize, reading: u64) {
        let machine = &mut self.machines[node];
        machine.dial = machine.dial.set(self.now, reading);
        for key in 0..KEYS.len() {
            let machine = &self.machines[node];
            let now = machine.reads(self.now);
            let Some(entry) = machine.node.entry(KEYS[key].as_bytes(), now) else {
                // Set forward, it has expired at this moment.
                self.tell(What::Falls { node, key });
                continue;
            };
            if let Some(token) = self.tokens.iter().position(|token| *token == entry.token) {
                self.tell_what_stands(node, key, token);
            }
        }
    }

    fn tell_what_stands(&mut self, node: usize, key: usize, token: usize) {
        let machine = &self.machines[node];
        let now = machine.reads(self.now);
        if let Some(entry) = machine.node.entry(KEYS[key].as_bytes(), now) {
            let until = machine.dial.first(entry.expires_at.as_micros());
            self.tell(What::Stands {
                node,
                key,
                token,
                until,
            });
        }
    }
}
