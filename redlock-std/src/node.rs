//! One Redis or Valkey server, as a transport.

mod actor;
mod address;
mod answer;
mod backoff;
mod call;
mod connect_limit;
mod denied;
mod error;
mod framing;
mod host;
mod line;
mod link;
mod login;
mod mail;
mod metered;
mod observer;
mod of_process;
mod order;
mod printable;
#[cfg(feature = "probe")]
mod probe;
mod queue;
mod replies;
mod request;
mod round_trip;
mod silences;
mod socket;
mod status;
mod stop;
#[cfg(feature = "tls-rustls")]
mod tls;
mod waiting;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use redlock_core::transport::{Call as LineCall, Command, Mailbox, Reply, RunId, Verb};
use redlock_core::{Clock, Denial, Entropy, Options, Token, Transport};
use tokio::runtime::Handle;

use crate::clock::SystemClock;
use crate::entropy::SystemEntropy;
use crate::lines::Teller;

pub(crate) use actor::Actor;
pub use address::Address;
pub(crate) use backoff::jittered;
use call::{AcquireNumber, Call, CallError};
use denied::Denied;
use error::Failure;
pub use error::{NodeError, TransportError};
pub(crate) use line::Line;
pub(crate) use mail::Mail;
#[cfg(feature = "init")]
pub(crate) use mail::Subscription;
pub(crate) use observer::NodeObserver;
#[cfg(feature = "mock")]
pub(crate) use observer::Presence;
#[cfg(feature = "metrics")]
pub(crate) use observer::{NODE_FAILURES, NODE_UP};
use of_process::is_fork_of;
pub(crate) use order::Wanted;
pub use printable::printable;
#[cfg(feature = "init")]
pub(crate) use printable::without_arguments;
#[cfg(feature = "probe")]
pub use probe::Probe;
use queue::{Pushed, Queue};
#[cfg(feature = "init")]
pub(crate) use replies::Budget;
use round_trip::RoundTrip;
pub use status::NodeStatus;
pub(crate) use stop::Stop;
#[cfg(feature = "tls-rustls")]
pub use tls::{BoundedVerifier, system_roots};

/// The largest length of a key with its prefix, in bytes. Every node stores the key, and each command contains it.
pub const MAX_KEY: usize = 64 * 1024;

/// A handle to one node, for a `redlock_core::Redlock` of your own. Applications call
/// [`Redlock::connect`](crate::Redlock::connect).
///
/// It is cheap to clone, and all clones share one connection.
///
/// A call queues its command before it awaits anything. So the commands of all handles are queued in the order of the
/// calls, and dropping a future does not cancel its command. A task for the node owns the connection, and sends the
/// queued commands as one pipeline. It connects at once, reconnects if the connection breaks or stays silent, and ends
/// with the last handle.
///
/// While the node cannot be reached, the task tries to connect again after a delay of up to one second. The first call
/// that comes 30 ms or more after a failed connect makes the task try at once, and waits for the connection. Calls
/// before that fail at once. There are two exceptions. If the node refused the login, the call makes the task try, but fails
/// at once. If a TLS handshake was made in vain, or its connection lasted for less than a second again, calls do not make
/// the task try, because each handshake takes time of the thread.
#[derive(Debug, Clone)]
pub struct RedisNode {
    owner: Arc<Owner>,
    node_timeout: Duration,
    last: Option<Attempt>,
    line: Line,
    stop: Option<Stop>,
}

/// An attempt to acquire, which takes one round, or up to three for a fenced lock.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    token: Token,
    ttl_ms: u32,
    /// Whether it may have been sent. If not, there is nothing to release.
    is_sent: bool,
    /// The last acquire of this attempt that was queued.
    number: Option<AcquireNumber>,
    /// Whether the node has answered that it has granted the lock.
    is_granted: bool,
}

#[derive(Debug)]
struct Owner {
    queue: Arc<Queue>,
    mail: Arc<Mail>,
    round_trip: Arc<RoundTrip>,
    denied: Denied,
    /// The process of the actor.
    process: u32,
}

