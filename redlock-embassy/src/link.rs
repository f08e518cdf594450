//! The connection to one node: made, kept in order, and made again.

use core::future::pending;
use core::time::Duration;

use embassy_futures::select::{Either, select};
use redlock_core::{Admission, Answer, Clock, Command, Instant, NodeInfo, ScriptCall};

use crate::error::NodeErrorKind;
use crate::log::{debug, warning};
use crate::login::{self, Login};
use crate::pipeline::{Pipeline, Refused};
use crate::resp::Value;
use crate::{Connect, NodeName};

/// All that is known of the connection. Nothing of it is in a future: each call may be dropped, and the
/// next one goes on where it was.
#[derive(Debug)]
pub(crate) struct Link<S, const TX: usize, const RX: usize> {
    socket: S,
    pipeline: Pipeline<TX, RX>,
    state: State,
    /// Bytes were written that may not have left.
    is_unflushed: bool,
    /// Since when a reply is owed and nothing has come.
    silent_since: Instant,
    /// Connections in a row over which no command was answered.
    failures: u8,
    why: NodeErrorKind,
    /// What is known of the node, whatever the connection.
    pub(crate) admission: Admission,
    pub(crate) connect_timeout: Duration,
    pub(crate) patience: Duration,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// No connection. Another attempt is made from then on.
    Closed { again_at: Instant },
    /// On the way to a connection.
    Connecting { until: Instant },
    /// Connected; so many bytes of this step of the login are said.
    LoggingIn {
        step: login::Step,
        said: usize,
        until: Instant,
    },
    /// Takes commands.
    Open,
    /// Of no use any more, and the node may not have noticed.
    Closing { until: Instant, again_at: Instant },
}

/// What a call wants of the connection.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal<'g> {
    /// To have read what has come in meanwhile, without waiting for more: replies to calls that were
    /// dropped, or the end of the connection.
    CaughtUp,
    /// A connection that takes commands, made if there is none; after a failure not before its time.
    Open,
    /// To have the connection take this command, which leaves on the way to the next goal. Where the
    /// room is full of what was not sent or not answered, waits for room: a node that hangs is replaced
    /// after the patience.
    Pushed(&'g Command<'g>),
    /// To have sent everything, and the replies to it.
    Answered,
    /// To have sent what can be sent at once.
    Sent,
    /// To have begun to end a connection that was broken off. Never reached: what was wanted cannot be.
    GivenUp,
    /// The end of a connection that is of no use any more.
    Closed,
}

/// A goal cannot be reached; [`Link::why`] knows more. Errors are large, and would be copied from call
/// to call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stuck;

/// What is done next to reach a goal.
enum Next {
    /// This, for no longer than that.
    Step(Step, Limit),
    /// Nothing: it is reached, or cannot be.
    Stop(Result<(), Stuck>),
}

#[derive(Clone, Copy)]
enum Step {
    Connect,
    LogIn { step: login::Step, said: usize },
    Write,
    Flush,
    Read,
    Close,
}

#[derive(Clone, Copy)]
enum Limit {
    /// Whatever is done in one poll.
    Now,
    Until(Instant),
    /// As long as the caller polls.
    None,
}

/// How long the end of a connection is waited for.
const CLOSE_TIME: Duration = Duration::from_secs(1);

