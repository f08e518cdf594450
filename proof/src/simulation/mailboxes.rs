//! Mailboxes: the calls of the nodes that the clients have not taken yet.

use core::task::{Poll, Waker};

use redlock_core::transport::{Call as LineCall, Mailbox};

use super::history::{Call, Task};
use super::place::{KEYS, Route};
use super::reach::Reach;
use super::scenario::Scenario;

/// The mailboxes of all tasks.
#[derive(Debug)]
pub(super) struct Mailboxes {
    inboxes: Vec<Inbox>,
    /// By the client: how each node calls it, by the names that the client has for the nodes.
    reach: Vec<Vec<Reach>>,
}

/// The mailbox of a task, and the calls that it has not taken yet.
#[derive(Debug)]
struct Inbox {
    task: Task,
    mailbox: Mailbox,
    /// The key for which the task waits, from the beginning of the call to its end.
    waits_for: Option<usize>,
    calls: Vec<(usize, LineCall)>,
    /// By the node.
    wakers: Vec<Option<Waker>>,
}

impl Mailboxes {
    pub(super) fn new(scenario: &Scenario) -> Self {
        let nodes = scenario.nodes.len();
        let clients = scenario.clients.iter().enumerate();
        let inboxes = clients.flat_map(|(client, it)| {
            let mailboxes = it.mailboxes.iter().enumerate();
            mailboxes.map(move |(number, mailbox)| Inbox {
                task: Task { client, number },
                mailbox: *mailbox,
                waits_for: None,
                calls: Vec::new(),
                wakers: vec![None; nodes],
            })
        });
        Self {
            inboxes: inboxes.collect(),
            reach: scenario
                .clients
                .iter()
                .map(|client| client.reach.clone())
                .collect(),
        }
    }

    pub(super) fn reach(&self, route: Route) -> Reach {
        let reach = self.reach[route.client].get(route.node);
        reach.copied().unwrap_or(Reach::NoLine)
    }

    pub(super) fn of(&self, task: Task) -> Option<Mailbox> {
        let inbox = self.inboxes.iter().find(|inbox| inbox.task == task)?;
        Some(inbox.mailbox)
    }

    /// The key for which the task waits.
    pub(super) fn waits_for(&self, task: Task) -> Option<usize> {
        let inbox = self.inboxes.iter().find(|inbox| inbox.task == task)?;
        inbox.waits_for
    }

    /// The tasks of `client` that wait.
    pub(super) fn waiting(&self, client: usize) -> Vec<Task> {
        let its = self.inboxes.iter().filter(|inbox| {
            let is_its = inbox.task.client == client;
            is_its && inbox.waits_for.is_some()
        });
        its.map(|inbox| inbox.task).collect()
    }

    pub(super) fn whose(&self, mailbox: &Mailbox) -> Option<Task> {
        let mut all = self.inboxes.iter();
        let inbox = all.find(|inbox| inbox.mailbox.digits() == mailbox.digits())?;
        Some(inbox.task)
    }

    pub(super) fn of_client(&self, client: usize) -> Vec<Mailbox> {
        let all = self.inboxes.iter();
        let its = all.filter(|inbox| inbox.task.client == client);
        its.map(|inbox| inbox.mailbox).collect()
    }

    /// A call of the lock begins.
    pub(super) fn begin(&mut self, task: Task, call: Call) {
        if let Some(inbox) = self.inbox(task) {
            inbox.calls.clear();
            inbox.waits_for = match call {
                Call::Acquire(key) | Call::CalmAcquire(key) | Call::Hold(key) => Some(key),
                _ => None,
            };
        }
    }

    /// The task has the lock, or does not wait for it any more.
    pub(super) fn stop_waiting(&mut self, task: Task) {
        if let Some(inbox) = self.inbox(task) {
            inbox.waits_for = None;
            inbox.calls.clear();
        }
    }

    pub(super) fn put(&mut self, task: Task, node: usize, call: LineCall) {
        if let Some(inbox) = self.inbox(task) {
            inbox.calls.push((node, call));
            if let Some(waker) = inbox.wakers[node].take() {
                waker.wake();
            }
        }
    }

    /// Takes the next call of `node` for `key`.
    pub(super) fn take(
        &mut self,
        task: Task,
        node: usize,
        key: &[u8],
        waker: &Waker,
    ) -> Poll<LineCall> {
        let Some(inbox) = self.inbox(task) else {
            return Poll::Pending;
        };
        let awaited = inbox.waits_for.map(|key| KEYS[key].as_bytes());
        let place = inbox.calls.iter().position(|(from, _)| *from == node);
        match place.filter(|_| awaited == Some(key)) {
            Some(place) => Poll::Ready(inbox.calls.remove(place).1),
            None => {
                inbox.wakers[node] = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    /// Forgets the calls of `node`: they were for an earlier try.
    pub(super) fn forget(&mut self, task: Task, node: usize) {
        if let Some(inbox) = self.inbox(task) {
            let is_old =
                |(from, call): &(usize, LineCall)| *from == node && *call != LineCall::Reconnected;
            inbox.calls.retain(|call| !is_old(call));
        }
    }

    fn inbox(&mut self, task: Task) -> Option<&mut Inbox> {
        self.inboxes.iter_mut().find(|inbox| inbox.task == task)
    }
}
