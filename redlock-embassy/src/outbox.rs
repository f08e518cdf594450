//! The last release of a node, stored until it is answered.

use heapless::Vec;
use redlock_core::Token;
use redlock_core::transport::{Command, Place, Proposal};

/// The last release, until it is answered. It is sent ahead of the next command if
///
/// - it could not be sent,
/// - its connection ended before the answer, or
/// - no reply is outstanding any more, and one of the replies was an error. It may be the answer to the release: only the
///   reply to the last command is matched.
///
/// So a release that the node refused is not sent again while any reply is outstanding.
///
/// The stored release is dropped if it does not fit the send buffer, or if the call of a release reads an error that is
/// neither temporary nor `NOSCRIPT`.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: State,
    key: Vec<u8, { Self::KEY_MAX }>,
    token: Token,
    proposal: Option<Proposal>,
    place: Option<Place>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// No release is stored.
    Empty,
    /// The connection has taken the release. It counts as answered when no reply is outstanding.
    InFlight,
    /// The release will be sent ahead of the next command for which there is a connection.
    Unsent,
}

impl Outbox {
    /// The longest key that is stored, in bytes. `Redlock` has the same limit for the releases that it still owes after a
    /// future was dropped. A longer key expires on the node.
    pub(crate) const KEY_MAX: usize = 64;

    pub(crate) const EMPTY: Self = Self {
        state: State::Empty,
        key: Vec::new(),
        token: Token::from_bytes([0; Token::LEN]),
        proposal: None,
        place: None,
    };

    /// Stores `command`, if it is a release, to be sent ahead of the next command.
    pub(crate) fn store_unsent(&mut self, command: &Command<'_>) {
        self.store(command, State::Unsent);
    }

    /// Stores `command`, if it is a release, until it is answered. The connection has taken it.
    pub(crate) fn store_in_flight(&mut self, command: &Command<'_>) {
        self.store(command, State::InFlight);
    }

    /// Stores `command` like [`store_unsent`](Self::store_unsent), unless another release is stored.
    #[cfg(feature = "queue")]
    pub(crate) fn store_if_empty(&mut self, command: &Command<'_>) {
        if matches!(self.state, State::Empty) {
            self.store_unsent(command);
        }
    }

    /// Whether a release is stored that must be sent.
    #[cfg(feature = "queue")]
    pub(crate) const fn is_unsent(&self) -> bool {
        matches!(self.state, State::Unsent)
    }

    /// Stores a release, if its key is not too long. It replaces the stored release.
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn store(&mut self, command: &Command<'_>, state: State) {
        if command.is_release() && command.key.len() <= Self::KEY_MAX {
            self.key.clear();
            let _fits = self.key.extend_from_slice(command.key);
            self.token = *command.token;
            self.proposal = command.proposal;
            self.place = command.place;
            self.state = state;
        }
    }

    /// Whether the stored release must be sent ahead of `command`. `false` if it is `command` itself.
    pub(crate) fn goes_ahead_of(&self, command: &Command<'_>) -> bool {
        matches!(self.state, State::Unsent) && !self.is(command)
    }

    /// Returns the stored release.
    pub(crate) fn command(&self) -> Command<'_> {
        Command::release(&self.key, &self.token)
            .with_proposal(self.proposal)
            .with_place(self.place)
    }

    /// Records that the connection has taken the stored release.
    pub(crate) const fn set_in_flight(&mut self) {
        self.state = State::InFlight;
    }

    /// Records that no reply is outstanding, or that the connection has ended. A release that was in flight will be sent
    /// again ahead of the next command if `is_retried`, and is dropped if not.
    pub(crate) const fn end_flight(&mut self, is_retried: bool) {
        if matches!(self.state, State::InFlight) {
            self.state = if is_retried {
                State::Unsent
            } else {
                State::Empty
            };
        }
    }

    /// Drops the stored release.
    pub(crate) const fn clear(&mut self) {
        self.state = State::Empty;
    }

    /// Whether the stored release is `command`. It is enough to compare the tokens: a token belongs to one lock.
    fn is(&self, command: &Command<'_>) -> bool {
        command.is_release() && *command.token == self.token
    }
}
