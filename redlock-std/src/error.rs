//! Errors of connecting, acquiring and holding.

use std::fmt;

use redlock_core::{BuildError, Denial, Failure, KeyName};

use crate::core::MAX_NODES;
use crate::node::MAX_KEY;
use crate::{NodeError, TransportError};

/// Why [`Redlock::connect`](crate::Redlock::connect) failed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL is not that of a Redis or Valkey node.
    BadUrl {
        /// Which of the URLs it is, counted from 1. `None` if there was only this one.
        number: Option<usize>,
        /// The part of the URL that is safe to show: the scheme, and the host if it is certain that this part is the
        /// host. Empty if neither is known.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Two URLs name the same node. One node has one vote.
    DuplicateNode {
        /// The address of the node.
        node: String,
    },
    /// The nodes or the options are not valid for a lock.
    Build(BuildError),
    /// `connect` was called outside a tokio runtime.
    NoRuntime,
    /// The thread of a blocking handle, or its runtime, could not be started.
    NoThread {
        /// The error of the system.
        reason: String,
    },
    /// There is a URL with TLS, but the application has not installed a crypto provider for rustls.
    NoCryptoProvider,
    /// There is a URL with TLS, but TLS cannot be set up, for example because this system trusts no certificate.
    Tls {
        /// Why TLS cannot be set up.
        reason: String,
    },
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadUrl {
                number,
                url,
                reason,
            } => {
                f.write_str("bad node URL")?;
                if let Some(number) = number {
                    write!(f, " number {number}")?;
                }
                if !url.is_empty() {
                    write!(f, " {url}")?;
                }
                write!(f, ": {reason}")
            }
            Self::DuplicateNode { node } => {
                write!(f, "the node {node} is named twice, but has one vote; name it once")
            }
            Self::Build(error) => write!(f, "{error}"),
            Self::NoRuntime => f.write_str("no tokio runtime; call connect inside one"),
            Self::NoThread { reason } => write!(f, "no thread for the locks: {reason}"),
            Self::NoCryptoProvider => f.write_str(
                "no crypto provider for TLS; call rustls::crypto::CryptoProvider::install_default first",
            ),
            Self::Tls { reason } => write!(f, "TLS cannot be set up: {reason}"),
        }
    }
}

impl core::error::Error for ConnectError {}

impl ConnectError {
    /// The same, of the URL at this place in the list.
    pub(crate) fn of_url(mut self, index: usize) -> Self {
        if let Self::BadUrl { number, .. } = &mut self {
            *number = Some(index + 1);
        }
        self
    }
}

impl From<BuildError> for ConnectError {
    fn from(error: BuildError) -> Self {
        Self::Build(error)
    }
}

/// Why the lock was not acquired.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AcquireError {
    /// Another task of this process holds the lock, or is ahead in the queue for it.
    HeldHere(KeyName),
    /// The options are not valid, see [`Redlock::with_options`](crate::Redlock::with_options). No node was asked.
    Build(BuildError),
    /// The key with its prefix is longer than [`MAX_KEY`]. The value is its length in bytes. No node was asked.
    KeyTooLong(usize),
    /// No round began in time, because other acquires and extensions of this process were ahead. No node was asked.
    NotAsked {
        /// The key of the lock.
        key: KeyName,
        /// Whether a quorum of nodes answered the round of this process that ended last. If so, the process asks for too
        /// many locks. If not, the nodes do not answer.
        nodes_answer: bool,
    },
    /// The handle was [closed](crate::Redlock::close).
    Closed(KeyName),
    /// The error of the last round. Boxed, because it has the outcome of each node.
    Nodes(Box<redlock_core::AcquireError<NodeError, MAX_NODES>>),
}

impl From<redlock_core::AcquireError<NodeError, MAX_NODES>> for AcquireError {
    fn from(error: redlock_core::AcquireError<NodeError, MAX_NODES>) -> Self {
        Self::Nodes(Box::new(error))
    }
}

impl AcquireError {
    /// Returns whether another client, or another task of this process, holds the lock, is ahead in the queue for it, or
    /// has left keys that have not expired. If so, try again later. A plain lock cannot tell a key that another program has written from
    /// one that is held: `redlock inspect` can.
    #[must_use]
    pub fn is_held(&self) -> bool {
        match self {
            Self::HeldHere(_) => true,
            Self::Nodes(error) => matches!(**error, redlock_core::AcquireError::Held(_)),
            _ => false,
        }
    }

    /// Returns whether some node granted the lock in the last round, but too many others refused, see
    /// [`redlock_core::AcquireError::is_split`]. Then several clients have probably tried at once.
    #[must_use]
    pub fn is_split(&self) -> bool {
        matches!(self, Self::Nodes(error) if error.is_split())
    }

    /// Returns whether this process asks for more locks than the nodes grant in time.
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

