//! The tasks that wait for a change of a node.

use core::task::Waker;

#[cfg(not(feature = "mock-sync"))]
use crate::mock::slots::Slots;

/// Their wakers, each with a number. With the standard library, there is room for any number of them.
#[derive(Debug)]
pub(super) struct Wakers(List);

#[cfg(not(feature = "mock-sync"))]
type List = Slots<(u64, Waker), 64>;

#[cfg(feature = "mock-sync")]
type List = std::vec::Vec<(u64, Waker)>;

impl Wakers {
    pub(super) const fn new() -> Self {
        Self(List::new())
    }

    /// Registers a task. If there is no room, it is woken at once, so that it polls again.
    pub(super) fn register(&mut self, number: u64, waker: &Waker) {
        #[cfg(feature = "mock-sync")]
        self.0.push((number, waker.clone()));
        #[cfg(not(feature = "mock-sync"))]
        if self.0.insert((number, waker.clone())).is_none() {
            waker.wake_by_ref();
        }
    }

    pub(super) fn remove(&mut self, number: u64) {
        self.0.retain(|(other, _)| *other != number);
    }

    pub(super) fn wake_all(&mut self) {
        #[cfg(feature = "mock-sync")]
        let wakers = self.0.drain(..);
        #[cfg(not(feature = "mock-sync"))]
        let wakers = self.0.take_all();
        wakers.for_each(|(_, waker)| waker.wake());
    }
}
