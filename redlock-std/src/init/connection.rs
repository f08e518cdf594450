//! A node, and a connection for commands to it.

use core::time::Duration;
use std::sync::Arc;

use crate::node::{Address, NodeError, Probe, printable, without_arguments};
use crate::{ConnectError, MAX_NODES};
use redis::{Pipeline, ServerError, Value};
use redlock_core::BuildError;
use tokio::time::timeout;

use super::duration;

/// A node for commands that are not those of a lock.
#[derive(Debug, Clone)]
pub struct Node {
    address: Arc<Address>,
    patience: Duration,
}

impl Node {
    /// Returns the nodes at these addresses. Refuses what a lock refuses: two nodes with one name, and too many nodes.
    pub fn fleet(
        addresses: impl IntoIterator<Item = Result<Address, ConnectError>>,
        patience: Duration,
    ) -> Result<Vec<Self>, ConnectError> {
        let mut nodes: Vec<Self> = Vec::new();
        for address in addresses {
            let node = Self::new(address?, patience);
            if nodes.iter().any(|other| other.name() == node.name()) {
                let node = node.name().to_owned();
                return Err(ConnectError::DuplicateNode { node });
            }
            nodes.push(node);
        }
        match nodes.len() {
            0 => Err(BuildError::NoNode.into()),
            1..=MAX_NODES => Ok(nodes),
            _ => Err(BuildError::TooManyNodes { max: MAX_NODES }.into()),
        }
    }

    fn new(address: Address, patience: Duration) -> Self {
        Self {
            address: Arc::new(address),
            patience,
        }
    }

    /// Its address, without the password.
    pub fn name(&self) -> &str {
        self.address.name()
    }

    /// The number of its database.
    pub fn database(&self) -> i64 {
        self.address.database()
    }

    /// Connects and logs in, within the timeout of the node.
    pub async fn connect(&self) -> Result<Connection, String> {
        match timeout(self.patience, Probe::connect(&self.address)).await {
            Ok(Ok(probe)) => Ok(Connection {
                probe,
                patience: self.patience,
            }),
            Ok(Err(error)) => Err(reason(&error)),
            Err(_elapsed) => Err(format!(
                "no connection within {}",
                duration::in_words(self.patience)
            )),
        }
    }
}

/// A connection to a node.
#[derive(Debug)]
pub struct Connection {
    probe: Probe,
    patience: Duration,
}

impl Connection {
    /// Returns a reply for each command, which may be an error. Returns `Err` if the node does not answer in time.
    pub async fn ask(&mut self, commands: &Pipeline) -> Result<Vec<Value>, String> {
        match timeout(self.patience, self.probe.ask(commands)).await {
            Ok(replies) => replies.map_err(|error| reason(&error)),
            Err(_elapsed) => Err(format!(
                "no answer within {}",
                duration::in_words(self.patience)
            )),
        }
    }
}

/// The text of an error reply, in one line.
pub fn in_words(error: &ServerError) -> String {
    let words = match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    };
    let words = one_line(without_arguments(&words));
    // Redis 7.0 says only that something in the script is forbidden, not what.
    if words.contains("The user executing the script") {
        return format!("{words}; redlock doctor says which");
    }
    words
}

/// The text of a reply, in any of its forms, escaped for printing.
pub fn text(reply: &Value) -> Option<String> {
    raw_text(reply).map(|text| printable(&text))
}

pub fn raw_text(reply: &Value) -> Option<String> {
    match reply {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

fn reason(error: &NodeError) -> String {
    one_line(&error.failure().to_string())
}

/// In one line without a full stop, to be a part of another message.
fn one_line(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    printable(words.join(" ").trim_end_matches('.'))
}

/// Asks all of `nodes` at once, so that a silent node does not delay the others.
pub async fn each<N, T, F>(nodes: impl IntoIterator<Item = N>, ask: impl Fn(N) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let tasks: Vec<_> = nodes
        .into_iter()
        .map(|node| tokio::spawn(ask(node)))
        .collect();
    let mut answers = Vec::new();
    for task in tasks {
        match task.await {
            Ok(answer) => answers.push(answer),
            // A panic in the task panics here. It is cancelled only if the runtime shuts down, and this task with it.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    answers
}
