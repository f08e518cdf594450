//! A connection that has subscribed to the mailbox of this client.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use redlock_core::transport::{NodeInfo, RunId};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::super::address::Address;
use super::super::error::TransportError;
use super::super::link::{no_connection_within, node_info, not_answered_within, secure};
use super::super::login::{Login, command, text};
use super::super::metered::Credit;
use super::super::replies::{Budget, Replies, Reply};
use super::super::request;
use super::super::socket::{Socket, Stream};

/// A connection on which the calls for one mailbox arrive.
///
/// It is not the connection of the locks: a message can be sent by any client of the node, and must not end a connection on which
/// leases are extended.
pub(crate) struct Subscription {
    stream: Box<dyn Stream>,
    replies: Replies,
    channel: String,
    /// The process that sends the calls. `None` if it does not tell.
    pub(super) run_id: Option<RunId>,
}

/// Why there is no subscription.
#[derive(Debug)]
pub(crate) struct NotOpen {
    pub(crate) kind: TransportError,
    /// Whether the node accepted the connection, but the rest took too long.
    pub(super) was_late: bool,
}

impl Subscription {
    /// Connects within `to_dial`. Then logs in and subscribes to `channel` within `to_set_up`. What is read counts against `budget`.
    pub(crate) async fn open(
        address: &Address,
        channel: &str,
        budget: Arc<Budget>,
        to_dial: Duration,
        to_set_up: Duration,
    ) -> Result<Self, NotOpen> {
        let not_open = |was_late| move |kind| NotOpen { kind, was_late };
        let credit = Credit::new();
        let socket = timeout(to_dial, Socket::open(address, &credit)).await;
        let socket = socket.unwrap_or_else(|_elapsed| Err(no_connection_within(to_dial)));
        let socket = socket.map_err(not_open(false))?;
        let opened = timeout(
            to_set_up,
            Self::set_up(socket, address, channel, credit, budget),
        )
        .await;
        match opened {
            Ok(opened) => opened.map_err(not_open(false)),
            Err(_elapsed) => Err(not_open(true)(not_answered_within(to_set_up, address))),
        }
    }

    async fn set_up(
        socket: Socket,
        address: &Address,
        channel: &str,
        credit: Arc<Credit>,
        budget: Arc<Budget>,
    ) -> Result<Self, TransportError> {
        let stream = secure(socket, address, &credit).await?;
        let replies = Replies::new(Arc::clone(&credit), budget);
        let mut login = Login::new(stream, replies, credit);
        // In one write. After SUBSCRIBE, no other command is allowed on the connection.
        login.log_in(address, &commands(channel)).await?;
        let node_info = node_info(Some(login.reply().await?))?;
        for _call in calls(channel) {
            if let Value::ServerError(error) = login.reply().await? {
                return Err(TransportError::CannotCall(text(&error)));
            }
        }
        let (stream, replies) = login.into_parts();
        Ok(Self {
            stream,
            replies,
            channel: channel.to_owned(),
            run_id: node_info.map(|info| info.run_id),
        })
    }

    /// Asks for a sign of life: to subscribe once more changes nothing, and needs no further permission. The answer is an empty message.
    /// Without a result: if it cannot be sent, none comes.
    pub(super) async fn ask(&mut self) {
        let subscribe = redis::cmd("SUBSCRIBE")
            .arg(&self.channel)
            .get_packed_command();
        let _broken = self.stream.write_all(&subscribe).await;
    }

    /// Returns the payload of the next message. It is empty if this is the answer to [`ask`](Self::ask), or if the message is none for
    /// this client: with CLIENT TRACKING and REDIRECT, any client of the node can have the server send messages of another channel
    /// into this connection. Their payload is a list of keys, of any length, or nil.
    ///
    /// # Errors
    ///
    /// If the connection breaks, or something else than a message arrives.
    pub(crate) async fn next(&mut self) -> Result<Vec<u8>, TransportError> {
        let message = match self.replies.next(&mut self.stream).await? {
            Reply::Value(Value::Array(message)) => message,
            Reply::Value(Value::ServerError(error)) => {
                return Err(TransportError::CannotCall(text(&error)));
            }
            Reply::Value(_) => return Err(TransportError::Unexpected),
            Reply::TooLong => return Ok(Vec::new()),
        };
        let Ok([Value::BulkString(kind), Value::BulkString(channel), payload]) =
            <[Value; 3]>::try_from(message)
        else {
            return Err(TransportError::Unexpected);
        };
        match (&*kind, payload) {
            (b"message", Value::BulkString(payload)) if channel == self.channel.as_bytes() => {
                Ok(payload)
            }
            (b"message", _) if channel != self.channel.as_bytes() => Ok(Vec::new()),
            (b"subscribe", Value::Int(_)) => Ok(Vec::new()),
            _ => Err(TransportError::Unexpected),
        }
    }
}

/// The question who the node is, and then what a call takes.
fn commands(channel: &str) -> Vec<u8> {
    let mut commands = Vec::new();
    request::write(NodeInfo::question(), &mut commands);
    for call in calls(channel) {
        command(&call).write_packed_command(&mut commands);
    }
    commands
}

/// The scripts do the first two to call a client. So a missing permission is noticed.
fn calls(channel: &str) -> [Vec<&str>; 3] {
    [
        vec!["PUBSUB", "NUMSUB", channel],
        vec!["PUBLISH", channel, ""],
        vec!["SUBSCRIBE", channel],
    ]
}
