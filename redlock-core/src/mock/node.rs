//! A node that lives in memory.

use core::future::Future;
use core::ops::DerefMut;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use crate::command::{Command, Verb};
use crate::failure::{Failure, NodeError};
use crate::fence::{Fence, Fencing};
use crate::key::KeyName;
use crate::line::{Call as LineCall, Mailbox};
use crate::mock::error::{MockError, MockFailure, MockName};
use crate::mock::host::Host;
use crate::mock::shared::Shared;
use crate::mock::slots::Slots;
use crate::mock::wakers::Wakers;
use crate::node_info::RunId;
use crate::owned::OwnedCommand;
use crate::reply::Reply;
use crate::time::{Clock, Instant};
use crate::token::Token;
use crate::transport::{NodeErrorOf, Transport};

/// A node in memory: keys that expire, and every way in which a node can fail.
///
/// A reference to it is a [`Transport`]. Any number of clients may share it, each with its own reference. It has its own wall
/// clock, so the clocks of nodes can differ in a test. It has room for 64 keys of at most 64 bytes, for the fence
/// records of as many, and for 64 commands on their way.
///
/// A node that hangs keeps the commands that it is sent, and executes them when it resumes, like a stopped server with open
/// connections. It also executes commands whose futures were dropped meanwhile, except old extensions if there is no room for them.
#[derive(Debug)]
pub struct MockNode<C> {
    number: usize,
    clock: C,
    state: Shared<State>,
}

#[derive(Debug)]
struct State {
    is_up: bool,
    is_hung: bool,
    latency: Duration,
    /// No command takes effect before this instant: the end of the last hang.
    not_before: Instant,
    next_ticket: u64,
    sent: Slots<Sent, MAX_SENT>,
    host: Host,
    wakers: Wakers,
    /// The clients whose connections have subscribed to their mailboxes.
    subscribers: Slots<Mailbox, MAX_MAIL>,
    mail: Slots<Mail, MAX_MAIL>,
    loses_calls: bool,
}

const MAX_SENT: usize = 64;

const MAX_MAIL: usize = 16;

/// A call on its way to a client.
#[derive(Debug)]
struct Mail {
    mailbox: Mailbox,
    /// `None`: for every key.
    key: Option<KeyName>,
    call: LineCall,
    arrives_at: Instant,
    number: u64,
}

/// A command on its way to the node, or its reply on the way back.
#[derive(Debug)]
struct Sent {
    ticket: u64,
    arrives_at: Instant,
    progress: Progress,
    /// `None` if its client has no mailbox.
    mailbox: Option<Mailbox>,
    /// That of its client, in microseconds. `None`: that of the node.
    latency_micros: Option<u32>,
    /// The client has dropped its future. The command still takes effect, but no client gets the reply.
    is_abandoned: bool,
}

#[derive(Debug)]
enum Progress {
    Unexecuted(OwnedCommand<KeyName>),
    /// The result, and when it reaches the client.
    Answered(Result<Reply, MockFailure>, Instant),
}

impl Sent {
    const fn is_executed(&self) -> bool {
        matches!(self.progress, Progress::Answered(..))
    }
}

impl<C: Clock> MockNode<C> {
    /// A node that is up, is empty and answers at once. Its errors show `number`.
    #[must_use]
    pub const fn new(number: usize, clock: C) -> Self {
        Self {
            number,
            clock,
            state: Shared::new(State {
                is_up: true,
                is_hung: false,
                latency: Duration::ZERO,
                not_before: Instant::from_micros(0),
                next_ticket: 0,
                sent: Slots::new(),
                host: Host::new(number),
                wakers: Wakers::new(),
                subscribers: Slots::new(),
                mail: Slots::new(),
                loses_calls: false,
            }),
        }
    }

    /// `N` nodes that share a clock, numbered from 1.
    #[must_use]
    pub fn array<const N: usize>(clock: C) -> [Self; N]
    where
        C: Clone,
    {
        core::array::from_fn(|index| Self::new(index + 1, clock.clone()))
    }

