//! The commands of a client to one node.

use crate::denial::Denial;
use crate::fence::Proposal;
use crate::key::GUARD_KEY;
use crate::reply::{Reply, fenced_reply};
use crate::token::Token;
use crate::vote_conditions::VoteConditions;
use crate::wire::{Answer, Argument, Arguments, Script, ScriptCall, word};

/// One command to one node.
///
/// A transport need not read its fields: it sends [`arguments`](Self::arguments), and
/// [`reply`](Self::reply) parses the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Command<'a> {
    /// The key of the lock.
    pub key: &'a [u8],
    /// The token of the attempt or lease.
    pub token: &'a Token,
    /// For an acquire, the fence that it proposes. For an extend, the fence of the lease. For a release, the fence of the lease,
    /// or the last fence that the attempt proposed. `None` if the lock is plain.
    pub proposal: Option<Proposal>,
    /// What the node must do.
    pub verb: Verb,
}

/// What a node does to the key of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Verb {
    /// Sets the key to the token unless the key exists.
    Acquire {
        /// How long the key lives, in milliseconds.
        ttl_ms: u32,
        /// The conditions that the node must meet before its vote counts. See [`Admission`](crate::transport::Admission).
        conditions: VoteConditions,
    },
    /// Lets the key live for `ttl_ms` from now if it still carries the token.
    Extend {
        /// How long the key lives from now, in milliseconds.
        ttl_ms: u32,
    },
    /// Deletes the key if it still carries the token. If the lock is fenced, the node accepts the fence no more.
    Release,
}

impl<'a> Command<'a> {
    /// Sets `key` to `token` for `ttl_ms` milliseconds, unless the key exists.
    #[must_use]
    pub const fn acquire(
        key: &'a [u8],
        token: &'a Token,
        ttl_ms: u32,
        conditions: VoteConditions,
    ) -> Self {
        Self::new(key, token, Verb::Acquire { ttl_ms, conditions })
    }

    /// Lets `key` live for `ttl_ms` milliseconds from now if it carries `token`.
    #[must_use]
    pub const fn extend(key: &'a [u8], token: &'a Token, ttl_ms: u32) -> Self {
        Self::new(key, token, Verb::Extend { ttl_ms })
    }

    /// Deletes `key` if it carries `token`.
    #[must_use]
    pub const fn release(key: &'a [u8], token: &'a Token) -> Self {
        Self::new(key, token, Verb::Release)
    }

    const fn new(key: &'a [u8], token: &'a Token, verb: Verb) -> Self {
        Self {
            key,
            token,
            proposal: None,
            verb,
        }
    }

    /// The same command for a fenced lock, or for a plain one if `proposal` is `None`.
    #[must_use]
    pub const fn with_proposal(self, proposal: Option<Proposal>) -> Self {
        Self { proposal, ..self }
    }

    /// Whether it sets the key.
    #[must_use]
    pub const fn is_acquire(&self) -> bool {
        matches!(self.verb, Verb::Acquire { .. })
    }

    /// Whether it deletes the key.
    #[must_use]
    pub const fn is_release(&self) -> bool {
        matches!(self.verb, Verb::Release)
    }

    /// Whether an honest node can have given this answer: a node grants only if its clock is within the window of the fence
    /// (acquire) or of the client's time (extend).
    pub(crate) fn can_be_granted<E>(&self, answer: &Result<Reply, E>) -> bool {
        let (reading, wanted) = match (answer, self.proposal) {
            (Ok(Reply::Acquired(Some(reading))), Some(proposal)) => {
                (reading, proposal.fence().as_u64())
            }
            (Ok(Reply::Extended(Some(reading))), Some(proposal)) => (reading, proposal.time()),
            _ => return true,
        };
        let window_ms = self.proposal.map_or(0, |proposal| proposal.fencing_ms()[1]);
        reading.time().abs_diff(wanted) <= u64::from(window_ms) * 1_000
    }

