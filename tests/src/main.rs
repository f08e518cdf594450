//! What the suites need to be made.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use redlock_tests::scripts;

/// Makes what the suites compare with.
#[derive(Debug, Parser)]
#[command(name = "redlock-tests", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Scripts(scripts::Arguments),
}

fn main() -> ExitCode {
    let Command::Scripts(arguments) = Arguments::parse().command;
    scripts::run(&arguments)
}
