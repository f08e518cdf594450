//! What can go wrong with a node, and what the node is called.

use core::fmt;
use core::net::{Ipv6Addr, SocketAddr, SocketAddrV4};
use core::time::Duration;

use embedded_io_async::ErrorKind;
use redlock_core::Denial;

use crate::resp::Rejection;

/// What went wrong, on which node.
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

    /// Where the node is.
    #[must_use]
    pub const fn node(&self) -> &NodeName {
        &self.node
    }

    /// What went wrong.
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

/// What can go wrong with a node. It counts as unknown, never as a no.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum NodeErrorKind {
    /// The round stopped waiting after this time.
    TimedOut(Duration),
    /// No connection could be made.
    Unreachable(ErrorKind),
    /// The node let nobody in, or was not ready, for so long. The connection is made anew.
    NoConnection(Duration),
    /// The connection broke. The next command makes another one.
    Disconnected,
    /// The node has not answered for so long that its connection is replaced.
    Silent,
    /// The node answered with an error.
    Rejected(Rejection),
    /// The node's answer is none to the command that was sent.
    Unexpected,
    /// The command is longer than the send buffer of this node.
    TooLong,
    /// The node can be reached and has no vote.
    Denied(Denial),
    /// It is the same server as this other node of the lock, whose vote is counted already.
    DuplicateOf(NodeName),
    /// The node does not know the scripts of fenced locks (any more). The connection is made anew, and with
    /// it they are put there.
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
                ErrorKind::TimedOut => "nobody answers at this address",
                _ => "cannot connect",
            }),
            Self::NoConnection(after) => {
                write!(f, "no connection within {} ms", after.as_millis())
            }
            Self::Disconnected => f.write_str("the connection broke"),
            Self::Silent => f.write_str("no answer for too long, connecting anew"),
            Self::Rejected(error) => write!(f, "{error}"),
            Self::Unexpected => f.write_str("answered what no Redis answers; is it one?"),
            Self::TooLong => f.write_str(
                "the command does not fit the send buffer; use a shorter key or a larger TX",
            ),
            Self::Denied(denial) => write!(f, "{denial}"),
            Self::DuplicateOf(first) => {
                write!(f, "the same server as {first}; name each server once")
            }
            Self::NoScript => f.write_str(
                "has lost its scripts, connecting anew; if it happens again, grant +script|load",
            ),
        }
    }
}

/// Where a node is, as messages show it.
#[derive(Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NodeName(Inner);

/// Without flow and scope of an address, which would double the size of every error.
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
