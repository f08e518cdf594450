//! The network of devices: connections that they make themselves, and bytes both ways.

use core::task::Poll;
use std::task::Waker;

use embedded_io_async::ErrorKind;
use redlock_core::Denial;
use redlock_core::transport::{Command, NodeInfo, Reply, Verb};

use super::assumption::Assumption;
use super::fault::Kind;
use super::history::{Message, Task, What};
use super::link::{Content, Line, Parcel, Return};
use super::place::Route;
use super::resp::{self, Order, Request};
use super::socket::{Attempt, Letter, Socket};
use super::state::{Event, State};

/// What the device does at its end. It is at its own moment, and may wait.
impl State {
    /// The task calls the node.
    pub(super) fn call_by_device(&mut self, route: Route, command: &Command<'_>) {
        let message = self.message_of(command);
        if let Some(socket) = self.socket(route) {
            socket.call(message);
        }
    }

    pub(super) fn connect(&mut self, route: Route, waker: &Waker) -> Poll<Result<(), ErrorKind>> {
        let Some(socket) = self.socket(route) else {
            return Poll::Pending;
        };
        socket.wait(waker);
        match socket.attempt {
            Some(Attempt::Running) => return Poll::Pending,
            Some(Attempt::Over(result)) => {
                socket.attempt = None;
                return Poll::Ready(result);
            }
            None => {}
        }
        self.hang_up(route);
        let begun_at = self.moment_of(route.client);
        let [there, back] = [(); 2].map(|()| self.delay(route, begun_at));
        let link = self.link(route);
        let (reconnect, begins_at) = (link.habits.reconnect, link.habits.begins_at);
        let at = begun_at + there + back + self.chance.about(reconnect);
        let link = self.link(route);
        link.line = Line::Asking;
        link.epoch += 1;
        if let Some(socket) = &mut link.socket {
            socket.attempt = Some(Attempt::Running);
        }
        self.queue.add(at.max(begins_at), Event::Reconnect(route));
        Poll::Pending
    }

    /// The device ends its connection, or its attempt to make one. What it has sent may arrive all the same.
    pub(super) fn hang_up(&mut self, route: Route) {
        let line = self.link(route).line;
        if line == Line::Up {
            self.scatter(route);
        }
        let link = self.link(route);
        link.line = Line::Down;
        link.requests.clear();
        link.replies.clear();
        let is_cut_off = link.socket.as_mut().is_some_and(|socket| socket.clear());
        self.count_many(Kind::CutOffCommand, is_cut_off.into());
        if matches!(line, Line::Up | Line::Dead) {
            self.tell_of(route.client, What::Connected(route, false));
        }
    }

    pub(super) fn write(
        &mut self,
        route: Route,
        bytes: &[u8],
        waker: &Waker,
    ) -> Poll<Result<usize, ErrorKind>> {
        if !self.is_connected(route) {
            return Poll::Ready(Err(ErrorKind::ConnectionReset));
        }
        let Some(socket) = self.socket(route) else {
            return Poll::Pending;
        };
        socket.debt.write();
        let count = socket.room(bytes.len());
        socket.is_stuck = count == 0;
        if count == 0 {
            socket.wait(waker);
            self.count(Kind::FullSocket);
            return Poll::Pending;
        }
        socket.written.extend_from_slice(&bytes[..count]);
        if socket.hardware.sends_at_once {
            self.send_written(route);
        }
        Poll::Ready(Ok(count))
    }

    pub(super) fn flush(&mut self, route: Route) -> Result<(), ErrorKind> {
        if !self.is_connected(route) {
            return Err(ErrorKind::ConnectionReset);
        }
        self.send_written(route);
        Ok(())
    }

    /// Nothing was read where the connection has ended.
    pub(super) fn read(&mut self, route: Route, buffer: &mut [u8], waker: &Waker) -> Poll<usize> {
        let is_connected = self.is_connected(route);
        let Some(socket) = self.socket(route) else {
            return Poll::Pending;
        };
        let (count, letters) = socket.read(buffer);
        if count == 0 && is_connected {
            socket.wait(waker);
            return Poll::Pending;
        }
        letters
            .into_iter()
            .for_each(|letter| self.read_letter(route, letter));
        Poll::Ready(count)
    }

    fn is_connected(&mut self, route: Route) -> bool {
        matches!(self.link(route).line, Line::Up | Line::Dead)
    }

