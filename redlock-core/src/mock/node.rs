//! A node that lives in memory.

use core::cell::RefCell;
use core::future::poll_fn;
use core::task::{Poll, Waker};
use core::time::Duration;

use crate::command::Command;
use crate::denial::Denial;
use crate::fence::Fence;
use crate::key::KeyName;
use crate::mock::error::{MockError, MockErrorKind};
use crate::mock::slots::Slots;
use crate::mock::store::{Data, Deadline, Store};
use crate::node_info::RunId;
use crate::owned::OwnedCommand;
use crate::reply::Reply;
use crate::time::{Clock, Instant};
use crate::token::Token;
use crate::transport::Transport;

/// A node in memory: keys that expire, and every way in which a node can fail a client.
///
/// A reference to it is a [`Transport`]; any number of clients may share it, each with a reference of
/// its own. It keeps time by its own clock, so a test can let nodes disagree. It has room for 64 keys
/// of at most 64 bytes, and for 64 commands on their way.
///
/// A node that hangs keeps what was sent to it and does it when it resumes, as a stopped server with
/// open connections does: also what the client has given up by then.
#[derive(Debug)]
pub struct MockNode<C> {
    number: usize,
    clock: C,
    state: RefCell<State>,
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
    store: Store,
    /// What was saved, for [`MockNode::fail_back`].
    saved: Data,
    wakers: Slots<Waker, MAX_SENT>,
}

const MAX_SENT: usize = 64;

/// A command on its way to the node, or its reply on the way back.
#[derive(Debug)]
struct Sent {
    ticket: u64,
    arrives_at: Instant,
    command: OwnedCommand<KeyName>,
    /// What came of it, and since when the client can know.
    answer: Option<(Result<Reply, MockErrorKind>, Instant)>,
    /// The client has dropped its future: the command still takes effect, the reply goes nowhere.
    is_abandoned: bool,
}

