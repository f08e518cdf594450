//! One Redis or Valkey server, as a transport.

use core::time::Duration;

use redlock_core::transport::{Answer, Command, Reply, RunId, Verb};
use redlock_core::{Clock, Denial, Failure, Token, Transport};

use crate::error::{NodeError, NodeName, TransportError};
use crate::link::{Failed, Goal, Link};
use crate::login::Login;
use crate::outbox::Outbox;
use crate::resp::Value;
use crate::{Connect, EmbassyClock};

/// One node, over one connection.
///
/// It connects with the first command. It reconnects if the connection is lost, if an invalid reply
/// arrives, or if the next reply takes longer than [`patience`](Self::patience). It needs no supervision and no
/// task. Between two commands, it sends and reads nothing.
///
/// `TX` is the room for commands that wait to be sent, in bytes. A release needs about 165 bytes plus the
/// length of its key; if a connection cannot take it at once, it waits here. With room for an acquire and
/// its release (256 bytes; 512 for fenced locks), no release is lost because of a slow network. `RX` is how
/// many bytes are read at once. The defaults are 256 and 32.
///
/// If the compiler asks for `TX` and `RX`, name the type: `TcpNode::<_, _>::new(..)`, or in full,
/// `type Node = TcpNode<'static, NetSocket<'static>>`, as a static needs it.
///
/// Dropping a node sends nothing. Call [`close`](Self::close) first; otherwise the server keeps its client for
/// minutes.
#[derive(Debug)]
pub struct TcpNode<'a, S, K = EmbassyClock, const TX: usize = 256, const RX: usize = 32> {
    link: Link<S, TX, RX>,
    clock: K,
    login: Login<'a>,
    /// The last attempt to acquire a lock, and whether any acquire of it has been queued. If none was, there is
    /// nothing to release.
    attempt: Option<(Token, bool)>,
    outbox: Outbox,
}

impl<'a, S: Connect, K: Clock, const TX: usize, const RX: usize> TcpNode<'a, S, K, TX, RX> {
    /// Creates the node at the other end of `socket`. Sends nothing.
    pub const fn new(socket: S, clock: K) -> Self {
        Self {
            link: Link::new(socket),
            clock,
            login: Login {
                user: None,
                password: None,
                database: 0,
            },
            attempt: None,
            outbox: Outbox::EMPTY,
        }
    }

    /// Logs in with this password, as the default user. Default: no login.
    #[must_use]
    pub const fn password(mut self, password: &'a str) -> Self {
        self.login.password = Some(password);
        self
    }

    /// Logs in as this user.
    #[must_use]
    pub const fn credentials(mut self, user: &'a str, password: &'a str) -> Self {
        self.login.user = Some(user);
        self.password(password)
    }

    /// Uses this database. Default: 0.
    #[must_use]
    pub const fn database(mut self, number: u16) -> Self {
        self.login.database = number;
        self
    }

