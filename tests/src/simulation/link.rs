//! What is between one client and one node: one ordered connection after the other, each of which may break.

use std::collections::VecDeque;

use redlock_core::Reply;

use super::chance::Chance;
use super::clock::Moment;
use super::fault::Kind;
use super::history::{Message, Task, Verb, What};
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
    habits: Habits,
    state: Connection,
    /// The number of the connection.
    epoch: u32,
    /// On their way to the node, the first one first.
    requests: VecDeque<Parcel>,
    /// On their way back.
    replies: VecDeque<(Parcel, Reply)>,
    /// Handed over and not answered.
    owed: Vec<Parcel>,
    /// Releases for the next connection.
    outbox: Vec<Parcel>,
    /// Calls that wait for the next connection.
    waiting: Vec<Name>,
    /// Tokens of which an acquire was handed over, and to which connection.
    handed: Vec<(usize, u32)>,
    last_arrival: Moment,
    last_answer: Moment,
    pub(super) requests_cut_until: Moment,
    pub(super) replies_cut_until: Moment,
    /// By how much everything takes longer, until when.
    pub(super) spike: (u64, Moment),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Connection {
    Up,
    /// It is dead, and the client does not know.
    Dead,
    Down,
}

/// What goes over a connection.
#[derive(Debug, Clone, Copy)]
struct Parcel {
    number: u64,
    content: Content,
    /// Who waits for the reply, if it still waits.
    call: Name,
}

#[derive(Debug, Clone, Copy)]
enum Content {
    Command(Message),
    /// Looks whether a token stands, once everything sent before it has been done.
    Probe {
        key: usize,
        token: usize,
    },
}

/// A command that has outlived its connection.
#[derive(Debug)]
pub(crate) struct Ghost {
    client: usize,
    node: usize,
    message: Message,
    epoch: u32,
    /// Of the node, which takes with it what had not arrived when it died.
    life: u32,
}

/// What became of a command that a task wants to hand over.
#[derive(Debug)]
pub(crate) enum Handed {
    Sent,
    /// There is no connection; the call is woken when there is one.
    NotYet,
    /// There is no connection.
    Refused,
}

