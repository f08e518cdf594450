//! How commands get to nodes and replies come back.

use redlock_core::Denial;
use redlock_core::transport::{Reply, Verb, VoteConditions};

use super::assumption::Assumption;
use super::clock::Moment;
use super::fault::Kind;
use super::history::{Message, Task, What};
use super::link::{Content, Delay, Habits, Handed, Line, Parcel, Return};
use super::place::Route;
use super::slab::Name;
use super::state::{Event, State};

impl State {
    /// Hands a command over to the connection, whole and in order, at the task's own moment.
    pub(super) fn hand_over(
        &mut self,
        task: Task,
        node: usize,
        message: Message,
        call: Name,
    ) -> Handed {
        let Task { client, .. } = task;
        let route = Route { client, node };
        let link = self.link(route);
        if matches!(link.line, Line::Down | Line::Asking) {
            return link.hand_over_later(message, call);
        }
        if message.is_acquire() {
            if self.must_ask(route, message) {
                // Nothing that the node could say ends its quarantine.
                if let Err(denial @ (Denial::Restarted { .. } | Denial::Evicted { .. })) =
                    self.admits(route, message)
                {
                    return Handed::Denied(denial);
                }
                self.ask(route);
            } else if let Err(denial) = self.admits(route, message) {
                return Handed::Denied(denial);
            }
            let link = self.link(route);
            let epoch = link.epoch;
            link.handed.push((message.token, epoch));
            self.attempted(task, message);
        } else if self.must_ask(route, message) {
            self.ask(route);
        } else if let Err(denial) = self.admits(route, message) {
            return Handed::Denied(denial);
        }
        self.hand_over_adoption(route, message);
        self.takes_place(task, route, message);
        let at = self.moment_of(client);
        self.tell_at(at, What::Sent(task, node, message));
        self.send(route, message, call, at);
        Handed::Sent
    }

    /// Whether the vote of a node counts.
    fn admits(&mut self, route: Route, message: Message) -> Result<(), Denial> {
        let now = self.reading(route.client, self.moment_of(route.client));
        let admission = self.link(route).admission;
        let admitted = admission.check(self.condition(message), now);
        if matches!(admitted, Err(Denial::TtlTooLong { .. })) {
            if self.fails(Assumption::LongPlain) {
                return Ok(());
            }
            self.count(Kind::TtlTooLong);
        }
        if admitted.is_err() {
            self.count(Kind::Denial);
            self.tell_of(route.client, What::Denied(route));
        }
        admitted
    }

    /// The verb of `message`, with what must be so that a vote counts.
    fn condition(&self, message: Message) -> Verb {
        match message.verb {
            Verb::Extend { ttl_ms, .. } if self.fails(Assumption::VotelessAdoption) => {
                Verb::Extend {
                    ttl_ms,
                    conditions: VoteConditions::NONE,
                }
            }
            Verb::Acquire { ttl_ms, conditions } if self.fails(Assumption::MinHoldGuard) => {
                let longest_ttl_ms = 2 * self.lengths[2] / 1_000;
                let longest_ttl_ms = u32::try_from(longest_ttl_ms).unwrap_or(u32::MAX);
                let mut conditions = conditions;
                conditions.max_ttl_ms = conditions.max_ttl_ms.min(longest_ttl_ms);
                Verb::Acquire { ttl_ms, conditions }
            }
            verb => verb,
        }
    }

    fn must_ask(&mut self, route: Route, message: Message) -> bool {
        let now = self.reading(route.client, self.moment_of(route.client));
        let admission = self.link(route).admission;
        admission.must_ask(message.verb, now)
    }

    /// Asks the node who it is ahead of the next command, whose answer is judged with the one to this.
    fn ask(&mut self, route: Route) {
        self.count(Kind::AskedAgain);
        self.note_question(route);
        let at = self.moment_of(route.client);
        let parcel = self.parcel(route, Content::Question, self.no_call);
        if self.link(route).line == Line::Up {
            let arrival = at + self.delay(route, at);
            self.depart(route, parcel, arrival);
        }
    }

