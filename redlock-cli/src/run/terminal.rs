//! Lends the terminal to a child that needs it.

use std::env;
use std::fs::File;
use std::io;

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, getpgid, getpgrp, getpid, kill_process_group, test_kill_process_group,
};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

use super::stat;

/// The terminal. The child runs in its own process group, so for the terminal it is in the background: if it reads from
/// the terminal or sets its modes, the system stops it. This stop is the request for the terminal. If the child makes no
/// request, the terminal stays with its present user, for example a pager at the end of a pipe.
#[derive(Debug, Default)]
pub(crate) struct Terminal {
    lent: Option<Lent>,
}

#[derive(Debug)]
struct Lent {
    terminal: File,
    /// The group of the child.
    group: Pid,
    /// The group that had the terminal before the child.
    foreground: Pid,
    /// The modes before the child changed them.
    modes: Termios,
}

impl Terminal {
    /// Puts `group` into the foreground, if this process is in the foreground itself, or another `redlock` under which it runs,
    /// and not, for example, a job started with `&`. Returns whether `group` is in the foreground now.
    pub(crate) fn lend(&mut self, group: Pid) -> io::Result<bool> {
        let terminal = File::options().read(true).write(true).open("/dev/tty")?;
        let foreground = tcgetpgrp(&terminal)?;
        if foreground == getpgrp() || is_of_one_above(foreground) {
            let modes = tcgetattr(&terminal)?;
            tcsetpgrp(&terminal, group)?;
            self.lent.get_or_insert(Lent {
                terminal,
                group,
                foreground,
                modes,
            });
            return Ok(true);
        }
        Ok(foreground == group)
    }

    /// Whether the child has the terminal.
    pub(crate) const fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Takes the foreground back, unless another group has it by now: a shell takes it when a job is stopped. If the child was killed, also
    /// restores the modes: after a killed editor, the terminal would be unusable.
    pub(crate) fn take_back(&mut self, was_killed: bool) -> io::Result<()> {
        if let Some(Lent {
            terminal,
            group,
            foreground,
            modes,
        }) = self.lent.take()
        {
            let present = tcgetpgrp(&terminal)?;
            let is_gone = test_kill_process_group(present).is_err();
            if present != group && !is_gone && !is_below(present) {
                return Ok(());
            }
            tcsetpgrp(&terminal, foreground)?;
            if was_killed {
                tcsetattr(&terminal, OptionalActions::Now, &modes)?;
            }
            // Those that wanted it meanwhile, for example a pager at the end of the pipe, are stopped.
            let _gone = kill_process_group(foreground, Signal::CONT);
        }
        Ok(())
    }
}

/// Whether this process has no terminal any more.
pub(crate) fn is_gone(error: &io::Error) -> bool {
    let gone = [Errno::NXIO, Errno::IO, Errno::NOTTY];
    gone.iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// The variable with all `redlock run` under which a command runs, separated by commas: of each the process ID, and on Linux a dot and
/// the time of its start, because another process may have the ID by now. Each of them has its command in another process group, so only
/// the outermost one is in the foreground, and it sees no stop of a command further down. The one that sees it must not stop itself as a
/// request, because a stopped process extends no lease.
const ABOVE: &str = "REDLOCK_PIDS";

/// The value of this variable for the command of this process.
pub(crate) fn above_command() -> (&'static str, String) {
    let pid = getpid();
    let own = match started_at(pid) {
        Some(at) => format!("{pid}.{at}"),
        None => pid.to_string(),
    };
    let above = env::var(ABOVE).unwrap_or_default();
    let all = if above.is_empty() {
        own
    } else {
        format!("{above},{own}")
    };
    (ABOVE, all)
}

/// Whether this process runs under another `redlock run`.
pub(crate) fn is_below_another() -> bool {
    env::var_os(ABOVE).is_some_and(|above| !above.is_empty())
}

/// Whether `group` is that of a `redlock run` under which this process runs. One that has ended lends nothing: its terminal is back
/// with another user.
fn is_of_one_above(group: Pid) -> bool {
    let above = env::var(ABOVE).unwrap_or_default();
    above.split(',').any(|process| {
        let (pid, at) = match process.split_once('.') {
            Some((pid, at)) => (pid, at.parse().ok()),
            None => (process, None),
        };
        let pid = pid.parse().ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| {
            started_at(pid) == at && getpgid(Some(pid)).is_ok_and(|of_pid| of_pid == group)
        })
    })
}

/// Whether `group` is that of a process below this one, for example of the command of a `redlock run` that the child runs.
fn is_below(group: Pid) -> bool {
    let parent = |pid: &Pid| Pid::from_raw(stat::number(pid, 4)?.try_into().ok()?);
    // No tree of processes is so deep.
    let mut line = core::iter::successors(Some(group), parent).take(1_000);
    line.any(|pid| pid == getpid())
}

/// When a process was started, in ticks since the start of the system. `None` if the system does not tell.
fn started_at(pid: Pid) -> Option<u64> {
    stat::number(pid, 22)
}

/// Lets the calling thread write to the terminal, and take it back, from the background. By default the system would
/// stop the process. Do not call this in a thread that starts processes, because they inherit it.
pub(crate) fn write_from_the_background() {
    let mut signals = SigSet::empty();
    signals.add(NixSignal::SIGTTOU);
    // This fails only for an invalid operation, and the operation is a constant.
    let _never = signals.thread_block();
}
