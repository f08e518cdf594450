//! A world of made-up clocks, links and nodes, and the shipping lock in it: the same seed, the same run.

use std::process::ExitCode;

/// Runs the lock in made-up worlds, a seed each.
#[derive(Debug, clap::Args)]
pub struct Arguments {}

/// Does what the command line says. Fails when a promise was broken.
#[must_use]
pub fn run(_arguments: &Arguments) -> ExitCode {
    ExitCode::FAILURE
}
