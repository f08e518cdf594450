//! The command that runs under the lock: a process group of its own.

use core::time::Duration;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::thread;

use redlock_std::Guard;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::oneshot;

use super::journal::{Event, Journal};
use super::terminal::{self, Terminal};

/// A running child and whatever it starts in its group. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
    group: Pid,
    ended: oneshot::Receiver<()>,
    is_reaped: bool,
}

impl Child {
    /// Starts `command`, which learns the key, the token and the fence from its environment: arguments
    /// are seen by everybody on the machine.
    pub(crate) fn start(
        command: &OsString,
        arguments: &[OsString],
        guard: &Guard,
        journal: &Journal,
    ) -> io::Result<Self> {
        let token: String = guard
            .token()
            .as_bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let mut process = Command::new(command);
        process
            .args(arguments)
            .env("REDLOCK_KEY", OsStr::from_bytes(guard.key()))
            .env("REDLOCK_TOKEN", token)
            // The passwords of the nodes are not the command's business.
            .env_remove("REDLOCK_NODES")
            // One of a lock around this one would be another key's.
            .env_remove("REDLOCK_FENCE");
        if let Some(fence) = guard.fence() {
            process.env("REDLOCK_FENCE", fence.to_string());
        }
        let process = process.process_group(0).spawn()?;
        let group = Pid::from_child(&process);
        let (end, ended) = oneshot::channel();
        let child = Self {
            process,
            group,
            ended,
            is_reaped: false,
        };
        let journal = journal.clone();
        thread::Builder::new()
            .name("child".to_owned())
            .spawn(move || watch(group, &journal, end))?;
        Ok(child)
    }

    pub(crate) const fn pid(&self) -> i32 {
        self.group.as_raw_pid()
    }

    /// Sends `signal` to the whole group. One that is gone needs none.
    pub(crate) fn signal(&self, signal: Signal) {
        let _gone = kill_process_group(self.group, signal);
    }

    /// Waits until the command has ended. It stays a zombie until it is reaped, so its number belongs
    /// to nobody else and a signal cannot hit a stranger.
    pub(crate) async fn ended(&mut self) {
        // An error means that the watcher could not wait: then reaping tells.
        let _end = (&mut self.ended).await;
    }

    /// What came of the command.
    pub(crate) fn reap(mut self) -> io::Result<ExitStatus> {
        let status = self.process.wait();
        self.is_reaped = true;
        status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_reaped {
            self.signal(Signal::KILL);
            let _status = self.process.wait();
        }
    }
}

/// How often a child that is stopped is looked at.
const GLANCE: Duration = Duration::from_millis(50);

/// Waits for the end of the child in a thread of its own. Meanwhile lends it the terminal.
fn watch(child: Pid, journal: &Journal, end: oneshot::Sender<()>) {
    terminal::write_from_the_background();
    let mut terminal = Terminal::default();
    let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    loop {
        match waitid(WaitId::Pid(child), options) {
            Ok(Some(status)) if status.stopped() => {
                on_stop(child, status.stopping_signal(), &mut terminal, journal);
                thread::sleep(GLANCE);
            }
            Ok(Some(status)) => {
                let _lost = terminal.take_back(!status.exited());
                break;
            }
            Ok(None) | Err(Errno::INTR) => {}
            Err(_) => break,
        }
    }
    let _nobody = end.send(());
}

/// The child has been stopped and is not going to go on by itself.
fn on_stop(child: Pid, signal: Option<i32>, terminal: &mut Terminal, journal: &Journal) {
    let go_on = match signal.and_then(Signal::from_named_raw) {
        Some(Signal::TTIN | Signal::TTOU) => terminal.lend(child).unwrap_or(false),
        Some(Signal::TSTP) => {
            journal.write(&Event::Suspended);
            true
        }
        // SIGSTOP is somebody's will. The lease is extended all the same.
        _ => false,
    };
    if go_on {
        let _gone = kill_process_group(child, Signal::CONT);
    }
}