    pub(super) fn send(&mut self, route: Route, message: Message, call: Name, at: Moment) {
        let parcel = self.parcel(route, Content::Command(message), call);
        let link = self.link(route);
        link.owed.push((parcel, message));
        if link.line == Line::Dead {
            self.count(Kind::LostCommand);
            return;
        }
        let arrival = at + self.delay(route, at);
        self.depart(route, parcel, arrival);
    }

    pub(super) fn depart(&mut self, route: Route, parcel: Parcel, arrival: Moment) {
        let len = self.link(route).requests.len();
        let place = if self.fails(Assumption::Order) {
            self.chance.index(len + 1)
        } else {
            len
        };
        let link = self.link(route);
        link.requests.insert(place, parcel);
        link.last_arrival = link.last_arrival.max(arrival);
        let (at, epoch) = (link.last_arrival, link.epoch);
        self.queue.add(at, Event::Arrival(route, epoch));
    }

    pub(super) fn arrive(&mut self, route: Route, epoch: u32) {
        let now = self.now;
        let hung_until = self.machines[self.machine_of(route)].hung_until;
        let link = self.link(route);
        if link.epoch != epoch || !matches!(link.line, Line::Up | Line::Asking) {
            return;
        }
        let stopped_until = hung_until.max(link.requests_cut_until);
        if stopped_until > now {
            self.queue.add(stopped_until, Event::Arrival(route, epoch));
            return;
        }
        let Some(parcel) = link.requests.pop_front() else {
            return;
        };
        if link.socket.is_some() && !matches!(parcel.content, Content::Probe(..)) {
            self.answer_device(route, parcel);
            return;
        }
        match parcel.content {
            Content::Probe(key, token, histories) => {
                let socket = link.socket.as_ref();
                let is_refused = socket.is_some_and(|socket| socket.debt.is_refused(token));
                let machine = &self.machines[self.machine_of(route)];
                // A replica deletes nothing, and older data brings back what was deleted.
                let is_same = machine.histories == histories && machine.server.is_master();
                if is_same && !is_refused {
                    self.probe(route, key, token);
                }
            }
            Content::LineProbe(task, key, histories) => {
                let machine = &self.machines[self.machine_of(route)];
                if machine.histories == histories && machine.server.is_master() {
                    self.probe_line(route, task, key);
                }
            }
            Content::Command(message) => {
                let answer = self.execute(route, message);
                if self.loses(message, answer) {
                    self.count(Kind::LostGrant);
                    self.lose_connection(route);
                } else {
                    self.give_back(route, parcel, Return::Answer(message, answer));
                }
            }
            Content::Question => {
                let machine = self.machine_of(route);
                let node_info = self.machines[machine].node_info(now);
                self.give_back(route, parcel, Return::NodeInfo(node_info));
            }
            Content::Load(_) | Content::Unknown | Content::Undone => {}
        }
    }

    /// Whether the connection dies with a grant on it.
    pub(super) fn loses(&mut self, message: Message, answer: Result<Reply, Denial>) -> bool {
        !message.is_release()
            && matches!(answer, Ok(Reply::Acquired(_) | Reply::Extended(_)))
            && self.now < self.calm_at
            && self.chance.one_in(self.lost_grant_odds)
    }

    pub(super) fn give_back(&mut self, route: Route, parcel: Parcel, back: Return) {
        let answer = self.now + self.delay(route, self.now);
        let link = self.link(route);
        link.replies.push_back((parcel, back));
        link.last_answer = link.last_answer.max(answer);
        let (at, epoch) = (link.last_answer, link.epoch);
        self.queue.add(at, Event::Answer(route, epoch));
    }

