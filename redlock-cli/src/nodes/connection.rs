//! A node, and a connection to it that asks questions.

use core::time::Duration;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisError, ServerError, Value};
use tokio::time::timeout;

use crate::duration;

/// A node that can be asked.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    name: Arc<str>,
    client: Client,
    patience: Duration,
}

impl Node {
    pub(super) fn new(url: &str, name: &Arc<str>, patience: Duration) -> Result<Self, String> {
        let client = Client::open(url).map_err(|error| reason(&error))?;
        let info = client.get_connection_info().clone();
        let settings = info
            .redis_settings()
            .clone()
            .set_lib_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        let info = info
            .set_tcp_settings(TcpSettings::default().set_nodelay(true))
            .set_redis_settings(settings);
        Ok(Self {
            name: Arc::clone(name),
            client: Client::open(info).map_err(|error| reason(&error))?,
            patience,
        })
    }

    /// Its address, without the password.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Connects and logs in; an error in words, within the node's time.
    pub(crate) async fn connect(&self) -> Result<Connection, String> {
        // The time-outs of the crate begin anew with each step; this one is for all together.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let connecting = self
            .client
            .get_multiplexed_async_connection_with_config(&config);
        match timeout(self.patience, connecting).await {
            Ok(Ok(inner)) => Ok(Connection {
                inner,
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
    inner: MultiplexedConnection,
    patience: Duration,
}

impl Connection {
    /// A reply for each command, errors among them; an error in words when the node is silent.
    pub(crate) async fn ask(&mut self, commands: &Pipeline) -> Result<Vec<Value>, String> {
        let asking = self.inner.send_packed_commands(commands, 0, commands.len());
        match timeout(self.patience, asking).await {
            Ok(replies) => replies.map_err(|error| reason(&error)),
            Err(_elapsed) => Err(format!(
                "no answer within {}",
                duration::in_words(self.patience)
            )),
        }
    }
}

/// What a node said instead of an answer.
pub(crate) fn in_words(error: &ServerError) -> String {
    let words = one_line(&match error.details() {
        Some(details) => format!("{} {details}", error.code()),
        None => error.code().to_owned(),
    });
    // Of a script, Redis 7.0 says no more than that something in it is forbidden.
    if words.contains("The user executing the script") {
        return format!("{words}; redlock doctor says which");
    }
    words
}

/// A reply that is text, in whichever form it came.
pub(crate) fn text(reply: &Value) -> Option<String> {
    match reply {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    }
}

fn reason(error: &RedisError) -> String {
    if error.is_connection_refusal() {
        return "connection refused".to_owned();
    }
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => one_line(&format!("{code} {detail}")),
        _ => one_line(&error.to_string()),
    }
}

/// As a part of a sentence of ours.
fn one_line(message: &str) -> String {
    let words: Vec<&str> = message.split_whitespace().collect();
    words.join(" ").trim_end_matches('.').to_owned()
}
