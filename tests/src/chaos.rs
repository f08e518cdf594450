//! Real servers, real clients as processes of their own, and somebody who breaks what they stand on.

use std::process::ExitCode;

/// Breaks real servers under real clients, and looks whether two ever held one lock.
#[derive(Debug, clap::Args)]
pub struct Arguments {}

/// Does what the command line says. Fails when a promise was broken.
#[must_use]
pub fn run(_arguments: &Arguments) -> ExitCode {
    ExitCode::FAILURE
}
