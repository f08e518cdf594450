//! How nodes call the clients that wait in the line of a lock.
//!
//! A call is a message from a node to a client, behind the replies on the same connection, or over one of its own. It is lost
//! with the connection. A node calls a client for as long as it has not noticed that the connection is gone.

use core::task::{Poll, Waker};

use redlock_core::Token;
use redlock_core::transport::{Call as LineCall, Mailbox, Place as LinePlace, Verb};

use super::assumption::Assumption;
use super::clock::{Moment, NEVER};
use super::fault::Kind;
use super::history::{Message, Task, What};
use super::link::{Content, Line, Mail, Return, Straggler};
use super::place::{KEYS, Route};
use super::reach::Reach;
use super::state::{Event, State};

/// What a client does.
impl State {
    pub(crate) fn mailbox(&mut self, task: Task, node: usize) -> Option<Mailbox> {
        let Task { client, .. } = task;
        let reach = self.mailboxes.reach(Route { client, node });
        let mailbox = self.mailboxes.of(task)?;
        match reach {
            Reach::NoLine => None,
            Reach::Uncallable => Some(mailbox.uncallable()),
            Reach::Callable | Reach::Apart => Some(mailbox),
        }
    }

    /// Takes the next call of `node` for `key`.
    pub(crate) fn take_call(
        &mut self,
        task: Task,
        node: usize,
        key: &[u8],
        waker: &Waker,
    ) -> Poll<LineCall> {
        self.mailboxes.take(task, node, key, waker)
    }

    /// Records that a command takes a place in a line.
    pub(super) fn takes_place(&mut self, task: Task, route: Route, message: Message) {
        if message.place.is_some_and(|place| place.ticket.is_some()) {
            let link = self.link(route);
            let known = (task, message.key, link.epoch);
            let is_its =
                |(whose, key, _): &(Task, usize, u32)| (*whose, *key) == (task, message.key);
            if !link.places.iter().any(is_its) {
                link.places.push(known);
            }
        }
    }

    /// A command arrives that has outlived its connection.
    pub(super) fn is_late(&mut self, route: Route, message: Message) {
        let place = message.place.filter(|place| place.ticket.is_some());
        let mailbox = place.and_then(|place| place.mailbox);
        if let Some(task) = mailbox.and_then(|mailbox| self.mailboxes.whose(&mailbox)) {
            self.link(route).late_places.push((task, message.key));
        }
    }

    /// Nothing is expected of the places of `task`: it has forgotten a lease.
    pub(crate) fn forget_place(&mut self, task: Task, key: usize) {
        for node in 0..self.machines.len() {
            let Task { client, .. } = task;
            let link = self.link(Route { client, node });
            link.places
                .retain(|(whose, of, _)| (*whose, *of) != (task, key));
        }
    }

    /// The task has left the line of `key`, or of each: it must not stand on any node whose connection has lived since it came.
    pub(crate) fn look_for_place(&mut self, task: Task, key: Option<usize>) {
        let Task { client, .. } = task;
        let at = self.moment_of(client);
        // What is left under one name is registered under the other.
        if self.names_twice(client) {
            return;
        }
        for node in 0..self.machines.len() {
            let route = Route { client, node };
            let link = self.link(route);
            let (epoch, is_up) = (link.epoch, link.line == Line::Up);
            let is_it = |(whose, of, _): &mut (Task, usize, u32)| {
                *whose == task && key.is_none_or(|key| key == *of)
            };
            let left: Vec<_> = link.places.extract_if(.., is_it).collect();
            for (_, key, since) in left {
                if is_up && since == epoch {
                    let histories = self.machines[self.machine_of(route)].histories;
                    let content = Content::LineProbe(task, key, histories);
                    let parcel = self.parcel(route, content, self.no_call);
                    self.depart(route, parcel, at);
                }
            }
        }
    }

    /// The reply to an acquire has arrived: calls that came before it were for an earlier try.
    pub(super) fn forget_calls(&mut self, route: Route, message: Message) {
        let mailbox = message.place.and_then(|place| place.mailbox);
        let task = mailbox.and_then(|mailbox| self.mailboxes.whose(&mailbox));
        if let Some(task) = task.filter(|_| message.is_acquire()) {
            self.mailboxes.forget(task, route.node);
        }
    }