    /// The connection of a client with this mailbox: a [`Transport`] of a client that stands in the waiting lines of the node.
    /// If the mailbox is [uncallable](Mailbox::uncallable), the node cannot call the client.
    ///
    /// The node can call 16 clients; it does not call another one, which looks again after delays. The connection stays open until
    /// [`disconnect`](Self::disconnect).
    pub fn client(&self, mailbox: Mailbox) -> MockClient<'_, C> {
        if mailbox.is_callable() {
            self.change(|state, _| {
                state.subscribers.retain(|other| *other != mailbox);
                state.subscribers.insert(mailbox);
                if state.is_up {
                    state.host.server.subscribe(mailbox);
                }
            });
        }
        MockClient {
            node: self,
            mailbox,
            latency_micros: None,
        }
    }

    /// Ends the connection of a client, like that of a process that is killed: the node can no longer call the client.
    pub fn disconnect(&self, mailbox: Mailbox) {
        self.change(|state, _| {
            state.subscribers.retain(|other| *other != mailbox);
            state.mail.retain(|mail| mail.mailbox != mailbox);
            state.host.server.unsubscribe(mailbox);
        });
    }

    /// Sets whether the calls of the node are lost on their way to the clients.
    pub fn lose_calls(&self, are_lost: bool) {
        self.settled().loses_calls = are_lost;
    }

    /// The number of releases that this client has sent and the node has not executed yet, with those that keep the key for the rest of a
    /// `min_hold`. For `redlock-std`.
    #[doc(hidden)]
    #[must_use]
    pub fn unexecuted_releases(&self, mailbox: Mailbox) -> usize {
        let state = self.settled();
        let releases = state.sent.iter().filter(|sent| {
            matches!(
                &sent.progress,
                Progress::Unexecuted(command)
                    if matches!(command.verb, Verb::Release | Verb::Keep { .. })
            )
        });
        let its = releases.filter(|sent| sent.mailbox == Some(mailbox));
        its.count()
    }

    /// Deletes the waiting line of `key`, like a server that evicts keys.
    pub fn forget_line(&self, key: &str) {
        self.change(|state, _| state.host.server.forget_line(key.as_bytes()));
    }

    /// The number of clients in the waiting line of `key`.
    #[must_use]
    pub fn waiting(&self, key: &str) -> usize {
        let state = self.settled();
        let wall = state.host.wall(self.clock.now());
        state.host.server.line(key.as_bytes(), wall).count()
    }

    /// Sets the time that each command takes from the client to the node and back.
    pub fn set_latency(&self, latency: Duration) {
        self.settled().latency = latency;
    }

    /// Stops answering, with connections open, as a server under SIGSTOP does.
    pub fn hang(&self) {
        self.settled().is_hung = true;
    }

    /// Whether it is up, also if it hangs.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.settled().is_up
    }

    /// Executes the commands that were sent in the meantime, and answers again.
    pub fn resume(&self) {
        self.change(|state, now| {
            state.is_hung = false;
            state.not_before = now;
        });
    }

    /// Stops: refuses connections, and loses the commands that were on their way. Keeps its data for
    /// [`restart`](Self::restart).
    pub fn stop(&self) {
        self.change(|state, now| {
            state.is_up = false;
            state.is_hung = false;
            for sent in state.sent.iter_mut() {
                if !sent.is_executed() {
                    let reset = Err(Failure::Transport(MockError::Reset));
                    sent.progress = Progress::Answered(reset, now);
                }
            }
            state.mail = Slots::new();
            state.forget_abandoned();
        });
    }

    /// Restarts with its data, like a server that fsyncs every write. Clients notice the restart, and do not count the vote of
    /// the node until the [restart guard](crate::Options::restart_guard) allows it.
    pub fn restart(&self) {
        self.stop();
        self.change(|state, now| {
            state.is_up = true;
            state.host.restart(now);
            state.connect_again(now);
        });
    }

    /// Restarts without its data.
    pub fn restart_empty(&self) {
        self.restart();
        self.clear();
    }

    /// Deletes all keys, as FLUSHALL does. Plain clients do not notice. Fenced clients do not count the vote of the node until
    /// the quarantine of their fleet is over.
    pub fn clear(&self) {
        self.change(|state, _| state.host.server.clear());
    }

    /// Deletes only the lock `key` and its fence record, like a server that evicts keys.
    pub fn evict(&self, key: &str) {
        self.change(|state, _| state.host.server.evict(key.as_bytes()));
    }

    /// Does what `redlock init --repair` does: writes a guard record with the rules of `fencing`, and begins a quarantine. Leaves a
    /// record alone that has these rules and is of this process and this data.
    pub fn repair(&self, fencing: Fencing) {
        self.change(|state, now| {
            let wall = state.host.wall(now);
            state.host.server.repair(fencing, wall);
        });
    }

    /// Sets whether the node reports that it may evict keys. If so, it has no vote for fenced clients, and for plain clients
    /// with [`Options::refuse_eviction`](crate::Options::refuse_eviction).
    pub fn set_may_evict(&self, may_evict: bool) {
        self.change(|state, now| state.host.set_may_evict(may_evict, now));
    }

    /// Becomes a replica, which has no vote. Its data is kept.
    pub fn demote(&self) {
        self.change(|state, now| state.host.set_master(false, now));
    }

    /// Becomes a master again. It may lack data that its master had. So clients do not count its vote until the restart guard
    /// allows it (plain clients), or the quarantine of their fleet is over (fenced clients).
    pub fn promote(&self) {
        self.change(|state, now| state.host.set_master(true, now));
    }

    /// Saves the current data, for [`fail_back`](Self::fail_back).
    pub fn save(&self) {
        self.change(|state, _| state.host.save());
    }

    /// Goes back to the data that was [saved](Self::save) last, or to no data, in the same process: as after a failover to a
    /// replica that lagged behind, and back. Plain clients do not notice while their connection lives. Fenced clients do not
    /// count the vote of the node until the quarantine of their fleet is over.
    pub fn fail_back(&self) {
        self.change(|state, _| state.host.fail_back());
    }

    /// Steps its wall clock to `micros` microseconds ahead of the clock that the node was created with. By its wall clock, keys
    /// expire and fences are accepted.
    pub fn set_clock_step(&self, micros: i64) {
        self.change(|state, now| state.host.set_clock_step(micros, now));
    }

    /// Sets `key` to `token`, even if the key exists. For instance, as the lock of another client.
    ///
    /// # Panics
    ///
    /// Panics if there is no room for the key.
    #[expect(
        clippy::panic,
        reason = "a test that has no room for its own keys is wrong"
    )]
    pub fn set(&self, key: &str, token: Token, ttl: Duration) {
        self.change(|state, now| {
            let wall = state.host.wall(now);
            let set = state.host.server.set(key.as_bytes(), token, ttl, wall);
            if set.is_err() {
                panic!("a MockNode has no room for the key {key:?}");
            }
        });
    }

    /// Deletes `key`, whatever its token.
    pub fn remove(&self, key: &str) {
        self.change(|state, _| state.host.server.remove(key.as_bytes()));
    }

    /// The token in `key`. `None` if the key does not exist or has expired.
    #[must_use]
    pub fn token(&self, key: &str) -> Option<Token> {
        self.find(key).map(|(token, _)| token)
    }

    /// How long `key` still lives, in whole milliseconds, like `PTTL` of Redis. `None` if the key does not exist.
    #[must_use]
    pub fn ttl(&self, key: &str) -> Option<Duration> {
        self.find(key).map(|(_, left)| left)
    }

    /// The highest fence that was accepted for `key`. `None` if the node has no fence record for it.
    #[must_use]
    pub fn fence(&self, key: &str) -> Option<Fence> {
        self.find_fence(key).map(|(fence, _)| fence)
    }

    /// How long the node still keeps its fence record for `key`, in whole milliseconds. `None` if there is no record.
    #[must_use]
    pub fn fence_ttl(&self, key: &str) -> Option<Duration> {
        self.find_fence(key).map(|(_, left)| left)
    }

    /// The number of locks whose keys have not expired.
    #[must_use]
    pub fn len(&self) -> usize {
        self.settled().host.server.len()
    }

    /// Whether there is no lock whose key has not expired.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn find(&self, key: &str) -> Option<(Token, Duration)> {
        let host = &self.settled().host;
        let wall = host.wall(self.clock.now());
        let server = &host.server;
        let token = server.entry(key.as_bytes(), wall)?.token;
        Some((token, server.ttl(key.as_bytes(), wall)?))
    }

    fn find_fence(&self, key: &str) -> Option<(Fence, Duration)> {
        let host = &self.settled().host;
        let wall = host.wall(self.clock.now());
        host.server.fence(key.as_bytes(), wall)
    }

    fn change(&self, change: impl FnOnce(&mut State, Instant)) {
        let mut state = self.settled();
        change(&mut state, self.clock.now());
        state.wakers.wake_all();
    }

    /// The state of the node, after it has executed all commands that have arrived.
    fn settled(&self) -> impl DerefMut<Target = State> {
        let mut state = self.state.borrow_mut();
        state.settle(self.clock.now());
        state.host.expire(self.clock.now());
        state
    }

    fn send(
        &self,
        mailbox: Option<Mailbox>,
        command: &Command<'_>,
        latency_micros: Option<u32>,
    ) -> Result<Call<'_>, MockError> {
        let key = KeyName::new(command.key);
        key.whole().ok_or(MockError::KeyTooLong)?;
        let command = OwnedCommand::with_key(&command.at_node(mailbox), key);
        let ticket = self
            .settled()
            .send(mailbox, command, latency_micros, self.clock.now())?;
        Ok(Call {
            state: &self.state,
            ticket,
        })
    }

    async fn execute_for(
        &self,
        mailbox: Option<Mailbox>,
        latency_micros: Option<u32>,
        command: &Command<'_>,
    ) -> Result<Reply, NodeErrorOf<&Self>> {
        let call = self
            .send(mailbox, command, latency_micros)
            .map_err(|error| NodeError::new(MockName(self.number), Failure::Transport(error)))?;
        self.answer(call).await
    }

    /// Waits for the reply of a command. The call is dropped with the future.
    async fn answer(&self, call: Call<'_>) -> Result<Reply, NodeErrorOf<&Self>> {
        loop {
            let wait = self.settled().wait(call.ticket, self.clock.now());
            match wait {
                Wait::Over(result) => {
                    let name = MockName(self.number);
                    return result.map_err(|failure| NodeError::new(name, failure));
                }
                Wait::Until(instant) => self.clock.sleep_until(instant).await,
                Wait::ForChange => change(&self.state).await,
            }
        }
    }
}

