//! Signals to `redlock run`.

use std::process::Command;

use redlock_tests::Servers;
use rustix::process::{Pid, Signal, kill_process};

use crate::process::{
    FIRST, Process, end_of, eventually, expect_no_keys, has, redlock, run, unshare,
};

/// Those that are passed on, and their names in a shell.
const FORWARDED: [(Signal, &str); 6] = [
    (Signal::INT, "INT"),
    (Signal::TERM, "TERM"),
    (Signal::HUP, "HUP"),
    (Signal::QUIT, "QUIT"),
    (Signal::USR1, "USR1"),
    (Signal::USR2, "USR2"),
];

/// A shell that looks at its traps every few milliseconds, and ends some time after a failed test.
const LOOP: &str = "echo ready; for i in $(seq 4000); do sleep 0.01; done";

#[test]
fn signals_go_on_to_the_command_which_decides_what_they_mean() {
    let servers = Servers::start(3);
    for (signal, name) in FORWARDED {
        let script = format!("trap 'echo got {name}; exit 7' {name}; {LOOP}");
        let holder = Process::ready(run(&servers, &[], "dock-7", &script));
        holder.signal(signal);
        let ended = holder.end();
        assert_eq!(ended.stdout, format!("ready\ngot {name}\n"));
        ended.expect_code(7);
    }
    expect_no_keys(&servers);
}

#[test]
fn a_signal_reaches_the_whole_group_and_its_number_is_in_the_exit_code() {
    let servers = Servers::start(3);
    for (signal, _) in FORWARDED {
        // Two processes, both there before the signal is: a shell heeds SIGINT only with its child.
        let script = "(echo ready; exec sleep 60); kill -KILL $$";
        let holder = Process::ready(run(&servers, &[], "dock-7", script));
        holder.signal(signal);
        assert_eq!(holder.end().code, Some(128 + signal.as_raw()));
    }
    expect_no_keys(&servers);
}

#[test]
fn a_signal_while_waiting_gives_up_and_leaves_nothing() {
    let servers = Servers::start(5);
    let holder = Process::start(run(&servers, &[], "dock-7", "echo ready; sleep 60"));
    holder.expect_line("ready");
    for (signal, name) in FORWARDED {
        let next = Process::start(run(&servers, &["-v"], "dock-7", "echo ran"));
        eventually("a waiting run", || next.stderr().contains("waiting"));
        next.signal(signal);
        let ended = next.end();
        ended.expect_code(128 + signal.as_raw());
        ended.expect_stderr(&format!("SIG{name} while waiting"));
        assert_eq!(ended.stdout, "");
    }
    // One lock on each node, and it is the holder's.
    let locks = ["EXISTS", "dock-7", "redlock:queue:dock-7"];
    assert!(servers.iter().all(|server| server.query(&locks) == Ok(1)));
    holder.signal(Signal::TERM);
    holder.end();
    expect_no_keys(&servers);
}

#[test]
fn a_signal_in_the_middle_of_a_round_takes_back_what_was_granted() {
    let servers = Servers::start(5);
    let (granting, hung) = servers.split_at(2);
    for server in hung {
        server.pause();
    }
    // The first call waits for the connections for two node timeouts. Then its round waits for a third node.
    let options = ["--ttl=60s", "--node-timeout=3s"];
    let next = Process::start(run(&servers, &options, "dock-7", "echo ran"));
    eventually("two grants", || {
        granting.iter().all(|server| server.key_count() == 1)
    });
    next.signal(Signal::TERM);
    let ended = next.end();
    ended.expect_code(128 + 15);
    assert_eq!(ended.stdout, "");
    expect_no_keys(granting);
    for server in hung {
        server.resume();
    }
    expect_no_keys(&servers);
}

