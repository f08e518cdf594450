//! A collection of fixed size, without an allocator.

use core::hash::{Hash, Hasher};

/// Up to `N` items, each in its own slot until it is removed.
///
/// Iteration stops at the highest slot that was ever used. So it is fast for the few items of most tests, even in a debug
/// build and under Miri.
#[derive(Debug, Clone)]
pub(super) struct Slots<T, const N: usize> {
    slots: [Option<T>; N],
    used: usize,
}

impl<T, const N: usize> Slots<T, N> {
    pub(super) const fn new() -> Self {
        Self {
            slots: [const { None }; N],
            used: 0,
        }
    }

    /// Puts `item` into the first free slot, and returns the slot. `None` if there is no room.
    pub(super) fn insert(&mut self, item: T) -> Option<usize> {
        let free = self.slots.iter().position(Option::is_none)?;
        *self.slots.get_mut(free)? = Some(item);
        self.used = self.used.max(free + 1);
        Some(free)
    }

    pub(super) fn has_room(&self) -> bool {
        self.slots.iter().any(Option::is_none)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().take(self.used).flatten()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().take(self.used).flatten()
    }

    pub(super) fn get_mut(&mut self, slot: usize) -> Option<&mut T> {
        self.slots.get_mut(slot)?.as_mut()
    }

    pub(super) fn take(&mut self, slot: usize) -> Option<T> {
        self.slots.get_mut(slot)?.take()
    }

    pub(super) fn take_all(&mut self) -> impl Iterator<Item = T> {
        let used = self.slots.iter_mut().take(self.used);
        used.filter_map(Option::take)
    }

    /// Keeps only the items for which `keep` returns `true`.
    pub(super) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        for slot in self.slots.iter_mut().take(self.used) {
            slot.take_if(|item| !keep(item));
        }
    }
}

/// Equal if the items are equal and in the same order. Their slots do not matter.
impl<T: PartialEq, const N: usize> PartialEq for Slots<T, N> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<T: Eq, const N: usize> Eq for Slots<T, N> {}

impl<T: Hash, const N: usize> Hash for Slots<T, N> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.iter().for_each(|item| item.hash(state));
    }
}
