//! One connection to a node.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use redis::{Cmd, ServerError, Value};
use redlock_core::transport::{NodeInfo, Script};
use tokio::time::timeout;

use super::address::Address;
use super::answer;
use super::error::{DATABASE, TransportError, names_database, without_scripts};
use super::login::{LastWords, Login, command, text};
use super::metered::Credit;
use super::replies::Replies;
use super::request;
use super::socket::{Socket, Stream};
use super::wire::Wire;

/// A connection that is logged in.
pub(crate) struct Link {
    pub(crate) wire: Wire,
    /// How many replies are still to arrive of calls of [`ask`](Self::ask), also of those that were dropped.
    owed: usize,
    /// Why such a call has failed: then replies can no longer be told apart.
    failed: Option<TransportError>,
}

/// A link whose node was asked for its identity.
pub(crate) struct Connected {
    pub(crate) link: Link,
    /// `None` if the node does not tell its identity.
    pub(crate) node_info: Option<NodeInfo>,
    pub(crate) round_trip: Duration,
}

/// Why the connect failed.
pub(crate) struct NotConnected {
    pub(crate) kind: TransportError,
    /// Whether the node accepted the connection, but the rest took too long.
    pub(crate) was_late: bool,
    /// Whether a TLS handshake was begun: the next one may take as much of the thread, see `tls/verifier.rs`.
    pub(crate) has_shaken_hands: bool,
}

impl Link {
    /// Connects within `to_dial`. Then logs in, loads the scripts and asks for the identity of the node within `to_set_up`.
    pub(crate) async fn connect(
        address: &Address,
        to_dial: Duration,
        to_set_up: Duration,
    ) -> Result<Connected, NotConnected> {
        let credit = Credit::new();
        let socket = timeout(to_dial, Socket::open(address, &credit)).await;
        let (socket, limit) = match socket {
            Ok(Ok(socket)) => (Ok(socket), to_set_up),
            Ok(Err(kind)) => (Err(kind), to_dial),
            Err(_elapsed) => (Err(no_connection_within(to_dial)), to_dial),
        };
        let socket = socket.map_err(|kind| NotConnected {
            kind,
            was_late: false,
            has_shaken_hands: false,
        })?;
        let prepared = async {
            let stream = secure(socket, address, &credit).await;
            let stream = stream.map_err(|kind| NotConnected {
                kind,
                was_late: false,
                has_shaken_hands: address.is_tls(),
            })?;
            let connected = Self::prepare(stream, address, credit).await;
            connected.map_err(|kind| NotConnected {
                kind,
                was_late: false,
                has_shaken_hands: address.is_tls(),
            })
        };
        timeout(limit, prepared).await.unwrap_or_else(|_elapsed| {
            Err(NotConnected {
                kind: not_answered_within(limit, address),
                was_late: true,
                has_shaken_hands: address.is_tls(),
            })
        })
    }

    /// Connects and logs in, without a timeout.
    #[cfg(feature = "probe")]
    pub(crate) async fn open(address: &Address) -> Result<Self, TransportError> {
        let credit = Credit::new();
        let socket = Socket::open(address, &credit).await?;
        let stream = secure(socket, address, &credit).await?;
        Self::log_in(stream, address, credit).await
    }

    /// Logs in, loads the scripts, and asks for the identity of the node.
    async fn prepare(
        stream: Box<dyn Stream>,
        address: &Address,
        credit: Arc<Credit>,
    ) -> Result<Connected, TransportError> {
        let mut link = Self::log_in(stream, address, credit).await?;
        let mut setup = Vec::new();
        let mut count = 1;
        let of_lines = Script::QUEUED.into_iter().chain(Script::FENCED_QUEUED);
        for script in Script::PLAIN
            .into_iter()
            .chain(Script::FENCED)
            .chain(of_lines)
        {
            command(&["SCRIPT", "LOAD", script.text()]).write_packed_command(&mut setup);
            count += 1;
        }
        request::write(NodeInfo::question(), &mut setup);
        let asked_at = Instant::now();
        // Errors of SCRIPT LOAD are ignored: if a script is missing, it is sent as text.
        let replies = link.ask(&setup, count).await;
        let reply = replies
            .map_err(|kind| LastWords::default().explain(kind))?
            .pop();
        if link.wire.has_unreturned() {
            return Err(TransportError::Flooded);
        }
        Ok(Connected {
            node_info: node_info(reply)?,
            round_trip: asked_at.elapsed(),
            link,
        })
    }

