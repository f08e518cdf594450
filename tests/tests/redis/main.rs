//! `redlock-std` against real Redis servers.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails a test"
)]

mod admission;
mod adopt;
mod blocking;
mod burst;
mod closing;
mod connection;
mod contention;
mod faults;
mod fences;
mod full;
mod hostile;
mod identity;
mod leftovers;
mod line;
mod lock;
mod patience;
mod peer;
mod permissions;
mod processes;
mod setup;
mod starved;
mod status;
#[cfg(feature = "telemetry")]
mod telemetry;
mod unwell;
