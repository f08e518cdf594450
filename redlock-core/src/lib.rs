#![doc = include_str!("../README.md")]
#![no_std]

// Ordered from the top down: each module uses only modules below it.
mod hold;
mod redlock;

mod race;

mod clock_samples;
mod round;

mod error;
mod lease;
mod options;
mod report;

pub mod transport;

mod owned;

mod failure;

mod admission;
mod node_info;

mod command;
mod reply;

mod denial;
mod rules;

mod wire;

mod entropy;
#[doc(hidden)] // for the messages of redlock-std and redlock-cli
pub mod escape;
mod fence;
mod key;
mod time;
mod token;

#[cfg(feature = "mock")]
pub mod mock;

#[cfg(test)]
extern crate std;

pub use denial::Denial;
pub use entropy::Entropy;
pub use error::{AcquireError, BuildError, ExtendError, HoldError, LossCause};
pub use failure::{Failure, NodeError};
pub use fence::{Fence, FenceGate, Fleet};
pub use key::{FENCE_KEY_PREFIX, GUARD_KEY, KeyName, RESERVED_PREFIX};
pub use lease::Lease;
pub use options::{Options, OptionsError};
pub use redlock::{Acquisition, Redlock, Released};
pub use report::{Outcome, Report, Tally};
pub use time::{Clock, Instant};
pub use token::Token;
pub use transport::{NodeErrorOf, Transport};
