//! The lock of `redlock-core`, over nodes and a clock of this crate.

use crate::clock::SystemClock;
use crate::entropy::SystemEntropy;
use crate::node::RedisNode;

/// The most nodes that one lock may have: nine survive the loss of four.
pub const MAX_NODES: usize = 9;

/// The longest key, the prefix included, in bytes: every node keeps it, and it is sent with each command.
pub const MAX_KEY: usize = 64 * 1024;

/// The state machine of one operation, over handles of its own.
pub(crate) type Core = redlock_core::Redlock<RedisNode, SystemClock, SystemEntropy, MAX_NODES>;
