//! `redlock inspect` on locks in each state that a fleet can leave them in.

use std::process::Stdio;
use std::thread;
use std::time::{Duration, SystemTime};

use redlock_tests::{Server, Servers};
use serde_json::Value;

use crate::process::{Ended, Process, be_patient, end_of, eventually, redlock, run};
use crate::server::{
    field, guard, guard_of_another_run, name, now_ms, record, replicate, set, unvouched, user_of,
    write_guard,
};
use crate::waiters::{LINE, release, subscribe, wait};

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
        // Its record would be a second key.
        &["--owner="],
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

#[cfg(unix)]
#[test]
fn a_program_can_tell_keys_apart_that_are_no_text() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let servers = Servers::start(1);
    for (key, hex) in [
        (&b"a\xff"[..], "61ff"),
        (b"a\xfe", "61fe"),
        (b"a\n", "610a"),
    ] {
        let mut command = redlock(&["inspect", "--json"]);
        command
            .arg(OsStr::from_bytes(key))
            .env("REDLOCK_NODES", servers.urls().join(","));
        let document: Value = end_of(command).stdout.parse().unwrap();
        assert_eq!(document["key_hex"], hex);
    }
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
fn a_fenced_lock_that_a_min_hold_keeps_is_free_for_plain_clients_first_and_then_for_all() {
    let servers = Servers::start(3);
    let options = ["--ttl=1m", "--fenced", "--min-hold=20s"];
    let holder = Process::start(run(&servers, &options, "dock-7", "echo ready; sleep 60"));
    holder.expect_line("ready");
    // The key says it all.
    for node in document(&servers.urls())["nodes"].as_array().unwrap() {
        assert_eq!(node["refuses_fenced_for_ms"], Value::Null);
    }
    drop(holder);
    for server in servers.iter() {
        let _: () = server
            .query(&["DEL", "dock-7", "redlock:fence:dock-7"])
            .unwrap();
    }
    assert!(
        run(&servers, &options, "dock-7", "true")
            .status()
            .unwrap()
            .success()
    );
    eventually("the release on each node", || {
        let left = servers
            .iter()
            .map(|server| server.query::<i64>(&["PTTL", "dock-7"]).unwrap());
        left.max() <= Some(20_000)
    });
    let report = document(&servers.urls());
    let nodes = report["nodes"].as_array().unwrap();
    let of = |name: &str| -> Vec<_> {
        nodes
            .iter()
            .map(|node| node[name].as_u64().unwrap())
            .collect()
    };
    let (ends, refuses) = (of("ends_in_ms"), of("refuses_fenced_for_ms"));
    assert!(
        ends.iter().max() < refuses.iter().min(),
        "{ends:?}, {refuses:?}"
    );
    assert!(
        refuses.contains(&report["free_in_ms"].as_u64().unwrap()),
        "{report}"
    );
    assert!(nodes.iter().all(|node| node["counts"] == true), "{report}");
    let ended = inspect(&servers.urls(), &[]);
    ended.expect_stdout(" s left, fence ");
    ended.expect_stdout(", refuses fenced locks for ");
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
    let why = "; no vote: a fenced lease has not ended: its --min-hold is over, the key was deleted, or it expired too early \
               because the clock was ahead";
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

#[test]
fn those_who_wait_are_shown_in_their_order_with_the_one_who_is_first_on_a_quorum() {
    let servers = Servers::start(3);
    hold(&servers, "abcdefghijklmnopqrst", 60_000);
    let mut connections = Vec::new();
    for server in &servers[..2] {
        assert_eq!(wait(server, SECOND, 3_000), 1, "held");
        assert_eq!(wait(server, FIRST, 12_000), 1);
        assert_eq!(wait(server, &format!("{LAST}~"), 0), 1);
        connections.push(subscribe(server, FIRST));
    }
    let ended = inspect(&servers.urls(), &[]);
    ended.expect_code(0);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    for (number, start) in [
        (0, "127.0.0.1:"),
        (1, "   1. 00000000000000f1  waits for 12."),
        (2, "   2. 00000000000000f2  waits for 3."),
        (3, "   3. 00000000000000f3~ waits for "),
        (4, "127.0.0.1:"),
        (
            9,
            "line: 3 clients wait, 00000000000000f1 is the first on 2 of 3 nodes",
        ),
        (10, "dock-7: held by 61626364.. on 3 of 3 nodes"),
    ] {
        assert!(lines[number].starts_with(start), "{}", ended.stdout);
    }
    assert!(
        lines[2].ends_with(", its connection is gone"),
        "{}",
        lines[2]
    );
    assert!(lines[3].ends_with(", cannot be called"), "{}", lines[3]);

    let report = document(&servers.urls());
    let line = &report["line"];
    assert_eq!(
        (&line["waiting"], &line["is_least"]),
        (&3.into(), &false.into())
    );
    assert_eq!(
        (&line["first"], &line["first_on"]),
        (&FIRST.into(), &2.into())
    );
    assert_eq!(
        (&line["turn"], &line["shown_by"]),
        (&Value::Null, &3.into())
    );
    let of_node = &report["nodes"][0]["line"];
    assert_eq!(
        (&of_node["waiting"], &of_node["turn"]),
        (&3.into(), &Value::Null)
    );
    let client = |number: usize| {
        let client = &of_node["clients"][number];
        let fields = ["mailbox", "callable", "connected"];
        Value::from(fields.map(|field| client[field].clone()).to_vec())
    };
    assert_eq!(client(0), serde_json::json!([FIRST, true, true]));
    assert_eq!(client(1), serde_json::json!([SECOND, true, false]));
    assert_eq!(client(2), serde_json::json!([LAST, false, null]));
    let first = &of_node["clients"][0];
    let waits_for = first["waits_for_ms"].as_u64().unwrap();
    assert!((12_000..40_000).contains(&waits_for), "{waits_for}");
    let since = humantime::parse_rfc3339(first["since"].as_str().unwrap()).unwrap();
    let since = since.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let ago = u128::from(now_ms(&servers[0])) - since.as_millis();
    assert!((12_000..40_000).contains(&ago), "{ago}");
    let empty = serde_json::json!({ "waiting": 0, "turn": null, "clients": [] });
    assert_eq!(report["nodes"][2]["line"], empty);
    drop(connections);
}

#[test]
fn a_client_that_waits_with_run_stands_in_the_line_as_its_user_may() {
    let servers = Servers::start(3);
    for (user, rules, callable) in [
        ("all", "+@all &*", Some(true)),
        // Redis 7 gives it no channels.
        ("uncallable", "+@all", Some(false)),
        ("outside", "+@all &* resetkeys ~dock-7 ~redlock:guard", None),
    ] {
        let holder = Process::ready(run(&servers, &[], "dock-7", "echo ready; sleep 60"));
        let url = |server| user_of(server, user, rules);
        let urls: Vec<String> = servers.iter().map(url).collect();
        let mut command = run(&servers, &["--json"], "dock-7", "true");
        command.env("REDLOCK_NODES", urls.join(","));
        let mut waiter = Process::start(command);
        waiter.expect_event("waiting");
        let clients = || document(&servers.urls())["nodes"][0]["line"]["clients"].clone();
        if let Some(callable) = callable {
            eventually("a client in the line", || {
                let clients = clients();
                let clients = clients.as_array().unwrap();
                clients.len() == 1 && clients[0]["callable"] == callable
            });
        }
        assert_eq!(
            clients().as_array().unwrap().len(),
            usize::from(callable.is_some())
        );
        assert!(waiter.is_running());
        drop(holder);
        waiter.end().expect_code(0);
        assert_eq!(document(&servers.urls())["line"]["waiting"], 0);
    }
}

#[test]
fn whose_turn_it_is_and_for_how_long_is_shown() {
    let servers = Servers::start(1);
    hold(&servers, "abcdefghijklmnopqrst", 60_000);
    assert_eq!(wait(&servers[0], FIRST, 2_000), 1);
    assert_eq!(wait(&servers[0], SECOND, 1_000), 1);
    let connections = [FIRST, SECOND].map(|mailbox| subscribe(&servers[0], mailbox));
    release(&servers[0], "abcdefghijklmnopqrst");
    let ended = inspect(&servers.urls(), &[]);
    let first = ended.stdout.lines().nth(1).unwrap();
    assert!(
        first.contains(FIRST) && first.contains(", its turn for "),
        "{first}"
    );
    ended.expect_stdout(&format!(
        "{FIRST} is the first on 1 of 1 nodes, and has the turn on 1 of 1 nodes for at most "
    ));
    let report = document(&servers.urls());
    assert_eq!(report["verdict"], "free");
    let line = &report["line"];
    assert_eq!(
        (&line["turn"], &line["turn_on"]),
        (&FIRST.into(), &1.into())
    );
    let turn = &report["nodes"][0]["line"]["turn"];
    assert_eq!(turn["mailbox"], FIRST);
    assert!(
        (1..=10_000).contains(&turn["ends_in_ms"].as_u64().unwrap()),
        "{turn}"
    );
    // The one whose turn it is takes the lock.
    assert_eq!(wait(&servers[0], SECOND, 1_000), 8, "another's turn");
    assert_eq!(wait(&servers[0], FIRST, 2_000), 0);
    let report = document(&servers.urls());
    assert_eq!(report["line"]["first"], SECOND);
    assert_eq!(report["nodes"][0]["line"]["turn"], Value::Null);
    drop(connections);
}

#[test]
fn a_turn_that_is_over_or_longer_than_any_turn_is_over() {
    let servers = Servers::start(1);
    for ends_in_ms in [-1, 20_000] {
        let ends = i64::try_from(now_ms(&servers[0])).unwrap() + ends_in_ms;
        for left in [true, false] {
            let _: u64 = servers[0].query(&["DEL", LINE]).unwrap();
            add(&servers[0], &format!("!{FIRST}"), &format!("-{ends}"));
            if left {
                add(&servers[0], SECOND, "1763735536000001");
            } else {
                add(&servers[0], FIRST, "1763735536000001");
            }
            let ended = inspect(&servers.urls(), &[]);
            ended.expect_stdout("its turn is over");
            let is_said = ended
                .stdout
                .contains(&format!("{FIRST}, which has left the line: "));
            assert_eq!(is_said, left, "{}", ended.stdout);
            ended.expect_stdout("line: 1 client waits, ");
            ended.expect_not_in_stdout("has the turn");
            let report = document(&servers.urls());
            assert_eq!(report["line"]["turn"], Value::Null);
            let turn = serde_json::json!({ "mailbox": FIRST, "ends_in_ms": 0 });
            assert_eq!(report["nodes"][0]["line"]["turn"], turn);
        }
    }
}

#[test]
fn of_a_long_line_the_first_sixteen_are_shown() {
    let servers = Servers::start(2);
    for number in 0..40 {
        let ticket = (1_763_735_536_000_000_u64 + number).to_string();
        add(&servers[0], &format!("{number:016x}"), &ticket);
    }
    let now = now_ms(&servers[0]) + 5_000;
    add(&servers[0], "!0000000000000000", &format!("-{now}"));
    add(&servers[1], LAST, "1763735536000000");
    add(&servers[1], &format!("!{SECOND}"), &format!("-{now}"));
    let ended = inspect(&servers.urls(), &[]);
    assert_eq!(
        ended.stdout.lines().count(),
        1 + 16 + 1 + 3 + 2,
        "{}",
        ended.stdout
    );
    ended.expect_stdout("  16. 000000000000000f  ");
    ended.expect_stdout("      and 24 more\n");
    ended.expect_stdout(
        "line: at least 40 clients wait, and no client is the first on a quorum of nodes",
    );
    ended.expect_stdout(", 0000000000000000 has the turn on 1 of 2 nodes for at most ");
    let report = document(&servers.urls());
    assert_eq!(report["line"]["is_least"], true);
    assert_eq!(report["nodes"][0]["line"]["waiting"], 40);
    assert_eq!(
        report["nodes"][0]["line"]["clients"]
            .as_array()
            .unwrap()
            .len(),
        16
    );
    assert_eq!(
        report["nodes"][0]["line"]["clients"][15]["since"],
        "2025-11-21T14:32:16.000Z"
    );
}

#[test]
fn a_client_that_some_nodes_do_not_know_waits_too() {
    let servers = Servers::start(3);
    for (server, mailbox) in servers.iter().zip([FIRST, SECOND, &format!("{FIRST}~")]) {
        add(server, mailbox, "1763735536000001");
    }
    let ended = inspect(&servers.urls(), &[]);
    ended.expect_stdout("line: 2 clients wait, 00000000000000f1 is the first on 2 of 3 nodes\n");
}

#[test]
fn what_is_no_place_in_the_line_is_not_shown_as_one() {
    let servers = Servers::start(2);
    let long = "f".repeat(1_000_000);
    for (member, score) in [
        ("a\u{1b}[2Jb", "1763735536000001"),
        (&*long, "1763735536000002"),
        ("!", "-5"),
        ("!!00000000000000f1", "-6"),
        ("!00000000000000f1", "7"),
        ("!00000000000000f1~", "8"),
        ("00000000000000f4", "-inf"),
        ("00000000000000f5", "1e300"),
        ("00000000000000f6", "9007199254740994"),
        ("00000000000000f7", "-9"),
        (LAST, "9007199254740992"),
        ("00000000000000fg", "1763735536000003"),
    ] {
        add(&servers[0], member, score);
    }
    let _: u64 = servers[1].query(&["RPUSH", LINE, "one"]).unwrap();
    let ended = inspect(&servers.urls(), &[]);
    ended.expect_code(0);
    assert_eq!(last_line(&ended), "dock-7: free");
    let report = document(&servers.urls());
    let clients = report["nodes"][0]["line"]["clients"].as_array().unwrap();
    let mailboxes: Vec<&Value> = clients.iter().map(|client| &client["mailbox"]).collect();
    assert_eq!(mailboxes, [LAST]);
    assert_eq!(clients[0]["since"], "2255-06-05T23:47:34.740Z");
    assert_eq!(report["nodes"][0]["line"]["turn"], Value::Null);
    let why = report["nodes"][1]["line_error"].as_str().unwrap();
    assert!(why.contains("WRONGTYPE"), "{why}");
    ended.expect_stdout("(1 of 2 nodes have shown their line)");
}

#[test]
fn a_user_who_may_not_see_the_line_sees_the_lock() {
    let servers = Servers::start(1);
    hold(&servers, "abcdefghijklmnopqrst", 60_000);
    assert_eq!(wait(&servers[0], FIRST, 0), 1);
    let urls = [user_of(&servers[0], "app", "+@all resetkeys ~dock-*")];
    let ended = inspect(&urls, &[]);
    ended.expect_code(0);
    ended.expect_stdout("line: unknown: NOPERM ");
    let report = document(&urls);
    assert_eq!(report["verdict"], "held");
    assert_eq!(report["line"]["waiting"], Value::Null);
    assert_eq!(report["nodes"][0]["line"], Value::Null);
    let why = report["nodes"][0]["line_error"].as_str().unwrap();
    assert!(why.contains("NOPERM"), "{why}");
    // Who is connected is known to others alone.
    let report = document(&[user_of(&servers[0], "app", "+@all -pubsub")]);
    assert_eq!(
        report["nodes"][0]["line"]["clients"][0]["connected"],
        Value::Null
    );
}

#[test]
fn a_line_that_is_named_twice_or_copied_counts_once() {
    let servers = Servers::start(3);
    replicate(&servers[0], &servers[1]);
    for server in [&servers[0], &servers[2]] {
        guard(server, 0, "60000:250:60000");
    }
    hold_on(&servers[0], "abcdefghijklmnopqrst", 60_000);
    assert_eq!(wait(&servers[0], FIRST, 0), 1);
    eventually("a copy", || {
        servers[1].query::<u64>(&["ZCARD", LINE]).unwrap() == 1
    });
    let urls = [&servers.urls()[..], &[servers[0].socket_url()]].concat();
    let line = &document(&urls)["line"];
    assert_eq!(
        (&line["first_on"], &line["shown_by"]),
        (&1.into(), &2.into())
    );
}

#[test]
fn a_look_leaves_the_line_alone() {
    let servers = Servers::start(1);
    hold(&servers, "abcdefghijklmnopqrst", 60_000);
    assert_eq!(wait(&servers[0], FIRST, 0), 1);
    let line = || -> Vec<String> {
        let read = ["ZRANGE", LINE, "0", "-1", "WITHSCORES"];
        servers[0].query(&read).unwrap()
    };
    let changes = || field(&servers[0], "rdb_changes_since_last_save");
    let before = (line(), changes());
    inspect(&servers.urls(), &[]).expect_code(0);
    assert_eq!((line(), changes()), before);
}

/// Mailboxes, in the order of these tests.
const FIRST: &str = "00000000000000f1";
const SECOND: &str = "00000000000000f2";
const LAST: &str = "00000000000000f3";

fn add(server: &Server, member: &str, score: &str) {
    let _: u64 = server.query(&["ZADD", LINE, score, member]).unwrap();
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
