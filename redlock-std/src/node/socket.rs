//! The stream of bytes to a node, with TLS if its address needs it.

use std::io::ErrorKind;
use std::sync::Arc;

use redis::RedisError;
use tokio::io::{AsyncRead, AsyncWrite};

use super::address::{Address, Place};
use super::error::{TransportError, in_words};
use super::metered::{Credit, Metered};

/// A stream of bytes to a node.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// A connected socket that counts the bytes that arrive.
pub(crate) enum Socket {
    Tcp(Metered<tokio::net::TcpStream>),
    #[cfg(unix)]
    Unix(Metered<tokio::net::UnixStream>),
}

impl Socket {
    pub(crate) async fn open(
        address: &Address,
        credit: &Arc<Credit>,
    ) -> Result<Self, TransportError> {
        let credit = Arc::clone(credit);
        let socket = match address.place() {
            Place::Tcp(host) => host
                .dial()
                .await
                .map(|stream| Self::Tcp(Metered::new(stream, credit))),
            #[cfg(feature = "tls-rustls")]
            Place::Tls { host, .. } => {
                credit.grant_handshake();
                host.dial()
                    .await
                    .map(|stream| Self::Tcp(Metered::new(stream, credit)))
            }
            #[cfg(unix)]
            Place::Unix(path) => tokio::net::UnixStream::connect(path)
                .await
                .map(|stream| Self::Unix(Metered::new(stream, credit))),
        };
        socket.map_err(|error| {
            TransportError::Unreachable(match (address.place(), error.kind()) {
                #[cfg(unix)]
                (Place::Unix(_), ErrorKind::NotFound) => "the socket does not exist".into(),
                _ => in_words(&error.into()),
            })
        })
    }

    /// Does the TLS handshake if the address needs one.
    pub(crate) async fn secured(self, address: &Address) -> Result<Box<dyn Stream>, RedisError> {
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
