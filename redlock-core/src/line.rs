//! The waiting line of a lock: what a client tells a node about its place in the line, and what the node answers.

// The test kit needs these types also without the feature `queue`.
#[cfg(not(any(feature = "queue", feature = "mock")))]
#[path = "line/disabled.rs"]
mod place;
#[cfg(any(feature = "queue", feature = "mock"))]
#[path = "line/enabled.rs"]
mod place;

pub(crate) use place::LineReport;
pub use place::{LineWord, Mailbox, Place, Position, Waiters};

/// Why a node refuses a client that stands in its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Refusal {
    /// Another client holds the lock.
    Held,
    /// The lock is free, and another client is ahead in the line.
    Ahead,
    /// The lock is free, and other clients wait for it, but the line has no room for this client.
    Full,
}

/// What a node tells a waiting client through its mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Call {
    /// It is the turn of this client. The lock is free on this node.
    Turn,
    /// It is the turn of the client ahead. This client is its deputy: it comes when the turn is over.
    Deputy,
    /// The connection is new, so calls may have been lost. The client looks at the lock at once.
    Reconnected,
}

impl Call {
    /// Parses the payload of a message to a mailbox: the call, and the key of its lock. `None` if it is no call.
    #[must_use]
    pub fn read(payload: &[u8]) -> Option<(Self, &[u8])> {
        match payload.split_first()? {
            (b'1', key) => Some((Self::Turn, key)),
            (b'2', key) => Some((Self::Deputy, key)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_to_a_mailbox_is_a_call_for_a_key() {
        assert_eq!(Call::read(b"1dock"), Some((Call::Turn, &b"dock"[..])));
        assert_eq!(Call::read(b"2dock"), Some((Call::Deputy, &b"dock"[..])));
        assert_eq!(Call::read(b"1"), Some((Call::Turn, &b""[..])));
        for other in [&b""[..], b"3dock", b"dock"] {
            assert_eq!(Call::read(other), None);
        }
    }
}
