//! One connection to a node.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo, ServerError, Value};
use redlock_core::transport::{NodeInfo, Script};
use tokio::time::timeout;

use super::address::Address;
use super::answer;
use super::call::words;
use super::driver::Driver;
use super::error::{DATABASE, TransportError, names_database, without_scripts};
use super::framing::Framing;
use super::login::{LastWords, Login, command, text};
use super::metered::{Credit, Metered, Unit};
use super::replies::Replies;
use super::socket::{Socket, Stream};

/// A connection, and the future that moves its bytes.
///
/// The owner polls that future itself. This saves waking another task for every command and every reply, and the owner
/// notices at once that the node has closed the connection, also when no command is in flight.
pub(crate) struct Link {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) driver: Driver,
    /// The number of bytes that may still arrive. The sender of a command grants it.
    pub(crate) credit: Arc<Credit>,
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
        let mut setup = redis::pipe();
        let of_lines = Script::QUEUED.into_iter().chain(Script::FENCED_QUEUED);
        for script in Script::PLAIN
            .into_iter()
            .chain(Script::FENCED)
            .chain(of_lines)
        {
            setup.cmd("SCRIPT").arg("LOAD").arg(script.text());
        }
        setup.add_command(words(NodeInfo::question()));
        let asked_at = Instant::now();
        // Errors of SCRIPT LOAD are ignored: if a script is missing, it is sent as text.
        let replies = link.ask(&setup).await;
        let reply = replies
            .map_err(|kind| LastWords::default().explain(kind))?
            .pop();
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
        let values = Unit::Values(Framing::default());
        let stream = Metered::new(stream, Arc::clone(&credit), values);
        let replies = Replies::of_login(Arc::clone(&credit));
        let mut login = Login::new(stream, replies, Arc::clone(&credit));
        let select = match address.database() {
            0 => None,
            database => Some(command(&["SELECT", &database.to_string()])),
        };
        login.log_in(address, select.as_slice()).await?;
        if select.is_some()
            && let Value::ServerError(error) = login.reply().await?
        {
            return Err(not_selected(&error));
        }
        let stream = login.finish()?;
        // RESP2, whatever the URL says: with RESP3, any client of the server could send a push message into this connection
        // (CLIENT TRACKING with REDIRECT), which ends it. The redis crate has nothing left to send.
        let logged_in = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP2)
            .set_skip_set_lib_name();
        // Rounds have timeouts of their own, so a slow command is not an error.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let opened = MultiplexedConnection::new_with_config(&logged_in, stream, config);
        let (connection, driver) = opened.await.map_err(|error| credit.why(&error))?;
        Ok(Self {
            connection,
            driver: Driver::new(driver),
            credit,
        })
    }

    /// Sends `commands`, and returns a reply for each, which may be an error.
    pub(crate) async fn ask(
        &mut self,
        commands: &redis::Pipeline,
    ) -> Result<Vec<Value>, TransportError> {
        let mut connection = self.connection.clone();
        self.credit.grant(commands.len());
        let mut answers = pin!(connection.send_packed_commands(commands, 0, commands.len()));
        let answers = tokio::select! {
            biased;
            answers = &mut answers => answers,
            () = &mut self.driver => {
                // The ended driver still holds the pending replies: dropping it ends `answers`. The next poll of the new
                // driver reports the end.
                self.driver = Driver::new(std::future::ready(()));
                answers.await
            }
        };
        let answers = answers.map_err(|error| self.credit.why(&error))?;
        self.credit.settle(0)?;
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
    credit.settle(0)?;
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
