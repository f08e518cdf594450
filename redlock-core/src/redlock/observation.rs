//! What an operation tells the observer of its client. Without the feature `observe`, no code.

#[cfg(not(feature = "observe"))]
#[path = "observation/disabled.rs"]
mod state;
#[cfg(feature = "observe")]
#[path = "observation/enabled.rs"]
mod state;

pub(super) use state::Observation;
