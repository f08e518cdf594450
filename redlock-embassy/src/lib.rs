#![doc = include_str!("../README.md")]
#![no_std]
#![cfg_attr(docsrs, feature(doc_cfg))]

// Ordered from the top down: each module uses only modules below it.
mod fleet;
mod node;
mod shared;

mod link;
mod login;
#[cfg(feature = "observe")]
mod observer;

#[cfg(feature = "client-name")]
mod client_name;

mod connect;
mod error;

// Public for the fuzz targets and tests of this repository.
#[doc(hidden)]
pub mod pipeline;
#[cfg(feature = "queue")]
#[doc(hidden)]
pub mod resp3;

#[doc(hidden)]
pub mod mail;
mod outbox;
#[doc(hidden)]
pub mod resp;

mod clock;
mod log;

#[cfg(test)]
extern crate std;

#[cfg(feature = "client-name")]
pub use client_name::{ClientName, InvalidClientName};
pub use clock::EmbassyClock;
pub use connect::Connect;
#[cfg(any(feature = "embassy-net", feature = "embassy-net-ip"))]
pub use connect::embassy_net::NetSocket;
#[cfg(all(
    feature = "dns",
    any(feature = "embassy-net", feature = "embassy-net-ip")
))]
pub use connect::host_name::{HostName, resolve};
pub use connect::nal::NalSocket;
pub use error::{NodeError, NodeName, TransportError};
pub use fleet::{close_all, connect_all, connect_quorum};
pub use node::TcpNode;
#[cfg(feature = "observe")]
pub use observer::LogObserver;
pub use redlock_core::{
    AcquireError, AcquireOutcome, Acquisition, BuildError, Clock, Denial, Entropy, ExtendError,
    Failure, Fence, FenceGate, Fencing, HoldEnd, HoldError, Instant, KeyName, Lease, LossCause,
    NodeErrorOf, Observer, Options, OptionsError, Outcome, Redlock, Released, Report, Tally, Token,
    Transport, Wait, transport,
};
pub use resp::Rejection;
pub use shared::{Shared, Turn};