impl<C: Clock> MockNode<C> {
    /// A node that is up, empty and answers at once. Errors call it by `number`.
    #[must_use]
    pub const fn new(number: usize, clock: C) -> Self {
        Self {
            number,
            clock,
            state: RefCell::new(State {
                is_up: true,
                is_hung: false,
                latency: Duration::ZERO,
                not_before: Instant::from_micros(0),
                next_ticket: 0,
                sent: Slots::new(),
                store: Store::new(number),
                saved: Data::EMPTY,
                wakers: Slots::new(),
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

    /// Lets each command take `latency` from the client to the node and back.
    pub fn set_latency(&self, latency: Duration) {
        self.settled().latency = latency;
    }

    /// Stops answering, with connections open, as a server under SIGSTOP does.
    pub fn hang(&self) {
        self.settled().is_hung = true;
    }

    /// Does what was sent in the meantime, and answers again.
    pub fn resume(&self) {
        self.change(|state, now| {
            state.is_hung = false;
            state.not_before = now;
        });
    }

    /// Dies: refuses connections, and loses the commands that were on their way. The data is kept
    /// for [`restart`](Self::restart).
    pub fn stop(&self) {
        self.change(|state, now| {
            state.is_up = false;
            state.is_hung = false;
            for sent in state.sent.iter_mut() {
                sent.answer.get_or_insert((Err(MockErrorKind::Reset), now));
            }
            state.forget_abandoned();
        });
    }

    /// Comes back with its data, as a server does that fsyncs every write. Clients notice, and do not count
    /// its vote until the [restart guard](crate::Options::restart_guard) lets them.
    pub fn restart(&self) {
        self.stop();
        self.change(|state, now| {
            state.is_up = true;
            state.store.restart(now);
        });
    }

    /// Comes back without its data.
    pub fn restart_empty(&self) {
        self.restart();
        self.clear();
    }

    /// Forgets all keys, as FLUSHALL does. Plain clients do not notice; fenced ones do not count its vote
    /// until the quarantine of their fleet is over.
    pub fn clear(&self) {
        self.change(|state, _| state.store.clear());
    }

    /// Forgets the lock `key` and its fence and nothing else, as a server that evicts keys does.
    pub fn evict(&self, key: &str) {
        let key = KeyName::new(key.as_bytes());
        self.change(|state, _| state.store.evict(&key));
    }

    /// Says from now on that it may evict keys, or that it does not. Fenced clients give it no vote while it may, and
    /// plain ones none with [`Options::refuse_eviction`](crate::Options::refuse_eviction).
    pub fn set_may_evict(&self, may_evict: bool) {
        self.change(|state, now| state.store.set_may_evict(may_evict, now));
    }

    /// Becomes a replica, which has no vote. Its data is kept.
    pub fn demote(&self) {
        self.change(|state, now| state.store.set_master(false, now));
    }

    /// Is a master again. It may lack what its master had: clients do not count its vote until the restart guard, or the
    /// quarantine of their fleet, lets them.
    pub fn promote(&self) {
        self.change(|state, now| state.store.set_master(true, now));
    }

    /// Saves the data of this moment, for [`fail_back`](Self::fail_back).
    pub fn save(&self) {
        self.change(|state, _| state.saved = state.store.data());
    }

    /// Has the data that was [saved](Self::save) last, or none, in the same process: as after a failover to a replica
    /// that lagged behind, and back. Plain clients whose connection lives do not notice; fenced ones do not count its
    /// vote until the quarantine of their fleet is over.
    pub fn fail_back(&self) {
        self.change(|state, _| state.store.fail_back(state.saved.clone()));
    }

    /// Sets its wall clock, by which keys expire and fences are accepted: so many microseconds ahead of the
    /// clock that it was made with.
    pub fn set_clock_step(&self, micros: i64) {
        self.change(|state, now| {
            state.store.clock_step = micros;
            state.store.expire(now);
        });
    }

    /// Puts `token` under `key`, whatever is there: another client's lock, for instance.
    ///
    /// # Panics
    ///
    /// When there is no room for the key.
    #[expect(
        clippy::panic,
        reason = "a test that has no room for its own keys is wrong"
    )]
    pub fn set(&self, key: &str, token: Token, ttl: Duration) {
        let name = KeyName::new(key.as_bytes());
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        self.change(|state, now| {
            let is_short = name.whole().is_some();
            let deadline = Deadline::after(state.store.wall(now), ttl_ms);
            let set = state.store.set(name, token, deadline);
            if !is_short || set.is_err() {
                panic!("a MockNode has no room for the key {key:?}");
            }
        });
    }

    /// Deletes `key`, whatever is there.
    pub fn remove(&self, key: &str) {
        let key = KeyName::new(key.as_bytes());
        self.change(|state, _| state.store.remove(&key));
    }

    /// The token under `key`, if it is there and has not expired.
    #[must_use]
    pub fn token(&self, key: &str) -> Option<Token> {
        self.find(key).map(|(token, _)| token)
    }

    /// For how long `key` lives from now, if it is there, in whole milliseconds as Redis says it (`PTTL`).
    #[must_use]
    pub fn ttl(&self, key: &str) -> Option<Duration> {
        self.find(key).map(|(_, left)| left)
    }

    /// The highest fence that was accepted for `key`, if it is remembered.
    #[must_use]
    pub fn fence(&self, key: &str) -> Option<Fence> {
        self.find_fence(key).map(|(fence, _)| fence)
    }

    /// For how long that fence is remembered from now, in whole milliseconds.
    #[must_use]
    pub fn fence_ttl(&self, key: &str) -> Option<Duration> {
        self.find_fence(key).map(|(_, left)| left)
    }

    /// How many keys of locks there are that have not expired.
    #[must_use]
    pub fn len(&self) -> usize {
        self.settled().store.len()
    }

    /// Whether there is no key of a lock that has not expired.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn find(&self, key: &str) -> Option<(Token, Duration)> {
        let key = KeyName::new(key.as_bytes());
        let store = &self.settled().store;
        store.find(&key, store.wall(self.clock.now()))
    }

    fn find_fence(&self, key: &str) -> Option<(Fence, Duration)> {
        let key = KeyName::new(key.as_bytes());
        let store = &self.settled().store;
        store.find_fence(&key, store.wall(self.clock.now()))
    }

    fn change(&self, change: impl FnOnce(&mut State, Instant)) {
        let mut state = self.settled();
        change(&mut state, self.clock.now());
        state.wakers.take_all().for_each(Waker::wake);
    }

    /// The state, with everything done that has arrived by now.
    fn settled(&self) -> core::cell::RefMut<'_, State> {
        let mut state = self.state.borrow_mut();
        state.settle(self.clock.now());
        state.store.expire(self.clock.now());
        state
    }

    fn send(&self, command: &Command<'_>) -> Result<u64, MockErrorKind> {
        let key = KeyName::new(command.key);
        key.whole().ok_or(MockErrorKind::KeyTooLong)?;
        let command = OwnedCommand::new(command, key);
        self.settled().send(command, self.clock.now())
    }

    fn error(&self, kind: MockErrorKind) -> MockError {
        MockError {
            node: self.number,
            kind,
        }
    }
}

