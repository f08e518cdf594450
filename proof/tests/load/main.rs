//! The program that puts the lock under load: that it measures what it says, and that nothing escapes it.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

mod attacker;
mod run;

use std::process::Command;

/// The program. It ends with the thread of its test, and its own processes with it.
fn load(arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--"])
        .arg(env!("CARGO_BIN_EXE_redlock-proof"))
        .arg("load")
        .args(arguments);
    command
}
