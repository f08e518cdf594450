//! A few items in a row, copied as a whole: a world has some of them, and there are millions of worlds.

use core::hash::{Hash, Hasher};
use core::ops::{Deref, DerefMut};

/// At most `MAX` items; what needs more panics.
#[derive(Debug, Clone, Copy)]
pub(super) struct Short<T, const MAX: usize> {
    len: u8,
    items: [T; MAX],
}

impl<T: Copy + Default, const MAX: usize> Short<T, MAX> {
    pub(super) fn new() -> Self {
        Self {
            len: 0,
            items: [T::default(); MAX],
        }
    }

    pub(super) fn push(&mut self, item: T) {
        self.items[usize::from(self.len)] = item;
        self.len += 1;
    }
}

impl<T: Copy + Default, const MAX: usize> Default for Short<T, MAX> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T, const MAX: usize> Deref for Short<T, MAX> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items[..usize::from(self.len)]
    }
}

impl<T, const MAX: usize> DerefMut for Short<T, MAX> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.items[..usize::from(self.len)]
    }
}

impl<T: Copy + Default, const MAX: usize> FromIterator<T> for Short<T, MAX> {
    fn from_iter<I: IntoIterator<Item = T>>(items: I) -> Self {
        let mut row = Self::new();
        items.into_iter().for_each(|item| row.push(item));
        row
    }
}

impl<'a, T, const MAX: usize> IntoIterator for &'a Short<T, MAX> {
    type Item = &'a T;
    type IntoIter = core::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T, const MAX: usize> IntoIterator for &'a mut Short<T, MAX> {
    type Item = &'a mut T;
    type IntoIter = core::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

impl<T: PartialEq, const MAX: usize> PartialEq for Short<T, MAX> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq, const MAX: usize> Eq for Short<T, MAX> {}

impl<T: PartialOrd, const MAX: usize> PartialOrd for Short<T, MAX> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        (**self).partial_cmp(&**other)
    }
}

impl<T: Ord, const MAX: usize> Ord for Short<T, MAX> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (**self).cmp(&**other)
    }
}

impl<T: Hash, const MAX: usize> Hash for Short<T, MAX> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}
