//! The transport to one node.

use core::time::Duration;

use crate::command::Command;
use crate::denial::Denial;
use crate::node_info::RunId;
use crate::reply::Reply;

/// The link from one client to one node: sends a command and returns the reply.
///
/// # For callers
///
/// 1. Dropping the future of [`execute`] means *unknown*, never *no*: the command may still take
///    effect.
/// 2. The transport stays usable after that: the next call gets its own reply, never that of a
///    dropped call.
/// 3. Commands reach the node in the order of the calls for as long as the connection lives. A
///    release that is called after an acquire cannot overtake it.
/// 4. If the connection is up and has room, the first poll sends the whole command. To return at the
///    quorum, poll every node once and drop the calls that are late.
///
/// # For implementers
///
/// Keep the four promises above, and these:
///
/// 5. Keep state in the transport, never in the future: a dropped future loses neither unsent bytes
///    nor the count of outstanding replies.
/// 6. Never resend an acquire: a repeated `SET NX` would find its own key and report a refusal. A
///    release may be sent again.
/// 7. Wait no longer than the caller polls: timeouts belong to the round. If the node is known to be
///    down, return an error at once.
/// 8. Send every command of a key over one ordered connection per node. Use a new connection only if
///    the old one is known to be dead.
/// 9. An error says what happened and names the node, because it is printed unchanged. It never means
///    *no*: the round counts it as unknown.
/// 10. No data from the node may cause a panic, block the client or grow without bound.
/// 11. On every new connection, ask the node [who it is](crate::NodeInfo) before any command. Send an
///     acquire only if [`Admission::check`](crate::Admission::check) allows it.
///
/// [`execute`]: Transport::execute
#[expect(
    async_fn_in_trait,
    reason = "callers name concrete transports, so the compiler sees whether the future is Send"
)]
pub trait Transport {
    /// What failed, on which node.
    type Error: core::error::Error;

    /// Sends `command` and waits for its reply.
    ///
    /// # Errors
    ///
    /// Fails if the node cannot be reached, or if its answer is no reply to the command. The command may
    /// still have taken effect.
    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, Self::Error>;

    /// Returns the error that a round reports for this node if it stopped waiting for it after the time
    /// `after`.
    fn timed_out(&self, after: Duration) -> Self::Error;

    /// Returns the process that answers, see [`Admission::run_id`](crate::Admission::run_id). `None` if it is
    /// unknown. Two nodes of a lock that are one process have one vote.
    ///
    /// The default returns `None`.
    fn run_id(&self) -> Option<RunId> {
        None
    }

    /// Returns the error that a round reports for this node if it is the same process as `first`, another node
    /// of the lock. The default returns `None`.
    fn duplicate_of(&self, first: &Self) -> Option<Self::Error> {
        let _first = first;
        None
    }

    /// Returns the denial in `error`, or `None` if it is another error. A transport for fenced locks must
    /// implement this: the default returns `None`.
    fn denial(error: &Self::Error) -> Option<Denial> {
        let _error = error;
        None
    }
}

impl<T: Transport> Transport for &mut T {
    type Error = T::Error;

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, Self::Error> {
        T::execute(self, command).await
    }

    fn timed_out(&self, after: Duration) -> Self::Error {
        T::timed_out(self, after)
    }

    fn duplicate_of(&self, first: &Self) -> Option<Self::Error> {
        T::duplicate_of(self, first)
    }

    fn run_id(&self) -> Option<RunId> {
        T::run_id(self)
    }

    fn denial(error: &Self::Error) -> Option<Denial> {
        T::denial(error)
    }
}