    /// Whether nobody waits for what the call is about.
    pub(super) fn is_stray(&self, mail: Mail) -> bool {
        self.mailboxes.waits_for(mail.task) != Some(mail.key)
    }

    /// The client reads a call.
    pub(super) fn receive(&mut self, route: Route, mail: Mail) {
        let Mail { task, key, call } = mail;
        let told = Route {
            node: self.machine_of(route),
            ..route
        };
        self.tell(What::Called(told, task, key, call));
        if !self.is_stray(mail) {
            self.count(Kind::Call);
            if self.fails(Assumption::FirstCall) {
                (0..self.machines.len()).for_each(|node| self.mailboxes.put(task, node, call));
            } else {
                self.mailboxes.put(task, route.node, call);
            }
            return;
        }
        self.count(Kind::StrayCall);
        let Some(mailbox) = self.mailboxes.of(task) else {
            return;
        };
        let turn_ms = 25 + 2 * self.node_timeouts[route.client].div_ceil(1_000);
        let message = Message {
            verb: Verb::Release,
            key,
            token: self.number_of(&Token::from_bytes([0; Token::LEN])),
            proposal: None,
            place: Some(LinePlace::left(
                mailbox,
                u32::try_from(turn_ms).unwrap_or(u32::MAX),
            )),
        };
        if self.link(route).line == Line::Up {
            self.tell(What::Sent(task, route.node, message));
            self.send(route, message, self.no_call, self.now);
        }
    }

    /// A call that does not come behind the replies has arrived.
    pub(super) fn arrive_apart(&mut self, route: Route, epoch: u32, mail: Mail) {
        let free_at = self.moment_of(route.client);
        let is_stray = self.is_stray(mail);
        let link = self.link(route);
        if link.epoch != epoch || link.line != Line::Up {
            self.count(Kind::LostCall);
            return;
        }
        let mut until = link.replies_cut_until;
        if is_stray {
            // Its process has to run.
            until = until.max(free_at);
        }
        if until > self.now {
            self.queue.add(until, Event::Mail(route, epoch, mail));
        } else {
            self.receive(route, mail);
        }
    }
}

/// What a node does, and what becomes of its connections.
impl State {
    /// What the node executes: where calls come first, nothing but the calls of a release that comes a little later.
    pub(super) fn called_first(&mut self, route: Route, message: Message) -> Message {
        let place = message.place.filter(|_| message.is_release());
        if !self.fails(Assumption::CallFirst) || place.is_none() {
            return message;
        }
        let life = self.machines[self.machine_of(route)].life;
        let epoch = self.link(route).epoch;
        let straggler = self.stragglers.insert(Straggler {
            route,
            message: Message {
                place: None,
                ..message
            },
            epoch,
            life,
        });
        let at = self.now + self.chance.below(2_000);
        self.queue.add(at, Event::Straggler(straggler));
        let token = self.number_of(&Token::from_bytes([0; Token::LEN]));
        Message { token, ..message }
    }

    /// The node sends the calls of the command that it has just executed.
    pub(super) fn send_calls(&mut self, machine: usize, key: usize) {
        let calls: Vec<_> = self.machines[machine].server.take_calls().collect();
        for (mailbox, call) in calls {
            let Some(task) = self.mailboxes.whose(&mailbox) else {
                continue;
            };
            let routes = self.routes_to(machine);
            for route in routes
                .into_iter()
                .filter(|route| route.client == task.client)
            {
                let mail = Mail { task, key, call };
                let link = self.link(route);
                let epoch = link.epoch;
                let is_sent = link.subscribed.contains(&epoch) && link.line == Line::Up;
                self.count_many(Kind::LostCall, (!is_sent).into());
                let told = Route {
                    node: machine,
                    ..route
                };
                self.tell(What::Calls(told, task, key, call, is_sent));
                if !is_sent {
                    continue;
                }
                if self.mailboxes.reach(route) == Reach::Apart {
                    let at = self.now + self.delay(route, self.now);
                    self.queue.add(at, Event::Mail(route, epoch, mail));
                } else {
                    let parcel = self.parcel(route, Content::Unknown, self.no_call);
                    self.give_back(route, parcel, Return::Call(mail));
                }
            }
        }
    }

