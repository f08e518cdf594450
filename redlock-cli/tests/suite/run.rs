//! `redlock run` while all is well, and when the lock cannot be had.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use redlock_tests::{Proxy, Server, Servers};
use tempfile::tempdir;
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use crate::process::{
    FIRST, Process, be_patient, end_of, eventually, expect_no_keys, redlock, run, unshare,
};
use crate::server::{guard, now_ms, set, unvouched, user_of};

#[test]
fn the_exit_code_is_the_command_s_and_no_key_is_left() {
    let servers = Servers::start(5);
    for (script, code) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("kill -TERM $$", 128 + 15),
        ("kill -KILL $$", 128 + 9),
    ] {
        let ended = end_of(run(&servers, &[], "dock-7", script));
        assert_eq!(ended.code, Some(code), "{script}: {}", ended.stderr);
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
        expect_no_keys(&servers);
    }
}

#[test]
fn a_job_with_a_min_hold_runs_on_one_host_only_although_the_others_start_it_later() {
    let servers = Servers::start(3);
    let plain = ["--no-wait", "--min-hold=50s", "--json"];
    for (key, options) in [
        ("report", &plain[..]),
        ("fenced report", &[&plain[..], &["--fenced"]].concat()),
    ] {
        let first = end_of(run(&servers, options, key, "echo ran"));
        assert_eq!((first.code, first.stdout.as_str()), (Some(0), "ran\n"));
        first.expect_stderr("stays held on ");
        for _ in 0..2 {
            let other = end_of(run(&servers, options, key, "echo ran"));
            assert_eq!((other.code, other.stdout.as_str()), (Some(75), ""));
        }
    }
    // Longer than a node knows to be without a vote after a loss of its data.
    let options = ["--fenced", "--min-hold=61s"];
    let long = end_of(run(&servers, &options, "report", ""));
    assert_eq!(long.code, Some(64));
}

#[test]
fn input_and_output_are_the_command_s_own() {
    let servers = Servers::start(1);
    let mut command = run(&servers, &[], "dock-7", "cat; echo error >&2");
    let directory = tempdir().unwrap();
    let input = directory.path().join("input");
    fs::write(&input, "from a file").unwrap();
    let output = command
        .stdin(fs::File::open(&input).unwrap())
        .output()
        .unwrap();
    assert_eq!(output.stdout, b"from a file");
    assert_eq!(output.stderr, b"error\n");
}

