//! A command that outlives its caller.

use crate::command::{Command, Verb};
use crate::fence::Proposal;
use crate::line::Place;
use crate::token::Token;

/// A command that owns its key, for a transport that queues commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnedCommand<K> {
    pub(crate) key: K,
    pub(crate) token: Token,
    pub(crate) proposal: Option<Proposal>,
    pub(crate) place: Option<Place>,
    pub(crate) verb: Verb,
}

impl<K> OwnedCommand<K> {
    /// Creates the command that owns `key`, the key of `command`. For a transport that has the key in a form which is cheap to
    /// share.
    #[must_use]
    pub const fn with_key(command: &Command<'_>, key: K) -> Self {
        Self {
            key,
            token: *command.token,
            proposal: command.proposal,
            place: command.place,
            verb: command.verb,
        }
    }
}

impl<'a, K: From<&'a [u8]>> From<&Command<'a>> for OwnedCommand<K> {
    fn from(command: &Command<'a>) -> Self {
        Self::with_key(command, K::from(command.key))
    }
}

impl<K: AsRef<[u8]>> OwnedCommand<K> {
    /// The command from which this one was created.
    #[must_use]
    pub fn command(&self) -> Command<'_> {
        Command {
            key: self.key.as_ref(),
            token: &self.token,
            proposal: self.proposal,
            place: self.place,
            verb: self.verb,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vote_conditions::VoteConditions;
    use std::vec::Vec;

    #[test]
    fn an_owned_command_gives_back_the_same_command() {
        let (key, token) = (b"dock", &Token::from_bytes([7; Token::LEN]));
        let conditions = VoteConditions {
            refuse_eviction: true,
            ..VoteConditions::NONE
        };
        for command in [
            Command::acquire(key, token, 9, conditions),
            Command::extend(key, token, 9),
            Command::release(key, token),
        ] {
            assert_eq!(OwnedCommand::<Vec<u8>>::from(&command).command(), command);
        }
    }
}
