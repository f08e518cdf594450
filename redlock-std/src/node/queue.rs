//! Pending commands for one node, drained by its actor, and what is known about the node.

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use redlock_core::Clock;
use redlock_core::transport::{Admission, Answer, NodeInfo, RunId};
use tokio::sync::{Notify, oneshot, watch};

use super::call::{AcquireNumber, Call, CallError, Releases, Vote};
use super::error::{Failure, TransportError};
use super::observer::Presence;
use super::waiting::Waiting;
use crate::clock::SystemClock;
use crate::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The pending commands of one node, and the status of the node.
///
/// The queue is bounded: acquires and extends are refused if very many of them wait, or if the node does not answer.
/// Releases are queued even then, so that a node that is back keeps no key of a released lease. Each release belongs to
/// an acquire that was sent, so there are no more releases than attempts. A release that was written twice is dropped when its key
/// must have expired; otherwise, when no network delivers the acquire any more.
pub(crate) struct Queue {
    name: Arc<str>,
    state: Mutex<State>,
    /// Outlives the connections, so that another process behind the same address is noticed. Read for every round
    /// and written on every connect.
    admission: RwLock<Admission>,
    /// The name of the node may lead elsewhere by now.
    is_address_in_doubt: AtomicBool,
    /// Notified when the last handle is dropped.
    closed: Notify,
    /// Whether the first connect has ended.
    was_tried: watch::Sender<bool>,
    presence: Presence,
}

#[derive(Debug)]
struct State {
    status: Status,
    waiting: Waiting,
    actor: Option<Waker>,
    /// Whether the last handle was dropped.
    is_closed: bool,
    /// Whether there has been a connection.
    was_connected: bool,
    /// Whether a lease was adopted, which another process may have acquired on this node.
    has_adopted: bool,
    /// How many releases were dropped because too many waited.
    given_up: u64,
    /// How many releases were dropped, or are unanswered, because the actor has ended.
    lost: usize,
    releases: Arc<Releases>,
    /// The longest node timeout of the calls since the last connect.
    longest_timeout: Duration,
    /// Since when the node has been connected and has answered, or has not.
    reach: Reach,
    /// Why the node has refused the last acquire, if it refuses all of them.
    refusal: Option<TransportError>,
    /// Why the node has refused the last release, if it did.
    release_refusal: Option<TransportError>,
    /// When the waiting calls were looked through last, for those that are pointless.
    pruned_at: Option<Instant>,
}

/// Whether the node is reached.
#[derive(Debug, Clone)]
pub(crate) struct Reach {
    pub(crate) since: Instant,
    pub(crate) is_connected: bool,
    /// Why it is not connected. `None` before the first connect has ended.
    pub(crate) error: Option<TransportError>,
}

/// The status of the node.
#[derive(Debug)]
enum Status {
    /// Connecting: calls wait for the connection.
    Connecting,
    /// Connected: calls wait for replies.
    Up,
    /// The node has not answered since then. Calls fail at once, except those with a longer timeout.
    Silent {
        since: Instant,
        given_up_at: Instant,
    },
    /// Calls fail at once, for this reason. If there is a `probe_at`, the first call from then on lets the actor
    /// reconnect, and waits for the connection.
    Failing {
        kind: TransportError,
        probe_at: Option<Instant>,
    },
    /// The actor has ended. Calls fail at once, and releases are not queued.
    Ended,
}

/// The largest number of waiting acquires, and of waiting extends. A burst of tasks needs less, and so many take some
/// megabytes.
const MAX_WAITING: usize = 16_384;

/// The largest total length of their keys, approximately.
const MAX_KEY_BYTES: usize = 64 << 20;

/// How long the actor tries to send the queued releases after the last handle is dropped.
const FAREWELL: Duration = Duration::from_secs(30);

/// A call that was queued.
#[derive(Debug)]
pub(crate) struct Pushed {
    pub(crate) answer: oneshot::Receiver<Result<Answer, CallError>>,
    /// `Some` if it is an acquire.
    pub(crate) number: Option<AcquireNumber>,
}

/// Calls for one write.
pub(crate) struct Bundle {
    pub(crate) calls: Vec<Call>,
    /// When the node is asked for its identity, ahead of the calls. `None` if it is not asked.
    pub(crate) asked_at: Option<redlock_core::Instant>,
}

impl Queue {
    pub(crate) fn new(name: Arc<str>, node_timeout: Duration) -> Self {
        Self {
            presence: Presence::new(&name),
            name,
            state: Mutex::new(State {
                status: Status::Connecting,
                waiting: Waiting::default(),
                actor: None,
                is_closed: false,
                was_connected: false,
                has_adopted: false,
                given_up: 0,
                lost: 0,
                releases: Arc::default(),
                longest_timeout: node_timeout,
                reach: Reach {
                    since: Instant::now(),
                    is_connected: false,
                    error: None,
                },
                refusal: None,
                release_refusal: None,
                pruned_at: None,
            }),
            admission: RwLock::new(Admission::new()),
            is_address_in_doubt: AtomicBool::new(false),
            closed: Notify::new(),
            was_tried: watch::Sender::new(false),
        }
    }

