//! One connection to a node.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, Value};
use redlock_core::{NodeInfo, Script};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::address::{Address, Place};
use super::answer;
use super::call::words;
use super::dial::dial;
use super::error::NodeErrorKind;
use super::metered::{Credit, Metered};
use super::printable::printable;

/// A connection, and the future that moves its bytes.
///
/// Who has it polls that future itself: a task less to wake for every command and every reply, and a
/// connection that the node has closed is noticed at once, also when nothing is on its way.
pub(crate) struct Link {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) driver: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// What may still arrive. Who sends grants it.
    pub(crate) credit: Arc<Credit>,
}

/// A link whose node has been asked who it is.
pub(crate) struct Connected {
    pub(crate) link: Link,
    /// `None` if it does not say so.
    pub(crate) node_info: Option<NodeInfo>,
    pub(crate) round_trip: Duration,
}

/// Why there is no link.
pub(crate) struct NotConnected {
    pub(crate) kind: NodeErrorKind,
    /// The node was there, and the rest took too long.
    pub(crate) was_late: bool,
}

/// A stream to a node that knows nothing of Redis yet.
trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

impl Link {
    /// Connects within `to_dial`; logs in, loads the scripts and asks the node who it is within `to_set_up`.
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
        })?;
        match timeout(limit, Self::prepare(socket, address, credit)).await {
            Ok(connected) => connected.map_err(|kind| NotConnected {
                kind,
                was_late: false,
            }),
            Err(_elapsed) => Err(NotConnected {
                kind: no_connection_within(limit),
                was_late: true,
            }),
        }
    }

    /// Connects and logs in; whoever calls this looks at the time.
    #[cfg(feature = "probe")]
    pub(crate) async fn open(address: &Address) -> Result<Self, NodeErrorKind> {
        let credit = Credit::new();
        let socket = Socket::open(address, &credit).await?;
        Self::log_in(socket, address, credit).await
    }

    /// Logs in, loads the scripts, and asks the node who it is.
    async fn prepare(
        socket: Socket,
        address: &Address,
        credit: Arc<Credit>,
    ) -> Result<Connected, NodeErrorKind> {
        let mut link = Self::log_in(socket, address, credit).await?;
        let mut first_words = redis::pipe();
        for script in Script::PLAIN.into_iter().chain(Script::FENCED) {
            first_words.cmd("SCRIPT").arg("LOAD").arg(script.text());
        }
        first_words.add_command(words(NodeInfo::question()));
        let asked_at = Instant::now();
        // Whether a user may load scripts or not: one that is missing is sent as text.
        let said = link.ask(&first_words).await?.pop();
        Ok(Connected {
            node_info: node_info(said)?,
            round_trip: asked_at.elapsed(),
            link,
        })
    }

    async fn log_in(
        socket: Socket,
        address: &Address,
        credit: Arc<Credit>,
    ) -> Result<Self, NodeErrorKind> {
        let stream = socket.secured(address).await;
        let stream = stream.map_err(|error| why(&error, &credit))?;
        // What the handshake has not used is not for replies: the parser makes much more of a byte than TLS does.
        credit.settle(0);
        // Time-outs are the round's; a command that takes long is not an error of its own.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let login = address.login();
        let opened = MultiplexedConnection::new_with_config(&login, stream, config);
        let (connection, driver) = opened.await.map_err(|error| why(&error, &credit))?;
        Ok(Self {
            connection,
            driver: Box::pin(driver),
            credit,
        })
    }

    /// A reply for each command, errors among them.
    pub(crate) async fn ask(
        &mut self,
        commands: &redis::Pipeline,
    ) -> Result<Vec<Value>, NodeErrorKind> {
        let mut connection = self.connection.clone();
        self.credit.grant(commands.len());
        let mut answers = pin!(connection.send_packed_commands(commands, 0, commands.len()));
        let answers = tokio::select! {
            biased;
            answers = &mut answers => answers,
            () = &mut self.driver => {
                // It has what is still on its way: without it the answers end. Whoever polls it next learns that.
                self.driver = Box::pin(poll_fn(|_| Poll::Ready(())));
                answers.await
            }
        };
        let answers = answers.map_err(|error| why(&error, &self.credit))?;
        self.credit.settle(0);
        Ok(answers)
    }
}

fn no_connection_within(limit: Duration) -> NodeErrorKind {
    let message = format!("no connection within {} ms", limit.as_millis());
    NodeErrorKind::Unreachable(message.into())
}

/// What is connected, and counts what arrives.
enum Socket {
    Tcp(Metered<tokio::net::TcpStream>),
    #[cfg(unix)]
    Unix(Metered<tokio::net::UnixStream>),
}

impl Socket {
    async fn open(address: &Address, credit: &Arc<Credit>) -> Result<Self, NodeErrorKind> {
        let credit = Arc::clone(credit);
        let socket = match address.place() {
            Place::Tcp { host, port } => dial(host, *port)
                .await
                .map(|stream| Self::Tcp(Metered::new(stream, credit))),
            #[cfg(feature = "tls-rustls")]
            Place::Tls { host, port, .. } => {
                credit.grant_handshake();
                dial(host, *port)
                    .await
                    .map(|stream| Self::Tcp(Metered::new(stream, credit)))
            }
            #[cfg(unix)]
            Place::Unix(path) => tokio::net::UnixStream::connect(path)
                .await
                .map(|stream| Self::Unix(Metered::new(stream, credit))),
        };
        socket.map_err(|error| NodeErrorKind::Unreachable(in_words(&error.into())))
    }

    /// With the TLS handshake done, if there is to be one.
    async fn secured(self, address: &Address) -> Result<Box<dyn Stream>, RedisError> {
        match (self, address.place()) {
            #[cfg(feature = "tls-rustls")]
            (Self::Tcp(stream), Place::Tls { server, config, .. }) => {
                let connector = tokio_rustls::TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(server.clone(), stream).await?;
                Ok(Box::new(stream))
            }
            (Self::Tcp(stream), _) => Ok(Box::new(stream)),
            #[cfg(unix)]
            (Self::Unix(stream), _) => Ok(Box::new(stream)),
        }
    }
}

/// Why a connection failed, on which so much could arrive.
fn why(error: &RedisError, credit: &Credit) -> NodeErrorKind {
    if credit.is_overdrawn() {
        return NodeErrorKind::Flooded;
    }
    NodeErrorKind::Unreachable(in_words(error))
}

/// Reads what a node said of itself. `None` if it does not say: INFO or TIME are renamed, or the ACL user may not
/// call them. A node that is busy or loads its data is of no use yet.
pub(crate) fn node_info(said: Option<Value>) -> Result<Option<NodeInfo>, NodeErrorKind> {
    let answer = match said {
        Some(Value::ServerError(error)) if !answer::is_unusable(answer::code(&error)) => {
            return Ok(None);
        }
        Some(said) => answer::read(said).map_err(|kind| match kind {
            NodeErrorKind::Rejected(why) => NodeErrorKind::Unreachable(why),
            other => other,
        })?,
        None => return Err(NodeErrorKind::Unexpected),
    };
    let node_info = NodeInfo::read(answer).ok_or(NodeErrorKind::Unexpected)?;
    Ok(Some(node_info))
}

/// The part of an error that tells an operator what to do.
pub(crate) fn in_words(error: &RedisError) -> Arc<str> {
    if error.is_connection_refusal() {
        return "connection refused".into();
    }
    let words = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    };
    printable(&words).into()
}