impl<C: Clock> Transport for &MockNode<C> {
    type Error = MockError;

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, MockError> {
        let ticket = self.send(command).map_err(|kind| self.error(kind))?;
        let call = Call {
            state: &self.state,
            ticket,
        };
        loop {
            let wait = self.settled().wait(ticket, self.clock.now());
            match wait {
                Wait::Over(result) => return result.map_err(|kind| self.error(kind)),
                Wait::Until(instant) => self.clock.sleep_until(instant).await,
                Wait::ForChange => call.change().await,
            }
        }
    }

    fn timed_out(&self, after: Duration) -> MockError {
        self.error(MockErrorKind::TimedOut(after))
    }

    fn duplicate_of(&self, first: &Self) -> Option<MockError> {
        Some(self.error(MockErrorKind::DuplicateOf { node: first.number }))
    }

    fn run_id(&self) -> Option<RunId> {
        Some(self.settled().store.run_id())
    }

    fn denial(error: &MockError) -> Option<Denial> {
        match error.kind {
            MockErrorKind::Denied(denial) => Some(denial),
            _ => None,
        }
    }
}

/// A client that waits for its reply.
struct Call<'a> {
    state: &'a RefCell<State>,
    ticket: u64,
}

impl Call<'_> {
    async fn change(&self) {
        let mut is_registered = false;
        // Owns the flag, see `Sleep` of the clock.
        poll_fn(move |context| {
            if is_registered {
                return Poll::Ready(());
            }
            is_registered = true;
            self.state.borrow_mut().register(context.waker());
            Poll::Pending
        })
        .await;
    }
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

enum Wait {
    Over(Result<Reply, MockErrorKind>),
    Until(Instant),
    ForChange,
}

impl State {
    fn send(&mut self, command: OwnedCommand<KeyName>, now: Instant) -> Result<u64, MockErrorKind> {
        if !self.is_up {
            return Err(MockErrorKind::Refused);
        }
        let last_arrival = self.sent.iter().map(|sent| sent.arrives_at).max();
        let arrives_at = now
            .saturating_add(self.latency / 2)
            .max(last_arrival.unwrap_or(now));
        let ticket = self.next_ticket;
        let sent = Sent {
            ticket,
            arrives_at,
            command,
            answer: None,
            is_abandoned: false,
        };
        self.sent.insert(sent).ok_or(MockErrorKind::Full)?;
        self.next_ticket += 1;
        self.settle(now);
        Ok(ticket)
    }

    /// Executes what has arrived, in the order in which it was sent.
    fn settle(&mut self, now: Instant) {
        while !self.is_hung
            && let Some((ticket, command, arrival)) = self.next_arrival(now)
        {
            let result = self.store.execute(&command, arrival);
            let known_at = arrival.saturating_add(self.latency / 2);
            let mut all = self.sent.iter_mut();
            if let Some(sent) = all.find(|sent| sent.ticket == ticket) {
                sent.answer = Some((result, known_at));
            }
            drop(all);
            self.forget_abandoned();
        }
    }

    fn next_arrival(&self, now: Instant) -> Option<(u64, OwnedCommand<KeyName>, Instant)> {
        self.sent
            .iter()
            .filter(|sent| sent.answer.is_none() && sent.arrives_at <= now)
            .min_by_key(|sent| sent.ticket)
            .map(|sent| {
                let arrival = sent.arrives_at.max(self.not_before);
                (sent.ticket, sent.command, arrival)
            })
    }

    /// Nobody waits for a reply to them, and it is known what came of them.
    fn forget_abandoned(&mut self) {
        self.sent
            .retain(|sent| !sent.is_abandoned || sent.answer.is_none());
    }

    fn wait(&self, ticket: u64, now: Instant) -> Wait {
        match self.sent.iter().find(|sent| sent.ticket == ticket) {
            Some(Sent {
                answer: Some((result, known_at)),
                ..
            }) if *known_at <= now => Wait::Over(*result),
            Some(Sent {
                answer: Some((_, known_at)),
                ..
            }) => Wait::Until(*known_at),
            Some(Sent { arrives_at, .. }) if *arrives_at > now => Wait::Until(*arrives_at),
            Some(_) => Wait::ForChange,
            None => Wait::Over(Err(MockErrorKind::Reset)),
        }
    }

    fn register(&mut self, waker: &Waker) {
        if self.wakers.insert(waker.clone()).is_none() {
            // Whoever finds no room in a crowd asks again.
            waker.wake_by_ref();
        }
    }
}