#[test]
fn two_at_once_run_one_after_the_other() {
    let servers = Servers::start(5);
    // A command that is not alone here does not find what it has written.
    let directory = tempdir().unwrap();
    let file = directory.path().join("owner");
    let script = format!(
        "for i in 1 2 3 4 5 6 7 8 9 10; do
             echo $$ > {0}; sleep 0.02; [ \"$(cat {0})\" = $$ ] || exit 1
         done",
        file.display()
    );
    let runs: Vec<_> = (0..4)
        .map(|_| Process::start(run(&servers, &["--ttl=10s"], "dock-7", &script)))
        .collect();
    for run in runs {
        let ended = run.end();
        ended.expect_code(0);
    }
    expect_no_keys(&servers);
}

#[test]
fn another_key_is_another_lock() {
    let servers = Servers::start(3);
    let holder = Process::start(run(&servers, &[], "dock-7", "echo ready; sleep 60"));
    holder.expect_line("ready");
    let ended = end_of(run(&servers, &["--no-wait"], "dock-8", "exit 3"));
    ended.expect_code(3);
}

#[test]
fn a_held_lock_is_75_or_what_one_likes() {
    let servers = Servers::start(5);
    let holder = Process::start(run(&servers, &[], "dock-7", "echo ready; sleep 60"));
    holder.expect_line("ready");
    for (options, code) in [
        (&["--no-wait"][..], 75),
        (&["--no-wait", "-E", "0"], 0),
        (&["--wait=100ms"], 75),
        (&["-w", "100ms", "--conflict-exit-code=9"], 9),
    ] {
        let start = Instant::now();
        let ended = end_of(run(&servers, options, "dock-7", "echo ran"));
        assert_eq!(ended.code, Some(code), "{options:?}: {}", ended.stderr);
        assert!(start.elapsed() < Duration::from_secs(10), "{options:?}");
        // With 0 it is no failure, so cron sends no mail.
        let told = "dock-7 is held by another client: ";
        assert_eq!(ended.stderr.contains(told), code != 0, "{options:?}");
        assert_eq!(ended.stdout, "", "the command was run without the lock");
    }
}

#[test]
fn a_run_waits_for_the_lock_and_says_so_when_asked() {
    let servers = Servers::start(5);
    let holder = Process::start(run(&servers, &[], "dock-7", "echo ready; sleep 60"));
    holder.expect_line("ready");
    let next = Process::start(run(&servers, &["-v"], "dock-7", "exit 4"));
    eventually("a waiting run", || {
        next.stderr()
            .contains("waiting: dock-7 is held by another client")
    });
    holder.signal(rustix::process::Signal::TERM);
    assert_eq!(holder.end().code, Some(128 + 15));
    let ended = next.end();
    ended.expect_code(4);
    for step in ["dock-7: acquired", "ended with code 4", "dock-7: released"] {
        assert!(ended.stderr.contains(step), "{step}: {}", ended.stderr);
    }
}

#[test]
fn a_command_that_cannot_be_run_is_126_or_127_and_the_lock_is_free() {
    let servers = Servers::start(5);
    for (command, code) in [
        ("/etc/passwd", 126),
        ("/no/such/command", 127),
        ("no-such-command", 127),
    ] {
        let mut start = redlock(&["run", "dock-7", "--", command]);
        start.env("REDLOCK_NODES", servers.urls().join(","));
        let ended = end_of(start);
        ended.expect_code(code);
        ended.expect_stderr(&format!("cannot run {command}"));
        expect_no_keys(&servers);
    }
}

/// The login and the question for the identity take most of the first round.
#[test]
fn one_try_has_a_whole_node_timeout_after_the_connection_is_made() {
    const ONE_WAY: Duration = Duration::from_millis(50);

    let servers = Servers::start(3);
    let (urls, far) = mpsc::channel();
    thread::scope(|scope| {
        let (end, ended) = oneshot::channel::<()>();
        let servers = &servers;
        scope.spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let mut proxies = Vec::new();
                for server in servers.iter() {
                    let proxy = Proxy::start(server, ONE_WAY).await;
                    urls.send(proxy.url()).unwrap();
                    proxies.push(proxy);
                }
                drop(urls);
                let _ended = ended.await;
            });
        });
        let urls: Vec<_> = far.iter().collect();
        for _ in 0..3 {
            let options = ["--no-wait", "--ttl=5s", "--node-timeout=250ms"];
            let mut command = redlock(&["run"]);
            command.args(options).args(["dock-7", "--", "true"]);
            command.env("REDLOCK_NODES", urls.join(","));
            end_of(command).expect_code(0);
        }
        drop(end);
    });
}

#[test]
fn no_quorum_of_nodes_is_69_in_bounded_time_and_names_them() {
    let servers = Servers::start(5);
    for server in &servers[..3] {
        server.pause();
    }
    for options in [&["--no-wait"][..], &["--wait=500ms"], &["--ttl=1s"]] {
        let start = Instant::now();
        let ended = end_of(run(&servers, options, "dock-7", "echo ran"));
        assert_eq!(ended.code, Some(69), "{options:?}: {}", ended.stderr);
        assert!(start.elapsed() < Duration::from_secs(10), "{options:?}");
        ended.expect_stderr("no quorum for dock-7");
        for server in &servers[..3] {
            let node = format!("127.0.0.1:{}: ", server.port());
            assert!(ended.stderr.contains(&node), "{node}: {}", ended.stderr);
        }
        assert_eq!(ended.stdout, "", "the command was run without the lock");
    }
    for server in &servers[..3] {
        server.resume();
    }
    expect_no_keys(&servers);
}

