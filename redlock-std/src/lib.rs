#![doc = include_str!("../README.md")]

#[cfg(feature = "init")]
#[doc(hidden)] // but for what is re-exported below: for redlock-cli
pub mod init;

#[cfg(feature = "blocking")]
pub mod blocking;

mod redlock;
mod rounds;

mod closing;
mod guard;
mod handover;
mod key_queues;
mod lines;

mod telemetry;

mod knowledge;

mod error;

mod core;

mod member;
#[cfg(feature = "mock")]
mod memory;

mod node;

#[cfg_attr(all(test, redlock_loom), path = "clock/modelled.rs")]
mod clock;
mod entropy;
mod lock_clock;
mod sync;

pub use self::core::MAX_NODES;
pub use clock::SystemClock;
pub use entropy::SystemEntropy;
pub use error::{AcquireError, ConnectError, ExtendError, HoldError, LossCause, Released};
pub use guard::Guard;
pub use handover::{AdoptError, Handover};
#[cfg(feature = "init")]
#[doc(inline)]
pub use init::{InitError, init};
#[cfg(feature = "mock")]
pub use memory::MemoryNode;
#[cfg(feature = "probe")]
pub use node::Probe;
pub use node::{Address, MAX_KEY, NodeError, NodeStatus, RedisNode, TransportError, printable};
#[cfg(feature = "tls-rustls")]
pub use node::{BoundedVerifier, system_roots};
pub use redlock::Redlock;
pub use redlock_core::{
    BuildError, Clock, Denial, Failure, Fence, FenceGate, Fencing, Instant, KeyName, Options,
    OptionsError, Outcome, Report, Tally, Token, Transport, transport,
};
#[cfg(feature = "tls-rustls")]
pub use rustls;
