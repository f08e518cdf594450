//! The commands that wait to be sent to one node, in the order of sending.

use std::collections::VecDeque;

use super::call::{AcquireNumber, Call};

/// Waiting commands, in three classes. Extensions are sent first, because leases depend on them; then releases, which free
/// keys; then acquires.
///
/// No command overtakes the acquire with the same token: a command that may belong to a waiting acquire is queued behind
/// it. An acquire that is requeued, because the node has forgotten its script, is not sent any more once its caller has
/// stopped waiting; only then its release is queued.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    extends: VecDeque<Call>,
    releases: VecDeque<Call>,
    /// Also commands that must not overtake one of them.
    acquires: VecDeque<Call>,
    /// Releases that no caller waits for, of acquires that have left. There may be a million, so they are looked at rarely.
    orphans: VecDeque<Call>,
    /// The number of commands of each kind, in all classes.
    counts: Counts,
    /// The number of the last queued acquire. The first one has number one.
    last_in: AcquireNumber,
    /// The number of the last sent acquire.
    last_out: AcquireNumber,
    /// The numbers of the last queued and the last sent extension.
    last_extend_in: u64,
    last_extend_out: u64,
}

#[derive(Debug, Default)]
struct Counts {
    extends: usize,
    releases: usize,
    acquires: usize,
    /// Of the acquires and extends together.
    key_bytes: usize,
}

/// The first command whose keys make so many bytes is the last of its write. A command contains its key up to three times.
const MANY_KEY_BYTES: usize = 64 * 1024;

impl Waiting {
    /// Queues `call`. Returns its number if it is an acquire.
    pub(crate) fn push(&mut self, mut call: Call) -> Option<AcquireNumber> {
        self.counts.add(&call);
        if call.is_acquire() {
            self.last_in = self.last_in.saturating_add(1);
            call.behind = Some(self.last_in);
            self.acquires.push_back(call);
            return Some(self.last_in);
        }
        if !call.is_release() {
            self.last_extend_in = self.last_extend_in.saturating_add(1);
            call.extend = self.last_extend_in;
        }
        let is_free = call.behind.is_some_and(|acquire| self.has_left(acquire));
        let class = if is_free {
            self.class_of(&call)
        } else {
            &mut self.acquires
        };
        class.push_back(call);
        None
    }

    /// Requeues a call at the front of its class.
    pub(crate) fn push_front(&mut self, call: Call) {
        self.counts.add(&call);
        if call.is_release() && call.is_abandoned() {
            self.orphans.push_front(call);
        } else {
            self.class_of(&call).push_front(call);
        }
    }

    /// Queues releases that no caller waits for.
    pub(crate) fn adopt(&mut self, mut releases: VecDeque<Call>) {
        self.counts.releases += releases.len();
        if self.orphans.is_empty() {
            self.orphans = releases;
        } else {
            self.orphans.append(&mut releases);
        }
    }

    /// Removes all calls that a caller may wait for. Releases stay queued, after `fail` has answered them.
    pub(crate) fn fail(&mut self, mut fail: impl FnMut(&mut Call)) {
        for class in [&mut self.extends, &mut self.releases, &mut self.acquires] {
            for mut call in class.drain(..) {
                fail(&mut call);
                if call.is_release() {
                    self.orphans.push_back(call);
                } else {
                    self.counts.remove(&call);
                }
            }
        }
    }

    /// Removes and returns the first commands, at most `most`, and fewer if their keys are long: those that are queued later, and are
    /// sent first, do not wait for very many bytes.
    pub(crate) fn take(&mut self, most: usize) -> Vec<Call> {
        // The actor asks each time it is polled, also if it was woken for replies.
        if self.is_empty() {
            return Vec::new();
        }
        let mut calls = Vec::with_capacity(self.len().min(most));
        let classes = [
            &mut self.extends,
            &mut self.releases,
            &mut self.orphans,
            &mut self.acquires,
        ];
        let mut key_bytes = 0;
        for class in classes {
            let room = class.iter().take(most - calls.len());
            let fitting = room.take_while(|call| {
                let fits = key_bytes < MANY_KEY_BYTES;
                key_bytes += call.command().key.len();
                fits
            });
            let count = fitting.count();
            calls.extend(class.drain(..count));
        }
        for call in &calls {
            self.counts.remove(call);
            if call.is_acquire() {
                self.last_out = self.last_out.max(call.behind.unwrap_or_default());
            }
            self.last_extend_out = self.last_extend_out.max(call.extend);
        }
        calls
    }

    /// Whether this acquire or a later one was removed, or no acquire waits.
    pub(crate) const fn has_left(&self, acquire: AcquireNumber) -> bool {
        acquire <= self.last_out || self.counts.acquires == 0
    }

    /// The number of the last queued extension.
    pub(crate) const fn last_extend(&self) -> u64 {
        self.last_extend_in
    }

    /// Whether this extension or a later one was removed, or no extension waits.
    pub(crate) const fn has_left_extend(&self, extend: u64) -> bool {
        extend <= self.last_extend_out || self.counts.extends == 0
    }

    pub(crate) fn retain_mut(&mut self, mut is_kept: impl FnMut(&mut Call) -> bool) {
        let classes = [
            &mut self.extends,
            &mut self.releases,
            &mut self.orphans,
            &mut self.acquires,
        ];
        for class in classes {
            class.retain_mut(|call| {
                let is_kept = is_kept(call);
                if !is_kept {
                    self.counts.remove(call);
                }
                is_kept
            });
        }
    }

    /// Removes the extensions that no caller waits for. An extension that is not sent grants nothing.
    pub(crate) fn forget_abandoned_extends(&mut self) {
        self.extends.retain(|call| {
            if call.is_abandoned() {
                self.counts.remove(call);
            }
            !call.is_abandoned()
        });
    }

    /// Removes all commands.
    pub(crate) fn clear(&mut self) {
        self.retain_mut(|_| false);
    }

    pub(crate) fn len(&self) -> usize {
        self.extends.len() + self.releases.len() + self.orphans.len() + self.acquires.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of calls of the kind of `call`.
    pub(crate) fn len_of(&mut self, call: &Call) -> usize {
        *self.counts.of(call)
    }

    /// The total length of the keys of acquires and extends.
    pub(crate) const fn key_bytes(&self) -> usize {
        self.counts.key_bytes
    }

    fn class_of(&mut self, call: &Call) -> &mut VecDeque<Call> {
        match call {
            call if call.is_acquire() => &mut self.acquires,
            call if call.is_release() => &mut self.releases,
            _ => &mut self.extends,
        }
    }
}

impl Counts {
    fn add(&mut self, call: &Call) {
        *self.of(call) += 1;
        self.key_bytes += Self::key_bytes_of(call);
    }

    fn remove(&mut self, call: &Call) {
        *self.of(call) -= 1;
        self.key_bytes -= Self::key_bytes_of(call);
    }

    /// Releases have a bound of their own.
    fn key_bytes_of(call: &Call) -> usize {
        if call.is_release() {
            return 0;
        }
        call.command().key.len()
    }

    fn of(&mut self, call: &Call) -> &mut usize {
        match call {
            call if call.is_acquire() => &mut self.acquires,
            call if call.is_release() => &mut self.releases,
            _ => &mut self.extends,
        }
    }
}
