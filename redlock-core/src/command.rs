//! What a client says to one node, and what the node answers.

use core::fmt;

use crate::admission::{Denial, Rules};
use crate::fence::{Fence, Proposal, Reading};

/// The value of a key: 20 random bytes that name one attempt to take the lock.
///
/// Every attempt has a token of its own, so that a late release of one attempt cannot delete the key
/// of the next. Who knows the token can release the lock: `Debug` and `Format` show only its first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; Self::LEN]);

impl Token {
    /// Its length in bytes, the one that the Redlock specification assumes.
    pub const LEN: usize = 20;

    /// The token made of `bytes`, for instance of a lease that another process has taken.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        Self(bytes)
    }

    /// The bytes that stand under the key on each node.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; Self::LEN] {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "Token({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Token {
    fn format(&self, f: defmt::Formatter<'_>) {
        let [a, b, c, d, ..] = self.0;
        defmt::write!(
            f,
            "Token({=u8:02x}{=u8:02x}{=u8:02x}{=u8:02x}..)",
            a,
            b,
            c,
            d
        );
    }
}

/// One command to one node.
///
/// A transport need not look inside: [`arguments`](Self::arguments) is what goes on the wire, and
/// [`reply`](Self::reply) reads what comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Command<'a> {
    /// Set the key to the token unless the key exists.
    Acquire {
        /// The key.
        key: &'a [u8],
        /// The token of this attempt.
        token: &'a Token,
        /// How long the key lives, in milliseconds.
        ttl_ms: u32,
        /// What the node must be like for its vote to count. See [`Admission`](crate::Admission).
        rules: Rules,
        /// The fence that is proposed; none for a plain lock.
        proposal: Option<Proposal>,
    },
    /// Let the key live for `ttl_ms` from now if it still carries the token.
    Extend {
        /// The key.
        key: &'a [u8],
        /// The token of the lease.
        token: &'a Token,
        /// How long the key lives from now, in milliseconds.
        ttl_ms: u32,
        /// The fence of the lease, if it has one.
        proposal: Option<Proposal>,
    },
    /// Delete the key if it still carries the token.
    Release {
        /// The key.
        key: &'a [u8],
        /// The token of the lease or of the attempt.
        token: &'a Token,
        /// The fence of the lease, or the last that the attempt has proposed: the node will not accept it
        /// any more.
        proposal: Option<Proposal>,
    },
}

/// The key of the guard record, which says what has been agreed on a node and since when its vote counts:
/// `run_id:until:max_ttl:window:step_back:replication_id`, times in milliseconds.
///
/// The replication ID is the last field: to clients that do not know it these are other rules, so they have no vote
/// from the node and never write over it.
pub const GUARD_KEY: &str = "redlock:guard";

/// Before a key, it makes the key of its fence: `highest:held_until:accepted`, where `held_until` is in milliseconds
/// and `accepted` the token whose acquire or extend was accepted last. After its release there is no `:accepted`.
pub const FENCE_KEY_PREFIX: &str = "redlock:fence:";

/// No lock may have a key that begins like this: such keys are what nodes remember beside the locks.
pub const RESERVED_PREFIX: &str = "redlock:";

