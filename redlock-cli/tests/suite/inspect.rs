//! `redlock inspect` on locks in each state that a fleet can leave them in.

use std::process::Stdio;
use std::thread;
use std::time::Duration;

use redlock_tests::{Server, Servers};
use serde_json::Value;

use crate::process::{Ended, Process, be_patient, end_of, eventually, redlock, run};
use crate::server::{
    field, guard, guard_of_another_run, name, now_ms, record, replicate, set, unvouched, user_of,
    write_guard,
};

#[test]
fn a_lock_that_nobody_holds_is_free() {
    let servers = Servers::start(5);
    let ended = inspect(&servers.urls(), &[]);
    ended.expect_code(0);
    assert_eq!(last_line(&ended), "dock-7: free");
    assert_eq!(
        ended
            .stdout
            .lines()
            .filter(|line| line.ends_with("  free"))
            .count(),
        5
    );
}

#[test]
fn a_holder_is_shown_by_the_prefix_of_its_token_and_never_by_the_whole_of_it() {
    let servers = Servers::start(5);
    let holder = Process::start(run(
        &servers,
        &[],
        "dock-7",
        "echo $REDLOCK_TOKEN; echo ready; sleep 60",
    ));
    holder.expect_line("ready");
    let stdout = holder.stdout();
    let token = stdout.lines().next().unwrap();
    for options in [&[][..], &["--json"]] {
        let ended = inspect(&servers.urls(), options);
        ended.expect_code(0);
        ended.expect_stdout(&format!("{}..", &token[..8]));
        ended.expect_not_in_stdout(&token[..9]);
    }
    // The last ones may get it a moment later.
    eventually("a key on each node", || servers.key_count() == 5);
    let ended = inspect(&servers.urls(), &[]);
    assert!(
        last_line(&ended).contains(" on 5 of 5 nodes, free in at most 2"),
        "{}",
        ended.stdout
    );
}

#[test]
fn a_short_value_is_not_told_as_a_whole_either() {
    let servers = Servers::start(1);
    for (value, prefix) in [
        ("1", ".."),
        ("me", "6d.."),
        ("abcdef", "616263.."),
        ("abcdefgh", "61626364.."),
    ] {
        hold(&servers, value, 60_000);
        let ended = inspect(&servers.urls(), &[]);
        assert!(
            last_line(&ended).starts_with(&format!("dock-7: held by {prefix} on 1")),
            "{}",
            ended.stdout
        );
    }
}

#[test]
fn a_lock_that_a_quorum_carries_is_held_until_a_quorum_is_free() {
    let servers = Servers::start(5);
    for (server, ttl_ms) in servers.iter().zip([20_000, 30_000, 40_000, 50_000]) {
        hold_on(server, "abcdefghijklmnopqrst", ttl_ms);
    }
    let report = document(&servers.urls());
    assert_eq!(report["verdict"], "held");
    assert_eq!(
        (&report["on"], &report["of"], &report["quorum"]),
        (&4.into(), &5.into(), &3.into())
    );
    assert_eq!(report["token"], "61626364..");
    // The free one, and those whose keys end first.
    let free_in = report["free_in_ms"].as_u64().unwrap();
    assert!((20_000..=30_000).contains(&free_in), "{free_in}");
    assert_eq!(report["nodes"][4]["state"], "free");
}

#[test]
fn the_highest_fence_is_shown() {
    let servers = Servers::start(3);
    hold(&servers, "abcdefghijklmnopqrst", 60_000);
    for (server, fence) in servers.iter().zip(["1763735536000001", "1763735536000002"]) {
        let _: () = server
            .query(&["SET", "redlock:fence:dock-7", &format!("{fence}:0")])
            .unwrap();
    }
    let ended = inspect(&servers.urls(), &[]);
    assert!(
        last_line(&ended).ends_with(", fence 1763735536000002"),
        "{}",
        ended.stdout
    );
    assert_eq!(
        document(&servers.urls())["nodes"][0]["fence"],
        1_763_735_536_000_001_u64
    );
}

