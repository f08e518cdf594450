//! The command that runs under the lock, in its own process group.

use core::time::Duration;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::thread;

use redlock_std::Guard;
use rustix::io::Errno;
#[cfg(target_os = "linux")]
use rustix::process::test_kill_process;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::sync::oneshot;

use super::arguments::Plan;
use super::journal::{Event, Journal};
#[cfg(target_os = "linux")]
use super::starter::Starter;
#[cfg(target_os = "linux")]
use super::stat;
use super::terminal::{self, Terminal};

/// A command that is ready to be started.
#[derive(Debug)]
pub(crate) struct Launch {
    process: Command,
    #[cfg(target_os = "linux")]
    starter: Option<Starter>,
}

impl Launch {
    /// Prepares the command, with the key, the token and the fence in its environment: every user of the machine can see
    /// arguments.
    pub(crate) fn prepare(plan: &Plan, guard: &Guard, journal: &Journal) -> Self {
        let token: String = guard
            .token()
            .as_bytes()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        #[cfg(target_os = "linux")]
        if plan.die_with_parent
            && let Some(why) = super::starter::caveat(&plan.command)
        {
            journal.write(&Event::Warned { why });
        }
        #[cfg(target_os = "linux")]
        let starter = Starter::new();
        #[cfg(target_os = "linux")]
        let started = starter.as_ref().map(|starter| {
            // The one above kills this process when its lock is lost, but not the command, which is in a group of its own.
            let dies_with_parent = plan.die_with_parent || terminal::is_below_another();
            let mut process = starter.start(dies_with_parent);
            process.arg(&plan.command);
            process
        });
        #[cfg(not(target_os = "linux"))]
        let started = None;
        let mut process = started.unwrap_or_else(|| Command::new(&plan.command));
        process
            .args(&plan.arguments)
            .env("REDLOCK_KEY", OsStr::from_bytes(guard.key()))
            .env("REDLOCK_TOKEN", token)
            // If this process runs under another lock, the inherited fence is that of another key.
            .env_remove("REDLOCK_FENCE");
        let (name, pids) = terminal::above_command();
        process.env(name, pids);
        if !plan.keep_env {
            // It may contain the passwords of the nodes.
            process.env_remove("REDLOCK_NODES");
        }
        if let Some(fence) = guard.fence() {
            process.env("REDLOCK_FENCE", fence.to_string());
        }
        process.process_group(0);
        Self {
            process,
            #[cfg(target_os = "linux")]
            starter,
        }
    }

    /// Starts the command. The system may take long for that, so another thread does it, and this one extends the lease meanwhile. If
    /// the future is dropped, the command is killed as soon as it is started.
    pub(crate) async fn start(self, journal: &Journal) -> io::Result<Child> {
        let mut process = self.process;
        let (report, started) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let journal = journal.clone();
        // It lives until the command has ended: to the system, it is the parent with which the command may end.
        thread::Builder::new()
            .name("child".to_owned())
            .spawn(move || {
                let spawned = process.spawn();
                let group = spawned.as_ref().ok().map(Pid::from_child);
                match (report.send(spawned), group) {
                    (Err(_unwanted), Some(group)) => {
                        let _gone = kill_process_group(group, Signal::KILL);
                    }
                    (Ok(()), Some(group)) => watch(group, &journal, end),
                    (_, None) => {}
                }
            })?;
        let gone = |_| io::Error::other("the thread that starts the command has ended");
        let process = started.await.map_err(gone)??;
        let group = Pid::from_child(&process);
        let child = Child {
            process,
            group,
            #[cfg(target_os = "linux")]
            starter: self.starter,
            ended,
            is_reaped: false,
        };
        #[cfg(target_os = "linux")]
        if rustix::process::getpid().is_init() {
            thread::Builder::new()
                .name("orphans".to_owned())
                .spawn(move || reap_orphans(group))?;
        }
        Ok(child)
    }
}

/// A running child and its process group. Dropping it kills the group.
#[derive(Debug)]
pub(crate) struct Child {
    process: std::process::Child,
    group: Pid,
    /// If the process becomes the command only after its start.
    #[cfg(target_os = "linux")]
    starter: Option<Starter>,
    ended: oneshot::Receiver<()>,
    is_reaped: bool,
}

impl Child {
    pub(crate) const fn pid(&self) -> i32 {
        self.group.as_raw_pid()
    }

    /// Sends `signal` to the whole group. Does nothing if the group has ended. Returns `false` if no process of the group takes signals
    /// of this one, because they have become another user, as with `sudo`.
    pub(crate) fn signal(&self, signal: Signal) -> bool {
        let sent = kill_process_group(self.group, signal);
        // Elsewhere a zombie gives this error too.
        !(cfg!(target_os = "linux") && sent == Err(Errno::PERM))
    }

    /// The processes of the group that take no signal of this one, because they run as another user.
    #[cfg(target_os = "linux")]
    pub(crate) fn out_of_reach(&self) -> Vec<Pid> {
        let refuses = |pid: &Pid| test_kill_process(*pid) == Err(Errno::PERM);
        self.members().into_iter().filter(refuses).collect()
    }

