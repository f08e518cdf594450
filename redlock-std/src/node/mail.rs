//! The mailbox of this client on one node: where the node calls a client that waits for a lock.
//!
//! The calls arrive as messages on a connection of their own, which exists only while an acquire waits. A call is a hint that the
//! lock may be free. If calls are lost, acquires wait longer.

mod replies;
mod subscriber;
mod subscription;

use std::collections::HashMap;
use std::fmt;
use std::mem;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use redlock_core::transport::RunId;

use super::error::TransportError;
use crate::sync::atomic::{AtomicU8, Ordering};
use crate::sync::{Mutex, MutexGuard, Notify};
pub(super) use subscriber::Subscriber;

/// The mailbox of this client on one node, and the acquires that wait for a call.
pub(super) struct Mail {
    channel: Box<str>,
    state: Mutex<State>,
    /// Notified when the connection is wanted, must be made again, or is not needed any more.
    changed: Notify,
    /// Notified when it is known whether the node can call.
    decided: Notify,
}

struct State {
    status: Status,
    waiters: HashMap<Arc<[u8]>, Arc<Slot>>,
    last_wanted: Instant,
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

/// What an acquire that waits is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum News {
    /// It is the next one but one: it should come when the turn of the first one is over.
    Deputy = 1,
    /// The node can call again, and may have called in vain before.
    Reconnected = 2,
    /// The lock is free, and it is the turn of this client.
    Turn = 3,
}

/// The place of one waiting acquire.
#[derive(Debug)]
struct Slot {
    /// The [`News`] that it has not been told yet, the most important if there are several, else 0.
    news: AtomicU8,
    arrived: Notify,
}

impl Mail {
    pub(super) fn new(channel: String) -> Self {
        Self {
            channel: channel.into(),
            state: Mutex::new(State {
                status: Status::Idle,
                waiters: HashMap::new(),
                last_wanted: Instant::now(),
                is_closed: false,
            }),
            changed: Notify::new(),
            decided: Notify::new(),
        }
    }

    /// Waits until it is known whether the node can call, and has the connection opened if there is none. Returns whether it can,
    /// as far as `process`, the one behind the connection of the locks, sends the calls.
    pub(super) async fn open(&self, process: Option<RunId>) -> bool {
        loop {
            let mut decided = std::pin::pin!(self.decided.notified());
            decided.as_mut().enable();
            if let Some(is_open) = self.is_open(process) {
                return is_open;
            }
            decided.await;
        }
    }

    /// Whether the node can call, as [`open`](Self::open) returns it. `None` if that is not known yet.
    pub(super) fn is_open(&self, process: Option<RunId>) -> Option<bool> {
        let mut state = self.lock();
        state.last_wanted = Instant::now();
        match &mut state.status {
            Status::Open(caller) => match caller.zip(process) {
                Some((caller, process)) if caller != process => {
                    // One of the connections is to a server that was here before.
                    state.status = Status::Failing(TransportError::Disconnected);
                    drop(state);
                    self.changed.notify_one();
                    Some(false)
                }
                _ => Some(true),
            },
            Status::Failing(_) => Some(false),
            status => {
                if mem::replace(status, Status::Opening) == Status::Idle {
                    drop(state);
                    self.changed.notify_one();
                }
                None
            }
        }
    }

    /// Returns why the node cannot call, if it was asked to and cannot.
    pub(super) fn problem(&self) -> Option<TransportError> {
        match &self.lock().status {
            Status::Failing(kind) => Some(kind.clone()),
            _ => None,
        }
    }

    /// Registers an acquire that waits for the lock `key`. It takes the place of an earlier one for the same key, which gets no
    /// calls any more.
    pub(super) fn wait_for(self: &Arc<Self>, key: &[u8]) -> Waiter {
        let slot = Arc::new(Slot {
            news: AtomicU8::new(0),
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

    /// Ends the subscriber: the last handle was dropped.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_one();
    }

    /// Passes a message on. It can be of any client of the node, and is ignored if it is no call for a key that is waited for.
    fn deliver(&self, message: &[u8]) {
        let (news, key) = match message {
            [b'1', key @ ..] => (News::Turn, key),
            [b'2', key @ ..] => (News::Deputy, key),
            _ => return,
        };
        let slot = self.lock().waiters.get(key).cloned();
        if let Some(slot) = slot {
            slot.tell(news);
        }
    }

    /// Records that the node can call. Wakes all acquires, because calls may have been lost before.
    fn opened(&self, caller: Option<RunId>) {
        let mut state = self.lock();
        state.status = Status::Open(caller);
        let slots: Vec<_> = state.waiters.values().cloned().collect();
        drop(state);
        self.decided.notify_waiters();
        for slot in slots {
            slot.tell(News::Reconnected);
        }
    }

    /// Records that the node cannot call, for this reason.
    fn failed(&self, kind: TransportError) {
        self.lock().status = Status::Failing(kind);
        self.decided.notify_waiters();
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
    pub(super) fn key(&self) -> &[u8] {
        &self.key
    }

    /// Waits for news. Dropping the future loses none.
    pub(super) async fn news(&self) -> News {
        loop {
            match self.slot.news.swap(0, Ordering::AcqRel) {
                1 => return News::Deputy,
                2 => return News::Reconnected,
                3 => return News::Turn,
                _ => self.slot.arrived.notified().await,
            }
        }
    }

    /// Forgets the news that came before a new try.
    pub(super) fn forget(&self) {
        self.slot.news.store(0, Ordering::Release);
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
        }
    }
}

impl Slot {
    fn tell(&self, news: News) {
        self.news.fetch_max(news as u8, Ordering::AcqRel);
        self.arrived.notify_one();
    }
}
