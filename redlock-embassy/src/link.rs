//! The connection to one node: connects, keeps replies in order, and reconnects.

use core::future::pending;
use core::time::Duration;

use embassy_futures::select::{Either, select};
#[cfg(feature = "fence")]
use redlock_core::transport::Verb;
use redlock_core::transport::{Admission, Answer, Command, NodeInfo, ScriptCall};
use redlock_core::{Clock, Instant};

use crate::error::TransportError;
use crate::log::{debug, warning};
use crate::login::{self, Login};
use crate::pipeline::{Pipeline, Refused};
use crate::resp::Value;
use crate::{Connect, NodeName};

/// The state of the connection. None of it is in a future: each call may be dropped, and the next call
/// continues from there.
#[derive(Debug)]
pub(crate) struct Link<S, const TX: usize, const RX: usize> {
    socket: S,
    pipeline: Pipeline<TX, RX>,
    state: State,
    /// Bytes were written and may not be sent yet.
    is_unflushed: bool,
    /// Since when the next reply is outstanding.
    waiting_since: Instant,
    /// The number of connections in a row on which no command was answered.
    failures: u8,
    why: TransportError,
    /// What is known of the node. It is kept when the client reconnects.
    pub(crate) admission: Admission,
    pub(crate) connect_timeout: Duration,
    pub(crate) patience: Duration,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// No connection. The next attempt may start at `again_at`.
    Closed { again_at: Instant },
    /// Connecting.
    Connecting { until: Instant },
    /// Connected, and in this step of the login: its first `fed` bytes are in the pipeline.
    LoggingIn {
        step: login::Step,
        fed: usize,
        until: Instant,
    },
    /// Takes commands.
    Open,
    /// No longer usable, but the node may not have noticed.
    Closing { until: Instant, again_at: Instant },
}

/// What a call wants from the connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal<'g> {
    /// All bytes that have arrived are read, without waiting for more: replies to calls that were
    /// dropped, or the end of the connection.
    CaughtUp,
    /// The connection takes commands. If there is none, connects; after a failure, not before the back-off is over.
    Open,
    /// The connection has taken this command, which is sent on the way to the next goal. If the pipeline is full of
    /// bytes that are not sent or commands that are not answered, waits for room: if the node hangs, the
    /// connection is broken off after the patience.
    Pushed(&'g Command<'g>),
    /// Everything is sent, and all replies have arrived.
    Answered,
    /// Everything that can be sent at once is sent.
    Sent,
    /// A connection that was broken off has begun to close. This goal always fails, because the goal before it
    /// cannot be reached.
    BrokenOff,
    /// A connection that is no longer usable is closed.
    Closed,
}

/// A goal cannot be reached; [`Link::why`] has the error. Errors are large, and would be copied from call
/// to call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failed;

/// What is done next to reach a goal.
enum Next {
    /// Takes this step, within this limit.
    Step(Step, Limit),
    /// Stops: the goal is reached, or cannot be reached.
    Stop(Result<(), Failed>),
}

#[derive(Clone, Copy)]
enum Step {
    Connect,
    LogIn { step: login::Step, fed: usize },
    Write,
    Flush,
    Read,
    Close,
}

#[derive(Clone, Copy)]
enum Limit {
    /// One poll.
    Now,
    Until(Instant),
    /// No limit: as long as the caller polls.
    None,
}

/// How long closing a connection may take.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// The pause before the next attempt, after the second failure in a row. It doubles with each failure.
const BACK_OFF: Duration = Duration::from_millis(50);

/// How often it doubles: up to 1.6 s.
const BACK_OFF_DOUBLINGS: u8 = 5;

impl<S: Connect, const TX: usize, const RX: usize> Link<S, TX, RX> {
    pub(crate) const fn new(socket: S) -> Self {
        Self {
            socket,
            pipeline: Pipeline::new(),
            state: State::Closed {
                again_at: Instant::from_micros(0),
            },
            is_unflushed: false,
            waiting_since: Instant::from_micros(0),
            failures: 0,
            why: TransportError::Disconnected,
            admission: Admission::new(),
            connect_timeout: Duration::from_secs(3),
            patience: Duration::from_secs(5),
        }
    }

    pub(crate) fn name(&self) -> NodeName {
        self.socket.name()
    }

    pub(crate) const fn is_open(&self) -> bool {
        matches!(self.state, State::Open)
    }

    /// The last error.
    pub(crate) const fn why(&self) -> TransportError {
        self.why
    }

