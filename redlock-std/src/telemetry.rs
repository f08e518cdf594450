//! What a handle tells metrics (feature `metrics`) and traces (feature `tracing`) of its acquires and leases. Without these features,
//! no code.
//!
//! Nothing here is called while a mutex of this crate is locked. No span, event or metric has a key or a token: only the label that
//! the application gives to a key.

#[cfg(feature = "metrics")]
mod instruments;
#[cfg(any(feature = "metrics", feature = "tracing"))]
mod kinds;

#[cfg(not(any(feature = "metrics", feature = "tracing")))]
#[path = "telemetry/disabled.rs"]
mod state;
#[cfg(any(feature = "metrics", feature = "tracing"))]
#[path = "telemetry/enabled.rs"]
mod state;

pub(crate) use state::{AcquireScope, HoldScope, Telemetry};