#[test]
fn a_key_that_was_deleted_is_shown_as_held_for_fenced_locks_until_the_lease_is_over() {
    let servers = Servers::start(1);
    let options = ["--ttl=1m", "--fenced"];
    let holder = Process::start(run(&servers, &options, "dock-7", "echo ready; sleep 60"));
    holder.expect_line("ready");
    assert_eq!(servers[0].query::<usize>(&["DEL", "dock-7"]).unwrap(), 1);
    let ended = inspect(&servers.urls(), &[]);
    ended.expect_stdout(", refuses fenced locks for");
    let left = document(&servers.urls())["nodes"][0]["refuses_fenced_for_ms"].as_u64();
    assert!((1..=60_000).contains(&left.unwrap()), "{left:?}");
    drop(holder);
}

#[test]
fn a_key_that_expired_too_early_does_not_count_as_free_until_the_fenced_lease_is_over() {
    let servers = Servers::start_with_clocks(3);
    for server in &servers[..2] {
        hold_on(server, "abcdefghijklmnopqrst", 30_000);
        let held_until = now_ms(server) + 30_000;
        let record = format!("17:{held_until}:abcdefghijklmnopqrst");
        let set = ["SET", "redlock:fence:dock-7", &record];
        let _: () = server.query(&set).unwrap();
    }
    servers[1].step_clock(60_000_000);
    let value: Option<String> = servers[1].query(&["GET", "dock-7"]).unwrap();
    assert_eq!(value, None);
    servers[1].step_clock(0);
    let ended = inspect(&servers.urls(), &[]);
    ended.expect_code(69);
    let last = "dock-7: unknown: only 2 of 3 nodes gave an answer that counts";
    assert_eq!(last_line(&ended), last);
    let line = ended.stdout.lines().nth(1).unwrap();
    let why = "; no vote: the key was deleted, or expired too early because the clock was ahead";
    assert!(
        line.contains(", refuses fenced locks for ") && line.ends_with(why),
        "{line}"
    );
    let report = document(&servers.urls());
    let free_in = report["free_in_ms"].as_u64().unwrap();
    assert!((1..=30_000).contains(&free_in), "{free_in}");
    assert_eq!(report["nodes"][1]["counts"], false);

    // The lease is over.
    for server in &servers[..2] {
        server.step_clock(31_000_000);
    }
    let ended = inspect(&servers.urls(), &[]);
    assert_eq!((ended.code, last_line(&ended)), (Some(0), "dock-7: free"));
}

#[test]
fn a_fence_record_is_read_in_both_forms_and_no_token_in_it_is_shown() {
    let servers = Servers::start(3);
    let now = now_ms(&servers[0]) + 60_000;
    // A token is any bytes.
    let token = b"sec:ret\n\0\xff\r 17:0:again";
    for (server, rest) in servers.iter().zip([&b":"[..], b"", token]) {
        let fence = format!("17:{now}").into_bytes();
        let colon: &[u8] = if rest == token { b":" } else { b"" };
        let record = [&fence, colon, rest].concat();
        let set: [&[u8]; 3] = [b"SET", b"redlock:fence:dock-7", &record];
        let _: () = server.query(&set).unwrap();
    }
    for options in [&[][..], &["--json"]] {
        let ended = inspect(&servers.urls(), options);
        ended.expect_not_in_stdout("sec:ret");
    }
    let report = document(&servers.urls());
    for node in report["nodes"].as_array().unwrap() {
        assert_eq!(node["fence"], 17);
        let left = node["refuses_fenced_for_ms"].as_u64();
        assert!((1..=60_000).contains(&left.unwrap()), "{left:?}");
    }
}

