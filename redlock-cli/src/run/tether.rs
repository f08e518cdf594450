//! Ends the command when `redlock` ends, also by SIGKILL: the command is started through a second `redlock`, which asks the system
//! for that and then becomes the command.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use crate::{echo, exit};

/// Run a command that gets SIGKILL when its parent ends
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The process ID of the parent
    parent: i32,

    /// The command and its arguments
    #[arg(last = true, required = true, num_args = 1..)]
    command: Vec<OsString>,
}

/// The program and the first arguments that start a command tied to this process.
pub(crate) fn start() -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["die-with", &std::process::id().to_string(), "--"]);
    Ok(command)
}

/// Becomes the command.
pub(crate) fn tethered(arguments: &Arguments) -> ExitCode {
    let Some((program, rest)) = arguments.command.split_first() else {
        return exit::usage("no command");
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        return exit::internal(&format!("no signal at the end of the parent: {error}"));
    }
    // It may have ended before.
    if getppid().is_none_or(|parent| parent.as_raw_pid() != arguments.parent) {
        return ExitCode::from(exit::signal(Signal::KILL.as_raw()));
    }
    let error = Command::new(program).args(rest).exec();
    let name = echo::program(program);
    let _unread = writeln!(std::io::stderr(), "redlock: cannot run {name}: {error}");
    match error.kind() {
        ErrorKind::NotFound => exit::NOT_FOUND.into(),
        _ => exit::NOT_EXECUTABLE.into(),
    }
}