    pub(crate) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Queues `call`. Returns `Err` if it is refused. A release is queued even then, but its caller gets the error at
    /// once.
    pub(crate) fn push(&self, mut call: Call) -> Result<Pushed, TransportError> {
        let mut state = self.lock();
        if call.is_stopped() {
            return Err(TransportError::Disconnected);
        }
        state.longest_timeout = state.longest_timeout.max(call.node_timeout());
        if let Some(kind) = state.refusal(&call) {
            if call.is_release() {
                state.push(call);
            }
            // A call that is refused because the login was lets the actor try the login again.
            let actor = state.end_failing().then(|| state.actor.take()).flatten();
            drop(state);
            actor.inspect(Waker::wake_by_ref);
            return Err(kind);
        }
        let receiver = call.answered();
        state.end_failing();
        let number = state.push(call);
        let actor = state.actor.take();
        drop(state);
        actor.inspect(Waker::wake_by_ref);
        Ok(Pushed {
            answer: receiver,
            number,
        })
    }

    /// Queues a release whose answer no caller waits for.
    pub(crate) fn push_unattended(&self, call: Call) {
        let mut state = self.lock();
        state.end_failing();
        state.push(call);
        let actor = state.actor.take();
        drop(state);
        actor.inspect(Waker::wake_by_ref);
    }

    /// Requeues calls at the front.
    pub(crate) fn push_front(&self, calls: impl DoubleEndedIterator<Item = Call>) {
        let mut state = self.lock();
        for call in calls.rev() {
            state.waiting.push_front(call);
        }
    }

    /// Queues releases that no caller waits for.
    pub(crate) fn adopt(&self, releases: VecDeque<Call>) {
        self.lock().waiting.adopt(releases);
    }

    /// Returns the next calls to send, at most `most`. Returns `None` if there are none; then `actor` is woken when there
    /// are. Pointless calls are removed. If the vote of the node does not count, acquires are answered here and not
    /// sent. If that may have changed, the node is asked for its identity.
    pub(crate) fn take(&self, most: usize, actor: &Waker) -> Option<Bundle> {
        let mut state = self.lock();
        let mut calls = state.waiting.take(most);
        if !calls.is_empty() {
            let now = Instant::now();
            calls.retain(|call| !call.is_pointless(now));
        }
        let mut asked_at = None;
        if !calls.is_empty() {
            let admission = self.admission();
            let now = SystemClock.now();
            calls.retain_mut(|call| match call.vote(&admission, now) {
                Vote::Counts => true,
                Vote::Ask => {
                    asked_at = Some(now);
                    true
                }
                Vote::Denied(denial) => {
                    call.answer(Err(CallError::unsent(Failure::Denied(denial))));
                    false
                }
            });
        }
        if !calls.is_empty() {
            return Some(Bundle { calls, asked_at });
        }
        if state.waiting.is_empty() {
            state.register(actor);
        } else {
            actor.wake_by_ref();
        }
        None
    }

    /// Whether the acquire with this number was sent, or has left the queue unsent.
    pub(crate) fn has_sent(&self, acquire: AcquireNumber) -> bool {
        self.lock().waiting.has_left(acquire)
    }

    /// The number of the last queued extension.
    pub(crate) fn last_extend(&self) -> u64 {
        self.lock().waiting.last_extend()
    }

    /// Whether the extension with this number was sent, or has left the queue unsent.
    pub(crate) fn has_sent_extend(&self, extend: u64) -> bool {
        self.lock().waiting.has_left_extend(extend)
    }

    /// Returns what decides whether the vote of the node counts.
    pub(crate) fn admission(&self) -> Admission {
        *self.read_admission()
    }

    /// Records the identity of the node, which was asked for it at `asked_at`. `None` if the node does not tell it.
    pub(crate) fn record(&self, node_info: Option<NodeInfo>, asked_at: redlock_core::Instant) {
        // After a failover, the name may lead to the new master.
        if node_info.is_some_and(|node_info| !node_info.is_master) {
            self.is_address_in_doubt.store(true, Ordering::Relaxed);
        }
        let mut admission = self.admission_mut();
        let end_of_tick = SystemClock.now().saturating_add(SystemClock.resolution());
        // Not when the question was sent: by then, another one may be under way.
        admission.ask(asked_at);
        admission.record(node_info, end_of_tick);
    }

    /// Records that the node answered like a replica: it is asked for its identity again before its next vote.
    pub(crate) fn doubt(&self) {
        self.admission_mut().doubt();
    }

    /// Records that what answers may be another node than the one that is meant.
    pub(crate) fn doubt_address(&self) {
        self.is_address_in_doubt.store(true, Ordering::Relaxed);
        let actor = self.lock().actor.take();
        actor.inspect(Waker::wake_by_ref);
    }