impl RedisNode {
    /// Returns a handle to the node at `url`, on the current tokio runtime.
    ///
    /// Callers wait for the node for `node_timeout`. If the node is silent for several times `node_timeout`, it is
    /// skipped until it answers again.
    ///
    /// # Errors
    ///
    /// If the URL is not that of a Redis node, or there is no runtime.
    pub fn connect(url: &str, node_timeout: Duration) -> Result<Self, crate::ConnectError> {
        let runtime = Handle::try_current().map_err(|_| crate::ConnectError::NoRuntime)?;
        let address = Address::parse(url)?;
        let (node, actor) = Self::prepare(address, node_timeout, random_mailbox(), Teller::alone());
        runtime.spawn(actor.run());
        Ok(node)
    }

    /// Returns the handle and the actor of the node. All nodes of a lock call at the same `mailbox`.
    pub(crate) fn prepare(
        address: Address,
        node_timeout: Duration,
        mailbox: Mailbox,
        lines: Teller,
    ) -> (Self, Actor) {
        let node_timeout = bounded(node_timeout);
        let address = Arc::new(address);
        let queue = Arc::new(Queue::new(Arc::clone(address.name()), node_timeout));
        let mail = Arc::new(Mail::new(mailbox, lines));
        let round_trip = Arc::new(RoundTrip::default());
        let node = Self {
            owner: Arc::new(Owner {
                queue: Arc::clone(&queue),
                mail: Arc::clone(&mail),
                round_trip: Arc::clone(&round_trip),
                denied: Denied::default(),
                process: std::process::id(),
            }),
            node_timeout,
            last: None,
            line: Line::default(),
            stop: None,
        };
        (
            node,
            Actor::new(address, queue, node_timeout, round_trip, mail),
        )
    }

    /// Returns the address of the node without its password: `host:port`, or the path of its socket.
    #[must_use]
    pub fn name(&self) -> &str {
        self.owner.queue.name()
    }

    /// Returns the status of the node, for acquires with these options.
    pub(crate) fn status(&self, options: &Options) -> NodeStatus {
        let queue = &self.owner.queue;
        let reach = queue.current_reach();
        let failure = if reach.is_connected {
            let denial = self.denial(options).map(Failure::Denied);
            denial.or_else(|| queue.refusal().map(Failure::Transport))
        } else {
            reach.error.map(Failure::Transport)
        };
        NodeStatus {
            node: Arc::clone(queue.name()),
            is_connected: reach.is_connected,
            since: reach.since.elapsed(),
            error: failure.map(|failure| NodeError::new(Arc::clone(queue.name()), failure)),
            round_trip: self.owner.round_trip.known(),
        }
    }

    /// Why the vote of the node does not count for an acquire with these options, as far as it is known.
    fn denial(&self, options: &Options) -> Option<Denial> {
        const TOKEN: Token = Token::from_bytes([0; Token::LEN]);

        let ttl_ms = u32::try_from(options.ttl().as_millis()).unwrap_or(u32::MAX);
        let acquire = Command::acquire(b"", &TOKEN, ttl_ms, options.vote_conditions());
        let admission = self.owner.queue.admission();
        let admitted = admission.check(acquire.verb, SystemClock.now());
        let of_the_guard_record = || self.owner.denied.current(options.fencing()?);
        admitted.err().or_else(of_the_guard_record)
    }

    /// Records that a lease was adopted: the node may have its key.
    pub(crate) fn adopted(&self) {
        self.owner.queue.adopted();
    }

    /// The number of releases that the node has not answered yet.
    pub(crate) fn unanswered_releases(&self) -> usize {
        self.owner.queue.unanswered_releases()
    }

    /// The number of releases that the node has not answered yet, and could answer soon.
    pub(crate) fn releases_to_wait_for(&self) -> usize {
        self.owner.queue.releases_to_wait_for()
    }

    /// Whether the node has granted the lock `token`, as far as it has answered.
    pub(crate) fn has_granted(&self, token: &Token) -> bool {
        self.last
            .is_some_and(|last| last.is_granted && last.token == *token)
    }

    /// Whether calls wait to be sent, or releases were dropped, and the node may have a key of this process.
    #[cfg(feature = "probe")]
    pub(crate) fn owes_calls(&self) -> bool {
        self.owner.queue.owes_calls()
    }

