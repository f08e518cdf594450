//! The terminal, lent to a child that asks for it.

use std::fs::File;
use std::io;

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

/// The child runs in a process group of its own, so to the terminal it is in the background: when it
/// reads, or sets the modes, the system stops it. That stop is the request. A child that never asks
/// leaves the terminal to whoever has it, a pager at the end of the pipe for instance.
#[derive(Debug, Default)]
pub(crate) struct Terminal {
    lent: Option<Lent>,
}

#[derive(Debug)]
struct Lent {
    terminal: File,
    /// As they were before the child changed them.
    modes: Termios,
}

impl Terminal {
    /// Makes `group` the one in the foreground, if that is for this process to give away: not while
    /// it is in the background itself, as a job with `&` is.
    pub(crate) fn lend(&mut self, group: Pid) -> io::Result<bool> {
        let terminal = File::options().read(true).write(true).open("/dev/tty")?;
        let foreground = tcgetpgrp(&terminal)?;
        if foreground == getpgrp() {
            let modes = tcgetattr(&terminal)?;
            tcsetpgrp(&terminal, group)?;
            self.lent.get_or_insert(Lent { terminal, modes });
            return Ok(true);
        }
        Ok(foreground == group)
    }

    /// Takes the foreground back. The modes too if the child had no chance to: an editor that was
    /// killed leaves a terminal that nobody can type in.
    pub(crate) fn take_back(&mut self, was_killed: bool) -> io::Result<()> {
        if let Some(Lent { terminal, modes }) = self.lent.take() {
            tcsetpgrp(&terminal, getpgrp())?;
            if was_killed {
                tcsetattr(&terminal, OptionalActions::Now, &modes)?;
            }
        }
        Ok(())
    }
}

/// Lets the calling thread write to the terminal, and take it back, while it is in the background,
/// where the default is to be stopped. Not for a thread that starts processes: they would inherit it.
pub(crate) fn write_from_the_background() {
    let mut signals = SigSet::empty();
    signals.add(NixSignal::SIGTTOU);
    // What can fail is only the name of the operation, which is a constant.
    let _never = signals.thread_block();
}
