//! The mailbox of this client on one node: where the node calls a client that waits for a lock.
//!
//! The calls arrive as messages on a connection of their own, which exists only while an acquire waits. A call is a hint that the
//! lock may be free. If calls are lost, acquires wait longer.

mod refusals;
mod subscriber;
mod subscription;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redlock_core::MAILBOX_PREFIX;
use redlock_core::transport::{Answer, Call, Command, Mailbox, Refusal, Reply, RunId};
use tokio::time::Instant;

use super::error::TransportError;
use crate::lines::Teller;
use crate::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify};
use refusals::Refusals;
pub(super) use subscriber::Subscriber;
#[cfg(feature = "init")]
pub(crate) use subscription::Subscription;

/// The mailbox of this client on one node, and the acquires that wait for a call.
pub(crate) struct Mail {
    mailbox: Mailbox,
    channel: String,
    lines: Teller,
    state: Mutex<State>,
    /// Whether the node has ever refused a line. If not, acquires need not lock the state to know that it keeps theirs.
    has_refused: AtomicBool,
    /// Notified when the connection is wanted, must be made again, or is not needed any more.
    changed: Notify,
    /// Notified when it is known whether the node can call.
    decided: Notify,
}

struct State {
    status: Status,
    /// Whether the last try to open the connection failed.
    is_shut: bool,
    /// When the connection was opened last.
    opened_at: Instant,
    /// How many connections in a row broke soon, since an acquire waits.
    breaks: u32,
    waiters: HashMap<Arc<[u8]>, Arc<Slot>>,
    last_wanted: Instant,
    refusals: Refusals,
    is_closed: bool,
}

/// Whether the node can call this client.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Status {
    /// No acquire has waited for some time.
    Idle,
    /// For the first time since it was idle.
    Opening,
    /// Yes. The run ID is that of the process that sends the calls, if it tells.
    Open(Option<RunId>),
    /// No, for this reason. The subscriber tries again.
    Failing(TransportError),
}

/// How long the connection is kept after the last acquire has waited.
const KEPT: Duration = Duration::from_secs(60);

/// After this many connections that broke soon, the node counts as one that cannot call. Otherwise acquires would never get their turn
/// while another client ends the connections: to the node, a client without a connection is gone.
const MAX_BREAKS: u32 = 3;

/// A connection that lasts this long did not break soon.
const STABLE: Duration = Duration::from_secs(5);

/// A registered acquire.
#[derive(Debug)]
struct Slot {
    /// The rank of the call that it has not seen yet, the highest if there are several, else 0.
    unseen: AtomicU8,
    /// Whether it stands in the line under a mailbox that the node can call.
    is_callable: bool,
    arrived: Notify,
}

impl Mail {
    pub(crate) fn new(mailbox: Mailbox, lines: Teller) -> Self {
        Self {
            lines,
            mailbox,
            channel: format!("{MAILBOX_PREFIX}{mailbox}"),
            state: Mutex::new(State {
                status: Status::Idle,
                is_shut: false,
                opened_at: Instant::now(),
                breaks: 0,
                waiters: HashMap::new(),
                last_wanted: Instant::now(),
                refusals: Refusals::default(),
                is_closed: false,
            }),
            has_refused: AtomicBool::new(false),
            changed: Notify::new(),
            decided: Notify::new(),
        }
    }

    /// The mailbox, as if the node could call.
    pub(crate) const fn mailbox(&self) -> Mailbox {
        self.mailbox
    }

    /// Has the connection opened if there is none, and waits until it is known whether the node can call.
    pub(super) async fn open(&self) {
        loop {
            let mut decided = std::pin::pin!(self.decided.notified());
            decided.as_mut().enable();
            if self.want() {
                return;
            }
            decided.await;
        }
    }

    /// Has the connection opened if there is none. Returns whether it is known if the node can call.
    pub(super) fn want(&self) -> bool {
        let mut state = self.lock();
        state.last_wanted = Instant::now();
        match state.status {
            Status::Open(_) | Status::Failing(_) => return true,
            Status::Opening => return false,
            Status::Idle => state.status = Status::Opening,
        }
        drop(state);
        self.changed.notify_one();
        false
    }

