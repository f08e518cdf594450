//! The errors of a node, and its name in messages.

use core::fmt;
use core::net::{Ipv6Addr, SocketAddr, SocketAddrV4};
use core::time::Duration;

use embedded_io_async::ErrorKind;
use redlock_core::Denial;

use crate::resp::Rejection;

/// An error of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NodeError {
    node: NodeName,
    kind: NodeErrorKind,
}

impl NodeError {
    pub(crate) const fn new(node: NodeName, kind: NodeErrorKind) -> Self {
        Self { node, kind }
    }

    /// The name of the node.
    #[must_use]
    pub const fn node(&self) -> &NodeName {
        &self.node
    }

    /// What failed.
    #[must_use]
    pub const fn kind(&self) -> &NodeErrorKind {
        &self.kind
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.node, self.kind)
    }
}

impl core::error::Error for NodeError {}

/// What can fail on a node. The vote of the node then counts as unknown, never as a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NodeErrorKind {
    /// The round stopped waiting after this time.
    TimedOut(Duration),
    /// No connection could be made.
    Unreachable(ErrorKind),
    /// The node did not accept the connection, or was not ready, for this time. The next command reconnects.
    NoConnection(Duration),
    /// The connection broke. The next command reconnects.
    Disconnected,
    /// The node has not answered for so long that the client reconnects.
    Silent,
    /// The node answered with an error.
    Rejected(Rejection),
    /// The node's answer is not an answer to the command that was sent.
    Unexpected,
    /// The command is longer than the send buffer of this node.
    TooLong,
    /// The node can be reached and has no vote.
    Denied(Denial),
    /// The node is the same server as this other node of the lock, whose vote already counts.
    DuplicateOf(NodeName),
    /// The node does not have the scripts of fenced locks, although the client has loaded them again: another client
    /// flushes them all the time, or the user lacks `+script|load`.
    NoScript,
}

impl fmt::Display for NodeErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimedOut(after) => write!(f, "timed out after {} ms", after.as_millis()),
            Self::Unreachable(kind) => f.write_str(match kind {
                ErrorKind::ConnectionRefused => "connection refused",
                ErrorKind::ConnectionReset => "connection refused or reset",
                ErrorKind::ConnectionAborted => "connection aborted",
                ErrorKind::NotConnected => "no route to it: is the network up?",
                ErrorKind::TimedOut => "no answer at this address",
                _ => "cannot connect",
            }),
            Self::NoConnection(after) => {
                write!(f, "no connection within {} ms", after.as_millis())
            }
            Self::Disconnected => f.write_str("the connection broke"),
            Self::Silent => f.write_str("no answer for too long, reconnecting"),
            Self::Rejected(error) => write!(f, "{error}"),
            Self::Unexpected => f.write_str("unexpected reply; is this a Redis server?"),
            Self::TooLong => f.write_str(
                "the command does not fit the send buffer; use a shorter key or a larger TX",
            ),
            Self::Denied(denial) => write!(f, "{denial}"),
            Self::DuplicateOf(first) => {
                write!(f, "the same server as {first}; name each server once")
            }
            Self::NoScript => f.write_str(
                "has lost its scripts: stop SCRIPT FLUSH of others, or grant +script|load",
            ),
        }
    }
}

/// The name of a node in messages: its address, or a text.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NodeName(Inner);

/// Without the flow and scope of an address, which would double the size of every error.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
enum Inner {
    V4(SocketAddrV4),
    V6(Ipv6Addr, u16),
    Text(&'static str),
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
        }
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
