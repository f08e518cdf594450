//! `redlock run` in a terminal, which `script` of util-linux plays.

use std::io::Write;
use std::process::{Child, Command, Stdio};

use redlock_tests::Servers;
use tempfile::tempdir;

use crate::process::{Process, eventually, expect_no_keys, heed_signals, run};

#[test]
fn a_command_can_read_from_the_terminal() {
    let servers = Servers::start(3);
    let mut terminal = Terminal::start(
        &servers,
        "echo ready; read word; echo \"got $word\"; exit 3",
    );
    terminal.expect("ready");
    terminal.type_in("hello\n");
    terminal.expect("got hello");
    assert_eq!(terminal.end(), Some(3));
}

#[test]
fn control_c_ends_a_command_whether_it_has_the_terminal_or_not() {
    let servers = Servers::start(3);
    for script in [
        "(echo ready; exec sleep 60)",
        "echo ready; read word; echo asked; read word",
    ] {
        let mut terminal = Terminal::ready(&servers, script);
        terminal.type_in("\x03");
        assert_eq!(terminal.end(), Some(128 + 2), "{script}");
        expect_no_keys(&servers);
    }
}

#[test]
fn a_wait_is_told_on_a_terminal_and_so_is_the_holder() {
    let servers = Servers::start(3);
    let holder = Process::start(run(&servers, &[], "dock-7", "echo ready; sleep 60"));
    holder.expect_line("ready");
    let terminal = Terminal::start(&servers, "echo ran");
    terminal.expect("waiting: dock-7 is held by another client");
    terminal.expect("dock-7: held by ");
    terminal.expect("nodes, free in at most ");
    holder.signal(rustix::process::Signal::TERM);
    holder.end();
    terminal.expect("ran");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn a_lock_that_is_held_is_told_on_a_terminal_although_it_is_no_failure() {
    let servers = Servers::start(3);
    let holder = Process::ready(run(&servers, &[], "dock-7", "echo ready; exec sleep 60"));
    let terminal = Terminal::start_shell(
        &servers,
        "$REDLOCK run --no-wait -E 0 dock-7 -- echo ran; echo code $?",
    );
    terminal.expect("code 0");
    let told = terminal.text();
    assert!(told.contains("dock-7 is held by another client"), "{told}");
    assert_eq!(terminal.end(), Some(0));
    holder.signal(rustix::process::Signal::TERM);
    holder.end();
}

#[test]
fn control_z_suspends_nothing() {
    let servers = Servers::start(3);
    for script in [
        "echo ready; until [ -e done ]; do sleep 0.01; done; exit 4",
        "echo ready; read word; echo asked; read word; exit 4",
    ] {
        let mut terminal = Terminal::ready(&servers, script);
        terminal.type_in("\x1a");
        terminal.expect("not suspended");
        std::fs::write(terminal.directory.path().join("done"), "").unwrap();
        terminal.type_in("word\n");
        assert_eq!(terminal.end(), Some(4), "{script}");
    }
}

#[test]
fn control_z_does_not_suspend_a_command_that_stops_itself() {
    let servers = Servers::start(3);
    // As editors do. A loop without other programs, which would be suspended instead.
    let script = "trap \"kill -STOP $$\" TSTP; echo ready; read word; echo asked; until [ -e done ]; do :; done; exit 4";
    let mut terminal = Terminal::ready(&servers, script);
    terminal.type_in("\x1a");
    terminal.expect("not suspended");
    std::fs::write(terminal.directory.path().join("done"), "").unwrap();
    assert_eq!(terminal.end(), Some(4));
}

#[test]
fn the_terminal_is_given_back() {
    let servers = Servers::start(3);
    // The outer shell shares the process group of redlock, and reads after it.
    let inner = "echo ready; read word; echo \"first $word\"; stty -echo; kill -KILL $$";
    let mut terminal = Terminal::start_shell(
        &servers,
        &format!(
            "$REDLOCK run dock-7 -- sh -c '{inner}'; echo code $?; read word; echo \"second $word\"; stty -a"
        ),
    );
    terminal.expect("ready");
    terminal.type_in("one\n");
    terminal.expect("first one");
    terminal.expect("code 137");
    terminal.type_in("two\n");
    terminal.expect("second two");
    // Its modes too, when the command had no chance to.
    terminal.expect(" echo ");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn a_command_under_several_locks_can_read_from_the_terminal_and_gives_it_back() {
    let servers = Servers::start(3);
    let reader = "sh -c 'echo ready; read word; echo \"first $word\"; exit 3'";
    for inner in [
        "$REDLOCK run --keep-env b --",
        "$REDLOCK run --keep-env b -- $REDLOCK run --keep-env c --",
        // A shell between the two, in the process group of the inner one.
        "sh -c '$REDLOCK run --keep-env b -- \"$@\"; exit $?' sh",
    ] {
        let line = format!(
            "$REDLOCK run --keep-env a -- {inner} {reader}; echo code $?; read word; echo \"second $word\""
        );
        let mut terminal = Terminal::start_shell(&servers, &line);
        terminal.expect("ready");
        terminal.type_in("one\n");
        terminal.expect("first one");
        terminal.expect("code 3");
        terminal.type_in("two\n");
        terminal.expect("second two");
        assert_eq!(terminal.end(), Some(0), "{line}");
    }
}

#[test]
fn a_background_job_under_another_lock_does_not_take_the_terminal() {
    let servers = Servers::start(3);
    // A shell with job control, as at a prompt.
    let line = "set -m
        $REDLOCK run --keep-env a -- $REDLOCK run --keep-env --ttl 1s -v b -- \
            sh -c 'echo ready; read word </dev/tty; echo \"stolen $word\"' &
        until [ -e done ]; do sleep 0.01; done
        read word; echo \"own $word\"; kill %1; wait %1; echo over";
    let mut terminal = Terminal::start_shell(&servers, line);
    terminal.expect("ready");
    eventually("a stopped command", || terminal.has_stopped("sh"));
    // Its request is looked at more often than its lease is extended.
    let extensions = || terminal.text().matches("extended").count();
    let before = extensions();
    eventually("two extensions", || extensions() >= before + 2);
    std::fs::write(terminal.directory.path().join("done"), "").unwrap();
    terminal.type_in("word\n");
    terminal.expect("own word");
    terminal.expect("over");
    assert!(!terminal.text().contains("stolen"), "{}", terminal.text());
}

#[test]
fn a_process_that_only_has_the_id_of_a_run_that_has_ended_lends_no_terminal() {
    let servers = Servers::start(3);
    // The shell has the process ID, and was started at another time.
    let line = "set -m
        REDLOCK_PIDS=$$ $REDLOCK run --ttl 1s -v b -- \
            sh -c 'echo ready; read word </dev/tty; echo \"stolen $word\"' &
        read word; echo \"own $word\"; kill %1; wait %1; echo over";
    let mut terminal = Terminal::start_shell(&servers, line);
    terminal.expect("ready");
    // A request for the terminal is looked at more often than the lease is extended.
    eventually("two extensions", || {
        terminal.text().matches("extended").count() > 2
    });
    terminal.type_in("word\n");
    terminal.expect("word");
    eventually("its end", || {
        ["stolen word", "over"]
            .iter()
            .any(|end| terminal.text().contains(end))
    });
    assert!(!terminal.text().contains("stolen"), "{}", terminal.text());
}

#[test]
fn a_reader_at_the_end_of_the_pipe_stops_no_lease_and_has_the_terminal_in_the_end() {
    let servers = Servers::start(3);
    // With job control, the pipe has a process group of its own, as at a prompt.
    let line = "set -m
        $REDLOCK run --ttl 1s -v dock-7 -- \
            sh -c 'read x </dev/tty; echo \"asked $x\" >/dev/tty; read x </dev/tty; echo \"piped $x\"' | \
            sh -c 'until [ -e go ]; do sleep 0.01; done; read y </dev/tty; echo \"own $y\"; cat'
        echo \"code $?\"";
    let mut terminal = Terminal::start_shell(&servers, line);
    terminal.type_in("one\n");
    terminal.expect("asked one");
    std::fs::write(terminal.directory.path().join("go"), "").unwrap();
    eventually("a stopped reader", || terminal.has_stopped("sh"));
    let extensions = || terminal.text().matches("extended").count();
    let before = extensions();
    eventually("two extensions", || extensions() >= before + 2);
    terminal.type_in("two\n");
    eventually("its end", || terminal.text().contains("released"));
    terminal.type_in("three\n");
    terminal.expect("own three");
    terminal.expect("piped two");
    terminal.expect("code 0");
    assert_eq!(terminal.end(), Some(0));
    expect_no_keys(&servers);
}

#[test]
fn a_job_that_was_put_into_the_background_does_not_take_the_terminal_from_the_shell_at_its_end() {
    let servers = Servers::start(3);
    let line = "set -m
        $REDLOCK run -v dock-7 -- \
            sh -c 'read x </dev/tty; echo \"got $x\"; kill -STOP $PPID; until [ -e go ]; do sleep 0.01; done'
        bg
        touch go
        wait
        read y </dev/tty
        echo \"own $y\"";
    let mut terminal = Terminal::start_shell(&servers, line);
    terminal.type_in("one\n");
    terminal.expect("got one");
    terminal.expect("released");
    terminal.type_in("two\n");
    terminal.expect("own two");
    assert_eq!(terminal.end(), Some(0));
    expect_no_keys(&servers);
}

#[test]
fn a_background_job_that_waits_for_a_terminal_that_goes_away_ends() {
    let servers = Servers::start(3);
    let line = "set -m
        $REDLOCK run dock-7 -- sh -c 'read word </dev/tty' &
        until [ -e done ]; do sleep 0.01; done";
    let mut terminal = Terminal::start_shell(&servers, line);
    eventually("a stopped command", || terminal.has_stopped("sh"));
    terminal.script.kill().unwrap();
    expect_no_keys(&servers);
    eventually("the end of all", || terminal.processes().is_empty());
}

/// A pseudo-terminal, and what is in it.
pub(crate) struct Terminal {
    script: Child,
    directory: tempfile::TempDir,
}

impl Terminal {
    pub(crate) fn start(servers: &Servers, script: &str) -> Self {
        let command = run(servers, &[], "dock-7", script);
        let arguments = command
            .get_args()
            .map(|argument| format!("'{}'", argument.to_str().unwrap()));
        let arguments: Vec<_> = arguments.collect();
        Self::start_shell(servers, &format!("exec $REDLOCK {}", arguments.join(" ")))
    }

    /// Waits until the script prints `ready`. If it reads a word and prints `asked`, types it in and waits for that too.
    pub(crate) fn ready(servers: &Servers, script: &str) -> Self {
        let mut terminal = Self::start(servers, script);
        terminal.expect("ready");
        if script.contains("asked") {
            terminal.type_in("word\n");
            terminal.expect("asked");
        }
        terminal
    }

    /// Runs `line` in a shell in the terminal.
    pub(crate) fn start_shell(servers: &Servers, line: &str) -> Self {
        heed_signals();
        let directory = tempdir().unwrap();
        let script = Command::new("script")
            .args([
                "--quiet",
                "--return",
                "--flush",
                "--command",
                line,
                "typescript",
            ])
            .current_dir(directory.path())
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm")
            .env("REDLOCK", env!("CARGO_BIN_EXE_redlock"))
            .env("REDLOCK_NODES", servers.urls().join(","))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("script of util-linux: {error}"));
        Self { script, directory }
    }

    pub(crate) fn type_in(&mut self, text: &str) {
        let stdin = self.script.stdin.as_mut().unwrap();
        stdin.write_all(text.as_bytes()).unwrap();
        stdin.flush().unwrap();
    }

    pub(crate) fn expect(&self, text: &str) {
        eventually(format!("{text}: {}", self.text()), || {
            self.text().contains(text)
        });
    }

    pub(crate) fn text(&self) -> String {
        let bytes = std::fs::read(self.directory.path().join("typescript")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        // The first line shows what is run, and so everything that it will ever say.
        text.split_once('\n')
            .map_or("", |(_, rest)| rest)
            .to_owned()
    }

    /// Whether a process of this name that was started in the terminal is stopped.
    fn has_stopped(&self, name: &str) -> bool {
        let stopped = format!("({name}) T ");
        self.processes().iter().any(|stat| stat.contains(&stopped))
    }

    /// What the system tells of each process that was started in the terminal.
    fn processes(&self) -> Vec<String> {
        let directory = self.directory.path();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes
            .map(|process| process.path())
            .filter(|path| std::fs::read_link(path.join("cwd")).is_ok_and(|cwd| cwd == directory))
            .filter_map(|path| std::fs::read_to_string(path.join("stat")).ok())
            .collect()
    }

    pub(crate) fn end(mut self) -> Option<i32> {
        let mut status = None;
        eventually(format!("its end: {}", self.text()), || {
            status = self.script.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap().code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Its end hangs up the terminal, which ends what is in it.
        drop(self.script.kill());
        drop(self.script.wait());
    }
}
