//! The connection to one node: made, kept in order, and made again.

use core::future::poll_fn;
use core::pin::pin;
use core::task::Poll;
use core::time::Duration;

use embassy_futures::select::{Either, select};
use redlock_core::{Argument, Clock, Instant};

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
    /// On the way to an open connection; each step has its time.
    Opening { step: Step, until: Instant },
    /// Takes commands.
    Open,
    /// Of no use any more, and the node may not have noticed.
    Closing { until: Instant, again_at: Instant },
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Connect,
    LogIn { done: u8 },
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

    /// Tells one connection from the next.
    pub(crate) const fn number(&self) -> u8 {
        self.number
    }

    /// Whether a command would be taken at once, and nothing is before it.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_open() && self.pipeline.is_idle()
    }

    /// Reads what has come in meanwhile, and does not wait: replies to calls that were dropped, or the
    /// end of the connection.
    pub(crate) async fn catch_up(&mut self, clock: &impl Clock) {
        while self.is_open() {
            let read = poll_fn(|cx| {
                Poll::Ready(
                    match pin!(self.socket.read(self.pipeline.room())).poll(cx) {
                        Poll::Ready(read) => Some(read),
                        Poll::Pending => None,
                    },
                )
            });
            let heard = match read.await {
                Some(read) => self.heard(read.unwrap_or(0), clock),
                None => break,
            };
            if let Err(kind) = heard {
                self.break_off(kind, clock).await;
            }
        }
        let silence = clock.now().saturating_duration_since(self.silent_since);
        if self.is_open() && self.pipeline.owed() > 0 && silence >= self.patience {
            self.break_off(NodeErrorKind::Silent, clock).await;
        }
    }

    /// Makes a connection if there is none; after a failure not before its time.
    pub(crate) async fn open(
        &mut self,
        clock: &impl Clock,
        login: &Login<'_>,
    ) -> Result<(), NodeErrorKind> {
        loop {
            let now = clock.now();
            match self.state {
                State::Open => return Ok(()),
                State::Closing { until, again_at } => {
                    select(self.socket.close(), clock.sleep_until(until)).await;
                    self.state = State::Closed { again_at };
                }
                State::Closed { again_at } if now < again_at => return Err(self.why),
                State::Closed { .. } => self.state = self.opening(Step::Connect, clock),
                // Nobody has asked for long: the attempt may be as good as new.
                State::Opening { step, until }
                    if now >= until.saturating_add(self.connect_timeout) =>
                {
                    self.state = self.opening(step, clock);
                }
                State::Opening { step, until } => {
                    let next = select(self.advance(step, clock, login), clock.sleep_until(until));
                    let advanced = match next.await {
                        Either::First(result) => result,
                        Either::Second(()) => {
                            Err(NodeErrorKind::NoConnection(self.connect_timeout))
                        }
                    };
                    match advanced {
                        // Each step has its time: long may have passed since a call was dropped.
                        Ok(Some(step)) => self.state = self.opening(step, clock),
                        Ok(None) => {
                            debug!("{}: connected", self.socket.name());
                            self.state = State::Open;
                            self.number = self.number.wrapping_add(1);
                        }
                        Err(kind) => {
                            self.break_off(kind, clock).await;
                            return Err(kind);
                        }
                    }
                }
            }
        }
    }

    /// Lets the next [`open`](Self::open) try at once.
    pub(crate) const fn forgive(&mut self) {
        self.failures = 0;
        if let State::Closed { again_at } | State::Closing { again_at, .. } = &mut self.state {
            *again_at = Instant::from_micros(0);
        }
    }

    /// Takes a command; it leaves with the next poll of a call that waits. Where the room is full of what
    /// was not sent or not answered, waits for room: a node that hangs is replaced after the patience.
    pub(crate) async fn push<'w>(
        &mut self,
        words: impl Iterator<Item = Argument<'w>> + Clone,
        clock: &impl Clock,
    ) -> Result<(), NodeErrorKind> {
        loop {
            let is_first = self.pipeline.owed() == 0;
            match self.pipeline.push(words.clone()) {
                Ok(()) => {
                    if is_first {
                        self.silent_since = clock.now();
                    }
                    return Ok(());
                }
                Err(Refused::TooLong) => return Err(NodeErrorKind::TooLong),
                Err(Refused::Full) => self.make_room(clock).await?,
            }
        }
    }

    /// Sends what is to be sent and waits for the reply to the last command.
    pub(crate) async fn reply(&mut self, clock: &impl Clock) -> Result<Value, NodeErrorKind> {
        let result = self.converse(clock).await;
        match result {
            // A node that speaks, and does not let us in or is not ready, may close the connection again.
            Ok(Value::Error(_)) => {}
            Ok(_) => self.failures = 0,
            Err(kind) => self.break_off(kind, clock).await,
        }
        result
    }

    /// Ends the connection in good order: after the replies that are owed, unless they take too long.
    pub(crate) async fn close(&mut self, clock: &impl Clock) {
        let until = clock.now().saturating_add(CLOSE_TIME);
        if self.is_open() {
            // A reply that does not come in time, or not at all, changes nothing here.
            select(self.settle(clock), clock.sleep_until(until)).await;
        }
        if !matches!(self.state, State::Closed { .. }) {
            self.state = State::Closing {
                until,
                again_at: Instant::from_micros(0),
            };
            self.pipeline = Pipeline::new();
            select(self.socket.close(), clock.sleep_until(until)).await;
        }
        self.state = State::Closed {
            again_at: Instant::from_micros(0),
        };
        self.failures = 0;
        self.why = NodeErrorKind::Disconnected;
    }

    /// Waits for every reply that is owed, or for the end of the connection.
    async fn settle(&mut self, clock: &impl Clock) {
        let mut working = self.write().await;
        while working.is_ok() && self.pipeline.owed() > 0 {
            working = self.read(clock).await;
        }
    }

    fn opening(&self, step: Step, clock: &impl Clock) -> State {
        State::Opening {
            step,
            until: clock.now().saturating_add(self.connect_timeout),
        }
    }

    /// One step on the way to an open connection; the next one, or none when there.
    async fn advance(
        &mut self,
        step: Step,
        clock: &impl Clock,
        login: &Login<'_>,
    ) -> Result<Option<Step>, NodeErrorKind> {
        let done = match step {
            Step::Connect => {
                let connected = self.socket.connect().await;
                connected.map_err(NodeErrorKind::Unreachable)?;
                self.pipeline = Pipeline::new();
                self.is_unflushed = false;
                return Ok(Some(Step::LogIn { done: 0 }));
            }
            Step::LogIn { done } => done,
        };
        let Some(words) = login.command(done) else {
            return Ok(None);
        };
        // Unless a call that was dropped has begun it.
        if self.pipeline.owed() == 0 {
            self.push_login(words)?;
        }
        match self.converse(clock).await? {
            Value::Ok => Ok(Some(Step::LogIn { done: done + 1 })),
            Value::Error(rejection) => Err(NodeErrorKind::Rejected(rejection)),
            Value::Nil | Value::Integer(_) | Value::Other => Err(NodeErrorKind::Unexpected),
        }
    }

    fn push_login<'w>(
        &mut self,
        words: impl Iterator<Item = Argument<'w>> + Clone,
    ) -> Result<(), NodeErrorKind> {
        self.pipeline.push(words).map_err(|refused| match refused {
            Refused::TooLong => NodeErrorKind::TooLong,
            Refused::Full => NodeErrorKind::Silent,
        })
    }

    async fn converse(&mut self, clock: &impl Clock) -> Result<Value, NodeErrorKind> {
        self.write().await?;
        loop {
            if let Some(value) = self.pipeline.take_reply() {
                return Ok(value);
            }
            self.read(clock).await?;
        }
    }

    async fn make_room(&mut self, clock: &impl Clock) -> Result<(), NodeErrorKind> {
        let made = if self.pipeline.unsent().is_empty() {
            self.read(clock).await
        } else {
            self.write().await
        };
        if let Err(kind) = made {
            self.break_off(kind, clock).await;
        }
        made
    }

    async fn write(&mut self) -> Result<(), NodeErrorKind> {
        while !self.pipeline.unsent().is_empty() {
            match self.socket.write(self.pipeline.unsent()).await {
                Ok(0) | Err(_) => return Err(NodeErrorKind::Disconnected),
                Ok(count) => self.pipeline.sent(count),
            }
            self.is_unflushed = true;
        }
        if self.is_unflushed {
            let flushed = self.socket.flush().await;
            flushed.map_err(|_| NodeErrorKind::Disconnected)?;
            self.is_unflushed = false;
        }
        Ok(())
    }

    async fn read(&mut self, clock: &impl Clock) -> Result<(), NodeErrorKind> {
        let read = self.socket.read(self.pipeline.room()).await;
        self.heard(read.unwrap_or(0), clock)
    }

    fn heard(&mut self, count: usize, clock: &impl Clock) -> Result<(), NodeErrorKind> {
        if count == 0 {
            return Err(NodeErrorKind::Disconnected);
        }
        let received = self.pipeline.received(count);
        received.map_err(|_| NodeErrorKind::Unexpected)?;
        self.silent_since = clock.now();
        Ok(())
    }

    /// Gives the connection up and begins to end it; [`open`](Self::open) goes on with that.
    pub(crate) async fn break_off(&mut self, why: NodeErrorKind, clock: &impl Clock) {
        warning!("{}: {}", self.socket.name(), why);
        let now = clock.now();
        self.state = State::Closing {
            until: now.saturating_add(CLOSE_TIME),
            again_at: now.saturating_add(self.back_off()),
        };
        self.why = why;
        self.failures = self.failures.saturating_add(1);
        self.pipeline = Pipeline::new();
        self.is_unflushed = false;
        poll_fn(|cx| {
            let _closed = pin!(self.socket.close()).poll(cx);
            Poll::Ready(())
        })
        .await;
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
