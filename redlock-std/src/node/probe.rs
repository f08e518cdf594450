//! A connection for questions of another kind than the lock's.

use std::fmt;
use std::sync::Arc;

use redis::{Pipeline, Value};

use super::address::Address;
use super::error::NodeError;
use super::link::Link;

/// A connection to one node, for tools that look into nodes with questions of their own.
///
/// It logs in, verifies and bounds as the lock does: a node that sends more than the answers to what it was asked can
/// take, or anything unasked, costs its connection and nothing else. No call has a time limit of its own.
pub struct Probe {
    name: Arc<str>,
    link: Link,
}

/// For one question: all that INFO tells, several times over.
const ANSWER_BYTES: usize = 256 * 1024;

impl Probe {
    /// Connects and logs in. Dropped, there is no connection.
    ///
    /// # Errors
    ///
    /// When the node cannot be reached, does not let this user in, or sends what no node sends.
    pub async fn connect(address: &Address) -> Result<Self, NodeError> {
        let name = Arc::clone(address.name());
        match Link::open(address).await {
            Ok(link) => Ok(Self { name, link }),
            Err(kind) => Err(NodeError::new(name, kind)),
        }
    }

    /// A reply for each command, what the node refused among them. Together they may be 256 KiB long. A call that is dropped
    /// may have been carried out; its replies are dropped when they come.
    ///
    /// # Errors
    ///
    /// When the connection breaks, now or earlier.
    pub async fn ask(&mut self, commands: &Pipeline) -> Result<Vec<Value>, NodeError> {
        self.link.credit.grant_bytes(ANSWER_BYTES);
        let answers = self.link.ask(commands).await;
        answers.map_err(|kind| NodeError::new(Arc::clone(&self.name), kind))
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Probe").field(&self.name).finish()
    }
}
