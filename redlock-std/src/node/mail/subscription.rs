//! A connection that has subscribed to the mailbox of this client.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ServerError, Value};
use redlock_core::transport::{NodeInfo, RunId};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::super::address::Address;
use super::super::call::words;
use super::super::error::{TransportError, in_words};
use super::super::link::{no_connection_within, node_info, not_answered_within, why};
use super::super::metered::Credit;
use super::super::printable::{printable, without_arguments};
use super::super::socket::{Socket, Stream};
use super::replies::{Budget, Replies, Reply};

/// A connection on which the calls for one mailbox arrive.
///
/// It is not the connection of the locks: a message can be sent by any client of the node, and must not end a connection on which
/// leases are extended.
pub(super) struct Subscription {
    stream: Box<dyn Stream>,
    replies: Replies,
    channel: String,
    /// The process that sends the calls. `None` if it does not tell.
    pub(super) run_id: Option<RunId>,
}

/// Why there is no subscription.
#[derive(Debug)]
pub(super) struct NotOpen {
    pub(super) kind: TransportError,
    /// Whether the node accepted the connection, but the rest took too long.
    pub(super) was_late: bool,
}

impl Subscription {
    /// Connects within `to_dial`. Then logs in and subscribes to `channel` within `to_set_up`. What is read counts against `budget`.
    pub(super) async fn open(
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
            Err(_elapsed) => Err(not_open(true)(not_answered_within(to_set_up))),
        }
    }

    async fn set_up(
        socket: Socket,
        address: &Address,
        channel: &str,
        credit: Arc<Credit>,
        budget: Arc<Budget>,
    ) -> Result<Self, TransportError> {
        let stream = socket.secured(address).await;
        let mut stream = stream.map_err(|error| why(&error, &credit))?;
        let mut replies = Replies::new(credit, budget);
        let mut run_id = None;
        // In one write. After SUBSCRIBE, no other command is allowed on the connection.
        let steps = steps(address, channel);
        let commands: Vec<_> = steps
            .iter()
            .flat_map(|(_, cmd)| cmd.get_packed_command())
            .collect();
        let written = stream.write_all(&commands).await;
        written.map_err(|error| TransportError::Unreachable(in_words(&error.into())))?;
        for (step, _) in steps {
            let Reply::Value(reply) = replies.next(&mut stream).await? else {
                return Err(TransportError::Flooded);
            };
            match (step, reply) {
                (Step::Identity, reply) => run_id = node_info(Some(reply))?.map(|info| info.run_id),
                (Step::Login, Value::ServerError(error)) => {
                    return Err(TransportError::Unreachable(text(&error)));
                }
                (Step::Call, Value::ServerError(error)) => {
                    return Err(TransportError::CannotCall(text(&error)));
                }
                (Step::Login | Step::Optional | Step::Call, _) => {}
            }
        }
        Ok(Self {
            stream,
            replies,
            channel: channel.to_owned(),
            run_id,
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
    pub(super) async fn next(&mut self) -> Result<Vec<u8>, TransportError> {
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

/// What a reply in the setup is for.
enum Step {
    Login,
    /// An error does not matter.
    Optional,
    Identity,
    /// What a call takes.
    Call,
}

fn steps(address: &Address, channel: &str) -> Vec<(Step, Cmd)> {
    let command = |words: &[&str]| {
        let mut cmd = Cmd::new();
        cmd.arg(words);
        cmd
    };
    let login = address.login();
    let mut steps = Vec::new();
    if let Some(password) = login.password() {
        let words = [Some("AUTH"), login.username(), Some(password)];
        let words: Vec<_> = words.into_iter().flatten().collect();
        steps.push((Step::Login, command(&words)));
    }
    for (name, value) in [("LIB-NAME", login.lib_name()), ("LIB-VER", login.lib_ver())] {
        let set = command(&["CLIENT", "SETINFO", name, value.unwrap_or_default()]);
        steps.push((Step::Optional, set));
    }
    steps.push((Step::Identity, words(NodeInfo::question())));
    // The scripts do the first two to call a client. So a missing permission is noticed.
    for words in [
        &["PUBSUB", "NUMSUB", channel][..],
        &["PUBLISH", channel, ""],
        &["SUBSCRIBE", channel],
    ] {
        steps.push((Step::Call, command(words)));
    }
    steps
}

fn text(error: &ServerError) -> Arc<str> {
    let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
    // The arguments of AUTH are a password.
    printable(without_arguments(text.trim_end())).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_know_auth_makes_no_password_shown() {
        let reply =
            b"-ERR unknown command 'AUTH', with args beginning with: 'locker' 'hunter2'\r\n";
        let Ok(Value::ServerError(error)) = redis::parse_redis_value(reply) else {
            unreachable!("it is an error");
        };
        assert_eq!(&*text(&error), "ERR unknown command 'AUTH'");
    }
}
