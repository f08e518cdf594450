//! What the suites need to be made.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use redlock_tests::{api, contender, scripts};

/// Makes what the suites compare with.
#[derive(Debug, Parser)]
#[command(name = "redlock-tests", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Api(api::Arguments),
    Contend(contender::Arguments),
    Scripts(scripts::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Api(arguments) => api::run(&arguments),
        Command::Contend(arguments) => contender::run(&arguments),
        Command::Scripts(arguments) => scripts::run(&arguments),
    }
}
