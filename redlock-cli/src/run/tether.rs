//! Ends the command when `redlock` ends, also by SIGKILL: the command is started through a second `redlock`, which asks the system
//! for that and then becomes the command.

use std::ffi::{CString, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use rustix::thread::set_name;

use crate::exit;

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
pub(crate) fn start() -> Command {
    // This program, even if an upgrade has replaced its file since.
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("redlock")
        .args(["die-with", &std::process::id().to_string(), "--"]);
    command
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
    // The parent prints why.
    let number = error.raw_os_error().unwrap_or_default();
    if let Ok(name) = CString::new(format!("{NOT_STARTED}{number}")) {
        let _unnamed = set_name(&name);
    }
    exit::not_started(&error).into()
}

/// The name of a process that could not become its command, without the number of the error. A name has at most 15 bytes. A process
/// that became its command has the name of the command.
const NOT_STARTED: &str = "not-started-";

/// Why this process could not become its command: after its end, and before it is reaped.
pub(crate) fn failure(pid: i32) -> Option<io::Error> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let number = name.trim_end().strip_prefix(NOT_STARTED)?.parse().ok()?;
    Some(io::Error::from_raw_os_error(number))
}