    /// Returns whether too few nodes gave a vote, because they failed or had no vote. If so, check the nodes.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Nodes(error) => matches!(**error, redlock_core::AcquireError::Unreachable(_)),
            Self::NotAsked { nodes_answer, .. } => !nodes_answer,
            _ => false,
        }
    }

    /// Returns whether so many nodes refuse the login, the TTL or the rules of this client that the others are no quorum, as far as
    /// the last round has heard. As a rule, only an operator can change that, so [`acquire`](crate::Redlock::acquire) returns such an
    /// error at once. A program that may start before the user is created on the servers tries again.
    ///
    /// A login that was refused is known to the next rounds before they ask. Of the TTL and the rules, a round hears in the answers,
    /// and it does not wait for all of them if some nodes are down. So this may be `false` then.
    #[must_use]
    pub fn is_misconfigured(&self) -> bool {
        let Self::Nodes(error) = self else {
            return false;
        };
        error.report().is_some_and(|report| {
            let refused = report.failures().filter(|error| refuses_client(error));
            let nodes = report.tally().nodes;
            nodes.saturating_sub(refused.count()) <= nodes / 2
        })
    }

    /// The nodes that gave no vote, if these are too many.
    fn missing_votes(&self) -> impl Iterator<Item = &NodeError> {
        let report = match self {
            Self::Nodes(error) => error.report().filter(|_| self.is_unreachable()),
            _ => None,
        };
        report.into_iter().flat_map(Report::failures)
    }

    fn is_login_refused(&self) -> bool {
        self.missing_votes().any(
            |error| matches!(error.failure(), Failure::Transport(error) if error.is_wrong_login()),
        )
    }

    /// Whether too few nodes gave a vote because their clocks are not within the window of each other.
    fn clocks_differ(&self) -> bool {
        let mut missing = self.missing_votes().peekable();
        let is_apart = |error: &NodeError| {
            matches!(error.denial(), Some(Denial::TooOld(_) | Denial::TooNew(_)))
        };
        missing.peek().is_some() && missing.all(is_apart)
    }

    /// Whether too few nodes gave a vote, and `redlock init` lets some of them vote at once if their servers are new. It needs all
    /// nodes and no record, so not while one of them refuses this client or is known to have a record.
    fn may_be_new_servers(&self) -> bool {
        let mut may_be_new = false;
        for error in self.missing_votes() {
            match error.denial() {
                Some(
                    Denial::Restarted { has_record, .. } | Denial::Unguarded { has_record, .. },
                ) if !has_record => may_be_new = true,
                // A quarantine is that of a record.
                Some(
                    Denial::Restarted { .. }
                    | Denial::Unguarded { .. }
                    | Denial::Quarantined { .. },
                ) => return false,
                _ if refuses_client(error) => return false,
                _ => {}
            }
        }
        may_be_new
    }
}

/// Whether the node refuses how this client is configured.
const fn refuses_client(error: &NodeError) -> bool {
    matches!(
        error.failure(),
        Failure::Transport(TransportError::LoginRefused(_))
            | Failure::Denied(Denial::TtlTooLong { .. } | Denial::FencingMismatch(_))
    )
}

impl fmt::Display for AcquireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeldHere(key) => write!(
                f,
                "{key} is held by this process, or another of its tasks is ahead in the queue for it; a task that acquires a \
                lock that it holds waits for itself"
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
                "no node was asked for {key}: too many acquires or extensions of this process are ahead; use a longer wait, or \
                fewer locks at once"
            ),
            Self::NotAsked {
                key,
                nodes_answer: false,
            } => write!(
                f,
                "no node was asked for {key}: no quorum of nodes answers the acquires and extensions that are ahead; \
                Redlock::status tells of each node"
            ),
            Self::Closed(key) => write!(f, "{key} was not acquired: the handle was closed"),
            Self::Nodes(error) => {
                write!(f, "{error}")?;
                if self.may_be_new_servers() {
                    f.write_str(
                        "; if these servers are new, run `redlock init` to skip this wait",
                    )?;
                }
                if self.is_login_refused() {
                    f.write_str("; check the users and the passwords in the URLs of these nodes")?;
                }
                if self.clocks_differ() {
                    f.write_str("; set the clocks of the nodes, with NTP for example")?;
                }
                Ok(())
            }
        }
    }
}

impl core::error::Error for AcquireError {}

/// Why the lease was not extended.
pub type ExtendError = redlock_core::ExtendError<NodeError, MAX_NODES>;

/// Why a lock was lost.
pub type LossCause = redlock_core::LossCause<NodeError, MAX_NODES>;

/// The answer of each node.
pub(crate) type Report = redlock_core::Report<NodeError, MAX_NODES>;

/// The result of a release.
pub type Released = redlock_core::Released<NodeError, MAX_NODES>;

/// Why the work was not completed under the lock.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldError {
    /// The lock was not acquired. The work did not begin.
    NotAcquired(AcquireError),
    /// The lock was lost while the work ran. The work was dropped at that moment, unless it kept the task busy:
    /// then it ran past that moment. This does not undo what the work did. Boxed, because it may have the outcome of each
    /// node.
    Lost(Box<LossCause>),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_with_an_error_of_an_acquire_is_small() {
        // The limit of clippy's `result_large_err`.
        assert!(size_of::<AcquireError>() < 128);
        assert!(size_of::<HoldError>() < 128);
    }
}