/// The pause before another attempt, after the second one that failed; it doubles.
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
            silent_since: Instant::from_micros(0),
            failures: 0,
            why: NodeErrorKind::Disconnected,
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

    /// What went wrong last.
    pub(crate) const fn why(&self) -> NodeErrorKind {
        self.why
    }

    /// Lets a command not be sent.
    pub(crate) const fn deny(&mut self, why: NodeErrorKind) -> Stuck {
        self.why = why;
        Stuck
    }

    /// Whether a command would be taken at once, and nothing is before it.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_open() && self.pipeline.is_idle()
    }

    /// Whether everything is sent and answered, on a connection that may have ended since.
    pub(crate) const fn is_answered(&self) -> bool {
        self.pipeline.owed() == 0
    }

    /// Whether the node has answered with an error, also to a call that was dropped.
    pub(crate) const fn has_failed(&self) -> bool {
        self.pipeline.has_failed()
    }

    pub(crate) const fn forget_errors(&mut self) {
        self.pipeline.forget_errors();
    }

    /// Asks the node again who it is, on the way to [`Goal::Open`]. To be called after [`Goal::Answered`].
    pub(crate) fn ask_again(&mut self, clock: &impl Clock) {
        self.log_in(Some(login::Step::LAST), clock);
    }

    /// Lets the next attempt to connect be made at once.
    pub(crate) const fn forgive(&mut self) {
        self.failures = 0;
        if let State::Closed { again_at } | State::Closing { again_at, .. } = &mut self.state {
            *again_at = Instant::from_micros(0);
        }
    }

    /// The reply to the last command, after [`Goal::Answered`].
    pub(crate) const fn take_reply(&mut self) -> Option<Value> {
        let reply = self.pipeline.take_reply();
        // A node that speaks, and does not let us in or is not ready, may close the connection again.
        if !matches!(reply, Some(Value::Error(_)) | None) {
            self.failures = 0;
        }
        reply
    }

    /// Ends the connection in good order: after the replies that are owed, unless they take too long.
    pub(crate) async fn close(&mut self, clock: &impl Clock, login: &Login<'_>) {
        let until = clock.now().saturating_add(CLOSE_TIME);
        if self.is_open() {
            // A reply that does not come in time, or not at all, changes nothing here.
            let answered = self.reach(Goal::Answered, clock, login);
            select(answered, clock.sleep_until(until)).await;
        }
        if !matches!(self.state, State::Closed { .. }) {
            let again_at = Instant::from_micros(0);
            self.state = State::Closing { until, again_at };
            let closed = self.reach(Goal::Closed, clock, login).await;
            debug_assert!(closed.is_ok(), "its time ends, if nothing else");
        }
        self.forgive();
        self.why = NodeErrorKind::Disconnected;
    }

    /// Takes step after step until `goal` is reached: the one place that waits.
    pub(crate) async fn reach(
        &mut self,
        mut goal: Goal<'_>,
        clock: &impl Clock,
        login: &Login<'_>,
    ) -> Result<(), Stuck> {
        loop {
            let (step, limit) = match self.next(goal, clock) {
                Next::Step(step, limit) => (step, limit),
                Next::Stop(result) => return result,
            };
            let result = match select(self.take(step, clock, login), wait(limit, clock)).await {
                Either::First(result) => result,
                Either::Second(()) => match (goal, self.state) {
                    (Goal::GivenUp, _) => return Err(Stuck),
                    (_, State::Open) if self.is_silent(clock) => Err(NodeErrorKind::Silent),
                    (_, State::Open) => return Ok(()),
                    (_, State::Closing { again_at, .. }) => {
                        self.state = State::Closed { again_at };
                        Ok(())
                    }
                    _ => Err(NodeErrorKind::NoConnection(self.connect_timeout)),
                },
            };
            if let Err(kind) = result {
                self.break_off(kind, clock);
                goal = Goal::GivenUp;
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
                    return Next::Stop(Err(Stuck));
                }
                let until = now.saturating_add(self.connect_timeout);
                self.state = State::Connecting { until };
                Next::Step(Step::Connect, Limit::Until(until))
            }
            (Goal::Open, State::Connecting { until }) => {
                Next::Step(Step::Connect, Limit::Until(until))
            }
            (Goal::Open, State::LoggingIn { step, said, until }) => {
                // A call that was dropped may have begun it.
                let step = exchange.unwrap_or(Step::LogIn { step, said });
                Next::Step(step, Limit::Until(until))
            }
            (Goal::Open | Goal::Closed, State::Closing { until, .. }) => {
                Next::Step(Step::Close, Limit::Until(until))
            }
            (Goal::GivenUp, State::Closing { .. }) => Next::Step(Step::Close, Limit::Now),
            (Goal::Closed, _) => Next::Stop(Ok(())),

            (Goal::Pushed(command), State::Open) => match self.push(command, clock) {
                Ok(()) => Next::Stop(Ok(())),
                Err(Refused::TooLong) => {
                    self.why = NodeErrorKind::TooLong;
                    Next::Stop(Err(Stuck))
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
            (Goal::Pushed(_) | Goal::Answered | Goal::Sent | Goal::GivenUp, _) => {
                Next::Stop(Err(Stuck))
            }
        }
    }

    /// The next step on the way to the replies that are owed; none when there are none.
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
        // The scripts of plain locks are as short as their names, and nobody needs to put them there.
        let call = if command.is_fenced() {
            ScriptCall::Hash
        } else {
            ScriptCall::Text
        };
        self.pipeline.push(command.arguments(call))?;
        if is_first {
            self.silent_since = clock.now();
        }
        Ok(())
    }

    /// Takes one step and keeps what came of it.
    async fn take(
        &mut self,
        step: Step,
        clock: &impl Clock,
        login: &Login<'_>,
    ) -> Result<(), NodeErrorKind> {
        match step {
            Step::Connect => {
                let connected = self.socket.connect().await;
                connected.map_err(NodeErrorKind::Unreachable)?;
                self.pipeline = Pipeline::new();
                self.is_unflushed = false;
                self.log_in(Some(login::Step::FIRST), clock);
            }
            Step::LogIn { step, said } => match login.words(step) {
                Some(words) => {
                    let is_said = self.pipeline.feed(words, said);
                    if let (State::LoggingIn { said, .. }, Some(so_far)) =
                        (&mut self.state, is_said)
                    {
                        *said = so_far;
                    }
                }
                None => self.log_in(step.next(), clock),
            },
            Step::Write => {
                match self.socket.write(self.pipeline.unsent()).await {
                    Ok(0) | Err(_) => return Err(NodeErrorKind::Disconnected),
                    Ok(count) => self.pipeline.sent(count),
                }
                self.is_unflushed = true;
            }
            Step::Flush => {
                let flushed = self.socket.flush().await;
                flushed.map_err(|_| NodeErrorKind::Disconnected)?;
                self.is_unflushed = false;
            }
            Step::Read => {
                let read = self.socket.read(self.pipeline.room()).await;
                self.heard(read.unwrap_or(0), clock)?;
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

    fn heard(&mut self, count: usize, clock: &impl Clock) -> Result<(), NodeErrorKind> {
        if count == 0 {
            return Err(NodeErrorKind::Disconnected);
        }
        let received = self.pipeline.received(count);
        received.map_err(|_| NodeErrorKind::Unexpected)?;
        self.silent_since = clock.now();
        if let State::LoggingIn { step, .. } = self.state
            && let Some(answer) = self.pipeline.take_reply()
        {
            self.answered(step, answer, clock)?;
            self.log_in(step.next(), clock);
        }
        Ok(())
    }

    /// Judges what the node answers to a step of the login.
    // Once per connection: apart from the loop, which would be longer with it.
    #[inline(never)]
    fn answered(
        &mut self,
        step: login::Step,
        answer: Value,
        clock: &impl Clock,
    ) -> Result<(), NodeErrorKind> {
        match (step, answer) {
            (login::Step::Authenticate | login::Step::Select, Value::Ok) => {}
            (login::Step::NodeInfo, answer) => {
                let node_info = match answer {
                    Value::Integers(numbers) => NodeInfo::read(Answer::Integers(numbers)),
                    Value::Error(error) if error.is_passing() => {
                        return Err(NodeErrorKind::Rejected(error));
                    }
                    // It may not say who it is.
                    Value::Error(_) => None,
                    _ => return Err(NodeErrorKind::Unexpected),
                };
                if node_info.is_none() && matches!(answer, Value::Integers(_)) {
                    return Err(NodeErrorKind::Unexpected);
                }
                let end_of_tick = clock.now().saturating_add(clock.resolution());
                self.admission.record(node_info, end_of_tick);
                if self.admission.may_evict() {
                    warning!("{}: may evict locks for want of memory", self.socket.name());
                }
            }
            #[cfg(feature = "fence")]
            (login::Step::LoadScript(_), Value::Other) => {}
            // Plain locks need none of it, and fenced ones will tell.
            #[cfg(feature = "fence")]
            (login::Step::LoadScript(_), Value::Error(error)) if error.is_about_permissions() => {}
            (_, Value::Error(error)) => return Err(NodeErrorKind::Rejected(error)),
            _ => return Err(NodeErrorKind::Unexpected),
        }
        Ok(())
    }

    /// Goes on to `step` of the login, or to commands. Each step has its time: long may have passed since a
    /// call was dropped.
    fn log_in(&mut self, step: Option<login::Step>, clock: &impl Clock) {
        let Some(step) = step else {
            debug!("{}: ready", self.socket.name());
            self.state = State::Open;
            return;
        };
        let until = clock.now().saturating_add(self.connect_timeout);
        self.state = State::LoggingIn {
            step,
            said: 0,
            until,
        };
    }

    /// If nobody has asked for long, an attempt to connect may be as good as new.
    fn renew(&mut self, clock: &impl Clock) {
        if let State::Connecting { until } | State::LoggingIn { until, .. } = &mut self.state {
            let now = clock.now();
            if now >= until.saturating_add(self.connect_timeout) {
                *until = now.saturating_add(self.connect_timeout);
            }
        }
    }

    fn is_silent(&self, clock: &impl Clock) -> bool {
        let patient_until = self.silent_since.saturating_add(self.patience);
        self.pipeline.owed() > 0 && clock.now() >= patient_until
    }

    /// Gives the connection up. Its end is begun on the way to [`Goal::GivenUp`], and waited for before
    /// there is another connection.
    pub(crate) fn break_off(&mut self, why: NodeErrorKind, clock: &impl Clock) {
        warning!("{}: {}", self.socket.name(), why);
        let now = clock.now();
        self.state = State::Closing {
            until: now.saturating_add(CLOSE_TIME),
            again_at: now.saturating_add(self.back_off()),
        };
        self.why = why;
        self.failures = self.failures.saturating_add(1);
    }

    /// None after a connection that worked: most nodes that drop one are back at once.
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
