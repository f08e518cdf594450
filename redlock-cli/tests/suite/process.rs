//! A process of the command, looked at from outside.

use std::ffi::OsStr;
use std::fmt::Write;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use redlock_tests::{Server, Servers, expect_no_secret};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::{self, unix::SignalKind};

/// No test waits longer for anything.
const LIMIT: Duration = Duration::from_secs(30);

/// `redlock` with no nodes in its environment, and with no signal ignored.
pub(crate) fn redlock(arguments: &[&str]) -> Command {
    heed_signals();
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlock"));
    command.args(arguments);
    command
        .env_remove("REDLOCK_NODES")
        .env_remove("REDLOCK_NODES_FILE");
    command
}

/// Lets the processes that this one starts heed the signals that this one ignores, because it was started in the background of a
/// script or under `nohup`. A signal that is caught here, which has no effect, is neither caught nor ignored in a child.
pub(crate) fn heed_signals() {
    static HEEDED: OnceLock<Runtime> = OnceLock::new();
    HEEDED.get_or_init(|| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let entered = runtime.enter();
        for signal in IGNORABLE {
            if has("SigIgn:", std::process::id().into(), signal) {
                drop(signal::unix::signal(SignalKind::from_raw(signal.as_raw())).unwrap());
            }
        }
        drop(entered);
        runtime
    });
}

/// Those that the tests send.
const IGNORABLE: [Signal; 7] = [
    Signal::INT,
    Signal::TERM,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::TSTP,
];

/// Whether `signal` is in this mask of the process.
pub(crate) fn has(mask: &str, pid: i64, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let bits = status
        .lines()
        .find_map(|line| line.strip_prefix(mask))
        .unwrap();
    let bits = u64::from_str_radix(bits.trim(), 16).unwrap();
    bits & (1 << (signal.as_raw() - 1)) != 0
}

/// Gives `doctor`, `inspect` or `init` the time in which a dropped packet is sent again, a second, unless `options` name a
/// time: other tests may fill the queues of this host.
pub(crate) fn be_patient(command: &mut Command, options: &[&str]) {
    if !options
        .iter()
        .any(|option| option.starts_with("--node-timeout"))
    {
        command.arg("--node-timeout=3s");
    }
}

/// `redlock run` with these nodes, `options` and key, and a shell that runs `script`.
pub(crate) fn run(servers: &Servers, options: &[&str], key: &str, script: &str) -> Command {
    let mut command = redlock(&["run"]);
    command
        .args(options)
        .args([key, "--", "sh", "-c", script])
        .env("REDLOCK_NODES", servers.urls().join(","));
    command
}

/// `inner` in namespaces of its own, with these options of `unshare` and these nodes.
pub(crate) fn unshare(options: &[&str], inner: &Command, servers: &Servers) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--user", "--map-root-user"])
        .args(options)
        .arg(inner.get_program())
        .args(inner.get_args())
        .env("REDLOCK_NODES", servers.urls().join(","));
    command
}

/// The options for a command that is the first process.
pub(crate) const FIRST: [&str; 4] = ["--pid", "--fork", "--kill-child", "--mount-proc"];

