//! A lease on its way from one process to another.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redlock_core::{BuildError, Fence, KeyName, Token};

use crate::error::ExtendError;
use crate::node::MAX_KEY;

/// A lease that no process keeps: [`Guard::hand_over`](crate::Guard::hand_over) returns it, and
/// [`Redlock::adopt`](crate::Redlock::adopt) takes it.
///
/// Its keys expire one TTL after the grant or the last extension. Dropping it releases nothing. With the token, any client can release
/// the lock, so keep it secret: `Debug` shows only its first bytes.
#[derive(Clone, PartialEq, Eq)]
pub struct Handover {
    pub(crate) key: Arc<[u8]>,
    pub(crate) token: Token,
    pub(crate) fence: Option<Fence>,
    pub(crate) ttl: Duration,
}

impl Handover {
    /// A lease that another process has handed over. The key has its prefix, if there is one. `fence` is that of the lease, or
    /// `None` if the lock is plain. `ttl` is that of the lease.
    #[must_use]
    pub fn new(key: impl AsRef<[u8]>, token: Token, fence: Option<Fence>, ttl: Duration) -> Self {
        Self {
            key: key.as_ref().into(),
            token,
            fence,
            ttl,
        }
    }

    /// Returns the locked key, with the prefix if there is one.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the token: the value of the key on every node.
    #[must_use]
    pub const fn token(&self) -> &Token {
        &self.token
    }

    /// Returns the TTL of the lease.
    #[must_use]
    pub const fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Returns the fencing token, or `None` if the lock is plain.
    #[must_use]
    pub const fn fence(&self) -> Option<Fence> {
        self.fence
    }
}

impl fmt::Debug for Handover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handover")
            .field("key", &KeyName::new(&self.key))
            .field("token", &self.token)
            .field("fence", &self.fence)
            .field("ttl", &self.ttl)
            .finish()
    }
}

/// Why a lease was not adopted. No key was deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AdoptError {
    /// A task that uses this handle or a clone of it holds the lock, or is ahead in the queue for it. No lease was adopted.
    HeldHere(KeyName),
    /// The handle is [closed](crate::Redlock::close). No node was asked.
    Closed(KeyName),
    /// The options are not valid, see [`Redlock::with_options`](crate::Redlock::with_options). No node was asked.
    Build(BuildError),
    /// The key is longer than [`MAX_KEY`]. The value is its length in bytes. No node was asked.
    KeyTooLong(usize),
    /// The TTL of the options is not that of the lease, which is the value. No node was asked.
    OtherTtl(Duration),
    /// The lease is fenced and the options are not, or the other way round. No node was asked.
    OtherKind,
    /// The nodes did not extend the lease, or not in time. After [`ExtendError::Unreachable`], [`ExtendError::NotAsked`] and
    /// [`ExtendError::TooLate`], try again. After any other error, the lease is lost.
    Nodes(Box<ExtendError>),
}

impl AdoptError {
    /// Returns whether a later attempt may adopt the lease.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::HeldHere(_) => true,
            Self::Nodes(error) => {
                error.is_retryable()
                    || matches!(
                        **error,
                        ExtendError::NotAsked { .. } | ExtendError::TooLate(_)
                    )
            }
            Self::Closed(_)
            | Self::Build(_)
            | Self::KeyTooLong(_)
            | Self::OtherTtl(_)
            | Self::OtherKind => false,
        }
    }
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HeldHere(key) => write!(
                f,
                "{key} is held by this process, or another of its tasks is ahead in the queue for it"
            ),
            Self::Closed(key) => write!(f, "{key} was not adopted, because this handle was closed"),
            Self::Build(error) => write!(f, "{error}"),
            Self::KeyTooLong(length) => write!(
                f,
                "a key of {length} bytes is too long: at most {MAX_KEY}; use a digest of it"
            ),
            Self::OtherTtl(ttl) => write!(
                f,
                "the TTL of the options is not that of the lease, {} ms: use the same, because an extension that arrives late \
                 sets the TTL of its sender",
                ttl.as_millis()
            ),
            Self::OtherKind => f.write_str(
                "a fenced lease needs fenced options, and a plain one plain options: use those of the process that acquired it",
            ),
            Self::Nodes(error) => write!(f, "{error}"),
        }
    }
}

impl core::error::Error for AdoptError {}
