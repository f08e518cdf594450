//! Without the feature `queue`, a client has no mailbox.
//!
//! The items in `enabled.rs` must have the same signatures.

use redlock_core::transport::{Command, Mailbox};

/// The mailbox of this client on one node.
#[derive(Debug, Default)]
pub struct Mail;

impl Mail {
    /// A client without a mailbox.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }

    pub(crate) const fn mailbox(&self) -> Option<Mailbox> {
        None
    }

    pub(crate) const fn stands_in_line(&self, _key: &[u8]) -> bool {
        false
    }

    #[cfg(feature = "scripts")]
    pub(crate) const fn uses_fences(&self) -> bool {
        true
    }

    #[cfg(feature = "scripts")]
    pub(crate) const fn uses_fenced_lines(&self) -> bool {
        false
    }

    #[cfg(feature = "scripts")]
    pub(crate) const fn uses_plain_lines(&self) -> bool {
        false
    }

    pub(crate) const fn needs_subscription(&self, _command: &Command<'_>) -> bool {
        false
    }

    pub(crate) const fn connected(&mut self) {}

    pub(crate) const fn queued(&mut self, _command: &Command<'_>, _outstanding: u8) {}

    pub(crate) const fn replied(&mut self) {}
}
