//! `redlock-std` against real Redis servers.

mod contention;
mod faults;
mod leftovers;
mod lock;
mod peer;
mod setup;
