//! The messages of `redlock run` on stderr.

use core::fmt;
use core::time::Duration;
use std::io::{IsTerminal, Write};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread;

use redlock_std::KeyName;
use serde_json::Value;

use super::{signals, terminal};
use crate::fold::{columns, fold};
use crate::{json, wall_clock};

/// Sends lines to a thread that writes them. A blocked stderr must not keep a child alive past the end of its lease.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    form: Form,
    key: KeyName,
    /// The bytes of the key, in hexadecimal.
    key_hex: String,
    /// Whether a person reads it now, and may wonder why nothing happens.
    is_terminal: bool,
    /// The width of the terminal.
    columns: Option<usize>,
    lines: SyncSender<Line>,
}

/// Which events are printed, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// Events that need attention, as text.
    Brief,
    /// All events, as text.
    Verbose,
    /// All events, as lines of JSON.
    Json,
}

impl Form {
    pub(crate) const fn of(json: bool, verbose: bool) -> Self {
        match (json, verbose) {
            (true, _) => Self::Json,
            (false, true) => Self::Verbose,
            (false, false) => Self::Brief,
        }
    }
}

#[derive(Debug)]
enum Line {
    Text(String),
    Last(Sender<()>),
}

impl Journal {
    /// How long to wait until the last lines are written.
    const PATIENCE: Duration = Duration::from_secs(1);

    /// The largest number of lines that wait. If stderr is not read, further lines are lost.
    const MOST: usize = 1_000;

    pub(crate) fn open(form: Form, key: &[u8]) -> std::io::Result<Self> {
        let is_terminal = std::io::stderr().is_terminal();
        Ok(Self {
            is_terminal,
            columns: columns(std::io::stderr()),
            ..Self::to(std::io::stderr(), form, key)?
        })
    }

    fn to(output: impl Write + Send + 'static, form: Form, key: &[u8]) -> std::io::Result<Self> {
        let (lines, queue) = mpsc::sync_channel(Self::MOST);
        thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || {
                terminal::write_from_the_background();
                write_lines(&queue, output);
            })?;
        Ok(Self {
            form,
            key: KeyName::new(key),
            key_hex: json::hex(key),
            is_terminal: false,
            columns: None,
            lines,
        })
    }

    pub(crate) fn write(&self, event: &Event) {
        let line = match self.form {
            Form::Brief if !self.is_for_a_person(event) && !event.needs_attention() => return,
            Form::Brief | Form::Verbose => fold(&self.in_words(event), self.columns),
            Form::Json => {
                let mut line = serde_json::json!({
                    "time": timestamp(Duration::ZERO),
                    "key": self.key.to_string(),
                    "key_hex": self.key_hex,
                    "event": event.name(),
                    "message": event.to_string(),
                });
                if let (Value::Object(line), Value::Object(details)) = (&mut line, event.details())
                {
                    line.extend(details);
                }
                json::line(&line)
            }
        };
        // If the thread has ended or is stuck, the line is lost.
        let _untold = self.lines.try_send(Line::Text(line));
    }

    /// Whether it says why nothing happens, or has happened, to a person.
    fn is_for_a_person(&self, event: &Event) -> bool {
        let is_why = matches!(
            event,
            Event::Waiting { .. } | Event::Holder { .. } | Event::Failed { .. }
        );
        self.is_terminal && is_why
    }

    /// Whether it is printed who holds a lock that is waited for.
    pub(crate) fn shows_holder(&self) -> bool {
        self.is_terminal || self.form != Form::Brief
    }

    /// Adds the key, unless the message names it, as messages of the library do. A key may also be a word that a message contains
    /// by chance.
    fn in_words(&self, event: &Event) -> String {
        let (key, message) = (self.key.to_string(), event.to_string());
        let names_the_lock =
            |(before, after): &(&str, &str)| message.contains(&format!("{before}{key}{after}"));
        if LIBRARY_NAMES.iter().any(names_the_lock) {
            format!("redlock: {message}")
        } else {
            format!("redlock: {key}: {message}")
        }
    }

    /// Waits until everything is written, for at most one second.
    pub(crate) fn close(&self) {
        let (done, written) = mpsc::channel();
        if self.lines.try_send(Line::Last(done)).is_ok() {
            let _written: Result<(), RecvTimeoutError> = written.recv_timeout(Self::PATIENCE);
        }
    }
}

