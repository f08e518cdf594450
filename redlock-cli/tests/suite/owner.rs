//! Who holds a lock: the owner record beside its key.

use std::process::Command;
use std::time::{Duration, Instant};

use redlock_tests::{Server, Servers};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use tempfile::tempdir;

use crate::hostile::is_clean;
use crate::process::{Process, end_of, eventually, expect_no_keys, redlock, run};
use crate::server::user_of;
use crate::terminal::Terminal;

const KEY: &str = "dock-7";
const RECORD: &str = "redlock:owner:dock-7";

/// A command that holds the lock until it gets SIGTERM.
const HOLD: &str = "echo ready; exec sleep 60";

#[test]
fn the_owner_is_shown_while_it_holds_the_lock_and_its_record_ends_with_it() {
    let servers = Servers::start(3);
    for fenced in [&[][..], &["--fenced"]] {
        let options = [&["--owner=web-1:4711", "--ttl=3s"], fenced].concat();
        let holder = Process::ready(run(&servers, &options, KEY, HOLD));
        expect_owner(&servers, Some("web-1:4711"));
        let shown = inspect(&servers, &[]);
        let line = shown.lines().last().unwrap();
        assert!(line.contains(".. (web-1:4711) on "), "{shown}");
        // For longer than the TTL, and never for longer than the key of the lock.
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(100));
            for server in servers.iter() {
                let (record, lock) = left(server);
                assert!(record <= lock && record > 0, "{record} of {lock} ms");
            }
        }
        holder.signal(Signal::TERM);
        holder.end().expect_code(128 + 15);
        expect_no_record(&servers);
        expect_owner(&servers, None);
    }
}

