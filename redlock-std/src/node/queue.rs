//! What all tasks want from one node, until its actor sends it, and what they know of the node.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Waker;
use std::time::{Duration, Instant};

use redis::Cmd;
use redlock_core::{
    Admission, Answer, Argument, Arguments, Clock, Command, Denial, FENCE_KEY_PREFIX, Introduction,
    OwnedCommand, RunId, ScriptCall,
};
use tokio::sync::oneshot;

use super::error::{NodeError, NodeErrorKind};
use crate::clock::SystemClock;

/// The commands that wait to be sent, and whether it is worth waiting.
///
/// Bounded: acquires and extends are refused when very many commands wait or the node does not
/// answer. Releases are taken also then, since each belongs to an acquire that was taken: on a node
/// that comes back, no key of a lease that was given back is left.
#[derive(Debug)]
pub(crate) struct Queue {
    name: Arc<str>,
    state: Mutex<State>,
    /// Outlives the connections: another process behind the same address is noticed. Read for every round
    /// and written on every connect.
    admission: RwLock<Admission>,
}

#[derive(Debug)]
struct State {
    status: Status,
    waiting: VecDeque<Call>,
    actor: Option<Waker>,
    is_closed: bool,
}

/// What is known about the node.
#[derive(Debug)]
enum Status {
    /// Up, or not yet known: calls wait for it.
    Promising,
    /// Calls fail at once, for this reason.
    Failing(NodeErrorKind),
}

/// A command that somebody may be waiting for.
#[derive(Debug)]
pub(crate) struct Call {
    command: OwnedCommand<Box<[u8]>>,
    script_call: ScriptCall,
    queued_at: Instant,
    reply: Option<oneshot::Sender<Result<Answer, NodeErrorKind>>>,
}

/// How many acquires and extends may wait: more than a burst of tasks, some megabytes.
const MAX_WAITING: usize = 16_384;

/// How many commands may wait with the releases.
const MAX_WAITING_WITH_RELEASES: usize = 4 * MAX_WAITING;

/// What the actor is to do next.
pub(crate) enum Turn {
    /// Send these.
    Send(Vec<Call>),
    /// Nothing: it is woken when there is something.
    Wait,
    /// Nothing, ever again.
    End,
}

impl Queue {
    pub(crate) const fn new(name: Arc<str>) -> Self {
        Self {
            name,
            state: Mutex::new(State {
                status: Status::Promising,
                waiting: VecDeque::new(),
                actor: None,
                is_closed: false,
            }),
            admission: RwLock::new(Admission::new()),
        }
    }

    pub(crate) const fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn error(&self, kind: NodeErrorKind) -> NodeError {
        NodeError::new(Arc::clone(&self.name), kind)
    }

    /// Queues `call`, or says why not. A release is queued in any case; nobody waits for it if the
    /// node does not answer.
    pub(crate) fn push(
        &self,
        mut call: Call,
    ) -> Result<oneshot::Receiver<Result<Answer, NodeErrorKind>>, NodeErrorKind> {
        let mut state = self.lock();
        if let Status::Failing(kind) = &state.status {
            let kind = kind.clone();
            if call.is_release() {
                state.push(call);
            }
            return Err(kind);
        }
        if !call.is_release() && state.waiting.len() >= MAX_WAITING {
            return Err(NodeErrorKind::Overloaded);
        }
        let (sender, receiver) = oneshot::channel();
        call.reply = Some(sender);
        state.push(call);
        let actor = state.actor.take();
        drop(state);
        actor.inspect(Waker::wake_by_ref);
        Ok(receiver)
    }

    /// Queues a release that nobody waits for.
    pub(crate) fn push_unattended(&self, call: Call) {
        let mut state = self.lock();
        state.push(call);
        let actor = state.actor.take();
        drop(state);
        actor.inspect(Waker::wake_by_ref);
    }

    /// Puts calls back to the head of the line.
    pub(crate) fn push_front(&self, calls: impl DoubleEndedIterator<Item = Call>) {
        let mut state = self.lock();
        for call in calls.rev() {
            state.waiting.push_front(call);
        }
    }