    /// Whether the address was doubted since the last call.
    pub(crate) fn take_doubt(&self) -> bool {
        let doubted = &self.is_address_in_doubt;
        doubted.load(Ordering::Relaxed) && doubted.swap(false, Ordering::Relaxed)
    }

    /// The server process, if it is known.
    pub(crate) fn run_id(&self) -> Option<RunId> {
        self.read_admission().run_id()
    }

    /// Whether the node is known to evict keys.
    pub(crate) fn may_evict(&self) -> bool {
        self.read_admission().may_evict()
    }

    /// Records that the actor connects: calls wait for the connection.
    pub(crate) fn promise(&self) {
        self.lock().status = Status::Connecting;
    }

    /// Records that the node is connected and answers: calls wait for it.
    pub(crate) fn connected(&self) {
        let mut state = self.lock();
        state.status = Status::Up;
        state.was_connected = true;
        let was_down = state.reach(None);
        drop(state);
        self.was_tried.send_replace(true);
        if was_down {
            self.presence.up(&self.name);
        }
    }

    /// Records that the connection has ended, for this reason.
    pub(crate) fn disconnected(&self, kind: &TransportError) {
        let was_up = self.lock().reach(Some(kind));
        self.lost(was_up, kind);
    }

    /// Tells that the node is not reached any more, if it was.
    fn lost(&self, was_up: bool, kind: &TransportError) {
        if was_up {
            self.presence.down(&self.name, kind);
        }
    }

    /// Whether the node is reached, and since when.
    pub(crate) fn current_reach(&self) -> Reach {
        let state = self.lock();
        let mut reach = state.reach.clone();
        if let Status::Silent { since, .. } = state.status {
            reach.error = Some(TransportError::Silent(since.elapsed()));
        }
        reach
    }

    /// Records whether the node refuses acquires of any key, and why.
    pub(crate) fn set_refusal(&self, refusal: Option<TransportError>) {
        self.lock().refusal = refusal;
    }

    pub(crate) fn refusal(&self) -> Option<TransportError> {
        self.lock().refusal.clone()
    }

    /// Records whether the node has refused a release, and why.
    pub(crate) fn set_release_refusal(&self, refusal: Option<TransportError>) {
        self.lock().release_refusal = refusal;
    }

    pub(crate) fn release_refusal(&self) -> Option<TransportError> {
        self.lock().release_refusal.clone()
    }

    /// Records that a lease was adopted: the node may have its key.
    pub(crate) fn adopted(&self) {
        self.lock().has_adopted = true;
    }

    /// Whether calls wait to be sent to a node that may have a key of this process, or releases were dropped.
    #[cfg(feature = "probe")]
    pub(crate) fn owes_calls(&self) -> bool {
        let state = self.lock();
        let has_dropped = state.lost > 0 || state.given_up > 0;
        state.may_have_keys() && (has_dropped || !state.waiting.is_empty())
    }

    /// Waits until the first connect has ended, in whichever way.
    pub(crate) async fn first_connect(&self) {
        let mut was_tried = self.was_tried.subscribe();
        // The sender is part of this queue, so it is there.
        let _tried = was_tried.wait_for(|was_tried| *was_tried).await;
    }

    /// Whether there has been a connection.
    pub(crate) fn was_connected(&self) -> bool {
        self.lock().was_connected
    }

    /// Whether calls wait for a connection.
    pub(crate) fn is_connecting(&self) -> bool {
        matches!(self.lock().status, Status::Connecting)
    }

    /// Whether calls wait for the node.
    pub(crate) fn is_promising(&self) -> bool {
        matches!(self.lock().status, Status::Connecting | Status::Up)
    }

    /// Fails waiting calls, and new calls from now on. Releases stay queued, but their callers get the error. A call at
    /// `probe_at` or later ends this, and wakes the actor.
    pub(crate) fn fail(&self, kind: &TransportError, probe_at: Option<Instant>) {
        let mut state = self.lock();
        let is_first = !state.was_connected && state.reach.error.is_none();
        let was_up = state.reach(Some(kind));
        state.status = Status::Failing {
            kind: kind.clone(),
            probe_at,
        };
        state.fail_all(kind);
        drop(state);
        self.was_tried.send_replace(true);
        self.lost(was_up, kind);
        if is_first {
            self.presence.not_connected(&self.name, kind);
        }
    }

    /// Records that the node has not answered since `since`. Fails calls whose timeout is not longer than that, now and
    /// from now on.
    pub(crate) fn leave_out(&self, since: Instant, given_up_at: Instant) {
        let mut state = self.lock();
        state.status = Status::Silent { since, given_up_at };
        let silent_for = since.elapsed();
        let kind = TransportError::Silent(silent_for);
        let was_up = state.reach(Some(&kind));
        state.fail_waiting(&kind, |call| {
            silent_for >= left_out_after(call.node_timeout())
        });
        drop(state);
        self.lost(was_up, &kind);
    }

