//! `redlock run` when the lock cannot be kept.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use redlock_tests::{Server, Servers};
use rustix::process::Signal;
use serde_json::Value;
use tempfile::tempdir;

use crate::process::{Ended, Process, end_of, eventually, expect_no_keys, run, time};

/// A shell that writes the time into a file every few milliseconds, and heeds no SIGTERM.
fn heart(beats: &Path) -> String {
    let beats = beats.display();
    format!(
        "trap '' TERM; echo ready; for i in $(seq 4000); do date +%s.%N >> {beats}; sleep 0.01; done"
    )
}

fn beats_in(file: &Path) -> Vec<SystemTime> {
    let beats = fs::read_to_string(file).unwrap();
    let time = |beat: &str| {
        let (seconds, nanos) = beat.split_once('.').unwrap();
        let since = Duration::new(seconds.parse().unwrap(), nanos.parse().unwrap());
        SystemTime::UNIX_EPOCH + since
    };
    beats.lines().map(time).collect()
}

fn last_beat(file: &Path) -> SystemTime {
    *beats_in(file).last().unwrap()
}

fn extensions(holder: &Process) -> usize {
    let events = holder.events();
    events
        .iter()
        .filter(|event| event["event"] == "extended")
        .count()
}

fn longest_pause(beats: &[SystemTime]) -> Duration {
    let pauses = beats
        .windows(2)
        .filter_map(|pair| pair[1].duration_since(pair[0]).ok());
    pauses.max().unwrap_or_default()
}

