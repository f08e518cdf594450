//! What the nodes of a lock tell metrics and traces. Without the features `metrics` and `tracing`, no code.

#[cfg(not(any(feature = "metrics", feature = "tracing")))]
#[path = "observer/disabled.rs"]
mod state;
#[cfg(any(feature = "metrics", feature = "tracing"))]
#[path = "observer/enabled.rs"]
mod state;

#[cfg(feature = "metrics")]
pub(crate) use state::{NODE_FAILURES, NODE_UP};
pub(crate) use state::{NodeObserver, Presence};
