//! A command that outlives its caller.

use crate::admission::Rules;
use crate::command::{Command, Token};
use crate::fence::Proposal;

/// A command with a key of its own, for a transport that queues what it is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnedCommand<K> {
    key: K,
    token: Token,
    proposal: Option<Proposal>,
    verb: Verb,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Acquire { ttl_ms: u32, rules: Rules },
    Extend { ttl_ms: u32 },
    Release,
}

impl<'a, K: From<&'a [u8]>> From<&Command<'a>> for OwnedCommand<K> {
    fn from(command: &Command<'a>) -> Self {
        let (token, proposal, verb) = match *command {
            Command::Acquire {
                token,
                ttl_ms,
                rules,
                proposal,
                ..
            } => (token, proposal, Verb::Acquire { ttl_ms, rules }),
            Command::Extend {
                token,
                ttl_ms,
                proposal,
                ..
            } => (token, proposal, Verb::Extend { ttl_ms }),
            Command::Release {
                token, proposal, ..
            } => (token, proposal, Verb::Release),
        };
        Self {
            key: K::from(command.key()),
            token: *token,
            proposal,
            verb,
        }
    }
}

impl<K: AsRef<[u8]>> OwnedCommand<K> {
    /// The command that it was made of.
    #[must_use]
    pub fn command(&self) -> Command<'_> {
        let (key, token, proposal) = (self.key.as_ref(), &self.token, self.proposal);
        match self.verb {
            Verb::Acquire { ttl_ms, rules } => Command::Acquire {
                key,
                token,
                ttl_ms,
                rules,
                proposal,
            },
            Verb::Extend { ttl_ms } => Command::Extend {
                key,
                token,
                ttl_ms,
                proposal,
            },
            Verb::Release => Command::Release {
                key,
                token,
                proposal,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_command_comes_out_as_it_went_in() {
        let (key, token, ttl_ms, proposal) = (&b"dock"[..], &Token::from_bytes([7; 20]), 9, None);
        let rules = Rules {
            refuse_eviction: true,
            ..Rules::NONE
        };
        for command in [
            Command::Acquire {
                key,
                token,
                ttl_ms,
                rules,
                proposal,
            },
            Command::Extend {
                key,
                token,
                ttl_ms,
                proposal,
            },
            Command::Release {
                key,
                token,
                proposal,
            },
        ] {
            assert_eq!(OwnedCommand::<Vec<u8>>::from(&command).command(), command);
        }
    }
}
