//! A node, and a connection for commands to it.

use core::time::Duration;
use std::sync::Arc;

use redis::{Pipeline, ServerError, Value};
use redlock_std::{Address, NodeError, Probe, printable};
use tokio::time::timeout;

use crate::duration;

/// A node of the command line.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    address: Arc<Address>,
    patience: Duration,
}

impl Node {
    pub(super) fn new(address: Address, patience: Duration) -> Self {
        Self {
            address: Arc::new(address),
            patience,
        }
    }

    /// Its address, without the password.
    pub(crate) fn name(&self) -> &str {
        self.address.name()
    }

    /// Connects and logs in, within the timeout of the node.
    pub(crate) async fn connect(&self) -> Result<Connection, String> {
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
pub(crate) struct Connection {
    probe: Probe,
    patience: Duration,
}

impl Connection {
    /// Returns a reply for each command, which may be an error. Returns `Err` if the node does not answer in time.
    pub(crate) async fn ask(&mut self, commands: &Pipeline) -> Result<Vec<Value>, String> {
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
pub(crate) fn in_words(error: &ServerError) -> String {
    let words = one_line(&match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    });
    // Redis 7.0 says only that something in the script is forbidden, not what.
    if words.contains("The user executing the script") {
        return format!("{words}; redlock doctor says which");
    }
    words
}

/// The text of a reply, in any of its forms, escaped for printing.
pub(crate) fn text(reply: &Value) -> Option<String> {
    raw_text(reply).map(|text| printable(&text))
}

pub(super) fn raw_text(reply: &Value) -> Option<String> {
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
