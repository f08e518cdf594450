//! `redlock`: runs a program under a distributed lock, examines the nodes, and shows the lock in a demo.
//!
//! Each command has a module of its name. They share
//!
//! - which votes count: `uptime` (a restarted node); and of the module `init` of `redlock-std`, `guard_record` (the record of one
//!   node) and `recovery` (the records of all nodes);
//! - which server a node runs: `product`;
//! - the nodes of the command line: `nodes`; their connections and answers are in the same module of `redlock-std`;
//! - `owner`: the record of who holds a lock;
//! - the arguments: `defaults` (of settings that all clients share; other defaults are with their options), `duration`, `key`
//!   and `url`;
//! - the output: `output`, `echo` (hides secrets in arguments), `fold` (lines that fit a terminal), `json`, `wall_clock`
//!   and `exit`.

mod break_lock;
mod conformance;
mod defaults;
mod demo;
mod doctor;
mod duration;
mod echo;
mod exit;
mod file;
#[cfg(unix)]
mod first_process;
mod fold;
mod init;
mod inspect;
mod json;
mod key;
#[cfg(unix)]
mod lease;
#[cfg(unix)]
mod lease_file;
#[cfg(unix)]
mod lock_options;
mod manual;
mod nodes;
mod output;
mod owner;
mod product;
#[cfg(unix)]
mod run;
mod uptime;
mod url;
mod wait;
#[cfg(unix)]
mod wall_clock;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};

/// Distributed locks over independent Redis or Valkey masters
#[derive(Debug, Parser)]
#[command(
    name = "redlock",
    bin_name = "redlock",
    version = env!("REDLOCK_VERSION"),
    propagate_version = true,
    after_help = EXAMPLE
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

/// The way in.
const EXAMPLE: &str = "\
Example:
  export REDLOCK_NODES=redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3
  redlock init                                  # new nodes, before any client: skips the first wait
  redlock doctor                                # are the nodes fit for locks?
  redlock run nightly-backup -- ./backup.sh     # waits for the lock, and runs the command
  redlock inspect nightly-backup                # who holds it, and who waits?";

#[derive(Debug, clap::Subcommand)]
enum Command {
    #[cfg(unix)]
    Run(run::Arguments),
    #[cfg(unix)]
    Lock(lease::LockArguments),
    #[cfg(unix)]
    Extend(lease::ExtendArguments),
    #[cfg(unix)]
    Unlock(lease::UnlockArguments),
    Wait(wait::Arguments),
    Inspect(inspect::Arguments),
    Break(break_lock::Arguments),
    Doctor(doctor::Arguments),
    Conformance(conformance::Arguments),
    Init(init::Arguments),
    Demo(demo::Arguments),
    Completions(manual::CompletionsArguments),
    Man(manual::ManArguments),
    #[cfg(target_os = "linux")]
    #[command(hide = true)]
    Become(run::StarterArguments),
}

#[cfg(unix)]
impl Command {
    /// Whether the command catches signals by itself, or becomes another program.
    const fn catches_signals(&self) -> bool {
        #[cfg(target_os = "linux")]
        if matches!(self, Self::Become(_)) {
            return true;
        }
        matches!(self, Self::Run(_) | Self::Lock(_))
    }
}

fn main() -> ExitCode {
    let parsed = command().try_get_matches();
    let parsed = parsed.and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            let error = echo::without_secrets(error);
            let written = error.print();
            // The help and the version are what the caller has asked for.
            if !error.use_stderr() {
                return output::ended(written, ExitCode::SUCCESS);
            }
            if let Some(hint) = echo::hint(std::env::args_os()) {
                let _unread = writeln!(std::io::stderr(), "{hint}");
            }
            return exit::USAGE.into();
        }
    };
    #[cfg(feature = "tls")]
    let _chosen_already = rustls::crypto::ring::default_provider().install_default();
    // A panic has already been printed on stderr, and has killed the command under the lock.
    std::panic::catch_unwind(|| dispatch(arguments)).unwrap_or_else(|_| exit::INTERNAL.into())
}

fn command() -> clap::Command {
    manual::joined(<Arguments as CommandFactory>::command())
}

fn dispatch(arguments: Arguments) -> ExitCode {
    #[cfg(unix)]
    if !arguments.command.catches_signals() {
        first_process::end_on_signals();
    }
    match arguments.command {
        #[cfg(unix)]
        Command::Run(arguments) => run::run(arguments),
        #[cfg(unix)]
        Command::Lock(arguments) => lease::lock(arguments),
        #[cfg(unix)]
        Command::Extend(arguments) => lease::extend(arguments),
        #[cfg(unix)]
        Command::Unlock(arguments) => lease::unlock(arguments),
        Command::Wait(arguments) => wait::wait(arguments),
        Command::Inspect(arguments) => inspect::inspect(arguments),
        Command::Break(arguments) => break_lock::break_lock(arguments),
        Command::Doctor(arguments) => doctor::doctor(arguments),
        Command::Conformance(arguments) => conformance::conformance(arguments),
        Command::Init(arguments) => init::init(arguments),
        Command::Demo(arguments) => demo::demo(&arguments),
        Command::Completions(arguments) => manual::completions(&arguments, command()),
        Command::Man(arguments) => manual::man(&arguments, command()),
        #[cfg(target_os = "linux")]
        Command::Become(arguments) => run::become_command(&arguments),
    }
}
