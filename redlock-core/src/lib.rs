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

mod owned;
mod transport;

mod failure;

mod admission;
mod node_info;

mod command;
mod reply;

mod denial;
mod rules;

mod wire;

mod entropy;
mod fence;
mod key;
mod time;
mod token;

#[cfg(feature = "mock")]
pub mod mock;

#[cfg(test)]
extern crate std;

pub use admission::Admission;
pub use command::{Command, Verb};
pub use denial::Denial;
pub use entropy::Entropy;
pub use error::{AcquireError, BuildError, ExtendError, HoldError, LossCause};
pub use failure::{Failure, NodeError};
pub use fence::{Fence, FenceGate, Fleet, Proposal, Reading};
pub use key::{FENCE_KEY_PREFIX, GUARD_KEY, KeyName, RESERVED_PREFIX};
pub use lease::Lease;
pub use node_info::{NodeInfo, ReplicationId, RunId};
pub use options::{Options, OptionsError};
pub use owned::OwnedCommand;
pub use redlock::{Acquisition, Redlock, Released};
pub use reply::Reply;
pub use report::{Outcome, Report, Tally};
pub use rules::Rules;
pub use time::{Clock, Instant};
pub use token::Token;
pub use transport::{NodeErrorOf, Transport};
pub use wire::{Answer, Argument, Arguments, Script, ScriptCall};
