//! The connection to one node: connects, matches replies to commands, and reconnects.

use core::future::pending;
use core::time::Duration;

use embassy_futures::select::{Either, select};
#[cfg(feature = "queue")]
use embassy_futures::yield_now;
use redlock_core::transport::{Admission, Answer, Command, NodeInfo, ScriptCall};
use redlock_core::{Clock, Instant};

use crate::error::TransportError;
use crate::log::{debug, warning};
use crate::login::{self, Login};
use crate::mail::Mail;
#[cfg(feature = "queue")]
use crate::mail::Status;
use crate::pipeline::{Pipeline, Refused};
use crate::resp::Value;
use crate::{Connect, NodeName};

/// The state of the connection. No future holds any of it, so a call may be dropped, and the next call continues.
#[derive(Debug)]
pub(crate) struct Link<'a, S, const TX: usize, const RX: usize> {
    socket: S,
    pub(crate) login: Login<'a>,
    pipeline: Pipeline<TX, RX>,
    state: State,
    /// When the socket has taken this many bytes more, the time of a step of the login begins anew.
    renewed_after: usize,
    /// The login of the present connection is not accepted yet.
    is_new: bool,
    /// The step that loads the next script, if a connection ended before all of them were loaded. The next connection goes on with it:
    /// one that is closed when it is idle may never last long enough for all. If it loads none, the one after that does not.
    #[cfg(feature = "scripts")]
    scripts_left: Option<login::Step>,
    /// How many connections in a row have ended before the client could stand in a line.
    #[cfg(feature = "queue")]
    line_breaks: u8,
    /// Bytes were written to the socket and not flushed.
    is_unflushed: bool,
    /// When the client began to wait for the next reply.
    waiting_since: Instant,
    /// The number of failed connections in a row. A reply to a command of a lock resets it, unless the reply is an error.
    failures: u8,
    /// The last error.
    why: TransportError,
    /// The recorded identity of the node. A reconnect does not reset it.
    pub(crate) admission: Admission,
    /// What the node knows of the mailbox of this client. A reconnect does not reset it.
    pub(crate) mail: Mail,
    /// The name of the node may lead elsewhere by now.
    #[cfg(feature = "dns")]
    is_address_in_doubt: bool,
    #[cfg(feature = "dns")]
    connected_at: Instant,
    // In microseconds: the arithmetic on `Duration` takes flash.
    connect_timeout_micros: u64,
    patience_micros: u64,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// No connection. The next attempt may start at `again_at`.
    Closed { again_at: Instant },
    /// Connecting.
    Connecting { until: Instant },
    /// Connected, and in this step of the login. The pipeline has taken the first `fed` bytes of its command, or all of it if
    /// `fed` is [`WHOLE`].
    LoggingIn {
        step: login::Step,
        fed: usize,
        until: Instant,
    },
    /// Logged in: takes commands.
    Open,
    /// No longer usable. The socket is being closed, so that the node notices.
    Closing { until: Instant, again_at: Instant },
}

/// The state that a call waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    /// Everything that has arrived is read, without waiting for more: replies to dropped calls, or the end of the connection.
    CaughtUp,
    /// The connection takes commands. If there is no connection, the client connects. After a failure, it connects only
    /// when the back-off is over.
    Open,
    /// Everything is sent, and all replies have arrived.
    Answered,
    /// All bytes are sent that the socket takes without waiting.
    Sent,
    /// Bytes have been written, or have arrived. The client waits for them without a limit: if the node hangs, the first call
    /// after the patience of the link aborts the connection.
    Progress,
    /// An aborted connection has begun to close. The result is always [`Failed`], because the earlier goal of the call cannot
    /// be reached any more.
    Aborted,
    /// A connection that is no longer usable is closed.
    Closed,
}

/// A goal cannot be reached. [`Link::why`] returns the error, which is too large to be copied from call to call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failed;

/// What to do next to reach a goal.
enum Next {
    /// Take this action until this instant. [`NOW`]: poll it once. [`NEVER`]: until the caller drops the future.
    Take(Action, Instant),
    /// Stop: the goal is reached, or cannot be reached.
    Stop(Result<(), Failed>),
}

