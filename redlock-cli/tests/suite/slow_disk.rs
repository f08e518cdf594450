//! A program or a lease file that the system takes long to open: a scanner for viruses, or a disk over the network.

use std::fs;
use std::path::{Path, PathBuf};

use redlock_tests::Servers;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir;

use crate::process::{Process, eventually, expect_no_keys, redlock, run};
use crate::scanner::Scanner;

const KEY: &str = "dock-7";

/// A copy, so that no other process waits for the scanner.
fn shell(folder: &Path) -> PathBuf {
    let shell = folder.join("sh");
    fs::copy("/bin/sh", &shell).unwrap();
    shell
}

fn start(servers: &Servers, shell: &Path, script: &str) -> Process {
    let mut command = redlock(&["run", "--ttl=1s", "--kill-after=100ms", "--json", KEY, "--"]);
    command.env("REDLOCK_NODES", servers.urls().join(","));
    command.arg(shell).args(["-c", script]);
    Process::start(command)
}

#[test]
fn a_command_whose_start_takes_longer_than_the_ttl_runs_under_the_lock() {
    let (servers, folder) = (Servers::start(3), tempdir().unwrap());
    let shell = shell(folder.path());
    let Some(scanner) = Scanner::of_program(&shell) else {
        return;
    };
    scanner.slow_down();
    let holder = start(&servers, &shell, "echo ran");
    let is_extended = |event: &Value| event["event"] == "extended";
    eventually("four extensions of a third each", || {
        holder.events().into_iter().filter(is_extended).count() >= 4
    });
    assert_eq!(holder.stdout(), "");
    scanner.go_on();
    let ended = holder.end();
    ended.expect_code(0);
    assert_eq!(ended.stdout, "ran\n");
    expect_no_keys(&servers);
}

#[test]
fn a_command_that_has_not_started_when_the_lock_is_lost_never_runs() {
    let (servers, folder) = (Servers::start(3), tempdir().unwrap());
    let shell = shell(folder.path());
    let Some(scanner) = Scanner::of_program(&shell) else {
        return;
    };
    scanner.slow_down();
    let mark = folder.path().join("ran");
    let holder = start(&servers, &shell, &format!("echo ran > {}", mark.display()));
    holder.expect_event("extended");
    servers
        .iter()
        .take(2)
        .for_each(redlock_tests::Server::pause);
    holder.expect_event("terminating");
    scanner.go_on();
    let ended = holder.end();
    ended.expect_code(76);
    assert!(!mark.exists(), "{}", ended.stderr);
    servers
        .iter()
        .take(2)
        .for_each(redlock_tests::Server::resume);
}

#[test]
fn a_lock_whose_lease_is_over_before_its_file_is_written_is_no_success() {
    let (servers, folder) = (Servers::start(3), tempdir().unwrap());
    let Some(scanner) = Scanner::of_folder(folder.path()) else {
        return;
    };
    let before = Process::ready(run(&servers, &[], KEY, "echo ready; exec sleep 60"));
    let file = folder.path().join("lease");
    let mut command = redlock(&["lock", "--ttl=1s", "--json", "--lease-file"]);
    command.arg(&file).arg(KEY);
    command.env("REDLOCK_NODES", servers.urls().join(","));
    let holder = Process::start(command);
    holder.expect_event("waiting");
    scanner.slow_down();
    before.signal(Signal::TERM);
    before.end();
    holder.expect_event("acquired");
    eventually("the end of the lease", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
    scanner.go_on();
    let ended = holder.end();
    ended.expect_code(76);
    ended.expect_stderr("the disk is slow, or the TTL too short");
    assert!(!file.exists());
    expect_no_keys(&servers);
}