#[test]
fn each_signal_that_was_ignored_from_the_beginning_stays_so() {
    let servers = Servers::start(3);
    for (signal, name) in FORWARDED {
        let inner = run(&servers, &["--json"], "dock-7", LOOP);
        let holder = Process::ready(ignoring(name, &inner, &servers));
        holder.expect_event("started");
        let events = holder.events();
        let started = events.iter().find(|event| event["event"] == "started");
        let child = started.unwrap()["pid"].as_i64().unwrap();
        let own = holder.pid().as_raw_pid().into();
        assert!(has("SigIgn:", own, signal), "{name}");
        assert!(has("SigIgn:", child, signal), "{name}");
        // Its command does not get it either.
        holder.signal(signal);
        // The others are not: they would be lost otherwise.
        for (other, name) in FORWARDED.iter().filter(|(other, _)| *other != signal) {
            assert!(has("SigCgt:", own, *other), "{name}");
            assert!(!has("SigIgn:", child, *other), "{name}");
        }
        let end = if signal == Signal::TERM {
            Signal::INT
        } else {
            Signal::TERM
        };
        holder.signal(end);
        let ended = holder.end();
        ended.expect_code(128 + end.as_raw());
        let forwarded = ended.events();
        let forwarded = forwarded
            .iter()
            .filter(|event| event["event"] == "forwarded");
        assert_eq!(forwarded.count(), 1, "{name}: {}", ended.stderr);
        expect_no_keys(&servers);
    }
}

#[test]
fn a_signal_that_the_parent_has_blocked_stays_so_and_sigkill_still_ends_the_command_in_time() {
    let servers = Servers::start(3);
    // No shell: some unblock all signals.
    let inner = redlock(&["run", "--json", "--ttl=2s", "dock-7", "--", "sleep", "60"]);
    let mut blocking = Command::new("env");
    blocking
        .arg("--block-signal=TERM")
        .arg(inner.get_program())
        .args(inner.get_args())
        .env("REDLOCK_NODES", servers.urls().join(","));
    let mut holder = Process::start(blocking);
    holder.expect_event("started");
    let events = holder.events();
    let started = events.iter().find(|event| event["event"] == "started");
    let child = started.unwrap()["pid"].as_i64().unwrap();
    for pid in [holder.pid().as_raw_pid().into(), child] {
        assert!(has("SigBlk:", pid, Signal::TERM));
    }
    holder.signal(Signal::TERM);
    holder.expect_event("extended");
    assert!(holder.is_running());
    for server in servers.iter() {
        let _: usize = server.query(&["DEL", "dock-7"]).unwrap();
    }
    let ended = holder.end();
    ended.expect_code(76);
    ended.expect_not_in_stderr("forwarded");
    ended.expect_stderr("was ended by SIGKILL");
}

#[test]
fn a_run_under_nohup_in_the_background_of_a_script_outlives_the_terminal() {
    let servers = Servers::start(3);
    let inner = run(&servers, &[], "dock-7", LOOP);
    // A shell without job control lets what it starts with & ignore INT and QUIT.
    let script = "nohup \"$0\" \"$@\" & echo \"pid $!\"; wait $!; echo \"code $?\"";
    let mut shell = Command::new("sh");
    shell
        .args(["-c", script])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env("REDLOCK_NODES", servers.urls().join(","));
    let shell = Process::ready(shell);
    let stdout = shell.stdout();
    let pid = stdout.lines().find_map(|line| line.strip_prefix("pid "));
    let pid: i32 = pid.unwrap().parse().unwrap();
    for signal in [Signal::HUP, Signal::INT, Signal::QUIT] {
        assert!(has("SigIgn:", pid.into(), signal), "{signal:?}");
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }
    assert!(servers.key_count() > 0);
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    let ended = shell.end();
    ended.expect_stdout("code 143");
    expect_no_keys(&servers);
}

/// Runs `inner` from a shell that ignores the signal. It is bash: dash does not pass on that it ignores CHLD.
fn ignoring(signal: &str, inner: &Command, servers: &Servers) -> Command {
    let mut command = Command::new("bash");
    command
        .args(["-c", &format!("trap '' {signal}; exec \"$0\" \"$@\"")])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env("REDLOCK_NODES", servers.urls().join(","));
    command
}

#[test]
fn sigpipe_has_its_default_in_the_command_whether_it_was_ignored_or_not() {
    let servers = Servers::start(3);
    for options in [&["--json"][..], &["--json", "--die-with-parent"]] {
        let inner = run(&servers, options, "dock-7", LOOP);
        let holder = Process::ready(ignoring("PIPE", &inner, &servers));
        holder.expect_event("started");
        let events = holder.events();
        let started = events.iter().find(|event| event["event"] == "started");
        let child = started.unwrap()["pid"].as_i64().unwrap();
        assert!(!has("SigIgn:", child, Signal::PIPE));
    }
}