#[derive(Clone, Copy)]
enum Action {
    Connect,
    LogIn,
    Write,
    Flush,
    Read,
    Close,
}

// Two instants, because an enum would be larger in the future of every call.
const NOW: Instant = Instant::from_micros(0);
const NEVER: Instant = Instant::MAX;

/// Whether the login may send a step before the one before it is answered.
const IS_PIPELINED: bool = cfg!(any(feature = "scripts", feature = "client-name"));

/// The number of bytes that the pipeline has taken of a command, if it has taken all.
const WHOLE: usize = usize::MAX;

/// A step of the login that is longer than this takes more than one connect timeout if the node reads slowly. It is the length of a
/// login, and of the send buffer of the README.
const PIECE: usize = 1_024;

/// The limit for closing a connection.
const CLOSE_MICROS: u64 = 1_000_000;

/// A connection whose address is in doubt lasts for so long: two names of one server would make a client connect again and again.
#[cfg(feature = "dns")]
const ADDRESS_MICROS: u64 = 3_000_000;

/// The pause after the second failure in a row. It doubles with each further failure.
const BACK_OFF_MICROS: u32 = 50_000;

/// How many times [`BACK_OFF_MICROS`] doubles, at most: up to 1.6 s.
const BACK_OFF_DOUBLINGS: u8 = 5;

impl<'a, S: Connect, const TX: usize, const RX: usize> Link<'a, S, TX, RX> {
    pub(crate) const fn new(socket: S) -> Self {
        Self {
            socket,
            login: Login {
                user: None,
                password: None,
                database: 0,
                #[cfg(feature = "client-name")]
                client_name: None,
            },
            pipeline: Pipeline::new(),
            state: State::Closed {
                again_at: Instant::from_micros(0),
            },
            renewed_after: 0,
            is_new: false,
            #[cfg(feature = "scripts")]
            scripts_left: None,
            #[cfg(feature = "queue")]
            line_breaks: 0,
            is_unflushed: false,
            waiting_since: Instant::from_micros(0),
            failures: 0,
            why: TransportError::Disconnected,
            admission: Admission::new(),
            mail: Mail::new(),
            #[cfg(feature = "dns")]
            is_address_in_doubt: false,
            #[cfg(feature = "dns")]
            connected_at: Instant::from_micros(0),
            connect_timeout_micros: 3_000_000,
            patience_micros: 5_000_000,
        }
    }

    /// Sets the timeout for connecting, and for each answer to the login.
    pub(crate) const fn set_connect_timeout(&mut self, timeout: Duration) {
        self.connect_timeout_micros = whole_micros(timeout);
    }

    /// Sets the timeout for the next reply.
    pub(crate) const fn set_patience(&mut self, patience: Duration) {
        self.patience_micros = whole_micros(patience);
    }

    pub(crate) fn name(&self) -> NodeName {
        self.socket.name()
    }

    pub(crate) const fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// Whether a call was dropped while it connected or logged in. The attempt may have ended since.
    pub(crate) const fn is_connecting(&self) -> bool {
        matches!(
            self.state,
            State::Connecting { .. } | State::LoggingIn { .. }
        )
    }

    /// The last error.
    pub(crate) const fn why(&self) -> TransportError {
        self.why
    }

    /// Records why a command has failed on a connection that stays open.
    pub(crate) const fn fail(&mut self, why: TransportError) -> Failed {
        self.why = why;
        Failed
    }

    /// Whether the connection is open and its pipeline [can queue](Pipeline::can_queue) a command at once.
    pub(crate) fn can_queue(&self) -> bool {
        self.is_open() && self.pipeline.can_queue()
    }

    /// Whether every command is answered. The connection may have ended since.
    pub(crate) const fn is_answered(&self) -> bool {
        self.pipeline.outstanding() == 0
    }

    /// Whether the node has answered any command with an error since the last [`forget_errors`](Self::forget_errors). The
    /// commands of dropped calls and of the login count too.
    pub(crate) const fn has_error_reply(&self) -> bool {
        self.pipeline.has_error_reply()
    }