    /// Records that the actor has ended: nothing is sent any more.
    pub(crate) fn end(&self) {
        let mut state = self.lock();
        state.status = Status::Ended;
        let was_up = state.reach(Some(&TransportError::RuntimeGone));
        state.fail_all(&TransportError::RuntimeGone);
        state.lost += state.queued_releases();
        state.waiting.clear();
        let is_closed = state.is_closed;
        drop(state);
        self.was_tried.send_replace(true);
        if is_closed {
            // The end of a connection whose last handle was dropped is no failure.
            self.presence.closed(was_up);
        } else {
            self.lost(was_up, &TransportError::RuntimeGone);
        }
    }

    /// Records that so many releases were sent, or were to be sent again, when the runtime shut down.
    pub(crate) fn lose_releases(&self, count: usize) {
        self.lock().lost += count;
    }

    /// Lets the actor end once everything is sent.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let actor = state.actor.take();
        drop(state);
        actor.inspect(Waker::wake_by_ref);
        self.closed.notify_one();
    }

    /// Whether the last handle was dropped.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Whether the last handle was dropped and nothing is queued. Removes releases whose key has expired.
    pub(crate) fn is_done(&self) -> bool {
        let mut state = self.lock();
        if !state.is_closed {
            return false;
        }
        state.prune();
        state.waiting.is_empty()
    }

    /// Waits until the last handle is dropped and the time to send the rest is over.
    pub(crate) async fn farewell(&self) {
        self.closed.notified().await;
        tokio::time::sleep(FAREWELL).await;
    }

    /// The number of releases that the node has not answered yet, and could answer soon: zero if it cannot be reached, or is given up. One
    /// that is silent may only be busy for a moment, and one that has closed a connection may accept the next one.
    pub(crate) fn releases_to_wait_for(&self) -> usize {
        let state = self.lock();
        let is_soon = match &state.status {
            Status::Connecting | Status::Up => true,
            Status::Silent { given_up_at, .. } => Instant::now() < *given_up_at,
            Status::Failing { kind, .. } => matches!(kind, TransportError::Disconnected),
            Status::Ended => false,
        };
        match is_soon && state.may_have_keys() {
            true => state.queued_releases(),
            false => 0,
        }
    }

    /// The number of releases that the node has not answered yet, and of those that were dropped. None if the node has no key of this
    /// process.
    pub(crate) fn unanswered_releases(&self) -> usize {
        let state = self.lock();
        let queued = match (state.may_have_keys(), &state.status) {
            (false, _) => return 0,
            (true, Status::Ended) => state.lost,
            (true, _) => state.queued_releases(),
        };
        let given_up = usize::try_from(state.given_up).unwrap_or(usize::MAX);
        queued.saturating_add(given_up)
    }

    /// The number of releases that were dropped because too many waited.
    pub(crate) fn given_up(&self) -> u64 {
        self.lock().given_up
    }

    /// Returns the longest node timeout of the calls since the last call of this method, and at least `node_timeout`.
    pub(crate) fn longest_timeout(&self, node_timeout: Duration) -> Duration {
        mem::replace(&mut self.lock().longest_timeout, node_timeout)
    }

    /// Removes releases whose key has expired.
    pub(crate) fn prune(&self) {
        self.lock().prune();
    }

    /// Registers `actor`, to be woken when there is something to send or the queue is closed.
    pub(crate) fn register(&self, actor: &Waker) {
        self.lock().register(actor);
    }

    fn read_admission(&self) -> RwLockReadGuard<'_, Admission> {
        self.admission
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn admission_mut(&self) -> RwLockWriteGuard<'_, Admission> {
        self.admission
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without the commands: they may be very many.
impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Queue")
            .field("name", &self.name)
            .field("status", &state.status)
            .field("waiting", &state.waiting.len())
            .finish_non_exhaustive()
    }
}

impl State {
    fn register(&mut self, actor: &Waker) {
        if !self.actor.as_ref().is_some_and(|old| old.will_wake(actor)) {
            self.actor = Some(actor.clone());
        }
    }

    /// Records whether the node is reached: `None`, or why it is not. Returns whether this has changed.
    fn reach(&mut self, error: Option<&TransportError>) -> bool {
        let is_connected = error.is_none();
        let has_changed = self.reach.is_connected != is_connected;
        if has_changed {
            self.reach.since = Instant::now();
        }
        self.reach.is_connected = is_connected;
        self.reach.error = error.cloned();
        has_changed
    }

