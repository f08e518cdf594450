//! A command for one node, with the channel for its answer.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redlock_core::Denial;
use redlock_core::transport::{Admission, Answer, Command, Reply, ScriptCall, Verb};
use tokio::sync::oneshot;

use super::error::Failure;
use super::order::Order;
use super::stop::Stop;

/// A command, with the channel for its answer.
#[derive(Debug)]
pub(crate) struct Call {
    order: Order,
    script_call: ScriptCall,
    /// How long its caller waits for the node.
    node_timeout: Duration,
    /// The number of the acquire with the same token, if it is known; its own number if this is an acquire.
    pub(super) behind: Option<AcquireNumber>,
    /// Whether the queue treats it like a release: it is one, or it takes the place of one.
    is_release: bool,
    /// Its own number if this is an extension. The first one has number one.
    pub(super) extend: u64,
    /// After this time the command is not sent if no caller waits for it: the round of an acquire or extend is over, or
    /// the key of a release has expired.
    pointless_at: Instant,
    /// If it is a release: for how long its key lives after the node has executed the acquire.
    ttl: Duration,
    /// Whether it was written to a connection.
    is_written: bool,
    /// If it takes the place of a release: since when its time counts.
    rest_since: Option<Instant>,
    reply: Option<oneshot::Sender<Result<Answer, CallError>>>,
    /// Ends the commands of the caller.
    stop: Option<Stop>,
    /// `Some` if it is a release that has room.
    room: Option<Room>,
}

/// The releases of one node, wherever they wait. Each counts until its call is dropped.
#[derive(Debug, Default)]
pub(super) struct Releases {
    /// The number of releases is the number of the other references to this value.
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
pub(crate) struct CallError {
    pub(crate) failure: Failure,
    /// Whether the command may have reached the node.
    pub(crate) is_sent: bool,
}

/// The largest number of waiting releases: more than a process has guards, some hundred megabytes.
pub(super) const MAX_RELEASES: usize = 1 << 20;

/// The largest total length of their keys.
pub(super) const MAX_RELEASE_BYTES: usize = 256 << 20;

/// For how long an acquire may be on its way: a node that was stopped, or a network that was interrupted, may deliver what was written
/// before. TCP tries for about a quarter of an hour.
const OVERDUE: Duration = Duration::from_secs(15 * 60);

/// The number of an acquire in the order of queueing for one node.
pub(crate) type AcquireNumber = u64;

/// Whether a call is sent.
pub(super) enum Vote {
    Counts,
    /// The call is sent, but the node is asked for its identity first.
    Ask,
    Denied(Denial),
}

impl CallError {
    pub(crate) const fn unsent(failure: Failure) -> Self {
        Self {
            failure,
            is_sent: false,
        }
    }

    pub(crate) const fn sent(failure: Failure) -> Self {
        Self {
            failure,
            is_sent: true,
        }
    }
}

impl Call {
    /// A call of a caller that waits for `node_timeout`. If it is a release, the key lives for `ttl` at most after its acquire.
    pub(crate) fn new(order: impl Into<Order>, node_timeout: Duration, ttl: Duration) -> Self {
        let order = order.into();
        let command = order.command();
        let lasts = match command.verb {
            Verb::Release => ttl.saturating_add(OVERDUE),
            _ => node_timeout,
        };
        // Both are bounded by `RedisNode`.
        let pointless_at = Instant::now() + lasts;
        Self {
            script_call: ScriptCall::Hash,
            node_timeout,
            behind: None,
            is_release: command.is_release(),
            extend: 0,
            pointless_at,
            ttl,
            is_written: false,
            rest_since: None,
            reply: None,
            stop: None,
            room: None,
            order,
        }
    }

    /// Has the queue treat the call like a release: with [`Options::min_hold`](redlock_core::Options::min_hold), the end of a lease is
    /// an extension. The key lives for `ttl` at most without it.
    pub(crate) fn in_place_of_a_release(mut self, ttl: Duration) -> Self {
        let now = Instant::now();
        self.is_release = true;
        self.rest_since = Some(now);
        self.pointless_at = now + ttl.saturating_add(OVERDUE);
        self.ttl = ttl;
        self
    }

    /// Queues the call behind the acquire with this number, which is for the same lock.
    pub(crate) const fn behind(mut self, acquire: Option<AcquireNumber>) -> Self {
        self.behind = acquire;
        self
    }

    /// Lets `stop` end the call before it is queued.
    pub(crate) fn until(mut self, stop: Option<Stop>) -> Self {
        self.stop = stop;
        self
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(Stop::is_set)
    }

    /// Returns the receiver of the answer.
    pub(super) fn answered(&mut self) -> oneshot::Receiver<Result<Answer, CallError>> {
        let (sender, receiver) = oneshot::channel();
        self.reply = Some(sender);
        receiver
    }

    pub(super) fn command(&self) -> Command<'_> {
        self.order.command()
    }

    pub(crate) const fn node_timeout(&self) -> Duration {
        self.node_timeout
    }

    /// Appends the command as it is sent.
    pub(crate) fn append_to(&self, bytes: &mut Vec<u8>) {
        self.order.append_to(self.script_call, bytes);
    }

    /// Whether the call is sent, and whether the node is asked for its identity first.
    pub(super) fn vote(&self, admission: &Admission, now: redlock_core::Instant) -> Vote {
        let verb = self.command().verb;
        let admitted = admission.check(verb, now);
        let is_outdated = admission.is_outdated(verb, &admitted, now);
        match admitted {
            _ if is_outdated => Vote::Ask,
            Ok(()) => Vote::Counts,
            Err(denial) => Vote::Denied(denial),
        }
    }