#[test]
fn without_a_limit_a_run_gives_up_one_ttl_after_too_few_nodes_have_begun_to_answer() {
    let servers = Servers::start(1);
    let refusing = "redis://127.0.0.1:1,redis://127.0.0.1:2";
    // The machine may be busy. It is never faster than the limit that is looked for.
    let mut fastest = Duration::MAX;
    for _ in 0..5 {
        let mut command = run(&servers, &["--ttl=100ms"], "dock-7", "echo ran");
        command.env("REDLOCK_NODES", format!("{},{refusing}", servers[0].url()));
        let start = Instant::now();
        let ended = end_of(command);
        fastest = fastest.min(start.elapsed());
        ended.expect_code(69);
        ended.expect_stderr("no quorum for dock-7");
        if fastest < Duration::from_secs(1) {
            return;
        }
    }
    panic!("{fastest:?}");
}

#[test]
fn a_node_that_fails_at_a_release_is_told_with_its_error() {
    let servers = Servers::start(3);
    for min_hold in [None, Some("--min-hold=50s")] {
        let options: Vec<_> = ["-v"].into_iter().chain(min_hold).collect();
        let holder = Process::ready(run(
            &servers,
            &options,
            "dock-7",
            "echo ready; exec sleep 60",
        ));
        for server in &servers[1..] {
            set(server, "min-replicas-to-write", "1");
        }
        holder.signal(rustix::process::Signal::TERM);
        let ended = holder.end();
        ended.expect_code(128 + 15);
        ended.expect_not_in_stderr("no answer yet");
        let lines: Vec<_> = ended
            .stderr
            .lines()
            .filter(|line| line.contains("failed on 2 ("))
            .collect();
        // With --min-hold, a warning too.
        let count = 1 + usize::from(min_hold.is_some());
        assert_eq!(lines.len(), count, "{}", ended.stderr);
        for server in &servers[1..] {
            let why = format!("127.0.0.1:{}: ", server.port());
            assert!(lines.iter().all(|line| line.contains(&why)), "{lines:?}");
            set(server, "min-replicas-to-write", "0");
        }
        assert!(
            lines.iter().all(|line| line.contains("NOREPLICAS")),
            "{lines:?}"
        );
        for server in servers.iter() {
            let _: () = server.query(&["DEL", "dock-7"]).unwrap();
        }
    }
}

#[test]
fn a_minority_that_hangs_or_is_dead_costs_nothing() {
    let mut servers = Servers::start(5);
    servers[0].pause();
    servers[1].kill();
    // A round that waits for them would take as long as a node timeout.
    let options = ["--ttl=60s", "--node-timeout=20s"];
    let start = Instant::now();
    let ended = end_of(run(&servers, &options, "dock-7", "exit 5"));
    ended.expect_code(5);
    assert!(start.elapsed() < Duration::from_secs(10));
    servers[0].resume();
    expect_no_keys(&servers[..1]);
    expect_no_keys(&servers[2..]);
}

#[test]
fn one_node_that_hangs_does_not_make_a_short_run_longer() {
    let servers = Servers::start(5);
    let seconds = || {
        let start = Instant::now();
        end_of(run(&servers, &[], "dock-7", "exit 0")).expect_code(0);
        start.elapsed()
    };
    // The shortest of many: a busy machine makes some runs longer, with and without a node that hangs.
    let (mut healthy, mut hung) = (Duration::MAX, Duration::MAX);
    for _ in 0..20 {
        for _ in 0..4 {
            healthy = healthy.min(seconds());
        }
        servers[4].pause();
        for _ in 0..4 {
            hung = hung.min(seconds());
        }
        servers[4].resume();
        if hung * 5 <= healthy * 6 {
            return;
        }
    }
    panic!("{hung:?} with a node that hangs, {healthy:?} without");
}

#[test]
fn a_run_that_does_not_wait_gives_distant_nodes_time_for_the_login() {
    let servers = Servers::start(3);
    // Three round trips to the lock are longer than a node timeout, and each of them is shorter.
    let distant: Vec<Distant> = servers
        .iter()
        .map(|server| Distant::start(server.port(), Duration::from_millis(150)))
        .collect();
    let urls: Vec<String> = distant.iter().map(Distant::url).collect();
    let mut command = run(&servers, &["--ttl=10s", "--no-wait"], "dock-7", "exit 3");
    command.env("REDLOCK_NODES", urls.join(","));
    end_of(command).expect_code(3);
}

