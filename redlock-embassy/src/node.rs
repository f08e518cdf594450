//! One Redis or Valkey server, as a transport.

#[cfg(feature = "queue")]
use core::future::pending;
use core::time::Duration;

use embassy_futures::poll_once;
#[cfg(feature = "queue")]
use embassy_futures::yield_now;
#[cfg(feature = "queue")]
use redlock_core::transport::Call;
use redlock_core::transport::{Answer, Command, Mailbox, Reply, RunId, Verb};
use redlock_core::{Clock, Denial, Failure, Instant, Token, Transport};

#[cfg(feature = "client-name")]
use crate::client_name::ClientName;
use crate::error::{NodeError, NodeName, TransportError};
use crate::link::{Failed, Goal, Link};
#[cfg(feature = "queue")]
use crate::log::warning;
use crate::outbox::Outbox;
use crate::resp::Value;
use crate::{Connect, EmbassyClock};

/// One node, over one connection.
///
/// The node connects with the first command. It reconnects with the next command if
///
/// - the connection is lost,
/// - an invalid reply arrives, or
/// - the next reply takes longer than [`patience`](Self::patience).
///
/// It needs no supervision and no task if its stream keeps the rules of [`Connect`]. Between two commands, it sends and reads
/// nothing.
///
/// # Buffers
///
/// `TX` is the size of the send buffer, in bytes. Default: 256. A command that the network cannot take at once waits
/// there. A release needs about 150 bytes plus the length of its key. If an acquire and its release fit together (256
/// bytes; 512 for fenced locks), no release is lost because of a slow network.
///
/// `RX` is the number of bytes that are read at once. Default: 32.
///
/// If the compiler cannot infer `TX` and `RX`, write `TcpNode::<_, _>::new(..)` to use the defaults. A static needs the
/// full type: `type Node = TcpNode<'static, NetSocket<'static>>`.
///
/// # Dropping
///
/// Dropping a node sends nothing. Call [`close`](Self::close) first: otherwise the server keeps the connection for
/// minutes.
#[derive(Debug)]
pub struct TcpNode<'a, S, K = EmbassyClock, const TX: usize = 256, const RX: usize = 32> {
    link: Link<'a, S, TX, RX>,
    clock: K,
    /// The last attempt to acquire a lock: its token, and whether the connection has taken an acquire of it. If not, there is
    /// nothing to release. A fenced attempt may send several acquires with one token.
    // A tuple, because a struct takes more flash.
    attempt: Option<(Token, bool)>,
    outbox: Outbox,
    /// How many times in a row a script was missing, and a release is stored.
    #[cfg(feature = "scripts")]
    missed: u8,
    #[cfg(feature = "min-hold")]
    called_at: Instant,
}

impl<'a, S: Connect, K: Clock, const TX: usize, const RX: usize> TcpNode<'a, S, K, TX, RX> {
    /// Creates the node at the other end of `socket`. Sends nothing.
    pub const fn new(socket: S, clock: K) -> Self {
        Self {
            link: Link::new(socket),
            clock,
            attempt: None,
            outbox: Outbox::EMPTY,
            #[cfg(feature = "scripts")]
            missed: 0,
            #[cfg(feature = "min-hold")]
            called_at: Instant::from_micros(0),
        }
    }

    /// Logs in with this password, as the default user. By default, the client does not log in.
    #[must_use]
    pub const fn password(mut self, password: &'a str) -> Self {
        self.link.login.password = Some(password);
        self
    }

    /// Logs in as this user, with this password. By default, the client does not log in.
    #[must_use]
    pub const fn credentials(mut self, user: &'a str, password: &'a str) -> Self {
        self.link.login.user = Some(user);
        self.password(password)
    }

    /// Uses this database. Default: 0.
    #[must_use]
    pub const fn database(mut self, number: u16) -> Self {
        self.link.login.database = number;
        self
    }

    /// Names the connections of this client, so that an operator sees in `CLIENT LIST` which device it is. Default: no name.
    ///
    /// The name is sent with each login, and takes no round trip. A server that rejects it, because the ACL user lacks
    /// `+client|setname`, is used without it.
    #[cfg(feature = "client-name")]
    #[must_use]
    pub const fn client_name(mut self, name: ClientName<'a>) -> Self {
        self.link.login.client_name = Some(name);
        self
    }

