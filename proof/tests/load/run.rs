//! What a run prints, and with which exit code it ends.

use std::fs;
use std::process::{Child, Output, Stdio};
use std::time::Duration;

use redis::Commands as _;
use redlock_tests::child::{expect_words, words};
use redlock_tests::eventually;
use rustix::process::{Pid, Signal, kill_process};

use crate::load;

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_trial_is_a_row_and_ends_well_if_every_promise_was_kept() {
    let output = load(&["--scene", "burst-1000-current-thread"])
        .output()
        .unwrap();
    let words = words(&output);
    assert!(output.status.success(), "{words}");
    expect_words(
        &words,
        &[
            "locks/s",
            "burst-1000-current-thread",
            "all at once in",
            "the lock kept its promises",
        ],
    );
}

#[tokio::test]
async fn acquires_that_fail_and_guards_that_are_lost_are_broken_promises() {
    let run = Run::begin("tasks-1000-keys").await;
    let servers = run.servers_in_use().await;
    for (pid, _) in servers.iter().take(3) {
        kill_process(*pid, Signal::KILL).unwrap();
    }
    let output = run.output();
    let words = words(&output);
    assert_eq!(output.status.code(), Some(1), "{words}");
    expect_words(
        &words,
        &[
            "FAILED: tasks-1000-keys: ",
            "acquires failed (no quorum ",
            "guards were lost",
        ],
    );
}

#[tokio::test]
async fn keys_that_are_left_are_a_broken_promise() {
    let run = Run::begin("tasks-10-keys").await;
    let servers = run.servers_in_use().await;
    let client = redis::Client::open(("127.0.0.1", servers[0].1)).unwrap();
    let mut connection = client.get_connection().unwrap();
    let () = connection.set("left", "by no task").unwrap();
    let output = run.output();
    let words = words(&output);
    assert_eq!(output.status.code(), Some(1), "{words}");
    expect_words(&words, &["FAILED: tasks-10-keys: 1 keys are left"]);
}

#[tokio::test]
async fn a_trial_whose_process_dies_is_a_failure() {
    let run = Run::begin("churn").await;
    kill_process(run.trial, Signal::KILL).unwrap();
    let output = run.output();
    let words = words(&output);
    assert_eq!(output.status.code(), Some(1), "{words}");
    expect_words(&words, &["FAILED: churn: ended with signal: 9"]);
}

#[test]
fn a_scene_that_does_not_exist_is_answered_with_those_that_do() {
    let output = load(&["--scene", "flood"]).output().unwrap();
    let words = words(&output);
    assert_eq!(output.status.code(), Some(1), "{words}");
    expect_words(
        &words,
        &["there are burst, tasks, kept, churn, drop, reconnect, slow, hostile, handles"],
    );
}

/// The program with one trial.
struct Run {
    program: Child,
    trial: Pid,
}

impl Run {
    /// Begins it, and waits until its trial has five servers.
    async fn begin(scene: &str) -> Self {
        let mut command = load(&["--short", "--scene", scene]);
        let program = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let parent = Pid::from_child(&program);
        let mut trial = None;
        eventually("the trial has its servers", LIMIT, || {
            trial = children(parent).into_iter().find(|child| {
                let servers = children(*child);
                servers.iter().filter_map(|pid| port(*pid)).count() == 5
            });
            trial.is_some()
        })
        .await;
        Self {
            program,
            trial: trial.unwrap(),
        }
    }

    /// Its servers with their ports, once many locks have been taken.
    async fn servers_in_use(&self) -> Vec<(Pid, u16)> {
        let servers = children(self.trial);
        let servers: Vec<_> = servers
            .into_iter()
            .filter_map(|pid| Some((pid, port(pid)?)))
            .collect();
        eventually("the servers are in use", LIMIT, || {
            servers.iter().all(|(_, port)| {
                let client = redis::Client::open(("127.0.0.1", *port)).unwrap();
                let connection = client.get_connection();
                let info: Option<String> = connection.ok().and_then(|mut connection| {
                    redis::cmd("INFO")
                        .arg("commandstats")
                        .query(&mut connection)
                        .ok()
                });
                let info = info.unwrap_or_default();
                let calls = info.split("cmdstat_set:calls=").nth(1).unwrap_or_default();
                let calls = calls.split(',').next().unwrap_or_default();
                calls.parse::<u64>().unwrap_or_default() > 1_000
            })
        })
        .await;
        servers
    }

    fn output(self) -> Output {
        self.program.wait_with_output().unwrap()
    }
}

/// Processes that `parent` has started and not waited for.
fn children(parent: Pid) -> Vec<Pid> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let lists: Vec<_> = lists.collect();
    let words = lists.iter().flat_map(|list| list.split_whitespace());
    words
        .filter_map(|word| Pid::from_raw(word.parse().ok()?))
        .collect()
}

/// Of a redis-server that listens, by the title it gives itself; `None` for other processes.
fn port(pid: Pid) -> Option<u16> {
    let title = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    let title = title.strip_prefix("redis-server 127.0.0.1:")?;
    title.trim_matches(['\0', ' ']).parse().ok()
}