#[test]
fn what_to_do_about_nodes_without_a_vote_fits_the_reason() {
    let servers = Servers::start(3);
    let down = [
        "redis://127.0.0.1:1",
        "redis://127.0.0.1:2",
        "redis://[::1]:3",
    ]
    .map(str::to_owned);
    let wrong: Vec<String> = servers
        .iter()
        .map(|server| server.url().replace("redis://", "redis://nobody:secret@"))
        .collect();
    let rules = "+@all -time";
    let forbidden: Vec<String> = servers
        .iter()
        .map(|server| user_of(server, "app", rules))
        .collect();
    for (urls, told) in [
        (&down[..], "check whether these nodes are up"),
        (&wrong, "check the users and the passwords"),
        (
            &forbidden,
            "redlock doctor --key KEY says what each node needs for this key",
        ),
    ] {
        let mut command = run(&servers, &["--no-wait"], "k", "echo ran");
        command.env("REDLOCK_NODES", urls.join(","));
        let ended = end_of(command);
        ended.expect_code(69);
        ended.expect_stderr(told);
        // Named once, although it is a part of many words.
        assert_eq!(ended.stderr.matches(" k: ").count(), 1, "{}", ended.stderr);
    }
    let mut command = run(&servers, &["--no-wait"], "k", "echo ran");
    command.env("REDLOCK_NODES", down.join(","));
    end_of(command).expect_stderr("[::1]:3: ");
}

#[test]
fn a_first_fenced_acquire_without_a_quorum_names_the_nodes_that_are_away_and_not_a_clock_as_the_cause()
 {
    let servers = Servers::start(1);
    let urls = [
        "redis://127.0.0.1:1",
        "redis://127.0.0.1:2",
        &servers.urls()[0],
    ];
    let mut command = run(&servers, &["--no-wait", "--fenced"], "k", "echo ran");
    command.env("REDLOCK_NODES", urls.join(","));
    let ended = end_of(command);
    ended.expect_code(69);
    ended.expect_stderr("its clock is ahead of the nodes' time that this client knows so far");
    ended.expect_stderr("check whether the other nodes are up");
}

#[test]
fn nodes_that_have_answered_are_not_said_to_be_down_and_neither_is_it_for_a_fault_of_this_host() {
    let servers = Servers::start(3);
    let of_database = servers.urls().join("/99,") + "/99";
    let mut command = run(&servers, &["--no-wait"], "k", "echo ran");
    command.env("REDLOCK_NODES", of_database);
    let ended = end_of(command);
    ended.expect_code(69);
    ended.expect_stderr("DB index is out of range");
    ended.expect_not_in_stderr("check whether these nodes are up");

    let inner = run(&servers, &["--no-wait"], "k", "echo ran");
    let mut limited = Command::new("bash");
    limited
        // Enough for the runtime, and not for a connection to a majority.
        .args(["-c", "ulimit -n 9; exec \"$0\" \"$@\""])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env("REDLOCK_NODES", servers.urls().join(","));
    let ended = end_of(limited);
    ended.expect_code(69);
    ended.expect_stderr("Too many open files");
    ended.expect_stderr("raise the limit of open files of this process (ulimit -n)");
    ended.expect_not_in_stderr("check whether these nodes are up");

    let mut command = run(&servers, &["--no-wait"], "k", "echo ran");
    command.env("REDLOCK_NODES", "redis+unix:///nowhere/redis.sock");
    let ended = end_of(command);
    ended.expect_code(69);
    ended.expect_stderr("the socket does not exist");
    ended.expect_not_in_stderr("refused");
}

