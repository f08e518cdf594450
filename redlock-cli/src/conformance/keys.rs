//! The keys of the trials.

use core::fmt::Write;

use redlock_core::{Entropy, FENCE_KEY_PREFIX, MAILBOX_PREFIX, QUEUE_KEY_PREFIX, Token};
use redlock_std::SystemEntropy;

/// For how long a key lives if it is not deleted, in milliseconds. Longer than all trials take.
pub(super) const LIFE_MS: u32 = 150_000;

/// The keys of one run, which no other run has.
#[derive(Debug, Clone)]
pub(super) struct Keys {
    /// The prefix and a random number.
    base: String,
    number: String,
}

impl Keys {
    pub(super) fn new(prefix: &str) -> Self {
        let mut bytes = [0; 8];
        SystemEntropy.fill(&mut bytes);
        let number = bytes.iter().fold(String::new(), |mut number, byte| {
            // Writing to a string cannot fail.
            let _never = write!(number, "{byte:02x}");
            number
        });
        Self {
            base: format!("{prefix}{number}:"),
            number,
        }
    }

    /// The lock of one trial.
    pub(super) fn lock(&self, trial: &str) -> String {
        format!("{}{trial}", self.base)
    }

    /// The fence record of the lock of one trial.
    pub(super) fn fence(&self, trial: &str) -> String {
        format!("{FENCE_KEY_PREFIX}{}", self.lock(trial))
    }

    /// The line of the lock of one trial.
    pub(super) fn queue(&self, trial: &str) -> String {
        format!("{QUEUE_KEY_PREFIX}{}", self.lock(trial))
    }

    /// A key in the place of the guard record of the node, which clients rely on.
    pub(super) fn guard(&self) -> String {
        self.lock("guard")
    }

    pub(super) fn mailbox(&self) -> &str {
        &self.number
    }

    pub(super) fn channel(&self) -> String {
        format!("{MAILBOX_PREFIX}{}", self.number)
    }

    /// Every key that the trials can leave.
    pub(super) fn all(&self) -> Vec<String> {
        let locks = super::trial::NAMES.iter();
        let keys = locks.flat_map(|name| [self.lock(name), self.fence(name), self.queue(name)]);
        keys.chain([self.guard()]).collect()
    }
}

/// A token of any bytes, as clients have them: also those that a protocol could trip over.
pub(super) fn token() -> [u8; Token::LEN] {
    let mut token = [0; Token::LEN];
    SystemEntropy.fill(&mut token);
    let (front, _random) = token.split_at_mut(6);
    front.copy_from_slice(b"\0\r\n:\xff$");
    token
}