#[test]
fn the_record_ends_with_the_lock_although_its_connection_was_closed() {
    let servers = Servers::start(3);
    let holder = Process::ready(run(&servers, &["--owner=web-1", "--ttl=50s"], KEY, HOLD));
    eventually("a record on each node", || servers.iter().all(has_record));
    for server in servers.iter() {
        let closed: usize = server.query(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
        assert!(closed > 1, "the connections of the lock and of the record");
    }
    holder.signal(Signal::TERM);
    holder.end().expect_code(128 + 15);
    expect_no_record(&servers);
}

#[test]
fn the_record_of_a_holder_that_was_killed_ends_with_its_lock() {
    let servers = Servers::start(3);
    let options = ["--ttl=2s", "--owner=web-1", "--die-with-parent"];
    let holder = Process::ready(run(&servers, &options, KEY, HOLD));
    expect_owner(&servers, Some("web-1"));
    kill_process(holder.pid(), Signal::KILL).unwrap();
    for server in servers.iter() {
        let (record, lock) = left(server);
        assert!(record <= lock, "{record} of {lock} ms");
    }
    expect_no_keys(&servers);
}

#[test]
fn the_default_names_the_host_and_the_process_and_an_empty_text_names_none() {
    let servers = Servers::start(3);
    let host = rustix::system::uname()
        .nodename()
        .to_str()
        .unwrap()
        .to_owned();
    let holder = Process::ready(run(&servers, &[], KEY, HOLD));
    let pid = holder.pid().as_raw_pid();
    expect_owner(&servers, Some(&format!("{host}:{pid}")));
    drop(holder);
    let holder = Process::ready(run(
        &servers,
        &["--owner="],
        KEY,
        "sleep 0.3; echo ready; exec sleep 60",
    ));
    assert!(servers.iter().all(|server| !has_record(server)));
    drop(holder);
    // "redlock lock" ends at once; its script does not.
    let directory = tempdir().unwrap();
    let file = directory.path().join("lease");
    let mut lock = redlock(&["lock", KEY, "--lease-file"]);
    lock.arg(&file)
        .env("REDLOCK_NODES", servers.urls().join(","));
    end_of(lock).expect_code(0);
    let pid = std::process::id();
    expect_owner(&servers, Some(&format!("{host}:{pid}")));
}

#[test]
fn the_owner_goes_with_the_lease_from_one_command_to_another() {
    let servers = Servers::start(3);
    let directory = tempdir().unwrap();
    let file = directory.path().join("lease");
    let with = |words: &[&str]| {
        let mut command = redlock(words);
        command.env("REDLOCK_NODES", servers.urls().join(","));
        command
    };
    let file = file.to_str().unwrap();
    let lock = with(&[
        "lock",
        "--owner=deploy of v7",
        "--ttl=5s",
        "--lease-file",
        file,
        KEY,
    ]);
    end_of(lock).expect_code(0);
    expect_owner(&servers, Some("deploy of v7"));
    for server in servers.iter() {
        let _: usize = server.query(&["DEL", RECORD]).unwrap();
    }
    end_of(with(&["extend", "--lease-file", file])).expect_code(0);
    expect_owner(&servers, Some("deploy of v7"));
    end_of(with(&["unlock", "--lease-file", file])).expect_code(0);
    expect_no_record(&servers);
    let lock = with(&["lock", "--owner=deploy", "--lease-file", file, KEY]);
    end_of(lock).expect_code(0);
    let adopt = [
        "run",
        "--owner=migration",
        "--adopt",
        file,
        "--",
        "sh",
        "-c",
        HOLD,
    ];
    let holder = Process::ready(with(&adopt));
    expect_owner(&servers, Some("migration"));
    holder.signal(Signal::TERM);
    holder.end();
    expect_no_record(&servers);
    let lock = with(&["lock", "--owner=deploy", "--lease-file", file, KEY]);
    end_of(lock).expect_code(0);
    expect_owner(&servers, Some("deploy"));
    let adopt = ["run", "--owner=", "--adopt", file, "--", "sh", "-c", HOLD];
    let holder = Process::ready(with(&adopt));
    expect_owner(&servers, None);
    holder.signal(Signal::TERM);
    holder.end();
}

#[test]
fn a_lock_that_is_kept_for_a_while_keeps_its_owner_and_is_said_to_be_released() {
    let servers = Servers::start(3);
    let options = ["--min-hold=50s", "--owner=web-1:4711"];
    end_of(run(&servers, &options, KEY, "exit 0")).expect_code(0);
    expect_owner(&servers, Some("web-1:4711"));
    let told = inspect(&servers, &[]);
    let words = " (web-1:4711; released, held by --min-hold) on 3 of 3 nodes";
    assert_eq!(told.matches("released").count(), 1, "{told}");
    assert!(told.contains(words), "{told}");
}

#[test]
fn a_lock_that_is_kept_for_a_while_is_said_to_be_released_also_without_an_owner() {
    let servers = Servers::start(3);
    let options = ["--min-hold=50s", "--owner="];
    let ended = end_of(run(&servers, &options, KEY, "echo $REDLOCK_TOKEN"));
    let token = &ended.stdout[..8];
    let words = format!("held by {token}.. (released, held by --min-hold) on ");
    // The last node may keep it a moment later.
    eventually("all nodes", || {
        let document: Value = serde_json::from_str(&inspect(&servers, &["--json"])).unwrap();
        let nodes = document["nodes"].as_array().unwrap();
        assert_eq!(document["released"], true);
        // One that was connected too late has no key.
        let mut held = nodes.iter().filter(|node| node["state"] == "held");
        held.all(|node| node["released"] == true)
    });
    let told = inspect(&servers, &[]);
    assert_eq!(told.matches("released").count(), 1, "{told}");
    assert!(told.contains(&words), "{told}");
    // There is no work that a break could disturb.
    let mut terminal =
        Terminal::start_shell(&servers, &format!("$REDLOCK break {KEY}; echo code $?"));
    terminal.expect("[y/N]");
    terminal.type_in("y\n");
    terminal.expect("code 0");
    let told = terminal.text();
    assert!(
        told.contains("which only --min-hold keeps? [y/N]"),
        "{told}"
    );
    assert!(!told.contains("at work"), "{told}");
}

#[test]
fn the_owner_of_a_lock_that_is_kept_stays_although_no_node_has_answered_the_release() {
    let servers = Servers::start(3);
    let options = [
        "--min-hold=50s",
        "--owner=web-1:4711",
        "--node-timeout=20ms",
    ];
    let holder = Process::ready(run(&servers, &options, KEY, HOLD));
    eventually("a record on each node", || servers.iter().all(has_record));
    // Longer than the release waits, and shorter than a connection stands without an answer.
    servers.iter().for_each(Server::pause);
    holder.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(150));
    servers.iter().for_each(Server::resume);
    holder.end().expect_code(128 + 15);
    expect_owner(&servers, Some("web-1:4711"));
}

#[test]
fn an_owner_is_shown_for_its_own_token_only_and_cannot_mislead_a_terminal() {
    let servers = Servers::start(3);
    let set = |token: &str, digest_of: &str, text: &str| {
        for server in servers.iter() {
            let digest = ["EVAL", "return redis.sha1hex(ARGV[1])", "0", digest_of];
            let digest: String = server.query(&digest).unwrap();
            let _: () = server.query(&["SET", KEY, token, "PX", "60000"]).unwrap();
            let record = format!("{digest}:{text}");
            let _: () = server.query(&["SET", RECORD, &record]).unwrap();
        }
    };
    set("the token of a", "the token of a", "a");
    expect_owner(&servers, Some("a"));
    // Left behind by the one before.
    set("the token of b", "the token of a", "a");
    expect_owner(&servers, None);
    let long = "x".repeat(100_000);
    for text in ["\x1b[2J\u{202e}gone", "a\nb: free", &long] {
        set("the token of c", "the token of c", text);
        for options in [&[][..], &["--json"]] {
            let shown = inspect(&servers, options);
            assert!(is_clean(&shown), "{shown:?}");
            assert!(shown.len() < 8_000, "{}", shown.len());
        }
    }
    // No text at all.
    for server in servers.iter() {
        let _: usize = server.query(&["DEL", RECORD]).unwrap();
        let _: usize = server.query(&["RPUSH", RECORD, "a"]).unwrap();
    }
    expect_owner(&servers, None);
}