impl<'a> Command<'a> {
    /// The key that it is about.
    #[must_use]
    pub const fn key(&self) -> &'a [u8] {
        match self {
            Self::Acquire { key, .. } | Self::Extend { key, .. } | Self::Release { key, .. } => key,
        }
    }

    /// The script that this command calls; none for a plain Redis command.
    ///
    /// Loading it at connect time (`SCRIPT LOAD`) saves the first call a round trip.
    #[must_use]
    pub const fn script(&self) -> Option<&'static Script> {
        match self {
            Self::Acquire { proposal: None, .. } => None,
            Self::Extend { proposal: None, .. } => Some(&Script::EXTEND),
            Self::Release { proposal: None, .. } => Some(&Script::RELEASE),
            Self::Acquire {
                proposal: Some(_), ..
            } => Some(&Script::ACQUIRE_FENCED),
            Self::Extend {
                proposal: Some(_), ..
            } => Some(&Script::EXTEND_FENCED),
            Self::Release {
                proposal: Some(_), ..
            } => Some(&Script::RELEASE_FENCED),
        }
    }

    /// The command as Redis takes it, word by word.
    ///
    /// A node that answers `NOSCRIPT` does not know the script (any more): send the command once
    /// more with [`ScriptCall::Text`], on the same connection.
    #[must_use]
    pub fn arguments(&self, call: ScriptCall) -> Arguments<'a> {
        let (key, token, ttl_ms, proposal) = match *self {
            Self::Acquire {
                key,
                token,
                ttl_ms,
                proposal,
                ..
            }
            | Self::Extend {
                key,
                token,
                ttl_ms,
                proposal,
            } => (key, token, Some(ttl_ms), proposal),
            Self::Release {
                key,
                token,
                proposal,
            } => (key, token, None, proposal),
        };
        let token = Argument::Bytes(token.as_bytes());
        let ttl = ttl_ms.map(|ms| Argument::Integer(ms.into()));
        let Some(script) = self.script() else {
            return Arguments::of(&[
                word("SET"),
                Argument::Bytes(key),
                token,
                word("NX"),
                word("PX"),
            ])
            .and(ttl);
        };
        let is_release = matches!(self, Self::Release { .. });
        let keys = match proposal {
            None => 1,
            Some(_) if is_release => 2,
            Some(_) => 3,
        };
        let mut arguments = script.call(call, keys);
        arguments.push(Some(Argument::Bytes(key)));
        if proposal.is_some() {
            arguments.push(Some(Argument::FenceKey(key)));
            arguments.push((!is_release).then_some(word(GUARD_KEY)));
        }
        arguments.push(Some(token));
        arguments.push(ttl);
        if let Some(proposal) = proposal {
            let number = |number: u64| Some(Argument::Integer(number));
            let [max_ttl, window, step_back] = proposal.fleet_ms().map(|ms| number(ms.into()));
            arguments.push(number(proposal.fence().as_u64()));
            arguments.push(match self {
                Self::Acquire { .. } => max_ttl,
                Self::Extend { .. } => number(proposal.time()),
                Self::Release { .. } => None,
            });
            arguments.push(window);
            arguments.push(step_back);
            // Most acquires do not.
            let vouches = matches!(self, Self::Acquire { .. }) && proposal.vouches();
            arguments.push(vouches.then_some(Argument::Integer(1)));
        }
        arguments
    }

    /// What `answer` means for this command; none when it is no answer to it.
    #[must_use]
    pub fn reply(&self, answer: Answer) -> Option<Result<Reply, Denial>> {
        let reply = match (self, answer) {
            (Self::Acquire { proposal: None, .. }, Answer::Ok) => Reply::Acquired(None),
            (Self::Acquire { proposal: None, .. }, Answer::Nil) => Reply::Held(None),
            (Self::Extend { proposal: None, .. }, Answer::Integer(1)) => Reply::Extended(None),
            (Self::Release { .. }, Answer::Integer(1)) => Reply::Released,
            (Self::Extend { proposal: None, .. } | Self::Release { .. }, Answer::Integer(0)) => {
                Reply::NotMine
            }
            (
                Self::Acquire {
                    proposal: Some(proposal),
                    ..
                }
                | Self::Extend {
                    proposal: Some(proposal),
                    ..
                },
                Answer::Integers(numbers),
            ) => {
                let is_extend = matches!(self, Self::Extend { .. });
                return fenced_reply(proposal, is_extend, &numbers);
            }
            _ => return None,
        };
        Some(Ok(reply))
    }
}