    /// Stands in the waiting lines of this node under `mailbox`, while an acquire waits. By default, the client does not stand in
    /// lines, and polls. It needs the feature `queue`.
    ///
    /// All nodes of a client get the same mailbox, and each client one of its own, of random bytes. The commands are longer than those
    /// without a line, so `TX` is 512 here:
    ///
    /// ```
    /// # use redlock_embassy::{Clock, Connect, Entropy, TcpNode, transport::Mailbox};
    /// # fn nodes<S: Connect, K: Clock + Copy>(sockets: [S; 3], clock: K, mut random: impl Entropy) -> [TcpNode<'static, S, K, 512>; 3] {
    /// let mut bytes = [0; 8];
    /// random.fill(&mut bytes);
    /// let mailbox = Mailbox::new(bytes);
    /// sockets.map(|socket| TcpNode::new(socket, clock).with_mailbox(mailbox))
    /// # }
    /// ```
    ///
    /// When the client first stands in a line on a connection, it switches the connection to RESP3 and subscribes to the channel
    /// of the mailbox. This takes three round trips. If the server has no RESP3, or the user may not subscribe or publish, the log
    /// warns; the node gives the client its turn without a call, and the client looks at the lock twice in each turn.
    #[cfg(feature = "queue")]
    #[must_use]
    pub const fn with_mailbox(mut self, mailbox: Mailbox) -> Self {
        self.link.mail.set_mailbox(mailbox);
        self
    }