    pub(super) fn answer(&mut self, route: Route, epoch: u32) {
        let now = self.now;
        let link = self.link(route);
        if link.epoch != epoch || link.line == Line::Down {
            return;
        }
        if link.replies_cut_until > now {
            let until = link.replies_cut_until;
            self.queue.add(until, Event::Answer(route, epoch));
            return;
        }
        let is_introduction = matches!(link.replies.front(), Some((_, Return::NodeInfo(_))));
        let is_stray = match link.replies.front() {
            Some((_, Return::Call(mail))) => {
                let mail = *mail;
                self.is_stray(mail)
            }
            _ => false,
        };
        let free_at = self.moment_of(route.client);
        if (is_introduction || is_stray) && free_at > now {
            // What a client does about its connections it does when it is run.
            self.queue.add(free_at, Event::Answer(route, epoch));
            return;
        }
        match self.link(route).replies.pop_front() {
            Some((parcel, Return::Answer(message, answer))) => {
                let owed = &mut self.link(route).owed;
                owed.retain(|(owed, _)| owed.number != parcel.number);
                let answer = self.judged(route, parcel, message, answer);
                self.forget_calls(route, message);
                self.tell_answer(route, message, answer);
                self.finish_call(parcel.call, Ok(answer));
            }
            Some((_, Return::Bytes(bytes, letter))) => {
                if let Some(socket) = &mut self.link(route).socket {
                    socket.receive(&bytes, letter);
                }
            }
            Some((_, Return::NodeInfo(node_info))) => self.record(route, node_info),
            Some((_, Return::Call(mail))) => self.receive(route, mail),
            None => (),
        }
    }

    /// An answer has reached the client.
    pub(super) fn tell_answer(
        &mut self,
        route: Route,
        message: Message,
        answer: Result<Reply, Denial>,
    ) {
        let told = Route {
            node: self.machine_of(route),
            ..route
        };
        self.tell_of(route.client, What::Answered(told, message, answer));
        if let Err(denial) = answer {
            self.heard_of_rules(message, denial);
        }
        if let Ok(Reply::Acquired(Some(reading))) = answer {
            self.counted(message.token, reading.fence);
        }
    }

    /// What an answer is worth after what the node has said of itself meanwhile.
    fn judged(
        &mut self,
        route: Route,
        parcel: Parcel,
        message: Message,
        answer: Result<Reply, Denial>,
    ) -> Result<Reply, Denial> {
        let link = self.link(route);
        if answer == Err(Denial::Replica) {
            link.admission.doubt();
        }
        // Also where the node was asked who it is ahead of it, since its vote was denied, and has not said so yet.
        let grants = matches!(answer, Ok(Reply::Acquired(_) | Reply::Extended(_)));
        if !message.is_release() && (grants || parcel.node_infos != link.node_infos) {
            return self.admits(route, message).and(answer);
        }
        answer
    }

    /// Records that the client has no use for `token` any more. When all commands with it are executed, it must not stand on
    /// any node whose connection has lived since the acquire.
    pub(super) fn abandon(&mut self, client: usize, key: usize, token: usize) {
        let at = self.moment_of(client);
        for node in 0..self.machines.len() {
            let route = Route { client, node };
            // What was granted under one name and refused under the other is released under the first.
            if self.names_twice(client) {
                continue;
            }
            if self.link(route).has_lived_since(token) {
                self.look_for(route, key, token, at);
            }
        }
    }

    /// Looks for `token` behind all that was sent on the connection before the moment `at`.
    pub(super) fn look_for(&mut self, route: Route, key: usize, token: usize, at: Moment) {
        let histories = self.machines[self.machine_of(route)].histories;
        let probe = Content::Probe(key, token, histories);
        let parcel = self.parcel(route, probe, self.no_call);
        self.depart(route, parcel, at);
    }

    pub(super) fn parcel(&mut self, route: Route, content: Content, call: Name) -> Parcel {
        self.parcels += 1;
        let node_infos = self.link(route).node_infos;
        let number = self.parcels;
        Parcel {
            number,
            content,
            node_infos,
            call,
            len: 0,
        }
    }

    pub(super) fn delay(&mut self, route: Route, at: Moment) -> u64 {
        if at >= self.calm_at {
            return Delay::CALM.draw(&mut self.chance);
        }
        let Habits { delay, .. } = self.link(route).habits;
        let (spike, until) = self.link(route).spike;
        delay.draw(&mut self.chance) + if at < until { spike } else { 0 }
    }
}