    /// Records why a command has failed although the connection goes on.
    pub(crate) const fn fail(&mut self, why: TransportError) -> Failed {
        self.why = why;
        Failed
    }

    /// Whether the next command is taken at once, with nothing before it.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_open() && self.pipeline.is_idle()
    }

    /// Whether everything is sent and answered, on a connection that may have ended since.
    pub(crate) const fn is_answered(&self) -> bool {
        self.pipeline.owed() == 0
    }

    /// Whether the node has answered with an error, to any call, including dropped ones.
    pub(crate) const fn has_failed(&self) -> bool {
        self.pipeline.has_failed()
    }

    pub(crate) const fn forget_errors(&mut self) {
        self.pipeline.forget_errors();
    }

    /// Asks the node for its identity again, on the way to [`Goal::Open`]. Call it after [`Goal::Answered`].
    pub(crate) fn ask_again(&mut self, clock: &impl Clock) {
        self.log_in(Some(login::Step::LAST), clock);
    }

    /// Loads the scripts again, on the way to [`Goal::Open`], if any reply says that the node has lost them: another
    /// client may flush them at any time. Call it if the connection is open, after [`Goal::Answered`].
    #[cfg(feature = "fence")]
    pub(crate) fn restore_scripts(&mut self, clock: &impl Clock) {
        if self.pipeline.has_lost_script() {
            self.log_in(Some(login::Step::SCRIPTS), clock);
        }
    }

    /// After [`restore_scripts`](Self::restore_scripts): for an extension or a release that is sent again, loads only its
    /// script.
    #[cfg(feature = "fence")]
    pub(crate) fn restore_script_of(&mut self, command: &Command<'_>, clock: &impl Clock) {
        match command.verb {
            Verb::Acquire { .. } => {}
            Verb::Extend { .. } => self.log_in(Some(login::Step::EXTEND_SCRIPT), clock),
            Verb::Release => self.log_in(Some(login::Step::RELEASE_SCRIPT), clock),
        }
    }

    /// Resets the back-off: the next attempt to connect may start at once.
    pub(crate) const fn reset_back_off(&mut self) {
        self.failures = 0;
        if let State::Closed { again_at } | State::Closing { again_at, .. } = &mut self.state {
            *again_at = Instant::from_micros(0);
        }
    }

    /// The reply to the last command, after [`Goal::Answered`].
    pub(crate) const fn take_reply(&mut self) -> Option<Value> {
        let reply = self.pipeline.take_reply();
        // A node that answers with an error (no permission, not ready) may close the connection again.
        if !matches!(reply, Some(Value::Error(_)) | None) {
            self.failures = 0;
        }
        reply
    }

    /// Closes the connection after the outstanding replies have arrived, or after [`CLOSE_TIME`].
    pub(crate) async fn close(&mut self, clock: &impl Clock, login: &Login<'_>) {
        let until = clock.now().saturating_add(CLOSE_TIME);
        if self.is_open() {
            // If a reply comes late or never, the connection is closed anyway.
            let answered = self.reach(Goal::Answered, clock, login);
            select(answered, clock.sleep_until(until)).await;
        }
        if !matches!(self.state, State::Closed { .. }) {
            let again_at = Instant::from_micros(0);
            self.state = State::Closing { until, again_at };
            let closed = self.reach(Goal::Closed, clock, login).await;
            debug_assert!(
                closed.is_ok(),
                "closing ends at the latest after CLOSE_TIME"
            );
        }
        self.reset_back_off();
        self.why = TransportError::Disconnected;
    }

    /// Takes steps until `goal` is reached. This is the only place that waits.
    pub(crate) async fn reach(
        &mut self,
        mut goal: Goal<'_>,
        clock: &impl Clock,
        login: &Login<'_>,
    ) -> Result<(), Failed> {
        loop {
            let (step, limit) = match self.next(goal, clock) {
                Next::Step(step, limit) => (step, limit),
                Next::Stop(result) => return result,
            };
            let result = match select(self.take(step, clock, login), wait(limit, clock)).await {
                Either::First(result) => result,
                Either::Second(()) => match (goal, self.state) {
                    (Goal::BrokenOff, _) => return Err(Failed),
                    (_, State::Open) if self.is_silent(clock) => Err(TransportError::Silent),
                    (_, State::Open) => return Ok(()),
                    (_, State::Closing { again_at, .. }) => {
                        self.state = State::Closed { again_at };
                        Ok(())
                    }
                    _ => Err(TransportError::NoConnection(self.connect_timeout)),
                },
            };
            if let Err(kind) = result {
                self.break_off(kind, clock);
                goal = Goal::BrokenOff;
            }
        }
    }

    fn next(&mut self, goal: Goal<'_>, clock: &impl Clock) -> Next {
        self.renew(clock);
        let exchange = self.exchange();
        match (goal, self.state) {
            (Goal::CaughtUp, State::Open) => Next::Step(Step::Read, Limit::Now),
            (Goal::CaughtUp, _) | (Goal::Open, State::Open) => Next::Stop(Ok(())),

            (Goal::Open, State::Closed { again_at }) => {
                let now = clock.now();
                if now < again_at {
                    return Next::Stop(Err(Failed));
                }
                let until = now.saturating_add(self.connect_timeout);
                self.state = State::Connecting { until };
                Next::Step(Step::Connect, Limit::Until(until))
            }
            (Goal::Open, State::Connecting { until }) => {
                Next::Step(Step::Connect, Limit::Until(until))
            }
            (Goal::Open, State::LoggingIn { step, fed, until }) => {
                // A dropped call may have started this step.
                let step = exchange.unwrap_or(Step::LogIn { step, fed });
                Next::Step(step, Limit::Until(until))
            }
            (Goal::Open | Goal::Closed, State::Closing { until, .. }) => {
                Next::Step(Step::Close, Limit::Until(until))
            }
            (Goal::BrokenOff, State::Closing { .. }) => Next::Step(Step::Close, Limit::Now),
            (Goal::Closed, _) => Next::Stop(Ok(())),

            (Goal::Pushed(command), State::Open) => match self.push(command, clock) {
                Ok(()) => Next::Stop(Ok(())),
                Err(Refused::TooLong) => {
                    self.why = TransportError::TooLong;
                    Next::Stop(Err(Failed))
                }
                Err(Refused::Full) => Next::Step(exchange.unwrap_or(Step::Read), Limit::None),
            },
            (Goal::Answered, State::Open) => match exchange {
                Some(step) => Next::Step(step, Limit::None),
                None => Next::Stop(Ok(())),
            },
            (Goal::Sent, State::Open) => match exchange {
                Some(step @ (Step::Write | Step::Flush)) => Next::Step(step, Limit::Now),
                _ => Next::Stop(Ok(())),
            },
            (Goal::Pushed(_) | Goal::Answered | Goal::Sent | Goal::BrokenOff, _) => {
                Next::Stop(Err(Failed))
            }
        }
    }

    /// The next step towards the outstanding replies. `None` if there are none.
    fn exchange(&self) -> Option<Step> {
        if !self.pipeline.unsent().is_empty() {
            Some(Step::Write)
        } else if self.is_unflushed {
            Some(Step::Flush)
        } else if self.pipeline.owed() > 0 {
            Some(Step::Read)
        } else {
            None
        }
    }

    fn push(&mut self, command: &Command<'_>, clock: &impl Clock) -> Result<(), Refused> {
        let is_first = self.pipeline.owed() == 0;
        // The scripts of plain locks are about as short as their hashes, and need not be loaded first.
        let call = if command.is_fenced() {
            ScriptCall::Hash
        } else {
            ScriptCall::Text
        };
        self.pipeline.push(command.arguments(call))?;
        if is_first {
            self.waiting_since = clock.now();
        }
        Ok(())
    }

    /// Takes one step and records its result.
    async fn take(
        &mut self,
        step: Step,
        clock: &impl Clock,
        login: &Login<'_>,
    ) -> Result<(), TransportError> {
        match step {
            Step::Connect => {
                let connected = self.socket.connect().await;
                connected.map_err(TransportError::Unreachable)?;
                self.pipeline = Pipeline::new();
                self.is_unflushed = false;
                self.log_in(Some(login::Step::FIRST), clock);
            }
            Step::LogIn { step, fed } => match login.words(step) {
                Some(words) => {
                    let rest_from = self.pipeline.feed(words, fed);
                    if let (State::LoggingIn { fed, .. }, Some(rest_from)) =
                        (&mut self.state, rest_from)
                    {
                        *fed = rest_from;
                    }
                }
                None => self.log_in(step.next(), clock),
            },
            Step::Write => {
                match self.socket.write(self.pipeline.unsent()).await {
                    Ok(0) | Err(_) => return Err(TransportError::Disconnected),
                    Ok(count) => self.pipeline.sent(count),
                }
                self.is_unflushed = true;
            }
            Step::Flush => {
                let flushed = self.socket.flush().await;
                flushed.map_err(|_| TransportError::Disconnected)?;
                self.is_unflushed = false;
            }
            Step::Read => {
                let read = self.socket.read(self.pipeline.room()).await;
                self.received(read.unwrap_or(0), clock)?;
            }
            Step::Close => {
                self.socket.close().await;
                if let State::Closing { again_at, .. } = self.state {
                    self.state = State::Closed { again_at };
                }
            }
        }
        Ok(())
    }

    fn received(&mut self, count: usize, clock: &impl Clock) -> Result<(), TransportError> {
        if count == 0 {
            return Err(TransportError::Disconnected);
        }
        let owed = self.pipeline.owed();
        let received = self.pipeline.received(count);
        received.map_err(|_| TransportError::Unexpected)?;
        // A part of a reply is no answer: a node could keep the connection forever, byte by byte.
        if self.pipeline.owed() < owed {
            self.waiting_since = clock.now();
        }
        if let State::LoggingIn { step, .. } = self.state
            && let Some(answer) = self.pipeline.take_reply()
        {
            self.answered(step, answer, clock)?;
            self.log_in(step.next(), clock);
        }
        Ok(())
    }

    /// Handles the answer to a step of the login.
    // `inline(never)`: runs once per connection, and would make the loop longer.
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
                    Value::Error(error) if error.is_passing() => {
                        return Err(TransportError::Rejected(error));
                    }
                    // The ACL user may not ask for it.
                    Value::Error(_) => None,
                    _ => return Err(TransportError::Unexpected),
                };
                if node_info.is_none() && matches!(answer, Value::Integers(_)) {
                    return Err(TransportError::Unexpected);
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
            #[cfg(feature = "fence")]
            (login::Step::LoadScript(_), Value::Other) => {}
            // Plain locks do not need the scripts. Fenced ones fail later, with an error.
            #[cfg(feature = "fence")]
            (login::Step::LoadScript(_), Value::Error(error)) if error.is_about_permissions() => {}
            (_, Value::Error(error)) => return Err(TransportError::Rejected(error)),
            _ => return Err(TransportError::Unexpected),
        }
        Ok(())
    }

    /// Starts `step` of the login; `None` opens the connection for commands. Each step has its own timeout,
    /// because much time may have passed since a call was dropped.
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn log_in(&mut self, step: Option<login::Step>, clock: &impl Clock) {
        let Some(step) = step else {
            debug!("{}: ready", self.socket.name());
            self.state = State::Open;
            return;
        };
        let until = clock.now().saturating_add(self.connect_timeout);
        self.state = State::LoggingIn {
            step,
            fed: 0,
            until,
        };
    }

    /// Gives an attempt to connect a new timeout if no call has polled it for a long time.
    fn renew(&mut self, clock: &impl Clock) {
        if let State::Connecting { until } | State::LoggingIn { until, .. } = &mut self.state {
            let now = clock.now();
            if now >= until.saturating_add(self.connect_timeout) {
                *until = now.saturating_add(self.connect_timeout);
            }
        }
    }

    fn is_silent(&self, clock: &impl Clock) -> bool {
        let silent_until = self.waiting_since.saturating_add(self.patience);
        self.pipeline.owed() > 0 && clock.now() >= silent_until
    }

    /// Breaks the connection off. It begins to close on the way to [`Goal::BrokenOff`], and is closed before
    /// the next connection is made.
    pub(crate) fn break_off(&mut self, why: TransportError, clock: &impl Clock) {
        warning!("{}: {}", self.socket.name(), why);
        let now = clock.now();
        self.state = State::Closing {
            until: now.saturating_add(CLOSE_TIME),
            again_at: now.saturating_add(self.back_off()),
        };
        self.why = why;
        self.failures = self.failures.saturating_add(1);
    }

    /// The pause before the next attempt. Zero after a connection that worked: most nodes that drop a connection are
    /// back at once.
    const fn back_off(&self) -> Duration {
        match self.failures.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) if doublings < BACK_OFF_DOUBLINGS => {
                BACK_OFF.saturating_mul(1 << doublings)
            }
            Some(_) => BACK_OFF.saturating_mul(1 << BACK_OFF_DOUBLINGS),
        }
    }
}

async fn wait(limit: Limit, clock: &impl Clock) {
    match limit {
        Limit::Now => {}
        Limit::Until(until) => clock.sleep_until(until).await,
        Limit::None => pending().await,
    }
}