/// What stands before and after the key in the messages of the library.
const LIBRARY_NAMES: [(&str, &str); 6] = [
    ("no quorum for ", ": "),
    ("no node was asked for ", ": "),
    ("the lock ", " is lost: "),
    ("", " is held by another "),
    ("", " was granted too late"),
    ("", " was extended only after"),
];

fn write_lines(queue: &Receiver<Line>, mut output: impl Write) {
    while let Ok(line) = queue.recv() {
        match line {
            Line::Text(line) => {
                // In one write: the command may write to the same file.
                let _unread = output.write_all(format!("{line}\n").as_bytes());
            }
            Line::Last(done) => {
                let _nobody = done.send(());
                return;
            }
        }
    }
}

/// Something that happened. No event contains a token.
#[derive(Debug)]
pub(crate) enum Event {
    /// The lock cannot be acquired yet.
    Waiting {
        why: String,
        is_held: bool,
    },
    /// Who holds the lock that is waited for, as far as the nodes tell.
    Holder {
        who: String,
        /// The first bytes of its token. `None` if no client holds it on a quorum of nodes.
        token: Option<String>,
        owner: Option<String>,
        /// Whether it has released the lock, and only `--min-hold` keeps it.
        released: bool,
    },
    Acquired {
        valid: Duration,
        fence: Option<u64>,
        /// How long it took, and how many times the nodes were asked.
        took: Duration,
        tries: u32,
        /// The first bytes of the token, as `inspect` shows them.
        token: String,
        /// Who the owner record names.
        owner: Option<String>,
    },
    /// A node does not tell others who holds the lock.
    NoOwner {
        node: String,
        why: String,
    },
    /// There is a problem with a node whose vote counts.
    Warned {
        why: String,
    },
    Started {
        pid: i32,
    },
    Extended {
        valid: Duration,
    },
    /// An extension failed; `is_first` if it is the first failure in a row.
    NotExtended {
        why: String,
        valid: Duration,
        is_first: bool,
    },
    /// A signal was forwarded to the child.
    Forwarded {
        signal: i32,
    },
    /// A request to suspend was ignored.
    Suspended,
    /// The child got SIGTERM, because the lease ends.
    Terminating {
        why: String,
        pid: i32,
        kill_in: Duration,
    },
    Killing {
        why: String,
        pid: i32,
    },
    /// The child still runs, although it was killed and the lease is over.
    NotDead {
        pid: i32,
    },
    Ended {
        code: Option<i32>,
        signal: Option<i32>,
    },
    Released {
        /// How long this process has held the lock. `None` if another process has acquired it.
        held: Option<Duration>,
        /// On how many nodes the lock stays held for the rest of `--min-hold`.
        kept: usize,
        released: usize,
        gone: usize,
        unanswered: usize,
        /// The nodes that have failed, each with the reason.
        failed: Vec<String>,
    },
    /// The last event of a run that ends with an exit code of `redlock`.
    Failed {
        why: String,
        code: u8,
    },
}