    /// What is to be sent next, at most `most` calls. An acquire or extend that was queued before `too_old` and
    /// whose caller has stopped waiting is left out. Acquires are answered here and now if the vote of the node
    /// would not count.
    pub(crate) fn take(&self, most: usize, too_old: Option<Instant>, actor: &Waker) -> Turn {
        let mut state = self.lock();
        let count = state.waiting.len().min(most);
        let mut calls: Vec<Call> = state.waiting.drain(..count).collect();
        if let Some(too_old) = too_old {
            calls.retain(|call| call.queued_at >= too_old || !call.is_abandoned());
        }
        let admission = self.admission();
        calls.retain_mut(|call| match call.denial(&admission) {
            None => true,
            Some(denial) => {
                call.answer(Err(NodeErrorKind::Denied(denial)));
                false
            }
        });
        if !calls.is_empty() {
            return Turn::Send(calls);
        }
        if state.is_closed && state.waiting.is_empty() {
            return Turn::End;
        }
        if state.waiting.is_empty() {
            state.actor = Some(actor.clone());
        } else {
            actor.wake_by_ref();
        }
        Turn::Wait
    }

    /// Takes note of who answers on a new connection; none when it may not say so.
    pub(crate) fn introduced(&self, introduction: Option<Introduction>) {
        let now = SystemClock.now();
        let mut admission = self.admission();
        admission.introduced(introduction, now);
        *self
            .admission
            .write()
            .unwrap_or_else(PoisonError::into_inner) = admission;
    }

    /// The process that answers, as far as it is known.
    pub(crate) fn run_id(&self) -> Option<RunId> {
        self.admission().run_id()
    }

    /// Whether the node may evict keys, as far as it is known.
    pub(crate) fn may_evict(&self) -> bool {
        self.admission().may_evict()
    }

    /// Lets calls wait for the node again.
    pub(crate) fn promise(&self) {
        self.lock().status = Status::Promising;
    }

    /// Fails what waits, and whatever comes from now on. Releases stay, without anybody waiting.
    pub(crate) fn fail(&self, kind: &NodeErrorKind) {
        let mut state = self.lock();
        state.status = Status::Failing(kind.clone());
        for mut call in mem::take(&mut state.waiting) {
            call.answer(Err(kind.clone()));
            if call.is_release() {
                state.waiting.push_back(call);
            }
        }
    }

    /// Lets the actor end once everything is sent.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        let actor = state.actor.take();
        drop(state);
        actor.inspect(Waker::wake_by_ref);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    /// Wakes `actor` when the queue is closed.
    pub(crate) fn register(&self, actor: &Waker) {
        self.lock().actor = Some(actor.clone());
    }

    fn admission(&self) -> Admission {
        *self
            .admission
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Beyond the bound a release is dropped: its key expires.
    fn push(&mut self, call: Call) {
        if self.waiting.len() < MAX_WAITING_WITH_RELEASES {
            self.waiting.push_back(call);
        }
    }
}

impl Call {
    pub(crate) fn new(command: &Command<'_>) -> Self {
        Self {
            command: command.into(),
            script_call: ScriptCall::Hash,
            queued_at: Instant::now(),
            reply: None,
        }
    }

    /// What goes on the wire.
    pub(crate) fn cmd(&self) -> Cmd {
        words(self.command.command().arguments(self.script_call))
    }

    /// Why it is not to be sent: an acquire to a node whose vote would not count.
    fn denial(&self, admission: &Admission) -> Option<Denial> {
        let Command::Acquire { ttl_ms, rules, .. } = self.command.command() else {
            return None;
        };
        let ttl = Duration::from_millis(ttl_ms.into());
        admission.check(rules, ttl, SystemClock.now()).err()
    }

    /// Whether it is an acquire or extend whose caller has stopped waiting.
    fn is_abandoned(&self) -> bool {
        !self.is_release() && self.reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    pub(crate) fn is_release(&self) -> bool {
        matches!(self.command.command(), Command::Release { .. })
    }

    /// Sends the text of the script the next time; false if that was done already.
    pub(crate) fn send_script_text(&mut self) -> bool {
        mem::replace(&mut self.script_call, ScriptCall::Text) == ScriptCall::Hash
    }

    /// Tells whoever waits; a second answer is dropped.
    pub(crate) fn answer(&mut self, answer: Result<Answer, NodeErrorKind>) {
        if let Some(reply) = self.reply.take() {
            // Whoever has left at the quorum does not need it.
            drop(reply.send(answer));
        }
    }
}

/// `arguments` as the connection takes them.
pub(crate) fn words(arguments: Arguments<'_>) -> Cmd {
    /// Enough for a key of ordinary length, so that the words are one allocation.
    const BYTES: usize = 256;

    let mut cmd = Cmd::with_capacity(Arguments::MAX, BYTES);
    for word in arguments {
        match word {
            Argument::Bytes(bytes) => cmd.arg(bytes),
            Argument::Integer(number) => cmd.arg(number),
            Argument::FenceKey(key) => cmd.arg([FENCE_KEY_PREFIX.as_bytes(), key].concat()),
        };
    }
    cmd
}