/// Reads what the scripts of a fenced acquire and extend say: a code, the node's time, the highest fence there, and
/// what is left of something, in milliseconds.
// Apart from the rest, whose values would be copied with these.
#[inline(never)]
fn fenced_reply(
    proposal: &Proposal,
    is_extend: bool,
    numbers: &[i64; 4],
) -> Option<Result<Reply, Denial>> {
    let [code, time, fence, ms] = *numbers;
    // A key without a TTL, which is no lock's, has -1: it does not go away.
    let left_ms = u32::try_from(ms).unwrap_or(u32::MAX);
    let time = u64::try_from(time).ok()?;
    let fence = Fence::from_u64(u64::try_from(fence).ok()?);
    let held_ms = if code == 1 { left_ms } else { 0 };
    let reading = Reading::of(proposal, time, fence, held_ms);
    Some(match code {
        0 if is_extend => Ok(Reply::Extended(Some(reading))),
        1 if is_extend => Ok(Reply::NotMine),
        0 => Ok(Reply::Acquired(Some(reading))),
        1 => Ok(Reply::Held(Some(reading))),
        2 => Err(Denial::Stale(reading)),
        3 => Err(Denial::TooOld(reading)),
        4 => Err(Denial::TooNew(reading)),
        5 => Err(Denial::Quarantined { left_ms, reading }),
        6 => Err(Denial::OtherFleet(reading)),
        7 => Err(Denial::Unguarded {
            has_record: left_ms > 0,
            reading,
        }),
        _ => return None,
    })
}

/// One word of a command on the wire.
///
/// `Debug` and `Format` do not show its bytes: they may be a token or a password.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Argument<'a> {
    /// Bytes as they are.
    Bytes(&'a [u8]),
    /// A number, written in decimal.
    Integer(u64),
    /// The key of this key's fence: [`FENCE_KEY_PREFIX`], then these bytes.
    FenceKey(&'a [u8]),
}

impl fmt::Debug for Argument<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "Bytes({} of them)", bytes.len()),
            Self::Integer(number) => write!(f, "Integer({number})"),
            Self::FenceKey(key) => write!(f, "FenceKey({} bytes)", key.len()),
        }
    }
}

#[cfg(feature = "defmt")]
impl defmt::Format for Argument<'_> {
    fn format(&self, f: defmt::Formatter<'_>) {
        match self {
            Self::Bytes(bytes) => defmt::write!(f, "Bytes({=usize} of them)", bytes.len()),
            Self::Integer(number) => defmt::write!(f, "Integer({=u64})", *number),
            Self::FenceKey(key) => defmt::write!(f, "FenceKey({=usize} bytes)", key.len()),
        }
    }
}

const fn word(word: &str) -> Argument<'_> {
    Argument::Bytes(word.as_bytes())
}

/// The words of a command, one after the other.
///
/// One type for every command: code that sends them is needed once.
#[derive(Debug, Clone)]
pub struct Arguments<'a> {
    words: [Option<Argument<'a>>; WORDS_MAX],
    next: usize,
}

const WORDS_MAX: usize = 13;

impl<'a> Arguments<'a> {
    /// The most words of a command.
    pub const MAX: usize = WORDS_MAX;

    /// These words; those beyond [`MAX`](Self::MAX) are left out.
    #[must_use]
    // Called in many places: once in flash.
    #[inline(never)]
    pub fn of(words: &[Argument<'a>]) -> Self {
        let mut arguments = Self {
            words: [None; Self::MAX],
            next: 0,
        };
        let places = arguments.words.iter_mut().zip(words);
        places.for_each(|(place, word)| *place = Some(*word));
        arguments
    }

    pub(crate) fn and(mut self, word: Option<Argument<'a>>) -> Self {
        self.push(word);
        self
    }

    // Called in many places: once in flash.
    #[inline(never)]
    fn push(&mut self, word: Option<Argument<'a>>) {
        if let Some(free) = self.words.iter_mut().find(|place| place.is_none()) {
            *free = word;
        }
    }
}

impl<'a> Iterator for Arguments<'a> {
    type Item = Argument<'a>;

    fn next(&mut self) -> Option<Argument<'a>> {
        let word = (*self.words.get(self.next)?)?;
        self.next += 1;
        Some(word)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        // The words stand at the front.
        let len = self.words.iter().flatten().count() - self.next;
        (len, Some(len))
    }
}

impl ExactSizeIterator for Arguments<'_> {}

/// How a command calls its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ScriptCall {
    /// By its hash, `EVALSHA`: short, but the node must know the script.
    Hash,
    /// By its text, `EVAL`: always works, and teaches the node the script.
    Text,
}

