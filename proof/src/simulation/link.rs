//! What is between one client and one node: requests and replies in order, on one connection.

use std::collections::VecDeque;

use redlock_core::Denial;
use redlock_core::transport::{Admission, NodeInfo, ReplicationId, Reply};

use super::chance::Chance;
use super::clock::Moment;
use super::fault::Kind;
use super::history::{Message, Route, Task, What};
use super::scenario::Assumption;
use super::slab::Name;
use super::world::{Event, State};

/// How a link behaves as long as nothing is wrong with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Habits {
    pub(crate) delay: Delay,
    /// Without a connection an acquire or extend waits for one, as a device's does; else it fails at once.
    pub(crate) waits: bool,
    /// A release that has found no end on its connection is sent by the next one, as on a server.
    pub(crate) resends: bool,
    /// Roughly how long it takes to notice that the connection is dead.
    pub(crate) notice: u64,
    /// Roughly how long it takes to make another.
    pub(crate) reconnect: u64,
    /// When the first connection is made; zero when it is there from the beginning.
    pub(crate) begins_at: Moment,
}

/// How long a message takes, one way.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Delay {
    None,
    Between(u64, u64),
    /// Now and then up to the second time, rarely up to the third.
    Tailed(u64, u64, u64),
}

impl Delay {
    /// What a link is like when nothing is wrong in the whole world.
    const CALM: Self = Self::Between(20, 200);

    fn draw(self, chance: &mut Chance) -> u64 {
        match self {
            Self::None => 0,
            Self::Between(first, last) => chance.between(first, last),
            Self::Tailed(usual, slow, slowest) => match chance.below(64) {
                0 => chance.about(slowest),
                1..=6 => chance.about(slow),
                _ => chance.between(usual / 4, usual),
            },
        }
    }
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(super) habits: Habits,
    pub(super) line: Line,
    /// What the client knows of the node.
    pub(super) admission: Admission,
    /// How many times the node has said who it is.
    pub(super) node_infos: u32,
    /// Who it was the first time and the last time.
    pub(super) met: Option<(ReplicationId, ReplicationId)>,
    /// The number of the connection.
    pub(super) epoch: u32,
    /// On their way to the node, the first one first.
    pub(super) requests: VecDeque<Parcel>,
    /// On their way back.
    pub(super) replies: VecDeque<(Parcel, Return)>,
    /// Handed over and not answered.
    pub(super) owed: Vec<(Parcel, Message)>,
    /// Releases for the next connection, and who waits for their replies.
    pub(super) outbox: Vec<(Message, Name)>,
    /// Calls that wait for the next connection.
    pub(super) waiting: Vec<Name>,
    /// Tokens of which an acquire was handed over, and to which connection.
    handed: Vec<(usize, u32)>,
    pub(super) last_arrival: Moment,
    pub(super) last_answer: Moment,
    pub(super) requests_cut_until: Moment,
    pub(super) replies_cut_until: Moment,
    /// By how much everything takes longer, until when.
    pub(super) spike: (u64, Moment),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    Up,
    /// The node has been asked who it is, and nothing else goes over the connection before it has said so.
    Asking,
    /// It is dead, and the client does not know.
    Dead,
    Down,
}

/// What goes over a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parcel {
    number: u64,
    pub(super) content: Content,
    /// How many times the node had said who it is when this was handed over.
    node_infos: u32,
    /// Who waits for the reply, if it still waits.
    pub(super) call: Name,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Content {
    Command(Message),
    /// Looks whether a token stands under a key, once everything sent before it has been done; of a node that has
    /// been master and replica so often.
    Probe(usize, usize, u64),
    /// Who the node is.
    Question,
}

/// What comes back.
#[derive(Debug, Clone, Copy)]
pub(super) enum Return {
    Answer(Message, Result<Reply, Denial>),
    NodeInfo(NodeInfo),
}

/// What became of a command that a task wants to hand over.
#[derive(Debug)]
pub(crate) enum Handed {
    Sent,
    /// There is no connection; the call is woken when there is one.
    NotYet,
    /// There is no connection.
    Refused,
    /// The node has no vote.
    Denied(Denial),
}

impl Link {
    pub(crate) const fn new(habits: Habits) -> Self {
        Self {
            habits,
            line: Line::Down,
            admission: Admission::new(),
            node_infos: 0,
            met: None,
            epoch: 0,
            requests: VecDeque::new(),
            replies: VecDeque::new(),
            owed: Vec::new(),
            outbox: Vec::new(),
            waiting: Vec::new(),
            handed: Vec::new(),
            last_arrival: 0,
            last_answer: 0,
            requests_cut_until: 0,
            replies_cut_until: 0,
            spike: (0, 0),
        }
    }

