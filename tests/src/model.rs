//! Every order of events in a small world, searched without a gap: the shipping code is what takes the steps.

use std::process::ExitCode;

/// Searches a small world for a broken promise, order by order.
#[derive(Debug, clap::Args)]
pub struct Arguments {}

/// Does what the command line says. Fails when a promise was broken.
#[must_use]
pub fn run(_arguments: &Arguments) -> ExitCode {
    ExitCode::FAILURE
}