/// A Lua script and its hash.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Script {
    text: &'static str,
    sha1: &'static str,
}

impl Script {
    /// Every script that a client of plain locks calls.
    pub const PLAIN: [&'static Self; 2] = [&Self::EXTEND, &Self::RELEASE];

    /// Every script that a client of fenced locks calls.
    pub const FENCED: [&'static Self; 3] = [
        &Self::ACQUIRE_FENCED,
        &Self::EXTEND_FENCED,
        &Self::RELEASE_FENCED,
    ];

    /// Extends the key if it carries the token.
    ///
    /// The Redlock specification, "Making the algorithm more reliable: Extending the lock".
    const EXTEND: Self = Self {
        text: include_str!("scripts/extend.lua"),
        sha1: "e95849a1757fe494b3c802dc09b717d0c074eb21",
    };

    /// Deletes the key if it carries the token.
    ///
    /// The Redlock specification, "Correct implementation with a single instance".
    const RELEASE: Self = Self {
        text: include_str!("scripts/release.lua"),
        sha1: "2e47b373b4dbd63ee966d2eb9fe24ed6a138ad4e",
    };

    /// Sets the key to the token and its fence to the one proposed, if the key is free and the fence strictly
    /// higher than all before and near the node's clock; and only where nothing can have been forgotten: the guard
    /// record is of this process and of this data, and its quarantine is over.
    const ACQUIRE_FENCED: Self = Self {
        text: include_str!("scripts/acquire_fenced.lua"),
        sha1: "f297f0f4dcf666ae7c1f2ef9592aedd1674040e6",
    };

    /// Extends the key if it carries the token, where the node's clock is right. Sets one that is gone again
    /// if no other attempt was accepted since: the token is still the last that was.
    const EXTEND_FENCED: Self = Self {
        text: include_str!("scripts/extend_fenced.lua"),
        sha1: "e24ec6f82d2b5333c67325f197b3e20b55445706",
    };

    /// Deletes the key if it carries the token, and accepts its fence no more: an acquire or an extend of this
    /// attempt that arrives after its release is refused, by a node whose clock is within the window. So it leaves a fence that is one higher. What another attempt
    /// with the same fence holds stays.
    const RELEASE_FENCED: Self = Self {
        text: include_str!("scripts/release_fenced.lua"),
        sha1: "ef22620ba49db1e637eaab36da9a487748c4455c",
    };

    /// Asks a node who it is. See [`Introduction`](crate::Introduction).
    pub(crate) const INTRODUCE: Self = Self {
        text: include_str!("scripts/introduce.lua"),
        sha1: "46a95d55ff3546181d0f259e097304328d5c99c4",
    };

    /// The Lua text.
    #[must_use]
    pub const fn text(&self) -> &'static str {
        self.text
    }

    /// The SHA-1 of the text in lower-case hexadecimal, the name that the node gives it.
    #[must_use]
    pub const fn sha1(&self) -> &'static str {
        self.sha1
    }

    /// A call of this script with so many keys, as far as the first of them.
    pub(crate) fn call(&self, call: ScriptCall, keys: u64) -> Arguments<'static> {
        let (verb, script) = match call {
            ScriptCall::Hash => ("EVALSHA", self.sha1),
            ScriptCall::Text => ("EVAL", self.text),
        };
        Arguments::of(&[word(verb), word(script), Argument::Integer(keys)])
    }
}

/// The few forms in which a node answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Answer {
    /// The status `OK`.
    Ok,
    /// Nothing: a null.
    Nil,
    /// A number.
    Integer(i64),
    /// An array of four numbers.
    Integers([i64; 4]),
}