    /// The client has a new connection, over which the node can call it.
    pub(super) fn subscribe(&mut self, route: Route) {
        if !self.mailboxes.reach(route).is_callable() {
            return;
        }
        let machine = self.machine_of(route);
        for mailbox in self.mailboxes.of_client(route.client) {
            self.machines[machine].server.subscribe(mailbox);
        }
        let link = self.link(route);
        let epoch = link.epoch;
        link.subscribed.push(epoch);
        self.tell_subscribed(route, true);
        for task in self.mailboxes.waiting(route.client) {
            self.mailboxes.put(task, route.node, LineCall::Reconnected);
        }
    }

    fn tell_subscribed(&mut self, route: Route, is_subscribed: bool) {
        let told = Route {
            node: self.machine_of(route),
            ..route
        };
        self.tell(What::Subscribed(told, is_subscribed));
    }

    /// The connection is gone, and the node notices it some time: at once if it is told.
    pub(super) fn hang_up_later(&mut self, route: Route, epoch: u32) {
        if self.link(route).subscribed.contains(&epoch) {
            let after = match self.chance.one_in(2) {
                true => self.chance.below(1_000),
                false => self.lateness(),
            };
            self.queue
                .add(self.now + after, Event::HangUp(route, epoch));
        }
    }

    pub(super) fn notice_hang_up(&mut self, route: Route, epoch: u32) {
        let link = self.link(route);
        if !link.subscribed.contains(&epoch) {
            return;
        }
        link.subscribed.retain(|other| *other != epoch);
        let machine = self.machine_of(route);
        let mut routes = self.routes_to(machine);
        routes.retain(|other| other.client == route.client);
        if routes
            .into_iter()
            .all(|route| self.link(route).subscribed.is_empty())
        {
            for mailbox in self.mailboxes.of_client(route.client) {
                self.machines[machine].server.unsubscribe(mailbox);
            }
            self.tell_subscribed(route, false);
        }
    }

    /// All connections of the node have ended.
    pub(super) fn forget_subscribers(&mut self, machine: usize) {
        for route in self.routes_to(machine) {
            if !self.link(route).subscribed.is_empty() {
                self.link(route).subscribed.clear();
                self.tell_subscribed(route, false);
            }
        }
    }

    /// The places on the node are not what they were.
    pub(super) fn forget_places(&mut self, machine: usize) {
        for route in self.routes_to(machine) {
            self.link(route).places.clear();
        }
    }

    pub(super) fn probe_line(&mut self, route: Route, task: Task, key: usize) {
        if self.link(route).late_places.contains(&(task, key)) {
            return;
        }
        let node = self.machine_of(route);
        let machine = &self.machines[node];
        let now = machine.reads(self.now);
        let key_bytes = KEYS[key].as_bytes();
        let is_its = |mailbox: Mailbox| self.mailboxes.whose(&mailbox) == Some(task);
        let mut line = machine.server.line(key_bytes, now);
        let turn = machine.server.turn(key_bytes, now);
        let stands = line.any(|(mailbox, _)| is_its(mailbox))
            || turn.is_some_and(|(mailbox, _)| is_its(mailbox));
        drop(line);
        let route = Route { node, ..route };
        self.tell(What::LineProbed(route, task, key, stands));
    }

    /// The node forgets the line of a key, and nothing else.
    pub(super) fn forget_line(&mut self, node: usize, key: usize) {
        self.count(Kind::ForgottenLine);
        self.machines[node].server.forget_line(KEYS[key].as_bytes());
        self.tell(What::ForgotLine(node, key));
    }

    /// The process is gone, with its connections. Returns when it must be tried again, if it is in the middle of a poll.
    pub(super) fn die(&mut self, client: usize) -> Option<Moment> {
        let free_at = self.processes[client].free_at;
        if free_at > self.now {
            return Some(free_at);
        }
        self.count(Kind::Died);
        self.processes[client].free_at = NEVER;
        self.tell(What::Died(client));
        for node in 0..self.machines.len() {
            let route = Route { client, node };
            self.scatter(route);
            self.lose_connection(route);
            let link = self.link(route);
            link.line = Line::Down;
            link.replies.clear();
            link.owed.clear();
            link.outbox.clear();
            link.waiting.clear();
            link.handed.clear();
            link.places.clear();
        }
        None
    }
}