#[test]
fn a_fence_record_that_no_client_has_written_is_marked_and_hides_no_node() {
    let servers = Servers::start(3);
    let fenced = ["--fenced", "--no-wait", "--ttl=5s"];
    let long = "1".repeat(1_000_000);
    let records = [
        "1:99999999999999999999:",
        "9223372036854775807:0",
        "99999999999999999:0:",
        "0:99999999999999999",
        "a note",
        "",
        &format!("{long}:0"),
        &format!("0:{long}:"),
        &long,
    ];
    for held in [false, true] {
        for record in records {
            for server in &servers[..] {
                let set = ["SET", "redlock:fence:dock-7", record];
                let _: () = server.query(&set).unwrap();
            }
            let beginning = &record[..record.len().min(40)];
            let ended = inspect(&servers.urls(), &[]);
            assert_eq!(ended.code, Some(0), "{beginning}: {}", ended.stdout);
            let state = if held { "held by 61626364.." } else { "free" };
            let is_seen = last_line(&ended).starts_with(&format!("dock-7: {state}"));
            assert!(is_seen, "{beginning}: {}", ended.stdout);
            let marks = ended
                .stdout
                .matches("the fence record cannot be read")
                .count();
            assert_eq!(marks, 3, "{beginning}: {}", ended.stdout);
            let report = document(&servers.urls());
            for node in report["nodes"].as_array().unwrap() {
                assert_eq!(node["fence"], Value::Null);
                assert_eq!(node["refuses_fenced_for_ms"], Value::Null);
                let why = node["fence_error"].as_str().unwrap();
                assert!(why.contains("cannot be read"), "{beginning}: {why}");
            }
            // What the mark says is true. The error of a node may hold the hash of a script, which looks like a token.
            let mut command = run(&servers, &fenced, "dock-7", "true");
            command.stderr(Stdio::null());
            assert!(!command.status().unwrap().success(), "{beginning}");
        }
        hold(&servers, "abcdefghijklmnopqrst", 60_000);
    }
}

#[test]
fn a_fence_record_of_the_longest_numbers_that_lua_can_count_to_is_read() {
    let servers = Servers::start(1);
    for (record, fence, verdict) in [
        // The node refuses fenced locks until then.
        (
            "9007199254740992:9007199254740992:",
            9_007_199_254_740_992_u64,
            "unknown",
        ),
        ("9007199254740992:0:", 9_007_199_254_740_992_u64, "free"),
        ("0:0", 0, "free"),
    ] {
        let set = ["SET", "redlock:fence:dock-7", record];
        let _: () = servers[0].query(&set).unwrap();
        let report = document(&servers.urls());
        assert_eq!(report["verdict"], verdict);
        assert_eq!(report["nodes"][0]["fence"], fence);
        assert_eq!(report["nodes"][0]["fence_error"], Value::Null);
    }
}

#[test]
fn tokens_of_which_none_has_a_quorum_are_split() {
    let servers = Servers::start(5);
    for (server, token) in servers
        .iter()
        .zip(["abcdefghijklmnopqrst", "abcdefghijklmnopqrsu"].repeat(3))
    {
        // They begin alike.
        hold_on(server, token, 60_000);
    }
    let _: () = servers[4].query(&["SET", "dock-7", "another"]).unwrap();
    let ended = inspect(&servers.urls(), &[]);
    ended.expect_code(0);
    assert!(
        last_line(&ended).starts_with("dock-7: split: no token has a quorum, free in at most "),
        "{}",
        ended.stdout
    );
    ended.expect_stdout("616e6f.., no TTL");
}

#[test]
fn a_key_that_has_expired_is_free() {
    let servers = Servers::start(3);
    hold(&servers, "abcdefghijklmnopqrst", 50);
    thread::sleep(Duration::from_millis(60));
    assert_eq!(document(&servers.urls())["verdict"], "free");
}

#[test]
fn without_a_quorum_of_nodes_nothing_is_known() {
    let mut servers = Servers::start(5);
    hold(&servers, "abcdefghijklmnopqrst", 60_000);
    servers[0].kill();
    servers[1].pause();
    let ended = inspect(&servers.urls(), &["--node-timeout=500ms"]);
    assert_eq!(
        ended.code,
        Some(0),
        "a minority says nothing against the others"
    );
    assert!(
        last_line(&ended).starts_with("dock-7: held by 61626364.. on 3 of 5 nodes"),
        "{}",
        ended.stdout
    );
    ended.expect_stdout("connection refused");
    ended.expect_stdout("within 500 ms");

    servers[2].kill();
    let ended = inspect(&servers.urls(), &["--node-timeout=500ms"]);
    ended.expect_code(69);
    assert_eq!(last_line(&ended), "dock-7: unknown: 2 of 5 nodes answered");
}

