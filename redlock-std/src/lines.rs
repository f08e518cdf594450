//! What the operations of a handle have learned about the lines of locks.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redlock_core::{Clock, Instant};

use crate::lock_clock::LockClock;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// What a handle and its clones have learned about the lines of locks.
#[derive(Debug)]
pub(crate) struct Lines {
    contended: Mutex<Contended>,
    /// Whether there are any keys. Operations on locks without a line need not lock them.
    has_keys: AtomicBool,
    /// A random one, so that no key can be chosen to have the hash of another.
    hash: RandomState,
    clock: LockClock,
    /// How many nodes have to tell that clients of other processes wait: one more than the lock can lose. A minority that lies cannot
    /// have the tasks of a process hand a lock on through the nodes, which is several times slower.
    needed: u32,
}

/// Records what one node tells.
#[derive(Debug, Clone)]
pub(crate) struct Teller {
    lines: Arc<Lines>,
    node: usize,
}

/// The keys for which nodes have lately told that clients of other processes wait. An acquire of such a key begins in the line, so
/// that it does not overtake them, if more than a minority has told.
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
    /// When enough nodes had last told it, and how long this is remembered.
    by_enough: Option<Span>,
    /// The nodes that have told it since then, in the span.
    by: Tellers,
    span: Span,
}

/// A span of time.
#[derive(Debug, Clone, Copy)]
struct Span {
    from: Instant,
    until: Instant,
}

/// A set of nodes, a bit for each index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tellers(u16);

/// How long a key is remembered after enough nodes have told it, or after the [end of a lease](Lines::lease_ends) in which they have.
/// If fewer have: after the first of them.
const LASTS: Duration = Duration::from_secs(10);

/// The largest number of keys, about six megabytes. More of them are not remembered.
const MAX_KEYS: usize = 1 << 16;

/// If there are so many keys, those that are over are removed no more often than this: it takes a millisecond.
const BETWEEN_CLEANINGS: Duration = Duration::from_secs(1);

impl Lines {
    /// The largest number of nodes.
    pub(crate) const MAX_NODES: usize = u16::BITS as usize;

    /// Nothing is known of locks over so many nodes.
    pub(crate) fn new(clock: LockClock, nodes: usize) -> Self {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        Self {
            contended: Mutex::default(),
            has_keys: AtomicBool::default(),
            hash: RandomState::default(),
            clock,
            needed: nodes.div_ceil(2),
        }
    }

    /// Returns what the node with this index tells.
    pub(crate) fn teller(self: &Arc<Self>, node: usize) -> Teller {
        Teller {
            lines: Arc::clone(self),
            node,
        }
    }

    fn record(&self, key: &[u8], node: usize) {
        let now = self.clock.now();
        let hash = self.hash.hash_one(key);
        let mut contended = self.lock();
        if !contended.has_room_for(hash, now) {
            return;
        }
        let told = contended
            .keys
            .entry(hash)
            .or_insert_with(|| Told::nothing(now));
        told.record(node, self.needed, now);
        self.has_keys.store(true, Ordering::Relaxed);
    }

    /// Records that a lease of the lock `key` ends, whose acquire began at `since`. If enough nodes have told since then that clients of
    /// other processes wait, the next acquire begins in the line, however long the lease was: the nodes may not have answered its
    /// release yet.
    pub(crate) fn lease_ends(&self, key: &[u8], since: Instant) {
        if !self.has_keys.load(Ordering::Relaxed) {
            return;
        }
        if let Some(told) = self.lock().keys.get_mut(&self.hash.hash_one(key))
            && let Some(by_enough) = &mut told.by_enough
            && by_enough.from >= since
        {
            by_enough.until = self.clock.now().saturating_add(LASTS);
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
        let by_enough = told.and_then(|told| told.by_enough);
        by_enough.is_some_and(|span| self.clock.now() < span.until)
    }

    fn lock(&self) -> MutexGuard<'_, Contended> {
        self.contended
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Teller {
    /// That of a lock with one node.
    pub(crate) fn alone() -> Self {
        Arc::new(Lines::new(LockClock::System, 1)).teller(0)
    }

    /// Records that the node has told that clients of other processes wait for the lock `key`.
    pub(crate) fn record(&self, key: &[u8]) {
        self.lines.record(key, self.node);
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
            self.keys.retain(|_, told| told.counts_at(now));
        }
        has_room(self)
    }
}

impl Told {
    const fn nothing(now: Instant) -> Self {
        Self {
            by_enough: None,
            by: Tellers(0),
            span: Span::after(now),
        }
    }