#[test]
fn a_log_that_reaches_the_file_size_limit_does_not_end_a_run() {
    let servers = Servers::start(3);
    let directory = tempfile::tempdir().unwrap();
    let inner = run(&servers, &["--json"], "dock-7", "exit 7");
    let mut limited = Command::new("bash");
    limited
        .args(["-c", "ulimit -S -f 0; exec \"$0\" \"$@\" 2> log"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .current_dir(directory.path())
        .env("REDLOCK_NODES", servers.urls().join(","));
    end_of(limited).expect_code(7);
    expect_no_keys(&servers);
    // The command has the limit as it was.
    for is_ignored in [true, false] {
        let inner = run(&servers, &["--json"], "dock-7", LOOP);
        let signal = if is_ignored { "XFSZ" } else { "USR1" };
        let holder = Process::ready(ignoring(signal, &inner, &servers));
        holder.expect_event("started");
        let events = holder.events();
        let started = events.iter().find(|event| event["event"] == "started");
        let child = started.unwrap()["pid"].as_i64().unwrap();
        assert_eq!(has("SigIgn:", child, Signal::XFSZ), is_ignored);
    }
}

#[test]
fn a_stopped_command_gets_a_forwarded_signal_that_asks_it_to_end() {
    let servers = Servers::start(3);
    for (signal, name) in &FORWARDED[..4] {
        let script = format!("trap 'exit 7' {name}; echo ready; kill -STOP $$; {LOOP}");
        let holder = Process::ready(run(&servers, &["--json"], "dock-7", &script));
        holder.expect_event("started");
        let events = holder.events();
        let started = events.iter().find(|event| event["event"] == "started");
        let child = started.unwrap()["pid"].as_i64().unwrap();
        eventually("its stop", || {
            let stat = std::fs::read_to_string(format!("/proc/{child}/stat"));
            stat.unwrap().contains(") T ")
        });
        holder.signal(*signal);
        holder.end().expect_code(7);
    }
    expect_no_keys(&servers);
}

#[test]
fn a_parent_that_ignores_sigchld_does_not_hide_the_exit_code() {
    let servers = Servers::start(3);
    for (script, code) in [("exit 7", 7), ("kill -KILL $$", 128 + 9)] {
        let inner = run(&servers, &[], "dock-7", script);
        let ended = end_of(ignoring("CHLD", &inner, &servers));
        assert_eq!(ended.code, Some(code), "{script}: {}", ended.stderr);
    }
    expect_no_keys(&servers);
}

#[test]
fn a_run_is_not_suspended() {
    let servers = Servers::start(3);
    let mut holder = Process::start(run(&servers, &["--ttl=3s"], "dock-7", LOOP));
    holder.expect_line("ready");
    holder.signal(Signal::TSTP);
    eventually("a message", || holder.stderr().contains("not suspended"));
    assert!(holder.is_running());
    let held = end_of(run(&servers, &["--wait=4s"], "dock-7", "echo ran"));
    held.expect_code(75);
}

#[test]
fn a_command_that_suspends_itself_goes_on() {
    let servers = Servers::start(3);
    let ended = end_of(run(&servers, &[], "dock-7", "kill -TSTP $$; exit 6"));
    ended.expect_code(6);
    ended.expect_stderr("not suspended");
}

#[test]
fn as_the_first_process_each_command_ends_on_a_signal() {
    let servers = Servers::start(3);
    for server in servers.iter() {
        server.pause();
    }
    for words in [
        &["inspect", "--watch", "--node-timeout=1m", "dock-7"][..],
        &["wait", "--node-timeout=1m", "dock-7"],
        &["doctor", "--node-timeout=1m"],
        &["demo", "--seconds=60"],
    ] {
        for signal in [Signal::INT, Signal::TERM] {
            let mut process = Process::start(unshare(&FIRST, &redlock(words), &servers));
            let outer = process.pid().as_raw_pid();
            eventually(words.join(" "), || {
                let inner = std::fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"));
                let inner = inner.unwrap_or_default();
                let inner = inner.trim().parse().ok().and_then(Pid::from_raw);
                // Before it is `redlock`, it is not heeded.
                let _gone = inner.map(|inner| kill_process(inner, signal));
                !process.is_running()
            });
            let ended = process.end();
            if ended.is_without_namespaces() {
                return;
            }
            ended.expect_code(128 + signal.as_raw());
        }
    }
}
