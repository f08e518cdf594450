//! Nodes in memory, for tests without servers.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use redlock_core::mock::{MockError, MockNode};
use redlock_core::transport::{Call, Command, Mailbox, Reply, RunId, Verb};
use redlock_core::{Clock, Failure, Instant, Token, Transport};
use tokio::runtime::Handle;
use tokio::task::yield_now;

use crate::lines::Teller;
use crate::lock_clock::LockClock;
use crate::node::{Line, Mail, NodeError, NodeStatus, Presence, Stop, TransportError, Wanted};

/// A node in memory, for [`Redlock::in_memory`](crate::Redlock::in_memory): a test uses it to see what its code does when nodes hang,
/// die and come back.
///
/// It executes the same commands as a server, by the rules of the scripts, and stands on tokio's clock. A clone is the same node.
/// A guard that is used outside of that runtime reads another clock.
/// It has room for 64 keys of at most 64 bytes, for the fence records of as many, which outlive a release by about a minute with the
/// default [`Fencing`](crate::Fencing), and for 64 commands on their way. A release without room is dropped, and
/// [`close`](crate::Redlock::close) counts it. It can call 16 handles, and keeps lines for three locks at a time, of at most twelve
/// handles each: the others that wait look again after delays, in no order.
///
/// A new node has a vote at once, as a server after `redlock init`.
///
/// [`Redlock::status`](crate::Redlock::status) tells whether such a node is up. It does not tell that it hangs, nor that it has no
/// vote after a restart, nor its round trip: test a readiness check against real servers. Each round asks a node that hangs, which is
/// skipped if it is a server.
#[derive(Clone)]
pub struct MemoryNode {
    name: Arc<str>,
    node: Arc<MockNode<LockClock>>,
    /// When it died or started last.
    changed_at: Arc<Mutex<Instant>>,
}

impl MemoryNode {
    /// Returns `N` nodes that are up and empty, and answer at once. Their names in errors are `node 1`, `node 2` and so on.
    #[must_use]
    pub fn array<const N: usize>() -> [Self; N] {
        std::array::from_fn(|index| {
            let number = index + 1;
            Self {
                name: format!("node {number}").into(),
                node: Arc::new(MockNode::new(number, LockClock::Tokio)),
                changed_at: Arc::new(Mutex::new(LockClock::Tokio.now())),
            }
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether both are the same node.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.node, &other.node)
    }

    /// Stops answering, with connections open, like a server under SIGSTOP. Commands wait in it until it
    /// [resumes](Self::resume).
    pub fn hang(&self) {
        self.node.hang();
    }

    /// Executes the commands that were sent while it hung, and answers again.
    pub fn resume(&self) {
        self.node.resume();
    }

    /// Dies: refuses connections, and loses the commands that were on their way. Releases of this time are lost too, and
    /// [`close`](crate::Redlock::close) does not count them: the keys expire.
    pub fn kill(&self) {
        self.node.stop();
        self.changed();
    }

    /// Starts again without its data, like a server without persistence. It has no vote until every lease that it may have
    /// forgotten is over, as [`Options::restart_guard`](crate::Options::restart_guard) explains.
    pub fn restart(&self) {
        self.node.restart_empty();
        self.changed();
    }

    /// Starts again with its data, like a server with `appendfsync always`. Clients notice the restart as in
    /// [`restart`](Self::restart).
    pub fn restart_with_data(&self) {
        self.node.restart();
        self.changed();
    }

    fn changed(&self) {
        *self.lock() = LockClock::Tokio.now();
    }

    fn lock(&self) -> MutexGuard<'_, Instant> {
        self.changed_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Deletes all keys, as FLUSHALL does.
    pub fn flush(&self) {
        self.node.clear();
    }

    /// Sets the time that each command takes from a client to the node and back. Default: zero.
    pub fn set_latency(&self, latency: Duration) {
        self.node.set_latency(latency);
    }

    /// Steps its wall clock to `micros` microseconds ahead of the clock of the clients, or back if negative. By its wall clock, keys
    /// expire and fences are accepted. Default: zero.
    pub fn set_clock_step(&self, micros: i64) {
        self.node.set_clock_step(micros);
    }

    /// Sets `key` to `token` for `ttl`, even if the key exists: the lock of another client.
    ///
    /// # Panics
    ///
    /// If there is no room for the key.
    pub fn set(&self, key: &str, token: Token, ttl: Duration) {
        self.node.set(key, token, ttl);
    }

    /// Deletes `key`, whatever its token.
    pub fn remove(&self, key: &str) {
        self.node.remove(key);
    }

    /// Returns the token in `key`. `None` if the key does not exist or has expired.
    #[must_use]
    pub fn token(&self, key: &str) -> Option<Token> {
        self.node.token(key)
    }

    /// Returns how long `key` still lives. `None` if the key does not exist.
    #[must_use]
    pub fn ttl(&self, key: &str) -> Option<Duration> {
        self.node.ttl(key)
    }

    /// Returns the number of clients that stand in the waiting line of `key`.
    #[must_use]
    pub fn waiting(&self, key: &str) -> usize {
        self.node.waiting(key)
    }

    /// Returns the number of locks whose keys have not expired.
    #[must_use]
    pub fn lock_count(&self) -> usize {
        self.node.len()
    }

    fn run_id(&self) -> Option<RunId> {
        (&*self.node).run_id()
    }

    /// Returns the connection of a client whose process has this mailbox.
    pub(crate) fn client(&self, mailbox: Mailbox, lines: Teller, runtime: &Handle) -> MemoryClient {
        // Subscribes.
        let _client = self.node.client(mailbox);
        let mail = Arc::new(Mail::new(mailbox, lines));
        mail.opened(None);
        MemoryClient {
            node: self.clone(),
            line: Line::default(),
            mail,
            runtime: runtime.clone(),
            granted: None,
            sent: None,
            stop: None,
            link: Arc::new(MemoryLink::new(&self.name, Arc::clone(&self.node), mailbox)),
        }
    }
}

impl fmt::Debug for MemoryNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MemoryNode").field(&self.name).finish()
    }
}