    /// Records that `node` has told it. What others have told is forgotten after a while, so that it cannot help a node that tells it
    /// for ever.
    fn record(&mut self, node: usize, needed: u32, now: Instant) {
        if self.by == Tellers(0) || now >= self.span.until {
            self.by = Tellers(0);
            self.span = Span::after(now);
        }
        self.by.insert(node);
        if self.by.0.count_ones() >= needed {
            self.by_enough = Some(Span::after(now));
            self.by = Tellers(0);
        }
    }

    fn counts_at(&self, now: Instant) -> bool {
        now < self.span.until || self.by_enough.is_some_and(|span| now < span.until)
    }
}

impl Span {
    const fn after(now: Instant) -> Self {
        Self {
            from: now,
            until: now.saturating_add(LASTS),
        }
    }
}

impl Tellers {
    fn insert(&mut self, node: usize) {
        let node = u32::try_from(node).unwrap_or(u32::MAX);
        self.0 |= 1_u16.checked_shl(node).unwrap_or(0);
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
            for span in told.by_enough.iter_mut().chain([&mut told.span]) {
                span.from = span.from.saturating_sub(time);
                span.until = span.until.saturating_sub(time);
            }
        }
    }

    #[test]
    fn a_key_is_remembered_for_a_while_and_the_keys_are_bounded() {
        let lines = Lines::new(LockClock::default(), 1);
        lines.record(b"dock", 0);
        assert!(lines.contains(b"dock") && !lines.contains(b"crane"));
        pass(&lines, LASTS);
        assert!(!lines.contains(b"dock"));

        for number in 0..MAX_KEYS + 9 {
            lines.record(&number.to_be_bytes(), 0);
        }
        assert_eq!(lines.lock().keys.len(), MAX_KEYS);
        assert!(lines.contains(&0_usize.to_be_bytes()));
        pass(&lines, LASTS);
        lines.record(b"dock", 0);
        assert_eq!(lines.lock().keys.len(), 1);
        assert!(lines.contains(b"dock"));
    }

    #[test]
    fn a_key_is_remembered_after_a_long_lease_in_which_a_node_has_told_it_and_after_no_other() {
        let lines = Lines::new(LockClock::default(), 1);
        let begun_at = lines.clock.now().saturating_sub(LASTS * 2);
        lines.record(b"dock", 0);
        pass(&lines, LASTS);
        lines.lease_ends(b"crane", begun_at);
        lines.lease_ends(b"dock", begun_at);
        assert!(lines.contains(b"dock") && !lines.contains(b"crane"));

        // In the next lease, no node has told it.
        pass(&lines, LASTS);
        lines.lease_ends(b"dock", lines.clock.now());
        assert!(!lines.contains(b"dock"));
    }

    #[test]
    fn a_minority_that_tells_of_waiters_again_and_again_is_not_believed() {
        for (nodes, needed) in [
            (1, 1),
            (2, 1),
            (3, 2),
            (4, 2),
            (5, 3),
            (Lines::MAX_NODES, Lines::MAX_NODES / 2),
        ] {
            let lines = Lines::new(LockClock::default(), nodes);
            for _ in 0..9 {
                (1..needed).for_each(|node| lines.record(b"dock", node));
                pass(&lines, LASTS / 2);
            }
            assert!(!lines.contains(b"dock"), "{nodes}");
            lines.record(b"dock", 0);
            (1..needed).for_each(|node| lines.record(b"dock", node));
            assert!(lines.contains(b"dock"), "{nodes}");

            // It does not make what others have told last longer.
            for _ in 0..2 {
                (1..needed).for_each(|node| lines.record(b"dock", node));
                pass(&lines, LASTS / 2);
            }
            assert!(!lines.contains(b"dock"), "{nodes}");
        }
    }
}