    /// Whether the node can call this client. `process` is the one behind the connection of the locks.
    pub(super) fn can_call(&self, process: Option<RunId>) -> bool {
        let mut state = self.lock();
        let Status::Open(caller) = state.status else {
            return false;
        };
        if state.is_unstable() {
            return false;
        }
        let is_same = caller
            .zip(process)
            .is_none_or(|(caller, process)| caller == process);
        if !is_same {
            // The server at the address has changed, and one of the connections is to the one before.
            state.status = Status::Failing(TransportError::Disconnected);
            drop(state);
            self.changed.notify_one();
        }
        is_same
    }

    /// Records that the node has refused a command with a place in the line of the lock `key`, for this reason: for some time, it gets
    /// none.
    pub(super) fn refused(&self, key: &[u8], why: Arc<str>) {
        self.lock().refusals.record(key, why);
        self.has_refused.store(true, Ordering::Release);
    }

    /// Whether the node keeps the line of the lock `key` for this client; any line if there is no key.
    pub(super) fn keeps_line(&self, key: Option<&[u8]>) -> bool {
        !self.has_refused.load(Ordering::Acquire) || !self.lock().refusals.contains(key)
    }

    /// Returns why acquires wait longer for this node than they should.
    pub(super) fn problem(&self) -> Option<TransportError> {
        let state = self.lock();
        match (state.refusals.why(), &state.status) {
            (Some(why), _) => Some(TransportError::CannotCall(Arc::clone(why))),
            (None, Status::Failing(kind)) => Some(kind.clone()),
            _ => state.is_unstable().then_some(TransportError::Disconnected),
        }
    }

    /// Registers an acquire that waits for the lock `key`. It takes the place of an earlier one for the same key, which gets no
    /// calls any more.
    pub(super) fn wait_for(self: &Arc<Self>, key: &[u8], is_callable: bool) -> Waiter {
        let slot = Arc::new(Slot {
            is_callable,
            unseen: AtomicU8::new(0),
            arrived: Notify::new(),
        });
        let key: Arc<[u8]> = key.into();
        let mut state = self.lock();
        state.waiters.insert(Arc::clone(&key), Arc::clone(&slot));
        drop(state);
        Waiter {
            mail: Arc::clone(self),
            key,
            slot,
        }
    }

    /// Whether an acquire other than that of `waiter` waits for the lock `key`, under the same mailbox.
    pub(super) fn is_wanted_by_another(
        &self,
        key: &[u8],
        is_callable: bool,
        waiter: Option<&Waiter>,
    ) -> bool {
        let state = self.lock();
        let slot = state.waiters.get(key);
        let slot = slot.filter(|slot| slot.is_callable == is_callable);
        slot.is_some_and(|slot| waiter.is_none_or(|own| !Arc::ptr_eq(slot, &own.slot)))
    }

    /// Learns from the answer to a command with a place in the line whether clients of other processes wait for the lock.
    pub(super) fn learn(&self, command: &Command<'_>, answer: Answer) {
        if let Some(Ok(reply)) = command.reply(answer) {
            self.learn_reply(command.key, &reply);
        }
    }

    /// Learns the same from the reply to a command for the lock `key`.
    pub(crate) fn learn_reply(&self, key: &[u8], reply: &Reply) {
        let is_contended = match reply {
            Reply::Waiting(position, _) => position.ahead > 0 || position.refusal != Refusal::Held,
            Reply::ReleasedWithWaiters(_) => !self.lock().waiters.contains_key(key),
            _ => false,
        };
        if is_contended {
            self.lines.record(key);
        }
    }

    /// Ends the subscriber: the last handle was dropped.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Passes a message on. It can be of any client of the node, and is ignored if it is no call for a key that is waited for.
    fn deliver(&self, message: &[u8]) {
        let Some((call, key)) = Call::read(message) else {
            return;
        };
        let slot = self.lock().waiters.get(key).cloned();
        if let Some(slot) = slot {
            slot.tell(call);
        }
    }

