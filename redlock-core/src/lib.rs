#![doc = include_str!("../README.md")]
#![no_std]

// Ordered from the top down: each module uses only modules below it. The test kit `mock` stands apart: it uses modules above
// it, and no other module uses it.
mod hold;
mod redlock;

mod race;

mod clock_samples;
#[cfg(any(feature = "queue", feature = "mock"))]
mod line_looks;
mod line_samples;
mod round;

mod observer;

mod error;
mod options;
mod report;

mod lease;

pub mod transport;

mod owned;

mod failure;

mod admission;
mod node_info;

mod command;
mod reply;

mod denial;
mod vote_conditions;

mod wire;

mod entropy;
#[doc(hidden)] // for the messages of redlock-std and redlock-cli
pub mod escape;
mod fence;
mod line;

mod key;
mod options_error;
mod text;
mod time;
mod token;

#[cfg(feature = "mock")]
pub mod mock;

#[cfg(any(test, feature = "mock-sync"))]
extern crate std;

pub use denial::Denial;
pub use entropy::Entropy;
pub use error::{AcquireError, BuildError, ExtendError, HoldError, LossCause};
pub use failure::{Failure, NodeError};
pub use fence::{Fence, FenceGate, Fencing};
pub use key::{
    FENCE_KEY_PREFIX, GUARD_KEY, KeyName, MAILBOX_PREFIX, QUEUE_KEY_PREFIX, RESERVED_PREFIX,
};
pub use lease::Lease;
pub use observer::{AcquireOutcome, HoldEnd, Observer, Wait};
pub use options::Options;
pub use options_error::OptionsError;
pub use redlock::{Acquisition, Redlock, Released};
pub use report::{Outcome, Report, Tally};
pub use time::{Clock, Instant};
pub use token::Token;
pub use transport::{NodeErrorOf, Transport};
