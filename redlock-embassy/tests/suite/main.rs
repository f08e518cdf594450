//! A node over a scripted stream, in virtual time.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails a test"
)]

mod admission;
mod answers;
mod chaos;
mod clock;
mod closing;
mod connecting;
mod dropping;
#[cfg(feature = "fence")]
mod fence;
mod fleet;
#[cfg(feature = "dns")]
mod host_name;
#[cfg(feature = "embassy-net")]
mod lan;
#[cfg(feature = "queue")]
mod line;
mod lock;
mod login;
mod messages;
#[cfg(feature = "embassy-net")]
mod net_socket;
mod release;
mod scripts;
mod shared;
mod silence;
#[cfg(feature = "embassy-net")]
mod slow_network;
mod wire;
mod world;