impl Event {
    /// Whether it is printed without --verbose.
    const fn needs_attention(&self) -> bool {
        match self {
            Self::Waiting { is_held, .. } => !*is_held,
            Self::NotExtended { is_first, .. } => *is_first,
            // The operator has said that it is no failure that another client holds the lock.
            Self::Failed { code, .. } => *code != 0,
            Self::Warned { .. }
            | Self::Suspended
            | Self::Terminating { .. }
            | Self::Killing { .. }
            | Self::NotDead { .. } => true,
            Self::Holder { .. }
            | Self::Acquired { .. }
            | Self::NoOwner { .. }
            | Self::Started { .. }
            | Self::Extended { .. }
            | Self::Forwarded { .. }
            | Self::Ended { .. }
            | Self::Released { .. } => false,
        }
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Waiting { .. } => "waiting",
            Self::Holder { .. } => "holder",
            Self::Acquired { .. } => "acquired",
            Self::NoOwner { .. } => "no-owner",
            Self::Warned { .. } => "warned",
            Self::Started { .. } => "started",
            Self::Extended { .. } => "extended",
            Self::NotExtended { .. } => "not-extended",
            Self::Forwarded { .. } => "forwarded",
            Self::Suspended => "suspended",
            Self::Terminating { .. } => "terminating",
            Self::Killing { .. } => "killing",
            Self::NotDead { .. } => "not-dead",
            Self::Ended { .. } => "ended",
            Self::Released { .. } => "released",
            Self::Failed { .. } => "failed",
        }
    }

    /// The JSON fields beside the message.
    fn details(&self) -> Value {
        match self {
            Self::Waiting { is_held, .. } => serde_json::json!({ "held": is_held }),
            Self::Acquired {
                valid,
                fence,
                took,
                tries,
                token,
                owner,
            } => {
                let mut details = serde_json::json!({
                    "valid_until": timestamp(*valid),
                    "token": token,
                    "owner": owner,
                    "redlock.client.acquire.duration": took.as_secs_f64(),
                    "redlock.client.acquire.tries": tries,
                });
                if let Some(fence) = fence {
                    details["fence"] = (*fence).into();
                }
                details
            }
            Self::NoOwner { node, .. } => serde_json::json!({ "node": node }),
            Self::Extended { valid } | Self::NotExtended { valid, .. } => {
                serde_json::json!({ "valid_until": timestamp(*valid) })
            }
            Self::Started { pid } | Self::Killing { pid, .. } | Self::NotDead { pid } => {
                serde_json::json!({ "pid": pid })
            }
            Self::Forwarded { signal } => serde_json::json!({ "signal": signals::name(*signal) }),
            Self::Holder {
                token,
                owner,
                released,
                ..
            } => {
                serde_json::json!({ "token": token, "owner": owner, "released": released })
            }
            Self::Warned { .. } | Self::Suspended => serde_json::json!({}),
            Self::Terminating { pid, kill_in, .. } => {
                serde_json::json!({ "pid": pid, "kill_at": timestamp(*kill_in) })
            }
            Self::Ended { code, signal } => {
                serde_json::json!({ "code": code, "signal": signal.map(signals::name) })
            }
            Self::Released {
                held,
                kept,
                released,
                gone,
                unanswered,
                failed,
            } => {
                let mut details = serde_json::json!({
                    "released": released,
                    "kept": kept,
                    "gone": gone,
                    "unanswered": unanswered,
                    "failed": failed.len(),
                });
                if let Some(held) = held {
                    details["redlock.client.hold.duration"] = held.as_secs_f64().into();
                }
                details
            }
            Self::Failed { code, .. } => serde_json::json!({ "exit_code": code }),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting { why, .. } => write!(f, "waiting: {why}"),
            Self::Holder { who, .. } => f.write_str(who),
            Self::Acquired {
                valid,
                fence,
                token,
                ..
            } => {
                write!(f, "acquired as {token}, valid for {}", seconds(*valid))?;
                fence.map_or(Ok(()), |fence| write!(f, ", fence {fence}"))
            }
            Self::NoOwner { node, why } => {
                write!(f, "{node} tells no other client who holds the lock: {why}")
            }
            Self::Warned { why } => write!(f, "warning: {why}"),
            Self::Started { pid } => write!(f, "the command runs as process {pid}"),
            Self::Extended { valid } => write!(f, "extended, valid for {}", seconds(*valid)),
            Self::NotExtended { why, valid, .. } => {
                write!(
                    f,
                    "not extended, still valid for {}, retrying: {why}",
                    seconds(*valid)
                )
            }
            Self::Forwarded { signal } => {
                write!(f, "{} forwarded to the command", signals::name(*signal))
            }
            Self::Suspended => f.write_str("not suspended: a suspended process cannot hold a lock"),
            Self::Terminating { why, pid, kill_in } => {
                let kill_in = seconds(*kill_in);
                write!(
                    f,
                    "SIGTERM to the command (process {pid}), SIGKILL in {kill_in}: {why}"
                )
            }
            Self::Killing { why, pid } => {
                write!(f, "SIGKILL to the command (process {pid}): {why}")
            }
            Self::NotDead { pid } => write!(
                f,
                "the command (process {pid}) still runs after SIGKILL, and another client may hold the \
                lock; find out what blocks it (ps -o stat,wchan -p {pid})"
            ),
            Self::Ended {
                code: Some(code), ..
            } => write!(f, "the command ended with code {code}"),
            Self::Ended { signal, .. } => {
                write!(
                    f,
                    "the command was ended by {}",
                    signals::name(signal.unwrap_or_default())
                )
            }
            Self::Released {
                kept: kept @ 1..,
                gone,
                unanswered,
                failed,
                ..
            } => {
                write!(
                    f,
                    "released: stays held on {kept} nodes for the rest of --min-hold"
                )?;
                write_rest(f, *gone, *unanswered, failed)
            }
            Self::Released {
                released,
                gone,
                unanswered,
                failed,
                ..
            } => {
                write!(f, "released: deleted on {released} nodes")?;
                write_rest(f, *gone, *unanswered, failed)
            }
            Self::Failed { why, .. } => f.write_str(why),
        }
    }
}