fn named<'a>(events: &'a [Value], name: &str) -> &'a Value {
    let found = events.iter().find(|event| event["event"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {events:?}"))
}

/// The latest end of the validity that was told.
fn valid_until(events: &[Value]) -> SystemTime {
    let granted = events
        .iter()
        .filter(|event| event["event"] == "acquired" || event["event"] == "extended");
    granted
        .map(|event| time(event, "valid_until"))
        .max()
        .unwrap()
}

/// Deletes the key; on a busy machine the last nodes get it after the command has begun.
fn take_away(server: &Server) {
    eventually("a key to take away", || {
        server.query::<usize>(&["DEL", "dock-7"]).unwrap() == 1
    });
}

#[test]
fn a_command_is_gone_before_the_validity_ends_when_a_majority_hangs() {
    // A machine that stands still kills nothing; a test that shares one tries again.
    for attempt in 1.. {
        let directory = tempdir().unwrap();
        // One process ignores SIGTERM, and so does another that it has started.
        let hearts = ["beats", "more"].map(|name| directory.path().join(name));
        let script = format!("({}) & {}", heart(&hearts[1]), heart(&hearts[0]));
        let servers = Servers::start(5);
        let ended = with_a_majority_that_hangs(&servers, &script);
        let beats = hearts.map(|beats| beats_in(&beats));
        if attempt < 5 && beats.iter().any(|beats| longest_pause(beats) > MARGIN / 2) {
            continue;
        }
        let end = valid_until(&ended.events());
        for beats in beats {
            assert!(*beats.last().unwrap() < end, "{}", ended.stderr);
        }
        sigterm_came_before_sigkill_and_named_the_nodes(&ended, &servers[..3]);
        return;
    }
}

/// How long before the end of the validity SIGKILL is sent, with the TTL of that test.
const MARGIN: Duration = Duration::from_millis(296);

fn with_a_majority_that_hangs(servers: &Servers, script: &str) -> Ended {
    let holder = Process::start(run(servers, &["--ttl=6s", "--json"], "dock-7", script));
    holder.expect_event("extended");
    for server in &servers[..3] {
        server.pause();
    }
    let ended = holder.end();
    ended.expect_code(76);
    ended
}

fn sigterm_came_before_sigkill_and_named_the_nodes(ended: &Ended, hung: &[Server]) {
    let events = ended.events();
    let names: Vec<_> = events
        .iter()
        .filter_map(|event| event["event"].as_str())
        .collect();
    assert!(
        names.ends_with(&["ended", "released", "failed"]),
        "{names:?}"
    );
    let terminating = named(&events, "terminating");
    assert!(time(terminating, "time") < time(named(&events, "killing"), "time"));
    let why = terminating["message"].as_str().unwrap();
    for server in hung {
        let node = format!("127.0.0.1:{}: ", server.port());
        assert!(why.contains(&node), "{why}");
    }
}

#[test]
fn nodes_that_hang_are_told_of_also_while_the_first_extension_waits_for_them() {
    let servers = Servers::start(3);
    // The extension begins 0.98 s after the acquire, and waits beyond SIGTERM, 0.84 s later.
    let options = ["--ttl=3s", "--node-timeout=2s", "--json"];
    let script = "trap 'exit 0' TERM; echo ready; for i in $(seq 4000); do sleep 0.01; done";
    let holder = Process::ready(run(&servers, &options, "dock-7", script));
    servers.iter().for_each(Server::pause);
    let ended = holder.end();
    ended.expect_code(76);
    let events = ended.events();
    for name in ["terminating", "failed"] {
        let why = named(&events, name)["message"].as_str().unwrap();
        let words = "the lease was not extended: no quorum of nodes has answered within ";
        assert!(why.contains(words), "{why}");
    }
    ended.expect_not_in_stderr("paused");
}

#[test]
fn nodes_that_hung_are_told_of_at_the_end_also_if_they_have_come_back() {
    let servers = Servers::start(3);
    let options = ["--ttl=3s", "--node-timeout=50ms", "--json"];
    // It needs its time to end.
    let script = "trap 'until [ -e extended ]; do sleep 0.01; done; exit 0' TERM
        echo ready; for i in $(seq 4000); do sleep 0.01; done";
    let directory = tempdir().unwrap();
    let mut command = run(&servers, &options, "dock-7", script);
    command.current_dir(directory.path());
    let holder = Process::ready(command);
    servers.iter().for_each(Server::pause);
    holder.expect_event("terminating");
    let before = extensions(&holder);
    servers.iter().for_each(Server::resume);
    eventually("an extension", || extensions(&holder) > before);
    fs::write(directory.path().join("extended"), "").unwrap();
    let ended = holder.end();
    ended.expect_code(76);
    let events = ended.events();
    let why = named(&events, "failed")["message"].as_str().unwrap();
    assert!(
        why.contains(&format!("127.0.0.1:{}: ", servers[0].port())),
        "{why}"
    );
}

#[test]
fn a_command_that_heeds_sigterm_was_interrupted_all_the_same() {
    let servers = Servers::start(5);
    let script =
        "trap 'echo tidy; exit 0' TERM; echo ready; for i in $(seq 4000); do sleep 0.01; done";
    let holder = Process::ready(run(&servers, &["--ttl=6s", "-v"], "dock-7", script));
    for server in &servers[..3] {
        server.pause();
    }
    let ended = holder.end();
    ended.expect_code(76);
    assert_eq!(ended.stdout, "ready\ntidy\n");
    ended.expect_stderr("ended with code 0");
    ended.expect_stderr("lost the lock");
}

#[test]
fn a_lock_that_is_taken_away_ends_the_command_at_once() {
    let servers = Servers::start(5);
    let script = "trap 'exit 0' TERM; echo ready; for i in $(seq 4000); do sleep 0.01; done";
    // A third of the validity passes between a loss and its discovery.
    let options = ["--ttl=12s", "--kill-after=2s", "--json"];
    let holder = Process::ready(run(&servers, &options, "dock-7", script));
    for server in &servers[..3] {
        take_away(server);
    }
    let ended = holder.end();
    ended.expect_code(76);
    ended.expect_stderr("3 of 5 nodes no longer carry its token");
    // Long before a lease that cannot be extended would have ended so.
    let events = ended.events();
    let kill_at = time(named(&events, "terminating"), "kill_at");
    assert!(
        kill_at + Duration::from_secs(3) < valid_until(&events),
        "{}",
        ended.stderr
    );
    expect_no_keys(&servers);
}

#[test]
fn what_a_command_leaves_in_its_group_has_the_time_of_kill_after_too() {
    let (servers, directory) = (Servers::start(3), tempdir().unwrap());
    let tidy = directory.path().join("tidy");
    // The shell of the pipe ends at once.
    let script = format!(
        "sh -c \"trap 'sleep 0.3; echo done > {}; exit' TERM; echo ready; for i in \\$(seq 4000); do sleep 0.01; done\" | cat",
        tidy.display()
    );
    let options = ["--ttl=12s", "--kill-after=3s", "--json"];
    let holder = Process::ready(run(&servers, &options, "dock-7", &script));
    servers.iter().for_each(take_away);
    holder.end().expect_code(76);
    assert!(tidy.exists());
}

/// The outer one can kill the inner `redlock`, which is in its group, and not the command of the inner one.
#[cfg(target_os = "linux")]
#[test]
fn a_command_under_two_locks_ends_when_the_outer_lock_is_lost() {
    let servers = Servers::start(3);
    let redlock = env!("CARGO_BIN_EXE_redlock");
    let script = format!(
        "exec {redlock} run --ttl 2s inner -- sh -c \"trap '' TERM; echo \\$\\$; echo ready; for i in \\$(seq 9000); do sleep 0.01; done\""
    );
    let options = ["--ttl=2s", "--keep-env", "--json"];
    let holder = Process::ready(run(&servers, &options, "dock-7", &script));
    let pid = holder.stdout().lines().next().unwrap().to_owned();
    servers.iter().for_each(take_away);
    holder.end().expect_code(76);
    eventually("the end of the command", || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z "))
    });
}

