//! The wait of a client in the line of a lock: when it looks at the lock next.

// The test kit needs this also without the feature `queue`.
#[cfg(not(any(feature = "queue", feature = "mock")))]
#[path = "waiting/disabled.rs"]
mod state;
#[cfg(any(feature = "queue", feature = "mock"))]
#[path = "waiting/enabled.rs"]
mod state;

pub(super) use state::{Contention, Waiting};
