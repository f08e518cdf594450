//! `redlock-std` beside a server that answers anything: random RESP, whole and broken, too much and too little.
//!
//! A seed gives what it answers. Whatever it is: nothing panics, every call ends in time, memory stays bounded, and no
//! lock is granted that too many honest nodes have refused.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails a test"
)]

mod babbler;
mod reply;
mod seeds;
