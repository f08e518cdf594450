//! Exit codes: the interface to scripts. Some are those of `sysexits.h`. README.md and the help of each command list them too.

use std::io::Write;
use std::process::ExitCode;

/// All is well.
pub(crate) const OK: u8 = 0;
/// Something is bad: `doctor` and `init` have printed what.
pub(crate) const BAD: u8 = 1;
/// There was nothing to do for `init`, but not every vote counts yet.
pub(crate) const NO_VOTE: u8 = 2;
/// The arguments are not valid: `EX_USAGE`.
pub(crate) const USAGE: u8 = 64;
/// No quorum of nodes was reached: `EX_UNAVAILABLE`.
pub(crate) const UNREACHABLE: u8 = 69;
/// An error of this program or of the machine: `EX_SOFTWARE`.
pub(crate) const INTERNAL: u8 = 70;
/// Another client holds the lock, or held it when the wait was over; try again later: `EX_TEMPFAIL`.
#[cfg(unix)]
pub(crate) const HELD: u8 = 75;
/// The lock was lost while the command ran.
#[cfg(unix)]
pub(crate) const LOST: u8 = 76;
/// The command cannot be executed; the same code as in shells.
#[cfg(unix)]
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such command; the same code as in shells.
#[cfg(unix)]
pub(crate) const NOT_FOUND: u8 = 127;

/// The command could not be started.
#[cfg(unix)]
pub(crate) fn not_started(error: &std::io::Error) -> u8 {
    match error.kind() {
        std::io::ErrorKind::NotFound => NOT_FOUND,
        _ => NOT_EXECUTABLE,
    }
}

/// A signal ended the command; the same code as in shells.
#[cfg(unix)]
pub(crate) fn signal(number: i32) -> u8 {
    u8::try_from(number.saturating_add(128)).unwrap_or(u8::MAX)
}

/// Prints why the arguments are not valid.
pub(crate) fn usage(why: &str) -> ExitCode {
    let _unread = writeln!(std::io::stderr(), "redlock: {why}");
    ExitCode::from(USAGE)
}

/// Prints an internal error.
pub(crate) fn internal(message: &str) -> ExitCode {
    let _unread = writeln!(std::io::stderr(), "redlock: internal error: {message}");
    ExitCode::from(INTERNAL)
}
