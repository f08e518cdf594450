//! The simulation: a sample of its seeds, and that it would find what it looks for.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod broken;
mod command;
mod seeds;
