//! One Redis or Valkey server, as a transport.

mod actor;
mod address;
mod error;
mod link;
mod queue;

use std::sync::Arc;
use std::time::Duration;

use redlock_core::{Command, Reply, Token, Transport};
use tokio::runtime::Handle;

pub(crate) use actor::Actor;
pub use address::Address;
pub use error::{NodeError, NodeErrorKind};
use queue::{Call, Queue};

/// A handle on one node: cheap to clone, any number of them share one connection.
///
/// Commands are put into the node's queue before anything is awaited, so all handles speak in the
/// order in which they were called, and dropping a future unsends nothing. A task of its own sends
/// what is queued, as one pipeline, and keeps the connection: it connects at once, again when the
/// connection breaks or stays silent, and ends with the last handle.
#[derive(Debug, Clone)]
pub struct RedisNode {
    owner: Arc<Owner>,
    /// The token of an acquire that never left this machine: there is nothing to release.
    unsent: Option<Token>,
}

#[derive(Debug)]
struct Owner {
    queue: Arc<Queue>,
}

impl RedisNode {
    /// A node at `url`, on the current tokio runtime. `node_timeout` is how long its users wait for
    /// it; a node that is silent for several times that is left out until it speaks again.
    ///
    /// # Errors
    ///
    /// When the URL is not one of a Redis node, or there is no runtime.
    pub fn connect(url: &str, node_timeout: Duration) -> Result<Self, crate::ConnectError> {
        let runtime = Handle::try_current().map_err(|_| crate::ConnectError::NoRuntime)?;
        let (node, actor) = Self::prepare(Address::parse(url)?, node_timeout);
        runtime.spawn(actor.run());
        Ok(node)
    }

    /// The node, and the task that it needs.
    pub(crate) fn prepare(address: Address, node_timeout: Duration) -> (Self, Actor) {
        let queue = Arc::new(Queue::new(Arc::clone(address.name())));
        let node = Self {
            owner: Arc::new(Owner {
                queue: Arc::clone(&queue),
            }),
            unsent: None,
        };
        (node, Actor::new(address, queue, node_timeout))
    }

    /// Where the node is, without its password: `host:port`, or the path of its socket.
    #[must_use]
    pub fn name(&self) -> &str {
        self.owner.queue.name()
    }

    /// Hands the node a release, and lets nobody wait for the reply.
    pub(crate) fn release_unattended(&self, key: &[u8], token: &Token) {
        if self.unsent.as_ref() != Some(token) {
            self.owner
                .queue
                .push_unattended(Call::new(&Command::Release { key, token }));
        }
    }
}

impl Transport for RedisNode {
    type Error = NodeError;

    async fn execute(&mut self, command: &Command<'_>) -> Result<Reply, NodeError> {
        let queue = &self.owner.queue;
        if let Command::Release { token, .. } = command
            && self.unsent.as_ref() == Some(*token)
        {
            return Ok(Reply::NotMine);
        }
        let answer = match queue.push(Call::new(command)) {
            Ok(answer) => answer,
            Err(kind) => {
                if let Command::Acquire { token, .. } = command {
                    self.unsent = Some(**token);
                }
                return Err(queue.error(kind));
            }
        };
        let answer = match answer.await {
            Ok(result) => result.map_err(|kind| queue.error(kind))?,
            Err(_gone) => return Err(queue.error(NodeErrorKind::Disconnected)),
        };
        let unexpected = || queue.error(NodeErrorKind::Unexpected);
        command.reply(answer).ok_or_else(unexpected)
    }

    fn timed_out(&self, after: Duration) -> NodeError {
        self.owner.queue.error(NodeErrorKind::TimedOut(after))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.queue.close();
    }
}
