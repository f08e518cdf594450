//! The task that owns the connection to one node.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use std::vec;

use redis::{ServerError, Value};
use redlock_core::transport::{Answer, NodeInfo};
use redlock_core::{Clock, Denial};
use tokio::time::{Sleep, sleep};

use super::address::Address;
use super::answer;
use super::backoff::{Backoff, FIRST_BACKOFF, LAST_BACKOFF, MIN_LIFE, jittered};
use super::call::{Call, CallError};
use super::connect_limit::{ConnectLimit, ROUND_TRIPS};
use super::error::{Failure, TransportError, in_words};
use super::link::{Connected, Link, NotConnected, node_info};
use super::mail::{Mail, Subscriber};
use super::of_process::OfProcess;
use super::queue::{Bundle, Queue, left_out_after};
use super::request;
use super::round_trip::RoundTrip;
use super::silences::Silences;
use super::wire::Wire;
use crate::clock::SystemClock;

/// Sends the queued commands of one node, and owns its connection.
///
/// If it is dropped before its end, its runtime has shut down: then every call of the node fails.
#[derive(Debug)]
pub(crate) struct Actor {
    address: Arc<Address>,
    queue: Arc<Queue>,
    /// The node timeout of the first options. Calls have their own.
    node_timeout: Duration,
    round_trip: Arc<RoundTrip>,
    mail: Arc<Mail>,
    /// `None` once it runs, on its own task.
    subscriber: Option<Subscriber>,
}

/// A call does not wait for the backoff. If the last connect failed at least this time ago, less a random part of up to
/// half of it, the call makes the actor reconnect at once. Calls before that fail at once. So the first call reaches a
/// node that is back, and a dead node is not flooded with connects. Not if the node may be hostile.
const PROBE_DELAY: Duration = Duration::from_millis(30);

/// The same as [`MIN_LIFE`] for a connection that never answered, for example because nothing was sent.
const MIN_IDLE_LIFE: Duration = Duration::from_millis(500);

/// Calls wait for a new connection for twice the time that the last connect took, and for no less than this. After that
/// they fail at once until it is connected, so that they do not wait for a node that drops all packets.
const MIN_PATIENCE: Duration = Duration::from_millis(50);

impl Actor {
    pub(crate) fn new(
        address: Arc<Address>,
        queue: Arc<Queue>,
        node_timeout: Duration,
        round_trip: Arc<RoundTrip>,
        mail: Arc<Mail>,
    ) -> Self {
        let subscriber = Subscriber::new(Arc::clone(&address), Arc::clone(&mail), node_timeout);
        Self {
            address,
            queue,
            node_timeout,
            round_trip,
            mail,
            subscriber: Some(subscriber),
        }
    }

    /// Runs until the last handle of the node is dropped, and after that until all commands are sent, for at most 30
    /// seconds.
    pub(crate) fn run(mut self) -> impl Future<Output = ()> + Send {
        OfProcess::new(async move {
            // On a task of its own: messages must not delay the commands of the lock.
            if let Some(subscriber) = self.subscriber.take() {
                tokio::spawn(OfProcess::new(subscriber.run()));
            }
            tokio::select! {
                biased;
                () = self.serve() => {}
                () = self.queue.farewell() => {}
            }
        })
    }

    async fn serve(&self) {
        let mut backoff = Backoff::new(self.address.is_tls());
        let mut limit = ConnectLimit::new(self.address.is_tls());
        let mut silences = Silences::default();
        let mut took = Duration::ZERO;
        // Why the last connection ended. `None` at first: calls wait for the first connection as long as it takes.
        let mut known = None;
        loop {
            let started_at = Instant::now();
            // The question is the end of the login. An earlier time is on the safe side.
            let asked_at = SystemClock.now();
            let Some(connected) = self.connect(known.as_ref(), took * 2, &limit).await else {
                return;
            };
            let mut has_shaken_hands = self.address.is_tls();
            let kind = match connected {
                Ok(Connected {
                    link,
                    node_info,
                    round_trip,
                }) => {
                    took = started_at.elapsed();
                    limit.was_in_time();
                    self.round_trip.note(round_trip);
                    // Before any command is sent, because the node may be another process now.
                    self.queue.record(node_info, asked_at);
                    self.queue.connected();
                    let connected_at = Instant::now();
                    let mut session = Session::new(self, link, silences);
                    let end = session.run().await;
                    let (has_answered, answered_for) =
                        (session.has_answered, session.answered_for());
                    drop(session);
                    let End::Broken(kind) = end else {
                        return;
                    };
                    self.queue.disconnected(&kind);
                    // Delay if the server accepts connections, and closes them or is hostile at once.
                    let lived = connected_at.elapsed();
                    silences.note(&kind, answered_for);
                    let has_lasted = lived >= MIN_IDLE_LIFE || has_answered && lived >= MIN_LIFE;
                    if has_lasted && !kind.is_violation() && backoff.is_over(lived) {
                        known = Some(kind);
                        continue;
                    }
                    kind
                }
                Err(error) => {
                    if error.was_late {
                        limit.was_late();
                    }
                    has_shaken_hands = error.has_shaken_hands;
                    error.kind
                }
            };
            // If the node may be hostile, calls do not cause a reconnect: acquires that are sent on such a connection leave
            // releases that wait, and the certificates that it shows take time of the thread.
            let may_be_hostile = kind.is_violation() || has_shaken_hands;
            let probe_at = (!may_be_hostile).then(|| Instant::now() + jittered(PROBE_DELAY));
            self.queue.fail(&kind, probe_at);
            known = Some(kind);
            if self.pause(backoff.next_delay()).await.is_break() {
                return;
            }
        }
    }