    /// Returns the problems of the node that do not cost it its vote.
    pub(crate) fn warnings(&self) -> Vec<NodeError> {
        let queue = &self.owner.queue;
        let evicts = queue
            .may_evict()
            .then_some(Failure::Denied(Denial::MayEvict));
        let given_up = Some(queue.given_up()).filter(|count| *count > 0);
        let given_up = given_up.map(TransportError::ReleasesGivenUp);
        let cannot_call = self.owner.mail.problem();
        [
            evicts,
            given_up.map(Failure::Transport),
            queue.release_refusal().map(Failure::Transport),
            cannot_call.map(Failure::Transport),
        ]
        .into_iter()
        .flatten()
        .map(|failure| NodeError::new(Arc::clone(queue.name()), failure))
        .collect()
    }

    /// Returns [`TransportError::TooFar`] if the last answer of the node took longer than the node timeout.
    fn too_far(&self) -> Option<TransportError> {
        let (node_timeout, round_trip) = (self.node_timeout, self.owner.round_trip.last());
        (round_trip > node_timeout).then_some(TransportError::TooFar {
            node_timeout,
            round_trip,
        })
    }

    /// Sets how long the callers of this handle wait for the node.
    pub(crate) fn set_node_timeout(&mut self, node_timeout: Duration) {
        self.node_timeout = bounded(node_timeout);
    }

    /// Lets `stop` end the commands of this handle.
    pub(crate) fn set_stop(&mut self, stop: Option<&Stop>) {
        self.stop = stop.cloned();
    }

    /// Queues a release whose answer no caller waits for.
    pub(crate) fn release_unattended(&self, release: &Command<'_>) {
        // With `min_hold`, it is an extension. A node without the key need not get that either.
        let is_pointless = !release.is_release() && self.has_sent_nothing_of(release.token);
        if !is_pointless && !self.is_needless(release) {
            let release = self.line.at_node(release, &self.owner.mail);
            let ttl = self.key_lasts(&release);
            let call = self.call(&release).in_place_of_a_release(ttl);
            self.owner.queue.push_unattended(call);
        }
    }

    /// Whether the last acquire has been sent, or has left the queue unsent.
    pub(crate) fn has_sent(&self) -> bool {
        let acquire = self.last.and_then(|last| last.number);
        acquire.is_none_or(|acquire| self.owner.queue.has_sent(acquire))
    }

    /// The number of the last extension that any handle has queued.
    pub(crate) fn last_extend(&self) -> u64 {
        self.owner.queue.last_extend()
    }

    /// Whether the extension with this number has been sent, or is not waited for any more.
    pub(crate) fn has_sent_extend(&self, extend: u64) -> bool {
        self.owner.queue.has_sent_extend(extend)
    }

    /// Whether calls wait for the node, as far as it is known.
    pub(crate) fn is_promising(&self) -> bool {
        self.owner.queue.is_promising()
    }

    /// Waits until the first connect has ended, in whichever way.
    pub(crate) async fn first_connect(&self) {
        self.owner.queue.first_connect().await;
    }

    /// Has the connection opened on which the node calls this client.
    pub(crate) fn want_mail(&self) {
        self.owner.mail.want();
    }

    /// Waits until it is known whether the node can call this client.
    pub(crate) async fn open_mail(&self) {
        self.owner.mail.open().await;
    }

    /// Whether the node keeps the line of the lock that this handle wants.
    pub(crate) fn keeps_line(&self) -> bool {
        self.line.is_kept(&self.owner.mail)
    }

    /// Begins to want a lock. The ticket is for the first attempt in its line, until the core knows it.
    pub(crate) fn want(&mut self, wanted: Arc<Wanted>, ticket: Option<u64>) {
        self.line.want(wanted, ticket);
    }

    /// Ends the wait for a lock: calls are ignored from now on.
    pub(crate) fn end_wait(&mut self) {
        self.line.end_wait();
    }