    /// Records that the node can call. Wakes all acquires, because calls may have been lost before.
    pub(crate) fn opened(&self, caller: Option<RunId>) {
        let mut state = self.lock();
        state.status = Status::Open(caller);
        state.is_shut = false;
        state.opened_at = Instant::now();
        let slots: Vec<_> = state.waiters.values().cloned().collect();
        drop(state);
        self.decided.notify_waiters();
        for slot in slots {
            slot.tell(Call::Reconnected);
        }
    }

    /// Records that the node cannot call, for this reason.
    pub(super) fn failed(&self, kind: TransportError) {
        self.lock().status = Status::Failing(kind);
        self.decided.notify_waiters();
    }

    /// Records that the connection broke, for this reason.
    pub(super) fn broke(&self, kind: TransportError) {
        let mut state = self.lock();
        if state.opened_at.elapsed() >= STABLE {
            state.breaks = 0;
        } else if !state.waiters.is_empty() {
            state.breaks = state.breaks.saturating_add(1);
        }
        drop(state);
        self.failed(kind);
    }

    /// Records that the connection could not be opened, for this reason.
    pub(super) fn shut(&self, kind: TransportError) {
        self.lock().is_shut = true;
        self.failed(kind);
    }

    /// Whether the connection could not be opened, or breaks again and again: calls are not to be waited for.
    pub(super) fn is_shut(&self) -> bool {
        let state = self.lock();
        state.is_shut || state.is_unstable()
    }

    /// When the connection is not needed any more, unless an acquire waits by then. `None` if one waits now.
    fn kept_until(&self) -> Option<Instant> {
        let state = self.lock();
        let is_empty = state.waiters.is_empty();
        is_empty.then(|| state.last_wanted + KEPT)
    }

    /// Records that no connection is made until an acquire wants one. Returns `false` if one has wanted it just now.
    fn rest(&self) -> bool {
        let mut state = self.lock();
        let is_needed = !state.waiters.is_empty() || state.last_wanted.elapsed() < KEPT;
        if !is_needed {
            state.status = Status::Idle;
        }
        !is_needed
    }

    fn is_idle(&self) -> bool {
        self.lock().status == Status::Idle
    }

    fn is_up(&self) -> bool {
        matches!(self.lock().status, Status::Open(_))
    }

    fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether the connection has broken again and again, and has not lasted since.
    fn is_unstable(&self) -> bool {
        let is_open = matches!(self.status, Status::Open(_));
        self.breaks >= MAX_BREAKS && !(is_open && self.opened_at.elapsed() >= STABLE)
    }
}

/// Without the keys: they may be very many.
impl fmt::Debug for Mail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Mail")
            .field("channel", &self.channel)
            .field("status", &state.status)
            .field("waiters", &state.waiters.len())
            .finish_non_exhaustive()
    }
}

/// An acquire that waits. Dropping it ends the registration.
#[derive(Debug)]
pub(super) struct Waiter {
    mail: Arc<Mail>,
    key: Arc<[u8]>,
    slot: Arc<Slot>,
}

impl Waiter {
    /// Waits for a call. Of several that have come, it returns the most important one. Dropping the future loses none.
    pub(super) async fn called(&self) -> Call {
        loop {
            let unseen = self.slot.unseen.swap(0, Ordering::AcqRel);
            let call = BY_RANK.into_iter().find(|call| rank(*call) == unseen);
            if let Some(call) = call {
                return call;
            }
            self.slot.arrived.notified().await;
        }
    }

    /// Forgets the calls that have come.
    pub(super) fn forget(&self) {
        self.slot.unseen.store(0, Ordering::Release);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut state = self.mail.lock();
        if let Some(slot) = state.waiters.get(&self.key)
            && Arc::ptr_eq(slot, &self.slot)
        {
            state.waiters.remove(&self.key);
            state.last_wanted = Instant::now();
            if state.waiters.is_empty() {
                state.breaks = 0;
            }
        }
    }
}

impl Slot {
    fn tell(&self, call: Call) {
        self.unseen.fetch_max(rank(call), Ordering::AcqRel);
        self.arrived.notify_one();
    }
}

const BY_RANK: [Call; 3] = [Call::Deputy, Call::Reconnected, Call::Turn];

const fn rank(call: Call) -> u8 {
    match call {
        Call::Deputy => 1,
        Call::Reconnected => 2,
        Call::Turn => 3,
    }
}

