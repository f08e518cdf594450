//! A node over a scripted stream, in virtual time.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails a test"
)]

mod admission;
mod answers;
#[cfg(any(feature = "embassy-net", feature = "embassy-net-ip"))]
mod cellular;
mod chaos;
#[cfg(feature = "client-name")]
mod client_name;
mod clock;
mod closing;
mod connecting;
mod dice;
mod dormant;
mod dropping;
#[cfg(feature = "fence")]
mod fence;
mod fleet;
#[cfg(all(
    feature = "dns",
    any(feature = "embassy-net", feature = "embassy-net-ip")
))]
mod host_name;
#[cfg(any(feature = "embassy-net", feature = "embassy-net-ip"))]
mod lan;
#[cfg(feature = "queue")]
mod line;
mod lock;
mod login;
mod messages;
#[cfg(feature = "min-hold")]
mod min_hold;
#[cfg(any(feature = "embassy-net", feature = "embassy-net-ip"))]
mod net_socket;
#[cfg(all(feature = "observe", feature = "log", not(feature = "defmt")))]
mod observer;
#[cfg(any(feature = "embassy-net", feature = "embassy-net-ip"))]
mod orphans;
mod priorities;
mod release;
mod scripts;
mod shared;
#[cfg(feature = "observe")]
mod shared_observer;
mod silence;
#[cfg(any(feature = "embassy-net", feature = "embassy-net-ip"))]
mod slow_network;
mod wire;
mod world;
