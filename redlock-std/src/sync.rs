//! Locks, atomics and `Notify`: those of the standard library and of tokio. With `--cfg redlock_loom` the tests get those of
//! loom, which runs them in every order of their threads.

#[cfg(all(test, redlock_loom))]
mod modelled;

#[cfg(all(test, redlock_loom))]
pub(crate) use loom::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic};
#[cfg(all(test, redlock_loom))]
pub(crate) use modelled::Notify;
#[cfg(not(all(test, redlock_loom)))]
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, atomic};
#[cfg(not(all(test, redlock_loom)))]
pub(crate) use tokio::sync::Notify;
