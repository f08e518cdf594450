//! What a process leaves to the one that takes over its lease.

use core::time::Duration;

use redlock_core::{Fencing, Options};

use super::clock::Moment;
use super::history::Claim;

/// What a process knows of its lease, in a file: all that its successor needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handover {
    pub(crate) claim: Claim,
    pub(crate) rules: Option<Fencing>,
    pub(crate) ttl: Duration,
    /// From then on its process does not use the lease any more. `NEVER` if it does: then its successor waits for its death.
    pub(crate) from: Moment,
}

impl Handover {
    /// Extensions that arrive late set the TTL of their sender: with two TTLs, a successor would trust keys that end earlier.
    pub(crate) fn suits(&self, options: Options) -> bool {
        options.fencing() == self.rules && options.ttl() == self.ttl
    }
}
