//! One connection to a node.

use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::{TcpSettings, socket2};
use redis::{AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, RedisError, Value};
use redlock_core::{Introduction, Script};
use tokio::net::TcpStream;

use super::address::Address;
use super::answer;
use super::error::NodeErrorKind;
use super::queue::words;

/// A connection, and the future that moves its bytes.
///
/// The actor polls that future itself: a task less to wake for every command and every reply, and a
/// connection that the node has closed is noticed at once, also when nothing is on its way.
pub(crate) struct Link {
    pub(crate) connection: MultiplexedConnection,
    pub(crate) driver: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// A connection whose other end has vanished is noticed without traffic after about half a minute.
const KEEPALIVE: Duration = Duration::from_secs(15);

impl Link {
    /// Connects, logs in, loads the scripts and asks the node who it is, within `limit`. `None` if it does not
    /// say so.
    pub(crate) async fn connect(
        address: &Address,
        limit: Duration,
    ) -> Result<(Self, Option<Introduction>), NodeErrorKind> {
        let set_up = tokio::time::timeout(limit, Self::set_up(address));
        let Ok(set_up) = set_up.await else {
            let message = format!("no connection within {} ms", limit.as_millis());
            return Err(NodeErrorKind::Unreachable(message.into()));
        };
        let (link, said) = set_up.map_err(|error| NodeErrorKind::Unreachable(in_words(&error)))?;
        Ok((link, introduction(said)?))
    }

    /// The connection, and what the node said of itself.
    async fn set_up(address: &Address) -> Result<(Self, Option<Value>), RedisError> {
        let mut link = Self::open(address.info()).await?;
        let mut first_words = redis::pipe();
        for script in Script::PLAIN.into_iter().chain(Script::FENCED) {
            first_words.cmd("SCRIPT").arg("LOAD").arg(script.text());
        }
        first_words.add_command(words(Introduction::question()));
        let count = first_words.len();
        let mut connection = link.connection.clone();
        let answers = connection.send_packed_commands(&first_words, 0, count);
        // Whether a user may load scripts or not: one that is missing is sent as text.
        let said = tokio::select! {
            answers = answers => answers?.pop(),
            () = &mut link.driver => return Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()),
        };
        Ok((link, said))
    }

    async fn open(info: &ConnectionInfo) -> Result<Self, RedisError> {
        // What CLIENT LIST shows to an operator, on servers that know it.
        let settings = info
            .redis_settings()
            .clone()
            .set_lib_name(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        let config = || {
            // Time-outs are the round's; a command that takes long is not an error of its own.
            AsyncConnectionConfig::new()
                .set_connection_timeout(None)
                .set_response_timeout(None)
        };
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE / 3);
        match info.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                socket2::SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                let (connection, driver) =
                    MultiplexedConnection::new_with_config(&settings, stream, config()).await?;
                Ok(Self {
                    connection,
                    driver: Box::pin(driver),
                })
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await?;
                let (connection, driver) =
                    MultiplexedConnection::new_with_config(&settings, stream, config()).await?;
                Ok(Self {
                    connection,
                    driver: Box::pin(driver),
                })
            }
            // TLS: the crate makes the stream, and a task of its own moves the bytes.
            _ => {
                let tcp = TcpSettings::default()
                    .set_nodelay(true)
                    .set_keepalive(keepalive);
                let client = Client::open(
                    info.clone()
                        .set_tcp_settings(tcp)
                        .set_redis_settings(settings),
                )?;
                let connection = client
                    .get_multiplexed_async_connection_with_config(&config())
                    .await?;
                Ok(Self {
                    connection,
                    driver: Box::pin(pending()),
                })
            }
        }
    }
}

/// Reads what a node said of itself. `None` if it does not say: INFO or TIME are renamed, or the ACL user may not
/// call them. A node that is busy or loads its data is of no use yet.
pub(crate) fn introduction(said: Option<Value>) -> Result<Option<Introduction>, NodeErrorKind> {
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
    let introduction = Introduction::read(answer).ok_or(NodeErrorKind::Unexpected)?;
    Ok(Some(introduction))
}

/// The part of an error that tells an operator what to do.
pub(crate) fn in_words(error: &RedisError) -> Arc<str> {
    if error.is_connection_refusal() {
        return "connection refused".into();
    }
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}").into(),
        _ => error.to_string().into(),
    }
}