/// A running command. Dropped, it is told to end, and its child with it.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    stdout: Output,
    stderr: Output,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = Output::of(child.stdout.take().unwrap());
        let stderr = Output::of(child.stderr.take().unwrap());
        Self {
            child,
            stdout,
            stderr,
        }
    }

    /// Starts `command`, and waits until it prints `ready`.
    pub(crate) fn ready(command: Command) -> Self {
        let process = Self::start(command);
        process.expect_line("ready");
        process
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn stdout(&self) -> String {
        self.stdout.text()
    }

    pub(crate) fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// The events of --json that are out by now.
    pub(crate) fn events(&self) -> Vec<Value> {
        events(&self.stderr())
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until the command prints `text` on stdout.
    pub(crate) fn expect_line(&self, text: &str) {
        eventually(text, || self.stdout().lines().any(|line| line == text));
    }

    /// Waits for an event of --json.
    pub(crate) fn expect_event(&self, name: &str) {
        eventually(name, || {
            self.events().iter().any(|event| event["event"] == name)
        });
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        let mut status: Option<ExitStatus> = None;
        let mut told = String::new();
        let start = Instant::now();
        while status.is_none() {
            if start.elapsed() > LIMIT {
                write!(told, "{}{}", self.stdout(), self.stderr()).unwrap();
                panic!("not ended within {LIMIT:?}: {told}");
            }
            thread::sleep(Duration::from_millis(2));
            status = self.child.try_wait().unwrap();
        }
        let ended = Ended {
            code: status.and_then(|status| status.code()),
            stdout: self.stdout.rest(),
            stderr: self.stderr.rest(),
        };
        // With --nocapture, all that is told can be searched.
        print!("{}{}", ended.stdout, ended.stderr);
        // What a command prints on stdout under the lock is its own.
        expect_no_secret(&ended.stderr);
        ended
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        /// For its child to end, and for the lock to be given back.
        const PATIENCE: Duration = Duration::from_secs(5);

        let start = Instant::now();
        while self.child.try_wait().is_ok_and(|status| status.is_none()) {
            // Each may fail only when it has ended in this moment.
            let _gone = kill_process(self.pid(), Signal::CONT);
            let _gone = kill_process(self.pid(), Signal::TERM);
            if start.elapsed() > PATIENCE {
                drop(self.child.kill());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Ended {
    /// Whether this machine gives no namespaces. Then it says so.
    pub(crate) fn is_without_namespaces(&self) -> bool {
        let is_without = self.stderr.starts_with("unshare: ");
        if is_without {
            println!(
                "not tested, because this machine gives no namespaces: {}",
                self.stderr
            );
        }
        is_without
    }

    #[track_caller]
    pub(crate) fn expect_code(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{self:#?}");
    }

    #[track_caller]
    pub(crate) fn expect_stdout(&self, text: &str) {
        assert!(self.stdout.contains(text), "no {text:?} in {self:#?}");
    }

    #[track_caller]
    pub(crate) fn expect_stderr(&self, text: &str) {
        assert!(self.stderr.contains(text), "no {text:?} in {self:#?}");
    }

    #[track_caller]
    pub(crate) fn expect_not_in_stdout(&self, text: &str) {
        assert!(!self.stdout.contains(text), "{text:?} in {self:#?}");
    }

    #[track_caller]
    pub(crate) fn expect_not_in_stderr(&self, text: &str) {
        assert!(!self.stderr.contains(text), "{text:?} in {self:#?}");
    }

    pub(crate) fn events(&self) -> Vec<Value> {
        events(&self.stderr)
    }
}

/// Starts `command` and waits for its end.
pub(crate) fn end_of(command: Command) -> Ended {
    Process::start(command).end()
}

/// Waits until `fact` holds.
pub(crate) fn eventually(what: impl AsRef<OsStr>, mut fact: impl FnMut() -> bool) {
    let start = Instant::now();
    while !fact() {
        let what = what.as_ref().display();
        assert!(start.elapsed() < LIMIT, "not within {LIMIT:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Waits until no server has a key, for less than any TTL of those who call it: what is on its way
/// when a run ends arrives a moment later.
pub(crate) fn expect_no_keys(servers: &[Server]) {
    let start = Instant::now();
    while servers.iter().any(|server| server.key_count() > 0) {
        let is_late = start.elapsed() > Duration::from_secs(5);
        let left = || {
            servers
                .iter()
                .flat_map(Server::keys)
                .map(|key| String::from_utf8_lossy(&key).into_owned())
                .collect::<Vec<_>>()
        };
        assert!(!is_late, "left: {:?}", left());
        thread::sleep(Duration::from_millis(2));
    }
}

/// The time that a field of an event tells.
pub(crate) fn time(event: &Value, field: &str) -> SystemTime {
    let text = event[field].as_str();
    humantime::parse_rfc3339(text.unwrap_or_else(|| panic!("no {field} in {event}"))).unwrap()
}

fn events(stderr: &str) -> Vec<Value> {
    let lines = stderr.lines().filter(|line| line.starts_with('{'));
    let event = |line: &str| {
        line.parse()
            .unwrap_or_else(|error| panic!("{error}: {line}"))
    };
    lines.map(event).collect()
}

/// What a process has written so far.
#[derive(Debug)]
struct Output {
    text: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Output {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&text);
        let reader = thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = pipe.read(&mut buffer) {
                written.lock().unwrap().extend(&buffer[..count]);
            }
        });
        Self { text, reader }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }

    /// Everything, now that the process has ended. What it left behind may keep the pipe open.
    fn rest(&self) -> String {
        eventually("the end of the output", || self.reader.is_finished());
        self.text()
    }
}