    pub(crate) const fn forget_errors(&mut self) {
        self.pipeline.forget_errors();
    }

    /// Whether any of these errors was `NOSCRIPT`.
    #[cfg(feature = "queue")]
    pub(crate) const fn has_lost_script(&self) -> bool {
        self.pipeline.has_lost_script()
    }

    /// Whether any of these errors was neither temporary nor `NOSCRIPT`. Of the commands of the login, only those that load scripts
    /// count.
    #[cfg(feature = "scripts")]
    pub(crate) const fn has_refusal(&self) -> bool {
        self.pipeline.has_refusal()
    }

    /// Makes the next [`Goal::Open`] ask the node for its identity again. Call it after [`Goal::Answered`].
    pub(crate) fn ask_again(&mut self, clock: &impl Clock) {
        self.log_in(Some(login::Step::IDENTITY), clock);
    }

    /// Makes the next [`Goal::Open`] subscribe to the mailbox. Call it after [`Goal::Answered`].
    #[cfg(feature = "queue")]
    pub(crate) fn subscribe(&mut self, clock: &impl Clock) {
        self.log_in(Some(login::Step::SUBSCRIPTION), clock);
    }

    /// Records that what answers may be another node than the one that is meant.
    #[cfg(feature = "dns")]
    pub(crate) const fn doubt_address(&mut self) {
        self.is_address_in_doubt = true;
    }

    /// Closes a connection whose address is in doubt, unless it is new. Call it between two commands.
    #[cfg(feature = "dns")]
    pub(crate) fn leave_doubted_address(&mut self, clock: &impl Clock) {
        let now = clock.now();
        let is_grown_up = now >= later(self.connected_at, ADDRESS_MICROS);
        if self.is_address_in_doubt && self.is_open() && is_grown_up {
            warning!(
                "{}: may be another node than the one that is meant, connects anew",
                self.socket.name()
            );
            self.state = State::Closing {
                until: later(now, CLOSE_MICROS),
                again_at: now,
            };
            self.why = TransportError::Disconnected;
        }
    }

    /// Makes the next [`Goal::Open`] load the script with which plain locks are released. Call it after [`Goal::Answered`].
    #[cfg(feature = "queue")]
    pub(crate) fn load_release_script(&mut self, clock: &impl Clock) {
        self.mail.try_script();
        self.log_in(Some(login::Step::RELEASE_SCRIPT), clock);
    }

    /// If there is no connection, when the next attempt may start.
    #[cfg(feature = "queue")]
    pub(crate) fn again_at(&self, clock: &impl Clock) -> Instant {
        match self.state {
            State::Closed { again_at } | State::Closing { again_at, .. } => again_at,
            _ => clock.now(),
        }
    }

    /// If any reply was `NOSCRIPT`, makes the next [`Goal::Open`] load the scripts again: another client may flush the
    /// scripts at any time. Call it if the connection is open, after [`Goal::Answered`].
    #[cfg(feature = "scripts")]
    pub(crate) fn restore_scripts(&mut self, clock: &impl Clock) {
        if self.pipeline.has_lost_script() {
            self.log_in(Some(login::Step::SCRIPTS), clock);
        }
    }

    /// If `command` is an extension or a release that will be sent again, makes the next [`Goal::Open`] load only its script, or none
    /// if it goes without. Call it after [`restore_scripts`](Self::restore_scripts).
    #[cfg(feature = "scripts")]
    pub(crate) fn restore_script_of(&mut self, command: &Command<'_>, clock: &impl Clock) {
        #[cfg(feature = "queue")]
        if command.is_release_from_outside() {
            self.mail.lack_script();
            self.log_in(None, clock);
            return;
        }
        if let Some(step) = login::Step::only_script_of(command) {
            self.log_in(Some(step), clock);
        }
    }

    /// Resets the back-off: the next attempt to connect may start at once.
    pub(crate) const fn reset_back_off(&mut self) {
        self.failures = 0;
        if let State::Closed { again_at } | State::Closing { again_at, .. } = &mut self.state {
            *again_at = Instant::from_micros(0);
        }
    }

