//! One Redis or Valkey server, as a transport.

use core::time::Duration;

use heapless::Vec;
use redlock_core::{
    Answer, Clock, Command, Denial, Proposal, Reply, RunId, Token, Transport, Verb,
};

use crate::error::{NodeError, NodeErrorKind};
use crate::link::{Goal, Link, Stuck};
use crate::login::Login;
use crate::resp::Value;
use crate::{Connect, EmbassyClock};

/// One node, over one connection.
///
/// It connects with the first command, and again when the connection is lost, answers with garbage or has
/// been silent for [`patience`](Self::patience): nobody has to look after it, and no task is needed. Between
/// two commands nothing is sent or read.
///
/// `TX` is the room for commands that wait to be sent, in bytes. A release needs about 165 bytes and the
/// length of its key; where a connection cannot take it at once, it waits here. With room for an acquire and
/// its release, 256 bytes or for fenced locks 512, no release is lost to a slow network. `RX` is how many
/// bytes are read at once.
///
/// Where the compiler asks for `TX` and `RX`, name the node: `TcpNode::<_, _>::new(..)`, or in full,
/// `type Node = TcpNode<'static, NetSocket<'static>>`, as a static needs it.
///
/// Dropping a node sends nothing; [`close`](Self::close) it first, or the server keeps its client for minutes.
#[derive(Debug)]
pub struct TcpNode<'a, S, K = EmbassyClock, const TX: usize = 256, const RX: usize = 32> {
    link: Link<S, TX, RX>,
    clock: K,
    login: Login<'a>,
    /// The last attempt to take a lock, and whether any acquire of it has left this device: else there is
    /// nothing to release.
    attempt: Option<(Token, bool)>,
    /// The last release, until it is answered. If it could not be sent, if its connection ended, or if the node
    /// refused it for the moment, it is sent ahead of the next command.
    parked: Parked,
}