    async fn answer(&mut self, command: &Command<'_>) -> Result<Reply, Failure> {
        if self.is_needless(command) {
            return Err(Failure::NothingToRelease);
        }
        let was_sent = self.was_sent(command);
        self.note(command, true);
        let (has_place, pushed) = self.push(command);
        let result = match pushed {
            Ok(pushed) => {
                if let (Some(last), Some(number)) = (&mut self.last, pushed.number) {
                    last.number = Some(number);
                }
                let answer = pushed.answer.await;
                answer.unwrap_or_else(|_| {
                    Err(CallError::sent(Failure::Transport(
                        TransportError::RuntimeGone,
                    )))
                })
            }
            Err(error) => Err(CallError::unsent(Failure::Transport(error))),
        };
        let answer = match result {
            Ok(answer) => answer,
            Err(error) => {
                if !error.is_sent {
                    self.note(command, was_sent);
                }
                return Err(error.failure);
            }
        };
        let place = command.place.filter(|_| has_place);
        match command.with_place(place).reply(answer) {
            Some(reply) => {
                self.learn(command, &reply);
                reply.map_err(Failure::Denied)
            }
            None => Err(Failure::Transport(TransportError::Unexpected)),
        }
    }

    /// Queues `command`. Returns whether it is sent with its place in the line. The future of `answer` is smaller without the command
    /// that is sent.
    fn push(&mut self, command: &Command<'_>) -> (bool, Result<Pushed, TransportError>) {
        let Owner { queue, mail, .. } = &*self.owner;
        if let Some(leave) = self.line.leave_silent(command, mail) {
            queue.push_unattended(self.call(&leave));
        }
        let sent = self.line.stand(command, mail, || queue.run_id());
        (sent.place.is_some(), queue.push(self.call(&sent)))
    }

    fn call(&self, command: &Command<'_>) -> Call {
        let acquire = self.acquired_by(command).and_then(|last| last.number);
        Call::new(
            self.line.order(command),
            self.node_timeout,
            self.key_lasts(command),
        )
        .behind(acquire)
        .until(self.stop.clone())
    }

    /// How long the key of `command` lives at most if it is not extended.
    fn key_lasts(&self, command: &Command<'_>) -> Duration {
        /// For a key that was not the last one acquired by this handle: the longest TTL.
        const UNKNOWN_TTL: Duration = Options::MAX_TTL;
        /// For clocks that run at different rates.
        const SLACK: Duration = Duration::from_secs(1);

        let ttl = self.acquired_by(command).map_or(UNKNOWN_TTL, |last| {
            Duration::from_millis(last.ttl_ms.into())
        });
        ttl + ttl / 50 + SLACK
    }

    /// The acquire whose lease `command` extends or releases.
    fn acquired_by(&self, command: &Command<'_>) -> Option<Attempt> {
        self.last.filter(|last| match command.verb {
            Verb::Extend { .. } | Verb::Keep { .. } | Verb::Release => last.token == *command.token,
            Verb::Acquire { .. } => false,
        })
    }

    /// Whether `command` releases an acquire that was never sent. If an earlier one was, the client stands in the line there.
    fn is_needless(&self, command: &Command<'_>) -> bool {
        command.is_release()
            && !self.line.is_left_by(command)
            && self.has_sent_nothing_of(command.token)
    }

    fn has_sent_nothing_of(&self, token: &Token) -> bool {
        let last = self.last.as_ref();
        last.is_some_and(|last| !last.is_sent && last.token == *token)
    }

    /// Whether an earlier round of this attempt was sent.
    fn was_sent(&self, command: &Command<'_>) -> bool {
        let last = self.last.as_ref();
        command.is_acquire()
            && last.is_some_and(|last| last.is_sent && last.token == *command.token)
    }

    /// Records what the reply to an acquire tells about the vote of the node.
    fn learn(&mut self, command: &Command<'_>, reply: &Result<Reply, Denial>) {
        if !command.is_acquire() {
            return;
        }
        if let (Ok(Reply::Acquired(_)), Some(last)) = (reply, &mut self.last) {
            last.is_granted = true;
        }
        if let Some(proposal) = command.proposal {
            let denial = reply.as_ref().err();
            self.owner.denied.record(denial, proposal.fencing);
        }
    }