impl<C: Clock> Transport for &MockNode<C> {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        MockName(self.number)
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        self.execute_for(None, None, command).await
    }

    fn run_id(&self) -> Option<RunId> {
        Some(self.settled().host.server.run_id())
    }
}

/// The connection of one client to a node, with the mailbox of the client. See [`MockNode::client`].
#[derive(Debug)]
pub struct MockClient<'a, C> {
    node: &'a MockNode<C>,
    mailbox: Mailbox,
    latency_micros: Option<u32>,
}

impl<C> MockClient<'_, C> {
    /// The same connection, but over another distance: sets the time that each of its commands takes to the node and back. Default:
    /// the latency of the node.
    #[must_use]
    pub fn with_latency(self, latency: Duration) -> Self {
        let micros = u32::try_from(latency.as_micros()).unwrap_or(u32::MAX);
        Self {
            latency_micros: Some(micros),
            ..self
        }
    }
}

impl<'a, C: Clock> MockClient<'a, C> {
    /// Sends a command at once, and returns a future of the reply. Sending needs no timer of the clock, so no runtime either. If the
    /// future is dropped, the command still takes effect.
    ///
    /// # Errors
    ///
    /// Why the command was not sent.
    pub fn send(
        &self,
        command: &Command<'_>,
    ) -> Result<impl Future<Output = Result<Reply, NodeErrorOf<Self>>> + use<'a, C>, MockError>
    {
        let node = self.node;
        let call = node.send(Some(self.mailbox), command, self.latency_micros)?;
        Ok(node.answer(call))
    }
}

