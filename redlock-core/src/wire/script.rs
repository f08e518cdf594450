//! The Lua scripts that nodes run. They are made from the files in `scripts`, without comments and with short names, because a
//! device keeps them in flash.

use super::argument::{Arguments, word};

/// How a command calls its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum ScriptCall {
    /// By its hash, `EVALSHA`: short, but the node must know the script.
    Hash,
    /// By its text, `EVAL`: always works, and loads the script into the node's cache.
    Text,
    /// Like `Text`, but the plain release of a client that has not stood in the line by a script of a sixth of the length, for a
    /// small send buffer. It calls the first two clients that wait, and begins no turn. If the first one hangs, the second waits for two turns.
    ShortText,
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

    /// Every script that a client calls beside those of [`PLAIN`](Self::PLAIN), if it stands in lines and its locks are plain.
    pub const QUEUED: [&'static Self; 2] = [&Self::ACQUIRE_QUEUED, &Self::RELEASE_QUEUED];

    /// Every script that a client calls beside those of [`FENCED`](Self::FENCED), if it stands in lines and its locks are
    /// fenced.
    pub const FENCED_QUEUED: [&'static Self; 2] =
        [&Self::ACQUIRE_FENCED_QUEUED, &Self::RELEASE_FENCED_QUEUED];

    /// Extends the key if it carries the token.
    ///
    /// The Redlock specification, "Making the algorithm more reliable: Extending the lock".
    pub(crate) const EXTEND: Self = Self {
        text: include_str!("../scripts/sent/extend.lua"),
        sha1: include_str!("../scripts/sent/extend.sha1"),
    };

    /// Lets the key of a released lease live for the rest of [`Options::min_hold`](crate::Options::min_hold), if it carries the token.
    #[cfg(any(feature = "min-hold", test))]
    pub(crate) const KEEP: Self = Self {
        text: include_str!("../scripts/sent/keep.lua"),
        sha1: include_str!("../scripts/sent/keep.sha1"),
    };

    /// Deletes the key if it carries the token.
    ///
    /// The Redlock specification, "Correct implementation with a single instance".
    pub(crate) const RELEASE: Self = Self {
        text: include_str!("../scripts/sent/release.lua"),
        sha1: include_str!("../scripts/sent/release.sha1"),
    };

    /// Sets the key to the token and records the proposed fence, if all of these hold:
    ///
    /// - The key is free, or already carries the token.
    /// - The fence is higher than every fence that the node has accepted for the key. (The same attempt may ask again.)
    /// - The fence is near the node's clock.
    /// - The node cannot have forgotten anything: its guard record is of this process and this data, and its quarantine is
    ///   over.
    pub(crate) const ACQUIRE_FENCED: Self = Self {
        text: include_str!("../scripts/sent/acquire_fenced.lua"),
        sha1: include_str!("../scripts/sent/acquire_fenced.sha1"),
    };

    /// Extends the key if it carries the token and the client's time is near the node's clock.
    ///
    /// If the key is gone, sets it again, but only if this token is still the last that the node accepted, and if the node
    /// cannot have forgotten anything.
    pub(crate) const EXTEND_FENCED: Self = Self {
        text: include_str!("../scripts/sent/extend_fenced.lua"),
        sha1: include_str!("../scripts/sent/extend_fenced.sha1"),
    };

    /// Deletes the key if it carries the token. Also burns the fence: the node does not grant an acquire or an extend of this
    /// attempt that arrives after the release. If another attempt with the same fence holds the lock, that attempt keeps the
    /// lock. `docs/fencing.md` has the conditions.
    pub(crate) const RELEASE_FENCED: Self = Self {
        text: include_str!("../scripts/sent/release_fenced.lua"),
        sha1: include_str!("../scripts/sent/release_fenced.sha1"),
    };

    /// Sets the key to the token if the key is free and no other client is ahead in the line. Otherwise the client stands in the
    /// line.
    pub(crate) const ACQUIRE_QUEUED: Self = Self {
        text: include_str!("../scripts/sent/acquire_queued.lua"),
        sha1: include_str!("../scripts/sent/acquire_queued.sha1"),
    };

    /// Deletes the key if it carries the token, and calls the first client in the line.
    pub(crate) const RELEASE_QUEUED: Self = Self {
        text: include_str!("../scripts/sent/release_queued.lua"),
        sha1: include_str!("../scripts/sent/release_queued.sha1"),
    };

    /// Does what [`RELEASE_QUEUED`](Self::RELEASE_QUEUED) does for a client that has not stood in the line, but begins no turn.
    #[cfg(any(feature = "queue", feature = "mock"))]
    pub(crate) const RELEASE_OUTSIDE: Self = Self {
        text: include_str!("../scripts/sent/release_outside.lua"),
        sha1: include_str!("../scripts/sent/release_outside.sha1"),
    };

    /// Does what [`ACQUIRE_FENCED`](Self::ACQUIRE_FENCED) does if no other client is ahead in the line. Otherwise the client
    /// stands in the line.
    pub(crate) const ACQUIRE_FENCED_QUEUED: Self = Self {
        text: include_str!("../scripts/sent/acquire_fenced_queued.lua"),
        sha1: include_str!("../scripts/sent/acquire_fenced_queued.sha1"),
    };

    /// Does what [`RELEASE_FENCED`](Self::RELEASE_FENCED) does, and calls the first client in the line.
    pub(crate) const RELEASE_FENCED_QUEUED: Self = Self {
        text: include_str!("../scripts/sent/release_fenced_queued.lua"),
        sha1: include_str!("../scripts/sent/release_fenced_queued.sha1"),
    };

    /// Asks a node for its identity. See [`NodeInfo`](crate::transport::NodeInfo).
    pub(crate) const NODE_INFO: Self = Self {
        text: include_str!("../scripts/sent/node_info.lua"),
        sha1: include_str!("../scripts/sent/node_info.sha1"),
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

    /// The start of a call of this script: all words before the first of its keys. `keys` is their number.
    pub(crate) fn call(&self, call: ScriptCall, keys: &'static str) -> Arguments<'static> {
        let (verb, script) = match call {
            ScriptCall::Hash => ("EVALSHA", self.sha1),
            ScriptCall::Text | ScriptCall::ShortText => ("EVAL", self.text),
        };
        Arguments::of(&[word(verb), word(script), word(keys)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn the_hash_of_a_script_is_the_sha1_of_its_text() {
        let [plain, fenced] = [&Script::PLAIN[..], &Script::FENCED];
        let [queued, both] = [&Script::QUEUED[..], &Script::FENCED_QUEUED];
        for script in [
            plain,
            fenced,
            queued,
            both,
            &[
                &Script::KEEP,
                &Script::NODE_INFO,
                #[cfg(any(feature = "queue", feature = "mock"))]
                &Script::RELEASE_OUTSIDE,
            ],
        ]
        .concat()
        {
            let sha1 = sha1_smol::Sha1::from(script.text()).digest();
            assert_eq!(sha1.to_string(), script.sha1());
        }
    }
}