    async fn log_in(
        stream: Box<dyn Stream>,
        address: &Address,
        credit: Arc<Credit>,
    ) -> Result<Self, TransportError> {
        let replies = Replies::of_commands(Arc::clone(&credit));
        let mut login = Login::new(stream, replies, Arc::clone(&credit));
        // RESP2, whatever the URL says: with RESP3, any client of the server could send a push message into this connection
        // (CLIENT TRACKING with REDIRECT), which ends it.
        let select = match address.database() {
            0 => None,
            database => Some(command(&["SELECT", &database.to_string()])),
        };
        let words = select.as_ref().map(Cmd::get_packed_command);
        login
            .log_in(address, words.as_deref().unwrap_or_default())
            .await?;
        if select.is_some()
            && let Value::ServerError(error) = login.reply().await?
        {
            return Err(not_selected(&error));
        }
        let (stream, replies) = login.finish()?;
        Ok(Self::over(Wire::new(stream, replies, credit)))
    }

    pub(crate) const fn over(wire: Wire) -> Self {
        Self {
            wire,
            owed: 0,
            failed: None,
        }
    }

    /// Sends `commands`, of which there are `count`, and returns a reply for each, which may be an error. Dropping the future does not
    /// cancel them: the next call skips their replies.
    ///
    /// # Errors
    ///
    /// If the connection breaks, or other data has arrived before. An error closes the connection, and each later call fails with it.
    pub(crate) async fn ask(
        &mut self,
        commands: &[u8],
        count: usize,
    ) -> Result<Vec<Value>, TransportError> {
        if let Some(kind) = &self.failed {
            return Err(kind.clone());
        }
        let answers = self.answers(commands, count).await;
        if let Err(kind) = &answers {
            self.failed = Some(kind.clone());
            self.wire.close();
        }
        answers
    }

    /// Fails if something has arrived that nothing has asked for, or the connection is broken.
    async fn expect_nothing(&mut self) -> Result<(), TransportError> {
        if self.owed > 0 {
            return Ok(());
        }
        let arrived = poll_fn(|context| Poll::Ready(self.wire.poll_reply(context)));
        match arrived.await {
            Poll::Ready(reply) => reply.and(Err(TransportError::Flooded)),
            Poll::Pending if self.wire.has_unreturned() => Err(TransportError::Flooded),
            Poll::Pending => Ok(()),
        }
    }

    async fn answers(
        &mut self,
        commands: &[u8],
        count: usize,
    ) -> Result<Vec<Value>, TransportError> {
        self.expect_nothing().await?;
        let mut skipped = self.owed;
        self.owed += count;
        self.wire.send(count).extend_from_slice(commands);
        let mut answers = Vec::with_capacity(count);
        poll_fn(|context| {
            // At the same time: a node that has much to say reads no more until it is heard.
            let sent = self.wire.poll_send(context);
            while self.owed > 0 {
                let Poll::Ready(answer) = self.wire.poll_reply(context) else {
                    ready!(sent)?;
                    return Poll::Pending;
                };
                let answer = answer?;
                self.owed -= 1;
                match skipped {
                    0 => answers.push(answer),
                    _ => skipped -= 1,
                }
            }
            Poll::Ready(Ok::<_, TransportError>(()))
        })
        .await?;
        self.wire.settle(0)?;
        Ok(answers)
    }
}

pub(crate) fn no_connection_within(limit: Duration) -> TransportError {
    let message = format!("no connection within {} ms", limit.as_millis());
    TransportError::Unreachable(message.into())
}

/// The login, the TLS handshake or the question who the node is was not answered.
pub(crate) fn not_answered_within(limit: Duration, address: &Address) -> TransportError {
    let hint = match address.is_tls() {
        true => "; check that this port has TLS",
        false => "",
    };
    let limit = limit.as_millis();
    let message = format!("connected, but no answer within {limit} ms{hint}");
    TransportError::Unreachable(message.into())
}

/// Does the TLS handshake if the address needs one.
pub(crate) async fn secure(
    socket: Socket,
    address: &Address,
    credit: &Credit,
) -> Result<Box<dyn Stream>, TransportError> {
    let stream = socket.secured(address).await;
    let stream = stream.map_err(|error| match credit.why(&error) {
        // A full server closes it without a word.
        TransportError::Disconnected => TransportError::Unreachable(
            "the server closed the connection in the TLS handshake; \
            check that this port has TLS, and that the server has fewer clients than its maxclients"
                .into(),
        ),
        kind => kind,
    })?;
    // Credit that the handshake has not used must not be used for replies: the parser takes much more memory per byte than
    // TLS does.
    credit.settle(0, 0)?;
    Ok(stream)
}

