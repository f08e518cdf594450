//! What a server writes to its disk and copies to its replicas.

use crate::fence::{Fence, Fencing};
use crate::key::KeyName;
use crate::mock::line::Line;
use crate::mock::slots::Slots;
use crate::node_info::{ReplicationId, RunId};
use crate::time::Instant;
use crate::token::Token;

/// The data of a server with room for `KEYS` locks. All instants are on the wall clock of the server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Data<const KEYS: usize> {
    entries: Slots<(KeyName, Entry), KEYS>,
    fences: Slots<(KeyName, FenceRecord), KEYS>,
    lines: Slots<(KeyName, Line), LINES>,
    pub(super) guard: Option<Guard>,
}

/// For how many locks clients can wait at the same time.
const LINES: usize = 3;

/// The key of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Entry {
    /// The token of the holder.
    pub token: Token,
    /// The holder has released the lock, which stays held for the rest of [`Options::min_hold`](crate::Options::min_hold).
    pub is_kept: bool,
    /// The key is gone from this instant on.
    pub expires_at: Instant,
}

/// What the key of a lock carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Value {
    pub(super) token: Token,
    /// Whether [`Token::KEPT`] follows.
    pub(super) is_kept: bool,
}

impl Entry {
    pub(super) const fn value(&self) -> Value {
        Value {
            token: self.token,
            is_kept: self.is_kept,
        }
    }
}

impl Value {
    /// The token of a lease that is not released.
    pub(super) const fn of(token: Token) -> Self {
        Self {
            token,
            is_kept: false,
        }
    }
}

/// The fence record of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FenceRecord {
    /// The highest fence that was accepted.
    pub(super) fence: Fence,
    /// Until when the key is held, even if it has expired because the clock was ahead.
    pub(super) held_until: Instant,
    /// The token whose acquire or extend was accepted last.
    pub(super) accepted: Option<Token>,
    pub(super) expires_at: Instant,
}

/// The guard record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Guard {
    pub(super) run_id: RunId,
    pub(super) replication_id: ReplicationId,
    /// The end of the quarantine.
    pub(super) until: Instant,
    /// The rules. `None` until the first fenced acquire, which sets its own rules, as if `redlock init` had set them.
    pub(super) fencing: Option<Fencing>,
}

/// An instant that has always passed.
pub(super) const PAST: Instant = Instant::from_micros(0);

impl FenceRecord {
    /// Stands for the record of a key that has none.
    const NONE: Self = Self {
        fence: Fence::ZERO,
        held_until: PAST,
        accepted: None,
        expires_at: PAST,
    };
}

impl<const KEYS: usize> Data<KEYS> {
    /// No data, as after FLUSHALL.
    pub(super) const EMPTY: Self = Self {
        entries: Slots::new(),
        fences: Slots::new(),
        lines: Slots::new(),
        guard: None,
    };

    /// No data but a guard record.
    pub(super) const fn of(guard: Guard) -> Self {
        let mut data = Self::EMPTY;
        data.guard = Some(guard);
        data
    }

    /// The rules of the guard record.
    #[must_use]
    pub fn rules(&self) -> Option<Fencing> {
        self.guard?.fencing
    }

    pub(super) fn expire(&mut self, now: Instant) {
        self.entries.retain(|(_, entry)| entry.expires_at > now);
        self.fences.retain(|(_, record)| record.expires_at > now);
        self.lines.retain(|(_, line)| line.expires_at > now);
    }

    pub(super) fn len(&self) -> usize {
        self.entries.iter().count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0 && self.fences.iter().next().is_none() && self.lines.iter().next().is_none()
    }

    pub(super) fn entry(&self, key: &KeyName) -> Option<&Entry> {
        let mut all = self.entries.iter();
        all.find(|(of, _)| of == key).map(|(_, entry)| entry)
    }

    pub(super) fn fence_record(&self, key: &KeyName) -> Option<&FenceRecord> {
        let mut all = self.fences.iter();
        all.find(|(of, _)| of == key).map(|(_, record)| record)
    }

    pub(super) fn line(&self, key: &KeyName) -> Option<&Line> {
        let mut all = self.lines.iter();
        all.find(|(of, _)| of == key).map(|(_, line)| line)
    }

    pub(super) fn has_room_for_line(&self, key: &KeyName) -> bool {
        self.lines.has_room() || self.line(key).is_some()
    }

    /// Deletes the line if it is empty. Returns whether there was room.
    pub(super) fn set_line(&mut self, key: KeyName, line: Line) -> bool {
        self.lines.retain(|(of, _)| *of != key);
        line.is_empty() || self.lines.insert((key, line)).is_some()
    }

    pub(super) fn known(&self, key: &KeyName) -> FenceRecord {
        let record = self.fence_record(key);
        record.copied().unwrap_or(FenceRecord::NONE)
    }

    pub(super) fn has_room_for_entry(&self, key: &KeyName) -> bool {
        self.entries.has_room() || self.entry(key).is_some()
    }

    pub(super) fn has_room_for_fence(&self, key: &KeyName) -> bool {
        self.fences.has_room() || self.fence_record(key).is_some()
    }

    /// Returns whether there was room.
    pub(super) fn set_entry(&mut self, key: KeyName, entry: Entry) -> bool {
        self.remove_entry(&key);
        self.entries.insert((key, entry)).is_some()
    }

    /// Returns whether there was room.
    pub(super) fn set_fence(&mut self, key: KeyName, record: FenceRecord) -> bool {
        self.remove_fence(&key);
        self.fences.insert((key, record)).is_some()
    }

    pub(super) fn remove_entry(&mut self, key: &KeyName) {
        self.entries.retain(|(of, _)| of != key);
    }

    pub(super) fn remove_fence(&mut self, key: &KeyName) {
        self.fences.retain(|(of, _)| of != key);
    }
}
