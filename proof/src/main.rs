//! What shows that the lock keeps its promise, to be run for as long as one likes.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use redlock_proof::{chaos, load, model, simulation};

/// Shows that the lock keeps its promise, for as long as one likes.
#[derive(Debug, Parser)]
#[command(name = "redlock-proof", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Model(model::Arguments),
    Simulate(simulation::Arguments),
    Chaos(chaos::Arguments),
    Load(load::Arguments),
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Model(arguments) => model::run(&arguments),
        Command::Simulate(arguments) => simulation::run(&arguments),
        Command::Chaos(arguments) => chaos::run(&arguments),
        Command::Load(arguments) => load::run(&arguments),
    }
}