    /// Waits before the next connect, at most until a call wants one. Breaks at once if no handle is left and no
    /// release waits.
    async fn pause(&self, backoff: Duration) -> ControlFlow<()> {
        self.queue.prune();
        let mut timer = pin!(sleep(backoff));
        poll_fn(|context| {
            self.queue.register(context.waker());
            if self.queue.is_done() {
                return Poll::Ready(ControlFlow::Break(()));
            }
            if self.queue.is_promising() {
                return Poll::Ready(ControlFlow::Continue(()));
            }
            timer.as_mut().poll(context).map(ControlFlow::Continue)
        })
        .await
    }

    /// Connects. Returns `None` if no handle is left and no release waits. If an earlier connection failed, calls wait for
    /// `patience`, and then fail with the `known` reason.
    async fn connect(
        &self,
        mut known: Option<&TransportError>,
        patience: Duration,
        limit: &ConnectLimit,
    ) -> Option<Result<Connected, NotConnected>> {
        let node_timeout = self.queue.longest_timeout(self.node_timeout);
        let to_dial = ConnectLimit::to_dial(node_timeout);
        let to_set_up = limit.to_set_up(node_timeout);
        let patience = patience.min(to_dial / ROUND_TRIPS).max(MIN_PATIENCE);
        // Calls do not wait for a node whose last connection was closed for what it sent, because all of them would be
        // sent at once, in vain.
        if !known.is_some_and(TransportError::is_violation) {
            self.queue.promise();
        }
        let mut link = pin!(Link::connect(&self.address, to_dial, to_set_up));
        let mut timer = pin!(sleep(patience));
        poll_fn(|context| {
            self.queue.register(context.waker());
            if self.queue.is_done() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(link) = link.as_mut().poll(context) {
                return Poll::Ready(Some(link));
            }
            if let Some(kind) = known
                && timer.as_mut().poll(context).is_ready()
            {
                self.queue.fail(kind, None);
                known = None;
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.queue.end();
    }
}

/// The state of one connection.
struct Session<'a> {
    queue: &'a Queue,
    mail: &'a Mail,
    round_trip: &'a RoundTrip,
    /// Those before this connection.
    silences: Silences,
    connected_at: Instant,
    /// Whether the last handle was dropped while the node was silent.
    is_closing: bool,
    link: Link,
    /// From then on, an address that is in doubt is left.
    grown_up: Pin<Box<Sleep>>,
    /// The name of the node may lead elsewhere by now.
    is_in_doubt: bool,
    in_flight: VecDeque<Batch>,
    is_left_out: bool,
    alarm: Pin<Box<Sleep>>,
    /// When the alarm wakes the task. `None` if it is not set.
    alarm_at: Option<Instant>,
    postponed: Postponed,
    has_answered: bool,
    /// When the last reply arrived.
    heard_at: Option<Instant>,
    /// The number of batches in flight that were sent before the node answered like a replica. Their grants do not count.
    in_doubt: usize,
    /// Whether the node has refused the last acquire, for a reason that concerns any key.
    has_refused: bool,
    /// Whether the node has refused the last release.
    has_refused_release: bool,
}

/// Commands that were sent in one write.
struct Batch {
    /// Those whose answers were not passed on.
    calls: vec::IntoIter<Call>,
    /// When the node was asked for its identity, if the next reply is the answer.
    asked_at: Option<redlock_core::Instant>,
    /// Whether some of its answers were passed on.
    has_begun: bool,
    /// Why grants do not count: the node was asked for its identity and could not answer, or is in doubt.
    unknown: Option<Failure>,
    sent_at: Instant,
    /// After this time without a reply, the callers with the shortest timeout skip the node.
    left_out_after: Duration,
    /// Where its bytes begin and end, counted over the life of the connection.
    begin: u64,
    end: u64,
    /// What has arrived and was not passed on.
    answers: Vec<Value>,
}

/// Releases that the node could not execute. They are sent again after a delay.
struct Postponed {
    calls: VecDeque<Call>,
    backoff: Duration,
    /// `Some` while there are calls.
    timer: Option<Pin<Box<Sleep>>>,
}

enum End {
    /// All handles are dropped.
    Closed,
    /// The connection failed for this reason.
    Broken(TransportError),
}

/// The largest number of commands in one write: what Redis reads at once.
const MAX_BATCH: usize = 128;

/// The largest number of unanswered writes. Further commands wait in the queue, which is bounded.
const MAX_IN_FLIGHT: usize = 16;

/// No more is sent while so many bytes are unanswered: extensions would wait behind them. Short commands never are so many.
const MANY_IN_FLIGHT: u64 = 512 * 1024;

/// A connection whose address is in doubt lasts for so long: two names of one server would make a client connect again and again.
const MIN_LIFE_IN_DOUBT: Duration = Duration::from_secs(3);

/// How many times the session sends and receives before it yields to other tasks.
const MAX_TURNS: u32 = 32;

impl<'a> Session<'a> {
    fn new(actor: &'a Actor, link: Link, silences: Silences) -> Self {
        Self {
            silences,
            connected_at: Instant::now(),
            is_closing: false,
            queue: &actor.queue,
            mail: &actor.mail,
            round_trip: &actor.round_trip,
            link,
            grown_up: Box::pin(sleep(MIN_LIFE_IN_DOUBT)),
            is_in_doubt: false,
            in_flight: VecDeque::new(),
            is_left_out: false,
            alarm: Box::pin(sleep(Duration::ZERO)),
            alarm_at: None,
            postponed: Postponed::new(),
            has_answered: false,
            heard_at: None,
            in_doubt: 0,
            // Of an earlier connection.
            has_refused: actor.queue.refusal().is_some(),
            has_refused_release: actor.queue.release_refusal().is_some(),
        }
    }

    async fn run(&mut self) -> End {
        // When a task has used up its budget, tokio makes every socket look empty. Then a node whose replies have arrived would count
        // as silent.
        let end = tokio::task::unconstrained(poll_fn(|context| self.poll(context))).await;
        self.rescue_releases(match &end {
            End::Broken(kind) if kind.is_violation() => kind,
            End::Broken(_) | End::Closed => &TransportError::Disconnected,
        });
        end
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<End> {
        for turn in 1.. {
            let has_sent = self.send(context);
            if has_sent && self.in_flight.len() > 1 {
                // Several tasks use the node. Now the runtime polls this one again after those that are ready, and their commands
                // go in one write. If their next command had to wake it, tokio would poll it at once, for this command alone.
                context.waker().wake_by_ref();
            }
            let had_room = self.has_room();
            let mut has_received = false;
            // After the first turn nothing is left to write or to read, unless there are new commands.
            if has_sent || turn == 1 {
                let sent = self.link.wire.poll_send(context);
                // Also if the connection is broken: what has arrived before counts. Nothing is read beyond the replies, so this ends,
                // and the alarm is polled, whatever the node sends. The alarm is last, so that arrived data is read before a node
                // counts as silent.
                has_received = match self.receive(context) {
                    Ok(has_received) => has_received,
                    Err(kind) => return Poll::Ready(End::Broken(kind)),
                };
                if let Poll::Ready(Err(kind)) = sent {
                    return Poll::Ready(End::Broken(kind));
                }
            }
            let has_got_room = !had_room && self.has_room();
            if !has_received && !has_got_room && !self.resume_postponed(context) {
                break;
            }
            if turn == MAX_TURNS {
                context.waker().wake_by_ref();
                break;
            }
        }
        if self.in_flight.is_empty() && self.leaves(context) {
            return Poll::Ready(End::Broken(TransportError::Disconnected));
        }
        let is_idle = self.in_flight.is_empty() && self.postponed.calls.is_empty();
        if is_idle && self.queue.is_done() {
            return Poll::Ready(End::Closed);
        }
        self.poll_alarm(context).map(End::Broken)
    }

    /// Whether the connection ends when what is in flight is answered, because its address is in doubt.
    fn leaves(&mut self, context: &mut Context<'_>) -> bool {
        self.is_in_doubt |= self.queue.take_doubt();
        self.is_in_doubt && self.grown_up.as_mut().poll(context).is_ready()
    }

    /// Hands the queued commands to the connection. Returns whether there were any.
    fn send(&mut self, context: &mut Context<'_>) -> bool {
        // Only one write until the node has answered one: if the connection breaks after an acquire was sent, its
        // release waits for another connection.
        let most = if self.has_answered { MAX_IN_FLIGHT } else { 1 };
        let mut has_sent = false;
        while self.in_flight.len() < most && self.has_room() && !self.leaves(context) {
            let Some(bundle) = self.queue.take(MAX_BATCH, context.waker()) else {
                break;
            };
            has_sent = true;
            let batch = Batch::sent(bundle, &mut self.link.wire);
            self.in_flight.push_back(batch);
        }
        has_sent
    }

    /// Whether so few bytes are unwritten, and unanswered, that more may be sent.
    fn has_room(&self) -> bool {
        let oldest = self.in_flight.front();
        let unanswered = oldest.map_or(0, |batch| self.link.wire.end() - batch.begin);
        unanswered < MANY_IN_FLIGHT && !self.link.wire.is_full()
    }

    /// Reads what has arrived, and passes the answers to the callers. Returns whether there were any.
    fn receive(&mut self, context: &mut Context<'_>) -> Result<bool, TransportError> {
        let completed = self.complete(context);
        let is_violation = completed.as_ref().is_err_and(TransportError::is_violation);
        let has_partial = !is_violation && self.pass_on_partial();
        let has_received = completed? || has_partial;
        if has_received {
            let unanswered = self.in_flight.iter().map(Batch::unanswered).sum();
            self.link.wire.settle(unanswered)?;
            if std::mem::take(&mut self.is_left_out) {
                self.queue.connected();
            }
        }
        Ok(has_received)
    }

    /// Passes on the answers of each batch that is complete now. Returns whether there were any.
    fn complete(&mut self, context: &mut Context<'_>) -> Result<bool, TransportError> {
        let mut has_completed = false;
        while let Poll::Ready(answer) = self.link.wire.poll_reply(context) {
            let answer = answer?;
            let batch = self.in_flight.front_mut().ok_or(TransportError::Flooded)?;
            batch.answers.push(answer);
            // A node that answers what it cannot have read would be sent more and more of what it does not read.
            if self.link.wire.written_to() < batch.must_be_written_to() {
                return Err(TransportError::Flooded);
            }
            if batch.unanswered() > 0 {
                continue;
            }
            let Some(mut batch) = self.in_flight.pop_front() else {
                break;
            };
            self.note_answer(&batch);
            self.has_answered = true;
            self.pass_on(&mut batch);
            has_completed = true;
        }
        if self.in_flight.is_empty() && self.link.wire.has_unreturned() {
            return Err(TransportError::Flooded);
        }
        Ok(has_completed)
    }

    fn note_answer(&mut self, batch: &Batch) {
        let now = Instant::now();
        self.heard_at = Some(now);
        let took = now.saturating_duration_since(batch.sent_at);
        self.round_trip.note(took);
    }

    /// Passes on the answers of the first batch, of which others have not arrived. Returns whether there were any.
    ///
    /// Over a slow network, many long commands take their time, and their callers do not wait for one another. If the connection
    /// breaks, releases that the node has executed are not sent again, which would take as long once more.
    fn pass_on_partial(&mut self) -> bool {
        let first = self.in_flight.front();
        let has_answers = first.is_some_and(|batch| !batch.answers.is_empty());
        if has_answers && let Some(mut batch) = self.in_flight.pop_front() {
            self.note_answer(&batch);
            self.pass_on(&mut batch);
            self.in_flight.push_front(batch);
        }
        has_answers
    }

    /// Passes on the answers of `batch` that have arrived.
    fn pass_on(&mut self, batch: &mut Batch) {
        let mut again = Vec::new();
        let mut answers = std::mem::take(&mut batch.answers).into_iter();
        if let Some(asked_at) = batch.asked_at.take() {
            match node_info(answers.next()) {
                Ok(node_info) => {
                    // If it is the server of another node, the next round that this costs a lock says so again.
                    self.is_in_doubt = false;
                    self.queue.record(node_info, asked_at);
                    self.in_doubt = 0;
                }
                Err(kind) => batch.unknown = Some(Failure::Transport(kind)),
            }
        } else if self.in_doubt > 0 && !batch.has_begun {
            self.in_doubt -= 1;
            batch.unknown = Some(Failure::Denied(Denial::Replica));
        }
        batch.has_begun = true;
        let admission = batch
            .calls
            .as_slice()
            .iter()
            .any(|call| !call.is_release())
            .then(|| (self.queue.admission(), SystemClock.now()));
        for (mut call, answer) in batch.calls.by_ref().take(answers.len()).zip(answers) {
            if call.command().is_acquire() {
                self.note_refusal(&answer);
            }
            let answer = match answer {
                Value::ServerError(error) => {
                    // After SCRIPT FLUSH, or a restart behind a proxy.
                    if error.code() == "NOSCRIPT" && call.send_script_text() {
                        again.push(call);
                        continue;
                    }
                    let code = answer::code(&error);
                    if code == "READONLY" {
                        self.is_in_doubt = true;
                        self.queue.doubt();
                        self.in_doubt = self.in_flight.len();
                        batch.unknown = Some(Failure::Denied(Denial::Replica));
                    }
                    if !answer::is_transient(code)
                        && !answer::is_unusable(code)
                        && call.leave_line()
                    {
                        // Most likely the user lacks a permission. The node has set and deleted nothing.
                        let why = in_words(&error.clone().into());
                        self.mail.refused(call.command().key, why);
                        if call.is_release() {
                            again.push(call);
                            continue;
                        }
                    }
                    if call.is_release() && answer::is_transient(code) {
                        call.answer(Err(CallError::sent(Failure::Transport(rejected(error)))));
                        self.postponed.calls.push_back(call);
                        continue;
                    }
                    Err(CallError::sent(match &batch.unknown {
                        Some(denied) if code == "READONLY" && call.command().verb.needs_vote() => {
                            denied.clone()
                        }
                        _ => Failure::Transport(rejected(error)),
                    }))
                }
                value => {
                    answer::read(value).map_err(|error| CallError::sent(Failure::Transport(error)))
                }
            };
            if let Ok(answer) = answer
                && call.has_place()
            {
                self.mail.learn(&call.command(), answer);
            }
            if call.is_release() {
                if answer.is_ok() {
                    self.postponed.backoff = FIRST_BACKOFF;
                }
                self.note_release(&answer);
            }
            let answer = answer.and_then(|answer| {
                if let (Some(failure), true) = (&batch.unknown, call.command().verb.needs_vote()) {
                    return Err(CallError::sent(failure.clone()));
                }
                let denial = admission
                    .as_ref()
                    .and_then(|(admission, now)| call.late_denial(answer, admission, *now));
                match denial {
                    Some(denial) => Err(CallError::sent(Failure::Denied(denial))),
                    None => Ok(answer),
                }
            });
            call.answer(answer);
        }
        if !again.is_empty() {
            // Ahead of commands that have not been sent yet.
            self.queue.push_front(again.into_iter());
        }
    }

    /// Records what the answer to an acquire tells about those of any key.
    fn note_refusal(&mut self, answer: &Value) {
        let refusal = match answer {
            Value::ServerError(error) if answer::is_of_any_key(error) => {
                Some(rejected(error.clone()))
            }
            _ => None,
        };
        if refusal.is_some() || self.has_refused {
            self.has_refused = refusal.is_some();
            self.queue.set_refusal(refusal);
        }
    }

    /// Records whether the node has refused a release that is not sent again.
    fn note_release(&mut self, answer: &Result<Answer, CallError>) {
        let refusal = match answer {
            Err(CallError {
                failure: Failure::Transport(TransportError::Rejected(why)),
                ..
            }) => Some(TransportError::CannotRelease(Arc::clone(why))),
            _ => None,
        };
        if refusal.is_some() || self.has_refused_release {
            self.has_refused_release = refusal.is_some();
            self.queue.set_release_refusal(refusal);
        }
    }

    /// Queues postponed releases when their delay is over. Returns whether there were any.
    fn resume_postponed(&mut self, context: &mut Context<'_>) -> bool {
        let calls = self.postponed.poll(context);
        let is_some = !calls.is_empty();
        if is_some {
            self.queue.push_front(calls.into_iter());
        }
        is_some
    }

    /// Lets callers skip a silent node, and ends the session if the node has been silent for too long. Both times depend on
    /// the timeouts of the callers whose commands are in flight.
    fn poll_alarm(&mut self, context: &mut Context<'_>) -> Poll<TransportError> {
        loop {
            let Some(oldest) = self.in_flight.front() else {
                return Poll::Pending;
            };
            let silent_since = self.silent_since(oldest);
            if self.is_left_out && !self.is_closing && self.queue.is_closed() {
                self.is_closing = true;
                self.alarm_at = None;
            }
            let left_out_at = silent_since + oldest.left_out_after;
            let due = match self.is_left_out {
                true => self
                    .alarm_at
                    .unwrap_or_else(|| silent_since + self.replaced_after()),
                false => left_out_at,
            };
            // An alarm that is too early only sets itself again. So it is not set anew for each batch.
            if self.alarm_at.is_none_or(|at| at > due) {
                let left = due.saturating_duration_since(Instant::now());
                let at = tokio::time::Instant::now() + left;
                self.alarm.as_mut().reset(at);
                self.alarm_at = Some(due);
            }
            if self.alarm.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.alarm_at = None;
            let now = Instant::now();
            let silent_for = now.saturating_duration_since(silent_since);
            if silent_for >= self.replaced_after() {
                return Poll::Ready(TransportError::Silent(silent_for));
            }
            if now >= left_out_at && !self.is_left_out {
                self.is_left_out = true;
                let given_up_at = silent_since + self.usually_replaced_after();
                self.queue.leave_out(silent_since, given_up_at);
            }
        }
    }

    /// Since when the node has answered nothing, with this batch as the oldest one in flight. Over a slow network it may take long for all
    /// of the batch, and answer all the time.
    fn silent_since(&self, oldest: &Batch) -> Instant {
        let sent_at = oldest.sent_at;
        self.heard_at.map_or(sent_at, |at| at.max(sent_at))
    }

    /// After this time without an answer, the actor closes the connection and reconnects.
    fn replaced_after(&self) -> Duration {
        let usual = self.usually_replaced_after();
        // The actor ends soon, and has to try again before that.
        match self.is_closing {
            true => usual,
            false => self.silences.patience(usual, self.answered_for()),
        }
    }

    /// The same if the node has not been silent before.
    fn usually_replaced_after(&self) -> Duration {
        const LEAST: Duration = Duration::from_secs(1);

        let calls = self
            .in_flight
            .iter()
            .flat_map(|batch| batch.calls.as_slice());
        let longest = calls.map(Call::node_timeout).max().unwrap_or_default();
        longest.saturating_mul(8).max(LEAST)
    }

    /// For how long after the connect the node has gone on answering.
    fn answered_for(&self) -> Duration {
        let heard_at = self.heard_at.unwrap_or(self.connected_at);
        heard_at.saturating_duration_since(self.connected_at)
    }

    /// Requeues releases for the next connection: a release may be sent twice, but must not be lost. For other commands in
    /// flight, the result is unknown.
    fn rescue_releases(&mut self, kind: &TransportError) {
        let mut releases = std::mem::take(&mut self.postponed.calls);
        for mut call in self.in_flight.drain(..).flat_map(|batch| batch.calls) {
            call.answer(Err(CallError::sent(Failure::Transport(kind.clone()))));
            if call.is_release() {
                releases.push_back(call);
            }
        }
        self.queue.adopt(releases);
    }
}

impl Drop for Session<'_> {
    /// If calls are in flight or postponed, the runtime shuts down.
    fn drop(&mut self) {
        let calls = self
            .in_flight
            .iter()
            .flat_map(|batch| batch.calls.as_slice());
        let releases = calls.filter(|call| call.is_release()).count();
        self.queue
            .lose_releases(releases + self.postponed.calls.len());
        let in_flight = self.in_flight.iter_mut();
        for call in in_flight.flat_map(|batch| batch.calls.as_mut_slice()) {
            call.answer(Err(CallError::sent(Failure::Transport(
                TransportError::RuntimeGone,
            ))));
        }
    }
}

impl Batch {
    fn sent(
        Bundle {
            mut calls,
            asked_at,
        }: Bundle,
        wire: &mut Wire,
    ) -> Self {
        calls.iter_mut().for_each(Call::write);
        let sent_at = Instant::now();
        let shortest = calls.iter().map(Call::node_timeout).min();
        let begin = wire.end();
        let replies = calls.len() + usize::from(asked_at.is_some());
        let bytes = wire.send(replies);
        if asked_at.is_some() {
            request::write(NodeInfo::question(), bytes);
        }
        for call in &calls {
            call.append_to(bytes);
        }
        Self {
            begin,
            end: wire.end(),
            answers: Vec::with_capacity(replies),
            calls: calls.into_iter(),
            asked_at,
            has_begun: false,
            unknown: None,
            sent_at,
            left_out_after: left_out_after(shortest.unwrap_or_default()),
        }
    }

    /// Up to where its bytes were written before the node could send the replies that have arrived.
    fn must_be_written_to(&self) -> u64 {
        match self.answers.len() < self.replies() {
            true => self.begin + 1,
            false => self.end,
        }
    }

    /// The number of replies that have not arrived.
    fn unanswered(&self) -> usize {
        self.replies() - self.answers.len()
    }

    /// The number of replies that were not passed on.
    fn replies(&self) -> usize {
        self.calls.len() + usize::from(self.asked_at.is_some())
    }
}

impl Postponed {
    const fn new() -> Self {
        Self {
            calls: VecDeque::new(),
            backoff: FIRST_BACKOFF,
            timer: None,
        }
    }

    /// Returns a batch of releases to send again now. If the node executes them, the next batch follows soon.
    fn poll(&mut self, context: &mut Context<'_>) -> Vec<Call> {
        if self.calls.is_empty() {
            return Vec::new();
        }
        let timer = self.timer.get_or_insert_with(|| {
            let backoff = self.backoff;
            self.backoff = backoff.saturating_mul(2).min(LAST_BACKOFF);
            Box::pin(sleep(backoff))
        });
        if timer.as_mut().poll(context).is_pending() {
            return Vec::new();
        }
        self.timer = None;
        let now = Instant::now();
        let mut calls = Vec::new();
        // Not those behind them: they may be very many.
        while calls.len() < MAX_BATCH
            && let Some(call) = self.calls.pop_front()
        {
            if !call.is_pointless(now) {
                calls.push(call);
            }
        }
        calls
    }
}

fn rejected(error: ServerError) -> TransportError {
    match answer::read(Value::ServerError(error)) {
        Err(kind) => kind,
        Ok(_) => TransportError::Unexpected,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use redlock_core::transport::{Command, VoteConditions};
    use redlock_core::{Token, Transport};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::metered::Credit;
    use super::super::replies::Replies;
    use super::*;
    use crate::node::{RedisNode, random_mailbox};

    const NODE_TIMEOUT: Duration = Duration::from_millis(100);
    const MINUTE: Duration = Duration::from_secs(60);

    /// A session with a node that takes so many bytes at once, and the node's end of the connection.
    fn session(actor: &Actor, room: usize) -> (Session<'_>, tokio::io::DuplexStream) {
        let credit = Credit::new();
        let (stream, node) = tokio::io::duplex(room);
        let replies = Replies::of_commands(Arc::clone(&credit));
        let wire = Wire::new(Box::new(stream), replies, credit);
        actor.queue.connected();
        (
            Session::new(actor, Link::over(wire), Silences::default()),
            node,
        )
    }

    fn prepared() -> (RedisNode, Actor) {
        let address = Address::parse("redis://127.0.0.1:1").unwrap();
        let lines = crate::lines::Teller::alone();
        RedisNode::prepare(address, NODE_TIMEOUT, random_mailbox(), lines)
    }

    /// Queues so many releases. Returns how long they are together, about.
    fn queue_releases(node: &RedisNode, count: usize, key: &[u8]) -> usize {
        let token = Token::from_bytes([1; Token::LEN]);
        for _ in 0..count {
            node.release_unattended(&Command::release(key, &token));
        }
        count * key.len()
    }

    async fn poll(session: &mut Session<'_>) -> Poll<End> {
        let once = poll_fn(|context| Poll::Ready(session.poll(context)));
        tokio::task::unconstrained(once).await
    }

    #[tokio::test]
    async fn a_node_that_does_not_read_is_sent_little() {
        const KEY: [u8; 1_000] = [b'k'; 1_000];

        let (node, actor) = prepared();
        let (mut session, mut remote) = session(&actor, 100_000);
        answer_one(&node, &mut session, &mut remote).await;
        // From now on nothing is read, and the buffers of the network take 100 KB.
        let queued = queue_releases(&node, 3_000, &KEY);
        for _ in 0..100 {
            assert!(poll(&mut session).await.is_pending());
        }
        let unsent = session.link.wire.end() - session.link.wire.written_to();
        assert!(session.link.wire.is_full());
        assert!(unsent < 400_000, "{unsent} of {queued}");

        // It reads again: all is sent, a part at a time.
        let mut arrived = 0;
        let mut chunk = vec![0; 1_000_000];
        while arrived < queued {
            arrived += remote.read(&mut chunk).await.unwrap();
            remote
                .write_all(&b":1\r\n".repeat(answered(&mut session)))
                .await
                .unwrap();
            assert!(poll(&mut session).await.is_pending());
        }
    }

    #[tokio::test]
    async fn a_node_that_was_silent_often_may_be_silent_for_longer_while_there_is_a_handle() {
        let (node, actor) = prepared();
        let (mut session, _remote) = session(&actor, 1_000_000);
        for _ in 0..6 {
            session
                .silences
                .note(&TransportError::Silent(NODE_TIMEOUT), Duration::ZERO);
        }
        queue_releases(&node, 1, b"dock-7");
        let dropped = async {
            while actor.queue.current_reach().is_connected {
                sleep(NODE_TIMEOUT / 10).await;
            }
            drop(node);
        };
        let end = async {
            // As the actor does.
            tokio::select! {
                biased;
                end = session.run() => end,
                () = actor.queue.farewell() => End::Closed,
            }
        };
        let (end, ()) = tokio::join!(end, dropped);
        let End::Broken(TransportError::Silent(silent_for)) = end else {
            panic!("the node answers nothing, and there is time to try again");
        };
        assert!(silent_for < Duration::from_secs(10), "{silent_for:?}");
        assert!(session.silences.patience(NODE_TIMEOUT, Duration::ZERO) > NODE_TIMEOUT * 32);
    }

    #[tokio::test]
    async fn no_more_is_sent_while_very_much_is_unanswered() {
        let (node, actor) = prepared();
        let (mut session, mut remote) = session(&actor, 10_000_000);
        answer_one(&node, &mut session, &mut remote).await;
        let queued = queue_releases(&node, 3_000, &[b'k'; 1_000]) as u64;
        assert!(poll(&mut session).await.is_pending());
        let sent = session.link.wire.end();
        let expected = MANY_IN_FLIGHT..2 * MANY_IN_FLIGHT;
        assert!(expected.contains(&sent), "{sent} of {queued}");
        assert_eq!(session.link.wire.written_to(), sent);

        let replies = answered(&mut session);
        remote.write_all(&b":1\r\n".repeat(replies)).await.unwrap();
        assert!(poll(&mut session).await.is_pending());
        assert!(session.link.wire.end() - sent >= MANY_IN_FLIGHT);
    }

    #[tokio::test]
    async fn all_for_which_there_is_room_is_sent_at_once() {
        let (node, actor) = prepared();
        let (mut session, mut remote) = session(&actor, 10_000_000);
        answer_one(&node, &mut session, &mut remote).await;
        queue_releases(&node, 1_000, &[b'k'; 100]);
        // Nothing else would wake the session: nothing is left to write, and no reply comes.
        assert!(poll(&mut session).await.is_pending());
        let sent: usize = session.in_flight.iter().map(Batch::replies).sum();
        assert_eq!(sent, 1_000);
        assert_eq!(session.link.wire.written_to(), session.link.wire.end());
    }

    /// Lets the node answer a release, so that the session sends more than one write before the next answer.
    async fn answer_one(
        node: &RedisNode,
        session: &mut Session<'_>,
        remote: &mut tokio::io::DuplexStream,
    ) {
        queue_releases(node, 1, b"dock-7");
        assert!(poll(session).await.is_pending());
        remote.write_all(b":1\r\n").await.unwrap();
    }

    /// How many replies the node owes for what was written to it.
    fn answered(session: &mut Session<'_>) -> usize {
        let written = session.link.wire.written_to();
        let whole = session
            .in_flight
            .iter()
            .filter(|batch| batch.end <= written);
        whole.map(Batch::replies).sum()
    }

    /// What waits to be released on the next connection.
    fn releases_left(session: &mut Session<'_>, kind: &TransportError) -> usize {
        session.rescue_releases(kind);
        let bundle = session.queue.take(usize::MAX, std::task::Waker::noop());
        bundle.map_or(0, |bundle| bundle.calls.len())
    }

    #[tokio::test]
    async fn what_a_node_has_answered_before_the_connection_breaks_is_not_sent_again() {
        for (more, left) in [
            (&b""[..], 60),
            // A node that breaks the protocol: what it has said before may be wrong too.
            (b"?\r\n", 100),
        ] {
            let (node, actor) = prepared();
            let (mut session, mut remote) = session(&actor, 1_000_000);
            queue_releases(&node, 100, b"dock-7");
            assert!(poll(&mut session).await.is_pending());
            let replies = [&b":1\r\n".repeat(40)[..], more].concat();
            remote.write_all(&replies).await.unwrap();
            drop(remote);
            let Poll::Ready(End::Broken(kind)) = poll(&mut session).await else {
                panic!("the connection is broken");
            };
            assert_eq!(kind.is_violation(), !more.is_empty());
            assert_eq!(releases_left(&mut session, &kind), left);
        }
    }

    #[tokio::test]
    async fn the_caller_of_a_command_does_not_wait_for_the_replies_to_others_of_its_write() {
        let (node, actor) = prepared();
        let (mut session, mut remote) = session(&actor, 1_000_000);
        actor.queue.record(None, SystemClock.now());
        let [mut first, mut second] = [node.clone(), node];
        let token = Token::from_bytes([1; Token::LEN]);
        let extend = Command::extend(b"dock-7", &token, 10_000);
        let mut answers = [&mut first, &mut second].map(|node| Box::pin(node.execute(&extend)));
        let context = &mut Context::from_waker(std::task::Waker::noop());
        for answer in &mut answers {
            assert!(answer.as_mut().poll(context).is_pending());
        }
        assert!(poll(&mut session).await.is_pending());
        for answer in &mut answers {
            assert_eq!(session.in_flight.len(), 1);
            assert!(answer.as_mut().poll(context).is_pending());
            remote.write_all(b":1\r\n").await.unwrap();
            assert!(poll(&mut session).await.is_pending());
            assert!(answer.as_mut().poll(context).is_ready());
        }
    }

    #[tokio::test]
    async fn a_node_that_answers_one_command_after_the_other_is_not_silent() {
        let (node, actor) = prepared();
        let (mut session, mut remote) = session(&actor, 1_000_000);
        answer_one(&node, &mut session, &mut remote).await;
        for count in [1, 100] {
            queue_releases(&node, count, b"dock-7");
            assert!(poll(&mut session).await.is_pending());
        }
        // Of the first write, and then of the second.
        for _ in 0..3 {
            let before = Instant::now();
            actor.round_trip.note(Duration::ZERO);
            remote.write_all(b":1\r\n").await.unwrap();
            assert!(poll(&mut session).await.is_pending());
            let oldest = session.in_flight.front().unwrap();
            assert!(session.silent_since(oldest) >= before);
            assert!(actor.round_trip.known().is_some());
        }
        assert!(session.answered_for() < MINUTE);
        session.connected_at = session.connected_at.checked_sub(MINUTE).unwrap();
        assert!(session.answered_for() >= MINUTE);
    }

    #[tokio::test]
    async fn no_grant_to_a_command_in_flight_counts_once_the_node_has_answered_like_a_replica() {
        let (node, actor) = prepared();
        let (mut session, mut remote) = session(&actor, 1_000_000);
        actor.queue.record(None, SystemClock.now());
        answer_one(&node, &mut session, &mut remote).await;
        let token = Token::from_bytes([1; Token::LEN]);
        let acquire = Command::acquire(b"dock-7", &token, 10_000, VoteConditions::NONE);
        let mut nodes = [(); 4].map(|()| node.clone());
        let mut answers = Vec::new();
        let mut callers = nodes.iter_mut();
        let context = &mut Context::from_waker(std::task::Waker::noop());
        for of_write in [1, 2, 1] {
            for node in callers.by_ref().take(of_write) {
                let mut answer = Box::pin(node.execute(&acquire));
                assert!(answer.as_mut().poll(context).is_pending());
                answers.push(answer);
            }
            assert!(poll(&mut session).await.is_pending());
        }
        let replies = [
            &b"-READONLY it is a replica\r\n"[..],
            b":1\r\n",
            b":1\r\n",
            b":1\r\n",
        ];
        for (reply, answer) in replies.into_iter().zip(&mut answers) {
            remote.write_all(reply).await.unwrap();
            assert!(poll(&mut session).await.is_pending());
            let denied = Err(Failure::Denied(Denial::Replica));
            let answer = answer.as_mut().poll(context);
            let answer = answer.map_err(|error| error.failure().clone());
            assert_eq!(answer, Poll::Ready(denied));
        }
    }

    #[tokio::test]
    async fn a_reply_has_no_room_that_others_have_used() {
        // Of its write, and of the one before.
        for writes in [&[100][..], &[1, 100]] {
            let (node, actor) = prepared();
            let (mut session, mut remote) = session(&actor, 1_000_000);
            answer_one(&node, &mut session, &mut remote).await;
            for count in writes {
                queue_releases(&node, *count, b"dock-7");
                assert!(poll(&mut session).await.is_pending());
            }
            // All is answered but for a reply that has not ended.
            let replies = writes.iter().sum::<usize>() - 1;
            remote.write_all(&b":1\r\n".repeat(replies)).await.unwrap();
            remote
                .write_all(&[b"-", &[b'x'; 20_000][..]].concat())
                .await
                .unwrap();
            let end = poll(&mut session).await;
            assert!(matches!(
                end,
                Poll::Ready(End::Broken(TransportError::Flooded))
            ));
        }
    }

    #[tokio::test]
    async fn a_node_that_answers_what_it_cannot_have_read_is_cut_off() {
        for (count, is_written) in [(1, true), (128, false)] {
            let (node, actor) = prepared();
            let (mut session, mut remote) = session(&actor, 1_000);
            queue_releases(&node, count, b"dock-7");
            assert!(poll(&mut session).await.is_pending());
            remote.write_all(&b":1\r\n".repeat(count)).await.unwrap();
            let end = poll(&mut session).await;
            match is_written {
                true => assert!(end.is_pending()),
                false => assert!(matches!(
                    end,
                    Poll::Ready(End::Broken(TransportError::Flooded))
                )),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_actor_of_a_hung_node_ends_30_seconds_after_the_last_handle() {
        const LONG: Duration = Duration::from_secs(600);

        let hung = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", hung.local_addr().unwrap());
        let (node, actor) = RedisNode::prepare(
            Address::parse(&url).unwrap(),
            LONG,
            random_mailbox(),
            crate::lines::Teller::alone(),
        );
        let token = Token::from_bytes([1; Token::LEN]);
        node.release_unattended(&Command::release(b"dock", &token));
        drop(node);
        let start = tokio::time::Instant::now();
        actor.run().await;
        assert_eq!(start.elapsed().as_secs(), 30);
    }
}