/// The connection of a client to a node in memory.
#[derive(Debug, Clone)]
pub(crate) struct MemoryClient {
    node: MemoryNode,
    line: Line,
    /// Which tasks of the handle wait, and what the node tells of its lines. The calls themselves do not pass through it.
    mail: Arc<Mail>,
    runtime: Handle,
    /// The token of the last lock that the node has granted.
    granted: Option<Token>,
    /// The token of the last command that was sent and is not a release: the node may have its key.
    sent: Option<Token>,
    link: Arc<MemoryLink>,
    stop: Option<Stop>,
}

/// Whether a handle is connected to a node in memory, as far as its commands have told. For metrics and traces.
#[derive(Debug)]
struct MemoryLink {
    is_up: AtomicBool,
    presence: Presence,
    node: Arc<MockNode<LockClock>>,
    mailbox: Mailbox,
    /// How many releases were dropped because too many commands were on their way.
    given_up: AtomicU64,
}

impl MemoryLink {
    fn new(name: &str, node: Arc<MockNode<LockClock>>, mailbox: Mailbox) -> Self {
        let is_up = node.is_up();
        let presence = Presence::new(name);
        if is_up {
            presence.up(name);
        }
        Self {
            is_up: AtomicBool::new(is_up),
            presence,
            node,
            mailbox,
            given_up: AtomicU64::new(0),
        }
    }

    /// Records that a release was not sent. If the node may have its key, the key is left.
    fn dropped(&self, error: MockError, may_be_left: bool) {
        if error == MockError::Full && may_be_left {
            self.given_up.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records the result of a command.
    fn record(&self, name: &str, result: Result<(), &TransportError>) {
        let was_up = self.is_up.swap(result.is_ok(), Ordering::Relaxed);
        match result {
            Ok(()) if !was_up => self.presence.up(name),
            Err(error) if was_up => self.presence.down(name, error),
            _ => {}
        }
    }
}

impl Drop for MemoryLink {
    fn drop(&mut self) {
        self.presence.closed(*self.is_up.get_mut());
        // Makes room for another handle.
        self.node.disconnect(self.mailbox);
    }
}

impl MemoryClient {
    pub(crate) fn mailbox(&self) -> Mailbox {
        self.mail.mailbox()
    }

    /// Sends a release whose answer no caller waits for. A node that is down loses it.
    pub(crate) fn release_unattended(&self, release: &Command<'_>) {
        let may_be_left = self.may_have(release.token);
        let release = self.line.at_node(release, &self.mail);
        let release = self.line.order(&release);
        let (node, mail) = (Arc::clone(&self.node.node), Arc::clone(&self.mail));
        let link = Arc::clone(&self.link);
        let mut learn = Box::pin(async move {
            let release = release.command();
            let client = node.client(mail.mailbox());
            let answer = match client.send(&release) {
                Ok(answer) => answer,
                Err(error) => return link.dropped(error, may_be_left),
            };
            // Sent by the first poll. The others are on the runtime, whose timer the answer needs.
            yield_now().await;
            if let Ok(reply) = answer.await {
                mail.learn_reply(release.key, &reply);
            }
        });
        let first = learn.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if first.is_pending() {
            drop(self.runtime.spawn(learn));
        }
    }

    /// Begins to want a lock. The ticket is for the first attempt in its line, until the core knows it.
    pub(crate) fn want(&mut self, wanted: Arc<Wanted>, ticket: Option<u64>) {
        self.line.want(wanted, ticket);
    }

    /// Ends the wait for a lock.
    pub(crate) fn end_wait(&mut self) {
        self.line.end_wait();
    }

    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.node.name)
    }

