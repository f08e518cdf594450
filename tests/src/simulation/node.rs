//! What a node does with a command: plain data, the time passed in.

use std::collections::BTreeMap;

use core::time::Duration;

use redlock_core::{Command, Instant, Reply, Token};

/// The keys of one node.
///
/// It does what Redis does, and to the microsecond what `MemoryNode` of the core does; a test compares them,
/// and that one is compared with a real Redis.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Node {
    keys: BTreeMap<Vec<u8>, Entry>,
}

/// What stands under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Whose it is.
    pub token: Token,
    /// By the clock of the node: from then on it is not there any more.
    pub expires_at: Instant,
}

impl Node {
    /// Does what `command` says, at `now` by the clock of the node.
    pub fn execute(&mut self, command: &Command<'_>, now: Instant) -> Reply {
        // What has expired stays away, also when the clock is set back later.
        self.keys.retain(|_, entry| entry.expires_at > now);
        let after = |ttl_ms: u32| now.saturating_add(Duration::from_millis(ttl_ms.into()));
        let standing = self.keys.get_mut(command.key());
        match (*command, standing) {
            (Command::Acquire { .. }, Some(_)) => Reply::Held,
            (Command::Acquire { key, token, ttl_ms }, None) => {
                let entry = Entry {
                    token: *token,
                    expires_at: after(ttl_ms),
                };
                self.keys.insert(key.to_vec(), entry);
                Reply::Acquired
            }
            (Command::Extend { token, ttl_ms, .. }, Some(entry)) if entry.token == *token => {
                entry.expires_at = after(ttl_ms);
                Reply::Extended
            }
            (Command::Release { key, token }, Some(entry)) if entry.token == *token => {
                self.keys.remove(key);
                Reply::Released
            }
            (Command::Extend { .. } | Command::Release { .. }, _) => Reply::NotMine,
        }
    }

    /// What stands under `key` at `now`.
    #[must_use]
    pub fn entry(&self, key: &[u8], now: Instant) -> Option<&Entry> {
        self.keys.get(key).filter(|entry| entry.expires_at > now)
    }

    /// Deletes `key`, whosever it is.
    pub fn remove(&mut self, key: &[u8]) {
        self.keys.remove(key);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.keys.clear();
    }
}
