//! The signals that this process forwards to its child.

use core::future::poll_fn;
use core::task::Poll;
use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// The received signals.
///
/// A signal that was ignored when this process started stays ignored, here and in the child, so that `nohup redlock run
/// ..` works as expected. The exception is SIGCHLD.
#[derive(Debug)]
pub(crate) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    /// If the parent ignores SIGCHLD, so does this process after its start, and the system discards the exit status of the
    /// child. Catching SIGCHLD keeps it.
    _children: unix::Signal,
    /// Another process of our group, for example a pager at the end of the pipe, may read the terminal while the command has it. Then the
    /// system stops the whole group. Catching these signals keeps this process at work: a stopped process extends no lease.
    _stops: Vec<unix::Signal>,
}

impl Signals {
    /// TSTP is caught, but does not suspend: a suspended process can neither extend its lease nor end its child.
    const CAUGHT: [Signal; 7] = [
        Signal::INT,
        Signal::TERM,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR1,
        Signal::USR2,
        Signal::TSTP,
    ];

    /// Catches the signals: from now on they do not end this process.
    pub(crate) fn catch() -> io::Result<Self> {
        let children = unix::signal(SignalKind::child())?;
        let mut streams = Vec::new();
        for signal in Self::CAUGHT {
            if !is_ignored(signal.as_raw()) {
                let kind = SignalKind::from_raw(signal.as_raw());
                streams.push((signal, unix::signal(kind)?));
            }
        }
        let stops = [Signal::TTIN, Signal::TTOU].into_iter();
        let stops = stops.filter(|signal| !is_ignored(signal.as_raw()));
        let stops = stops.map(|signal| unix::signal(SignalKind::from_raw(signal.as_raw())));
        Ok(Self {
            streams,
            _children: children,
            _stops: stops.collect::<io::Result<_>>()?,
        })
    }

    /// Returns the next signal. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Lets a write beyond the file size limit (`ulimit -f`) fail, instead of ending this process: a log on stderr or a lease file may
/// reach it while the lock is held. The command has the default. Needs a runtime, and lasts as long as this process.
pub(crate) fn survive_file_size_limit() -> io::Result<()> {
    let signal = Signal::XFSZ.as_raw();
    if !is_ignored(signal) {
        drop(unix::signal(SignalKind::from_raw(signal))?);
    }
    Ok(())
}

/// The name of a signal, as `kill -l` knows it.
pub(crate) fn name(number: i32) -> String {
    let known = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::FPE, "SIGFPE"),
        (Signal::KILL, "SIGKILL"),
        (Signal::USR1, "SIGUSR1"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::USR2, "SIGUSR2"),
        (Signal::PIPE, "SIGPIPE"),
        (Signal::ALARM, "SIGALRM"),
        (Signal::TERM, "SIGTERM"),
        (Signal::TSTP, "SIGTSTP"),
    ];
    let found = known.iter().find(|(signal, _)| signal.as_raw() == number);
    found.map_or_else(
        || format!("signal {number}"),
        |(_, name)| (*name).to_owned(),
    )
}

/// Whether this process ignores the signal. `false` if the system does not tell.
pub(crate) fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (signal - 1)) != 0)
}