    fn note(&mut self, command: &Command<'_>, is_sent: bool) {
        let token = *command.token;
        if let Verb::Extend { ttl_ms, .. } = command.verb
            && self.last.is_none_or(|last| last.token != token)
        {
            // The lease was adopted: another process has sent its acquire.
            self.last = Some(Attempt {
                token,
                ttl_ms,
                is_sent: true,
                is_granted: false,
                number: None,
            });
        }
        if let Verb::Acquire { ttl_ms, .. } = command.verb {
            self.last = Some(Attempt {
                token,
                ttl_ms,
                is_sent,
                is_granted: false,
                number: self
                    .last
                    .filter(|last| last.token == token)
                    .and_then(|last| last.number),
            });
        }
    }
}

/// A new mailbox: eight random bytes.
pub(crate) fn random_mailbox() -> Mailbox {
    let mut bytes = [0; 8];
    SystemEntropy.fill(&mut bytes);
    Mailbox::new(bytes)
}

/// Limits `node_timeout`, so that it can be added to an instant. The limit is longer than any round.
fn bounded(node_timeout: Duration) -> Duration {
    node_timeout.min(Options::MAX_TTL)
}

impl Transport for RedisNode {
    type Name = Arc<str>;
    type Error = TransportError;

    const DOUBTS_ADDRESSES: bool = true;

    fn name(&self) -> Arc<str> {
        Arc::clone(self.owner.queue.name())
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeError> {
        let result = self.answer(command).await;
        result.map_err(|failure| {
            let failure = match failure {
                Failure::Transport(TransportError::Silent(_)) => {
                    self.too_far().map_or(failure, Failure::Transport)
                }
                failure => failure,
            };
            NodeError::new(Transport::name(self), failure)
        })
    }

    fn run_id(&self) -> Option<RunId> {
        self.owner.queue.run_id()
    }

    fn doubt_address(&mut self) {
        self.owner.queue.doubt_address();
    }

    fn mailbox(&self) -> Option<Mailbox> {
        let Owner { queue, mail, .. } = &*self.owner;
        self.line.mailbox(mail, queue.run_id())
    }

    async fn called(&mut self, key: &[u8]) -> LineCall {
        self.line.called(key).await
    }

    fn explain_timeout(&self, after: Duration) -> Option<TransportError> {
        let queue = &self.owner.queue;
        if is_fork_of(self.owner.process) {
            Some(TransportError::Forked)
        } else if queue.is_connecting() && !(self.has_sent() && queue.was_connected()) {
            Some(TransportError::NotConnected(after))
        } else if self.has_sent() {
            self.too_far()
        } else {
            // Commands also wait behind the first one on a connection, until the node has answered that.
            Some(self.too_far().unwrap_or(TransportError::Overloaded))
        }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.queue.close();
        self.mail.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_release_of_an_earlier_lease_waits_for_as_long_as_any_key_lives() {
        let address = Address::parse("redis://127.0.0.1:1").unwrap();
        let (node, _actor) = RedisNode::prepare(
            address,
            Duration::from_millis(50),
            random_mailbox(),
            Teller::alone(),
        );
        let token = Token::from_bytes([1; Token::LEN]);
        let call = node.call(&Command::release(b"dock-7", &token));
        drop(node);
        assert!(!call.is_pointless(Instant::now() + Options::MAX_TTL));
    }

    #[test]
    fn a_release_that_was_written_twice_waits_for_no_longer_than_its_key_lives() {
        let address = Address::parse("redis://127.0.0.1:1").unwrap();
        let (mut node, _actor) = RedisNode::prepare(
            address,
            Duration::from_millis(50),
            random_mailbox(),
            Teller::alone(),
        );
        let token = Token::from_bytes([1; Token::LEN]);
        node.note(&Command::extend(b"dock-7", &token, 1_000), true);
        let mut call = node.call(&Command::release(b"dock-7", &token));
        drop(node);
        let in_a_minute = Instant::now() + Duration::from_secs(60);
        // The node may have been stopped before it read the acquire.
        for _ in 0..2 {
            assert!(!call.is_pointless(in_a_minute));
            call.write();
        }
        assert!(!call.is_pointless(Instant::now() + Duration::from_secs(1)));
        assert!(call.is_pointless(Instant::now() + Duration::from_secs(9)));
    }
}