impl Link {
    pub(crate) const fn new(habits: Habits) -> Self {
        Self {
            habits,
            state: Connection::Up,
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

    const fn spike_at(&self, now: Moment) -> u64 {
        if now < self.spike.1 { self.spike.0 } else { 0 }
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
        let client = task.client;
        let link = self.link(client, node);
        if link.state == Connection::Down {
            let is_release = message.verb == Verb::Release;
            return if is_release && link.habits.resends {
                self.later(client, node, message, call);
                Handed::Sent
            } else if link.habits.waits {
                if !link.waiting.contains(&call) {
                    link.waiting.push(call);
                }
                Handed::NotYet
            } else {
                Handed::Refused
            };
        }
        let epoch = link.epoch;
        if message.verb == Verb::Acquire {
            link.handed.push((message.token, epoch));
            self.attempted(task, message);
        }
        let at = self.moment_of(client);
        self.tell_at(
            at,
            What::Sent {
                task,
                node,
                message,
            },
        );
        self.send(client, node, message, call, at);
        Handed::Sent
    }

    fn later(&mut self, client: usize, node: usize, message: Message, call: Name) {
        let parcel = self.parcel(Content::Command(message), call);
        self.link(client, node).outbox.push(parcel);
    }

    fn send(&mut self, client: usize, node: usize, message: Message, call: Name, at: Moment) {
        let parcel = self.parcel(Content::Command(message), call);
        self.link(client, node).owed.push(parcel);
        if self.link(client, node).state == Connection::Dead {
            self.count(Kind::LostCommand);
            return;
        }
        let delay = self.delay(client, node, at);
        self.depart(client, node, parcel, at + delay);
    }

    fn depart(&mut self, client: usize, node: usize, parcel: Parcel, arrival: Moment) {
        let place = self.place_in_line(client, node);
        let link = self.link(client, node);
        let arrival = arrival.max(link.last_arrival);
        link.last_arrival = arrival;
        link.requests.insert(place, parcel);
        let epoch = link.epoch;
        self.agenda.add(
            arrival,
            Event::Arrival {
                client,
                node,
                epoch,
            },
        );
    }

    /// At the end, except where order is broken on purpose.
    fn place_in_line(&mut self, client: usize, node: usize) -> usize {
        let len = self.link(client, node).requests.len();
        if self.fails(Assumption::Order) {
            self.chance.index(len + 1)
        } else {
            len
        }
    }

    pub(super) fn arrive(&mut self, client: usize, node: usize, epoch: u32) {
        let now = self.now;
        let hung_until = self.machines[node].hung_until;
        let link = self.link(client, node);
        if link.epoch != epoch || link.state != Connection::Up {
            return;
        }
        let stopped_until = hung_until.max(link.requests_cut_until);
        if stopped_until > now {
            self.agenda.add(
                stopped_until,
                Event::Arrival {
                    client,
                    node,
                    epoch,
                },
            );
            return;
        }
        let Some(parcel) = link.requests.pop_front() else {
            return;
        };
        match parcel.content {
            Content::Probe { key, token } => self.probe(client, node, key, token),
            Content::Command(message) => {
                let reply = self.execute(client, node, message);
                let delay = self.delay(client, node, now);
                let link = self.link(client, node);
                link.last_answer = link.last_answer.max(now + delay);
                link.replies.push_back((parcel, reply));
                let at = link.last_answer;
                self.agenda.add(
                    at,
                    Event::Answer {
                        client,
                        node,
                        epoch,
                    },
                );
            }
        }
    }

    pub(super) fn answer(&mut self, client: usize, node: usize, epoch: u32) {
        let now = self.now;
        let link = self.link(client, node);
        if link.epoch != epoch || link.state == Connection::Down {
            return;
        }
        if link.replies_cut_until > now {
            let until = link.replies_cut_until;
            self.agenda.add(
                until,
                Event::Answer {
                    client,
                    node,
                    epoch,
                },
            );
            return;
        }
        let Some((parcel, reply)) = link.replies.pop_front() else {
            return;
        };
        link.owed.retain(|owed| owed.number != parcel.number);
        if let Content::Command(message) = parcel.content {
            self.tell(What::Answered {
                client,
                node,
                message,
                reply,
            });
        }
        self.finish_call(parcel.call, Ok(reply));
    }

    /// Breaks the connection: the first commands under way arrive in spite of it, but late, the others never.
    pub(super) fn break_connection(&mut self, client: usize, node: usize) {
        if self.link(client, node).state != Connection::Up {
            return;
        }
        self.count(Kind::BrokenConnection);
        let under_way = self.link(client, node).requests.len();
        let survivors = self.chance.index(under_way + 1);
        let mut at = self.link(client, node).last_arrival.max(self.now);
        for place in 0..survivors {
            let link = self.link(client, node);
            let (epoch, content) = (link.epoch, link.requests[place].content);
            let Content::Command(message) = content else {
                continue;
            };
            at += self.lateness();
            let life = self.machines[node].life;
            let ghost = self.ghosts.insert(Ghost {
                client,
                node,
                message,
                epoch,
                life,
            });
            self.agenda.add(at, Event::Ghost(ghost));
            self.count(Kind::LateCommand);
        }
        self.link(client, node).requests.drain(..survivors);
        self.lose_connection(client, node);
    }

    /// The connection is dead, with all that is under way to the node and perhaps what is under way back.
    pub(super) fn lose_connection(&mut self, client: usize, node: usize) {
        if self.link(client, node).state != Connection::Up {
            return;
        }
        let keeps_replies = self.chance.one_in(2);
        let link = self.link(client, node);
        link.state = Connection::Dead;
        let (epoch, notice) = (link.epoch, link.habits.notice);
        let lost = link.requests.drain(..).count();
        let lost_replies = if keeps_replies {
            0
        } else {
            link.replies.drain(..).count()
        };
        self.count_many(Kind::LostCommand, lost);
        self.count_many(Kind::LostReply, lost_replies);
        let at = self.now + self.chance.about(notice);
        self.agenda.add(
            at,
            Event::Notice {
                client,
                node,
                epoch,
            },
        );
    }

    /// A command that has outlived its connection arrives.
    pub(super) fn haunt(&mut self, name: Name) {
        let Some(Ghost {
            client,
            node,
            message,
            epoch,
            life,
        }) = self.ghosts.get_mut(name)
        else {
            return;
        };
        let (client, node, message, epoch, life) = (*client, *node, *message, *epoch, *life);
        let machine = &self.machines[node];
        if machine.hung_until > self.now {
            let until = machine.hung_until;
            self.agenda.add(until, Event::Ghost(name));
            return;
        }
        let is_alive = machine.life == life;
        self.ghosts.remove(name);
        if is_alive {
            if self.link(client, node).epoch != epoch {
                self.count(Kind::OvertakenCommand);
            }
            self.execute(client, node, message);
        }
    }

    /// The client learns that the connection is dead.
    pub(super) fn notice(&mut self, client: usize, node: usize, epoch: u32) {
        let link = self.link(client, node);
        if link.epoch != epoch || link.state != Connection::Dead {
            return;
        }
        link.state = Connection::Down;
        let lost_replies = link.replies.drain(..).count();
        let owed = core::mem::take(&mut link.owed);
        let (resends, reconnect) = (link.habits.resends, link.habits.reconnect);
        self.count_many(Kind::LostReply, lost_replies);
        self.tell(What::Connection {
            client,
            node,
            is_up: false,
        });
        for parcel in owed {
            match parcel.content {
                Content::Command(message) if resends && message.verb == Verb::Release => {
                    self.count(Kind::ResentRelease);
                    self.link(client, node).outbox.push(parcel);
                }
                _ => self.finish_call(parcel.call, Err(())),
            }
        }
        let at = self.now + self.chance.about(reconnect);
        self.agenda.add(at, Event::Reconnect { client, node });
    }

    pub(super) fn reconnect(&mut self, client: usize, node: usize) {
        let now = self.now;
        if self.machines[node].is_down {
            // Asked again when the node is back.
            self.machines[node].callers.push(client);
            return;
        }
        let link = self.link(client, node);
        let cut_until = link.requests_cut_until.max(link.replies_cut_until);
        if cut_until > now {
            self.agenda
                .add(cut_until, Event::Reconnect { client, node });
            return;
        }
        link.state = Connection::Up;
        link.epoch += 1;
        link.last_arrival = now;
        link.last_answer = now;
        let outbox = core::mem::take(&mut link.outbox);
        let waiting = core::mem::take(&mut link.waiting);
        self.tell(What::Connection {
            client,
            node,
            is_up: true,
        });
        for parcel in outbox {
            if let Content::Command(message) = parcel.content {
                self.send(client, node, message, parcel.call, now);
            }
        }
        for call in waiting {
            self.wake_call(call);
        }
    }

    /// Nobody wants `token` any more: when all that was sent for it has been done, it must not stand on any
    /// node with which the connection has lived since the acquire.
    pub(super) fn nobody_wants(&mut self, client: usize, key: usize, token: usize) {
        let at = self.moment_of(client);
        for node in 0..self.machines.len() {
            let link = self.link(client, node);
            let Some(place) = link.handed.iter().position(|(handed, _)| *handed == token) else {
                continue;
            };
            let (_, epoch) = link.handed.swap_remove(place);
            if link.epoch == epoch && link.state == Connection::Up {
                let call = self.nobody;
                let parcel = self.parcel(Content::Probe { key, token }, call);
                self.depart(client, node, parcel, at);
            }
        }
    }

    fn parcel(&mut self, content: Content, call: Name) -> Parcel {
        self.parcels += 1;
        Parcel {
            number: self.parcels,
            content,
            call,
        }
    }

    fn delay(&mut self, client: usize, node: usize, at: Moment) -> u64 {
        if at >= self.calm_at {
            return Self::CALM_DELAY.draw(&mut self.chance);
        }
        let link = self.link(client, node);
        let (delay, spike) = (link.habits.delay, link.spike_at(at));
        delay.draw(&mut self.chance) + spike
    }

    /// What a link is like when nothing is wrong in the whole world.
    const CALM_DELAY: Delay = Delay::Between(20, 200);
}
