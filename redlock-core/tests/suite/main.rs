//! The lock over nodes in memory, in virtual time.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod acquire;
mod admission;
mod cancel;
mod clocks;
mod contention;
mod contract;
mod extend;
#[cfg(feature = "fence")]
mod fences;
mod hold;
#[cfg(feature = "fence")]
mod hostile;
#[cfg(feature = "fence")]
mod identity;
mod kit;
#[cfg(feature = "queue")]
mod line;
mod messages;
#[cfg(feature = "observe")]
mod observer;
mod release;
#[cfg(feature = "fence")]
mod rules;
#[cfg(feature = "fence")]
mod skew;
mod world;