/// Why the database of the URL was not selected.
fn not_selected(error: &ServerError) -> TransportError {
    let words = text(error);
    match error.code() {
        code if answer::is_login(code) => TransportError::LoginRefused(words),
        "NOPERM" if names_database(&words) => {
            TransportError::LoginRefused(format!("{words}{DATABASE}").into())
        }
        "NOPERM" => TransportError::Unreachable(format!("{words}; grant `+select`").into()),
        "ERR" => TransportError::LoginRefused(format!("{words}{DATABASE}").into()),
        _ => TransportError::Unreachable(words),
    }
}

/// Reads the identity of a node. Returns `None` if the node does not tell it, because INFO or TIME are renamed or the ACL
/// user may not call them. Returns `Err` if the node cannot be used, for example because it is busy or loads its data, or because the
/// user may run no script.
pub(crate) fn node_info(reply: Option<Value>) -> Result<Option<NodeInfo>, TransportError> {
    let answer = match reply {
        Some(Value::ServerError(error)) if !answer::is_unusable(answer::code(&error)) => {
            return without_scripts(&error).map_or(Ok(None), Err);
        }
        Some(reply) => {
            let is_login = matches!(&reply, Value::ServerError(error) if answer::is_login(answer::code(error)));
            answer::read(reply).map_err(|kind| match kind {
                TransportError::Rejected(why) if is_login => TransportError::LoginRefused(why),
                TransportError::Rejected(why) => TransportError::Unreachable(why),
                other => other,
            })?
        }
        None => return Err(TransportError::Unexpected),
    };
    let node_info = NodeInfo::read(answer).ok_or(TransportError::Unexpected)?;
    Ok(Some(node_info))
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn link() -> (Link, DuplexStream) {
        let credit = Credit::new();
        let (stream, node) = duplex(1_000);
        let replies = Replies::of_commands(Arc::clone(&credit));
        let wire = Wire::new(Box::new(stream), replies, credit);
        (Link::over(wire), node)
    }

    async fn read(node: &mut DuplexStream, expected: &[u8]) {
        let mut arrived = vec![0; expected.len()];
        node.read_exact(&mut arrived).await.unwrap();
        assert_eq!(arrived, expected);
    }

    #[tokio::test]
    async fn a_question_that_was_dropped_takes_no_reply_of_the_next() {
        let (mut link, mut node) = link();
        {
            let dropped = pin!(link.ask(b"two questions", 2));
            let asked = dropped.poll(&mut Context::from_waker(Waker::noop()));
            assert!(asked.is_pending());
        }
        read(&mut node, b"two questions").await;
        node.write_all(b":1\r\n").await.unwrap();
        {
            let dropped = pin!(link.ask(b"a third", 1));
            let asked = dropped.poll(&mut Context::from_waker(Waker::noop()));
            assert!(asked.is_pending());
        }
        node.write_all(b":2\r\n:3\r\n:4\r\n:5\r\n").await.unwrap();
        let answers = link.ask(b"two more", 2).await;
        assert_eq!(answers, Ok(vec![Value::Int(4), Value::Int(5)]));
        read(&mut node, b"a thirdtwo more").await;
    }

    #[tokio::test]
    async fn what_nothing_has_asked_for_is_no_answer_to_the_next_question() {
        // Whole, in part, or the end of the connection.
        for more in [&b":3\r\n"[..], b":", b""] {
            let (mut link, mut node) = link();
            let context = &mut Context::from_waker(Waker::noop());
            {
                let mut first = pin!(link.ask(b"two questions", 2));
                assert!(first.as_mut().poll(context).is_pending());
                let sent = [b":1\r\n:2\r\n", more].concat();
                node.write_all(&sent).await.unwrap();
                let expected = Ok(vec![Value::Int(1), Value::Int(2)]);
                assert_eq!(first.await, expected);
            }
            let why = match more {
                [] => TransportError::Disconnected,
                _ => TransportError::Flooded,
            };
            if more.is_empty() {
                drop(node);
            } else {
                read(&mut node, b"two questions").await;
                assert_eq!(link.ask(b"", 0).await, Err(why.clone()));
                // Its end has gone.
                assert_eq!(node.read(&mut [0]).await.unwrap(), 0);
            }
            for _ in 0..3 {
                assert_eq!(link.ask(b"", 0).await, Err(why.clone()));
            }
        }
    }
}
