//! The lock of `redlock-core`, over nodes and a clock of this crate.

use crate::clock::SystemClock;
use crate::entropy::SystemEntropy;
use crate::node::RedisNode;

/// The largest number of nodes of one handle. Nine nodes survive the loss of four.
pub const MAX_NODES: usize = 9;

/// The largest length of a key with its prefix, in bytes. Every node stores the key, and each command contains it.
pub const MAX_KEY: usize = 64 * 1024;

/// The state machine of one operation, with its own handles.
pub(crate) type Core = redlock_core::Redlock<RedisNode, SystemClock, SystemEntropy, MAX_NODES>;
