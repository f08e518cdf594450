//! The connection to one node: made, kept in order, and made again.

use core::future::pending;
use core::time::Duration;

use embassy_futures::select::{Either, select};
use redlock_core::{Arguments, Clock, Instant};

use crate::error::NodeErrorKind;
use crate::log::{debug, warning};
use crate::login::Login;
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
    number: u8,
    pub(crate) connect_timeout: Duration,
    pub(crate) patience: Duration,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// No connection. Another attempt is made from then on.
    Closed { again_at: Instant },
    /// On the way to a connection.
    Connecting { until: Instant },
    /// Connected; so many words of the login were answered.
    LoggingIn { done: u8, until: Instant },
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
    Pushed(&'g Arguments<'g>),
    /// To have sent everything, and the replies to it.
    Answered,
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
    LogIn { done: u8 },
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
            number: 0,
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

    /// Tells one connection from the next.
    pub(crate) const fn number(&self) -> u8 {
        self.number
    }

    /// Whether a command would be taken at once, and nothing is before it.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_open() && self.pipeline.is_idle()
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
            (Goal::Open, State::LoggingIn { done, until }) => {
                // A call that was dropped may have begun it.
                let step = exchange.unwrap_or(Step::LogIn { done });
                Next::Step(step, Limit::Until(until))
            }
            (Goal::Open | Goal::Closed, State::Closing { until, .. }) => {
                Next::Step(Step::Close, Limit::Until(until))
            }
            (Goal::GivenUp, State::Closing { .. }) => Next::Step(Step::Close, Limit::Now),
            (Goal::Closed, _) => Next::Stop(Ok(())),

            (Goal::Pushed(words), State::Open) => match self.push(words, clock) {
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
            (Goal::Pushed(_) | Goal::Answered | Goal::GivenUp, _) => Next::Stop(Err(Stuck)),
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

    fn push(&mut self, words: &Arguments<'_>, clock: &impl Clock) -> Result<(), Refused> {
        let is_first = self.pipeline.owed() == 0;
        self.pipeline.push(words.clone())?;
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
                self.log_in(0, clock);
            }
            Step::LogIn { done } => match login.command(done) {
                Some(words) => self.push(&words, clock).map_err(|refused| match refused {
                    Refused::TooLong => NodeErrorKind::TooLong,
                    Refused::Full => NodeErrorKind::Silent,
                })?,
                None => {
                    debug!("{}: connected", self.socket.name());
                    self.state = State::Open;
                    self.number = self.number.wrapping_add(1);
                }
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
        if let State::LoggingIn { done, .. } = self.state {
            match self.pipeline.take_reply() {
                None => {}
                Some(Value::Ok) => self.log_in(done + 1, clock),
                Some(Value::Error(rejection)) => return Err(NodeErrorKind::Rejected(rejection)),
                Some(Value::Nil | Value::Integer(_) | Value::Other) => {
                    return Err(NodeErrorKind::Unexpected);
                }
            }
        }
        Ok(())
    }

    /// Each word of the login has its time: long may have passed since a call was dropped.
    fn log_in(&mut self, done: u8, clock: &impl Clock) {
        let until = clock.now().saturating_add(self.connect_timeout);
        self.state = State::LoggingIn { done, until };
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