    /// Returns why `call` fails at once, or `None` if it may wait.
    fn refusal(&mut self, call: &Call) -> Option<TransportError> {
        // As a rule, the node refuses the next login too. If calls waited for that, a round without a quorum would end before it knows
        // of all nodes that refuse the client.
        if let (Status::Connecting | Status::Failing { .. }, Some(kind)) =
            (&self.status, &self.reach.error)
            && matches!(kind, TransportError::LoginRefused(_))
        {
            return Some(kind.clone());
        }
        match &self.status {
            Status::Connecting | Status::Up => {}
            Status::Silent { since, .. } => {
                let silent_for = since.elapsed();
                if silent_for >= left_out_after(call.node_timeout()) {
                    return Some(TransportError::Silent(silent_for));
                }
            }
            Status::Failing { .. } if self.may_probe() => {}
            Status::Failing { kind, .. } => return Some(kind.clone()),
            Status::Ended => return Some(TransportError::RuntimeGone),
        }
        if call.is_release() || !self.is_full(call) {
            return None;
        }
        if !call.is_acquire() {
            self.waiting.forget_abandoned_extends();
        }
        self.is_full(call).then_some(TransportError::Overloaded)
    }

    /// Whether there is no room for `call`, an acquire or an extend.
    fn is_full(&mut self, call: &Call) -> bool {
        self.waiting.len_of(call) >= MAX_WAITING || self.waiting.key_bytes() >= MAX_KEY_BYTES
    }

    /// Whether a call may let the actor reconnect.
    fn may_probe(&self) -> bool {
        match self.status {
            Status::Failing {
                probe_at: Some(at), ..
            } => Instant::now() >= at,
            _ => false,
        }
    }

    /// Lets the actor reconnect if it may do so for a call, and calls wait for that. Returns whether it may.
    fn end_failing(&mut self) -> bool {
        let may_probe = self.may_probe();
        if may_probe {
            self.status = Status::Connecting;
        }
        may_probe
    }

    /// Queues `call`. Returns its number if it is an acquire. A release beyond the bound is dropped: its key expires.
    fn push(&mut self, mut call: Call) -> Option<AcquireNumber> {
        if matches!(self.status, Status::Ended) {
            self.lost += usize::from(call.is_release());
            return None;
        }
        if !call.is_release() || self.releases.admit(&mut call) {
            return self.waiting.push(call);
        }
        call.answer(Err(CallError::unsent(Failure::Transport(
            TransportError::Overloaded,
        ))));
        self.given_up += u64::from(call.is_release());
        None
    }

    /// Whether the node may have a key of this process. A node that was never connected has only those of leases that were adopted.
    fn may_have_keys(&self) -> bool {
        self.was_connected || self.has_adopted
    }

    /// The number of releases that wait, or are in flight.
    fn queued_releases(&self) -> usize {
        // Without the reference of the queue itself.
        Arc::strong_count(&self.releases) - 1
    }

    /// Removes calls that are pointless. If very many wait, at most once a second, because that takes a while.
    fn prune(&mut self) {
        const MANY: usize = 1 << 12;
        const PAUSE: Duration = Duration::from_secs(1);

        let now = Instant::now();
        let is_early = self.pruned_at.is_some_and(|at| now < at + PAUSE);
        if !(is_early && self.waiting.len() > MANY) {
            self.pruned_at = Some(now);
            self.waiting.retain_mut(|call| !call.is_pointless(now));
        }
    }

    /// Fails all waiting calls. Releases stay queued.
    fn fail_all(&mut self, kind: &TransportError) {
        self.waiting.fail(|call| {
            let failure = Failure::Transport(kind.clone());
            call.answer(Err(CallError::unsent(failure)));
        });
    }

    /// Fails the waiting calls that `fails` selects. Releases stay queued.
    fn fail_waiting(&mut self, kind: &TransportError, fails: impl Fn(&Call) -> bool) {
        self.waiting.retain_mut(|call| {
            if !fails(call) {
                return true;
            }
            let failure = Failure::Transport(kind.clone());
            call.answer(Err(CallError::unsent(failure)));
            call.is_release()
        });
    }
}

/// How long a node may be silent before callers with this `node_timeout` skip it.
pub(crate) const fn left_out_after(node_timeout: Duration) -> Duration {
    node_timeout.saturating_mul(2)
}

/// The verb of a call and the first byte of its token.
#[cfg(test)]
fn name(call: &Call) -> (char, u8) {
    let verb = match call {
        _ if call.is_acquire() => 'a',
        _ if call.is_release() => 'r',
        _ => 'e',
    };
    (verb, call.command().token.as_bytes()[0])
}

#[cfg(test)]
#[cfg(redlock_loom)]
mod interleavings;

#[cfg(test)]
mod tests {
    use redlock_core::Token;
    use redlock_core::transport::{Command, VoteConditions};

    use super::super::call::{MAX_RELEASE_BYTES, MAX_RELEASES};
    use super::super::stop::Stop;
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn queue() -> Queue {
        Queue::new("node".into(), LONG)
    }

    const TOKEN: &Token = &Token::from_bytes([1; Token::LEN]);

    fn release(ttl: Duration) -> Call {
        Call::new(&Command::release(b"dock-7", TOKEN), LONG, ttl)
    }

