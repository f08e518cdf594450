//! A connection for commands other than those of the lock.

use std::fmt;
use std::sync::Arc;

use redis::{Pipeline, Value};

use super::address::Address;
use redlock_core::Failure;

use super::error::NodeError;
use super::link::Link;
use super::replies::Size;

/// A connection to one node, for tools that send commands of their own.
///
/// It logs in, verifies certificates and limits data like the connections of [`Redlock`](crate::Redlock): if a node
/// sends more data than the replies can take, or unrequested data, the call that
/// notices it fails and closes the connection. Unrequested data that no call has noticed is taken for a reply: a hostile node can
/// answer what it likes. Calls have no timeout: set one around them.
pub struct Probe {
    name: Arc<str>,
    link: Link,
}

/// The replies to one call: several times the size of INFO.
const ANSWERS: Size = Size {
    bytes: 256 * 1024,
    values: 4_000,
};

impl Probe {
    /// Connects and logs in. Dropping the future closes the connection.
    ///
    /// # Errors
    ///
    /// If the node cannot be reached, refuses the login, or sends an unexpected reply.
    pub async fn connect(address: &Address) -> Result<Self, NodeError> {
        let name = Arc::clone(address.name());
        match Link::open(address).await {
            Ok(link) => Ok(Self { name, link }),
            Err(error) => Err(NodeError::new(name, Failure::Transport(error))),
        }
    }

    /// Sends `commands`, and returns a reply for each. A reply may be an error of the node. All replies together can be
    /// 256 KiB long with what frames them, and a little longer if there are many. Each can hold 4,000 values, the array itself among
    /// them, in up to four levels of arrays, sets or maps.
    /// After a command that subscribes to something, ask nothing more: messages are unrequested data.
    ///
    /// If the pipeline is atomic, the first reply is that to MULTI, and the last one that to EXEC, which has the results.
    ///
    /// Dropping the future does not cancel the commands. The next call sends what is not written yet, and discards their replies.
    ///
    /// # Errors
    ///
    /// If the connection breaks, or broke earlier, or if unrequested data is noticed.
    pub async fn ask(&mut self, commands: &Pipeline) -> Result<Vec<Value>, NodeError> {
        self.link.wire.grant(ANSWERS);
        // MULTI and EXEC.
        let more = if commands.is_transaction() { 2 } else { 0 };
        let (words, count) = (commands.get_packed_pipeline(), commands.len() + more);
        let answers = self.link.ask(&words, count).await;
        answers.map_err(|error| NodeError::new(Arc::clone(&self.name), Failure::Transport(error)))
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Probe").field(&self.name).finish()
    }
}
