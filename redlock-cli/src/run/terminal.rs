//! Lends the terminal to a child that needs it.

use std::fs::File;
use std::io;

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, getpgrp};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr, tcsetpgrp};

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
    /// The modes before the child changed them.
    modes: Termios,
}

impl Terminal {
    /// Puts `group` into the foreground, if this process is in the foreground itself and not, for example, a job started
    /// with `&`. Returns whether `group` is in the foreground now.
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

    /// Whether the child has the terminal.
    pub(crate) const fn is_lent(&self) -> bool {
        self.lent.is_some()
    }

    /// Takes the foreground back. If the child was killed, also restores the modes: after a killed editor, the terminal
    /// would be unusable.
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

/// Lets the calling thread write to the terminal, and take it back, from the background. By default the system would
/// stop the process. Do not call this in a thread that starts processes, because they inherit it.
pub(crate) fn write_from_the_background() {
    let mut signals = SigSet::empty();
    signals.add(NixSignal::SIGTTOU);
    // This fails only for an invalid operation, and the operation is a constant.
    let _never = signals.thread_block();
}