    fn acquire(node_timeout: Duration) -> Call {
        let command = Command::acquire(b"dock-7", TOKEN, 60_000, VoteConditions::NONE);
        Call::new(&command, node_timeout, LONG)
    }

    fn take(queue: &Queue) -> usize {
        let bundle = queue.take(128, Waker::noop());
        bundle.map_or(0, |bundle| bundle.calls.len())
    }

    #[test]
    fn a_queue_whose_actor_is_gone_fails_every_call_at_once_and_keeps_none() {
        let queue = queue();
        let mut waiting = queue.push(acquire(LONG)).unwrap().answer;
        queue.push_unattended(release(LONG));
        queue.end();
        let error = waiting.try_recv().unwrap().unwrap_err();
        assert_eq!(
            error.failure,
            Failure::Transport(TransportError::RuntimeGone)
        );
        assert!(!error.is_sent);
        for _ in 0..3 {
            let refusals = [acquire(LONG), release(LONG)].map(|call| queue.push(call));
            for refusal in refusals {
                assert_eq!(refusal.unwrap_err(), TransportError::RuntimeGone);
            }
            queue.push_unattended(release(LONG));
        }
        assert!(queue.lock().waiting.is_empty());
    }

    #[test]
    fn a_release_that_was_written_twice_waits_for_the_node_until_its_key_must_have_expired() {
        let queue = queue();
        queue.fail(&TransportError::Disconnected, None);
        for ttl in [Duration::ZERO, LONG] {
            let mut call = release(ttl);
            call.write();
            call.write();
            queue.push_unattended(call);
        }
        queue.prune();
        assert_eq!(queue.lock().waiting.len(), 1);
        queue.close();
        assert!(!queue.is_done(), "it is sent first");
        assert_eq!(take(&queue), 1);
        assert!(queue.is_done());
    }

    /// There may be a million of them, and connects fail many times a second.
    #[test]
    fn releases_that_nobody_waits_for_are_not_looked_at_when_a_connect_fails() {
        let queue = queue();
        let mut waiting = queue.push(acquire(LONG)).unwrap().answer;
        let rescued = || VecDeque::from([release(LONG), release(LONG)]);
        queue.adopt(rescued());
        queue.adopt(rescued());
        let mut looked_at = Vec::new();
        queue.lock().waiting.fail(|call| {
            looked_at.push(name(call).0);
            call.answer(Err(CallError::unsent(Failure::Transport(
                TransportError::Disconnected,
            ))));
        });
        assert_eq!(looked_at, ['a']);
        assert!(waiting.try_recv().unwrap().is_err());
        assert_eq!(take(&queue), 4);
    }

    /// What was queued for a node that has failed is rescued too.
    #[test]
    fn a_release_that_waits_when_a_connect_fails_is_looked_at_once() {
        let queue = queue();
        queue.push_unattended(release(LONG));
        for expected in [1, 0] {
            let mut looked_at = 0;
            queue.lock().waiting.fail(|_| looked_at += 1);
            assert_eq!(looked_at, expected);
        }
        assert_eq!(take(&queue), 1);
    }

    fn token(number: u8) -> Token {
        Token::from_bytes([number; Token::LEN])
    }

    /// A call for the lock that was acquired with this token, behind the acquire with this number.
    fn call(verb: char, number: u8, behind: Option<AcquireNumber>) -> Call {
        let (key, token) = (b"dock-7", &token(number));
        let command = match verb {
            'a' => Command::acquire(key, token, 60_000, VoteConditions::NONE),
            'e' => Command::extend(key, token, 60_000),
            _ => Command::release(key, token),
        };
        Call::new(&command, LONG, LONG).behind(behind)
    }

    /// The calls that are sent next.
    fn sent(queue: &Queue, most: usize) -> Vec<(char, u8)> {
        let bundle = queue.take(most, Waker::noop());
        let calls = bundle.map_or_else(Vec::new, |bundle| bundle.calls);
        calls.iter().map(name).collect()
    }

    #[test]
    fn extends_leave_ahead_of_releases_and_releases_ahead_of_acquires() {
        let queue = queue();
        let first = queue.push(call('a', 1, None)).unwrap();
        assert_eq!(sent(&queue, 128), [('a', 1)]);
        let waiting = ['a', 'a', 'r', 'e'].map(|verb| queue.push(call(verb, 1, first.number)));
        assert_eq!(sent(&queue, 3), [('e', 1), ('r', 1), ('a', 1)]);
        assert_eq!(sent(&queue, 3), [('a', 1)]);
        drop(waiting);
    }

