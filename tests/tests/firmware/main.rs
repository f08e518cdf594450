//! The firmware of `examples/boards/mps2-an386`, in QEMU, against real Redis servers and against
//! `redlock-std`.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "what fails here fails a test"
)]

mod contention;
mod line;
mod outage;
mod share;
mod speed;
mod tls;

mod contender;
mod figures;
mod firmware;
mod resource;
