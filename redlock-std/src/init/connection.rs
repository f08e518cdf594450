//! A node, and a connection for commands to it.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use crate::node::{Address, Budget, NodeError, Probe, Subscription, printable, without_arguments};
use crate::{ConnectError, MAX_NODES, TransportError};
use redis::{Pipeline, ServerError, Value};
use redlock_core::{BuildError, Failure};
use tokio::time::{Instant, timeout, timeout_at};

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
                was_late: false,
            }),
            Ok(Err(error)) => Err(reason(&error)),
            Err(_elapsed) => Err(format!(
                "no connection within {}{}",
                duration::in_words(self.patience),
                match self.address.is_tls() {
                    true => " (over TLS; is this its TLS port?)",
                    false => "",
                }
            )),
        }
    }

    /// Subscribes to `channel`, over a connection of its own, as a client does that waits for a lock: also tries what the scripts do to
    /// call it. The connection, and then the rest, have the timeout of the node.
    pub async fn subscribe(&self, channel: &str) -> Result<Mailbox, String> {
        let (address, patience) = (&self.address, self.patience);
        let opened = Subscription::open(address, channel, Budget::new(), patience, patience).await;
        let subscription = opened.map_err(|error| match error.kind {
            // Only what the node says: its consequence for an acquire is no news here.
            TransportError::CannotCall(words) => one_line(without_arguments(&words)),
            kind => reason(&NodeError::new(
                Arc::clone(address.name()),
                Failure::Transport(kind),
            )),
        })?;
        Ok(Mailbox {
            subscription,
            patience,
        })
    }
}

/// A connection that has subscribed to a channel.
pub struct Mailbox {
    subscription: Subscription,
    patience: Duration,
}

impl Mailbox {
    /// Returns whether the message `payload` arrives within the timeout of the node. Messages before it are dropped. Returns `Err` if the
    /// connection breaks.
    pub async fn receives(&mut self, payload: &[u8]) -> Result<bool, String> {
        let end = Instant::now() + self.patience;
        loop {
            match timeout_at(end, self.subscription.next()).await {
                Ok(Ok(message)) if message == payload => return Ok(true),
                Ok(Ok(_other)) => {}
                Ok(Err(kind)) => return Err(one_line(&kind.to_string())),
                Err(_elapsed) => return Ok(false),
            }
        }
    }
}

impl fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

/// A connection to a node.
#[derive(Debug)]
pub struct Connection {
    probe: Probe,
    patience: Duration,
    was_late: bool,
}

impl Connection {
    /// Returns a reply for each command, which may be an error. Returns `Err` if the node does not answer in time.
    pub async fn ask(&mut self, commands: &Pipeline) -> Result<Vec<Value>, String> {
        match timeout(self.patience, self.probe.ask(commands)).await {
            Ok(replies) => replies.map_err(|error| reason(&error)),
            Err(_elapsed) => {
                self.was_late = true;
                Err(format!(
                    "no answer within {}",
                    duration::in_words(self.patience)
                ))
            }
        }
    }

    /// Whether the node has not answered in time.
    pub const fn was_late(&self) -> bool {
        self.was_late
    }
}

/// The end of [`in_words`] if the error does not say which permission is missing.
pub const ASK_DOCTOR: &str = "; redlock doctor says which";

/// The text of an error reply, in one line.
pub fn in_words(error: &ServerError) -> String {
    let words = match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    };
    let words = one_line(without_arguments(&words));
    // Redis 7.0 says only that something in the script is forbidden, not what.
    if words.contains("The user executing the script") {
        return words + ASK_DOCTOR;
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
