//! What a client says to one node, and what the node answers.

use core::fmt;

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
    },
    /// Let the key live for `ttl_ms` from now if it still carries the token.
    Extend {
        /// The key.
        key: &'a [u8],
        /// The token of the lease.
        token: &'a Token,
        /// How long the key lives from now, in milliseconds.
        ttl_ms: u32,
    },
    /// Delete the key if it still carries the token.
    Release {
        /// The key.
        key: &'a [u8],
        /// The token of the lease or of the attempt.
        token: &'a Token,
    },
}

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
            Self::Acquire { .. } => None,
            Self::Extend { .. } => Some(&Script::EXTEND),
            Self::Release { .. } => Some(&Script::RELEASE),
        }
    }

    /// The command as Redis takes it, word by word.
    ///
    /// A node that answers `NOSCRIPT` does not know the script (any more): send the command once
    /// more with [`ScriptCall::Text`], on the same connection.
    #[must_use]
    pub const fn arguments(&self, call: ScriptCall) -> Arguments<'a> {
        let (key, token, ttl_ms) = match *self {
            Self::Acquire { key, token, ttl_ms } | Self::Extend { key, token, ttl_ms } => {
                (key, token, Some(ttl_ms))
            }
            Self::Release { key, token } => (key, token, None),
        };
        let key = Some(Argument::Bytes(key));
        let token = Some(Argument::Bytes(token.as_bytes()));
        let ttl = match ttl_ms {
            Some(ms) => Some(Argument::Integer(ms as u64)),
            None => None,
        };
        let (verb, script) = match (self.script(), call) {
            (None, _) => {
                return Arguments::new([word("SET"), key, token, word("NX"), word("PX"), ttl]);
            }
            (Some(script), ScriptCall::Hash) => ("EVALSHA", script.sha1),
            (Some(script), ScriptCall::Text) => ("EVAL", script.text),
        };
        Arguments::new([word(verb), word(script), word("1"), key, token, ttl])
    }

    /// What `answer` means for this command; none when it is no answer to it.
    #[must_use]
    pub const fn reply(&self, answer: Answer) -> Option<Reply> {
        match (self, answer) {
            (Self::Acquire { .. }, Answer::Ok) => Some(Reply::Acquired),
            (Self::Acquire { .. }, Answer::Nil) => Some(Reply::Held),
            (Self::Extend { .. }, Answer::Integer(1)) => Some(Reply::Extended),
            (Self::Release { .. }, Answer::Integer(1)) => Some(Reply::Released),
            (Self::Extend { .. } | Self::Release { .. }, Answer::Integer(0)) => {
                Some(Reply::NotMine)
            }
            _ => None,
        }
    }
}

/// One word of a command on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Argument<'a> {
    /// Bytes as they are.
    Bytes(&'a [u8]),
    /// A number, written in decimal.
    Integer(u64),
}

const fn word(word: &str) -> Option<Argument<'_>> {
    Some(Argument::Bytes(word.as_bytes()))
}

/// The words of a command, one after the other.
///
/// One type for every command: code that sends them is needed once.
#[derive(Debug, Clone)]
pub struct Arguments<'a> {
    words: [Option<Argument<'a>>; WORDS_MAX],
    next: usize,
}

const WORDS_MAX: usize = 6;

impl<'a> Arguments<'a> {
    /// These words, up to the first that is none.
    #[must_use]
    pub const fn new(words: [Option<Argument<'a>>; WORDS_MAX]) -> Self {
        Self { words, next: 0 }
    }
}

impl<'a> Iterator for Arguments<'a> {
    type Item = Argument<'a>;

    fn next(&mut self) -> Option<Argument<'a>> {
        let word = (*self.words.get(self.next)?)?;
        self.next += 1;
        Some(word)
    }
}

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
    /// Every script that a client calls.
    pub const ALL: [&'static Self; 2] = [&Self::EXTEND, &Self::RELEASE];

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
}

/// What a node's answer says.
///
/// A reply that does not belong to the command it came for counts as no reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Reply {
    /// To acquire: the key carries the token now.
    Acquired,
    /// To acquire: the key is there already.
    Held,
    /// To extend: the key lives on.
    Extended,
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
        for script in Script::ALL {
            let sha1 = sha1_smol::Sha1::from(script.text()).digest();
            assert_eq!(sha1.to_string(), script.sha1());
        }
    }

    #[test]
    fn debug_of_a_token_shows_a_prefix_only() {
        let token = Token::from_bytes([0xab; Token::LEN]);
        assert_eq!(std::format!("{token:?}"), "Token(abababab..)");
    }

    /// Acquire, extend and release.
    const COMMANDS: [Command<'static>; 3] = {
        let (key, token, ttl_ms) = (b"key", &Token([1; Token::LEN]), 1);
        [
            Command::Acquire { key, token, ttl_ms },
            Command::Extend { key, token, ttl_ms },
            Command::Release { key, token },
        ]
    };

    #[test]
    fn the_answer_of_redis_is_a_yes_or_a_no() {
        let [acquire, extend, release] = COMMANDS;
        for (command, answer, reply) in [
            (acquire, Answer::Ok, Reply::Acquired),
            (acquire, Answer::Nil, Reply::Held),
            (extend, Answer::Integer(1), Reply::Extended),
            (extend, Answer::Integer(0), Reply::NotMine),
            (release, Answer::Integer(1), Reply::Released),
            (release, Answer::Integer(0), Reply::NotMine),
        ] {
            assert_eq!(command.reply(answer), Some(reply), "{command:?}");
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
        };
        assert_eq!(
            words(&acquire, ScriptCall::Hash),
            "SET dock tttttttttttttttttttt NX PX 10000"
        );
        let release = Command::Release {
            key: b"dock",
            token,
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
        };
        assert_eq!(
            words(&extend, ScriptCall::Text),
            std::format!("EVAL {} 1 dock tttttttttttttttttttt 7", Script::EXTEND.text),
        );
    }

    fn words(command: &Command<'_>, call: ScriptCall) -> std::string::String {
        let words: std::vec::Vec<_> = command
            .arguments(call)
            .map(|argument| match argument {
                Argument::Bytes(bytes) => std::string::String::from_utf8(bytes.to_vec()).unwrap(),
                Argument::Integer(number) => std::format!("{number}"),
            })
            .collect();
        words.join(" ")
    }
}
