//! The lock of `redlock-core`, over nodes and a clock of this crate.

use redlock_core::{BuildError, Options};

use crate::entropy::SystemEntropy;
use crate::lines::Lines;
use crate::lock_clock::LockClock;
use crate::member::Member;
use crate::node::NodeObserver;

/// The largest number of nodes of one handle. Nine nodes survive the loss of four.
pub const MAX_NODES: usize = 9;

const _: () = assert!(MAX_NODES <= Lines::MAX_NODES);

/// Creates the state machine of which those of the operations are copies.
pub(crate) fn new(
    nodes: impl IntoIterator<Item = Member>,
    clock: LockClock,
    options: Options,
) -> Result<Core, BuildError> {
    let core = redlock_core::Redlock::new(nodes, clock, SystemEntropy, options)?;
    #[cfg(any(feature = "metrics", feature = "tracing"))]
    let core = core.with_observer(NodeObserver);
    Ok(core)
}

/// The state machine of one operation, with its own handles.
pub(crate) type Core =
    redlock_core::Redlock<Member, LockClock, SystemEntropy, MAX_NODES, NodeObserver>;