    /// The releases that the node has not executed yet, unless it is down: then they are lost.
    pub(crate) fn releases_to_wait_for(&self) -> usize {
        self.node.node.unexecuted_releases(self.mailbox())
    }

    /// The releases that the node has not executed yet, and those that were dropped.
    pub(crate) fn unanswered_releases(&self) -> usize {
        let given_up = usize::try_from(self.given_up()).unwrap_or(usize::MAX);
        self.releases_to_wait_for().saturating_add(given_up)
    }

    /// The number of releases that were dropped because too many commands were on their way.
    pub(crate) fn given_up(&self) -> u64 {
        self.link.given_up.load(Ordering::Relaxed)
    }

    pub(crate) fn warnings(&self) -> Vec<NodeError> {
        let given_up = Some(self.given_up()).filter(|count| *count > 0);
        let given_up = given_up.map(TransportError::ReleasesGivenUp);
        let warnings = given_up.map(|kind| NodeError::new(self.name(), Failure::Transport(kind)));
        warnings.into_iter().collect()
    }

    /// Whether the node may have the key of this lock: a command for it was sent.
    fn may_have(&self, token: &Token) -> bool {
        self.sent.as_ref() == Some(token)
    }

    pub(crate) fn has_granted(&self, token: &Token) -> bool {
        self.granted.as_ref() == Some(token)
    }

    /// Whether the node is up. It does not tell whether it hangs or has a vote.
    pub(crate) fn status(&self) -> NodeStatus {
        let is_connected = self.node.node.is_up();
        let error = Failure::Transport(TransportError::Unreachable("connection refused".into()));
        let error = (!is_connected).then(|| NodeError::new(self.name(), error));
        NodeStatus {
            node: self.name(),
            is_connected,
            since: LockClock::Tokio
                .now()
                .saturating_duration_since(*self.node.lock()),
            error,
            round_trip: None,
        }
    }

    /// Lets `stop` end the commands of this handle.
    pub(crate) fn set_stop(&mut self, stop: Option<&Stop>) {
        self.stop = stop.cloned();
    }

    pub(crate) async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeError> {
        if self.stop.as_ref().is_some_and(Stop::is_set) {
            let stopped = Failure::Transport(TransportError::Disconnected);
            return Err(NodeError::new(self.name(), stopped));
        }
        let sent = self.line.stand(command, &self.mail, || self.node.run_id());
        let client = self.node.node.client(self.mailbox());
        let is_release = matches!(command.verb, Verb::Release | Verb::Keep { .. });
        let result = match client.send(&sent) {
            Ok(answer) => {
                if !is_release {
                    self.sent = Some(*command.token);
                }
                answer.await.map_err(|error| *error.failure())
            }
            Err(error) => {
                if is_release {
                    self.link.dropped(error, self.may_have(command.token));
                }
                Err(Failure::Transport(error))
            }
        };
        if let Ok(reply) = &result {
            self.mail.learn_reply(command.key, reply);
            if let Reply::Acquired(_) = reply {
                self.granted = Some(*command.token);
            }
        }
        let result = result.map_err(|failure| NodeError::new(self.name(), self.failure(&failure)));
        let told = match result.as_ref().map_err(NodeError::failure) {
            Err(Failure::Transport(
                error @ (TransportError::Unreachable(_) | TransportError::Disconnected),
            )) => Err(error),
            _ => Ok(()),
        };
        self.link.record(&self.node.name, told);
        result
    }

    pub(crate) fn run_id(&self) -> Option<RunId> {
        self.node.run_id()
    }

    pub(crate) async fn called(&self, key: &[u8]) -> Call {
        self.node.node.client(self.mailbox()).called(key).await
    }

    /// The failure of a server in the same state.
    fn failure(
        &self,
        failure: &redlock_core::mock::MockFailure,
    ) -> Failure<Arc<str>, TransportError> {
        match failure {
            Failure::Denied(denial) => Failure::Denied(*denial),
            Failure::TimedOut(after) => Failure::TimedOut(*after),
            Failure::DuplicateOf(_) => Failure::DuplicateOf(self.name()),
            Failure::NothingToRelease => Failure::NothingToRelease,
            Failure::Transport(error) => Failure::Transport(match error {
                MockError::Refused => TransportError::Unreachable("connection refused".into()),
                MockError::Reset => TransportError::Disconnected,
                MockError::Full => TransportError::Overloaded,
                other => TransportError::Rejected(other.to_string().into()),
            }),
            _ => Failure::Transport(TransportError::Unexpected),
        }
    }
}