    #[cfg(not(target_os = "linux"))]
    pub(crate) const fn out_of_reach(&self) -> Vec<Pid> {
        Vec::new()
    }

    /// Whether the command has left processes in its group.
    pub(crate) fn has_left_others(&self) -> bool {
        !self.members().is_empty()
    }

    /// The processes of the group that have not ended.
    #[cfg(target_os = "linux")]
    fn members(&self) -> Vec<Pid> {
        let group = self.pid().to_string();
        let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = names.filter_map(|name| Pid::from_raw(name.file_name().to_str()?.parse().ok()?));
        let is_member = |pid: &Pid| {
            let stat = stat::fields(pid).unwrap_or_default();
            let mut words = stat.split_ascii_whitespace();
            let (state, of_group) = (words.next(), words.nth(1));
            of_group == Some(group.as_str()) && !matches!(state, Some("Z" | "X"))
        };
        pids.filter(is_member).collect()
    }

    #[cfg(not(target_os = "linux"))]
    const fn members(&self) -> Vec<Pid> {
        Vec::new()
    }

    /// Waits until the command has ended. It stays a zombie until it is reaped, so its process ID is not reused, and a
    /// signal cannot reach another process.
    pub(crate) async fn ended(&mut self) {
        // An error means that the watcher could not wait: then `reap` returns the error.
        let _end = (&mut self.ended).await;
    }

    /// Why the process did not become the command, when it has ended and is not reaped yet.
    pub(crate) fn not_started(&self) -> Option<io::Error> {
        #[cfg(target_os = "linux")]
        return self.starter.as_ref()?.failure(self.pid());
        #[cfg(not(target_os = "linux"))]
        None
    }

    /// Reaps the command, and returns its exit status.
    pub(crate) fn reap(mut self) -> io::Result<ExitStatus> {
        let status = self.process.wait();
        self.is_reaped = true;
        status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_reaped {
            let _gone = self.signal(Signal::KILL);
            let _status = self.process.wait();
        }
    }
}

/// The interval at which a stopped child is checked.
const GLANCE: Duration = Duration::from_millis(50);

/// Waits for the end of the child, in its own thread. Lends the terminal to the child meanwhile.
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

/// Reaps the processes that the child leaves without a parent, until the child itself has ended. They become children of the first
/// process of a system or container, and would stay zombies.
#[cfg(target_os = "linux")]
fn reap_orphans(child: Pid) {
    use nix::sys::wait::{Id, WaitPidFlag, waitid};

    loop {
        // Without reaping: the child is reaped by its owner.
        let ended = waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT);
        match ended.map(|status| status.pid()) {
            Ok(Some(orphan)) if orphan.as_raw() != child.as_raw_pid() => {
                let _reaped = waitid(Id::Pid(orphan), WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG);
            }
            Err(nix::errno::Errno::EINTR) => {}
            // `nix` knows no real-time signals, and does not tell whom one has ended.
            Err(nix::errno::Errno::EINVAL) if reap_zombies(child) => {}
            _ => return,
        }
    }
}

/// Reaps all children that have ended, except `child`. Returns whether there was one.
#[cfg(target_os = "linux")]
fn reap_zombies(child: Pid) -> bool {
    use rustix::process::{WaitOptions, getpid, waitpid};

    let own = getpid().as_raw_pid().to_string();
    let names = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = names.filter_map(|name| Pid::from_raw(name.file_name().to_str()?.parse().ok()?));
    let is_zombie = |pid: &Pid| {
        let stat = stat::fields(pid).unwrap_or_default();
        let mut words = stat.split_ascii_whitespace();
        words.next() == Some("Z") && words.next() == Some(own.as_str())
    };
    let orphans = pids.filter(|pid| *pid != child && is_zombie(pid));
    orphans
        .filter(|pid| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(Some(_))))
        .count()
        > 0
}

/// Handles a stopped child, which does not continue by itself.
fn on_stop(child: Pid, signal: Option<i32>, terminal: &mut Terminal, journal: &Journal) {
    let go_on = match signal.and_then(Signal::from_named_raw) {
        Some(Signal::TTIN | Signal::TTOU) => match terminal.lend(child) {
            Ok(is_lent) => is_lent,
            // The terminal is gone. To a stopped group without a parent in its session, the system does the same; this group has one.
            Err(error) if terminal::is_gone(&error) => {
                let _gone = kill_process_group(child, Signal::HUP);
                true
            }
            Err(_) => false,
        },
        Some(Signal::TSTP) => {
            journal.write(&Event::Suspended);
            true
        }
        // Some programs answer Ctrl-Z with it, and could not be continued from the terminal that they have.
        Some(Signal::STOP) if terminal.is_lent() => {
            journal.write(&Event::Suspended);
            true
        }
        // SIGSTOP is intended by its sender. The lease is still extended.
        _ => false,
    };
    if go_on {
        let _gone = kill_process_group(child, Signal::CONT);
    }
}