    /// Whether the lock is fenced. Without the feature `fence`, the compiler knows that it is not.
    #[must_use]
    pub const fn is_fenced(&self) -> bool {
        self.proposal.is_some()
    }

    /// The script that this command calls. `None` if it is a plain Redis command.
    ///
    /// Loading it at connect time (`SCRIPT LOAD`) saves the first call a round trip.
    #[must_use]
    pub const fn script(&self) -> Option<&'static Script> {
        match (self.verb, self.is_fenced()) {
            (Verb::Acquire { .. }, false) => None,
            (Verb::Extend { .. }, false) => Some(&Script::EXTEND),
            (Verb::Release, false) => Some(&Script::RELEASE),
            (Verb::Acquire { .. }, true) => Some(&Script::ACQUIRE_FENCED),
            (Verb::Extend { .. }, true) => Some(&Script::EXTEND_FENCED),
            (Verb::Release, true) => Some(&Script::RELEASE_FENCED),
        }
    }

    /// The words of the Redis command.
    ///
    /// If the node answers `NOSCRIPT`, the script is not in its cache: send the command again with [`ScriptCall::Text`], on the
    /// same connection.
    #[must_use]
    pub fn arguments(&self, call: ScriptCall) -> Arguments<'a> {
        let key = Argument::Bytes(self.key);
        let token = Argument::Bytes(self.token.as_bytes());
        let ttl = match self.verb {
            Verb::Acquire { ttl_ms, .. } | Verb::Extend { ttl_ms } => {
                Some(Argument::Integer(ttl_ms.into()))
            }
            Verb::Release => None,
        };
        let Some(script) = self.script() else {
            let mut arguments = Arguments::of(&[word("SET"), key, token, word("NX"), word("PX")]);
            arguments.push(ttl);
            return arguments;
        };
        let keys = match self.proposal {
            None => "1",
            Some(_) if self.is_release() => "2",
            Some(_) => "3",
        };
        let mut arguments = script.call(call, keys);
        arguments.push(Some(key));
        if self.is_fenced() {
            arguments.push(Some(Argument::FenceKey(self.key)));
            arguments.push((!self.is_release()).then_some(word(GUARD_KEY)));
        }
        arguments.push(Some(token));
        arguments.push(ttl);
        if let Some(proposal) = self.proposal {
            let number = |number: u64| Some(Argument::Integer(number));
            let [max_ttl, window, step_back] = proposal.fencing_ms().map(|ms| number(ms.into()));
            arguments.push(number(proposal.fence().as_u64()));
            arguments.push(match self.verb {
                Verb::Acquire { .. } => max_ttl,
                Verb::Extend { .. } => number(proposal.time()),
                Verb::Release => None,
            });
            arguments.push(window);
            arguments.push(step_back);
            // Left out of most acquires.
            let vouches = self.is_acquire() && proposal.vouches();
            arguments.push(vouches.then_some(Argument::Integer(1)));
        }
        arguments
    }

    /// What `answer` means for this command. `None` if it is not an answer to this command.
    #[must_use]
    pub fn reply(&self, answer: Answer) -> Option<Result<Reply, Denial>> {
        let reply = match (self.verb, &self.proposal, answer) {
            (Verb::Acquire { .. }, None, Answer::Ok) => Reply::Acquired(None),
            (Verb::Acquire { .. }, None, Answer::Nil) => Reply::Held(None),
            (Verb::Extend { .. }, None, Answer::Integer(1)) => Reply::Extended(None),
            (Verb::Release, _, Answer::Integer(1)) => Reply::Released,
            (Verb::Extend { .. }, None, Answer::Integer(0))
            | (Verb::Release, _, Answer::Integer(0)) => Reply::NotMine,
            (Verb::Acquire { .. }, Some(proposal), Answer::Integers(numbers)) => {
                return fenced_reply(proposal, false, &numbers);
            }
            (Verb::Extend { .. }, Some(proposal), Answer::Integers(numbers)) => {
                return fenced_reply(proposal, true, &numbers);
            }
            _ => return None,
        };
        Some(Ok(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::FENCE_KEY_PREFIX;

    const TOKEN: &Token = &Token::from_bytes([b't'; Token::LEN]);

    /// Acquire, extend and release.
    const COMMANDS: [Command<'static>; 3] = [
        Command::acquire(b"dock", TOKEN, 10_000, VoteConditions::NONE),
        Command::extend(b"dock", TOKEN, 7),
        Command::release(b"dock", TOKEN),
    ];

    #[test]
    fn an_answer_of_redis_is_a_grant_or_a_refusal() {
        let [acquire, extend, release] = COMMANDS;
        for (command, answer, reply) in [
            (acquire, Answer::Ok, Reply::Acquired(None)),
            (acquire, Answer::Nil, Reply::Held(None)),
            (extend, Answer::Integer(1), Reply::Extended(None)),
            (extend, Answer::Integer(0), Reply::NotMine),
            (release, Answer::Integer(1), Reply::Released),
            (release, Answer::Integer(0), Reply::NotMine),
        ] {
            assert_eq!(command.reply(answer), Some(Ok(reply)), "{command:?}");
        }
    }

    #[test]
    fn an_answer_to_another_command_is_no_reply() {
        let [acquire, extend, release] = COMMANDS;
        for answer in [Answer::Integer(0), Answer::Integer(1)] {
            assert_eq!(acquire.reply(answer), None);
        }
        for command in [extend, release] {
            for answer in [
                Answer::Ok,
                Answer::Nil,
                Answer::Integer(2),
                Answer::Integer(-1),
            ] {
                assert_eq!(command.reply(answer), None);
            }
        }
    }

    #[test]
    fn commands_are_those_of_every_redlock_client() {
        let [acquire, extend, release] = COMMANDS;
        assert_eq!(
            words(&acquire, ScriptCall::Hash),
            "SET dock tttttttttttttttttttt NX PX 10000"
        );
        assert_eq!(
            words(&release, ScriptCall::Hash),
            std::format!(
                "EVALSHA {} 1 dock tttttttttttttttttttt",
                Script::RELEASE.sha1()
            ),
        );
        assert_eq!(
            words(&extend, ScriptCall::Text),
            std::format!(
                "EVAL {} 1 dock tttttttttttttttttttt 7",
                Script::EXTEND.text()
            ),
        );
    }

    #[cfg(feature = "fence")]
    #[test]
    fn a_fenced_command_names_the_lock_its_fence_and_the_guard() {
        let fencing = crate::Fencing::default();
        let fence = crate::Fence::from_u64(7);
        let proposal = Some(Proposal::new(fence, fencing, 8, true));
        let [acquire, extend, release] = COMMANDS.map(|command| command.with_proposal(proposal));
        for (command, script, rest) in [
            (
                acquire,
                &Script::ACQUIRE_FENCED,
                "3 dock redlock:fence:dock redlock:guard tttttttttttttttttttt 10000 7 60000 250 60000 1",
            ),
            (
                extend,
                &Script::EXTEND_FENCED,
                "3 dock redlock:fence:dock redlock:guard tttttttttttttttttttt 7 7 8 250 60000",
            ),
            (
                release,
                &Script::RELEASE_FENCED,
                "2 dock redlock:fence:dock tttttttttttttttttttt 7 250 60000",
            ),
        ] {
            let wanted = std::format!("EVALSHA {} {rest}", script.sha1());
            assert_eq!(words(&command, ScriptCall::Hash), wanted);
        }
    }

    fn words(command: &Command<'_>, call: ScriptCall) -> std::string::String {
        let words: std::vec::Vec<_> = command
            .arguments(call)
            .map(|argument| match argument {
                Argument::Bytes(bytes) => std::string::String::from_utf8(bytes.to_vec()).unwrap(),
                Argument::Integer(number) => std::format!("{number}"),
                Argument::FenceKey(key) => {
                    std::format!("{FENCE_KEY_PREFIX}{}", std::str::from_utf8(key).unwrap())
                }
            })
            .collect();
        words.join(" ")
    }
}