impl<'a, S: Connect, K: Clock, const TX: usize, const RX: usize> TcpNode<'a, S, K, TX, RX> {
    /// The node at the other end of `socket`. Nothing is sent yet.
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
            parked: Parked::NONE,
        }
    }

    /// Logs in with this password, as the default user.
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

    /// Uses this database; 0 unless told.
    #[must_use]
    pub const fn database(mut self, number: u16) -> Self {
        self.login.database = number;
        self
    }

    /// How long connecting may take, and each answer to the login; 3 s unless told. It may take longer than
    /// a round: then the round does without this node, and a later one finds it connected.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.link.connect_timeout = timeout;
        self
    }

    /// For how long a connection may be silent while it owes a reply, before it is replaced by another;
    /// 5 s unless told.
    ///
    /// Keep it well above the node time-out: what a node that hung has received is carried out in order
    /// when it goes on, and that order ends with the connection.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.link.patience = patience;
        self
    }

    /// Connects and logs in if need be, at once also where an attempt has just failed.
    ///
    /// Commands do that by themselves; call it where connecting takes longer than a round, or to see what is
    /// wrong with a node. When the future is dropped, the next call goes on with it.
    ///
    /// # Errors
    ///
    /// When the node cannot be reached within the connect time-out, or does not let us in.
    pub async fn connect(&mut self) -> Result<(), NodeError> {
        let opened = async {
            let _why = self.reach(Goal::CaughtUp).await;
            self.settle();
            self.link.forgive();
            self.reach(Goal::Open).await
        };
        opened.await.map_err(|Stuck| self.error(self.link.why()))
    }

    /// Ends the connection so that the server notices, after the replies that it still owes; takes a second
    /// or two at the most. The next command connects again.
    ///
    /// Before a stop mode, before the network is switched off, before the node is dropped. When the future
    /// is dropped, the connection may stay open.
    pub async fn close(&mut self) {
        self.link.close(&self.clock, &self.login).await;
    }

    /// Goes on after `stage`, which has ended so: to the next one, or to the end of the call.
    fn after(
        &mut self,
        stage: Stage,
        reached: Result<(), Stuck>,
        command: &Command<'_>,
        may_repeat: &mut bool,
    ) -> Result<Stage, Stuck> {
        match stage {
            Stage::CatchUp => {
                self.settle();
                if !self.link.is_idle() {
                    self.park(command, ParkedState::Waiting);
                }
                Ok(Stage::Open)
            }
            Stage::Open => {
                reached?;
                if self.must_push_parked(command) {
                    return Ok(Stage::PushParked);
                }
                Ok(self.admit(command))
            }
            Stage::PushParked => {
                match reached {
                    Ok(()) => self.parked.state = ParkedState::Pushed,
                    // It would stand before every other command for ever.
                    Err(Stuck) if matches!(self.link.why(), NodeErrorKind::TooLong) => {
                        self.parked.state = ParkedState::None;
                    }
                    Err(Stuck) => return Err(Stuck),
                }
                Ok(self.admit(command))
            }
            Stage::Drain => {
                self.settle();
                reached?;
                self.link.ask_again(&self.clock);
                Ok(Stage::Open)
            }
            Stage::TurnAway(denial) => Err(self.link.deny(NodeErrorKind::Denied(denial))),
            Stage::Push => {
                reached?;
                match command.verb {
                    Verb::Acquire { .. } => self.attempt = Some((*command.token, true)),
                    Verb::Release => self.park(command, ParkedState::Pushed),
                    Verb::Extend { .. } => {}
                }
                Ok(Stage::Await)
            }
            Stage::Await => {
                self.settle();
                reached?;
                self.judge(command)
            }
            // With the next connection the node is given its scripts again.
            Stage::GiveUp
                if matches!(self.link.why(), NodeErrorKind::NoScript)
                    && core::mem::take(may_repeat) =>
            {
                Ok(Stage::CatchUp)
            }
            Stage::GiveUp | Stage::Answered(_) => Err(Stuck),
        }
    }

    /// Keeps a release until it is answered, in the place of the one before it, if its key is not too long.
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn park(&mut self, command: &Command<'_>, state: ParkedState) {
        if command.is_release() && command.key.len() <= Parked::KEY_MAX {
            let parked = &mut self.parked;
            parked.key.clear();
            let _fits = parked.key.extend_from_slice(command.key);
            parked.token = *command.token;
            parked.proposal = command.proposal;
            parked.state = state;
        }
    }

    /// Looks at the replies that have come, also to calls that were dropped. After an error the node may have another
    /// role than before. A release that is answered is forgotten, unless the error may be its own; one that a connection
    /// has taken with it waits for the next. To be called before there is another connection.
    fn settle(&mut self) {
        let has_failed = self.link.has_failed();
        if has_failed {
            self.link.admission.doubt();
        }
        let is_answered = self.link.is_answered();
        if !is_answered && self.link.is_open() {
            return;
        }
        if matches!(self.parked.state, ParkedState::Pushed) {
            self.parked.state = if has_failed || !is_answered {
                ParkedState::Waiting
            } else {
                ParkedState::None
            };
        }
        self.link.forget_errors();
    }

    /// Whether a release that is not answered goes ahead of `command`, unless it is `command` itself.
    fn must_push_parked(&self, command: &Command<'_>) -> bool {
        matches!(self.parked.state, ParkedState::Waiting) && !self.parked.is(command)
    }

    /// Stops an acquire whose grant would not count, and nothing else: what was said before it leaves. If what is known
    /// of the node may be out of date, it is asked again.
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
        admitted.map_or_else(Stage::TurnAway, |()| Stage::Push)
    }

    /// What the answer to `command` means.
    fn judge(&mut self, command: &Command<'_>) -> Result<Stage, Stuck> {
        let value = self.link.take_reply().ok_or(Stuck)?;
        let why = match value {
            Value::Error(error) if command.is_fenced() && error.code() == b"NOSCRIPT" => {
                NodeErrorKind::NoScript
            }
            Value::Error(error) => {
                // It would be rejected again.
                if !error.is_passing() && command.is_release() {
                    self.parked.state = ParkedState::None;
                }
                return Err(self.link.deny(NodeErrorKind::Rejected(error)));
            }
            value => match reply_to(command, value) {
                Some(Ok(reply)) => return Ok(Stage::Answered(reply)),
                Some(Err(denial)) => return Err(self.link.deny(NodeErrorKind::Denied(denial))),
                // It belongs to another command: nobody knows whose the next one is.
                None => NodeErrorKind::Unexpected,
            },
        };
        self.link.break_off(why, &self.clock);
        Ok(Stage::GiveUp)
    }

    fn has_begun(&self, token: &Token) -> bool {
        self.attempt
            .as_ref()
            .is_some_and(|(known, _)| known == token)
    }

    fn has_sent_nothing_of(&self, token: &Token) -> bool {
        self.attempt.as_ref() == Some(&(*token, false))
    }

    fn reach(&mut self, goal: Goal<'_>) -> impl Future<Output = Result<(), Stuck>> {
        self.link.reach(goal, &self.clock, &self.login)
    }

    fn error(&self, kind: NodeErrorKind) -> NodeError {
        NodeError::new(self.link.name(), kind)
    }
}

