//! One node of a handle: a server, or a node in memory.

use std::sync::Arc;
use std::time::Duration;

use redlock_core::transport::{Call, Command, Mailbox, Reply, RunId};
use redlock_core::{Options, Token, Transport};

#[cfg(feature = "mock")]
use crate::memory::MemoryClient;
use crate::node::{NodeError, NodeStatus, RedisNode, Stop, TransportError, Wanted};

/// A node of a handle, as one operation uses it.
#[derive(Debug, Clone)]
pub(crate) enum Member {
    Redis(RedisNode),
    #[cfg(feature = "mock")]
    Memory(MemoryClient),
}

/// What a [`RedisNode`] can do beside executing commands. A node in memory has no queue and no second connection: a command is sent
/// when its future is polled first, and calls always arrive.
impl Member {
    pub(crate) fn warnings(&self) -> Vec<NodeError> {
        match self {
            Self::Redis(node) => node.warnings(),
            #[cfg(feature = "mock")]
            Self::Memory(node) => node.warnings(),
        }
    }

    pub(crate) fn status(&self, options: &Options) -> NodeStatus {
        match self {
            Self::Redis(node) => node.status(options),
            #[cfg(feature = "mock")]
            Self::Memory(node) => node.status(),
        }
    }

    /// Records that a lease was adopted: the node may have its key, also if this process has never been connected to it.
    pub(crate) fn adopted(&self) {
        match self {
            Self::Redis(node) => node.adopted(),
            // It is always connected.
            #[cfg(feature = "mock")]
            Self::Memory(_) => {}
        }
    }

    pub(crate) fn unanswered_releases(&self) -> usize {
        match self {
            Self::Redis(node) => node.unanswered_releases(),
            #[cfg(feature = "mock")]
            Self::Memory(node) => node.unanswered_releases(),
        }
    }

    pub(crate) fn releases_to_wait_for(&self) -> usize {
        match self {
            Self::Redis(node) => node.releases_to_wait_for(),
            #[cfg(feature = "mock")]
            Self::Memory(node) => node.releases_to_wait_for(),
        }
    }

    pub(crate) fn has_granted(&self, token: &Token) -> bool {
        match self {
            Self::Redis(node) => node.has_granted(token),
            #[cfg(feature = "mock")]
            Self::Memory(node) => node.has_granted(token),
        }
    }

    pub(crate) fn set_node_timeout(&mut self, node_timeout: Duration) {
        match self {
            Self::Redis(node) => node.set_node_timeout(node_timeout),
            #[cfg(feature = "mock")]
            Self::Memory(_) => {}
        }
    }

    /// Lets `stop` end the commands of this handle.
    pub(crate) fn set_stop(&mut self, stop: Option<&Stop>) {
        match self {
            Self::Redis(node) => node.set_stop(stop),
            #[cfg(feature = "mock")]
            Self::Memory(node) => node.set_stop(stop),
        }
    }

    pub(crate) fn release_unattended(&self, release: &Command<'_>) {
        match self {
            Self::Redis(node) => node.release_unattended(release),
            #[cfg(feature = "mock")]
            Self::Memory(node) => node.release_unattended(release),
        }
    }

    pub(crate) fn has_sent(&self) -> bool {
        match self {
            Self::Redis(node) => node.has_sent(),
            #[cfg(feature = "mock")]
            Self::Memory(_) => true,
        }
    }

    pub(crate) fn last_extend(&self) -> u64 {
        match self {
            Self::Redis(node) => node.last_extend(),
            #[cfg(feature = "mock")]
            Self::Memory(_) => 0,
        }
    }

    pub(crate) fn has_sent_extend(&self, extend: u64) -> bool {
        match self {
            Self::Redis(node) => node.has_sent_extend(extend),
            #[cfg(feature = "mock")]
            Self::Memory(_) => true,
        }
    }

    pub(crate) fn is_promising(&self) -> bool {
        match self {
            Self::Redis(node) => node.is_promising(),
            #[cfg(feature = "mock")]
            Self::Memory(_) => false,
        }
    }

    #[cfg(feature = "probe")]
    pub(crate) fn owes_calls(&self) -> bool {
        match self {
            Self::Redis(node) => node.owes_calls(),
            #[cfg(feature = "mock")]
            Self::Memory(node) => node.given_up() > 0,
        }
    }

    /// Waits until the first connect has ended, in whichever way.
    pub(crate) async fn first_connect(&self) {
        match self {
            Self::Redis(node) => node.first_connect().await,
            // It is always connected.
            #[cfg(feature = "mock")]
            Self::Memory(_) => {}
        }
    }

    pub(crate) fn want_mail(&self) {
        match self {
            Self::Redis(node) => node.want_mail(),
            #[cfg(feature = "mock")]
            Self::Memory(_) => {}
        }
    }

    pub(crate) async fn open_mail(&self) {
        match self {
            Self::Redis(node) => node.open_mail().await,
            #[cfg(feature = "mock")]
            Self::Memory(_) => {}
        }
    }

    pub(crate) fn keeps_line(&self) -> bool {
        match self {
            Self::Redis(node) => node.keeps_line(),
            #[cfg(feature = "mock")]
            Self::Memory(_) => true,
        }
    }

    pub(crate) fn want(&mut self, wanted: Arc<Wanted>, ticket: Option<u64>) {
        match self {
            Self::Redis(node) => node.want(wanted, ticket),
            #[cfg(feature = "mock")]
            Self::Memory(node) => node.want(wanted, ticket),
        }
    }

    pub(crate) fn end_wait(&mut self) {
        match self {
            Self::Redis(node) => node.end_wait(),
            #[cfg(feature = "mock")]
            Self::Memory(node) => node.end_wait(),
        }
    }
}

impl Transport for Member {
    type Name = Arc<str>;
    type Error = TransportError;

    const DOUBTS_ADDRESSES: bool = true;

    fn name(&self) -> Arc<str> {
        match self {
            Self::Redis(node) => Transport::name(node),
            #[cfg(feature = "mock")]
            Self::Memory(node) => node.name(),
        }
    }

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeError> {
        match self {
            Self::Redis(node) => node.execute(command).await,
            #[cfg(feature = "mock")]
            // Boxed, so that the feature does not enlarge the futures of servers.
            Self::Memory(node) => Box::pin(node.execute(command)).await,
        }
    }

    fn run_id(&self) -> Option<RunId> {
        match self {
            Self::Redis(node) => node.run_id(),
            #[cfg(feature = "mock")]
            Self::Memory(node) => node.run_id(),
        }
    }

    fn doubt_address(&mut self) {
        match self {
            Self::Redis(node) => node.doubt_address(),
            // It has no address.
            #[cfg(feature = "mock")]
            Self::Memory(_) => {}
        }
    }

    fn mailbox(&self) -> Option<Mailbox> {
        match self {
            Self::Redis(node) => node.mailbox(),
            #[cfg(feature = "mock")]
            Self::Memory(node) => Some(node.mailbox()),
        }
    }

    async fn called(&mut self, key: &[u8]) -> Call {
        match self {
            Self::Redis(node) => node.called(key).await,
            #[cfg(feature = "mock")]
            Self::Memory(node) => Box::pin(node.called(key)).await,
        }
    }

    fn explain_timeout(&self, after: Duration) -> Option<TransportError> {
        match self {
            Self::Redis(node) => node.explain_timeout(after),
            #[cfg(feature = "mock")]
            Self::Memory(_) => None,
        }
    }
}