/// Runs `redlock run` with this script, as the user `nobody`. In the script, `$AS_ROOT COMMAND` runs a command as root. Returns `None`
/// if the test does not run as root.
#[cfg(target_os = "linux")]
fn run_as_nobody(servers: &Servers, directory: &Path, script: &str) -> Option<Process> {
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use crate::process::redlock;

    if !rustix::process::geteuid().is_root() {
        println!("not tested: only root can make a program that becomes another user");
        return None;
    }
    let program = directory.join("as-root");
    let inner = redlock(&["run", "--ttl=2s", "--json", "dock-7", "--"]);
    // Where another user finds it. By another process: a file that is open for writing here cannot be run.
    let copy = directory.join("redlock");
    for (from, to) in [
        ("/usr/bin/setpriv".as_ref(), &program),
        (inner.get_program(), &copy),
    ] {
        let copied = Command::new("cp").arg(from).arg(to).status();
        assert!(copied.unwrap().success());
    }
    for (path, mode) in [(&*program, 0o4755), (directory, 0o755)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(copy)
        .args(inner.get_args())
        .args(["sh", "-c", script])
        .env("AS_ROOT", format!("{} --reuid=0", program.display()))
        .env("REDLOCK_NODES", servers.urls().join(","));
    Some(Process::ready(command))
}

/// Ends what has run on.
#[cfg(target_os = "linux")]
fn end_group(events: &[Value]) {
    let pid = named(events, "started")["pid"].as_i64().unwrap();
    let group = rustix::process::Pid::from_raw(pid.try_into().unwrap()).unwrap();
    let _gone = rustix::process::kill_process_group(group, Signal::KILL);
}

#[cfg(target_os = "linux")]
#[test]
fn a_command_that_has_become_another_user_is_told_to_run_on() {
    let (servers, directory) = (Servers::start(3), tempdir().unwrap());
    let script = "exec $AS_ROOT sh -c 'echo ready; exec sleep 4'";
    let Some(holder) = run_as_nobody(&servers, directory.path(), script) else {
        return;
    };
    servers.iter().for_each(take_away);
    eventually("a warning", || {
        holder.stderr().contains("has become another user")
    });
    let ended = holder.end();
    ended.expect_code(76);
    end_group(&ended.events());
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_that_a_command_has_started_as_another_user_is_told_to_run_on() {
    let (servers, directory) = (Servers::start(3), tempdir().unwrap());
    // The script itself ends by SIGTERM, or by SIGKILL.
    for trap in ["", "trap '' TERM;"] {
        // The end of the output is waited for, so it is not left to what runs on.
        let script = format!(
            "trap : USR1; {trap} $AS_ROOT sh -c 'echo $$; echo ready; exec sleep 60 >/dev/null 2>&1' & \
             i=0; while [ $i -lt 4000 ]; do i=$((i + 1)); sleep 0.01; done"
        );
        let Some(holder) = run_as_nobody(&servers, directory.path(), &script) else {
            return;
        };
        let pid = holder.stdout().lines().next().unwrap().to_owned();
        let told = format!("process {pid} of the command runs as another user, and gets no signal");
        holder.signal(Signal::USR1);
        eventually("a warning", || holder.stderr().contains(&told));
        servers.iter().for_each(take_away);
        let ended = holder.end();
        ended.expect_code(76);
        // Once for each of: the forwarded signal, and the loss.
        assert_eq!(ended.stderr.matches(&told).count(), 2, "{}", ended.stderr);
        ended.expect_stderr(&format!(
            "process {pid} of the command runs on without the lock"
        ));
        assert!(Path::new(&format!("/proc/{pid}")).exists());
        end_group(&ended.events());
    }
}

#[test]
fn a_lock_that_is_lost_during_a_short_command_is_noticed_at_its_end() {
    let servers = Servers::start(5);
    for (lost, code) in [(5, 76), (3, 76), (2, 7)] {
        let directory = tempdir().unwrap();
        let done = directory.path().join("done");
        // It ends long before the first extension.
        let script = format!(
            "echo ready; until [ -e {} ]; do sleep 0.01; done; exit 7",
            done.display()
        );
        let holder = Process::ready(run(&servers, &[], "dock-7", &script));
        for server in &servers[..lost] {
            take_away(server);
        }
        fs::write(&done, "").unwrap();
        let ended = holder.end();
        ended.expect_code(code);
        if code == 76 {
            ended.expect_stderr("the lock dock-7 is lost: ");
        } else {
            // A quorum had it to the end.
            assert_eq!(ended.stderr, "");
        }
        expect_no_keys(&servers);
    }
}

#[test]
fn sigkill_follows_sigterm_after_the_time_that_was_given() {
    let servers = Servers::start(3);
    let directory = tempdir().unwrap();
    let beats = directory.path().join("beats");
    let options = ["--ttl=3s", "--kill-after=200ms", "--json"];
    let holder = Process::ready(run(&servers, &options, "dock-7", &heart(&beats)));
    for server in servers.iter() {
        take_away(server);
    }
    let ended = holder.end();
    ended.expect_code(76);
    let events = ended.events();
    let terminated_at = time(named(&events, "terminating"), "time");
    let killed_at = time(named(&events, "killing"), "time");
    let given = killed_at.duration_since(terminated_at).unwrap();
    assert!(given >= Duration::from_millis(199), "{given:?}");
    assert!(last_beat(&beats) < valid_until(&events));
}

#[test]
fn a_lease_is_extended_for_as_long_as_the_command_runs() {
    let servers = Servers::start(5);
    let holder = Process::start(run(&servers, &["--ttl=6s", "--json"], "dock-7", "sleep 60"));
    servers[0].pause();
    servers[1].pause();
    // Far more often than a lease would last without it, and with two nodes less.
    eventually("extensions for longer than a TTL", || {
        extensions(&holder) >= 3
    });
    let held = end_of(run(&servers, &["--no-wait"], "dock-7", "echo ran"));
    held.expect_code(75);
}

#[test]
fn a_majority_that_comes_back_in_time_costs_nothing() {
    let servers = Servers::start(5);
    let options = ["--ttl=6s", "--node-timeout=100ms", "--json"];
    let script = "trap 'exit 9' TERM; echo ready; for i in $(seq 4000); do sleep 0.01; done";
    let holder = Process::start(run(&servers, &options, "dock-7", script));
    holder.expect_event("extended");
    for server in &servers[..3] {
        server.pause();
    }
    holder.expect_event("not-extended");
    for server in &servers[..3] {
        server.resume();
    }
    let before = extensions(&holder);
    eventually("another extension", || extensions(&holder) > before);
    holder.signal(Signal::TERM);
    let ended = holder.end();
    ended.expect_code(9);
    ended.expect_not_in_stderr("terminating");
    expect_no_keys(&servers);
}

#[test]
fn a_run_that_stood_still_past_the_validity_kills_its_command_at_once() {
    let servers = Servers::start(3);
    let directory = tempdir().unwrap();
    let beats = directory.path().join("beats");
    let options = ["--ttl=1s", "--json"];
    let holder = Process::start(run(&servers, &options, "dock-7", &heart(&beats)));
    holder.expect_event("started");
    holder.signal(Signal::STOP);
    eventually("the keys have expired", || servers.key_count() == 0);
    holder.signal(Signal::CONT);
    let ended = holder.end();
    ended.expect_code(76);
    // No time for SIGTERM.
    let events = ended.events();
    assert!(last_beat(&beats) < time(named(&events, "failed"), "time"));
    assert!(events.iter().any(|event| event["event"] == "killing"));
    assert!(!events.iter().any(|event| event["event"] == "terminating"));
    // It needs a moment to end.
    assert!(!events.iter().any(|event| event["event"] == "not-dead"));
}

#[test]
fn a_stderr_that_nobody_reads_does_not_keep_the_command_alive() {
    let servers = Servers::start(3);
    let directory = tempdir().unwrap();
    let beats = directory.path().join("beats");
    let inner = run(&servers, &["--ttl=3s", "--json"], "dock-7", &heart(&beats));
    // The pipe is full from the beginning: `yes` writes until nothing goes in any more.
    let (reader, writer) = std::io::pipe().unwrap();
    let mut filler = std::process::Command::new("yes")
        .stdout(writer.try_clone().unwrap())
        .spawn()
        .unwrap();
    eventually("a full pipe", || is_blocked_in_a_pipe(filler.id()));
    filler.kill().unwrap();
    filler.wait().unwrap();

    let mut command = std::process::Command::new(inner.get_program());
    command
        .args(inner.get_args())
        .env("REDLOCK_NODES", servers.urls().join(","));
    let mut holder = command
        .stderr(writer)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    drop(command);
    eventually("a beat", || beats.exists());
    for server in servers.iter() {
        server.pause();
    }
    let paused_at = SystemTime::now();
    let mut status = None;
    eventually("its end", || {
        status = holder.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(76));
    assert!(last_beat(&beats) < paused_at + Duration::from_secs(10));
    drop(reader);
}

fn is_blocked_in_a_pipe(pid: u32) -> bool {
    let sleeps =
        fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") S "));
    sleeps
        && fs::read_to_string(format!("/proc/{pid}/syscall"))
            .is_ok_and(|call| call.starts_with("1 "))
}