#[test]
fn a_key_of_another_type_is_shown_as_such() {
    let servers = Servers::start(3);
    let _: () = servers[0].query(&["RPUSH", "dock-7", "one"]).unwrap();
    let _: () = servers[1]
        .query(&["SADD", "redlock:fence:dock-7", "one"])
        .unwrap();
    let ended = inspect(&servers.urls(), &[]);
    assert_eq!((ended.code, last_line(&ended)), (Some(0), "dock-7: free"));
    ended.expect_stdout("foreign  a list, not a lock");
    let marked =
        "free     the fence record cannot be read: no client can acquire a fenced lock here";
    let second = ended.stdout.lines().nth(1).unwrap();
    assert!(second.ends_with(marked), "{}", ended.stdout);
    let report = document(&servers.urls());
    assert_eq!(
        (&report["nodes"][0]["state"], &report["nodes"][0]["type"]),
        (&"foreign".into(), &"list".into())
    );
}

#[test]
fn a_user_who_may_not_see_fences_sees_the_lock() {
    let servers = Servers::start(1);
    hold(&servers, "abcdefghijklmnopqrst", 60_000);
    let _: () = servers[0]
        .query(&["SET", "redlock:fence:dock-7", "17:0"])
        .unwrap();
    let url = user_of(&servers[0], "app", "+@all resetkeys ~dock-*");
    let report = document(&[url]);
    assert_eq!(
        (&report["verdict"], &report["fence"]),
        (&"held".into(), &Value::Null)
    );
    // And who may see nothing is told why.
    let url = user_of(&servers[0], "app", "+@all -get");
    let ended = inspect(&[url], &[]);
    ended.expect_code(69);
    ended.expect_stdout("redlock doctor says which");
}

#[test]
fn a_node_that_restarted_empty_does_not_know_that_a_lock_is_free() {
    let mut servers = unvouched(3);
    eventually("an uptime of five seconds", || {
        servers.iter().all(|server| {
            let uptime = field(server, "uptime_in_seconds").parse::<u64>();
            uptime.unwrap() >= 5
        })
    });
    for server in &servers[..2] {
        hold_on(server, "abcdefghijklmnopqrst", 60_000);
    }
    servers[1].restart();
    let ended = inspect(&servers.urls(), &["--max-ttl=3s"]);
    ended.expect_code(69);
    let last = "dock-7: unknown: only 2 of 3 nodes gave an answer that counts";
    assert_eq!(last_line(&ended), last);
    let line = ended.stdout.lines().nth(1).unwrap();
    assert!(
        line.contains("  free; no vote: restarted ") && line.contains("its vote counts again in"),
        "{line}"
    );
    // Without an argument and a record, a minute.
    let ended = inspect(&servers.urls(), &[]);
    ended.expect_code(69);
    assert_eq!(ended.stdout.matches("; no vote: restarted").count(), 3);

    // It ends by itself.
    eventually("the vote", || {
        let ended = inspect(&servers.urls(), &["--max-ttl=3s"]);
        ended.code == Some(0) && last_line(&ended) == "dock-7: free"
    });
}

