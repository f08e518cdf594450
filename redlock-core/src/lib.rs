#![doc = include_str!("../README.md")]
#![no_std]

// Read from the top down: each module needs only those below it.
mod hold;
mod redlock;

mod race;

mod readings;
mod round;

mod error;
mod lease;
mod options;
mod report;

mod owned;
mod transport;

mod admission;
mod command;
mod entropy;
mod fence;
mod time;

#[cfg(feature = "mock")]
pub mod mock;

#[cfg(test)]
extern crate std;

pub use admission::{Admission, Denial, Introduction, ReplicationId, Rules, RunId};
pub use command::{
    Answer, Argument, Arguments, Command, FENCE_KEY_PREFIX, GUARD_KEY, RESERVED_PREFIX, Reply,
    Script, ScriptCall, Token,
};
pub use entropy::Entropy;
pub use error::{AcquireError, BuildError, ExtendError, HoldError, LossCause};
pub use fence::{Fence, FenceGate, Fleet, Proposal, Reading};
pub use lease::Lease;
pub use options::{Options, OptionsError};
pub use owned::OwnedCommand;
pub use redlock::{Acquisition, Redlock, Released};
pub use report::{KeyName, Outcome, Report, Tally};
pub use time::{Clock, Instant};
pub use transport::Transport;
