//! State that all clients of a node share.

#[cfg(not(feature = "mock-sync"))]
use core::cell::RefCell;
use core::ops::DerefMut;

/// A value behind a lock. Without the feature `mock-sync` it is for one thread, and needs no standard library.
#[derive(Debug)]
pub(super) struct Shared<T>(Lock<T>);

#[cfg(not(feature = "mock-sync"))]
type Lock<T> = RefCell<T>;

#[cfg(feature = "mock-sync")]
type Lock<T> = std::sync::Mutex<T>;

impl<T> Shared<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(Lock::new(value))
    }

    #[cfg(not(feature = "mock-sync"))]
    pub(super) fn borrow_mut(&self) -> impl DerefMut<Target = T> {
        self.0.borrow_mut()
    }

    #[cfg(feature = "mock-sync")]
    pub(super) fn borrow_mut(&self) -> impl DerefMut<Target = T> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