    #[test]
    fn nothing_overtakes_the_acquire_of_its_own_lock() {
        let queue = queue();
        let [one, two] = [1, 2].map(|number| queue.push(call('a', number, None)).unwrap());
        let rest = [
            queue.push(call('r', 2, two.number)),
            queue.push(call('e', 1, one.number)),
            // Its acquire is unknown.
            queue.push(call('r', 3, None)),
        ];
        assert!(!queue.has_sent(one.number.unwrap()));
        assert_eq!(sent(&queue, 1), [('a', 1)]);
        assert!(queue.has_sent(one.number.unwrap()) && !queue.has_sent(two.number.unwrap()));
        let order = [('a', 2), ('r', 2), ('e', 1), ('r', 3)];
        assert_eq!(sent(&queue, 128), order);
        drop(rest);
    }

    #[test]
    fn an_acquire_whose_script_is_gone_does_not_come_behind_its_release() {
        let queue = queue();
        let first = queue.push(call('a', 1, None)).unwrap();
        let requeue = || {
            let mut calls = queue.take(128, Waker::noop()).unwrap().calls;
            calls.iter_mut().for_each(|call| {
                call.send_script_text();
            });
            queue.push_front(calls.into_iter());
        };
        requeue();
        requeue();
        assert_eq!(queue.lock().waiting.len(), 1, "its caller waits");
        drop(first.answer);
        let release = queue.push(call('r', 1, first.number)).unwrap();
        assert_eq!(sent(&queue, 128), [('r', 1)]);
        drop(release);
    }

    #[test]
    fn an_extend_of_a_keeper_that_was_stopped_does_not_come_behind_the_release() {
        let queue = queue();
        let stop = Stop::new();
        let extend = || call('e', 1, None).until(Some(stop.clone()));
        let sent_before = queue.push(extend()).unwrap();
        let mut calls = queue.take(128, Waker::noop()).unwrap().calls;
        stop.set();
        let release = queue.push(call('r', 1, None)).unwrap();
        assert!(queue.push(extend()).is_err());
        // The node has forgotten the script of the one that was sent before.
        assert!(calls[0].send_script_text());
        queue.push_front(calls.into_iter());
        assert_eq!(sent(&queue, 128), [('r', 1)]);
        drop((sent_before, release));
    }

    #[test]
    fn a_queue_full_of_extends_that_no_caller_waits_for_has_room_for_another_extend() {
        let queue = queue();
        let first = queue.push(call('a', 1, None)).unwrap();
        assert_eq!(sent(&queue, 128), [('a', 1)]);
        let push = |verb, number| queue.push(call(verb, number, first.number)).unwrap();
        for _ in 0..2 * MAX_WAITING {
            drop(push('e', 2));
        }
        let last = queue.last_extend();
        let waiting: Vec<_> = (0..MAX_WAITING).map(|_| push('e', 3)).collect();
        let refusal = queue.push(call('e', 3, first.number)).unwrap_err();
        assert_eq!(refusal, TransportError::Overloaded);
        // An acquire takes their room from none of them.
        let acquires: Vec<_> = (0..MAX_WAITING).map(|_| push('a', 4)).collect();
        assert!(queue.push(call('a', 4, None)).is_err());
        assert!(!queue.has_sent_extend(last));
        assert_eq!(take(&queue), 128);
        assert!(queue.has_sent_extend(last) && !queue.has_sent_extend(queue.last_extend()));
        drop((waiting, acquires));
    }

    #[test]
    fn acquires_with_long_keys_are_refused_earlier_and_room_is_free_when_they_have_left() {
        let queue = queue();
        let key = vec![0; MAX_KEY_BYTES / 100];
        let push = || {
            let acquire = Command::acquire(&key, TOKEN, 60_000, VoteConditions::NONE);
            queue.push(Call::new(&acquire, LONG, LONG))
        };
        let waiting: Vec<_> = (0..101).map(|_| push().unwrap()).collect();
        assert_eq!(push().unwrap_err(), TransportError::Overloaded);
        // No two of them in one write.
        for _ in &waiting {
            assert_eq!(take(&queue), 1);
        }
        assert!(push().is_ok());
        drop(waiting);
    }

    #[test]
    fn the_keys_of_releases_that_wait_are_counted_whatever_their_lengths_are() {
        let queue = queue();
        queue.fail(&TransportError::Disconnected, None);
        let half = vec![0; MAX_RELEASE_BYTES / 2];
        for length in [half.len(), half.len() - 1, 1, 1] {
            let release = Command::release(&half[..length], TOKEN);
            queue.push_unattended(Call::new(&release, LONG, LONG));
        }
        assert_eq!(queue.given_up(), 1);
    }

    #[test]
    fn a_release_beyond_the_bound_is_dropped_and_counted() {
        let queue = queue();
        queue.fail(&TransportError::Disconnected, None);
        // For half of them the acquire is unknown.
        for number in 0..=MAX_RELEASES {
            let behind = (number % 2 == 0).then_some(0);
            queue.push_unattended(call('r', 1, behind));
        }
        assert_eq!(queue.given_up(), 1);
        // A node that was never connected has no key.
        assert_eq!(queue.unanswered_releases(), 0);
        queue.connected();
        assert_eq!(queue.unanswered_releases(), MAX_RELEASES + 1);
        assert_eq!(queue.releases_to_wait_for(), MAX_RELEASES);
    }

