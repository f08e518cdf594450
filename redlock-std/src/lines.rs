//! What the operations of a handle have learned about the lines of locks.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::PoisonError;
use std::time::Duration;

use redlock_core::{Clock, Instant};

use crate::lock_clock::LockClock;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// What a handle and its clones have learned about the lines of locks.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    contended: Mutex<Contended>,
    /// Whether there are any keys. Operations on locks without a line need not lock them.
    has_keys: AtomicBool,
    /// A random one, so that no key can be chosen to have the hash of another.
    hash: RandomState,
    clock: LockClock,
}

/// The keys for which nodes have lately told that clients of other processes wait. An acquire of such a key begins in the line, so
/// that it does not overtake them.
#[derive(Debug)]
struct Contended {
    /// By a hash of the key. If two keys share it, acquires begin in a line in vain.
    keys: HashMap<u64, Told>,
    /// When the keys were last searched for those that are over.
    cleaned_at: Instant,
}

/// What is known of one key.
#[derive(Debug, Clone, Copy)]
struct Told {
    /// When a node has last told it.
    at: Instant,
    until: Instant,
}

/// How long a key is remembered after a node has told it, or after the [end of a lease](Lines::lease_ends) in which a node has told
/// it.
const LASTS: Duration = Duration::from_secs(10);

/// The largest number of keys, about three megabytes. More of them are not remembered.
const MAX_KEYS: usize = 1 << 16;

/// If there are so many keys, those that are over are removed no more often than this: it takes a millisecond.
const BETWEEN_CLEANINGS: Duration = Duration::from_secs(1);

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
        let hash = self.hash.hash_one(key);
        let mut contended = self.lock();
        if contended.has_room_for(hash, now) {
            let until = now.saturating_add(LASTS);
            contended.keys.insert(hash, Told { at: now, until });
            self.has_keys.store(true, Ordering::Relaxed);
        }
    }

    /// Records that a lease of the lock `key` ends, whose acquire began at `since`. If a node has told since then that clients of other
    /// processes wait, the next acquire begins in the line, however long the lease was: the nodes may not have answered its release yet.
    pub(crate) fn lease_ends(&self, key: &[u8], since: Instant) {
        if !self.has_keys.load(Ordering::Relaxed) {
            return;
        }
        if let Some(told) = self.lock().keys.get_mut(&self.hash.hash_one(key))
            && told.at >= since
        {
            told.until = self.clock.now().saturating_add(LASTS);
        }
    }

    /// Whether clients of other processes wait for the lock `key`.
    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        if !self.has_keys.load(Ordering::Relaxed) {
            return false;
        }
        let hash = self.hash.hash_one(key);
        let contended = self.lock();
        let told = contended.keys.get(&hash);
        told.is_some_and(|told| self.clock.now() < told.until)
    }

    fn lock(&self) -> MutexGuard<'_, Contended> {
        self.contended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contended {
    /// Whether there is room for this key, after those that are over have been removed if it is scarce.
    fn has_room_for(&mut self, hash: u64, now: Instant) -> bool {
        let has_room = |contended: &Self| {
            contended.keys.len() < MAX_KEYS || contended.keys.contains_key(&hash)
        };
        let may_clean = now >= self.cleaned_at.saturating_add(BETWEEN_CLEANINGS);
        if !has_room(self) && may_clean {
            self.cleaned_at = now;
            self.keys.retain(|_, told| now < told.until);
        }
        has_room(self)
    }
}

impl Default for Contended {
    fn default() -> Self {
        Self {
            keys: HashMap::new(),
            cleaned_at: Instant::from_micros(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets so much time pass for what is known.
    fn pass(lines: &Lines, time: Duration) {
        let mut contended = lines.lock();
        contended.cleaned_at = contended.cleaned_at.saturating_sub(time);
        for told in contended.keys.values_mut() {
            told.at = told.at.saturating_sub(time);
            told.until = told.until.saturating_sub(time);
        }
    }

    #[test]
    fn a_key_is_remembered_for_a_while_and_the_keys_are_bounded() {
        let lines = Lines::default();
        lines.record(b"dock");
        assert!(lines.contains(b"dock") && !lines.contains(b"crane"));
        pass(&lines, LASTS);
        assert!(!lines.contains(b"dock"));

        for number in 0..MAX_KEYS + 9 {
            lines.record(&number.to_be_bytes());
        }
        assert_eq!(lines.lock().keys.len(), MAX_KEYS);
        assert!(lines.contains(&0_usize.to_be_bytes()));
        pass(&lines, LASTS);
        lines.record(b"dock");
        assert_eq!(lines.lock().keys.len(), 1);
        assert!(lines.contains(b"dock"));
    }

    #[test]
    fn a_key_is_remembered_after_a_long_lease_in_which_a_node_has_told_it_and_after_no_other() {
        let lines = Lines::default();
        let begun_at = lines.clock.now().saturating_sub(LASTS * 2);
        lines.record(b"dock");
        pass(&lines, LASTS);
        lines.lease_ends(b"crane", begun_at);
        lines.lease_ends(b"dock", begun_at);
        assert!(lines.contains(b"dock") && !lines.contains(b"crane"));

        // In the next lease, no node has told it.
        pass(&lines, LASTS);
        lines.lease_ends(b"dock", lines.clock.now());
        assert!(!lines.contains(b"dock"));
    }
}
