//! The trait of a transport to the nodes, and the types that a transport handles. An application that uses the transports of
//! `redlock-std` or `redlock-embassy` does not need this module.

use core::fmt;
use core::future::pending;
use core::time::Duration;

use crate::failure::NodeError;

pub use crate::admission::Admission;
pub use crate::command::{Command, Verb};
pub use crate::fence::{Proposal, Reading};
pub use crate::line::{Call, LineWord, Mailbox, Place, Position, Refusal, Waiters};
pub use crate::node_info::{NodeInfo, ReplicationId, RunId};
pub use crate::owned::OwnedCommand;
pub use crate::reply::Reply;
pub use crate::vote_conditions::VoteConditions;
pub use crate::wire::{Answer, Argument, Arguments, Script, ScriptCall};

/// The link from one client to one node: sends a command and returns the reply.
///
/// # For callers
///
/// 1. If the future of [`execute`] is dropped, the vote is *unknown*, never *no*: the command may still take effect.
/// 2. The transport stays usable after that: the next call gets its own reply, never the reply to a dropped call.
/// 3. Commands reach the node in the order of the calls while the connection lives. A release that is called after an
///    acquire cannot overtake it.
/// 4. If the connection is up and has room, the first poll sends the whole command. To return at the quorum, poll every
///    node once, then drop the calls that are late.
///
/// # For implementers
///
/// Keep the four promises above, and these:
///
/// 5. Keep the state in the transport, never in the future: a dropped future must lose no unsent bytes, and must not lose
///    the count of outstanding replies.
/// 6. Never send an acquire again: the second `SET NX` would find the key of the first and report a refusal. A release may
///    be sent again.
/// 7. Wait only while the caller polls: the timeout belongs to the round, which drops the call. If the node is known to be
///    down, return an error at once.
/// 8. Send every command of a key over one ordered connection per node. Use a new connection only if the old one is known
///    to be dead.
/// 9. An error tells what happened and names the node, because it is printed unchanged. It never means *no*: the round
///    counts it as unknown.
/// 10. No data from the node may cause a panic, block the client or grow without bound.
/// 11. On every new connection, ask the node for its [identity](crate::transport::NodeInfo) before any command. Send an
///     acquire only if [`Admission::check`](crate::transport::Admission::check) returns `Ok`.
///
/// [`execute`]: Transport::execute
#[expect(
    async_fn_in_trait,
    reason = "callers name concrete transports, so the compiler sees whether the future is Send"
)]
pub trait Transport {
    /// The name of a node in messages, for instance its address.
    type Name: Clone + fmt::Debug + fmt::Display;

    /// The error of the transport itself. It is in [`Failure::Transport`](crate::Failure::Transport).
    type Error: core::error::Error;

    /// Whether [`doubt_address`](Self::doubt_address) does anything. If not, the lock does not look for a reason to call it, which takes
    /// flash. Default: `false`.
    const DOUBTS_ADDRESSES: bool = false;

    /// Returns the name of the node.
    fn name(&self) -> Self::Name;

    /// Sends `command` and waits for its reply.
    ///
    /// # Errors
    ///
    /// - [`Failure::Denied`](crate::Failure::Denied) if the node has no vote.
    /// - [`Failure::NothingToRelease`](crate::Failure::NothingToRelease) if the command is a release whose acquire was never sent.
    ///   A transport that does not know this sends the release.
    /// - [`Failure::Transport`](crate::Failure::Transport) if the node cannot be reached, or if its answer is no reply to the
    ///   command. The command may still have taken effect.
    async fn execute(
        &mut self,
        command: &Command<'_>,
    ) -> Result<Reply, NodeError<Self::Name, Self::Error>>;

    /// Returns the process of the node, see [`Admission::run_id`](crate::transport::Admission::run_id). `None` if it is
    /// unknown. If two nodes of a lock are one process, they have one vote.
    ///
    /// The default returns `None`.
    fn run_id(&self) -> Option<RunId> {
        None
    }

