//! Why nodes cannot be used, and why a lock was not acquired.

use std::fmt;

use redlock_core::{BuildError, KeyName};

use crate::NodeError;
use crate::core::{MAX_KEY, MAX_NODES};

/// Why a [`Redlock`](crate::Redlock) cannot be made of these URLs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is not one of a Redis or Valkey node.
    BadUrl {
        /// What may be shown of the URL: its scheme, and its host where it is surely that. Empty if there is neither.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Two URLs name the same node. One node has one vote.
    DuplicateNode {
        /// Its address.
        node: String,
    },
    /// The nodes or the options do not make a lock.
    Build(BuildError),
    /// There is no tokio runtime here to run the connections.
    NoRuntime,
    /// A `rediss://` URL, but the application has not installed a crypto provider for rustls.
    NoCryptoProvider,
    /// A `rediss://` URL, but TLS cannot be set up: this system trusts no certificate, for instance.
    Tls {
        /// Why not.
        reason: String,
    },
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadUrl { url, reason } => {
                f.write_str("bad node URL")?;
                if !url.is_empty() {
                    write!(f, " {url}")?;
                }
                write!(f, ": {reason}; write redis://HOST:PORT")
            }
            Self::DuplicateNode { node } => {
                write!(f, "the node {node} is named twice: one node has one vote, name it once")
            }
            Self::Build(error) => write!(f, "{error}"),
            Self::NoRuntime => f.write_str("no tokio runtime: connect inside of one"),
            Self::NoCryptoProvider => f.write_str(
                "no crypto provider for TLS: call rustls::crypto::CryptoProvider::install_default first",
            ),
            Self::Tls { reason } => write!(f, "no TLS: {reason}"),
        }
    }
}

impl core::error::Error for ConnectError {}

impl From<BuildError> for ConnectError {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

/// Why the lock was not acquired.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(
    clippy::large_enum_variant,
    reason = "an error that is made once per failed acquire, and mostly the large variant"
)]
pub enum AcquireError {
    /// Another task of this process holds the lock, or is ahead in the queue for it.
    HeldHere(KeyName),
    /// The options do not make a lock, see [`Redlock::with_options`](crate::Redlock::with_options). No node was asked.
    Build(BuildError),
    /// The key is longer than [`MAX_KEY`], the prefix included. No node was asked.
    KeyTooLong(usize),
    /// So many other acquires and extensions of this process were ahead that no round for this one began in time. No node was asked.
    NotAsked {
        /// The lock.
        key: KeyName,
        /// Whether a quorum of nodes has answered the last of the others: if so, they are too many.
        nodes_answer: bool,
    },
    /// What the nodes said in the last round.
    Nodes(redlock_core::AcquireError<NodeError, MAX_NODES>),
}

impl AcquireError {
    /// Whether another client, or another task of this process, holds the lock, or is ahead of this one, or has left keys
    /// that have not expired: try again later.
    #[must_use]
    pub const fn is_held(&self) -> bool {
        matches!(
            self,
            Self::HeldHere(_) | Self::Nodes(redlock_core::AcquireError::Held(_))
        )
    }

    /// Whether this process asks for more locks than the nodes grant in time.
    #[must_use]
    pub const fn is_overloaded(&self) -> bool {
        matches!(
            self,
            Self::NotAsked {
                nodes_answer: true,
                ..
            }
        )
    }

    /// Whether no quorum of nodes could be reached: look after the nodes.
    #[must_use]
    pub const fn is_unreachable(&self) -> bool {
        matches!(
            self,
            Self::Nodes(redlock_core::AcquireError::Unreachable(_))
                | Self::NotAsked {
                    nodes_answer: false,
                    ..
                }
        )
    }
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeldHere(key) => write!(
                f,
                "{key} is held by another task of this process, or one is ahead in the queue for it"
            ),
            Self::Build(error) => write!(f, "{error}"),
            Self::KeyTooLong(length) => write!(
                f,
                "a key of {length} bytes is too long: at most {MAX_KEY}; use a digest of it"
            ),
            Self::NotAsked {
                key,
                nodes_answer: true,
            } => write!(
                f,
                "{key} was not asked for: too many acquires or extensions of this process are ahead; use a longer wait, or fewer \
                 locks at once"
            ),
            Self::NotAsked {
                key,
                nodes_answer: false,
            } => write!(
                f,
                "{key} was not asked for: no quorum of nodes answers those that are ahead"
            ),
            Self::Nodes(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for AcquireError {}

/// Why the lease was not extended.
pub type ExtendError = redlock_core::ExtendError<NodeError, MAX_NODES>;

/// Why a lease was given up.
pub type LossCause = redlock_core::LossCause<NodeError, MAX_NODES>;

/// What each node answered.
pub(crate) type Report = redlock_core::Report<NodeError, MAX_NODES>;

/// What is known after a release.
pub type Released = redlock_core::Released<NodeError, MAX_NODES>;

/// Why the work was not done under the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldError {
    /// The lock was not acquired; the work was not begun.
    NotAcquired(AcquireError),
    /// The lock was lost while the work ran: the work was dropped at that moment, or had run past it.
    /// What it had done until then is done.
    Lost(LossCause),
}

impl fmt::Display for HoldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAcquired(error) => write!(f, "{error}"),
            Self::Lost(cause) => write!(f, "the work was stopped: {cause}"),
        }
    }
}

impl core::error::Error for HoldError {}
