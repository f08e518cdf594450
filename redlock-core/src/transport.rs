//! The way to one node.

use core::time::Duration;

use crate::command::Command;
use crate::denial::Denial;
use crate::node_info::RunId;
use crate::reply::Reply;

/// One node, as seen by one client: takes a command there and brings the reply back.
///
/// # For callers
///
/// 1. Dropping the future of [`execute`] means *unknown*, never *no*: the command may still take
///    effect.
/// 2. The transport stays usable after that: the next call gets its own reply, never an abandoned
///    one.
/// 3. Commands reach the node in the order of the calls for as long as the connection lives. A
///    release that is called after an acquire cannot overtake it.
/// 4. The first poll hands over: if the connection is up and has room, the whole command leaves with
///    the first poll. To leave at the quorum, poll every node once and drop what is late.
///
/// # For implementers
///
/// You keep the four promises above, and these:
///
/// 5. State lives in the transport, never in the future: a dropped future loses neither unsent bytes
///    nor the count of the replies that are still owed.
/// 6. Never resend an acquire: a repeated `SET NX` would find its own key and report a refusal. A
///    release may be sent again.
/// 7. Do not wait for longer than the caller polls: time-outs belong to the round. A node that is
///    known to be down is an error at once.
/// 8. Every command of a key goes over one ordered connection per node; a new connection is used only
///    when the old one is known to be dead.
/// 9. An error says what happened and names the node, for it is printed as it is. It never means
///    *no*: the round counts it as unknown.
/// 10. Nothing that the node sends may panic, block or grow without bound.
/// 11. On every new connection the node is asked [who it is](crate::NodeInfo), before any command,
///     and an acquire is sent only when [`Admission::check`](crate::Admission::check) lets it.
///
/// [`execute`]: Transport::execute
#[expect(
    async_fn_in_trait,
    reason = "callers name concrete transports, so the compiler sees whether the future is Send"
)]
pub trait Transport {
    /// What went wrong, on which node.
    type Error: core::error::Error;

    /// Sends `command` and waits for its reply.
    ///
    /// # Errors
    ///
    /// When the node could not be reached or its answer is no reply to the command. The command may
    /// have taken effect all the same.
    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, Self::Error>;

    /// The error that stands for this node in the outcome of a round that stopped waiting for it
    /// `after` so long.
    fn timed_out(&self, after: Duration) -> Self::Error;

    /// The process that answers, as far as it is known: [`Admission::run_id`](crate::Admission::run_id).
    /// Two nodes of a lock that are one process have one vote.
    ///
    /// Never known unless a transport says so.
    fn run_id(&self) -> Option<RunId> {
        None
    }

    /// The error that stands for this node because it is the same process as `first`, another node of the
    /// lock.
    fn duplicate_of(&self, first: &Self) -> Option<Self::Error> {
        let _first = first;
        None
    }

    /// The denial that `error` stands for. A transport for fenced locks must tell.
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