    /// Learns that a lock could not be acquired or extended, and that the node is the same process as another node of the lock: maybe not
    /// the one that is meant. If the address of the node is a name, this may lead elsewhere by now. So a transport connects anew before one of its
    /// next commands, unless it has connected only some seconds ago.
    ///
    /// It is called only if [`DOUBTS_ADDRESSES`](Self::DOUBTS_ADDRESSES) is set. The default does nothing.
    fn doubt_address(&mut self) {}

    /// Returns the mailbox under which this client stands in the waiting lines of the node. It is marked as `uncallable` if the
    /// node cannot call the client: the connection has not subscribed to the channel of the mailbox. `None` if the node can
    /// keep no line for this client, for example because its ACL user lacks a permission. If one
    /// of its nodes keeps no line for it, a client polls.
    ///
    /// All nodes of a client return the same mailbox, but for the mark. Clients that wait for the same key at the same time
    /// have different mailboxes.
    ///
    /// A transport that returns a mailbox sends each command as [`Command::at_node`](crate::transport::Command::at_node) makes
    /// it, with the mailbox that is valid on the connection at this time.
    ///
    /// The default returns `None`.
    fn mailbox(&self) -> Option<Mailbox> {
        None
    }

    /// Waits until the node calls this client for `key`. Returns each call once, in the order in which they arrived. If the
    /// future is dropped, no call is lost: the next future of this key returns it.
    ///
    /// A call counts only if it came behind the node's reply to the last acquire of `key`: when this reply arrives, the
    /// transport forgets the earlier calls for `key`. The reply may be one that no caller waits for any more. After a new
    /// connection has subscribed, the transport returns [`Call::Reconnected`] once.
    ///
    /// A transport keeps calls only for keys for which the client waits. A client for which a call comes that it does not
    /// wait for leaves the line: it sends a release with [`Place::left`](crate::transport::Place).
    ///
    /// The default waits for ever.
    async fn called(&mut self, key: &[u8]) -> Call {
        let _key = key;
        pending().await
    }

    /// Returns why the node has not answered a round, which stopped waiting for it after the time `after`. `None` if the
    /// transport does not know why. The round then reports [`Failure::TimedOut`](crate::Failure::TimedOut).
    ///
    /// Only the transport knows the cause of a timeout, and different causes need different remedies. For instance, the
    /// command may still wait for a connection. The default returns `None`.
    fn explain_timeout(&self, after: Duration) -> Option<Self::Error> {
        let _after = after;
        None
    }
}

/// The error of a node whose transport is `T`.
pub type NodeErrorOf<T> = NodeError<<T as Transport>::Name, <T as Transport>::Error>;

// Forwards the methods with a default too: otherwise a reference would use the default, not the method of `T`. The methods return
// the futures of `T`: an `async fn` would wrap them in others, which take memory and flash for each node.
impl<T: Transport> Transport for &mut T {
    type Name = T::Name;
    type Error = T::Error;

    const DOUBTS_ADDRESSES: bool = T::DOUBTS_ADDRESSES;

    fn name(&self) -> Self::Name {
        T::name(self)
    }

    fn execute(
        &mut self,
        command: &Command<'_>,
    ) -> impl Future<Output = Result<Reply, NodeErrorOf<T>>> {
        T::execute(self, command)
    }

    fn run_id(&self) -> Option<RunId> {
        T::run_id(self)
    }

    fn doubt_address(&mut self) {
        T::doubt_address(self);
    }

    fn mailbox(&self) -> Option<Mailbox> {
        T::mailbox(self)
    }

    fn called(&mut self, key: &[u8]) -> impl Future<Output = Call> {
        T::called(self, key)
    }

    fn explain_timeout(&self, after: Duration) -> Option<Self::Error> {
        T::explain_timeout(self, after)
    }
}
