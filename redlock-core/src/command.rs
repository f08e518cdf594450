//! The commands of a client to one node.

use crate::denial::Denial;
use crate::fence::Proposal;
use crate::key::GUARD_KEY;
use crate::line::{Mailbox, Place};
use crate::reply::{Reply, fenced_reply, queued_reply};
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
    /// For an acquire, the place of the client in the line of the lock. For a release, the place that it keeps, or that it
    /// leaves. `None` if the client does not use the line; always `None` without the feature `queue`.
    pub place: Option<Place>,
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
        /// [`VoteConditions::NONE`], unless the lease is adopted: a node that has come back with old data may carry a token that
        /// was released since.
        conditions: VoteConditions,
    },
    /// Releases a lease before [`Options::min_hold`](crate::Options::min_hold) is over: lets the key live for `rest_ms` from now if
    /// it still carries the token.
    ///
    /// From then on, [`Token::KEPT`] follows the token in the key. So an extension that arrives late, over a connection that has
    /// broken, does not make the time shorter.
    Keep {
        /// How long the key lives from now, in milliseconds.
        rest_ms: u32,
    },
    /// Deletes the key if it still carries the token. If the lock is fenced, the node accepts the fence no more.
    Release,
}

impl Verb {
    /// Whether a grant counts only if the node has a vote: that of an acquire, and of an extend if the lease is adopted.
    #[must_use]
    pub const fn needs_vote(self) -> bool {
        match self {
            Self::Acquire { .. } => true,
            Self::Extend { conditions, .. } => conditions.restart_guard,
            Self::Keep { .. } | Self::Release => false,
        }
    }
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
        Self::adopt(key, token, ttl_ms, VoteConditions::NONE)
    }

    /// Like [`extend`](Self::extend), if the node meets these conditions.
    #[must_use]
    pub const fn adopt(
        key: &'a [u8],
        token: &'a Token,
        ttl_ms: u32,
        conditions: VoteConditions,
    ) -> Self {
        Self::new(key, token, Verb::Extend { ttl_ms, conditions })
    }

    /// Releases `key`, but lets it live for `rest_ms` milliseconds from now, if it carries `token`.
    #[must_use]
    pub const fn keep(key: &'a [u8], token: &'a Token, rest_ms: u32) -> Self {
        Self::new(key, token, Verb::Keep { rest_ms })
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
            place: None,
            verb,
        }
    }

    /// The same command for a fenced lock, or for a plain one if `proposal` is `None`.
    #[must_use]
    pub const fn with_proposal(self, proposal: Option<Proposal>) -> Self {
        Self { proposal, ..self }
    }

    /// The same command of a client with this place in the line. An extend has no place.
    #[must_use]
    pub const fn with_place(self, place: Option<Place>) -> Self {
        Self { place, ..self }
    }

    /// The same command for a node that knows this client by `mailbox`: without its place if that is `None`, and marked if the
    /// node cannot call the client. See [`Transport::mailbox`](crate::Transport::mailbox).
    #[must_use]
    pub fn at_node(self, mailbox: Option<Mailbox>) -> Self {
        let place = self.place.and_then(|place| place.at(mailbox));
        Self { place, ..self }
    }

    /// Whether it is the first extension of a lease that another process has acquired.
    #[must_use]
    pub const fn is_adoption(&self) -> bool {
        self.verb.needs_vote() && !self.is_acquire()
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
        if self.place.is_some() {
            match (self.verb, self.is_fenced()) {
                (Verb::Acquire { .. }, false) => return Some(&Script::ACQUIRE_QUEUED),
                (Verb::Acquire { .. }, true) => return Some(&Script::ACQUIRE_FENCED_QUEUED),
                (Verb::Release, false) => return Some(&Script::RELEASE_QUEUED),
                (Verb::Release, true) => return Some(&Script::RELEASE_FENCED_QUEUED),
                (Verb::Extend { .. } | Verb::Keep { .. }, _) => {}
            }
        }
        match (self.verb, self.is_fenced()) {
            (Verb::Acquire { .. }, false) => None,
            (Verb::Extend { .. }, false) => Some(&Script::EXTEND),
            #[cfg(feature = "min-hold")]
            (Verb::Keep { .. }, false) => Some(&Script::KEEP),
            // No client of this build keeps a key, and the script would still be in flash.
            #[cfg(not(feature = "min-hold"))]
            (Verb::Keep { .. }, false) => Some(&Script::EXTEND),
            (Verb::Release, false) => Some(&Script::RELEASE),
            (Verb::Acquire { .. }, true) => Some(&Script::ACQUIRE_FENCED),
            (Verb::Extend { .. } | Verb::Keep { .. }, true) => Some(&Script::EXTEND_FENCED),
            (Verb::Release, true) => Some(&Script::RELEASE_FENCED),
        }
    }

    /// Whether it is a plain release of a client that has not stood in the line, at a node that keeps a line.
    /// [`ScriptCall::ShortText`] is for these.
    #[must_use]
    pub const fn is_release_from_outside(&self) -> bool {
        let is_outside = matches!(&self.place, Some(place) if place.is_outside());
        is_outside && self.is_release() && !self.is_fenced()
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
            Verb::Acquire { ttl_ms: ms, .. }
            | Verb::Extend { ttl_ms: ms, .. }
            | Verb::Keep { rest_ms: ms } => Some(Argument::Integer(ms.into())),
            Verb::Release => None,
        };
        let Some(script) = self.script() else {
            let mut arguments = Arguments::of(&[word("SET"), key, token, word("NX"), word("PX")]);
            arguments.push(ttl);
            return arguments;
        };
        let place = self
            .place
            .filter(|_| self.is_acquire() || self.is_release());
        let mut keys = match self.proposal {
            None => "1",
            Some(_) if self.is_release() => "2",
            Some(_) => "3",
        };
        if place.is_some() {
            keys = match keys {
                "1" => "2",
                "2" => "3",
                _ => "4",
            };
        }
        #[cfg(any(feature = "queue", feature = "mock"))]
        let script = match call {
            ScriptCall::ShortText if self.is_release_from_outside() => &Script::RELEASE_OUTSIDE,
            _ => script,
        };
        let mut arguments = script.call(call, keys);
        arguments.push(Some(key));
        if self.is_fenced() {
            arguments.push(Some(Argument::FenceKey(self.key)));
            arguments.push((!self.is_release()).then_some(word(GUARD_KEY)));
        }
        if let Some(place) = &place {
            arguments.push(Some(Argument::Line(place.queue_key(self.key))));
        }
        arguments.push(Some(token));
        arguments.push(ttl);
        if let Some(proposal) = self.proposal {
            let number = |number: u64| Some(Argument::Integer(number));
            let [max_ttl, window, step_back] = proposal.fencing_ms().map(|ms| number(ms.into()));
            arguments.push(number(proposal.fence().as_u64()));
            arguments.push(match self.verb {
                Verb::Acquire { .. } => max_ttl,
                Verb::Extend { .. } | Verb::Keep { .. } => number(proposal.time()),
                Verb::Release => None,
            });
            arguments.push(window);
            arguments.push(step_back);
            // Left out of most acquires and extensions.
            let vouches = self.is_acquire() && proposal.vouches();
            arguments.push((vouches || self.is_adoption()).then_some(Argument::Integer(1)));
            let is_kept = matches!(self.verb, Verb::Keep { .. });
            arguments.push(is_kept.then_some(word(Token::KEPT)));
            if place.is_some() && self.is_acquire() && !vouches {
                arguments.push(number(0));
            }
        }
        if let Some(place) = &place {
            let number = |number: u64| Some(Argument::Integer(number));
            let ticket = place.ticket().and_then(number);
            let mailbox = place.mailbox_word().map(Argument::Line);
            let turn = number(place.turn_ms().into());
            if self.is_acquire() {
                arguments.push(ticket);
                arguments.push(Some(mailbox.unwrap_or(word(""))));
                arguments.push(turn);
            } else {
                // Short if the client has not waited. A ticket has a mailbox.
                arguments.push(turn);
                arguments.push(mailbox);
                arguments.push(ticket.filter(|_| mailbox.is_some()));
            }
        }
        arguments
    }

    /// What `answer` means for this command. `None` if it is not an answer to this command.
    #[must_use]
    pub fn reply(&self, answer: Answer) -> Option<Result<Reply, Denial>> {
        if let Some(place) = &self.place {
            match (self.verb, answer) {
                (Verb::Acquire { .. }, Answer::Integers(numbers)) => {
                    return queued_reply(place, self.proposal.as_ref(), &numbers);
                }
                (Verb::Acquire { .. }, _) => return None,
                (Verb::Release, Answer::Integer(2)) => {
                    return Some(Ok(Reply::ReleasedWithWaiters(place.waiters())));
                }
                _ => {}
            }
        }
        let reply = match (self.verb, &self.proposal, answer) {
            (Verb::Acquire { .. }, None, Answer::Ok) => Reply::Acquired(None),
            (Verb::Acquire { .. }, None, Answer::Nil) => Reply::Held(None),
            (Verb::Extend { .. } | Verb::Keep { .. }, None, Answer::Integer(1)) => {
                Reply::Extended(None)
            }
            (Verb::Release, _, Answer::Integer(1)) => Reply::Released,
            (Verb::Extend { .. } | Verb::Keep { .. }, None, Answer::Integer(0))
            | (Verb::Release, _, Answer::Integer(0)) => Reply::NotMine,
            (Verb::Acquire { .. }, Some(proposal), Answer::Integers(numbers)) => {
                return fenced_reply(proposal, false, &numbers);
            }
            (
                Verb::Extend { .. } | Verb::Keep { .. },
                Some(proposal),
                Answer::Integers(numbers),
            ) => {
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

    #[cfg(feature = "queue")]
    fn mailbox() -> Mailbox {
        Mailbox::new([0xab; 8])
    }

    #[cfg(feature = "queue")]
    #[test]
    fn a_command_with_a_place_names_the_line_the_ticket_and_the_mailbox() {
        let [acquire, extend, release] = COMMANDS;
        let waiting = Some(Place::waiting(mailbox(), 42, 225));
        let left = Some(Place::left(mailbox().uncallable(), 225));
        let outside = Some(Place::outside(225));
        let (acquires, releases) = (&Script::ACQUIRE_QUEUED, &Script::RELEASE_QUEUED);
        for (command, script, rest) in [
            (
                acquire.with_place(waiting),
                acquires,
                "10000 42 abababababababab 225",
            ),
            (
                release.with_place(waiting),
                releases,
                "225 abababababababab 42",
            ),
            (release.with_place(left), releases, "225 abababababababab~"),
            (release.with_place(outside), releases, "225"),
        ] {
            let wanted = std::format!(
                "EVALSHA {} 2 dock redlock:queue:dock tttttttttttttttttttt {rest}",
                script.sha1()
            );
            assert_eq!(words(&command, ScriptCall::Hash), wanted);
        }
        for (command, script) in [
            (release.with_place(outside), &Script::RELEASE_OUTSIDE),
            (release.with_place(left), releases),
            (release.with_place(waiting), releases),
            (acquire.with_place(waiting), acquires),
            (release, &Script::RELEASE),
        ] {
            let words = words(&command, ScriptCall::ShortText);
            let wanted = std::format!("EVAL {} ", script.text());
            assert!(words.starts_with(&wanted), "{words}");
        }
        // A node that keeps no line for the client gets the commands of every Redlock client.
        let acquire = acquire.with_place(waiting).at_node(None);
        assert_eq!(acquire, COMMANDS[0]);
        let extend_in_line = words(&extend.with_place(waiting), ScriptCall::Hash);
        assert_eq!(extend_in_line, words(&extend, ScriptCall::Hash));
    }

    #[cfg(all(feature = "queue", feature = "fence"))]
    #[test]
    fn a_fenced_command_with_a_place_has_the_words_of_both() {
        let fencing = crate::Fencing::default();
        let fence = crate::Fence::from_u64(7);
        let proposal = |vouches| Some(Proposal::new(fence, fencing, 8, vouches));
        let place = Some(Place::waiting(mailbox(), 42, 225));
        let [acquire, _, release] = COMMANDS.map(|command| command.with_place(place));
        for (command, script, rest) in [
            (
                acquire.with_proposal(proposal(true)),
                &Script::ACQUIRE_FENCED_QUEUED,
                "4 dock redlock:fence:dock redlock:guard redlock:queue:dock tttttttttttttttttttt 10000 7 60000 250 60000 1 42 abababababababab 225",
            ),
            (
                acquire.with_proposal(proposal(false)),
                &Script::ACQUIRE_FENCED_QUEUED,
                "4 dock redlock:fence:dock redlock:guard redlock:queue:dock tttttttttttttttttttt 10000 7 60000 250 60000 0 42 abababababababab 225",
            ),
            (
                release.with_proposal(proposal(true)),
                &Script::RELEASE_FENCED_QUEUED,
                "3 dock redlock:fence:dock redlock:queue:dock tttttttttttttttttttt 7 250 60000 225 abababababababab 42",
            ),
        ] {
            let wanted = std::format!("EVALSHA {} {rest}", script.sha1());
            assert_eq!(words(&command, ScriptCall::Hash), wanted);
            assert!(command.arguments(ScriptCall::Hash).count() <= Arguments::MAX);
        }
    }

    #[cfg(feature = "queue")]
    #[test]
    fn a_node_tells_a_waiting_client_why_it_refuses_for_how_long_and_who_is_ahead() {
        use crate::line::{Position, Refusal, Waiters};

        let place = Some(Place::waiting(mailbox(), 42, 225));
        let [acquire, _, release] = COMMANDS.map(|command| command.with_place(place));
        let waiting = |refusal, left_ms, ahead| {
            let position = Position::new(refusal, 99, left_ms, ahead);
            Some(Ok(Reply::Waiting(position, None)))
        };
        for (answer, reply) in [
            ([0, 99, 0, 0], Some(Ok(Reply::Acquired(None)))),
            ([1, 99, 0, 5 * 1_024 + 3], waiting(Refusal::Held, 5, 3)),
            ([1, 99, 0, -1_024 + 3], waiting(Refusal::Held, u32::MAX, 3)),
            ([8, 99, 0, 225 * 1_024], waiting(Refusal::Ahead, 225, 0)),
            ([9, 99, 0, 1_000], waiting(Refusal::Full, 0, 1_000)),
            ([2, 99, 0, 0], None),
            ([1, -1, 0, 0], None),
        ] {
            assert_eq!(acquire.reply(Answer::Integers(answer)), reply, "{answer:?}");
        }
        let released = Reply::ReleasedWithWaiters(Waiters::new());
        for (answer, reply) in [
            (0, Some(Ok(Reply::NotMine))),
            (1, Some(Ok(Reply::Released))),
            (2, Some(Ok(released))),
            (3, None),
        ] {
            assert_eq!(release.reply(Answer::Integer(answer)), reply);
        }
        for answer in [Answer::Ok, Answer::Nil] {
            assert_eq!(acquire.reply(answer), None);
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
                Argument::Line(word) => {
                    let (prefix, bytes) = word.pieces();
                    std::format!("{prefix}{}", std::str::from_utf8(bytes).unwrap())
                }
            })
            .collect();
        words.join(" ")
    }
}