    #[test]
    fn releases_that_wait_behind_their_acquires_take_no_room_of_other_acquires() {
        let queue = queue();
        let mut waiting = Vec::new();
        for _ in 0..MAX_WAITING {
            let acquire = queue.push(call('a', 1, None)).unwrap();
            queue.push_unattended(call('r', 1, acquire.number));
            waiting.push(acquire);
        }
        let refusal = queue.push(call('a', 1, None)).unwrap_err();
        assert_eq!(refusal, TransportError::Overloaded);
        // Sent acquires make room.
        assert_eq!(take(&queue), 128);
        assert!(queue.push(call('a', 1, None)).is_ok());
    }

    #[test]
    fn an_acquire_is_sent_as_long_as_its_caller_waits_however_old_it_is() {
        let queue = queue();
        let caller = queue.push(acquire(Duration::ZERO)).unwrap();
        assert_eq!(take(&queue), 1);
        drop(caller);
        drop(queue.push(acquire(Duration::ZERO)));
        assert_eq!(take(&queue), 0, "its round is over");
        drop(queue.push(acquire(LONG)));
        assert_eq!(take(&queue), 1, "it left at the quorum");
    }

    #[test]
    fn the_first_call_after_a_while_waits_for_a_failed_node_and_lets_calls_wait() {
        let queue = queue();
        let now = Instant::now();
        for (probe_at, waits) in [(None, false), (Some(now + LONG), false), (Some(now), true)] {
            queue.fail(&TransportError::Disconnected, probe_at);
            assert_eq!(queue.push(acquire(LONG)).is_ok(), waits);
            assert_eq!(queue.is_promising(), waits);
            queue.fail(&TransportError::Disconnected, probe_at);
            queue.push_unattended(release(LONG));
            assert_eq!(queue.is_promising(), waits);
        }
    }

    #[test]
    fn calls_do_not_wait_for_a_node_that_has_refused_the_login_and_let_the_actor_try_again() {
        let queue = queue();
        let refused = TransportError::LoginRefused("WRONGPASS".into());
        queue.fail(&refused, Some(Instant::now()));
        for _ in 0..2 {
            assert_eq!(queue.push(acquire(LONG)).unwrap_err(), refused);
            assert!(queue.is_promising(), "the actor connects");
        }
        // No later than the actor does.
        queue.promise();
        assert_eq!(queue.push(acquire(LONG)).unwrap_err(), refused);
        queue.push(release(LONG)).unwrap_err();
        assert_eq!(take(&queue), 1, "a release waits");
        queue.connected();
        assert!(queue.push(acquire(LONG)).is_ok());
        // The next reason is another one.
        queue.fail(&refused, Some(Instant::now() + LONG));
        assert_eq!(queue.push(acquire(LONG)).unwrap_err(), refused);
        assert!(!queue.is_promising(), "too early");
        queue.fail(&TransportError::Disconnected, Some(Instant::now()));
        assert!(queue.push(acquire(LONG)).is_ok());
    }

    #[test]
    fn releases_to_a_node_that_is_silent_for_too_long_are_not_waited_for() {
        let queue = queue();
        queue.connected();
        queue.push_unattended(release(LONG));
        let now = Instant::now();
        for (given_up_at, waited_for) in [(now + LONG, 1), (now, 0)] {
            queue.leave_out(now, given_up_at);
            assert_eq!(queue.releases_to_wait_for(), waited_for);
            assert_eq!(queue.unanswered_releases(), 1);
        }
    }

    #[test]
    fn the_status_of_a_silent_node_says_for_how_long_it_is_silent_now() {
        let queue = queue();
        queue.connected();
        let since = Instant::now();
        queue.leave_out(since, since + LONG);
        // Later than that of the call above.
        let silence = since.elapsed();
        let Some(TransportError::Silent(silent_for)) = queue.current_reach().error else {
            panic!("it is silent");
        };
        assert!(silent_for >= silence, "{silent_for:?}");
    }

    #[test]
    fn callers_with_a_shorter_timeout_skip_a_silent_node() {
        let queue = queue();
        let mut hasty = queue
            .push(acquire(Duration::from_millis(1)))
            .unwrap()
            .answer;
        let mut patient = queue.push(acquire(LONG)).unwrap().answer;
        let second_ago = Instant::now().checked_sub(Duration::from_secs(1));
        queue.leave_out(second_ago.unwrap(), Instant::now());
        assert!(hasty.try_recv().unwrap().is_err());
        assert!(patient.try_recv().is_err(), "no answer yet");
        assert!(queue.push(acquire(Duration::from_millis(1))).is_err());
        assert!(queue.push(acquire(LONG)).is_ok());
        assert_eq!(take(&queue), 2);
    }
}
