//! The errors of a node, and its name in messages.

use core::fmt;
use core::net::{Ipv6Addr, SocketAddr, SocketAddrV4};
use core::time::Duration;

use embedded_io_async::ErrorKind;

use crate::resp::Rejection;

/// An error of a node, with the name of the node.
pub type NodeError = redlock_core::NodeError<NodeName, TransportError>;

/// An error of the connection to a node, or an error reply of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum TransportError {
    /// No connection could be made.
    Unreachable(ErrorKind),
    /// Connecting, or an answer to the login, took longer than this time. The next command reconnects.
    NoConnection(Duration),
    /// The round stopped waiting after this time, and the node was not connected yet. The attempt to connect continues. If
    /// connecting takes longer than a round, see [`connect_quorum`](crate::connect_quorum).
    NotConnected(Duration),
    /// The round stopped waiting after this time, and the node had not answered the command. The node may be down, or too far
    /// away for the node timeout.
    NoAnswer(Duration),
    /// The connection broke. The next command reconnects.
    Disconnected,
    /// The next reply took longer than [`TcpNode::patience`](crate::TcpNode::patience). The next command reconnects.
    Silent,
    /// The node answered the command with an error.
    Rejected(Rejection),
    /// The node's reply does not fit the command that was sent. The next command reconnects.
    Unexpected,
    /// The command is longer than the send buffer of this node.
    TooLong,
    /// The node lacks the scripts of fenced locks: another client runs `SCRIPT FLUSH` each time after the client has loaded
    /// them, or the user lacks `+script|load`.
    NoScript,
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(kind) => f.write_str(match kind {
                ErrorKind::ConnectionRefused => "connection refused",
                ErrorKind::ConnectionReset => "connection refused or reset",
                ErrorKind::ConnectionAborted => "connection aborted",
                ErrorKind::NotConnected => "no route to it: is the network up?",
                ErrorKind::TimedOut => "no answer at this address",
                ErrorKind::NotFound => "the name has no address: is it right, and is DNS up?",
                _ => "cannot connect",
            }),
            Self::NoConnection(after) => {
                write!(f, "no connection within {} ms", after.as_millis())
            }
            Self::NotConnected(after) => {
                write!(f, "still connecting after {} ms", after.as_millis())
            }
            Self::NoAnswer(after) => write!(
                f,
                "timed out after {} ms; raise node_timeout if the network is slow",
                after.as_millis()
            ),
            Self::Disconnected => f.write_str("the connection broke"),
            Self::Silent => f.write_str("no answer for too long, reconnecting"),
            Self::Rejected(error) => write!(f, "{error}"),
            Self::Unexpected => f.write_str("unexpected reply; is this a Redis server?"),
            Self::TooLong => f.write_str(
                "the command does not fit the send buffer; use a shorter key or a larger TX",
            ),
            Self::NoScript => f.write_str(
                "has lost its scripts: stop SCRIPT FLUSH by others, or grant +script|load",
            ),
        }
    }
}

impl core::error::Error for TransportError {}

/// The name of a node in messages: its address, or a text.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NodeName(Inner);

/// The flow and the scope of an address are left out, because they would double the size of every error.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
enum Inner {
    V4(SocketAddrV4),
    V6(Ipv6Addr, u16),
    Text(&'static str),
    #[cfg(all(
        feature = "dns",
        any(feature = "embassy-net", feature = "embassy-net-ip")
    ))]
    Host {
        name: &'static str,
        port: u16,
        has_address: bool,
    },
}

#[cfg(all(
    feature = "dns",
    any(feature = "embassy-net", feature = "embassy-net-ip")
))]
impl NodeName {
    pub(crate) const fn of_host(name: &'static str, port: u16, has_address: bool) -> Self {
        Self(Inner::Host {
            name,
            port,
            has_address,
        })
    }
}

impl From<SocketAddr> for NodeName {
    fn from(address: SocketAddr) -> Self {
        Self(match address {
            SocketAddr::V4(address) => Inner::V4(address),
            SocketAddr::V6(address) => Inner::V6(*address.ip(), address.port()),
        })
    }
}

impl From<&'static str> for NodeName {
    fn from(text: &'static str) -> Self {
        Self(Inner::Text(text))
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Inner::V4(address) => write!(f, "{address}"),
            Inner::V6(address, port) => write!(f, "[{address}]:{port}"),
            Inner::Text(text) => f.write_str(text),
            #[cfg(all(
                feature = "dns",
                any(feature = "embassy-net", feature = "embassy-net-ip")
            ))]
            Inner::Host {
                name,
                port,
                has_address,
            } => {
                let note = if has_address { "" } else { " (no address yet)" };
                write!(f, "{name}:{port}{note}")
            }
        }
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