#[test]
fn a_lock_does_not_depend_on_its_record() {
    let servers = Servers::start(3);
    let rules = "resetkeys ~dock-7 ~redlock:guard ~redlock:fence:* ~redlock:queue:* +@all";
    let urls: Vec<String> = servers
        .iter()
        .map(|server| user_of(server, "old", rules))
        .collect();
    let of_user = |words: &[&str]| {
        let mut command = redlock(words);
        command.env("REDLOCK_NODES", urls.join(","));
        command
    };
    for options in [&["-v"][..], &["-v", "--fenced"]] {
        let words = [
            &["run"],
            options,
            &[KEY, "--", "sh", "-c", "sleep 0.5; exit 7"],
        ]
        .concat();
        let ended = end_of(of_user(&words));
        ended.expect_code(7);
        ended.expect_stderr("tells no other client who holds the lock: ");
    }
    // It is no warning.
    let ended = end_of(of_user(&["run", KEY, "--", "sleep", "0.5"]));
    ended.expect_code(0);
    assert_eq!(ended.stderr, "");
    let holder = Process::ready(run(&servers, &["--owner=web-1"], KEY, HOLD));
    expect_owner(&servers, Some("web-1"));
    let ended = end_of(of_user(&["inspect", KEY]));
    ended.expect_code(0);
    ended.expect_stdout("dock-7: held by ");
    ended.expect_not_in_stdout("web-1");
    drop(holder);
    let ended = end_of(of_user(&[
        "doctor",
        "--seconds=1",
        "--ttl=1s",
        "--key",
        KEY,
    ]));
    ended.expect_stdout("~redlock:owner:*");
}

#[test]
fn a_node_that_hangs_delays_neither_the_command_nor_its_end() {
    let servers = Servers::start(3);
    let holder = Process::ready(run(&servers, &["--owner=web-1"], KEY, HOLD));
    eventually("a record on each node", || servers.iter().all(has_record));
    servers[2].pause();
    holder.signal(Signal::TERM);
    holder.end().expect_code(128 + 15);
    for server in &servers[..2] {
        assert!(!has_record(server));
    }
    servers[2].resume();
}

#[test]
fn a_node_that_hangs_makes_no_command_that_writes_the_record_longer_by_a_quarter() {
    let servers = Servers::start(5);
    let directory = tempdir().unwrap();
    let file = directory.path().join("lease");
    let file = file.to_str().unwrap();
    let timed = |mut command: Command| {
        command.env("REDLOCK_NODES", servers.urls().join(","));
        let start = Instant::now();
        end_of(command).expect_code(0);
        start.elapsed()
    };
    let mut key = 0;
    let mut all = || {
        key += 1;
        let kept = format!("report-{key}");
        let kept = ["run", "--no-wait", "--min-hold=60s", &kept, "--", "true"];
        let times = [
            timed(redlock(&kept)),
            timed(redlock(&["lock", "--lease-file", file, KEY])),
            timed(redlock(&["extend", "--lease-file", file])),
        ];
        // It waits for the node, which may have the key.
        timed(redlock(&["unlock", "--lease-file", file]));
        times
    };
    let (mut healthy, mut hung) = ([Duration::MAX; 3], [Duration::MAX; 3]);
    for _ in 0..20 {
        let mut least = |times: &mut [Duration; 3]| {
            for _ in 0..3 {
                let now = all();
                *times = std::array::from_fn(|at| times[at].min(now[at]));
            }
        };
        least(&mut healthy);
        servers[4].pause();
        least(&mut hung);
        servers[4].resume();
        if healthy
            .iter()
            .zip(&hung)
            .all(|(well, hung)| *hung * 4 <= *well * 5)
        {
            return;
        }
    }
    panic!("{hung:?} with a node that hangs, {healthy:?} without");
}

#[test]
fn a_node_that_hangs_while_the_command_runs_makes_its_end_little_later() {
    let servers = Servers::start(5);
    let end = |is_hung: bool| {
        let holder = Process::ready(run(&servers, &[], KEY, HOLD));
        eventually("a record on each node", || servers.iter().all(has_record));
        if is_hung {
            servers[4].pause();
        }
        let start = Instant::now();
        holder.signal(Signal::TERM);
        holder.end().expect_code(128 + 15);
        let took = start.elapsed();
        servers[4].resume();
        took
    };
    let (mut healthy, mut hung) = (Duration::MAX, Duration::MAX);
    for _ in 0..20 {
        healthy = healthy.min(end(false));
        hung = hung.min(end(true));
        if hung <= healthy + Duration::from_millis(150) {
            return;
        }
    }
    panic!("{hung:?} with a node that hangs, {healthy:?} without");
}