impl<C> Clone for MockClient<'_, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<C> Copy for MockClient<'_, C> {}

impl<C: Clock> Transport for MockClient<'_, C> {
    type Name = MockName;
    type Error = MockError;

    fn name(&self) -> MockName {
        self.node.name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeErrorOf<Self>> {
        let (mailbox, latency_micros) = (Some(self.mailbox), self.latency_micros);
        self.node
            .execute_for(mailbox, latency_micros, command)
            .await
    }

    fn run_id(&self) -> Option<RunId> {
        self.node.run_id()
    }

    fn mailbox(&self) -> Option<Mailbox> {
        Some(self.mailbox)
    }

    async fn called(&mut self, key: &[u8]) -> LineCall {
        loop {
            let now = self.node.clock.now();
            let wait = self.node.settled().next_call(self.mailbox, key, now);
            match wait {
                Wait::Over(call) => return call,
                Wait::Until(instant) => self.node.clock.sleep_until(instant).await,
                Wait::ForChange => change(&self.node.state).await,
            }
        }
    }
}

/// Waits until the node has changed.
const fn change(state: &Shared<State>) -> Change<'_> {
    Change {
        state,
        number: None,
    }
}

/// Leaves no waker behind when it is dropped. A type, for the reason that is given at `Sleep` in `mock/clock.rs`.
struct Change<'a> {
    state: &'a Shared<State>,
    /// The number of its waker.
    number: Option<u64>,
}