#[test]
fn what_to_do_about_a_fence_record_that_no_client_has_written_is_to_inspect_the_lock() {
    let servers = Servers::start(3);
    servers
        .iter()
        .for_each(|server| guard(server, 0, "60000:250:60000"));
    for write in [&["LPUSH"][..], &["SET"]] {
        for server in servers.iter() {
            let _: i64 = server.query(&["DEL", "redlock:fence:k"]).unwrap();
            let write = [write, &["redlock:fence:k", "none"]].concat();
            drop(server.query::<redis::Value>(&write).unwrap());
        }
        // The server names a script by its hash, which looks like a token.
        let mut command = run(&servers, &["--fenced", "--no-wait"], "k", "echo ran");
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(69), "{told}");
        assert!(told.contains("redlock inspect shows the node"), "{told}");
        let mut inspect = redlock(&["inspect", "k"]);
        inspect.env("REDLOCK_NODES", servers.urls().join(","));
        end_of(inspect).expect_stdout("the fence record cannot be read");
    }
}

/// The clocks of all nodes were set back by a minute since the last holder, which is permitted.
#[test]
fn what_to_do_while_the_clocks_are_behind_the_last_fence_is_to_wait() {
    let servers = Servers::start(3);
    for server in servers.iter() {
        guard(server, 0, "60000:250:60000");
        let ahead = (now_ms(server) + 60_000) * 1_000;
        let _: () = server
            .query(&["SET", "redlock:fence:k", &format!("{ahead}:0")])
            .unwrap();
    }
    let ended = end_of(run(&servers, &["--fenced", "--no-wait"], "k", "echo ran"));
    assert_eq!(ended.code, Some(69), "{}", ended.stderr);
    let words = "wait until they have passed the last fence";
    assert!(ended.stderr.contains(words), "{}", ended.stderr);
}

#[test]
fn a_wrong_password_ends_the_wait_at_once() {
    let servers = Servers::start(3);
    let wrong = |server: &Server| server.url().replace("redis://", "redis://nobody:secret@");
    let urls: Vec<String> = servers.iter().map(wrong).collect();
    let mut command = run(&servers, &["--ttl=1h"], "dock-7", "echo ran");
    command.env("REDLOCK_NODES", urls.join(","));
    // Within the time that tests wait for anything, not within a TTL.
    end_of(command).expect_code(69);
}

#[test]
fn the_urls_of_the_nodes_stay_with_redlock_unless_the_command_is_to_have_them() {
    let servers = Servers::start(3);
    let script = "echo \"${REDLOCK_NODES-none}\"";
    let ended = end_of(run(&servers, &[], "dock-7", script));
    assert_eq!(ended.stdout.trim(), "none");
    let ended = end_of(run(&servers, &["--keep-env"], "dock-7", script));
    assert_eq!(ended.stdout.trim(), servers.urls().join(","));
}

#[test]
fn a_command_of_redlock_under_a_run_that_has_no_nodes_says_what_run_passes_on() {
    let servers = Servers::start(3);
    let script = format!("{} inspect dock-8", env!("CARGO_BIN_EXE_redlock"));
    let told =
        "redlock run passes no --node on to its command, and REDLOCK_NODES only with --keep-env";
    let ended = end_of(run(&servers, &[], "dock-7", &script));
    ended.expect_code(64);
    ended.expect_stderr(told);
    end_of(run(&servers, &["--keep-env"], "dock-7", &script)).expect_code(0);
    // It was never set.
    let nodes = servers.urls().join(",");
    for options in [
        &["--node", nodes.as_str()][..],
        &["--node", &nodes, "--keep-env"],
    ] {
        let mut command = run(&servers, options, "dock-7", &script);
        command.env_remove("REDLOCK_NODES");
        let ended = end_of(command);
        ended.expect_code(64);
        ended.expect_stderr(told);
        ended.expect_not_in_stderr("removes");
    }
}

#[test]
fn a_command_is_not_tied_to_its_parent_on_a_system_without_proc() {
    let servers = Servers::start(3);
    let inner = run(&servers, &["--die-with-parent"], "dock-7", "echo ran");
    let mut hidden = Command::new("sh");
    hidden
        .args(["-c", "mount -t tmpfs none /proc && exec \"$0\" \"$@\""])
        .arg(inner.get_program())
        .args(inner.get_args());
    let ended = end_of(unshare(&["--mount"], &hidden, &servers));
    if ended.is_without_namespaces() {
        return;
    }
    ended.expect_code(64);
    ended.expect_stderr("--die-with-parent needs /proc of the system: No such file");
    assert_eq!(ended.stdout, "");
}

