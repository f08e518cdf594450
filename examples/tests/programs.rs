//! The examples that use real servers, each as a process.

#![expect(clippy::unwrap_used, reason = "what fails here fails a test")]

use std::env;
use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use redlock_core::{Options, Redlock};
use redlock_embassy::TcpNode;
use redlock_std::{SystemClock, SystemEntropy};
use redlock_tests::{Servers, TokioStream, child};
use rustix::process::{Pid, Signal, kill_process};

/// Longer than any of them is silent.
const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn the_cron_job_is_done_once_by_three_servers_that_start_one_after_the_other() {
    let servers = Servers::start(3);
    let lines: Vec<String> = (0..3)
        .map(|_| Program::start("cron_job", &servers).last_line())
        .collect();
    assert_eq!(
        lines,
        [
            "done: 3 pages",
            "another server does it",
            "another server does it"
        ]
    );
}

#[test]
fn another_server_leads_when_the_leader_ends_or_is_killed_and_its_term_is_higher() {
    let servers = Servers::start(3);
    let first = Program::start("leader", &servers);
    let mut term = first.term();
    let mut leader = first;
    for signal in [Signal::TERM, Signal::KILL] {
        let next = Program::start("leader", &servers);
        leader.signal(signal);
        let next_term = next.term();
        assert!(next_term > term, "{next_term} after {term}");
        (leader, term) = (next, next_term);
    }
}

#[tokio::test]
async fn the_gateway_waits_for_the_dock_while_a_device_has_it() {
    let servers = Servers::start(3);
    let nodes = servers.iter().map(|server| {
        let stream = TokioStream::new(([127, 0, 0, 1], server.port()).into());
        TcpNode::<_, _>::new(stream, SystemClock)
    });
    let options = Options::new(Duration::from_secs(10)).unwrap();
    let device = Redlock::<_, _, _, 3>::new(nodes, SystemClock, SystemEntropy, options);
    let mut device = device.unwrap();
    let lease = device.acquire("dock-7").await.unwrap();
    let gateway = Program::start("gateway", &servers);
    assert_eq!(
        gateway.lines.recv_timeout(Duration::from_secs(2)),
        Err(RecvTimeoutError::Timeout),
        "the gateway waits"
    );
    device.release(lease).await;
    assert!(gateway.line().starts_with("dock-7: ours after"));
    assert!(
        device.try_acquire("dock-7").await.is_err(),
        "now the device waits"
    );
    assert_eq!(gateway.line(), "dock-7: the robot has stopped");
    assert_eq!(gateway.line(), "dock-7: clean");
    let lease = device.acquire("dock-7").await.unwrap();
    device.release(lease).await;
}

/// An example that runs. It ends with its handle.
struct Program {
    child: Child,
    lines: Receiver<String>,
}

impl Program {
    /// Cargo builds the examples for `cargo test`, unless one test is chosen by `--test`.
    fn start(name: &str, servers: &Servers) -> Self {
        let path: PathBuf = env::current_exe().unwrap();
        let path = path.ancestors().nth(2).unwrap().join("examples").join(name);
        assert!(path.is_file(), "run `cargo build --examples`: no {path:?}");
        let mut command = child::bound(path);
        command.env("REDLOCK_NODES", servers.urls().join(","));
        command.stdout(Stdio::piped());
        let mut child = child::spawn(command).unwrap();
        let output = child.stdout.take().unwrap();
        let (sender, lines) = channel();
        thread::spawn(move || {
            let mut output = BufReader::new(output).lines();
            while let Some(Ok(line)) = output.next() {
                drop(sender.send(line));
            }
        });
        Self { child, lines }
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(LIMIT).unwrap()
    }

    fn last_line(&self) -> String {
        let mut last = self.line();
        while let Ok(line) = self.lines.recv_timeout(LIMIT) {
            last = line;
        }
        last
    }

    fn term(&self) -> u64 {
        let line = self.line();
        line.strip_prefix("leads, term ").unwrap().parse().unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        child::end(&mut self.child);
    }
}