    /// Sets the timeout for connecting, and for each answer to the login. Default: 3 s. A login or script that is longer than 1,024
    /// bytes may take it once more for each 1,024 bytes.
    ///
    /// With a timeout that is shorter than the way to the node and back, it never connects.
    ///
    /// This timeout may be longer than a round. A round does not wait for a node that is still connecting; a later round
    /// uses the connection.
    #[must_use]
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.link.set_connect_timeout(timeout);
        self
    }

    /// Sets the timeout for the next reply. If it passes, the next command reconnects. Default: 5 s.
    ///
    /// The timeout starts with the command, and again with each whole reply. A part of a reply does not restart it.
    ///
    /// Set it well above the node timeout, because each reconnect makes a second connection. When a hung node resumes, it
    /// executes the commands of one connection in order, but commands of two connections in any order.
    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.link.set_patience(patience);
        self
    }

    /// Connects and logs in, unless the connection is open. Does not wait for the back-off after a failed attempt.
    ///
    /// Commands connect by themselves. Call this to find out why a node fails. If connecting takes longer than a round, call
    /// [`connect_quorum`](crate::connect_quorum), which connects to the nodes side by side. If the future is dropped, the next
    /// call continues the attempt. If the attempt has ended by then, or its connect timeout is over, the call uses the connection if
    /// it is open, and begins a new attempt otherwise.
    ///
    /// # Errors
    ///
    /// Fails if the node cannot be reached within the connect timeout, rejects the login, or takes longer than that timeout
    /// for one of the answers to it.
    pub async fn connect(&mut self) -> Result<(), NodeError> {
        let opened = async {
            loop {
                let _why = self.reach(Goal::CaughtUp).await;
                self.process_replies();
                // If the attempt of a dropped call has ended, its result may be old: the node may be back, or the connection may
                // have ended since.
                if !self.link.is_connecting() || poll_once(self.reach(Goal::Open)).is_pending() {
                    break;
                }
            }
            self.link.reset_back_off();
            self.reach(Goal::Open).await
        };
        opened.await.map_err(|Failed| self.failed())
    }

    /// Closes the connection so that the server notices. First waits for the outstanding replies. Takes at most one second.
    /// The next command reconnects.
    ///
    /// Call it before a stop mode, before the network is switched off, and before the node is dropped. If the future is
    /// dropped, the connection may stay open.
    pub async fn close(&mut self) {
        self.link.close(&self.clock).await;
    }

    /// The stream to the node, for instance to change the address of a [`NetSocket`](crate::NetSocket). Reading, writing or
    /// closing it yourself breaks the connection.
    pub const fn stream_mut(&mut self) -> &mut S {
        self.link.socket_mut()
    }

    /// Returns the stage that follows `stage`. `reached` is the result of the goal of `stage`. An error ends the call.
    fn after(
        &mut self,
        stage: Stage,
        reached: Result<(), Failed>,
        command: &Command<'_>,
        reloads: &mut u8,
    ) -> Result<Stage, Failed> {
        let given = command;
        #[cfg(feature = "queue")]
        let command = &self.link.mail.at_node(given);
        match stage {
            Stage::CatchUp => {
                self.process_replies();
                if !self.link.can_queue() {
                    self.outbox.store_unsent(command, self.called_at());
                }
                Ok(Stage::Open)
            }
            Stage::Open => {
                reached?;
                #[cfg(feature = "scripts")]
                if self.missed > 0 && self.link.has_refusal() {
                    self.missed = 0;
                    self.outbox.give_up_scripts();
                }
                // The scripts were lost each time, or the user lacks the permission to load them.
                if cfg!(feature = "scripts")
                    && *reloads > 0
                    && (*reloads > Self::RELOADS_MAX || self.link.has_error_reply())
                {
                    #[cfg(feature = "queue")]
                    if command.place.is_some() {
                        *reloads = 0;
                        self.link.forget_errors();
                        return Ok(self.without_line());
                    }
                    return Err(self.link.fail(TransportError::NoScript));
                }
                self.push_next(given)
            }
            Stage::PushStored => {
                reached?;
                self.push_next(given)
            }
            Stage::Drain => {
                self.process_replies();
                reached?;
                #[cfg(feature = "queue")]
                if self.link.mail.needs_subscription(command) {
                    self.link.subscribe(&self.clock);
                    return Ok(Stage::Open);
                }
                #[cfg(feature = "queue")]
                if self.link.mail.needs_script_for(command) {
                    self.link.load_release_script(&self.clock);
                    return Ok(Stage::Open);
                }
                self.link.ask_again(&self.clock);
                Ok(Stage::Open)
            }
            Stage::Deny(denial) => Ok(Stage::Answered(Err(denial))),
            Stage::Push => {
                self.process_replies();
                reached?;
                // The scripts may have to be loaded again.
                if !self.link.is_open() {
                    return Ok(Stage::Open);
                }
                self.push(given)
            }
            Stage::Await => {
                self.process_replies();
                reached?;
                self.judge(command, reloads)
            }
            Stage::Abort | Stage::Answered(_) => Err(Failed),
        }
    }

    /// Processes the replies that have arrived, including the replies to dropped calls. If any is an error, the node may have
    /// another role than before, so its recorded identity is in doubt.
    ///
    /// Then decides about the stored releases that were sent:
    ///
    /// - While replies are outstanding on an open connection, they stay as they are.
    /// - If no reply is outstanding and none was an error, they are dropped.
    /// - If no reply is outstanding and one was an error, they are sent again. The error may be an answer to one of them. If it is not
    ///   temporary, and one of them had a place in a line, they are sent without it: otherwise the node would refuse it each time.
    /// - If the connection ended before all replies arrived, they are sent again on the next connection.
    ///
    /// Call this before the next connection is made.
    fn process_replies(&mut self) {
        #[cfg(feature = "queue")]
        {
            let called_at = self.called_at();
            self.link
                .mail
                .leave_stray(|leave| self.outbox.store_if_room(leave, called_at));
        }
        let has_error_reply = self.link.has_error_reply();
        if has_error_reply {
            self.link.admission.doubt();
        }
        let is_answered = self.link.is_answered();
        if !is_answered && self.link.is_open() {
            return;
        }
        #[cfg(feature = "queue")]
        if self.link.has_refusal() && self.outbox.has_place_in_flight() {
            self.link.mail.refuse(self.clock.now());
        }
        #[cfg(feature = "queue")]
        if self.link.has_lost_script() && self.outbox.has_release_from_outside_in_flight() {
            self.link.mail.lack_script();
        }
        self.outbox.end_flight(has_error_reply || !is_answered);
        #[cfg(feature = "scripts")]
        if self.link.is_open() {
            self.link.restore_scripts(&self.clock);
            self.missed = if self.link.is_open() || !self.outbox.has_unsent() {
                0
            } else {
                self.missed.saturating_add(1)
            };
        }
        self.link.forget_errors();
    }

    /// Whether the command goes without the stored releases, because their scripts were lost again and again.
    const fn leaves_stored(&self) -> bool {
        #[cfg(feature = "scripts")]
        return self.missed > Self::RELOADS_MAX;
        #[cfg(not(feature = "scripts"))]
        false
    }

    /// Queues the stored releases that go ahead of `command`, then `command`. Returns the next stage.
    fn push_next(&mut self, command: &Command<'_>) -> Result<Stage, Failed> {
        if !self.leaves_stored() && !self.push_stored(Some(command))? {
            self.outbox.store_unsent(command, self.called_at());
            return Ok(Stage::PushStored);
        }
        match self.admit(command) {
            Stage::Push => self.push(command),
            stage => Ok(stage),
        }
    }

    /// Queues the stored releases that go ahead of `command`. Returns whether there was room for all of them.
    fn push_stored(&mut self, command: Option<&Command<'_>>) -> Result<bool, Failed> {
        // Without the feature, it is not read: a release that deletes the key has no time.
        let now = if cfg!(feature = "min-hold") {
            self.clock.now()
        } else {
            Instant::from_micros(0)
        };
        self.outbox.remove_over(now);
        while let Some(release) = self.outbox.unsent_ahead_of(command, now) {
            #[cfg(feature = "queue")]
            let release = self.link.mail.at_node(&release);
            match self.link.push(&release, &self.clock) {
                Some(Ok(())) => self.outbox.set_in_flight(command),
                // A release that can never be sent must not block the other commands.
                Some(Err(Failed)) if matches!(self.link.why(), TransportError::TooLong) => {
                    // The release may fit without its place.
                    #[cfg(feature = "queue")]
                    if release.place.is_some() {
                        warning!("{}: the line needs a larger TX", self.link.name());
                        self.link.mail.refuse(self.clock.now());
                        continue;
                    }
                    self.outbox.remove_unsent_ahead_of(command);
                }
                Some(Err(Failed)) => return Err(Failed),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Queues `command`. Returns the stage that waits for the reply, or for room.
    fn push(&mut self, command: &Command<'_>) -> Result<Stage, Failed> {
        #[cfg(feature = "queue")]
        let command = &self.link.mail.at_node(command);
        // Its release would take the place of one that is not answered, and whose acquire may have been granted.
        if command.is_acquire() && self.outbox.is_full() && !self.link.is_answered() {
            return Ok(Stage::Push);
        }
        let Some(pushed) = self.link.push(command, &self.clock) else {
            // The round may stop waiting before there is room.
            self.outbox.store_unsent(command, self.called_at());
            return Ok(Stage::Push);
        };
        #[cfg(feature = "queue")]
        if pushed.is_err()
            && command.place.is_some()
            && matches!(self.link.why(), TransportError::TooLong)
        {
            // The command may fit without its place.
            warning!("{}: the line needs a larger TX", self.link.name());
            return Ok(self.without_line());
        }
        pushed?;
        match command.verb {
            Verb::Acquire { .. } => self.attempt = Some((*command.token, true)),
            Verb::Release | Verb::Keep { .. } => {
                self.outbox.store_in_flight(command, self.called_at());
            }
            Verb::Extend { .. } => {}
        }
        Ok(Stage::Await)
    }

    /// Returns the stage that sends `command`, or the stage that denies it. It denies an acquire whose grant would not count,
    /// and an extend by more than the guard record allows. Commands in the send buffer are sent even then. If the recorded
    /// identity of the node may be out of date, the node is asked again first.
    fn admit(&self, command: &Command<'_>) -> Stage {
        #[cfg(feature = "queue")]
        let command = &self.link.mail.at_node(command);
        if self.link.mail.needs_subscription(command) {
            return Stage::Drain;
        }
        #[cfg(feature = "queue")]
        if self.link.mail.needs_script_for(command) {
            return Stage::Drain;
        }
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
    // `inline(never)`: the loop that calls it stays short. Without fences, this function is short.
    #[cfg_attr(feature = "scripts", inline(never))]
    fn judge(&mut self, command: &Command<'_>, reloads: &mut u8) -> Result<Stage, Failed> {
        let value = self.link.take_reply().ok_or(Failed)?;
        let why = match value {
            // `NOSCRIPT`: the command was not executed. The link is not open, because `process_replies` has made it load the
            // scripts again.
            Value::Error(_)
                if (command.is_fenced() || command.place.is_some()) && !self.link.is_open() =>
            {
                #[cfg(feature = "scripts")]
                self.link.restore_script_of(command, &self.clock);
                *reloads += 1;
                return Ok(Stage::Open);
            }
            // The line is the likely cause. A plain command must not suffer from it.
            #[cfg(feature = "queue")]
            Value::Error(error) if command.place.is_some() && !error.is_temporary() => {
                warning!("{}: refuses the line: {}", self.link.name(), error);
                return Ok(self.without_line());
            }
            Value::Error(error) => {
                #[cfg(feature = "dns")]
                if error.code() == b"READONLY" {
                    self.link.doubt_address();
                }
                // A retry would be rejected again.
                if !error.is_temporary() {
                    self.outbox.remove(command);
                }
                return Err(self.link.fail(TransportError::Rejected(error)));
            }
            value => match reply_to(command, value) {
                Some(reply) => return Ok(Stage::Answered(reply)),
                // The reply belongs to another command, so the next reply cannot be matched either.
                None => TransportError::Unexpected,
            },
        };
        self.link.abort(why, &self.clock);
        Ok(Stage::Abort)
    }

    /// From now on, the node gets only commands without a place, for some time. Returns the stage that sends the current one again:
    /// the node has not executed it.
    #[cfg(feature = "queue")]
    fn without_line(&mut self) -> Stage {
        self.link.mail.refuse(self.clock.now());
        Stage::Open
    }

    /// How many times a command is sent again, at most, because another client has flushed the scripts.
    const RELOADS_MAX: u8 = 3;

    /// How many times the stored releases are sent, at most, between two looks at the lock: again after the scripts were flushed.
    #[cfg(feature = "queue")]
    const PUSHES_MAX: u8 = Self::RELOADS_MAX + 1;

    /// Returns the step of [`Transport::called`] that follows `step`, or the call that has come. `reached` is the result of the
    /// goal of `step`, and `pushes` how many times this wait has sent the stored releases.
    #[cfg(feature = "queue")]
    fn listened(
        &mut self,
        step: Listening,
        reached: Result<(), Failed>,
        key: &[u8],
        pushes: &mut u8,
    ) -> Result<Listening, Call> {
        if self.link.mail.mailbox().is_none() {
            return Ok(Listening::Never);
        }
        self.process_replies();
        if let Some(call) = self.link.mail.take_call(key) {
            return Err(call);
        }
        let was_opening = matches!(step, Listening::Open | Listening::Pause);
        Ok(match (self.link.is_open(), reached) {
            (false, Err(Failed)) if was_opening => Listening::Pause,
            (false, _) => Listening::Open,
            (true, _) if self.link.mail.is_undecided() => {
                if self.link.is_answered() {
                    self.link.subscribe(&self.clock);
                    Listening::Open
                } else {
                    Listening::Drain
                }
            }
            // A node may refuse them for as long as the client waits.
            (true, _)
                if self.outbox.has_unsent()
                    && self.link.can_queue()
                    && !self.leaves_stored()
                    && *pushes < Self::PUSHES_MAX =>
            {
                *pushes += 1;
                // A connection that fails is found later.
                let _result = self.push_stored(None);
                Listening::Listen
            }
            (true, _) if matches!(step, Listening::Listen | Listening::ListenOn) => {
                Listening::ListenOn
            }
            (true, _) => Listening::Listen,
        })
    }

    /// The start of the current call: the time of its command is counted from there.
    const fn called_at(&self) -> Instant {
        #[cfg(feature = "min-hold")]
        let called_at = self.called_at;
        // It is not read.
        #[cfg(not(feature = "min-hold"))]
        let called_at = Instant::from_micros(0);
        called_at
    }

    fn has_begun(&self, token: &Token) -> bool {
        self.attempt
            .as_ref()
            .is_some_and(|(known, _)| known == token)
    }

    fn has_sent_nothing_of(&self, token: &Token) -> bool {
        self.attempt.as_ref() == Some(&(*token, false))
    }

    fn reach(&mut self, goal: Goal) -> impl Future<Output = Result<(), Failed>> {
        self.link.reach(goal, &self.clock)
    }

    /// The error of a call whose goal was not reached.
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

    const DOUBTS_ADDRESSES: bool = cfg!(feature = "dns");

    fn name(&self) -> NodeName {
        self.link.name()
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeError> {
        #[cfg(feature = "min-hold")]
        {
            self.called_at = self.clock.now();
        }
        let token = command.token;
        if command.is_acquire() && !self.has_begun(token) {
            self.attempt = Some((*token, false));
        }
        let ends = command.is_release()
            || cfg!(feature = "min-hold") && matches!(command.verb, Verb::Keep { .. });
        // An earlier attempt may have left the client in the line.
        if ends && self.has_sent_nothing_of(token) && !self.link.mail.stands_in_line(command.key) {
            return Err(self.error(Failure::NothingToRelease));
        }
        #[cfg(feature = "queue")]
        self.link.mail.refresh(self.clock.now());
        #[cfg(feature = "scripts")]
        if self.leaves_stored() {
            self.missed = 0;
        }
        #[cfg(feature = "dns")]
        self.link.leave_doubted_address(&self.clock);
        let mut reloads = 0;
        let mut stage = Stage::CatchUp;
        loop {
            let goal = match stage {
                Stage::CatchUp => Goal::CaughtUp,
                Stage::Open => Goal::Open,
                Stage::PushStored | Stage::Push => Goal::Progress,
                Stage::Deny(_) => Goal::Sent,
                Stage::Drain | Stage::Await => Goal::Answered,
                Stage::Abort => Goal::Aborted,
                Stage::Answered(Ok(reply)) => return Ok(reply),
                Stage::Answered(Err(denial)) => return Err(self.error(Failure::Denied(denial))),
            };
            let reached = self.link.reach(goal, &self.clock).await;
            stage = match self.after(stage, reached, command, &mut reloads) {
                Ok(next) => next,
                Err(Failed) => return Err(self.failed()),
            };
        }
    }

    fn run_id(&self) -> Option<RunId> {
        self.link.admission.run_id()
    }

    #[cfg(feature = "dns")]
    fn doubt_address(&mut self) {
        self.link.doubt_address();
    }

    fn mailbox(&self) -> Option<Mailbox> {
        self.link.mail.mailbox()
    }

    #[cfg(feature = "queue")]
    async fn called(&mut self, key: &[u8]) -> Call {
        let mut step = Listening::CatchUp;
        let mut pushes = 0;
        loop {
            let goal = match step {
                Listening::CatchUp => Goal::CaughtUp,
                Listening::Open => Goal::Open,
                Listening::Pause => {
                    let again_at = self.link.again_at(&self.clock);
                    self.clock.sleep_until(again_at).await;
                    Goal::Open
                }
                Listening::Drain => Goal::Answered,
                Listening::Listen => Goal::Progress,
                Listening::ListenOn => {
                    // Messages that keep coming must not keep the other tasks waiting.
                    yield_now().await;
                    Goal::Progress
                }
                Listening::Never => pending().await,
            };
            let reached = self.link.reach(goal, &self.clock).await;
            step = match self.listened(step, reached, key, &mut pushes) {
                Ok(next) => next,
                Err(call) => return call,
            };
        }
    }

    fn explain_timeout(&self, after: Duration) -> Option<TransportError> {
        Some(if self.link.is_open() {
            TransportError::NoAnswer(after)
        } else {
            TransportError::NotConnected(after)
        })
    }
}

/// The stage of a call. Each stage has a goal for the connection. One loop waits for all goals, so that the code that
/// waits is in flash once. If the connection is open, the first poll sends the command without waiting.
#[derive(Clone, Copy)]
enum Stage {
    /// Reads what has arrived.
    CatchUp,
    /// Connects and logs in, if necessary.
    Open,
    /// Waits for room for the next stored release, which goes ahead of the command.
    PushStored,
    /// Waits for the outstanding replies, before the node is asked for its identity again.
    Drain,
    /// Waits for room for the command.
    Push,
    /// Sends the command, and waits for the reply.
    Await,
    /// The node has no vote. Commands in the send buffer are still sent.
    Deny(Denial),
    /// The connection was aborted, and begins to close.
    Abort,
    Answered(Result<Reply, Denial>),
}

/// What [`Transport::called`] does next.
#[cfg(feature = "queue")]
#[derive(Clone, Copy)]
enum Listening {
    /// Reads what has arrived.
    CatchUp,
    /// Connects and logs in, if necessary, or goes on with it.
    Open,
    /// The same when the back-off is over.
    Pause,
    /// Waits for the outstanding replies, before the connection subscribes.
    Drain,
    /// Reads what comes.
    Listen,
    /// The same, after a turn of the other tasks.
    ListenOn,
    /// There is no call to wait for.
    Never,
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