    /// Returns the reply to the last command. Call it after [`Goal::Answered`].
    pub(crate) const fn take_reply(&mut self) -> Option<Value> {
        let reply = self.pipeline.take_reply();
        // An error does not reset the back-off: a node that is not ready or denies permission may close each new connection.
        if !matches!(reply, Some(Value::Error(_)) | None) {
            self.failures = 0;
        }
        reply
    }

    /// Closes the connection when the outstanding replies have arrived. Takes at most [`CLOSE_MICROS`].
    pub(crate) async fn close(&mut self, clock: &impl Clock) {
        let until = later(clock.now(), CLOSE_MICROS);
        if self.is_open() {
            // The connection is closed also if a reply does not arrive.
            let answered = self.reach(Goal::Answered, clock);
            select(answered, clock.sleep_until(until)).await;
        }
        if !matches!(self.state, State::Closed { .. }) {
            let again_at = Instant::from_micros(0);
            self.state = State::Closing { until, again_at };
            let closed = self.reach(Goal::Closed, clock).await;
            debug_assert!(closed.is_ok(), "closing takes at most CLOSE_MICROS");
        }
        self.reset_back_off();
        self.why = TransportError::Disconnected;
    }

    /// Takes actions until `goal` is reached. This is the only place that waits.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn holds each argument twice"
    )]
    pub(crate) fn reach(
        &mut self,
        mut goal: Goal,
        clock: &impl Clock,
    ) -> impl Future<Output = Result<(), Failed>> {
        async move {
            // If a round has ended in the middle of a step, the next call may come when the time is over.
            self.renewed_after = match self.state {
                State::LoggingIn { .. } => 0,
                _ => PIECE,
            };
            #[cfg(feature = "queue")]
            let mut reads = 0_u16;
            #[cfg(feature = "queue")]
            let caught_up_by = later(clock.now(), self.connect_timeout_micros);
            loop {
                // Messages that keep coming keep neither the other tasks waiting nor this one beyond its time.
                #[cfg(feature = "queue")]
                let has_paused = reads == Self::reads_max(goal);
                #[cfg(feature = "queue")]
                if has_paused {
                    reads = 0;
                    yield_now().await;
                }
                let (action, until) = match self.next(goal, clock) {
                    Next::Take(action, until) => (action, until),
                    Next::Stop(result) => return result,
                };
                // `NOW` is no limit: what has arrived is read to its end, so that no command takes an earlier reply for its own.
                #[cfg(feature = "queue")]
                let is_over = has_paused && {
                    let until = if until == NOW { caught_up_by } else { until };
                    clock.now() >= until || self.is_open() && self.is_silent(clock)
                };
                #[cfg(not(feature = "queue"))]
                let is_over = false;
                #[cfg(feature = "queue")]
                {
                    reads += u16::from(matches!(action, Action::Read));
                }
                let taken = if is_over {
                    Either::Second(())
                } else {
                    select(self.take(action, clock), wait(until, clock)).await
                };
                let result = match taken {
                    Either::First(result) => result,
                    Either::Second(()) => match (goal, self.state) {
                        (Goal::Aborted, _) => return Err(Failed),
                        (_, State::Open) if self.is_silent(clock) => Err(TransportError::Silent),
                        (_, State::Open) => return Ok(()),
                        (_, State::Closing { again_at, .. }) => {
                            self.state = State::Closed { again_at };
                            Ok(())
                        }
                        _ => {
                            let limit = Duration::from_micros(self.connect_timeout_micros);
                            Err(TransportError::NoConnection(limit))
                        }
                    },
                };
                if let Err(kind) = result {
                    self.abort(kind, clock);
                    goal = Goal::Aborted;
                }
                if matches!(goal, Goal::Progress) {
                    return Ok(());
                }
            }
        }
    }

    fn next(&mut self, goal: Goal, clock: &impl Clock) -> Next {
        let exchange = self.exchange();
        match (goal, self.state) {
            (Goal::CaughtUp, State::Open) => Next::Take(Action::Read, NOW),
            (Goal::CaughtUp, _) | (Goal::Open, State::Open) => Next::Stop(Ok(())),

            (Goal::Open, State::Closed { again_at }) => {
                let now = clock.now();
                if now < again_at {
                    return Next::Stop(Err(Failed));
                }
                let until = later(now, self.connect_timeout_micros);
                self.state = State::Connecting { until };
                Next::Take(Action::Connect, until)
            }
            (Goal::Open, State::Connecting { until }) => Next::Take(Action::Connect, until),
            (Goal::Open, State::LoggingIn { fed, until, .. }) => {
                let action = match exchange {
                    // The answers to the steps before this one are not waited for.
                    Some(Action::Read) if IS_PIPELINED && fed != WHOLE => Action::LogIn,
                    // A dropped call may have sent a part of this step.
                    exchange => exchange.unwrap_or(Action::LogIn),
                };
                Next::Take(action, until)
            }
            (Goal::Open | Goal::Closed, State::Closing { until, .. }) => {
                Next::Take(Action::Close, until)
            }
            (Goal::Aborted, State::Closing { .. }) => Next::Take(Action::Close, NOW),
            (Goal::Closed, _) => Next::Stop(Ok(())),

            (Goal::Answered, State::Open) => match exchange {
                Some(action) => Next::Take(action, NEVER),
                None => Next::Stop(Ok(())),
            },
            (Goal::Progress, State::Open) => Next::Take(exchange.unwrap_or(Action::Read), NEVER),
            (Goal::Sent, State::Open) => match exchange {
                Some(action @ (Action::Write | Action::Flush)) => Next::Take(action, NOW),
                _ => Next::Stop(Ok(())),
            },
            (Goal::Answered | Goal::Sent | Goal::Progress | Goal::Aborted, _) => {
                Next::Stop(Err(Failed))
            }
        }
    }

    /// The next action towards the outstanding replies. `None` if every command is sent and answered.
    fn exchange(&self) -> Option<Action> {
        if !self.pipeline.unsent().is_empty() {
            Some(Action::Write)
        } else if self.is_unflushed {
            Some(Action::Flush)
        } else if self.pipeline.outstanding() > 0 {
            Some(Action::Read)
        } else {
            None
        }
    }

    /// Queues `command`, which the next goal sends. `None` if the pipeline is full of unsent bytes or of commands without a reply:
    /// try again after [`Goal::Progress`].
    pub(crate) fn push(
        &mut self,
        command: &Command<'_>,
        clock: &impl Clock,
    ) -> Option<Result<(), Failed>> {
        if !self.is_open() {
            return Some(Err(Failed));
        }
        let is_first = self.pipeline.outstanding() == 0;
        let call = self.script_call(command);
        match self.pipeline.push(command.arguments(call)) {
            Ok(()) => {}
            Err(Refused::Full) => return None,
            Err(Refused::TooLong) => return Some(Err(self.fail(TransportError::TooLong))),
        }
        self.mail.queued(command, self.pipeline.outstanding());
        if is_first {
            self.waiting_since = clock.now();
        }
        Some(Ok(()))
    }

    // A script of a plain lock is about as short as its hash, so it is sent as text and not loaded first.
    fn script_call(&self, command: &Command<'_>) -> ScriptCall {
        match is_by_hash(command) {
            #[cfg(feature = "queue")]
            true if self.mail.goes_without_scripts(command) => ScriptCall::ShortText,
            true => ScriptCall::Hash,
            false => ScriptCall::Text,
        }
    }

    /// Takes one action and records its result.
    #[expect(
        clippy::manual_async_fn,
        reason = "an async fn holds each argument twice"
    )]
    fn take(
        &mut self,
        action: Action,
        clock: &impl Clock,
    ) -> impl Future<Output = Result<(), TransportError>> {
        async move {
            match action {
                Action::Connect => {
                    let connected = self.socket.connect().await;
                    connected.map_err(TransportError::Unreachable)?;
                    self.pipeline = Pipeline::new();
                    self.is_unflushed = false;
                    self.is_new = true;
                    #[cfg(feature = "dns")]
                    {
                        self.connected_at = clock.now();
                        self.is_address_in_doubt = false;
                    }
                    self.mail.connected();
                    self.log_in(Some(login::Step::FIRST), clock);
                }
                Action::LogIn => self.feed_login(),
                Action::Write => {
                    match self.socket.write(self.pipeline.unsent()).await {
                        Ok(0) | Err(_) => return Err(TransportError::Disconnected),
                        Ok(count) => self.written(count, clock),
                    }
                    self.is_unflushed = true;
                }
                Action::Flush => {
                    let flushed = self.socket.flush().await;
                    flushed.map_err(|_| TransportError::Disconnected)?;
                    self.is_unflushed = false;
                }
                Action::Read => {
                    let read = self.socket.read(self.pipeline.room()).await;
                    self.received(read.unwrap_or(0), clock)?;
                }
                Action::Close => {
                    self.socket.close().await;
                    if let State::Closing { again_at, .. } = self.state {
                        self.state = State::Closed { again_at };
                    }
                }
            }
            Ok(())
        }
    }

    /// Records that the socket has taken `count` bytes. A step of the login may be longer than the buffer of the socket, but not each
    /// byte of it counts: otherwise a node could keep a call waiting, byte by byte.
    fn written(&mut self, count: usize, clock: &impl Clock) {
        self.pipeline.sent(count);
        if let State::LoggingIn { until, .. } = &mut self.state {
            self.renewed_after = self.renewed_after.saturating_sub(count);
            if self.renewed_after == 0 {
                self.renewed_after = PIECE;
                *until = later(clock.now(), self.connect_timeout_micros);
            }
        }
    }

    /// Queues the next bytes of the current step of the login, or ends the step if it is not needed.
    fn feed_login(&mut self) {
        let State::LoggingIn { step, fed, until } = self.state else {
            return;
        };
        let Some(arguments) = self.login.arguments(step, &self.mail) else {
            self.begin(step.next(), until);
            return;
        };
        #[cfg(feature = "queue")]
        if matches!(step, login::Step::Subscribe) {
            self.mail.set_status(Status::Subscribing);
        }
        let rest_from = self.pipeline.feed(arguments, fed);
        if rest_from.is_none() && step.is_pipelined() {
            #[cfg(feature = "client-name")]
            if step.is_optional() {
                self.pipeline.tolerate_error();
            }
            self.begin(step.next(), until);
        } else if let State::LoggingIn { fed, .. } = &mut self.state {
            *fed = rest_from.unwrap_or(WHOLE);
        }
    }

    // `inline(never)`: the loop that calls it stays short.
    #[cfg_attr(feature = "queue", inline(never))]
    fn received(&mut self, count: usize, clock: &impl Clock) -> Result<(), TransportError> {
        if count == 0 {
            // A full server answers the first command with an error, and closes the connection.
            #[cfg(feature = "client-name")]
            if let (State::LoggingIn { .. }, Some(error)) = (self.state, self.pipeline.tolerated())
            {
                return Err(TransportError::Rejected(error));
            }
            return Err(TransportError::Disconnected);
        }
        let outstanding = self.pipeline.outstanding();
        let received = self.pipeline.received(count, &mut self.mail);
        received.map_err(|_| TransportError::Unexpected)?;
        // Only a whole reply counts: otherwise a node could keep the connection forever, byte by byte.
        if self.pipeline.outstanding() < outstanding {
            self.waiting_since = clock.now();
        }
        if let State::LoggingIn { step, .. } = self.state
            && let Some(answer) = self.pipeline.take_reply()
        {
            // If another answer is outstanding, this one is to a step before it that was not answered with `OK`.
            let is_last = cfg!(not(feature = "scripts")) || self.is_answered();
            let step = if is_last { step } else { login::Step::FIRST };
            let answered = self.answered(step, answer, clock);
            // The next connection serves at least those commands that need no script.
            #[cfg(feature = "scripts")]
            if answered.is_err() {
                self.scripts_left = None;
            }
            answered?;
            #[cfg(feature = "scripts")]
            if !matches!(step, login::Step::LoadScript(_)) {
                self.pipeline.forget_refusal();
            }
            #[cfg(feature = "queue")]
            if let Some(can_call) = can_call(step, answer) {
                if !can_call {
                    warning!(
                        "{}: cannot call this client, which therefore looks at locks more often",
                        self.socket.name()
                    );
                }
                self.mail.decide(can_call);
                self.log_in(None, clock);
                return Ok(());
            }
            self.log_in(step.next(), clock);
        }
        Ok(())
    }

    /// Handles the answer to a step of the login.
    // `inline(never)`: it runs once per connection, and the loop that calls it stays short.
    #[inline(never)]
    fn answered(
        &mut self,
        step: login::Step,
        answer: Value,
        clock: &impl Clock,
    ) -> Result<(), TransportError> {
        match (step, answer) {
            (login::Step::Authenticate | login::Step::Select, Value::Ok) => {}
            (step, answer) if step.is_node_info() => {
                let node_info = match answer {
                    Value::Integers(numbers) => NodeInfo::read(Answer::Integers(numbers)),
                    Value::Error(error) if error.is_temporary() => {
                        return Err(TransportError::Rejected(error));
                    }
                    // The ACL user lacks the permission.
                    Value::Error(_) => None,
                    _ => return Err(TransportError::Unexpected),
                };
                if node_info.is_none() && matches!(answer, Value::Integers(_)) {
                    return Err(TransportError::Unexpected);
                }
                #[cfg(feature = "dns")]
                if let Some(node_info) = &node_info {
                    self.is_address_in_doubt = !node_info.is_master;
                }
                let end_of_tick = clock.now().saturating_add(clock.resolution());
                self.admission.record(node_info, end_of_tick);
                if self.admission.may_evict() {
                    warning!(
                        "{}: may evict locks when memory is short",
                        self.socket.name()
                    );
                }
            }
            #[cfg(feature = "queue")]
            (login::Step::Hello, Value::Other | Value::Error(_)) => {}
            #[cfg(feature = "queue")]
            (login::Step::Subscribe, Value::Ok | Value::Error(_)) => {}
            #[cfg(feature = "queue")]
            (login::Step::Publish, Value::Integer(_) | Value::Error(_)) => {}
            #[cfg(feature = "queue")]
            (step, Value::Other) if step.loads_release_of_lines() => {
                self.mail.have_scripts();
            }
            #[cfg(feature = "scripts")]
            (login::Step::LoadScript(_), Value::Other) => {}
            // Plain locks do not need the scripts. Fenced locks fail later, with `TransportError::NoScript`.
            #[cfg(feature = "scripts")]
            (login::Step::LoadScript(_), Value::Error(error)) if !error.is_temporary() => {}
            (_, Value::Error(error)) => return Err(TransportError::Rejected(error)),
            _ => return Err(TransportError::Unexpected),
        }
        Ok(())
    }

    /// Starts `step` of the login, as [`begin`](Self::begin) does, with a timeout of its own: much time may have passed since a call
    /// was dropped.
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn log_in(&mut self, step: Option<login::Step>, clock: &impl Clock) {
        let now = clock.now();
        // Also before steps that do not ask: what counts is that this is before the question.
        self.admission.ask(now);
        self.begin(step, later(now, self.connect_timeout_micros));
    }

    /// Starts `step` of the login, which has time until `until`. `None` ends the login: the connection takes commands.
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn begin(&mut self, step: Option<login::Step>, until: Instant) {
        #[cfg(feature = "scripts")]
        let step = self.with_scripts_left(step);
        let Some(step) = step else {
            debug!("{}: ready", self.socket.name());
            #[cfg(feature = "queue")]
            if matches!(self.state, State::LoggingIn { step, .. } if step.is_of_lines()) {
                self.line_breaks = 0;
            }
            self.state = State::Open;
            if self.is_new {
                self.is_new = false;
                self.socket.logged_in();
            }
            return;
        };
        self.state = State::LoggingIn {
            step,
            fed: 0,
            until,
        };
    }

    /// Records which scripts are left once `step` begins, and returns the step that begins: at the end of the login of a new
    /// connection, those that are left from the one before.
    #[cfg(feature = "scripts")]
    const fn with_scripts_left(&mut self, step: Option<login::Step>) -> Option<login::Step> {
        match (step, self.state) {
            (Some(next), _) => {
                if let Some(left) = next.scripts_left() {
                    self.scripts_left = Some(left);
                }
                step
            }
            (None, State::LoggingIn { step: last, .. }) if last.scripts_left().is_some() => {
                self.scripts_left = None;
                None
            }
            (None, _) if self.is_new => self.scripts_left.take(),
            (None, _) => None,
        }
    }

    // `inline(never)`: the loop that calls it stays short.
    #[inline(never)]
    fn is_silent(&self, clock: &impl Clock) -> bool {
        let silent_until = later(self.waiting_since, self.patience_micros);
        (self.is_unflushed || self.pipeline.outstanding() > 0) && clock.now() >= silent_until
    }

    /// Aborts the connection. It begins to close with the next [`Goal::Aborted`], and is closed before the client
    /// reconnects.
    pub(crate) fn abort(&mut self, why: TransportError, clock: &impl Clock) {
        warning!("{}: {}", self.socket.name(), why);
        let now = clock.now();
        #[cfg(feature = "queue")]
        if matches!(self.state, State::LoggingIn { step, .. } if step.is_of_lines()) {
            self.line_breaks += 1;
            // Something on the way may close connections on these commands. A plain lock needs none of them.
            if self.line_breaks == Self::LINE_BREAKS_MAX {
                self.line_breaks = 0;
                self.mail.refuse(now);
            }
        }
        self.state = State::Closing {
            until: later(now, CLOSE_MICROS),
            again_at: later(now, self.back_off_micros()),
        };
        self.why = why;
        self.failures = self.failures.saturating_add(1);
    }

    #[cfg(feature = "queue")]
    const LINE_BREAKS_MAX: u8 = 2;

    /// After so many reads without a pause, the other tasks have a turn. What has arrived before a command is read in one poll unless
    /// it is a flood: the release that a dropped future owes is polled only once.
    #[cfg(feature = "queue")]
    const fn reads_max(goal: Goal) -> u16 {
        match goal {
            Goal::CaughtUp => 512,
            _ => 32,
        }
    }

    /// The pause before the next attempt. Zero after the first failure in a row, because most nodes that drop a connection
    /// accept the next one at once.
    const fn back_off_micros(&self) -> u64 {
        match self.failures.checked_sub(1) {
            None => 0,
            Some(doublings) if doublings < BACK_OFF_DOUBLINGS => {
                (BACK_OFF_MICROS << doublings) as u64
            }
            Some(_) => (BACK_OFF_MICROS << BACK_OFF_DOUBLINGS) as u64,
        }
    }
}

const fn whole_micros(time: Duration) -> u64 {
    Instant::from_micros(0).saturating_add(time).as_micros()
}

const fn later(instant: Instant, micros: u64) -> Instant {
    Instant::from_micros(instant.as_micros().saturating_add(micros))
}

/// Whether the scripts of `command` are so long that they are called by their hash.
const fn is_by_hash(command: &Command<'_>) -> bool {
    let has_line = command.place.is_some() && (command.is_acquire() || command.is_release());
    command.is_fenced() || has_line
}

/// Whether the node can call this client, if `answer` to this step of the login decides that.
#[cfg(feature = "queue")]
const fn can_call(step: login::Step, answer: Value) -> Option<bool> {
    match (step, answer) {
        (login::Step::Hello | login::Step::Subscribe, Value::Error(_)) => Some(false),
        // The number of connections that the message has reached.
        (login::Step::Publish, Value::Integer(count)) => Some(count > 0),
        (login::Step::Publish, _) => Some(false),
        _ => None,
    }
}

async fn wait(until: Instant, clock: &impl Clock) {
    match until {
        NOW => {}
        NEVER => pending().await,
        until => clock.sleep_until(until).await,
    }
}