    /// Returns why the vote does not count although `answer` grants an acquire or an extend, if so. What is known about the
    /// node may have changed since the command was sent.
    pub(crate) fn late_denial(
        &self,
        answer: Answer,
        admission: &Admission,
        now: redlock_core::Instant,
    ) -> Option<Denial> {
        let command = self.command();
        let is_granted = matches!(
            command.reply(answer),
            Some(Ok(Reply::Acquired(_) | Reply::Extended(_)))
        );
        if !is_granted {
            return None;
        }
        admission.check(command.verb, now).err()
    }

    pub(crate) fn is_acquire(&self) -> bool {
        self.command().is_acquire()
    }

    /// Whether no caller waits for the answer any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.is_stopped() || self.reply.as_ref().is_none_or(oneshot::Sender::is_closed)
    }

    /// Whether the call need not be sent: it is too late, and its caller has stopped waiting.
    pub(crate) fn is_pointless(&self, now: Instant) -> bool {
        now >= self.pointless_at && self.is_abandoned()
    }

    /// Notes that the call is about to be written. If it is a release that was written before, the node has executed its acquire by
    /// now, or takes it with this: so its key lives for its TTL from now on, at most, and a node that takes commands and never
    /// answers does not keep the release for longer.
    pub(crate) fn write(&mut self) {
        if self.is_written && self.is_release {
            self.pointless_at = self.pointless_at.min(Instant::now() + self.ttl);
        }
        self.is_written = true;
        self.shorten_rest();
    }

    /// An extension that takes the place of a release, and is written late or again, is for the time that is left. The node may have
    /// executed it before, and only its answer was lost.
    fn shorten_rest(&mut self) {
        let command = self.command();
        let (Some(since), Verb::Keep { rest_ms }) = (self.rest_since, command.verb) else {
            return;
        };
        let passed_ms = u32::try_from(since.elapsed().as_millis()).unwrap_or(u32::MAX);
        let left_ms = rest_ms.saturating_sub(passed_ms).max(1);
        let shorter = Command::keep(command.key, command.token, left_ms);
        let shorter = (&shorter.with_proposal(command.proposal)).into();
        self.order = shorter;
        // Only whole milliseconds are taken off: the key lives no shorter than it must.
        self.rest_since = Some(since + Duration::from_millis(passed_ms.into()));
    }

    /// Whether this is a release, or takes the place of one.
    pub(crate) const fn is_release(&self) -> bool {
        self.is_release
    }

    /// Sends the text of the script next time. Returns `false` if it was sent already.
    ///
    /// An acquire or an extend is then sent only while its caller waits for it. When the caller has stopped, the release may have been
    /// sent before: it would not delete the key of the acquire, and with [`Options::min_hold`](redlock_core::Options::min_hold), the
    /// extend would let the key expire earlier.
    pub(crate) fn send_script_text(&mut self) -> bool {
        if !self.is_release() {
            self.pointless_at = Instant::now();
        }
        mem::replace(&mut self.script_call, ScriptCall::Text) == ScriptCall::Hash
    }

    pub(crate) fn has_place(&self) -> bool {
        self.command().place.is_some()
    }

    /// Sends the command without its place in a line next time. Returns `false` if it has none.
    pub(crate) fn leave_line(&mut self) -> bool {
        let command = self.command();
        if command.place.is_none() {
            return false;
        }
        let without = (&command.with_place(None)).into();
        self.order = without;
        self.script_call = ScriptCall::Hash;
        true
    }

    /// Answers the caller. A second answer is ignored.
    pub(crate) fn answer(&mut self, answer: Result<Answer, CallError>) {
        if let Some(reply) = self.reply.take() {
            // If the caller's round ended at its quorum, the answer is not needed.
            drop(reply.send(answer));
        }
    }
}

impl Releases {
    /// Reserves room for `release`. Returns `false` if there is no room.
    pub(super) fn admit(self: &Arc<Self>, release: &mut Call) -> bool {
        let key_bytes = release.command().key.len();
        let all_bytes = self.key_bytes.load(Ordering::Relaxed) + key_bytes;
        if Arc::strong_count(self) > MAX_RELEASES || all_bytes > MAX_RELEASE_BYTES {
            return false;
        }
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
        let key_bytes = &self.releases.key_bytes;
        key_bytes.fetch_sub(self.key_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use redlock_core::Token;

    use super::*;

    /// With `min_hold`. The node may have executed it before, and its answer was lost.
    #[test]
    fn an_extension_in_place_of_a_release_that_is_written_late_or_again_is_for_the_time_that_is_left()
     {
        let second = Duration::from_secs(1);
        let token = Token::from_bytes([1; Token::LEN]);
        let rest = Command::keep(b"dock-7", &token, 6_000);
        let mut call = Call::new(&rest, second, second).in_place_of_a_release(second);
        for (passed, left_ms) in [(2, 3_000..=4_000), (3, 1..=1_000), (5, 1..=1)] {
            let since = call.rest_since.unwrap();
            call.rest_since = Some(since.checked_sub(second * passed).unwrap());
            call.write();
            let Verb::Keep { rest_ms } = call.command().verb else {
                panic!("it keeps the key");
            };
            // What the test itself takes is taken off too.
            assert!(left_ms.contains(&rest_ms), "{rest_ms}");
        }
    }
}
