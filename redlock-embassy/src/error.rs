//! The errors of a node, and its name in messages.

use core::fmt;
use core::net::{Ipv6Addr, SocketAddr, SocketAddrV4};
use core::time::Duration;

use embedded_io_async::ErrorKind;
use redlock_core::text;

use crate::resp::Rejection;

/// An error of a node, with the name of the node.
pub type NodeError = redlock_core::NodeError<NodeName, TransportError>;

/// An error of the connection to a node, or an error reply of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

text! {
    impl [] for TransportError [] {
        Self::Unreachable(ErrorKind::ConnectionRefused) => "connection refused";
        Self::Unreachable(ErrorKind::ConnectionReset) => "connection refused or reset";
        Self::Unreachable(ErrorKind::ConnectionAborted) => "connection aborted";
        Self::Unreachable(ErrorKind::NotConnected) => "no route to it: is the network up?";
        Self::Unreachable(ErrorKind::TimedOut) => "no answer at this address";
        Self::Unreachable(ErrorKind::NotFound) => "the name has no address: is it right, and is DNS up?";
        Self::Unreachable(ErrorKind::PermissionDenied) =>
            "its certificate was refused: check its CA, name and dates";
        Self::Unreachable(ErrorKind::InvalidData) => "no TLS 1.3 at this port";
        Self::Unreachable(ErrorKind::OutOfMemory) => "a buffer is too short for what it sends";
        Self::Unreachable(_) => "cannot connect";
        Self::NoConnection(after) => "no connection within {} ms", after.as_millis();
        Self::NotConnected(after) =>
            "still connecting after {} ms; call connect_quorum first if this is usual", after.as_millis();
        Self::NoAnswer(after) =>
            "timed out after {} ms; raise node_timeout if the network is slow", after.as_millis();
        Self::Disconnected => "the connection broke";
        Self::Silent => "no answer for too long, reconnecting";
        Self::Rejected(error) => "{}", error;
        Self::Unexpected => "unexpected reply; is this a Redis server?";
        Self::TooLong => "the command does not fit the send buffer; use a shorter key or a larger TX";
        Self::NoScript => "has lost its scripts: stop SCRIPT FLUSH by others, or grant +script|load";
    }
}

impl core::error::Error for TransportError {}

/// The name of a node in messages: its address, or a text.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NodeName(Inner);

/// The flow and the scope of an address are left out, because they would double the size of every error.
#[derive(Clone, Copy, PartialEq, Eq)]
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

text! {
    impl [] for NodeName [] {
        Self(Inner::V4(address)) => "{}", address;
        Self(Inner::V6(address, port)) => "[{}]:{}", address, port;
        Self(Inner::Text(text)) => "{}", text;
        #[cfg(all(
            feature = "dns",
            any(feature = "embassy-net", feature = "embassy-net-ip")
        ))]
        Self(Inner::Host { name, port, has_address: true }) => "{}:{}", name, port;
        #[cfg(all(
            feature = "dns",
            any(feature = "embassy-net", feature = "embassy-net-ip")
        ))]
        Self(Inner::Host { name, port, has_address: false }) => "{}:{} (no address yet)", name, port;
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