/// What a node's answer says.
///
/// A reply that does not belong to the command it came for counts as no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Reply {
    /// To acquire: the key carries the token now, and the fence is the one proposed.
    Acquired(Option<Reading>),
    /// To acquire: the key is there already.
    Held(Option<Reading>),
    /// To extend: the key lives on.
    Extended(Option<Reading>),
    /// To release: the key is deleted.
    Released,
    /// To extend and to release: the key is gone or carries another token.
    NotMine,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn the_hash_of_a_script_is_the_sha1_of_its_text() {
        let [plain, fenced] = [&Script::PLAIN[..], &Script::FENCED];
        for script in [plain, fenced, &[&Script::INTRODUCE]].concat() {
            let sha1 = sha1_smol::Sha1::from(script.text()).digest();
            assert_eq!(sha1.to_string(), script.sha1());
        }
    }

    #[test]
    fn debug_of_a_token_shows_a_prefix_only() {
        let token = Token::from_bytes([0xab; Token::LEN]);
        assert_eq!(std::format!("{token:?}"), "Token(abababab..)");
        let word = Argument::Bytes(token.as_bytes());
        assert_eq!(std::format!("{word:?}"), "Bytes(20 of them)");
    }

    /// Acquire, extend and release.
    const COMMANDS: [Command<'static>; 3] = {
        let (key, token, ttl_ms) = (b"key", &Token([1; Token::LEN]), 1);
        [
            Command::Acquire {
                key,
                token,
                ttl_ms,
                rules: Rules::NONE,
                proposal: None,
            },
            Command::Extend {
                key,
                token,
                ttl_ms,
                proposal: None,
            },
            Command::Release {
                key,
                token,
                proposal: None,
            },
        ]
    };

    #[test]
    fn the_answer_of_redis_is_a_yes_or_a_no() {
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
        let token = &Token::from_bytes([b't'; Token::LEN]);
        let acquire = Command::Acquire {
            key: b"dock",
            token,
            ttl_ms: 10_000,
            rules: Rules::NONE,
            proposal: None,
        };
        assert_eq!(
            words(&acquire, ScriptCall::Hash),
            "SET dock tttttttttttttttttttt NX PX 10000"
        );
        let release = Command::Release {
            key: b"dock",
            token,
            proposal: None,
        };
        assert_eq!(
            words(&release, ScriptCall::Hash),
            std::format!(
                "EVALSHA {} 1 dock tttttttttttttttttttt",
                Script::RELEASE.sha1
            ),
        );
        let extend = Command::Extend {
            key: b"dock",
            token,
            ttl_ms: 7,
            proposal: None,
        };
        assert_eq!(
            words(&extend, ScriptCall::Text),
            std::format!("EVAL {} 1 dock tttttttttttttttttttt 7", Script::EXTEND.text),
        );
    }

    #[cfg(feature = "fence")]
    #[test]
    fn a_fenced_command_names_the_lock_its_fence_and_the_guard() {
        let token = &Token::from_bytes([b't'; Token::LEN]);
        let fleet = crate::Options::new(core::time::Duration::from_secs(1))
            .and_then(|options| options.fenced(crate::Options::WINDOW))
            .unwrap()
            .fleet()
            .unwrap();
        let fence = Fence::from_u64(7);
        let (key, ttl_ms) = (&b"dock"[..], 10_000);
        let proposal = Some(Proposal {
            fence,
            fleet,
            time: 8,
            vouches: true,
        });
        let acquire = Command::Acquire {
            key,
            token,
            ttl_ms,
            rules: Rules::NONE,
            proposal,
        };
        let extend = Command::Extend {
            key,
            token,
            ttl_ms,
            proposal,
        };
        let release = Command::Release {
            key,
            token,
            proposal,
        };
        for (command, script, rest) in [
            (
                acquire,
                &Script::ACQUIRE_FENCED,
                "3 dock redlock:fence:dock redlock:guard tttttttttttttttttttt 10000 7 60000 250 60000 1",
            ),
            (
                extend,
                &Script::EXTEND_FENCED,
                "3 dock redlock:fence:dock redlock:guard tttttttttttttttttttt 10000 7 8 250 60000",
            ),
            (
                release,
                &Script::RELEASE_FENCED,
                "2 dock redlock:fence:dock tttttttttttttttttttt 7 250 60000",
            ),
        ] {
            let wanted = std::format!("EVALSHA {} {rest}", script.sha1);
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