impl Future for Change<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.number.is_some() {
            return Poll::Ready(());
        }
        self.number = Some(self.state.borrow_mut().register(context.waker()));
        Poll::Pending
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let mut state = self.state.borrow_mut();
            state.wakers.remove(number);
        }
    }
}

/// A client that waits for its reply.
struct Call<'a> {
    state: &'a Shared<State>,
    ticket: u64,
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut state = self.state.borrow_mut();
        let mut all = state.sent.iter_mut();
        if let Some(sent) = all.find(|sent| sent.ticket == self.ticket) {
            sent.is_abandoned = true;
        }
        drop(all);
        state.forget_abandoned();
    }
}

enum Wait<R> {
    Over(R),
    Until(Instant),
    ForChange,
}

impl State {
    fn send(
        &mut self,
        mailbox: Option<Mailbox>,
        command: OwnedCommand<KeyName>,
        latency_micros: Option<u32>,
        now: Instant,
    ) -> Result<u64, MockError> {
        if !self.is_up {
            return Err(MockError::Refused);
        }
        // No command overtakes another on the same way.
        let same_way = self
            .sent
            .iter()
            .filter(|sent| sent.latency_micros == latency_micros);
        let last_arrival = same_way.map(|sent| sent.arrives_at).max();
        let arrives_at = now
            .saturating_add(self.one_way(latency_micros))
            .max(last_arrival.unwrap_or(now));
        let ticket = self.next_ticket;
        let sent = Sent {
            ticket,
            arrives_at,
            progress: Progress::Unexecuted(command),
            mailbox,
            latency_micros,
            is_abandoned: false,
        };
        if !self.sent.has_room() {
            self.forget_oldest_extend();
        }
        self.sent.insert(sent).ok_or(MockError::Full)?;
        self.next_ticket += 1;
        self.settle(now);
        Ok(ticket)
    }

    fn one_way(&self, latency_micros: Option<u32>) -> Duration {
        let own = latency_micros.map(|micros| Duration::from_micros(micros.into()));
        own.unwrap_or(self.latency) / 2
    }

    /// Executes what has arrived, in the order in which it has arrived.
    fn settle(&mut self, now: Instant) {
        while !self.is_hung
            && let Some((ticket, command, latency_micros, arrival)) = self.next_arrival(now)
        {
            let result = self.host.execute(&command, arrival);
            let known_at = arrival.saturating_add(self.one_way(latency_micros));
            self.deliver(&command, arrival.saturating_add(self.latency / 2));
            let mut all = self.sent.iter_mut();
            if let Some(sent) = all.find(|sent| sent.ticket == ticket) {
                sent.progress = Progress::Answered(result, known_at);
            }
            drop(all);
            self.forget_abandoned();
        }
    }

    /// Sends the calls of `command`, which arrive at `arrives_at`.
    fn deliver(&mut self, command: &OwnedCommand<KeyName>, arrives_at: Instant) {
        let mailbox = command.place.and_then(|place| place.mailbox);
        let is_waiting = command.place.is_some_and(|place| place.ticket.is_some());
        let is_acquire = matches!(command.verb, Verb::Acquire { .. });
        if let Some(mailbox) = mailbox.filter(|_| is_acquire || !is_waiting) {
            // Calls count only behind the reply to the last acquire, and not for a client that has left.
            self.mail
                .retain(|mail| mail.mailbox != mailbox || mail.key != Some(command.key));
        }
        let mut are_called = false;
        for (mailbox, call) in self.host.server.take_calls() {
            if !self.loses_calls {
                let mail = Mail {
                    mailbox,
                    key: Some(command.key),
                    call,
                    arrives_at,
                    number: self.next_ticket,
                };
                self.next_ticket += 1;
                self.mail.insert(mail);
                are_called = true;
            }
        }
        if are_called {
            self.wakers.wake_all();
        }
    }