#[test]
fn the_acquire_is_told_with_the_beginning_of_the_token_and_a_wait_with_the_owner() {
    let servers = Servers::start(3);
    let script = "echo $REDLOCK_TOKEN; echo ready; exec sleep 60";
    let holder = Process::ready(run(&servers, &["-v", "--owner=web-1:4711"], KEY, script));
    let token = holder.stdout()[..8].to_owned();
    eventually("the acquire", || {
        holder
            .stderr()
            .contains(&format!("dock-7: acquired as {token}.., valid for "))
    });
    eventually("a record on each node", || servers.iter().all(has_record));
    let waiting = Process::start(run(&servers, &["--json"], KEY, "exit 0"));
    waiting.expect_event("holder");
    let events = waiting.events();
    let event = events
        .iter()
        .find(|event| event["event"] == "holder")
        .unwrap();
    assert_eq!(event["owner"], "web-1:4711");
    assert_eq!(event["token"], format!("{token}.."));
    holder.signal(Signal::TERM);
    holder.end();
    let ended = waiting.end();
    ended.expect_code(0);
    let events = ended.events();
    let acquired = events
        .iter()
        .find(|event| event["event"] == "acquired")
        .unwrap();
    assert!(acquired["token"].as_str().unwrap().ends_with(".."));
    assert!(acquired["owner"].as_str().unwrap().contains(':'));
}

#[test]
fn a_client_that_waits_tells_each_new_holder_once() {
    let servers = Servers::start(3);
    let hold = |token: &str| {
        for server in servers.iter() {
            let _: () = server.query(&["SET", KEY, token, "PX", "60000"]).unwrap();
        }
    };
    hold("aaaaaaaaaaaaaaaaaaaa");
    let waiting = Process::start(run(&servers, &["--json"], KEY, "exit 0"));
    let holders = || {
        let events = waiting.events();
        let holders = events.iter().filter(|event| event["event"] == "holder");
        let tokens = holders.map(|event| event["token"].as_str().unwrap_or_default().to_owned());
        tokens.collect::<Vec<_>>()
    };
    eventually("the first holder", || holders() == ["61616161.."]);
    hold("bbbbbbbbbbbbbbbbbbbb");
    eventually("the next holder", || {
        holders() == ["61616161..", "62626262.."]
    });
    waiting.signal(Signal::TERM);
    waiting.end().expect_code(128 + 15);
}

#[test]
fn a_text_that_is_too_long_or_a_url_is_64() {
    let servers = Servers::start(1);
    for text in ["redis://me:secret@host", &"a".repeat(129)] {
        let ended = end_of(run(
            &servers,
            &[&format!("--owner={text}")],
            KEY,
            "echo ran",
        ));
        ended.expect_code(64);
        assert_eq!(ended.stdout, "");
    }
}

/// Waits until a quorum of nodes show `owner`, or all of them none. "redlock lock" waits only a moment for the others.
pub(crate) fn expect_owner(servers: &[Server], owner: Option<&str>) {
    let needed = owner.map_or(servers.len(), |_| servers.len() / 2 + 1);
    eventually(format!("{owner:?}"), || {
        let document: Value = serde_json::from_str(&inspect(servers, &["--json"])).unwrap();
        let mut of_nodes: Vec<_> = document["nodes"].as_array().unwrap().iter().collect();
        of_nodes.retain(|node| node["owner"].as_str() == owner);
        document["owner"].as_str() == owner && of_nodes.len() >= needed
    });
}

fn inspect(servers: &[Server], options: &[&str]) -> String {
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let mut command: Command = redlock(&["inspect", KEY, "--node-timeout=3s"]);
    command.args(options).env("REDLOCK_NODES", urls.join(","));
    end_of(command).stdout
}

/// How long the record and the key of the lock live, at one moment.
fn left(server: &Server) -> (i64, i64) {
    // The key of the lock is read first: before Redis 7.2, time goes on within a script.
    let both =
        "local lock = redis.call('pttl', KEYS[2]) return {redis.call('pttl', KEYS[1]), lock}";
    server.query(&["EVAL", both, "2", RECORD, KEY]).unwrap()
}

fn has_record(server: &Server) -> bool {
    server.query::<usize>(&["EXISTS", RECORD]).unwrap() == 1
}

fn expect_no_record(servers: &[Server]) {
    eventually("no record", || !servers.iter().any(has_record));
}
