//! What Linux tells of a process in `/proc/PID/stat`.

use core::fmt::Display;

/// The fields from the third on, the state of the process. `None` if the system does not tell.
pub(super) fn fields(pid: impl Display) -> Option<String> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // The name of the program is in parentheses, and may contain some.
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.to_owned())
}

/// A field that is a number, by its place in the documentation.
pub(super) fn number(pid: impl Display, place: usize) -> Option<u64> {
    fields(pid)?.split_whitespace().nth(place - 3)?.parse().ok()
}