    /// The clients subscribe again after a restart.
    fn connect_again(&mut self, now: Instant) {
        for mailbox in self.subscribers.iter() {
            self.host.server.subscribe(*mailbox);
            self.mail.insert(Mail {
                mailbox: *mailbox,
                key: None,
                call: LineCall::Reconnected,
                arrives_at: now,
                number: self.next_ticket,
            });
        }
    }

    /// Takes the next call of a client for `key`.
    fn next_call(&mut self, mailbox: Mailbox, key: &[u8], now: Instant) -> Wait<LineCall> {
        let key = KeyName::new(key);
        let is_its = |mail: &Mail| mail.mailbox == mailbox && mail.key.is_none_or(|of| of == key);
        let next = self.mail.iter().filter(|mail| is_its(mail));
        let next = next.map(|mail| (mail.arrives_at, mail.number, mail.call));
        let next = next.min_by_key(|(arrives_at, number, _)| (*arrives_at, *number));
        let sent = self.sent.iter().filter(|sent| !sent.is_executed());
        let arrivals = sent.map(|sent| sent.arrives_at).filter(|at| *at > now);
        match next {
            Some((arrives_at, number, call)) if arrives_at <= now => {
                self.mail
                    .retain(|mail| !(is_its(mail) && mail.number == number));
                Wait::Over(call)
            }
            // A command on its way to the node may have it call this client.
            next => match arrivals.chain(next.map(|(at, ..)| at)).min() {
                Some(instant) => Wait::Until(instant),
                None => Wait::ForChange,
            },
        }
    }

    fn next_arrival(
        &self,
        now: Instant,
    ) -> Option<(u64, OwnedCommand<KeyName>, Option<u32>, Instant)> {
        let arrived = self.sent.iter().filter(|sent| sent.arrives_at <= now);
        let unexecuted = arrived.filter(|sent| !sent.is_executed());
        let next = unexecuted.min_by_key(|sent| (sent.arrives_at, sent.ticket))?;
        let Progress::Unexecuted(command) = next.progress else {
            return None;
        };
        let arrival = next.arrives_at.max(self.not_before);
        Some((next.ticket, command, next.latency_micros, arrival))
    }

    /// Loses the oldest extension on its way whose future is dropped. So a node that hangs for long has room for releases.
    fn forget_oldest_extend(&mut self) {
        let extends = self.sent.iter().filter(|sent| {
            let is_extend = matches!(
                &sent.progress,
                Progress::Unexecuted(command) if matches!(command.verb, Verb::Extend { .. })
            );
            is_extend && sent.is_abandoned
        });
        if let Some(oldest) = extends.map(|sent| sent.ticket).min() {
            self.sent.retain(|sent| sent.ticket != oldest);
        }
    }

    /// Removes commands that are executed and whose futures are dropped.
    fn forget_abandoned(&mut self) {
        self.sent
            .retain(|sent| !sent.is_abandoned || !sent.is_executed());
    }

    fn wait(&self, ticket: u64, now: Instant) -> Wait<Result<Reply, MockFailure>> {
        match self.sent.iter().find(|sent| sent.ticket == ticket) {
            Some(Sent {
                progress: Progress::Answered(result, known_at),
                ..
            }) => match *known_at <= now {
                true => Wait::Over(*result),
                false => Wait::Until(*known_at),
            },
            Some(Sent { arrives_at, .. }) if *arrives_at > now => Wait::Until(*arrives_at),
            Some(_) => Wait::ForChange,
            None => Wait::Over(Err(Failure::Transport(MockError::Reset))),
        }
    }

    /// Returns the number of the waker.
    fn register(&mut self, waker: &Waker) -> u64 {
        let number = self.next_ticket;
        self.next_ticket += 1;
        self.wakers.register(number, waker);
        number
    }
}