#[cfg(test)]
#[cfg(redlock_loom)]
mod interleavings;

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::refusals::LASTS;
    use super::*;

    fn mail() -> Arc<Mail> {
        Arc::new(Mail::new(Mailbox::new([7; 8]), Teller::alone()))
    }

    async fn call(waiter: &Waiter) -> Option<Call> {
        timeout(Duration::from_millis(1), waiter.called())
            .await
            .ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_is_for_the_acquire_that_waits_for_its_key() {
        let mail = mail();
        let (dock, crane) = (mail.wait_for(b"dock", true), mail.wait_for(b"crane", true));
        for message in [&b"1dock"[..], b"1berth", b"3crane", b"", b"crane"] {
            mail.deliver(message);
        }
        assert_eq!(call(&dock).await, Some(Call::Turn));
        assert_eq!(call(&dock).await, None, "once");
        assert_eq!(call(&crane).await, None);
        // The most important one, whatever the order.
        for messages in [[b"2dock", b"1dock"], [b"1dock", b"2dock"]] {
            messages
                .into_iter()
                .for_each(|message| mail.deliver(message));
            assert_eq!(call(&dock).await, Some(Call::Turn));
        }
        mail.deliver(b"2crane");
        crane.forget();
        assert_eq!(call(&crane).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn an_acquire_that_has_lost_its_registration_takes_none_away() {
        let mail = mail();
        let first = mail.wait_for(b"dock", true);
        let second = mail.wait_for(b"dock", true);
        drop(first);
        mail.deliver(b"2dock");
        assert_eq!(call(&second).await, Some(Call::Deputy));
        drop(second);
        assert!(mail.lock().waiters.is_empty());
    }

    #[test]
    fn only_the_process_that_grants_the_locks_can_call() {
        let mail = mail();
        let [here, elsewhere] = [1, 2].map(|number| Some(RunId::new(number)));
        assert!(!mail.can_call(here));
        mail.opened(here);
        assert!(mail.can_call(here) && mail.can_call(None));
        assert!(!mail.can_call(elsewhere));
        assert!(!mail.can_call(here), "the subscriber connects again");
        mail.opened(None);
        assert!(mail.can_call(elsewhere), "the node does not tell");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_breaks_again_and_again_in_a_wait_counts_as_one_that_cannot_be_opened()
     {
        let mail = mail();
        let soon = STABLE - Duration::from_millis(1);
        break_often(&mail, MAX_BREAKS, soon).await;
        assert!(mail.can_call(None) && !mail.is_shut(), "no acquire waits");

        let waiter = mail.wait_for(b"dock", true);
        break_often(&mail, MAX_BREAKS, STABLE).await;
        break_often(&mail, MAX_BREAKS - 1, soon).await;
        assert!(mail.can_call(None) && !mail.is_shut(), "it lasts long");
        break_often(&mail, 1, soon).await;
        assert!(!mail.can_call(None) && mail.is_shut());
        assert_eq!(mail.problem(), Some(TransportError::Disconnected));
        tokio::time::advance(STABLE).await;
        assert!(mail.can_call(None) && !mail.is_shut(), "it lasts since");
        assert_eq!(mail.problem(), None);

        break_often(&mail, MAX_BREAKS, soon).await;
        assert!(mail.is_shut());
        drop(waiter);
        assert!(mail.can_call(None) && !mail.is_shut(), "the next wait");
    }

    /// Has this many connections break after `lasted`, and opens another one.
    async fn break_often(mail: &Mail, count: u32, lasted: Duration) {
        for _ in 0..count {
            mail.opened(None);
            tokio::time::advance(lasted).await;
            mail.broke(TransportError::Disconnected);
        }
        mail.opened(None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_refuses_the_line_is_asked_again_after_a_minute() {
        let mail = mail();
        assert!(mail.keeps_line(None) && mail.problem().is_none());
        mail.refused(b"dock", "NOPERM".into());
        tokio::time::advance(LASTS - Duration::from_millis(1)).await;
        assert!(!mail.keeps_line(None));
        let problem = mail.problem().unwrap().to_string();
        assert!(problem.contains("NOPERM"), "{problem}");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(mail.keeps_line(None) && mail.problem().is_none());
    }
}
