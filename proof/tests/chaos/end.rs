//! What is left of a run that does not come to its end.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use redlock_tests::eventually;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::chaos;

const LIMIT: Duration = Duration::from_secs(20);

#[tokio::test]
async fn nothing_runs_on_when_it_is_killed() {
    let mut run = Run::begin().await;
    let processes = run.processes();
    run.program.kill().unwrap();
    run.program.wait().unwrap();
    eventually("servers and clients are gone", LIMIT, || {
        processes.iter().all(|process| !is_running(*process))
    })
    .await;
}

#[tokio::test]
async fn nothing_is_left_when_it_is_told_to_end() {
    let mut run = Run::begin().await;
    let processes = run.processes();
    kill_process(Pid::from_child(&run.program), Signal::TERM).unwrap();
    eventually("it ends", LIMIT, || {
        run.program.try_wait().unwrap().is_some()
    })
    .await;
    let mut words = String::new();
    let mut errors = run.program.stderr.take().unwrap();
    errors.read_to_string(&mut words).unwrap();
    assert_eq!(words, "chaos: interrupted\n");
    assert!(!run.program.wait().unwrap().success());
    assert!(processes.iter().all(|process| !is_running(*process)));
    assert_eq!(fs::read_dir(run.directory.path()).unwrap().count(), 0);
}

struct Run {
    program: Child,
    /// Open for as long as the program writes.
    _output: BufReader<ChildStdout>,
    directory: TempDir,
}

impl Run {
    /// A run that would take a minute, with all its servers and clients.
    async fn begin() -> Self {
        const SERVERS_AND_CLIENTS: usize = 11;

        // What a killed process leaves in its directory goes with this one.
        let directory = TempDir::new().unwrap();
        let mut program = chaos(&["--seconds=60"])
            .env("TMPDIR", directory.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(program.stdout.take().unwrap());
        output.read_line(&mut String::new()).unwrap();
        let run = Self {
            program,
            _output: output,
            directory,
        };
        eventually("all are started", LIMIT, || {
            run.processes().len() >= SERVERS_AND_CLIENTS
        })
        .await;
        run
    }

    /// The processes that the program has started.
    fn processes(&self) -> Vec<u32> {
        let id = self.program.id();
        let all = fs::read_dir("/proc").unwrap().filter_map(|entry| {
            let name = entry.ok()?.file_name();
            name.to_str()?.parse().ok()
        });
        all.filter(|process| parent(*process) == Some(id)).collect()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // It may have ended already.
        drop(self.program.kill());
        drop(self.program.wait());
    }
}

fn is_running(process: u32) -> bool {
    parent(process).is_some()
}

/// None for a process that has ended.
fn parent(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name before it, in parentheses, may be anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    let state = fields.next()?;
    (state != "Z").then(|| fields.next()?.parse().ok())?
}