#[test]
fn a_node_whose_guard_record_does_not_vouch_for_it_does_not_know_that_a_lock_is_free() {
    let servers = Servers::start(3);
    let sound = record(&servers[1]).unwrap();
    for server in &servers[..2] {
        hold_on(server, "abcdefghijklmnopqrst", 60_000);
    }
    let _: () = servers[1].query(&["DEL", "dock-7"]).unwrap();
    assert_eq!(document(&servers.urls())["verdict"], "free");
    let until = now_ms(&servers[1]) + 50_000;
    let settings = sound.split(':').collect::<Vec<_>>()[2..5].join(":");
    let damages: [(Damage<'_>, &str); 6] = [
        (&Server::disown, "no guard record, unlike other nodes"),
        (&|node| write_guard(node, "a note"), "is no guard record"),
        (
            &|node| guard_of_another_run(node, &settings),
            "is of another run",
        ),
        (
            &|node| guard(node, 0, "1000:250:500"),
            "(max TTL 1s, window 250ms, step back 500ms) is unlike that of other nodes",
        ),
        (
            &|node| guard(node, until, &settings),
            "its vote counts again in 4",
        ),
        (
            &|node| {
                write_guard(node, &sound);
                set(node, "maxmemory-policy", "allkeys-lru");
            },
            "it may evict locks; set maxmemory-policy noeviction",
        ),
    ];
    for (damage, why) in damages {
        damage(&servers[1]);
        let ended = inspect(&servers.urls(), &[]);
        ended.expect_code(69);
        let line = ended.stdout.lines().nth(1).unwrap();
        assert!(line.contains("; no vote: ") && line.contains(why), "{line}");
        let report = document(&servers.urls());
        assert_eq!(report["verdict"], "unknown");
        let node = &report["nodes"][1];
        assert_eq!(
            (&node["state"], &node["counts"]),
            (&"free".into(), &false.into())
        );
        assert!(node["no_vote"].as_str().unwrap().contains(why), "{node}");
        assert_eq!(
            (&report["answered"], &report["counted"]),
            (&3.into(), &2.into())
        );
    }
    // The key of such a node counts: extensions are sent to it.
    hold_on(&servers[1], "abcdefghijklmnopqrst", 60_000);
    let report = document(&servers.urls());
    assert_eq!(
        (&report["verdict"], &report["on"]),
        (&"held".into(), &2.into())
    );
    assert_eq!(report["nodes"][1]["counts"], true);
}

#[test]
fn a_record_for_shorter_leases_vouches_for_no_longer_ones() {
    let servers = Servers::start(3);
    for server in &servers[..] {
        guard(server, 0, "2000:250:1000");
    }
    assert_eq!(inspect(&servers.urls(), &[]).code, Some(0));
    let ended = inspect(&servers.urls(), &["--max-ttl=1h"]);
    ended.expect_code(69);
}

#[test]
fn a_server_that_is_named_twice_counts_once() {
    let servers = Servers::start(2);
    hold_on(&servers[0], "abcdefghijklmnopqrst", 60_000);
    let urls = [servers[0].url(), servers[0].socket_url(), servers[1].url()];
    let ended = inspect(&urls, &[]);
    ended.expect_code(69);
    let why = format!("; no vote: the same server as {}", name(&servers[0]));
    assert!(ended.stdout.lines().nth(1).unwrap().ends_with(&why));
    // And not as free either.
    let _: () = servers[0].query(&["DEL", "dock-7"]).unwrap();
    hold_on(&servers[1], "abcdefghijklmnopqrst", 60_000);
    assert_eq!(inspect(&urls, &[]).code, Some(69));
}

#[test]
fn a_replica_knows_nothing_of_locks() {
    let servers = Servers::start(3);
    hold_on(&servers[0], "abcdefghijklmnopqrst", 60_000);
    replicate(&servers[0], &servers[1]);
    // The first replica changes the replication ID.
    let settings = "60000:250:60000";
    for server in [&servers[0], &servers[2]] {
        guard(server, 0, settings);
    }
    let ended = inspect(&servers.urls(), &[]);
    ended.expect_code(69);
    let why = format!("; no vote: a replica of {}", name(&servers[0]));
    assert!(
        ended.stdout.lines().nth(1).unwrap().ends_with(&why),
        "{}",
        ended.stdout
    );
    assert_eq!(document(&servers.urls())["nodes"][1]["counts"], false);
}

#[test]
fn a_node_that_does_not_say_who_it_is_does_not_count() {
    let servers = Servers::start(1);
    let url = user_of(&servers[0], "app", "+@all -info");
    let ended = inspect(&[url], &[]);
    ended.expect_code(69);
    let why = "free; no vote: it does not tell its identity: NOPERM";
    ended.expect_stdout(why);
}

type Damage<'a> = &'a dyn Fn(&Server);

fn inspect(urls: &[String], options: &[&str]) -> Ended {
    let mut command = redlock(&["inspect"]);
    be_patient(&mut command, options);
    command
        .args(options)
        .arg("dock-7")
        .env("REDLOCK_NODES", urls.join(","));
    end_of(command)
}

fn document(urls: &[String]) -> Value {
    inspect(urls, &["--json"]).stdout.parse().unwrap()
}

fn last_line(ended: &Ended) -> &str {
    ended.stdout.lines().last().unwrap_or_default()
}

fn hold(servers: &[Server], token: &str, ttl_ms: u64) {
    for server in servers {
        hold_on(server, token, ttl_ms);
    }
}

fn hold_on(server: &Server, token: &str, ttl_ms: u64) {
    let ttl = ttl_ms.to_string();
    let _: () = server.query(&["SET", "dock-7", token, "PX", &ttl]).unwrap();
}
