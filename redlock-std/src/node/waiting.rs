//! The commands that wait to be sent to one node, in the order in which they leave.

use std::collections::VecDeque;

use super::call::{AcquireNumber, Call};

/// Extensions leave first, since leases depend on them; then releases, which make room for others; then acquires; and last
/// extensions that no caller waits for: the lease has its quorum, or the future was dropped.
///
/// Nothing overtakes an acquire of the same token. What may belong to one that still waits stands behind it.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    extends: VecDeque<Call>,
    releases: VecDeque<Call>,
    /// And what must not overtake one of them.
    acquires: VecDeque<Call>,
    abandoned_extends: VecDeque<Call>,
    /// How many there are of each kind, wherever they stand.
    counts: Counts,
    /// Acquires are numbered from one on. The last one that has come, and the last one that has left.
    last_in: AcquireNumber,
    last_out: AcquireNumber,
}

#[derive(Debug, Default)]
struct Counts {
    extends: usize,
    releases: usize,
    acquires: usize,
}

impl Waiting {
    /// The number of `call`, if it is an acquire.
    pub(crate) fn push(&mut self, mut call: Call) -> Option<AcquireNumber> {
        *self.counts.of(&call) += 1;
        if call.is_acquire() {
            self.last_in = self.last_in.saturating_add(1);
            call.behind = Some(self.last_in);
            self.acquires.push_back(call);
            return Some(self.last_in);
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

    /// Puts back what has left, ahead of its class.
    pub(crate) fn push_front(&mut self, call: Call) {
        *self.counts.of(&call) += 1;
        self.class_of(&call).push_front(call);
    }

    /// At most `most` commands.
    pub(crate) fn take(&mut self, most: usize) -> Vec<Call> {
        let mut calls = Vec::with_capacity(self.len().min(most));
        while calls.len() < most
            && let Some(extend) = self.extends.pop_front()
        {
            if extend.is_abandoned() {
                self.abandoned_extends.push_back(extend);
            } else {
                calls.push(extend);
            }
        }
        for class in [
            &mut self.releases,
            &mut self.acquires,
            &mut self.abandoned_extends,
        ] {
            let count = class.len().min(most - calls.len());
            calls.extend(class.drain(..count));
        }
        for call in &calls {
            *self.counts.of(call) -= 1;
        }
        let acquires = calls.iter().filter(|call| call.is_acquire());
        let last = acquires.filter_map(|call| call.behind).max();
        self.last_out = self.last_out.max(last.unwrap_or_default());
        calls
    }

    /// Whether the acquire with this number has left, or one behind it, or none waits.
    pub(crate) const fn has_left(&self, acquire: AcquireNumber) -> bool {
        acquire <= self.last_out || self.counts.acquires == 0
    }

    pub(crate) fn retain_mut(&mut self, mut is_kept: impl FnMut(&mut Call) -> bool) {
        for class in [
            &mut self.extends,
            &mut self.releases,
            &mut self.acquires,
            &mut self.abandoned_extends,
        ] {
            class.retain_mut(|call| {
                let is_kept = is_kept(call);
                *self.counts.of(call) -= usize::from(!is_kept);
                is_kept
            });
        }
    }

    /// Makes room: an extension that is not sent grants nothing, and is missed by no caller.
    pub(crate) fn forget_abandoned_extends(&mut self) {
        self.counts.extends -= self.abandoned_extends.len();
        self.abandoned_extends.clear();
        let awaited = self.extends.len();
        self.extends.retain(|call| !call.is_abandoned());
        self.counts.extends -= awaited - self.extends.len();
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.retain_mut(|_| false);
    }

    pub(crate) fn len(&self) -> usize {
        self.extends.len()
            + self.releases.len()
            + self.acquires.len()
            + self.abandoned_extends.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many calls there are of the kind of `call`.
    pub(crate) fn len_of(&mut self, call: &Call) -> usize {
        *self.counts.of(call)
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
    fn of(&mut self, call: &Call) -> &mut usize {
        match call {
            call if call.is_acquire() => &mut self.acquires,
            call if call.is_release() => &mut self.releases,
            _ => &mut self.extends,
        }
    }
}