    pub(super) fn socket(&mut self, route: Route) -> Option<&mut Socket> {
        self.link(route).socket.as_deref_mut()
    }

    /// Sends the whole commands that were written.
    fn send_written(&mut self, route: Route) {
        let Some(socket) = self.socket(route) else {
            return;
        };
        let mut written = core::mem::take(&mut socket.written);
        let mut sent = 0;
        while let Some((request, len)) = Request::take(&written[sent..]) {
            sent += len;
            self.request(route, request, len);
        }
        written.drain(..sent);
        if let Some(socket) = self.socket(route) {
            socket.written = written;
        }
    }

    fn request(&mut self, route: Route, request: Request, len: usize) {
        let content = match request {
            Request::Command(order) => self.order(route, &order),
            Request::Question => Content::Question,
            Request::Load(script) => Content::Load(script),
            Request::Unknown => {
                self.tell_of(route.client, What::Nonsense(route));
                Content::Unknown
            }
        };
        let parcel = self.parcel(route, content, self.no_call);
        let link = self.link(route);
        let is_dead = link.line == Line::Dead;
        if let Some(socket) = &mut link.socket {
            socket.on_their_way += len;
            socket.unanswered += 1;
        }
        if is_dead {
            self.count(Kind::LostCommand);
            return;
        }
        let at = self.moment_of(route.client);
        let arrival = at + self.delay(route, at);
        self.depart(route, Parcel { len, ..parcel }, arrival);
    }

    fn order(&mut self, route: Route, order: &Order) -> Content {
        let token = self.number_of(&order.token);
        let Some(socket) = self.socket(route) else {
            return Content::Unknown;
        };
        let verb = match order.verb {
            Verb::Acquire { ttl_ms, .. } => Verb::Acquire {
                ttl_ms,
                conditions: socket.conditions_of(token),
            },
            Verb::Extend { ttl_ms, .. } => Verb::Extend {
                ttl_ms,
                conditions: socket.conditions_of_extension(token),
            },
            verb @ (Verb::Keep { .. } | Verb::Release) => verb,
        };
        let message = Message {
            verb,
            key: order.key,
            token,
            proposal: order.proposal,
            place: None,
        };
        let is_stored = message.is_ending() && !socket.debt.is_call(message);
        if is_stored {
            socket.debt.send_stored(message);
        }
        let owed = socket.debt.due_before(message);
        let is_up = self.link(route).line == Line::Up;
        if let Some(owed) = owed.filter(|_| is_up && !self.names_twice(route.client)) {
            let at = self.moment_of(route.client);
            self.look_for(route, owed.key, owed.token, at);
        }
        let task = Task {
            client: route.client,
            number: 0,
        };
        self.count_many(Kind::ResentRelease, is_stored.into());
        self.tell_of(route.client, What::Sent(task, route.node, message));
        if is_stored && self.fails(Assumption::StoredRelease) {
            return Content::Undone;
        }
        Content::Command(message)
    }

    fn read_letter(&mut self, route: Route, letter: Letter) {
        match letter {
            Letter::Answer(message, reply) => {
                if let Some(socket) = self.socket(route) {
                    match reply {
                        Ok(_) => socket.debt.answered(message),
                        Err(_) => socket.debt.read_refusal(message),
                    }
                }
                self.tell_answer(route, message, reply);
            }
            Letter::NoScript(message) => {
                if let Some(socket) = self.socket(route) {
                    socket.debt.read_refusal(message);
                }
            }
            Letter::NodeInfo(node_info) => {
                self.link(route).meet(&node_info);
                self.tell_max_ttl(route, &node_info);
            }
            Letter::Other => {}
        }
    }
}

/// What the world does at the other end.
impl State {
    /// An attempt to connect ends, if the node can be reached.
    pub(super) fn accept(&mut self, route: Route) {
        let now = self.now;
        let link = self.link(route);
        let is_awaited = link.socket.as_ref().map(|socket| socket.attempt);
        if link.line != Line::Asking || is_awaited != Some(Some(Attempt::Running)) {
            return;
        }
        let cut_until = link.requests_cut_until.max(link.replies_cut_until);
        if cut_until > now {
            self.queue.add(cut_until, Event::Reconnect(route));
            return;
        }
        let number = self.machine_of(route);
        if self.machines[number].is_down {
            if self.chance.one_in(2) {
                self.link(route).line = Line::Down;
                self.end_attempt(route, Err(ErrorKind::ConnectionRefused));
            } else {
                // Asked again when the node is back.
                self.machines[number].callers.push(route);
            }
            return;
        }
        let link = self.link(route);
        link.line = Line::Up;
        link.last_arrival = now;
        link.last_answer = now;
        self.tell(What::Connected(route, true));
        self.end_attempt(route, Ok(()));
    }