    fn hand_over_later(&mut self, message: Message, call: Name) -> Handed {
        if message.is_release() && self.habits.resends {
            self.outbox.push((message, call));
            return Handed::Sent;
        }
        if !self.habits.waits {
            return Handed::Refused;
        }
        if !self.waiting.contains(&call) {
            self.waiting.push(call);
        }
        Handed::NotYet
    }

    /// Nothing is expected of what was handed over.
    pub(super) fn forget_handed(&mut self) {
        self.handed.clear();
    }

    /// The connection to which an acquire with `token` was handed, if that one is still good.
    fn has_lived_since(&mut self, token: usize) -> bool {
        let place = self.handed.iter().position(|(handed, _)| *handed == token);
        let epoch = place.map(|place| self.handed.swap_remove(place).1);
        epoch == Some(self.epoch) && self.line == Line::Up
    }
}

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
        }
        let at = self.moment_of(client);
        self.tell_at(at, What::Sent(task, node, message));
        self.send(route, message, call, at);
        Handed::Sent
    }

    /// Whether the vote of a node counts.
    fn admits(&mut self, route: Route, message: Message) -> Result<(), Denial> {
        let now = self.reading(route.client, self.moment_of(route.client));
        let admission = self.link(route).admission;
        let admitted = admission.check(message.verb, now);
        self.count_many(Kind::Denial, admitted.is_err().into());
        admitted
    }

    fn must_ask(&mut self, route: Route, message: Message) -> bool {
        let now = self.reading(route.client, self.moment_of(route.client));
        let admission = self.link(route).admission;
        admission.must_ask(message.verb, now)
    }

    /// Asks the node who it is ahead of the next command, whose answer is judged with the one to this.
    fn ask(&mut self, route: Route) {
        self.count(Kind::AskedAgain);
        let at = self.moment_of(route.client);
        let parcel = self.parcel(route, Content::Question, self.nobody);
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
        match parcel.content {
            Content::Probe(key, token, histories) => {
                let machine = &self.machines[self.machine_of(route)];
                // A replica deletes nothing, and older data brings back what was deleted.
                if machine.histories == histories && machine.server.is_master() {
                    self.probe(route, key, token);
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
        }
    }

    /// Whether the connection dies with a grant on it.
    fn loses(&mut self, message: Message, answer: Result<Reply, Denial>) -> bool {
        !message.is_release()
            && matches!(answer, Ok(Reply::Acquired(_) | Reply::Extended(_)))
            && self.now < self.calm_at
            && self.chance.one_in(self.lost_grant_odds)
    }

    fn give_back(&mut self, route: Route, parcel: Parcel, back: Return) {
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
        let free_at = self.moment_of(route.client);
        if is_introduction && free_at > now {
            // What a client does about its connections it does when it is run.
            self.queue.add(free_at, Event::Answer(route, epoch));
            return;
        }
        match self.link(route).replies.pop_front() {
            Some((parcel, Return::Answer(message, answer))) => {
                let owed = &mut self.link(route).owed;
                owed.retain(|(owed, _)| owed.number != parcel.number);
                let answer = self.judged(route, parcel, message, answer);
                let told = Route {
                    node: self.machine_of(route),
                    ..route
                };
                self.tell_of(route.client, What::Answered(told, message, answer));
                if let Ok(Reply::Acquired(Some(reading))) = answer {
                    self.counted(message.token, reading.fence);
                }
                self.finish_call(parcel.call, Ok(answer));
            }
            Some((_, Return::NodeInfo(node_info))) => self.record(route, node_info),
            None => (),
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
        let grants = matches!(answer, Ok(Reply::Acquired(_)));
        if message.is_acquire() && (grants || parcel.node_infos != link.node_infos) {
            return self.admits(route, message).and(answer);
        }
        answer
    }

    /// Nobody wants `token` any more: when all that was sent for it has been done, it must not stand on any
    /// node with which the connection has lived since the acquire.
    pub(super) fn nobody_wants(&mut self, client: usize, key: usize, token: usize) {
        let at = self.moment_of(client);
        for node in 0..self.machines.len() {
            let route = Route { client, node };
            // What was granted under one name and refused under the other is released under the first.
            if self.names_twice(client) {
                continue;
            }
            if self.link(route).has_lived_since(token) {
                let histories = self.machines[self.machine_of(route)].histories;
                let probe = Content::Probe(key, token, histories);
                let parcel = self.parcel(route, probe, self.nobody);
                self.depart(route, parcel, at);
            }
        }
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
