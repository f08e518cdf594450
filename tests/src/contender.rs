//! Processes that contend for a lock, each with its own connections. `redlock-tests contend` is such a process.

#![expect(
    clippy::expect_used,
    reason = "a process that does not do what it is told ends the test or the benchmark"
)]

mod process;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Server, child};

pub use process::{Arguments, Kind, now, run};

/// A process that contends for locks, and does what it is told over its stdin. It ends with this handle.
#[derive(Debug)]
pub struct Contender {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

/// The lock was held once. All times are in microseconds, on the one clock of the machine.
#[derive(Debug, Clone, Copy)]
pub struct Turn {
    /// When the task asked for the lock.
    pub asked: u64,
    /// When it had the lock.
    pub acquired: u64,
    /// When the release began.
    pub released: u64,
    /// When a quorum had answered the release: a round trip later.
    pub answered: u64,
}

/// A machine that needs longer for an answer stands still.
const LIMIT: Duration = Duration::from_secs(60);

/// Three looks, with delays of up to 50 ms.
const FIRST_LOOKS: Duration = Duration::from_millis(300);

impl Contender {
    /// Starts `program`, which is `redlock-tests`, and waits until it is connected.
    ///
    /// # Panics
    ///
    /// When it does not get there.
    #[must_use]
    pub fn start(program: impl AsRef<Path>, arguments: &Arguments) -> Self {
        let mut command = child::bound(program.as_ref());
        command.arg("contend").args(arguments.to_words());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child::spawn(command).expect("the process starts");
        let stdin = child.stdin.take().expect("a pipe");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let contender = Self {
            child,
            stdin,
            lines,
        };
        contender.expect("ready");
        contender
    }

    /// Lets `tasks` take the lock `key` again and again for `time`, and hold it for 2 to 5 ms. [`turns`](Self::turns) waits
    /// for the end.
    pub fn contend(&mut self, key: &str, tasks: usize, time: Duration) {
        self.tell(&format!("contend {key} {tasks} {}", time.as_millis()));
    }

    /// The turns since [`contend`](Self::contend).
    ///
    /// # Panics
    ///
    /// When the process fails.
    #[must_use]
    pub fn turns(&self) -> Vec<Turn> {
        let mut turns = Vec::new();
        loop {
            let line = self.line();
            if line == "done" {
                return turns;
            }
            turns.push(turn(&line).expect("a turn"));
        }
    }

    /// Lets the process acquire the lock `key`. [`acquired`](Self::acquired) waits for it.
    pub fn acquire(&mut self, key: &str) {
        self.tell(&format!("acquire {key}"));
    }

    /// Like [`acquire`](Self::acquire), while the lock is held: waits until the process stands in its line on all `servers`, and
    /// looks at the lock about once a second only.
    ///
    /// # Panics
    ///
    /// When it does not get there.
    pub fn stand_in_line<'a>(&mut self, key: &str, servers: impl IntoIterator<Item = &'a Server>) {
        let line = format!("redlock:queue:{key}");
        let places = |server: &Server| server.query::<usize>(&["ZCARD", &line]).unwrap_or(0);
        let before: Vec<_> = servers.into_iter().map(|it| (it, places(it))).collect();
        self.acquire(key);
        let start = Instant::now();
        while before
            .iter()
            .any(|(server, count)| places(server) <= *count)
        {
            assert!(start.elapsed() < LIMIT, "it stands in the line");
            sleep(Duration::from_millis(2));
        }
        sleep(FIRST_LOOKS);
    }

    /// When the process had the lock, in microseconds.
    ///
    /// # Panics
    ///
    /// When the process fails.
    #[must_use]
    pub fn acquired(&self) -> u64 {
        self.expect("acquired")
    }

    /// Releases the lock. Returns when the release began, in microseconds.
    ///
    /// # Panics
    ///
    /// When the process fails.
    pub fn release(&mut self) -> u64 {
        self.tell("release");
        self.expect("released")
    }

    /// The time of a round trip, in microseconds: the median of some extensions of a lock that no other client wants.
    ///
    /// # Panics
    ///
    /// When the process fails.
    pub fn round_trip(&mut self) -> u64 {
        self.tell("round-trip");
        self.expect("round-trip")
    }

    /// Stops the process with its connections open.
    ///
    /// # Panics
    ///
    /// When there is no such process.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Lets a process that was stopped go on.
    ///
    /// # Panics
    ///
    /// When there is no such process.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Ends the process at once, in whatever it does (SIGKILL).
    pub fn kill(self) {
        drop(self);
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("the process runs");
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.stdin, "{command}").expect("the process reads");
    }

    /// Reads a line of `word` and a number. The number is 0 if it is missing.
    fn expect(&self, word: &str) -> u64 {
        let line = self.line();
        let number = line.strip_prefix(word);
        assert!(number.is_some(), "not {word}, but {line}");
        number.and_then(|it| it.trim().parse().ok()).unwrap_or(0)
    }

    fn line(&self) -> String {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => format!("nothing for {LIMIT:?}"),
            Err(RecvTimeoutError::Disconnected) => "its end".to_owned(),
        }
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        child::end(&mut self.child);
    }
}

fn turn(line: &str) -> Option<Turn> {
    let mut numbers = line.strip_prefix("turn ")?.split(' ').map(str::parse);
    let mut number = || numbers.next()?.ok();
    Some(Turn {
        asked: number()?,
        acquired: number()?,
        released: number()?,
        answered: number()?,
    })
}
