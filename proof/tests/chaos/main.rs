//! The program that breaks real servers under real clients, for a few seconds each.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod end;
mod run;

use std::process::Command;

use redlock_tests::child::bound;

/// The program. It ends with the thread of its test, and its own processes with it.
fn chaos(arguments: &[&str]) -> Command {
    let mut command = bound(env!("CARGO_BIN_EXE_redlock-proof"));
    command.args(["chaos", "--no-firmware"]).args(arguments);
    command
}