/// Names the other nodes of a release, if there are any.
fn write_rest(
    f: &mut fmt::Formatter<'_>,
    gone: usize,
    unanswered: usize,
    failed: &[String],
) -> fmt::Result {
    if gone > 0 {
        write!(f, ", already gone on {gone}")?;
    }
    if unanswered > 0 {
        write!(f, ", no answer yet from {unanswered}")?;
    }
    if !failed.is_empty() {
        write!(f, ", failed on {} ({})", failed.len(), failed.join("; "))?;
    }
    Ok(())
}

/// Formats whole milliseconds below ten seconds, and tenths of seconds above.
fn seconds(duration: Duration) -> String {
    let ms = duration.as_millis();
    if ms < 10_000 {
        format!("{ms} ms")
    } else {
        format!("{}.{} s", ms / 1_000, ms % 1_000 / 100)
    }
}

/// The time after this duration. `None`, in JSON `null`, if the clock of this machine is so wrong that it has none.
fn timestamp(duration: Duration) -> Option<String> {
    wall_clock::text_after(duration).ok()
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// An output that takes nothing until the other end of `gate` is gone.
    struct Blocked {
        gate: Receiver<()>,
        taken: Sender<Vec<u8>>,
    }

    impl Write for Blocked {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _open = self.gate.recv();
            let _untold = self.taken.send(bytes.to_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_line_names_the_lock_once_also_if_its_key_is_a_part_of_a_word() {
        let line = |key: &[u8], event: &Event| {
            let journal = Journal::to(io::sink(), Form::Brief, key).unwrap();
            journal.in_words(event)
        };
        let failed = |why: &str| Event::Failed {
            why: why.to_owned(),
            code: 69,
        };
        for key in ["k", "lock", "command"] {
            let lost = failed("lost the lock while the command ran");
            let wanted = format!("redlock: {key}: lost the lock while the command ran");
            assert_eq!(line(key.as_bytes(), &lost), wanted);
        }
        let told = "no quorum for k: 0 of 3 nodes answered";
        assert_eq!(line(b"k", &failed(told)), format!("redlock: {told}"));
        let told = "k is held by another client: 2 of 3 nodes refused";
        assert_eq!(line(b"k", &failed(told)), format!("redlock: {told}"));
    }

    #[test]
    fn lines_that_nobody_reads_delay_no_event_and_a_thousand_of_them_are_kept() {
        const LIMIT: Duration = Duration::from_secs(20);

        let (open, gate) = mpsc::channel();
        let (taken, all) = mpsc::channel();
        let journal = Journal::to(Blocked { gate, taken }, Form::Verbose, b"dock-7").unwrap();
        let (done, written) = mpsc::channel();
        thread::spawn(move || {
            for pid in 0..10_000 {
                journal.write(&Event::Started { pid });
            }
            journal.close();
            let _ended = done.send(());
        });
        assert_eq!(written.recv_timeout(LIMIT), Ok(()));
        drop(open);
        let taken: Vec<u8> = all.iter().flatten().collect();
        let taken = String::from_utf8(taken).unwrap();
        // The thread may have taken the first of them out of the queue.
        let kept = taken.lines().count();
        assert!((1_000..=1_001).contains(&kept), "{kept}");
        assert!(taken.starts_with("redlock: dock-7: the command runs as process 0\n"));
    }
}
