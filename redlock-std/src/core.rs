//! The lock of `redlock-core`, over nodes and a clock of this crate.

use crate::entropy::SystemEntropy;
use crate::lock_clock::LockClock;
use crate::member::Member;

/// The largest number of nodes of one handle. Nine nodes survive the loss of four.
pub const MAX_NODES: usize = 9;

/// The state machine of one operation, with its own handles.
pub(crate) type Core = redlock_core::Redlock<Member, LockClock, SystemEntropy, MAX_NODES>;