#[test]
fn as_the_first_process_it_reaps_orphans() {
    // Twenty processes whose parent has ended before them.
    let script = "for i in $(seq 20); do (sleep 0.05 & ); done
        sleep 0.3";
    expect_no_zombies(script);
}

#[test]
fn as_the_first_process_it_reaps_orphans_also_after_one_that_a_real_time_signal_has_ended() {
    let script = "for signal in 34 64; do
            orphan=$(sh -c 'sleep 60 >/dev/null & echo $!')
            kill -$signal $orphan
            until gone $orphan; do sleep 0.01; done
        done
        for i in $(seq 20); do (sleep 0.05 & ); done
        sleep 0.3";
    expect_no_zombies(script);
}

/// Runs `script` under a `redlock` that is the first process, and then waits until there is no zombie.
fn expect_no_zombies(script: &str) {
    let servers = Servers::start(3);
    let script = format!(
        "zombies() {{ cat /proc/[0-9]*/stat | grep -c ') Z ' ; }}
        gone() {{ ! grep -q -v ') Z ' /proc/$1/stat 2>/dev/null ; }}
        {script}
        for i in $(seq 500); do [ \"$(zombies)\" = 0 ] && exit 5; sleep 0.02; done; exit 6"
    );
    let inner = run(&servers, &[], "dock-7", &script);
    let ended = end_of(unshare(&FIRST, &inner, &servers));
    if ended.is_without_namespaces() {
        return;
    }
    ended.expect_code(5);
}

/// A way to a server on which every message takes some time.
pub(crate) struct Distant {
    port: u16,
}

impl Distant {
    pub(crate) fn start(server: u16, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let (from, to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                thread::spawn(move || carry(from, to, delay));
                thread::spawn(move || carry(server, client, delay));
            }
        });
        Self { port }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

/// Carries bytes until an end is closed.
fn carry(mut from: TcpStream, mut to: TcpStream, delay: Duration) {
    let mut buffer = [0; 65_536];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        thread::sleep(delay);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    // Either may be closed already.
    let _closed = to.shutdown(Shutdown::Both);
}

#[test]
fn key_and_token_are_in_the_command_s_environment_and_the_token_nowhere_else() {
    let servers = Servers::start(5);
    let options = ["--ttl=3s", "--json", "-v"];
    let script = "echo \"$REDLOCK_KEY $REDLOCK_TOKEN\"; echo ready; exec sleep 60";
    let holder = Process::ready(run(&servers, &options, "dock 7", script));

    let stdout = holder.stdout();
    let (key, token) = stdout.lines().next().unwrap().rsplit_once(' ').unwrap();
    assert_eq!(key, "dock 7");
    eventually("the acquire has reached this server too", || {
        servers[0].query::<usize>(&["EXISTS", "dock 7"]).unwrap() == 1
    });
    let bytes: Vec<u8> = servers[0].query(&["GET", "dock 7"]).unwrap();
    let on_the_node: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(token, on_the_node);

    for process in fs::read_dir("/proc").unwrap() {
        // Processes end while they are looked at.
        let arguments = fs::read(process.unwrap().path().join("cmdline")).unwrap_or_default();
        assert!(
            !contains(&arguments, token.as_bytes()),
            "the token is in an argument list"
        );
        assert!(
            !contains(&arguments, &bytes),
            "the token is in an argument list"
        );
    }
    holder.expect_event("extended");
    let told = holder.stderr();
    // As much as `inspect` shows, which tells tokens apart.
    assert!(
        told.contains(&format!("acquired as {}..", &token[..8])),
        "{told}"
    );
    assert!(!told.contains(&token[..9]), "the token was told: {told}");
}

#[test]
fn a_fenced_command_finds_its_fence_in_the_environment_and_the_next_one_a_higher_one() {
    let servers = Servers::start(3);
    let mut fences = Vec::new();
    for _ in 0..3 {
        let options = ["--fenced", "--no-wait", "--json"];
        let ended = end_of(run(&servers, &options, "dock-7", "echo \"$REDLOCK_FENCE\""));
        ended.expect_code(0);
        let fence: u64 = ended.stdout.trim().parse().unwrap();
        assert_eq!(ended.events()[0]["fence"], fence, "{}", ended.stderr);
        fences.push(fence);
        expect_no_keys(&servers);
    }
    assert!(fences.is_sorted_by(|earlier, later| earlier < later));

    // Other rules than those that stand on the nodes.
    for other in ["--window=500ms", "--max-ttl=2m"] {
        let options = ["--fenced", "--no-wait", other];
        let ended = end_of(run(&servers, &options, "dock-7", "echo ran"));
        ended.expect_code(69);
        ended.expect_stderr("other rules");
        ended.expect_stderr(
            "give --max-ttl, --window and --step-back the values of the guard records",
        );
        assert_eq!(ended.stdout, "");
    }

    let mut plain = run(&servers, &[], "dock-7", "echo \"${REDLOCK_FENCE-none}\"");
    plain.env("REDLOCK_FENCE", "1");
    assert_eq!(end_of(plain).stdout.trim(), "none");
}

#[test]
fn nodes_that_may_have_forgotten_locks_are_waited_for_and_named() {
    let servers = Servers::start(3);
    for server in servers.iter() {
        server.disown();
    }
    let ended = end_of(run(&servers, &["--no-wait"], "dock-7", "echo ran"));
    ended.expect_code(69);
    ended.expect_stderr("restarted ");
    assert_eq!(ended.stdout, "");

    let options = ["--no-wait", "--no-restart-guard"];
    let ended = end_of(run(&servers, &options, "dock-7", "exit 6"));
    ended.expect_code(6);

    // For 2.4 s; for nodes that are down a run gives up after the TTL.
    let mut options = vec!["--fenced", "--ttl=1s", "--max-ttl=1s", "--window=100ms"];
    options.push("--step-back=1s");
    let ended = end_of(run(&servers, &options, "dock-7", "exit 7"));
    ended.expect_code(7);
}

#[test]
fn nodes_that_could_evict_locks_are_waited_for_once_they_do_not() {
    let servers = Servers::start(3);
    for server in servers.iter() {
        guard(server, 0, "8000:250:1000");
        set(server, "maxmemory-policy", "volatile-lru");
    }
    let options = [
        "--fenced",
        "--ttl=3s",
        "--max-ttl=8s",
        "--step-back=1s",
        "--json",
    ];
    let waiting = Process::start(run(&servers, &options, "dock-7", "exit 7"));
    waiting.expect_event("waiting");
    for server in servers.iter() {
        set(server, "maxmemory-policy", "noeviction");
    }
    // For 8 s, which is longer than the TTL.
    let ended = waiting.end();
    ended.expect_code(7);
}

#[test]
fn a_node_that_may_evict_is_warned_of() {
    let servers = Servers::start(1);
    let set = ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"];
    assert_eq!(servers[0].query::<String>(&set).unwrap(), "OK");
    // A client that sees it deletes its guard record, so it is as young as it is.
    let ended = end_of(run(&servers, &["--no-restart-guard"], "dock-7", "exit 0"));
    ended.expect_code(0);
    let node = format!("warning: 127.0.0.1:{}: may evict", servers[0].port());
    ended.expect_stderr(&node);
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn a_stderr_that_nobody_reads_delays_neither_the_command_nor_its_lease() {
    let servers = Servers::start(3);
    let (mut stderr, _unread) = UnixStream::pair().unwrap();
    stderr.set_nonblocking(true).unwrap();
    while stderr.write(&[b'.'; 64]).is_ok() {}
    stderr.set_nonblocking(false).unwrap();
    let options = ["--json", "--verbose", "--ttl=600ms"];
    let mut command = run(&servers, &options, "dock-7", "sleep 2; exit 3");
    command.stderr(OwnedFd::from(stderr));
    let mut child = command.spawn().unwrap();
    let mut status = None;
    eventually("the end of the command", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    // Without an extension, it would have been ended.
    assert_eq!(status.unwrap().code(), Some(3));
    expect_no_keys(&servers);
}

#[test]
fn the_lines_of_json_have_the_times_of_the_lock_in_the_names_of_the_metrics() {
    let servers = Servers::start(3);
    let end = end_of(run(&servers, &["--json"], "dock-7", "sleep 0.3"));
    let events: Vec<serde_json::Value> = end
        .stderr
        .lines()
        .map(|line| line.parse().unwrap())
        .collect();
    let event = |name: &str| events.iter().find(|event| event["event"] == name).unwrap();
    let (acquired, released) = (event("acquired"), event("released"));
    let seconds = |event: &serde_json::Value, name: &str| event[name].as_f64().unwrap();
    assert!(
        seconds(acquired, "redlock.client.acquire.duration") > 0.0,
        "{acquired}"
    );
    assert!(
        acquired["redlock.client.acquire.tries"].as_u64() >= Some(1),
        "{acquired}"
    );
    assert!(
        seconds(released, "redlock.client.hold.duration") >= 0.3,
        "{released}"
    );
    assert!(acquired["valid_until"].is_string() && released["unanswered"].is_u64());
    // As `inspect --json` has it, also for a key that is no text.
    assert!(
        events
            .iter()
            .all(|event| event["key_hex"] == "646f636b2d37")
    );
}

#[test]
fn the_time_of_an_acquire_has_all_its_waits_also_those_for_nodes_without_a_vote() {
    let servers = unvouched(3);
    let started_at = Instant::now();
    let end = end_of(run(&servers, &["--json", "--ttl=3s"], "dock-7", "exit 0"));
    let took = started_at.elapsed().as_secs_f64();
    let acquired = end
        .stderr
        .lines()
        .find(|line| line.contains("\"acquired\""));
    let acquired: serde_json::Value = acquired.unwrap().parse().unwrap();
    let told = acquired["redlock.client.acquire.duration"]
        .as_f64()
        .unwrap();
    // Longer than one of its attempts, and without the start of the process and its end.
    assert!(
        took > 2.5 && told > took - 0.5 && told <= took,
        "{told} of {took} s"
    );
}

#[test]
fn init_is_not_the_advice_for_new_servers_if_one_of_them_refuses_the_login() {
    let servers = unvouched(3);
    for (user, init) in [("", true), ("unknown:wrong@", false)] {
        let mut urls = servers.urls();
        urls[0] = urls[0].replace("redis://", &format!("redis://{user}"));
        let options = ["--no-wait", "--ttl=1h"];
        let mut command = run(&servers, &options, "dock-7", "echo ran");
        command.env("REDLOCK_NODES", urls.join(","));
        let ended = end_of(command);
        ended.expect_code(69);
        let told = |text| ended.stderr.contains(text);
        let advice = [
            "if these servers are new, run `redlock init`",
            "check the users and the passwords",
        ];
        assert_eq!(advice.map(told), [init, !init], "{}", ended.stderr);
    }
}

#[test]
fn a_wait_that_a_refused_login_ends_is_not_told_to_be_over() {
    let servers = Servers::start(3);
    let urls = servers.urls().join(",");
    let urls = urls.replace("redis://", "redis://unknown:wrong@");
    let mut command = run(&servers, &["--wait=20s"], "dock-7", "echo ran");
    command.env("REDLOCK_NODES", urls);
    let ended = end_of(command);
    ended.expect_code(69);
    ended.expect_stderr("check the users and the passwords");
    ended.expect_not_in_stderr("gave up");
}

#[test]
fn a_ttl_or_min_hold_that_the_guard_records_do_not_allow_ends_the_wait_at_once() {
    let servers = Servers::start(3);
    let mut init = redlock(&["init"]);
    be_patient(&mut init, &[]);
    init.env("REDLOCK_NODES", servers.urls().join(","));
    end_of(init).expect_code(0);
    for (option, advice) in [
        (
            "--min-hold=10h",
            "--min-hold counts as a TTL for the nodes: use a shorter one",
        ),
        (
            "--ttl=10h",
            "use a shorter --ttl, or give the nodes (redlock init --repair --max-ttl) and all fenced clients a longer --max-ttl",
        ),
    ] {
        let ended = end_of(run(&servers, &[option], "dock-7", "echo ran"));
        ended.expect_code(69);
        ended.expect_stderr(advice);
        ended.expect_not_in_stderr("waiting");
    }
}