    /// The device learns that its connection, or its attempt to make one, has failed.
    pub(super) fn notice_by_device(&mut self, route: Route) {
        let attempt = self.socket(route).and_then(|socket| socket.attempt);
        if attempt == Some(Attempt::Running) {
            self.end_attempt(route, Err(ErrorKind::ConnectionReset));
        } else if let Some(socket) = self.socket(route) {
            socket.wake();
        }
    }

    fn end_attempt(&mut self, route: Route, result: Result<(), ErrorKind>) {
        if let Some(socket) = self.socket(route) {
            socket.attempt = Some(Attempt::Over(result));
            socket.wake();
        }
    }

    /// The node answers a request of a device.
    pub(super) fn answer_device(&mut self, route: Route, parcel: Parcel) {
        if let Some(socket) = self.socket(route) {
            socket.arrived(parcel.len);
        }
        match parcel.content {
            Content::Probe(..) | Content::LineProbe(..) => {}
            Content::Command(message) => self.answer_command(route, parcel, message),
            Content::Question => {
                let machine = self.machine_of(route);
                let node_info = self.machines[machine].node_info(self.now);
                let mut bytes = self.introduce(route, &node_info);
                let is_old = self.fails(Assumption::OldIdentity);
                if let Some(socket) = self.socket(route).filter(|_| is_old) {
                    bytes = socket.introduced.get_or_insert(bytes).clone();
                }
                self.give_back_bytes(route, parcel, bytes, Letter::NodeInfo(node_info));
            }
            Content::Load(script) => {
                let machine = self.machine_of(route);
                self.machines[machine].scripts[script] = true;
                self.give_back_bytes(route, parcel, resp::loaded(script), Letter::Other);
            }
            Content::Undone => {
                self.give_back_bytes(route, parcel, b":1\r\n".to_vec(), Letter::Other);
            }
            Content::Unknown => {
                self.give_back_bytes(route, parcel, resp::UNKNOWN.to_vec(), Letter::Other);
            }
        }
    }

    fn answer_command(&mut self, route: Route, parcel: Parcel, message: Message) {
        let machine = self.machine_of(route);
        let script = match message.verb {
            Verb::Acquire { .. } => 0,
            Verb::Extend { .. } | Verb::Keep { .. } => 1,
            Verb::Release => 2,
        };
        if message.proposal.is_some() && !self.machines[machine].scripts[script] {
            self.count(Kind::NoScript);
            self.tell(What::NotExecuted(route, message));
            self.refuse(route, message);
            let letter = Letter::NoScript(message);
            self.give_back_bytes(route, parcel, resp::NO_SCRIPT.to_vec(), letter);
            return;
        }
        let reply = self.execute(route, message);
        if reply.is_err() {
            self.refuse(route, message);
        }
        if self.loses(message, reply) {
            self.count(Kind::LostGrant);
            self.lose_connection(route);
            return;
        }
        let bytes = self.bytes_of(message, reply);
        let is_repeated = self.fails(Assumption::Twice) && self.chance.one_in(8);
        if is_repeated {
            let bytes = bytes.clone();
            self.give_back_bytes(route, parcel, bytes, Letter::Other);
        }
        self.give_back_bytes(route, parcel, bytes, Letter::Answer(message, reply));
    }

    fn refuse(&mut self, route: Route, message: Message) {
        if let Some(socket) = self.socket(route) {
            socket.debt.refuse(message);
        }
    }

    fn bytes_of(&self, message: Message, reply: Result<Reply, Denial>) -> Vec<u8> {
        resp::answer(&message, &self.tokens[message.token], reply)
    }

    fn introduce(&self, route: Route, node_info: &NodeInfo) -> Vec<u8> {
        let machine = self.machine_of(route);
        let numbers = [self.run_number(machine), self.history_number(machine)];
        resp::node_info(node_info, numbers)
    }

    fn give_back_bytes(&mut self, route: Route, parcel: Parcel, bytes: Vec<u8>, letter: Letter) {
        self.give_back(route, parcel, Return::Bytes(bytes, letter));
    }
}
