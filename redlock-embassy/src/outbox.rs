//! The last release of a node, kept until it is answered.

use heapless::Vec;
use redlock_core::Token;
use redlock_core::transport::{Command, Proposal};

/// The last release, until it is answered. If it could not be sent, if its connection ended, or if the node refused it
/// temporarily, it is sent ahead of the next command.
#[derive(Debug)]
pub(crate) struct Outbox {
    state: State,
    key: Vec<u8, { Self::KEY_MAX }>,
    token: Token,
    proposal: Option<Proposal>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// There is no release.
    Empty,
    /// The connection has taken it. It is answered when no reply is outstanding.
    Pushed,
    /// It is sent ahead of the next command.
    Waiting,
}

impl Outbox {
    /// The longest key, in bytes: as for the keys that a lock remembers after a future was dropped. A longer key expires.
    const KEY_MAX: usize = 64;

    pub(crate) const EMPTY: Self = Self {
        state: State::Empty,
        key: Vec::new(),
        token: Token::from_bytes([0; Token::LEN]),
        proposal: None,
    };

    /// Keeps `command` if it is a release, to be sent ahead of the next command.
    pub(crate) fn park(&mut self, command: &Command<'_>) {
        self.keep(command, State::Waiting);
    }

    /// Keeps `command` until it is answered if it is a release. The connection has taken it.
    pub(crate) fn park_pushed(&mut self, command: &Command<'_>) {
        self.keep(command, State::Pushed);
    }

    /// Keeps a release if its key is not too long. It replaces the release before it.
    // `inline(never)`: many callers, one copy in flash.
    #[inline(never)]
    fn keep(&mut self, command: &Command<'_>, state: State) {
        if command.is_release() && command.key.len() <= Self::KEY_MAX {
            self.key.clear();
            let _fits = self.key.extend_from_slice(command.key);
            self.token = *command.token;
            self.proposal = command.proposal;
            self.state = state;
        }
    }

    /// Whether the release goes ahead of `command`. `false` if it is `command` itself.
    pub(crate) fn goes_ahead_of(&self, command: &Command<'_>) -> bool {
        matches!(self.state, State::Waiting) && !self.is(command)
    }

    /// Returns the release.
    pub(crate) fn command(&self) -> Command<'_> {
        Command::release(&self.key, &self.token).with_proposal(self.proposal)
    }

    /// Records that the connection has taken the release.
    pub(crate) const fn pushed(&mut self) {
        self.state = State::Pushed;
    }

    /// Records that no reply is outstanding or that the connection has ended. A release that must be sent `again` waits for the
    /// next command.
    pub(crate) const fn settle(&mut self, again: bool) {
        if matches!(self.state, State::Pushed) {
            self.state = if again { State::Waiting } else { State::Empty };
        }
    }

    /// Drops the release.
    pub(crate) const fn clear(&mut self) {
        self.state = State::Empty;
    }

    /// Whether the release is `command`: a token belongs to one lock.
    fn is(&self, command: &Command<'_>) -> bool {
        command.is_release() && *command.token == self.token
    }
}
