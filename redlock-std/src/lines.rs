//! What the operations of a handle have learned about the lines of locks.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::PoisonError;
use std::time::Duration;

use redlock_core::{Clock, Instant};

use crate::lock_clock::LockClock;
use crate::sync::{Mutex, MutexGuard};

/// What a handle and its clones have learned about the lines of locks.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    /// The keys for which nodes have lately told that clients of other processes wait. An acquire of such a key begins in the line,
    /// so that it does not overtake them.
    ///
    /// A hash of each key, and when it was recorded last. If two keys share it, acquires begin in a line in vain.
    keys: Mutex<HashMap<u64, Instant>>,
    /// A random one, so that no key can be chosen to have the hash of another.
    hash: RandomState,
    clock: LockClock,
}

/// How long a key is remembered. The acquires of other processes look at the lock more often than that, so a release finds out
/// again that they wait.
const LASTS: Duration = Duration::from_secs(10);

/// The largest number of keys, about two megabytes. More of them are not remembered.
const MAX_KEYS: usize = 1 << 16;

impl Lines {
    pub(crate) fn new(clock: LockClock) -> Self {
        Self {
            clock,
            ..Self::default()
        }
    }

    /// Records that clients of other processes wait for the lock `key`.
    pub(crate) fn record(&self, key: &[u8]) {
        let now = self.clock.now();
        let mut keys = self.lock();
        if keys.len() >= MAX_KEYS {
            keys.retain(|_, at| !is_over(*at, now));
        }
        if keys.len() < MAX_KEYS {
            keys.insert(self.hash.hash_one(key), now);
        }
    }

    /// Whether clients of other processes wait for the lock `key`.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        let mut keys = self.lock();
        if keys.is_empty() {
            return false;
        }
        let hash = self.hash.hash_one(key);
        let is_over = keys.get(&hash).map(|at| is_over(*at, self.clock.now()));
        if is_over == Some(true) {
            keys.remove(&hash);
        }
        is_over == Some(false)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Instant>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_over(at: Instant, now: Instant) -> bool {
    now >= at.saturating_add(LASTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_remembered_for_a_while_and_the_keys_are_bounded() {
        let lines = Lines::default();
        lines.record(b"dock");
        assert!(lines.contains(b"dock") && !lines.contains(b"crane"));

        for at in lines.lock().values_mut() {
            *at = at.saturating_sub(LASTS);
        }
        assert!(!lines.contains(b"dock"));
        assert!(lines.lock().is_empty());

        for number in 0..MAX_KEYS + 9 {
            lines.record(&number.to_be_bytes());
        }
        assert_eq!(lines.lock().len(), MAX_KEYS);
    }
}
