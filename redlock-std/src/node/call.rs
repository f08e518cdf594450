//! A command for one node, and who waits for its answer.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redis::Cmd;
use redlock_core::{
    Admission, Answer, Argument, Arguments, Clock, Command, Denial, FENCE_KEY_PREFIX, OwnedCommand,
    Reply, ScriptCall, Verb,
};
use tokio::sync::oneshot;

use super::error::NodeErrorKind;
use crate::clock::SystemClock;

/// A command, and who waits for its answer.
#[derive(Debug)]
pub(crate) struct Call {
    command: OwnedCommand<Box<[u8]>>,
    script_call: ScriptCall,
    /// How long its caller waits for the node.
    node_timeout: Duration,
    /// The acquire with the same token, if it is known which: its own number, if it is one.
    pub(super) behind: Option<AcquireNumber>,
    /// It is not sent after that if no caller waits for it: an acquire or extend whose round is over, a release
    /// whose key has expired.
    pointless_at: Instant,
    reply: Option<oneshot::Sender<Result<Answer, Failure>>>,
    /// If it is a release.
    room: Option<Room>,
}

/// The releases of one node, wherever they wait. Each counts until its call is dropped.
#[derive(Debug, Default)]
pub(super) struct Releases {
    count: AtomicUsize,
    key_bytes: AtomicUsize,
}

/// The room of one release.
#[derive(Debug)]
struct Room {
    releases: Arc<Releases>,
    key_bytes: usize,
}

/// Why a call has no answer.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) kind: NodeErrorKind,
    /// Whether the command may have reached the node.
    pub(crate) is_sent: bool,
}

/// How many releases may wait: more than a process has guards. Some hundred megabytes.
pub(super) const MAX_RELEASES: usize = 1 << 20;

/// And how long their keys may be together.
pub(super) const MAX_RELEASE_BYTES: usize = 256 << 20;

/// The place of an acquire among all that were handed to a node.
pub(crate) type AcquireNumber = u64;

/// What becomes of an acquire.
pub(super) enum Vote {
    Counts,
    /// The node must be asked who it is.
    Ask,
    Denied(Denial),
}

impl Failure {
    pub(crate) const fn unsent(kind: NodeErrorKind) -> Self {
        Self {
            kind,
            is_sent: false,
        }
    }

    pub(crate) const fn sent(kind: NodeErrorKind) -> Self {
        Self {
            kind,
            is_sent: true,
        }
    }
}

impl Call {
    /// `command` of a caller that waits for `node_timeout`. If it is a release, the key lives for `ttl` at most.
    pub(crate) fn new(command: &Command<'_>, node_timeout: Duration, ttl: Duration) -> Self {
        let lasts = match command.verb {
            Verb::Release => ttl,
            _ => node_timeout,
        };
        // Both are bounded: see `RedisNode`.
        let pointless_at = Instant::now() + lasts;
        Self {
            command: command.into(),
            script_call: ScriptCall::Hash,
            node_timeout,
            behind: None,
            pointless_at,
            reply: None,
            room: None,
        }
    }

    /// It is for the lock that the acquire with this number is for.
    pub(crate) const fn behind(mut self, acquire: Option<AcquireNumber>) -> Self {
        self.behind = acquire;
        self
    }

    /// The answer, once it is there.
    pub(super) fn answered(&mut self) -> oneshot::Receiver<Result<Answer, Failure>> {
        let (sender, receiver) = oneshot::channel();
        self.reply = Some(sender);
        receiver
    }

    pub(super) fn command(&self) -> Command<'_> {
        self.command.command()
    }

    pub(crate) const fn node_timeout(&self) -> Duration {
        self.node_timeout
    }

    /// What goes on the wire.
    pub(crate) fn cmd(&self) -> Cmd {
        words(self.command().arguments(self.script_call))
    }

    /// Whether it is sent, and what is to be known first, if it is an acquire.
    pub(super) fn vote(&self, admission: &Admission) -> Vote {
        let verb = self.command().verb;
        let now = SystemClock.now();
        let admitted = admission.check(verb, now);
        let is_outdated = admission.is_outdated(verb, &admitted, now);
        match admitted {
            // Nothing that the node could say ends its quarantine, and the acquire would leave a key there.
            Err(denial @ (Denial::Restarted { .. } | Denial::Evicted { .. })) => {
                Vote::Denied(denial)
            }
            _ if is_outdated => Vote::Ask,
            Ok(()) => Vote::Counts,
            Err(denial) => Vote::Denied(denial),
        }
    }

    /// Why the vote does not count after all if `answer` grants an acquire: what is known of the node may have
    /// changed since it was sent.
    pub(crate) fn late_denial(&self, answer: Answer, admission: &Admission) -> Option<Denial> {
        let command = self.command();
        if !matches!(command.reply(answer), Some(Ok(Reply::Acquired(_)))) {
            return None;
        }
        admission.check(command.verb, SystemClock.now()).err()
    }

    pub(crate) fn is_acquire(&self) -> bool {
        self.command().is_acquire()
    }

    /// Whether no caller waits for its answer any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Whether its caller has stopped waiting, and sending it is of no use any more.
    pub(crate) fn is_pointless(&self, now: Instant) -> bool {
        now >= self.pointless_at && self.is_abandoned()
    }

    pub(crate) fn is_release(&self) -> bool {
        self.command().is_release()
    }

    /// Sends the text of the script the next time; false if that was done already.
    pub(crate) fn send_script_text(&mut self) -> bool {
        mem::replace(&mut self.script_call, ScriptCall::Text) == ScriptCall::Hash
    }

    /// Answers the caller; a second answer is dropped.
    pub(crate) fn answer(&mut self, answer: Result<Answer, Failure>) {
        if let Some(reply) = self.reply.take() {
            // A caller that has left at the quorum does not need it.
            drop(reply.send(answer));
        }
    }
}

impl Releases {
    /// Whether there is room for `release`, which it has from now on.
    pub(super) fn admit(self: &Arc<Self>, release: &mut Call) -> bool {
        let key_bytes = release.command().key.len();
        let all_bytes = self.key_bytes.load(Ordering::Relaxed) + key_bytes;
        if self.count.load(Ordering::Relaxed) >= MAX_RELEASES || all_bytes > MAX_RELEASE_BYTES {
            return false;
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.key_bytes.fetch_add(key_bytes, Ordering::Relaxed);
        release.room = Some(Room {
            releases: Arc::clone(self),
            key_bytes,
        });
        true
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.releases.count.fetch_sub(1, Ordering::Relaxed);
        let key_bytes = &self.releases.key_bytes;
        key_bytes.fetch_sub(self.key_bytes, Ordering::Relaxed);
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