impl<S: Connect, K: Clock, const TX: usize, const RX: usize> Transport
    for TcpNode<'_, S, K, TX, RX>
{
    type Error = NodeError;

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeError> {
        let token = command.token;
        // A fenced attempt asks twice with one token.
        if command.is_acquire() && !self.has_begun(token) {
            self.attempt = Some((*token, false));
        }
        if command.is_release() && self.has_sent_nothing_of(token) {
            return Ok(Reply::NotMine);
        }
        let mut may_repeat = !command.is_acquire();
        let mut stage = Stage::CatchUp;
        loop {
            let pushed = match stage {
                Stage::PushParked => self.parked.command(),
                _ => *command,
            };
            let goal = match stage {
                Stage::CatchUp => Goal::CaughtUp,
                Stage::Open => Goal::Open,
                Stage::PushParked | Stage::Push => Goal::Pushed(&pushed),
                Stage::TurnAway(_) => Goal::Sent,
                Stage::Drain | Stage::Await => Goal::Answered,
                Stage::GiveUp => Goal::GivenUp,
                Stage::Answered(reply) => return Ok(reply),
            };
            let reached = self.link.reach(goal, &self.clock, &self.login).await;
            stage = match self.after(stage, reached, command, &mut may_repeat) {
                Ok(next) => next,
                Err(Stuck) => return Err(self.error(self.link.why())),
            };
        }
    }

    fn timed_out(&self, after: Duration) -> NodeError {
        self.error(NodeErrorKind::TimedOut(after))
    }

    fn run_id(&self) -> Option<RunId> {
        self.link.admission.run_id()
    }

    fn duplicate_of(&self, first: &Self) -> Option<NodeError> {
        Some(self.error(NodeErrorKind::DuplicateOf(first.link.name())))
    }

    fn denial(error: &NodeError) -> Option<Denial> {
        match error.kind() {
            NodeErrorKind::Denied(denial) => Some(*denial),
            _ => None,
        }
    }
}

/// Where a call is on its way to the answer. For each of them the connection has a goal, and one loop waits
/// for all, so that waiting is in flash once. Up to the first wait nothing is waited for where the connection
/// is open: the command leaves with the first poll.
#[derive(Clone, Copy)]
enum Stage {
    CatchUp,
    Open,
    /// A release that could not be sent before goes first.
    PushParked,
    /// The node is going to be asked again who it is, after the replies that it owes.
    Drain,
    Push,
    Await,
    /// The node has no vote. What was said before leaves.
    TurnAway(Denial),
    /// The connection was broken off, and has begun to end.
    GiveUp,
    Answered(Reply),
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

/// A release that is not answered.
#[derive(Debug)]
struct Parked {
    state: ParkedState,
    key: Vec<u8, { Self::KEY_MAX }>,
    token: Token,
    proposal: Option<Proposal>,
}

#[derive(Debug, Clone, Copy)]
enum ParkedState {
    /// There is none.
    None,
    /// The connection has taken it. It is answered when nothing is owed there.
    Pushed,
    /// It goes ahead of the next command.
    Waiting,
}

impl Parked {
    /// As long as the keys that a lock remembers after a future was dropped; a longer one expires.
    const KEY_MAX: usize = 64;

    const NONE: Self = Self {
        state: ParkedState::None,
        key: Vec::new(),
        token: Token::from_bytes([0; Token::LEN]),
        proposal: None,
    };

    fn is(&self, command: &Command<'_>) -> bool {
        command.is_release() && *command.key == *self.key && *command.token == self.token
    }

    fn command(&self) -> Command<'_> {
        Command::release(&self.key, &self.token).with_proposal(self.proposal)
    }
}