    /// Sets how long connecting may take, and each answer to the login. Default: 3 s. It may take longer than
    /// a round: then the round runs without this node, and a later round finds it connected.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.link.connect_timeout = timeout;
        self
    }

    /// Sets how long the node may take for its next reply, counted from the command or from the reply before it. After that,
    /// the next command reconnects. A part of a reply does not count. Default: 5 s.
    ///
    /// Keep it well above the node timeout: when a hung node resumes, it executes the commands of a connection
    /// in order, but this order does not hold across two connections.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.link.patience = patience;
        self
    }

    /// Connects and logs in if necessary; at once, even if an attempt has just failed.
    ///
    /// Commands connect by themselves. Call this if connecting takes longer than a round, or to find out what is
    /// wrong with a node. If the future is dropped, the next call continues the attempt.
    ///
    /// # Errors
    ///
    /// Fails if the node cannot be reached within the connect timeout, or rejects the login.
    pub async fn connect(&mut self) -> Result<(), NodeError> {
        let opened = async {
            let _why = self.reach(Goal::CaughtUp).await;
            self.settle();
            self.link.reset_back_off();
            self.reach(Goal::Open).await
        };
        opened.await.map_err(|Failed| self.failed())
    }

    /// Closes the connection so that the server notices, after the outstanding replies have arrived. Takes two
    /// seconds at most. The next command reconnects.
    ///
    /// Call it before a stop mode, before the network is switched off, and before the node is dropped. If the
    /// future is dropped, the connection may stay open.
    pub async fn close(&mut self) {
        self.link.close(&self.clock, &self.login).await;
    }

    /// Returns the stage after `stage`, which has ended with `reached`; an error ends the call.
    fn after(
        &mut self,
        stage: Stage,
        reached: Result<(), Failed>,
        command: &Command<'_>,
        reloads: &mut u8,
    ) -> Result<Stage, Failed> {
        match stage {
            Stage::CatchUp => {
                self.settle();
                if !self.link.is_idle() {
                    self.outbox.park(command);
                }
                Ok(Stage::Open)
            }
            Stage::Open => {
                reached?;
                // They were lost each time, or the user lacks the permission to load them.
                if cfg!(feature = "fence")
                    && *reloads > 0
                    && (*reloads > Self::RELOADS_MAX || self.link.has_failed())
                {
                    return Err(self.link.fail(TransportError::NoScript));
                }
                if self.outbox.goes_ahead_of(command) {
                    return Ok(Stage::PushParked);
                }
                Ok(self.admit(command))
            }
            Stage::PushParked => {
                match reached {
                    Ok(()) => self.outbox.pushed(),
                    // Otherwise it would block every other command forever.
                    Err(Failed) if matches!(self.link.why(), TransportError::TooLong) => {
                        self.outbox.clear();
                    }
                    Err(Failed) => return Err(Failed),
                }
                Ok(self.admit(command))
            }
            Stage::Drain => {
                self.settle();
                reached?;
                self.link.ask_again(&self.clock);
                Ok(Stage::Open)
            }
            Stage::Deny(denial) => Ok(Stage::Answered(Err(denial))),
            Stage::Push => {
                reached?;
                match command.verb {
                    Verb::Acquire { .. } => self.attempt = Some((*command.token, true)),
                    Verb::Release => self.outbox.park_pushed(command),
                    Verb::Extend { .. } => {}
                }
                Ok(Stage::Await)
            }
            Stage::Await => {
                self.settle();
                reached?;
                self.judge(command, reloads)
            }
            Stage::BreakOff | Stage::Answered(_) => Err(Failed),
        }
    }

    /// Evaluates the replies that have arrived, also those to dropped calls. After an error, the node may have another
    /// role than before. A release that is answered is dropped, unless the error may be its own. If its connection ended
    /// before the answer, the release waits for the next connection. Call this before the next connection is made.
    fn settle(&mut self) {
        let has_failed = self.link.has_failed();
        if has_failed {
            self.link.admission.doubt();
        }
        let is_answered = self.link.is_answered();
        if !is_answered && self.link.is_open() {
            return;
        }
        self.outbox.settle(has_failed || !is_answered);
        #[cfg(feature = "fence")]
        if self.link.is_open() {
            self.link.restore_scripts(&self.clock);
        }
        self.link.forget_errors();
    }

    /// Stops only an acquire whose grant would not count; commands before it are still sent. If what is known of the
    /// node may be out of date, the node is asked again first.
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn admit(&self, command: &Command<'_>) -> Stage {
        let now = self.clock.now();
        let admitted = self.link.admission.check(command.verb, now);
        if self
            .link
            .admission
            .is_outdated(command.verb, &admitted, now)
        {
            return Stage::Drain;
        }
        admitted.map_or_else(Stage::Deny, |()| Stage::Push)
    }

    /// Evaluates the answer to `command`.
    // `inline(never)`: would make the loop longer. Without fences, it is short.
    #[cfg_attr(feature = "fence", inline(never))]
    fn judge(&mut self, command: &Command<'_>, reloads: &mut u8) -> Result<Stage, Failed> {
        let value = self.link.take_reply().ok_or(Failed)?;
        let why = match value {
            // It was not executed. The scripts are being loaded again, on this connection.
            Value::Error(_) if command.is_fenced() && !self.link.is_open() => {
                #[cfg(feature = "fence")]
                self.link.restore_script_of(command, &self.clock);
                *reloads += 1;
                return Ok(Stage::Open);
            }
            Value::Error(error) => {
                // A retry would be rejected again.
                if !error.is_passing() && command.is_release() {
                    self.outbox.clear();
                }
                return Err(self.link.fail(TransportError::Rejected(error)));
            }
            value => match reply_to(command, value) {
                Some(reply) => return Ok(Stage::Answered(reply)),
                // It belongs to another command, so the next reply cannot be matched either.
                None => TransportError::Unexpected,
            },
        };
        self.link.break_off(why, &self.clock);
        Ok(Stage::BreakOff)
    }

    /// How often a command is sent again because another client has flushed the scripts.
    const RELOADS_MAX: u8 = 3;

    fn has_begun(&self, token: &Token) -> bool {
        self.attempt
            .as_ref()
            .is_some_and(|(known, _)| known == token)
    }

    fn has_sent_nothing_of(&self, token: &Token) -> bool {
        self.attempt.as_ref() == Some(&(*token, false))
    }

    fn reach(&mut self, goal: Goal<'_>) -> impl Future<Output = Result<(), Failed>> {
        self.link.reach(goal, &self.clock, &self.login)
    }

    /// The error of a call that has failed on the way.
    fn failed(&self) -> NodeError {
        self.error(Failure::Transport(self.link.why()))
    }

    fn error(&self, failure: Failure<NodeName, TransportError>) -> NodeError {
        NodeError::new(self.link.name(), failure)
    }
}

