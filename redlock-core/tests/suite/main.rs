//! The lock over nodes in memory, in virtual time.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod acquire;
mod admission;
mod cancel;
mod clocks;
mod contention;
mod contract;
mod extend;
mod fences;
mod hold;
mod hostile;
mod identity;
mod kit;
mod line;
mod messages;
mod observer;
mod release;
mod rules;
mod skew;
mod world;
