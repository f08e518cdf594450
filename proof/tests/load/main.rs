//! The program that puts the lock under load: that it measures what it says, and that nothing escapes it.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod attacker;
mod run;

use std::process::Command;

use redlock_tests::child::bound;

/// The program. It ends with the thread of its test, and its own processes with it.
fn load(arguments: &[&str]) -> Command {
    let mut command = bound(env!("CARGO_BIN_EXE_redlock-proof"));
    command.arg("load").args(arguments);
    command
}