impl<S: Connect, K: Clock, const TX: usize, const RX: usize> Transport
    for TcpNode<'_, S, K, TX, RX>
{
    type Name = NodeName;
    type Error = TransportError;

    fn name(&self) -> NodeName {
        self.link.name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeError> {
        let token = command.token;
        // A fenced attempt may ask more than once with one token.
        if command.is_acquire() && !self.has_begun(token) {
            self.attempt = Some((*token, false));
        }
        if command.is_release() && self.has_sent_nothing_of(token) {
            return Ok(Reply::NotMine);
        }
        let mut reloads = 0;
        let mut stage = Stage::CatchUp;
        loop {
            let pushed = match stage {
                Stage::PushParked => self.outbox.command(),
                _ => *command,
            };
            let goal = match stage {
                Stage::CatchUp => Goal::CaughtUp,
                Stage::Open => Goal::Open,
                Stage::PushParked | Stage::Push => Goal::Pushed(&pushed),
                Stage::Deny(_) => Goal::Sent,
                Stage::Drain | Stage::Await => Goal::Answered,
                Stage::BreakOff => Goal::BrokenOff,
                Stage::Answered(Ok(reply)) => return Ok(reply),
                Stage::Answered(Err(denial)) => return Err(self.error(Failure::Denied(denial))),
            };
            let reached = self.link.reach(goal, &self.clock, &self.login).await;
            stage = match self.after(stage, reached, command, &mut reloads) {
                Ok(next) => next,
                Err(Failed) => return Err(self.failed()),
            };
        }
    }

    fn run_id(&self) -> Option<RunId> {
        self.link.admission.run_id()
    }
}

/// The stage of a call. Each stage has a goal for the connection, and one loop waits for all goals, so that
/// the code that waits is in flash once. If the connection is open, the first poll sends the command without
/// waiting.
#[derive(Clone, Copy)]
enum Stage {
    CatchUp,
    Open,
    /// Sends a release first that is not answered yet.
    PushParked,
    /// Waits for the outstanding replies, before the node is asked for its identity again.
    Drain,
    Push,
    Await,
    /// The node has no vote. Commands before this one are still sent.
    Deny(Denial),
    /// The connection was broken off, and begins to close.
    BreakOff,
    Answered(Result<Reply, Denial>),
}

fn reply_to(command: &Command<'_>, value: Value) -> Option<Result<Reply, Denial>> {
    command.reply(match value {
        Value::Ok => Answer::Ok,
        Value::Nil => Answer::Nil,
        Value::Integer(number) => Answer::Integer(number),
        Value::Integers(numbers) => Answer::Integers(numbers),
        Value::Error(_) | Value::Other => return None,
    })
}
