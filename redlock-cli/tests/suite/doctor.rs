//! `redlock doctor` on fleets that are well, and on fleets with each fault that it knows.

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use redlock_tests::{Server, Servers};
use serde_json::Value;

use crate::process::{Ended, Process, be_patient, end_of, eventually, redlock, run};
use crate::run::Distant;
use crate::server::{
    fail_back, field, guard, guard_of_another_run, name, now_ms, record, replicate, run_id, set,
    unvouched, user_of, write_guard,
};

#[test]
fn a_healthy_fleet_gives_no_cause_for_complaint() {
    let servers = healthy(3);
    let ended = doctor(&servers.urls(), &[]);
    ended.expect_code(0);
    for line in ended.stdout.lines() {
        // A machine that is busy may be far away.
        let is_good = !line.starts_with("  warn") || line.contains("reachable");
        assert!(is_good && !line.starts_with("  bad"), "{line}");
    }
}

#[test]
fn the_document_of_json_says_what_the_text_says() {
    let mut servers = healthy(4);
    evict(&servers[1]);
    servers[2].kill();
    // A round of these is so long that no machine is too busy for it.
    let text = doctor(&servers.urls(), &["--ttl=1h"]);
    let report = Report::of(&servers.urls(), &["--ttl=1h"]);
    assert_eq!((text.code, report.code), (Some(1), Some(1)));

    let mut told = Vec::new();
    for line in text.stdout.lines() {
        let words: Vec<&str> = line.split_whitespace().take(2).collect();
        match words[..] {
            // In a pipe, no line is the rest of another one.
            [verdict, check] if line.starts_with("  ") => told.push(format!("{verdict} {check}")),
            [..] if line.ends_with(" warn") => told.push(line.to_owned()),
            _ if line == "all nodes" => {}
            _ => told.push(line.to_owned()),
        }
    }
    let mut documented = Vec::new();
    let lines = |checks: &Value| {
        let checks = checks.as_array().unwrap().clone();
        let line = |check: &Value| format!("{} {}", check["verdict"], check["check"]);
        let lines = checks.iter().map(|check| line(check).replace('"', ""));
        lines.collect::<Vec<_>>()
    };
    for node in report.document["nodes"].as_array().unwrap() {
        documented.push(node["node"].as_str().unwrap().to_owned());
        documented.extend(lines(&node["checks"]));
    }
    documented.extend(lines(&report.document["fleet"]["checks"]));
    let (bad, warn) = (&report.document["bad"], &report.document["warn"]);
    documented.push(format!("{bad} bad, {warn} warn"));
    assert_eq!(told, documented);
    assert_eq!(report.document["verdict"], "bad");
}

#[test]
fn a_node_that_is_down_is_one_bad_line() {
    let mut servers = healthy(3);
    servers[1].kill();
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(&servers, &[(1, "reachable")], &[]);
    assert_eq!(report.node(&servers[1]).as_array().unwrap().len(), 1);
    report.expect_message(&servers[1], "reachable", "connection refused");
    assert_eq!(report.fleet("quorum")["voting"], 2);
    assert_eq!(report.fleet("quorum")["verdict"], "warn");
    for (name, message) in [
        ("duplicates", "all nodes that answer are different servers"),
        (
            "replication",
            "no node that answers is a replica of another",
        ),
    ] {
        assert_eq!(report.fleet(name)["message"], message);
    }
}

#[test]
fn a_new_node_of_a_cluster_is_told_as_such_and_not_as_one_whose_user_lacks_a_permission() {
    let server = Server::start_with(&["--cluster-enabled", "yes"]);
    let report = Report::of(&[server.url()], &[]);
    assert_eq!(report.code, Some(1));
    let message = report.message(&server, "permissions");
    assert!(
        message.contains("it is a node of a Redis Cluster"),
        "{message}"
    );
    assert!(!message.contains("ACL"), "{message}");
}

#[test]
fn a_node_that_wants_a_password_says_so() {
    let servers = healthy(1);
    set(&servers[0], "requirepass", "secret");
    let name = format!("127.0.0.1:{}", servers[0].port());
    for url in [format!("redis://{name}"), format!("redis://:wrong@{name}")] {
        let report = Report::of(&[url], &[]);
        assert_eq!(report.code, Some(1));
        let message = report.message(&servers[0], "reachable");
        assert!(
            message.ends_with(": check the user and the password in its URL"),
            "{message}"
        );
    }
}

#[test]
fn a_node_that_has_too_many_clients_says_so() {
    let servers = healthy(1);
    let client = redis::Client::open(servers[0].url()).unwrap();
    let mut only = client.get_connection().unwrap();
    redis::cmd("CONFIG")
        .arg(&["SET", "maxclients", "1"])
        .exec(&mut only)
        .unwrap();
    let report = Report::of(&servers.urls(), &[]);
    assert_eq!(report.code, Some(1));
    let message = report.message(&servers[0], "reachable");
    let words = "ERR max number of clients reached; raise maxclients on this server, or let fewer clients connect";
    assert!(message.ends_with(words), "{message}");
}

#[test]
fn a_node_that_is_no_redis_breaks_nothing() {
    let servers = healthy(2);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let web = format!("redis://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _closed = stream
                .unwrap()
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let report = Report::of(&[servers[0].url(), web, servers[1].url()], &[]);
    let nodes = report.document["nodes"].as_array().unwrap();
    let verdicts = nodes.iter().map(|node| node["verdict"] == "bad");
    assert_eq!(verdicts.collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(report.fleet("quorum")["voting"], 2);
}

#[test]
fn without_a_quorum_the_fleet_is_bad() {
    let mut servers = healthy(3);
    servers[0].kill();
    servers[1].kill();
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(&servers, &[(0, "reachable"), (1, "reachable")], &["quorum"]);
}

#[test]
fn hung_nodes_are_a_bad_line_each_and_cost_one_time_out_together() {
    let servers = healthy(5);
    for server in &servers[..3] {
        server.pause();
    }
    let start = Instant::now();
    let report = Report::of(&servers.urls(), &["--node-timeout=3s"]);
    let elapsed = start.elapsed();
    let bad = [(0, "reachable"), (1, "reachable"), (2, "reachable")];
    report.expect_bad(&servers, &bad, &["quorum"]);
    report.expect_message(&servers[0], "reachable", "within 3.0 s");
    assert!(elapsed < Duration::from_secs(8), "{elapsed:?}");
}

#[test]
fn two_names_of_one_server_are_bad() {
    let servers = healthy(2);
    let urls = [servers[0].url(), servers[1].url(), servers[0].socket_url()];
    let report = Report::of(&urls, &[]);
    assert_eq!(report.code, Some(1));
    let nodes = report.document["nodes"].as_array().unwrap();
    let server = check(&nodes[2]["checks"], "server");
    assert_eq!(server["verdict"], "bad");
    assert!(
        server["message"]
            .as_str()
            .unwrap()
            .contains(&name(&servers[0]))
    );
    assert_ne!(nodes[0]["verdict"], "bad");
    assert_eq!(report.fleet("duplicates")["verdict"], "bad");
    // A server is no replica of itself, and has one vote.
    assert_eq!(report.fleet("replication")["verdict"], "ok");
    assert_eq!(report.fleet("quorum")["voting"], 2);
}

#[test]
fn a_replica_is_bad_and_so_is_a_fleet_that_replicates_itself() {
    let servers = healthy(3);
    replicate(&servers[0], &servers[1]);
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(&servers, &[(1, "role")], &["replication"]);
    assert_eq!(
        report.check(&servers[1], "role")["master"],
        name(&servers[0])
    );
    let role = report.check(&servers[0], "role");
    assert_eq!(
        (&role["verdict"], &role["connected_replicas"]),
        (&"warn".into(), &1.into())
    );
    assert_eq!(report.fleet("quorum")["voting"], 2);
}

#[test]
fn a_node_that_evicts_is_bad_and_one_that_may_some_day_is_warned_of() {
    let servers = healthy(3);
    evict(&servers[0]);
    set(&servers[1], "maxmemory-policy", "volatile-lru");
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(&servers, &[(0, "memory")], &[]);
    assert_eq!(report.check(&servers[0], "memory")["policy"], "allkeys-lru");
    assert_eq!(report.check(&servers[1], "memory")["verdict"], "warn");
    assert_eq!(report.check(&servers[2], "memory")["verdict"], "ok");
    // It has a vote all the same.
    assert_eq!(report.fleet("quorum")["voting"], 3);
}

#[test]
fn a_node_whose_disk_may_miss_a_lock_is_warned_of() {
    let servers = healthy(3);
    set(&servers[0], "appendonly", "no");
    set(&servers[1], "appendfsync", "everysec");
    let report = Report::of(&servers.urls(), &[]);
    assert_eq!(report.code, Some(0));
    let verdicts = servers
        .iter()
        .map(|server| report.check(server, "persistence"));
    let verdicts: Vec<_> = verdicts
        .map(|check| check["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(verdicts, ["warn", "warn", "ok"]);
    assert!(
        report
            .message(&servers[0], "persistence")
            .starts_with("AOF off")
    );
    report.expect_message(&servers[1], "persistence", "everysec");
}

#[test]
fn a_node_that_has_just_restarted_has_no_vote_until_the_ttl_is_over() {
    let mut servers = healthy(3);
    servers[2].restart();
    let report = Report::of(&servers.urls(), &["--ttl=1h"]);
    // The others run for seconds only, too.
    report.expect_bad(
        &servers,
        &[(0, "uptime"), (1, "uptime"), (2, "uptime")],
        &["quorum"],
    );
    let left = report.check(&servers[2], "uptime")["counts_in_ms"]
        .as_u64()
        .unwrap();
    assert!((3_600_000..=3_636_002).contains(&left), "{left}");
    report.expect_message(&servers[2], "uptime", "vote counts again in");

    // It ends by itself.
    aged(&servers);
    let report = Report::of(&servers.urls(), &[]);
    assert_eq!(report.check(&servers[2], "uptime")["verdict"], "ok");
}

#[test]
fn a_young_node_that_init_vouches_for_has_a_vote_at_once() {
    let servers = healthy(3);
    for server in &servers[..] {
        guard(server, 0, "7200000:250:60000");
    }
    let report = Report::of(&servers.urls(), &["--ttl=1h"]);
    report.expect_bad(&servers, &[], &[]);
    // Not for locks that last longer than it says.
    let report = Report::of(&servers.urls(), &["--ttl=3h"]);
    assert_eq!(report.check(&servers[0], "guard")["verdict"], "bad");
}

#[test]
fn a_user_who_may_not_see_info_is_told_which_permission_is_missing() {
    let servers = healthy(3);
    let urls = with_user(&servers, "+@all -info");
    let report = Report::of(&urls, &[]);
    report.expect_bad(&servers, &[(0, "server"), (0, "permissions")], &[]);
    report.expect_message(&servers[0], "permissions", "ACL SETUSER app +info");
    assert_eq!(report.fleet("quorum")["voting"], 2);
}

#[test]
fn a_missing_permission_is_found_by_asking_and_by_trying() {
    let servers = healthy(3);
    // The second may not ask what it may do.
    for (rules, how) in [
        ("+@all -set", "asking"),
        ("+@all -set -acl|dryrun", "trying"),
    ] {
        let urls = with_user(&servers, rules);
        let report = Report::of(&urls, &[]);
        report.expect_bad(&servers, &[(0, "permissions")], &[]);
        let permissions = report.check(&servers[0], "permissions");
        assert_eq!(permissions["denied"], serde_json::json!(["set"]), "{how}");
        assert_eq!(permissions["user"], "app", "{how}");
    }
}

#[test]
fn a_user_who_lacks_several_permissions_is_told_all_of_them_at_once() {
    let servers = healthy(1);
    let rules = "+@all -pttl -script|load resetkeys ~lock:* ~redlock:guard";
    let report = Report::of(&with_user(&servers, rules), &[]);
    let check = report.check(&servers[0], "permissions");
    assert_eq!(check["verdict"], "warn", "{check}");
    let message = check["message"].as_str().unwrap();
    for lack in [
        "the user cannot run pttl, which fenced locks need",
        "the user cannot run script|load, so clients send scripts as text",
        "+script|load +pttl",
        "fenced locks also need redlock:fence:KEY",
        "unless the user may also use redlock:owner:KEY",
    ] {
        assert!(message.contains(lack), "{message}");
    }
}

#[test]
fn each_command_in_use_is_looked_for() {
    const COMMANDS: [&str; 10] = [
        "set",
        "get",
        "del",
        "pexpire",
        "evalsha",
        "eval",
        "info",
        "script|load",
        "time",
        "pttl",
    ];
    let servers = healthy(1);
    let mut examinations = Vec::new();
    // Who may not ask what it may do tries.
    for more in ["", " -acl"] {
        for command in COMMANDS {
            let rules = format!("+@all -{command}{more}");
            let user = format!("without-{}{}", command.replace('|', "-"), more.trim());
            let urls = [user_of(&servers[0], &user, &rules)];
            let examination = Process::start(examination(&urls, &["--json"]));
            examinations.push((command, examination));
        }
    }
    for (command, examination) in examinations {
        let report = Report::read(&examination.end());
        let permissions = report.check(&servers[0], "permissions");
        assert_eq!(permissions["denied"], serde_json::json!([command]));
        let verdict = match command {
            "script|load" | "pttl" => "warn",
            _ => "bad",
        };
        assert_eq!(permissions["verdict"], verdict, "{command}");
        if ["get", "del", "pexpire", "evalsha"].contains(&command) {
            let message = permissions["message"].as_str().unwrap();
            let cannot = match command {
                "pexpire" => "extend it",
                _ => "release or extend it",
            };
            let told = format!("so it can take a plain lock, but cannot {cannot}: ");
            assert!(message.contains(&told), "{message}");
        }
    }
}

#[test]
fn a_user_whose_selectors_exclude_the_lock_is_told_so_and_cannot_take_it() {
    let servers = healthy(3);
    // Most users may not run ACL DRYRUN.
    for (denied, cannot) in [
        ("set", "take this lock"),
        ("pexpire", "release or extend this lock"),
        ("get", "release or extend this lock"),
        ("del", "release or extend this lock"),
    ] {
        for dry_run in ["", "-acl"] {
            let rules = format!("+@all -{denied} {dry_run} (+{denied} ~redlock:*)");
            let user = |server| user_of(server, "app", &rules);
            let urls: Vec<_> = servers.iter().map(user).collect();
            let report = Report::of(&urls, &["--key=dock-7"]);
            let message = report.message(&servers[0], "permissions");
            let told = format!("may not run {denied} with the key dock-7, so it cannot {cannot}");
            assert!(message.contains(&told), "{message}");
            let mut command = redlock(&["run", "--ttl=1s", "--no-wait", "--node-timeout=400ms"]);
            command.args(["dock-7", "--", "true"]);
            let code = if denied == "set" { 69 } else { 0 };
            assert_eq!(end_of_command(command, &urls), Some(code), "{rules}");
            // What was not released.
            servers.iter().for_each(|server| {
                let _: i64 = server.query(&["DEL", "dock-7"]).unwrap();
            });
        }
    }
}

/// A script uses several keys at once, and no selector allows them all.
#[test]
fn a_user_whose_selectors_separate_the_keys_of_a_script_is_warned_and_can_take_no_fenced_lock() {
    let servers = healthy(3);
    servers
        .iter()
        .for_each(|server| guard(server, 0, "60000:250:60000"));
    for (rules, is_allowed) in [
        ("~redlock:* +@all (~k +@all)", false),
        ("~k +@all (~redlock:* +@all)", false),
        ("~k ~redlock:* +@all", true),
        ("~* +@all -set (+set ~k)", false),
    ] {
        let user = |server: &Server| {
            let rules = format!("resetkeys allchannels {rules}");
            user_of(server, "app", &rules)
        };
        let urls: Vec<_> = servers.iter().map(user).collect();
        let report = Report::of(&urls, &["--key=k"]);
        let verdict = if is_allowed { "ok" } else { "warn" };
        let found = report.check(&servers[0], "permissions");
        assert_eq!(found["verdict"], verdict, "{rules}: {found}");
        // That of a plain lock sets nothing.
        if !rules.contains("-set") {
            let found = report.check(&servers[0], "line");
            assert_eq!(found["verdict"], verdict, "{rules}: {found}");
        }
        let mut command = redlock(&[
            "run",
            "--fenced",
            "--ttl=1s",
            "--no-wait",
            "--node-timeout=400ms",
        ]);
        command.args(["k", "--", "true"]);
        let code = if is_allowed { 0 } else { 69 };
        assert_eq!(end_of_command(command, &urls), Some(code), "{rules}");
    }
}

#[test]
fn a_user_whose_selectors_hide_how_long_a_lock_is_held_is_warned_and_can_take_a_plain_one() {
    let servers = healthy(3);
    let user = |server| user_of(server, "app", "+@all -pttl (+pttl ~redlock:*)");
    let urls: Vec<_> = servers.iter().map(user).collect();
    let report = Report::of(&urls, &["--key=dock-7"]);
    assert_eq!(report.check(&servers[0], "permissions")["verdict"], "warn");
    let message = report.message(&servers[0], "permissions");
    let told = "may not run pttl with the key dock-7, so its clients poll";
    assert!(message.contains(told), "{message}");
    let mut command = redlock(&["run", "--ttl=1s", "--no-wait", "--node-timeout=400ms"]);
    command.args(["dock-7", "--", "true"]);
    assert_eq!(end_of_command(command, &urls), Some(0));
}

#[test]
fn a_fleet_without_records_may_have_lost_them_and_is_warned_of_if_its_statistics_say_so() {
    let servers = healthy(3);
    let report = Report::of(&servers.urls(), &[]);
    let message = report.fleet("guard")["message"].as_str().unwrap();
    assert!(
        message.contains("or every node has lost its record"),
        "{message}"
    );
    report.expect_bad(&servers, &[], &[]);
    for server in servers.iter() {
        guard(server, 0, "60000:250:60000");
        let () = server.query(&["FLUSHALL"]).unwrap();
    }
    let report = Report::of(&servers.urls(), &[]);
    let check = report.fleet("guard");
    assert_eq!(check["verdict"], "warn", "{check}");
    let message = check["message"].as_str().unwrap();
    assert!(message.contains("do not run redlock init"), "{message}");
    for server in servers.iter() {
        report.expect_message(server, "guard", "the node was flushed since it started");
        assert_eq!(report.check(server, "guard")["verdict"], "warn");
    }
}

#[test]
fn of_a_fleet_that_does_not_answer_it_is_unknown_whether_fenced_locks_are_in_use() {
    let mut servers = healthy(3);
    for server in servers.iter_mut() {
        server.kill();
    }
    let report = Report::of(&servers.urls(), &[]);
    let check = report.fleet("guard");
    assert_eq!(check["verdict"], "warn", "{check}");
    let message = check["message"].as_str().unwrap();
    assert!(message.starts_with("unknown: no node answers"), "{message}");
}

#[test]
fn a_fleet_whose_users_may_not_ask_for_the_time_is_bad_and_gives_plain_locks_without_the_guard_alone()
 {
    let servers = healthy(3);
    let rules = "+set +get +del +pexpire +evalsha +eval +script|load +info +pttl";
    let user = |server| user_of(server, "app", rules);
    let urls: Vec<_> = servers.iter().map(user).collect();
    let report = Report::of(&urls, &[]);
    let bad = [0, 1, 2].map(|number| (number, "permissions"));
    report.expect_bad(&servers, &bad, &["quorum"]);
    let message = report.message(&servers[0], "permissions");
    assert!(message.contains("--no-restart-guard"), "{message}");
    assert!(message.ends_with("ACL SETUSER .. +time"), "{message}");

    // It is as `doctor` says.
    let run = |options: &[&str]| {
        let mut command = redlock(&["run", "--ttl=1s", "--no-wait", "--node-timeout=400ms"]);
        command.args(options).args(["dock-7", "--", "true"]);
        end_of_command(command, &urls)
    };
    assert_eq!(run(&[]), Some(69));
    assert_eq!(run(&["--no-restart-guard"]), Some(0));
}

#[test]
fn a_command_that_is_renamed_or_disabled_is_told_from_one_that_the_user_may_not_run() {
    let words = |command: &str| {
        format!("the server does not know {command}: rename-command has renamed or disabled it")
    };
    for (command, verdict) in [
        ("TIME", "bad"),
        ("DEL", "bad"),
        ("PEXPIRE", "bad"),
        ("EVAL", "bad"),
        ("PTTL", "warn"),
    ] {
        let server = Server::start_without(command);
        let report = Report::of(&[server.url()], &[]);
        let check = report.check(&server, "permissions");
        let name = command.to_lowercase();
        assert_eq!(check["verdict"], verdict, "{check}");
        assert_eq!(check["denied"], serde_json::json!([name]));
        assert_eq!(check["unknown"], serde_json::json!([name]));
        let message = check["message"].as_str().unwrap();
        assert!(message.contains(&words(&name)), "{message}");
        assert!(!message.contains("ACL"), "{message}");
    }
    // What ACLs deny is not said to be unknown.
    let server = Server::start_without("TIME");
    let report = Report::of(&[user_of(&server, "app", "+@all -del")], &[]);
    let check = report.check(&server, "permissions");
    assert_eq!(check["denied"], serde_json::json!(["del", "time"]));
    assert_eq!(check["unknown"], serde_json::json!(["time"]));
    let message = check["message"].as_str().unwrap();
    assert!(message.contains("ACL SETUSER app +del; "), "{message}");
    assert!(message.contains(&words("time")), "{message}");
}

#[test]
fn a_user_without_the_keys_beside_the_locks_is_told_which_locks_work() {
    let servers = healthy(1);
    let no_guard = "so it can take no fenced lock, and a plain lock only without the restart guard";
    for (keys, verdict, denied, told) in [
        (
            "~lock:*",
            "bad",
            &["redlock:guard", "redlock:fence:*", "redlock:owner:*"][..],
            no_guard,
        ),
        (
            "~lock:* ~redlock:fence:*",
            "bad",
            &["redlock:guard", "redlock:owner:*"],
            no_guard,
        ),
        // A script with a key asks for both.
        (
            "~lock:* %R~redlock:guard ~redlock:fence:*",
            "bad",
            &["redlock:guard", "redlock:owner:*"],
            no_guard,
        ),
        (
            "~lock:* ~redlock:guard",
            "warn",
            &["redlock:fence:*", "redlock:owner:*"],
            "plain locks work on the keys that the user may use; fenced locks also need redlock:fence:KEY for each KEY",
        ),
        (
            "~lock:* ~redlock:guard ~redlock:fence:*",
            "warn",
            &["redlock:owner:*"],
            "locks work, but redlock cannot show who holds the lock KEY unless the user may also use redlock:owner:KEY",
        ),
        (
            "~lock:* ~redlock:*",
            "ok",
            &[],
            "every command that locks need",
        ),
    ] {
        for asks in ["", "-acl "] {
            let urls = with_user(&servers, &format!("+@all {asks}resetkeys {keys}"));
            let report = Report::of(&urls, &[]);
            let check = report.check(&servers[0], "permissions");
            assert_eq!(check["verdict"], verdict, "{keys}: {check}");
            assert_eq!(check["denied_keys"], serde_json::json!(denied), "{keys}");
            let message = check["message"].as_str().unwrap();
            assert!(message.contains(told), "{message}");
            assert_eq!(report.code, Some(i32::from(verdict == "bad")));

            // It is as `doctor` says.
            let plain = |options: &[&str]| {
                let mut command = redlock(&["run", "--ttl=1s", "--wait=2s"]);
                command.args(options).args(["lock:7", "--", "true"]);
                end_of_command(command, &urls)
            };
            assert_eq!(plain(&["--no-restart-guard"]), Some(0), "{keys}");
            let guarded = if verdict == "bad" { 69 } else { 0 };
            assert_eq!(plain(&[]), Some(guarded), "{keys}");
        }
    }
}

#[test]
fn each_permission_that_the_waiting_line_needs_is_looked_for() {
    const STAND: &str = "this node keeps no line for its clients";
    const CALL: &str = "this node does not call its clients";
    const COMMANDS: [(&str, &str); 13] = [
        ("time", STAND),
        ("exists", STAND),
        ("pexpire", STAND),
        ("pttl", STAND),
        ("zadd", STAND),
        ("zcard", STAND),
        ("zrange", STAND),
        ("zrank", STAND),
        ("zrem", STAND),
        ("zscore", STAND),
        ("pubsub|numsub", CALL),
        ("publish", CALL),
        ("subscribe", CALL),
    ];
    let servers = healthy(1);
    let mut examinations = Vec::new();
    // Who may not ask what it may do tries.
    for (more, user) in [("", "app"), (" -acl", "..")] {
        for (command, cost) in COMMANDS {
            let rules = format!("+@all &* -{command}{more}");
            let name = format!("without-{}{}", command.replace('|', "-"), more.trim());
            let cure = format!(
                "ACL SETUSER {} +{command}",
                if user == "app" { &name } else { user }
            );
            let urls = [user_of(&servers[0], &name, &rules)];
            let examination = Process::start(examination(&urls, &["--json"]));
            examinations.push((command, cost, cure, examination));
        }
    }
    for (command, cost, cure, examination) in examinations {
        let report = Report::read(&examination.end());
        let line = report.check(&servers[0], "line");
        assert_eq!(line["denied"], serde_json::json!([command]));
        assert_eq!(line["verdict"], "warn", "{command}");
        let message = line["message"].as_str().unwrap();
        assert!(
            message.contains(&format!("cannot run {command}, so {cost}")),
            "{message}"
        );
        assert!(message.ends_with(&cure), "{message}");
        let is_for_locks = ["time", "pexpire"].contains(&command);
        assert_eq!(report.code, Some(i32::from(is_for_locks)));
    }
}

#[test]
fn what_is_granted_as_the_check_of_the_line_says_is_enough() {
    const LOCKS: &str = "+set +get +del +pexpire +evalsha +eval +info +script|load +time +pttl";
    const KEYS: &str = "resetkeys ~lock:* ~redlock:guard ~redlock:fence:*";
    let (lines, mails) = (&["redlock:queue:*"][..], &["redlock:mail:*"][..]);
    let servers = healthy(1);
    let users = [
        ("+@all".to_owned(), &[][..], mails),
        ("+@all -acl &other:*".to_owned(), &[], mails),
        ("+@all -acl|dryrun &redlock:mail:0*".to_owned(), &[], mails),
        (format!("+@all &* {KEYS}"), lines, &[]),
        (format!("+@all -acl &* {KEYS}"), lines, &[]),
        (format!("+@all {KEYS} %R~redlock:queue:*"), lines, mails),
        // The server does not get to the channels.
        (format!("{LOCKS} {KEYS}"), lines, &[]),
        (format!("{LOCKS} {KEYS} +acl|whoami"), lines, &[]),
    ];
    let url = |(number, (rules, ..)): (usize, &(String, _, _))| {
        user_of(&servers[0], &format!("app-{number}"), rules)
    };
    let urls: Vec<String> = users.iter().enumerate().map(url).collect();
    let reports = |urls: &[String]| {
        let examine = |url| Process::start(examination(std::slice::from_ref(url), &["--json"]));
        let examinations: Vec<Process> = urls.iter().map(examine).collect();
        let ended = examinations.into_iter().map(Process::end);
        ended.map(|ended| Report::read(&ended)).collect::<Vec<_>>()
    };
    for (number, report) in reports(&urls).iter().enumerate() {
        let (rules, denied_keys, denied_channels) = &users[number];
        let line = report.check(&servers[0], "line");
        assert_eq!((report.code, &line["verdict"]), (Some(0), &"warn".into()));
        assert_eq!(
            line["denied_keys"],
            serde_json::json!(denied_keys),
            "{rules}"
        );
        assert_eq!(
            line["denied_channels"],
            serde_json::json!(denied_channels),
            "{rules}"
        );
        let message = line["message"].as_str().unwrap();
        let is_of_keys = line["denied"] == serde_json::json!([]) && !denied_keys.is_empty();
        let told = "unless the user may use redlock:queue:KEY";
        assert_eq!(message.contains(told), is_of_keys, "{message}");
        let user = format!("app-{number}");
        let cures = message.split("; ");
        let cures = cures.filter(|cure| !cure.starts_with("if the user has selectors"));
        for cure in cures {
            let (_, rules) = cure.split_once("ACL SETUSER ").unwrap();
            let words = rules.split(' ').skip(1);
            let command: Vec<&str> = ["ACL", "SETUSER", &user].into_iter().chain(words).collect();
            let _: () = servers[0].query(&command).unwrap();
        }
    }
    for (report, (rules, ..)) in reports(&urls).iter().zip(&users) {
        let line = report.check(&servers[0], "line");
        assert_eq!(line["verdict"], "ok", "{rules}: {line}");
        assert_eq!(line["denied"], serde_json::json!([]));
    }
}

#[test]
fn a_server_that_cannot_call_clients_is_told_from_a_user_who_may_not_be_called() {
    for (command, name) in [("ZADD", "zadd"), ("PUBLISH", "publish")] {
        let server = Server::start_without(command);
        let report = Report::of(&[server.url()], &[]);
        let line = report.check(&server, "line");
        assert_eq!(line["verdict"], "warn");
        assert_eq!(line["unknown"], serde_json::json!([name]));
        let message = line["message"].as_str().unwrap();
        assert!(
            message.contains(&format!("the server does not know {name}: it is too old")),
            "{message}"
        );
        assert!(!message.contains("ACL"), "{message}");
        report.expect_message(&server, "permissions", "every command that locks need");
    }
}

#[test]
fn a_node_that_takes_no_writes_is_bad_and_has_no_vote() {
    let refuse: [(&str, Change, Change); 3] = [
        (
            "NOREPLICAS",
            |node| set(node, "min-replicas-to-write", "1"),
            |node| set(node, "min-replicas-to-write", "0"),
        ),
        (
            "OOM",
            |node| set(node, "maxmemory", "100kb"),
            |node| set(node, "maxmemory", "0"),
        ),
        (
            "MISCONF",
            |node| {
                // A directory takes the place of the file.
                set(node, "appendonly", "no");
                set(node, "save", "3600 1");
                let (_, directory): (String, String) =
                    node.query(&["CONFIG", "GET", "dir"]).unwrap();
                std::fs::create_dir(Path::new(&directory).join("dump.rdb")).unwrap();
                let _: () = node.query(&["BGSAVE"]).unwrap();
                eventually("a failed snapshot", || {
                    field(node, "rdb_last_bgsave_status") == "err"
                });
            },
            |node| set(node, "stop-writes-on-bgsave-error", "no"),
        ),
    ];
    for (code, damage, cure) in refuse {
        let servers = healthy(3);
        servers.iter().for_each(damage);
        let all_keys = servers.urls();
        // A user with keys of its own sees it too.
        let some_keys = with_user(&servers, "+@all resetkeys ~lock:* ~redlock:guard");
        for urls in [all_keys, some_keys] {
            let report = Report::of(&urls, &[]);
            let bad = [(0, "writes"), (1, "writes"), (2, "writes")];
            report.expect_bad(&servers, &bad, &["quorum"]);
            assert_eq!(report.check(&servers[0], "writes")["refusal"], code);
            assert_eq!(report.fleet("quorum")["voting"], 0);
        }
        // Patience for a machine that stands still: the default is a twentieth of the TTL.
        let options = ["--ttl=1s", "--node-timeout=400ms", "--no-wait"];
        let take = || end_of(run(&servers, &options, "dock-7", "true")).code;
        assert_eq!(take(), Some(69), "{code}");
        servers.iter().for_each(cure);
        Report::of(&servers.urls(), &[]).expect_bad(&servers, &[], &[]);
        assert_eq!(take(), Some(0), "{code}");
    }
}

#[test]
fn a_lock_that_is_held_while_a_majority_restarts_is_lost_however_long_the_pauses_are() {
    let mut servers = healthy(3);
    for server in &servers[..] {
        set(server, "appendonly", "no");
    }
    let holder = Process::start(run(
        &servers,
        &["--ttl=1s"],
        "dock-7",
        "echo ready; sleep 60",
    ));
    holder.expect_line("ready");
    for node in 0..2 {
        servers[node].restart();
        eventually("an examination that ends with 0", || {
            doctor(&servers.urls(), &[]).code == Some(0)
        });
    }
    assert_eq!(holder.end().code, Some(76));
}

#[test]
fn a_node_that_had_to_evict_is_told_why_its_record_is_gone() {
    let servers = healthy(3);
    for server in &servers[..] {
        guard(server, 0, SHORT);
    }
    set(&servers[0], "maxmemory-policy", "allkeys-lru");
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(&servers, &[(0, "memory")], &[]);
    let told = "clients delete its guard record when they see this; set maxmemory-policy noeviction: \
                then the vote counts after a quarantine";
    let message = report.message(&servers[0], "memory");
    assert!(message.ends_with(told), "{message}");

    let look = || {
        let ended = end_of(run(&servers, &["--ttl=1s", "--no-wait"], "dock-7", "true"));
        ended.expect_code(0);
    };
    look();
    eventually("no record", || record(&servers[0]).is_none());
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(&servers, &[(0, "memory"), (0, "guard")], &[]);
    let message = report.message(&servers[0], "guard");
    assert!(
        message.starts_with("no record: clients delete it on a node that may evict keys"),
        "{message}"
    );

    // It evicts: everything.
    let set_a = ["SET", "a", "value"];
    let _: () = servers[0].query(&set_a).unwrap();
    set(&servers[0], "maxmemory", "1");
    drop(servers[0].query::<()>(&set_a));
    eventually("an eviction", || field(&servers[0], "evicted_keys") != "0");
    set(&servers[0], "maxmemory", "0");
    set(&servers[0], "maxmemory-policy", "noeviction");
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(&servers, &[(0, "guard")], &[]);
    let message = report.message(&servers[0], "guard");
    assert!(
        message.starts_with("no record: the node has evicted "),
        "{message}"
    );
    assert!(
        message.ends_with("its vote counts 4.0 s later: wait"),
        "{message}"
    );
}

/// No client has seen the policy, so none has deleted a record.
#[test]
fn nodes_that_have_evicted_keys_and_kept_their_records_are_warned_of() {
    let servers = healthy(3);
    for server in &servers[..] {
        guard(server, 0, SHORT);
    }
    for server in &servers[..2] {
        set(server, "maxmemory-policy", "volatile-lru");
        let lock = ["SET", "dock-7", "abcdefghijklmnopqrst", "PX", "60000"];
        let _: () = server.query(&lock).unwrap();
        set(server, "maxmemory", "1");
        drop(server.query::<()>(&["SET", "a", "value"]));
        eventually("an eviction", || field(server, "evicted_keys") != "0");
        set(server, "maxmemory", "0");
        set(server, "maxmemory-policy", "noeviction");
        assert!(record(server).is_some());
    }
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(&servers, &[], &[]);
    for server in &servers[..2] {
        assert_eq!(report.check(server, "memory")["verdict"], "warn");
        report.expect_message(server, "memory", "has evicted 1 keys since it started");
        report.expect_message(server, "memory", "unless 4.0 s have passed");
    }
    assert_eq!(report.check(&servers[2], "memory")["verdict"], "ok");
}

#[test]
fn a_user_who_may_not_see_the_configuration_is_told_what_is_not_seen() {
    let servers = healthy(1);
    let report = Report::of(&with_user(&servers, "+@all -config"), &[]);
    let persistence = report.check(&servers[0], "persistence");
    assert_eq!(persistence["verdict"], "warn");
    assert_eq!(persistence["aof"], true);
    assert_eq!(persistence["appendfsync"], Value::Null);
    report.expect_message(&servers[0], "persistence", "+config|get");
}

#[test]
fn no_client_restores_records_from_before_a_change_of_the_settings() {
    let servers = healthy(3);
    let longer = "600000:250:60000";
    for server in &servers[..2] {
        guard_of_another_run(server, SETTINGS);
    }
    guard(&servers[2], 0, longer);
    let report = Report::of(&servers.urls(), &[]);
    for server in &servers[..] {
        report.expect_message(server, "guard", "redlock init --repair");
    }
}

#[test]
fn a_record_of_another_run_or_none_or_a_foreign_value_is_bad_where_fenced_locks_are_in_use() {
    let servers = healthy(7);
    for server in &servers[..4] {
        guard(server, 0, SETTINGS);
    }
    guard_of_another_run(&servers[4], SETTINGS);
    let _: () = servers[5]
        .query(&["RPUSH", "redlock:guard", "a list"])
        .unwrap();
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(
        &servers,
        &[(4, "uptime"), (4, "guard"), (5, "guard"), (6, "guard")],
        &[],
    );
    let records = servers
        .iter()
        .map(|server| report.check(server, "guard")["record"].clone());
    let records: Vec<Value> = records.collect();
    assert_eq!(records[..4], ["counts"; 4]);
    assert_eq!(records[4..], ["other_run", "foreign", "absent"]);
    // Only a foreign value stays until an operator sees to it.
    for server in &servers[4..] {
        let message = report.message(server, "guard");
        assert_eq!(
            message.contains("redlock init --repair"),
            server.port() == servers[5].port(),
            "{message}"
        );
    }
    // The longest TTL, four windows and a second.
    let wait = "the next fenced acquire that a quorum and this node answer restores it, and its vote counts 1 min 2 s later: wait";
    for server in [&servers[4], &servers[6]] {
        let message = report.message(server, "guard");
        assert!(message.ends_with(wait), "{message}");
    }
}

#[test]
fn clients_restore_a_record_beside_a_list_and_not_beside_a_string_that_is_no_record() {
    for (write, restores) in [("RPUSH", true), ("SET", false)] {
        let servers = healthy(3);
        guard(&servers[0], 0, SETTINGS);
        let _: () = servers[2]
            .query(&[write, "redlock:guard", "a note"])
            .unwrap();
        let report = Report::of(&servers.urls(), &[]);
        let message = report.message(&servers[1], "guard");
        assert_eq!(
            message.contains("redlock init --repair"),
            !restores,
            "{message}"
        );
        // Not `end_of`: an error names the hash of a script, which looks like a token.
        let mut acquire = run(&servers, &["--fenced", "--no-wait"], "dock-7", "true");
        assert!(!acquire.output().unwrap().status.success());
        // The acquire has ended, and with it all that its round writes on nodes that answer at once.
        let is_restored = || record(&servers[1]).is_some();
        if restores {
            eventually("the record", is_restored);
        } else {
            assert!(!is_restored());
        }
    }
}

#[test]
fn a_data_set_that_was_replaced_is_told_from_a_restart() {
    let servers = healthy(3);
    let replica = Server::start();
    replica.disown();
    replicate(&servers[0], &replica);
    set(&servers[0], "repl-backlog-ttl", "0");
    for server in &servers[..] {
        guard(server, 0, SETTINGS);
    }
    eventually("the record on the replica", || record(&replica).is_some());
    let _: () = replica.query(&["REPLICAOF", "NO", "ONE"]).unwrap();
    Report::of(&servers.urls(), &[]).expect_bad(&servers, &[], &[]);

    fail_back(&servers[0], &replica);
    let report = Report::of(&servers.urls(), &[]);
    // Clients of plain locks go by its age instead.
    report.expect_bad(&servers, &[(0, "uptime"), (0, "guard")], &[]);
    assert_eq!(report.check(&servers[0], "guard")["record"], "other_data");
    let message = report.message(&servers[0], "guard");
    assert!(
        message.contains("the node was a replica in between"),
        "{message}"
    );
    assert!(message.ends_with("1 min 2 s later: wait"), "{message}");
}

#[test]
fn a_record_of_an_older_version_is_bad_until_clients_write_it_anew() {
    let servers = healthy(3);
    for server in &servers[..] {
        write_guard(server, &format!("{}:0:{SETTINGS}", run_id(server)));
    }
    let report = Report::of(&servers.urls(), &[]);
    let bad: Vec<_> = (0..3)
        .flat_map(|node| [(node, "uptime"), (node, "guard")])
        .collect();
    report.expect_bad(&servers, &bad, &["quorum"]);
    assert_eq!(report.check(&servers[0], "guard")["record"], "older");
    let message = report.message(&servers[0], "guard");
    assert!(message.ends_with("1 min 2 s later: wait"), "{message}");
}

#[test]
fn two_sets_of_rules_of_which_none_has_a_quorum_are_for_an_operator_to_repair() {
    let servers = healthy(3);
    guard(&servers[0], 0, SETTINGS);
    guard(&servers[1], 0, "120000:250:60000");
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(
        &servers,
        &[(1, "guard"), (2, "guard")],
        &["quorum", "guard"],
    );
    let message = report.message(&servers[2], "guard");
    assert!(message.ends_with("no client may restore it: run redlock init --repair"));
    let message = report.fleet("guard")["message"].as_str().unwrap();
    let advice = "give all clients the longest max TTL, window and step back of all records, then run redlock init --repair \
                  --max-ttl=2m --window=250ms --step-back=1m";
    assert!(message.ends_with(advice), "{message}");

    // With a quorum, it is known which.
    guard(&servers[2], 0, SETTINGS);
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(&servers, &[(1, "guard")], &["guard"]);
    // The others would cut the quarantine, which a repair refuses.
    let advice = "give all clients the longest max TTL, window and step back of all records, then run redlock init --repair \
                  --max-ttl=2m --window=250ms --step-back=1m";
    let message = report.message(&servers[1], "guard");
    assert!(message.ends_with(advice), "{message}");
    guard(&servers[1], 0, "1000:250:500");
    let report = Report::of(&servers.urls(), &[]);
    let advice = "give all clients the same settings, then run redlock init --repair --max-ttl=1m --window=250ms --step-back=1m";
    let message = report.message(&servers[1], "guard");
    assert!(message.ends_with(advice), "{message}");
}

/// For records on three nodes, in all orders.
#[test]
fn the_repair_that_doctor_names_is_not_refused_and_shortens_no_setting() {
    /// Of each two, neither has all that is longest; the last two have the same quarantine.
    const ALL: [[u64; 3]; 4] = [
        [60_000, 10_000, 1_000],
        [50_000, 250, 100_000],
        [10_000, 250, 60_000],
        [10_000, 1_000, 57_000],
    ];
    let repair = |servers: &Servers, records: [[u64; 3]; 3]| {
        for (server, [max_ttl, window, step_back]) in servers.iter().zip(records) {
            guard(server, 0, &format!("{max_ttl}:{window}:{step_back}"));
        }
        let report = Report::of(&servers.urls(), &[]);
        let message = report.fleet("guard")["message"].as_str().unwrap();
        let (_, repair) = message.split_once("then run redlock ").unwrap();
        let mut command = redlock(&repair.split(' ').collect::<Vec<_>>());
        be_patient(&mut command, &[]);
        command.env("REDLOCK_NODES", servers.urls().join(","));
        end_of(command).expect_code(0);
        // Max TTL, window and step back.
        let longest = [0, 1, 2].map(|field| records.iter().map(|record| record[field]).max());
        let longest = longest.map(Option::unwrap).map(|ms| ms.to_string());
        for server in &servers[..] {
            let record = record(server).unwrap();
            let fields: Vec<_> = record.split(':').skip(2).take(3).collect();
            assert_eq!(fields, longest, "{records:?}: {repair}");
        }
    };
    // Most of its time, `doctor` waits.
    thread::scope(|threads| {
        for first in ALL {
            threads.spawn(move || {
                let servers = healthy(3);
                let rest = ALL
                    .into_iter()
                    .flat_map(|two| ALL.map(|three| [two, three]));
                for [two, three] in rest.filter(|rest| *rest != [first, first]) {
                    repair(&servers, [first, two, three]);
                }
            });
        }
    });
}

#[test]
fn a_node_that_comes_back_with_other_rules_after_a_repair_without_it_is_to_be_repaired() {
    let servers = healthy(3);
    guard(&servers[2], 0, "1000:250:500");
    servers[2].pause();
    let repair = || {
        let mut command = redlock(&["init", "--repair"]);
        command
            .args(SHORT_OPTIONS)
            .env("REDLOCK_NODES", servers.urls().join(","));
        let ended = end_of(command);
        ended.expect_code(0);
        ended.stderr
    };
    assert!(repair().contains("run it again"));
    servers[2].resume();
    let report = Report::of(&servers.urls(), &[]);
    let advice = "then run redlock init --repair --max-ttl=2s --window=250ms --step-back=1s";
    for message in [
        report.message(&servers[2], "guard"),
        report.fleet("guard")["message"].as_str().unwrap(),
    ] {
        assert!(message.ends_with(advice), "{message}");
    }
    assert_eq!(report.fleet("guard")["configurations"], 2);
    assert_eq!(report.code, Some(1));
    assert!(!repair().contains("run it again"));
    let report = Report::of(&servers.urls(), &[]);
    assert_eq!(report.fleet("guard")["verdict"], "ok");
}

#[test]
fn a_repair_of_two_sets_of_rules_waits_for_the_nodes_that_are_away() {
    let mut servers = healthy(3);
    guard(&servers[0], 0, SETTINGS);
    guard(&servers[1], 0, SHORT);
    servers[2].kill();
    let report = Report::of(&servers.urls(), &[]);
    let message = report.fleet("guard")["message"].as_str().unwrap();
    let advice = "bring all nodes back, give all clients the longest max TTL, window and step back of all records, then run \
                  redlock init --repair --max-ttl=1m --window=250ms --step-back=1m";
    assert!(message.ends_with(advice), "{message}");
}

#[test]
fn an_uptime_is_judged_by_the_longest_ttl_of_any_client_as_run_judges_it() {
    let servers = healthy(3);
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(&servers, &[], &[]);
    // Which a kept lock may outlast.
    for option in ["--max-ttl=1h", "--min-hold=1h"] {
        let report = Report::of(&servers.urls(), &[option]);
        let bad = [(0, "uptime"), (1, "uptime"), (2, "uptime")];
        report.expect_bad(&servers, &bad, &["quorum"]);
        let left = report.check(&servers[0], "uptime")["counts_in_ms"]
            .as_u64()
            .unwrap();
        assert!((3_500_000..=3_636_002).contains(&left), "{left}");
    }

    let plain = |max_ttl| {
        let options = ["--ttl=1s", max_ttl, "--no-wait"];
        end_of(run(&servers, &options, "dock-7", "exit 7")).code
    };
    assert_eq!(
        (plain("--max-ttl=1s"), plain("--max-ttl=1h")),
        (Some(7), Some(69))
    );
}

#[test]
fn nodes_that_were_all_wiped_while_one_is_away_are_for_an_operator_to_repair() {
    let mut servers = healthy(3);
    let told = |report: &Report| {
        let check = report.fleet("guard");
        let repair = check["message"]
            .as_str()
            .unwrap()
            .contains("redlock init --repair");
        (check["verdict"].as_str().unwrap().to_owned(), repair)
    };
    assert_eq!(
        told(&Report::of(&servers.urls(), &[])),
        ("ok".to_owned(), false)
    );
    servers[1].kill();
    assert_eq!(
        told(&Report::of(&servers.urls(), &[])),
        ("warn".to_owned(), true)
    );

    // One record is enough for clients to go by.
    guard(&servers[0], 0, SETTINGS);
    let report = Report::of(&servers.urls(), &[]);
    assert_eq!(told(&report), ("ok".to_owned(), false));
    let message = report.message(&servers[2], "guard");
    assert!(message.ends_with("1 min 2 s later: wait"), "{message}");
}

#[test]
fn no_node_is_said_to_be_away_if_all_answer() {
    let servers = healthy(3);
    let told = |urls: &[String]| {
        let report = Report::of(urls, &[]);
        let message = report.fleet("guard")["message"].as_str().unwrap();
        assert!(
            !report.document.to_string().contains("nodes back"),
            "{message}"
        );
        message.to_owned()
    };
    // Two names of one server.
    let urls = [servers[0].url(), servers[1].url(), servers[0].socket_url()];
    let message = told(&urls);
    assert!(message.starts_with("no guard records: "), "{message}");
    // A node without a vote.
    set(&servers[2], "maxmemory-policy", "allkeys-lru");
    let message = told(&servers.urls());
    let why = "at least one node has no vote for fenced locks: do what the lines of that node say";
    assert!(message.ends_with(why), "{message}");
    // The only server with a vote.
    guard_of_another_run(&servers[0], SETTINGS);
    told(&[servers[0].url(), servers[0].socket_url()]);
    set(&servers[1], "maxmemory-policy", "allkeys-lru");
    let report = Report::of(&servers.urls(), &[]);
    let advice = "the other nodes answer, but have no vote; do what their lines say: then the next";
    report.expect_message(&servers[0], "guard", advice);
}

#[test]
fn clients_restore_every_record_that_doctor_says_to_wait_for() {
    let servers = healthy(3);
    let node = &servers[2];
    let damages: [fn(&Server); 4] = [
        |node| node.query(&["FLUSHALL"]).unwrap(),
        |node| guard_of_another_run(node, SHORT),
        |node| write_guard(node, &format!("{}:0:{SHORT}", run_id(node))),
        // By a clock that is a day ahead.
        |node| guard(node, now_ms(node) + 86_400_000, SHORT),
    ];
    for damage in damages {
        for server in &servers[..] {
            guard(server, 0, SHORT);
        }
        damage(node);
        let report = Report::of(&servers.urls(), &[]);
        let message = report.message(node, "guard");
        assert!(message.ends_with("wait"), "{message}");
        let options = [&["--fenced", "--ttl=1s"], &SHORT_OPTIONS[..]].concat();
        let ended = end_of(run(&servers, &options, "dock-7", "exit 7"));
        ended.expect_code(7);
        // The quarantine is 4 s.
        eventually("its record", || {
            let report = Report::of(&servers.urls(), &[]);
            let check = report.check(node, "guard");
            let left = check["counts_in_ms"].as_u64();
            ["quarantined", "counts"].contains(&check["record"].as_str().unwrap())
                && left.is_some_and(|left| left <= 4_000)
                && check["message"]
                    .as_str()
                    .is_some_and(|told| !told.contains("after"))
        });
    }
}

#[test]
fn clients_write_over_nothing_for_which_doctor_names_init_repair() {
    let mut servers = healthy(3);
    let states: [fn(&[Server]); 3] = [
        |nodes| guard(&nodes[1], 0, SETTINGS),
        |nodes| write_guard(&nodes[1], "a note"),
        // All that answer are wiped.
        |nodes| nodes[0].disown(),
    ];
    for (number, damage) in states.into_iter().enumerate() {
        for server in &servers[..] {
            server.disown();
        }
        guard(&servers[0], 0, SHORT);
        damage(&servers);
        if number == 2 {
            servers[2].kill();
        }
        let report = Report::of(&servers.urls(), &[]);
        let told = report.document.to_string();
        assert!(told.contains("redlock init --repair"), "{told}");
        let records = || -> Vec<_> { servers[..2].iter().map(record).collect() };
        let before = records();
        for _ in 0..2 {
            let options = ["--fenced", "--ttl=1s", "--wait=1s"];
            let options = [&options[..], &SHORT_OPTIONS].concat();
            let ended = end_of(run(&servers, &options, "dock-7", "exit 7"));
            ended.expect_code(69);
        }
        assert_eq!(records(), before);
    }
}

#[test]
fn what_hangs_on_nodes_that_are_away_is_said_so() {
    let mut servers = healthy(3);
    servers[1].kill();
    servers[2].kill();
    guard_of_another_run(&servers[0], SETTINGS);
    let report = Report::of(&servers.urls(), &[]);
    report.expect_message(
        &servers[0],
        "guard",
        "; bring the other nodes back: then the next fenced acquire",
    );
}

#[test]
fn a_node_that_may_evict_has_no_vote_where_fenced_locks_are_in_use() {
    let servers = healthy(3);
    set(&servers[0], "maxmemory-policy", "volatile-lru");
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(&servers, &[], &[]);
    for server in &servers[..] {
        guard(server, 0, SETTINGS);
    }
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(&servers, &[(0, "memory")], &[]);
    assert_eq!(report.fleet("quorum")["voting"], 2);
}

#[test]
fn a_replication_id_that_will_change_is_warned_of() {
    let servers = healthy(3);
    let replica = Server::start();
    replicate(&servers[0], &replica);
    let advice = |when: &str| {
        let report = Report::of(&servers.urls(), &[]);
        report.expect_bad(&servers, &[], &[]);
        let role = report.check(&servers[0], "role");
        let advises = role["message"]
            .as_str()
            .unwrap()
            .contains("repl-backlog-ttl 0");
        let verdict = role["verdict"].as_str().unwrap().to_owned();
        (when.to_owned(), verdict, advises)
    };
    let told = |when: &str, verdict: &str, advises| (when.to_owned(), verdict.to_owned(), advises);
    assert_eq!(advice("with it"), told("with it", "warn", true));
    let _: () = replica.query(&["REPLICAOF", "NO", "ONE"]).unwrap();
    eventually("no replica", || {
        field(&servers[0], "connected_slaves") == "0"
    });
    assert_eq!(advice("after it"), told("after it", "warn", true));
    set(&servers[0], "repl-backlog-ttl", "0");
    assert_eq!(advice("set"), told("set", "ok", false));
}

#[test]
fn a_node_in_quarantine_is_bad_until_it_is_over() {
    let servers = healthy(3);
    for server in &servers[1..] {
        guard(server, 0, SETTINGS);
    }
    let now: (u64, u64) = servers[0].query(&["TIME"]).unwrap();
    let told = |until_s: u64| {
        guard(&servers[0], until_s * 1_000, SETTINGS);
        let report = Report::of(&servers.urls(), &[]);
        (report.code, report.check(&servers[0], "guard").clone())
    };
    let (code, check) = told(now.0 + 50);
    assert_eq!((code, &check["record"]), (Some(1), &"quarantined".into()));
    let left = check["counts_in_ms"].as_u64().unwrap();
    assert!((1..=50_000).contains(&left), "{left}");
    assert!(check["message"].as_str().unwrap().ends_with("; wait"));
    // The clock of the writer was a day ahead.
    let (code, check) = told(now.0 + 86_400);
    assert_eq!((code, &check["counts_in_ms"]), (Some(1), &62_000.into()));
    let message = check["message"].as_str().unwrap();
    assert!(
        message.contains("counts 1 min 2 s after the next fenced acquire: the record says "),
        "{message}"
    );
    let (code, check) = told(now.0 - 1);
    assert_eq!((code, &check["record"]), (Some(0), &"counts".into()));
}

#[test]
fn configurations_that_differ_are_bad() {
    let servers = healthy(3);
    for (server, settings) in servers.iter().zip([SETTINGS, SETTINGS, "60000:100:60000"]) {
        guard(server, 0, settings);
    }
    let report = Report::of(&servers.urls(), &[]);
    report.expect_bad(&servers, &[(2, "guard")], &["guard"]);
    let message = report.fleet("guard")["message"].as_str().unwrap();
    let one = format!("window 100ms, step back 1m on {}", name(&servers[2]));
    assert!(message.contains(&one), "{message}");
}

#[test]
fn a_ttl_or_a_min_hold_that_the_records_do_not_allow_is_bad() {
    let servers = healthy(3);
    for server in &servers[..] {
        guard(server, 0, "999:250:60000");
    }
    let bad = [(0, "guard"), (1, "guard"), (2, "guard")];
    for refused in [&["--ttl=1s"][..], &["--ttl=500ms", "--min-hold=1s"]] {
        let report = Report::of(&servers.urls(), refused);
        report.expect_bad(&servers, &bad, &["quorum", "guard"]);
        report.expect_message(&servers[0], "guard", "a TTL or --min-hold of 1s");
    }
    let report = Report::of(&servers.urls(), &["--ttl=500ms", "--min-hold=999ms"]);
    report.expect_bad(&servers, &[], &[]);
}

#[test]
fn an_even_number_of_nodes_is_warned_of() {
    let servers = healthy(2);
    let report = Report::of(&servers.urls(), &[]);
    assert_eq!(report.code, Some(0));
    assert_eq!(report.fleet("nodes")["verdict"], "warn");
}

#[test]
fn clocks_of_one_machine_agree() {
    let servers = healthy(3);
    let report = Report::of(&servers.urls(), &[]);
    for server in &servers[..] {
        let (clock, drift) = (report.check(server, "clock"), report.check(server, "drift"));
        let number = |value: &Value| value.as_i64().unwrap();
        assert!(
            number(&clock["offset_us"]).abs() <= number(&clock["error_us"]),
            "{clock}"
        );
        assert!(number(&drift["error_ppm"]) > 0, "{drift}");
    }
}

#[test]
fn clocks_that_are_further_apart_than_the_window_are_bad_although_all_nodes_vote() {
    const WINDOW_MS: u32 = 600_000;

    let servers = Servers::start_with_clocks(3);
    for is_fenced in [false, true] {
        for server in servers.iter() {
            match is_fenced {
                true => guard(server, 0, &format!("60000:{WINDOW_MS}:60000")),
                false => server.disown(),
            }
        }
        let micros = if is_fenced { 400_000_000 } else { 170_000 };
        servers[0].step_clock(-micros);
        servers[2].step_clock(micros);
        if !is_fenced {
            aged(&servers);
        }
        let report = Report::of(&servers.urls(), &[]);
        for (server, other) in [(0, 2), (2, 0)] {
            let clock = report.check(&servers[server], "clock");
            assert_eq!(
                clock["verdict"],
                if is_fenced { "bad" } else { "warn" },
                "{clock}"
            );
            let message = clock["message"].as_str().unwrap();
            let apart = format!(" from that of {} (±", name(&servers[other]));
            assert!(message.contains(&apart), "{message}");
            let why = "without the nodes between them, no client can take a fenced lock";
            assert!(message.contains(why), "{message}");
        }
        assert_eq!(report.check(&servers[1], "clock")["verdict"], "ok");
        assert_eq!(report.fleet("quorum")["voting"], 3);
        assert_eq!(report.code, Some(i32::from(is_fenced)));
    }
}

#[test]
fn a_round_trip_is_compared_with_the_node_timeout_of_run() {
    let servers = healthy(3);
    let distant = |server: &Server| Distant::start(server.port(), Duration::from_millis(30));
    let urls: Vec<String> = servers.iter().map(|server| distant(server).url()).collect();
    let ended = doctor(&urls, &["--ttl=2s"]);
    ended.expect_stdout("more than half of the default node timeout of 100 ms: set a longer one");
}

#[test]
fn a_node_that_answers_later_than_the_node_timeout_of_run_has_no_vote() {
    let servers = healthy(3);
    let distant = |server: &Server| Distant::start(server.port(), Duration::from_millis(60));
    let urls: Vec<String> = servers.iter().map(|server| distant(server).url()).collect();
    let examine = |options: &[&str]| {
        let mut command = redlock(&["doctor", "--seconds=1"]);
        command.args(options).env("REDLOCK_NODES", urls.join(","));
        end_of(command)
    };
    let run_once = |options: &[&str]| {
        let options = [&["--no-wait"], options].concat();
        let mut command = run(&servers, &options, "dock-7", "exit 0");
        command.env("REDLOCK_NODES", urls.join(","));
        end_of(command)
    };
    let near = ["--ttl=2s"];
    let far = ["--ttl=2s", "--node-timeout=600ms"];
    // Until the votes of the new servers count.
    eventually("a run", || run_once(&far).code == Some(0));
    examine(&far).expect_code(0);
    run_once(&near).expect_code(69);
    let ended = examine(&near);
    ended.expect_code(1);
    ended.expect_stdout("more than the node timeout of 100 ms of redlock run: it has no vote");
    ended.expect_stdout("0 of 3 nodes vote, 2 are a quorum: no client can take a lock");
}

#[test]
fn where_most_nodes_are_down_no_client_can_take_a_lock_whatever_its_kind() {
    let mut servers = healthy(3);
    servers.iter().for_each(|server| guard(server, 0, SETTINGS));
    servers[..2].iter_mut().for_each(Server::kill);
    let report = Report::of(&servers.urls(), &[]);
    let message = report.fleet("quorum")["message"].as_str().unwrap();
    assert_eq!(
        message,
        "1 of 3 nodes vote, 2 are a quorum: no client can take a lock"
    );
}

#[test]
fn an_examination_changes_no_key() {
    let servers = healthy(3);
    for (number, rules, options, tried) in [
        (0, "+@all &*", &[][..], 1),
        (0, "+@all &*", &["--key=dock-7"], 1),
        (1, "+@all &* -acl", &[], 2),
        (1, "+@all &* -acl", &["--key=dock-7"], 2),
    ] {
        let server = &servers[number];
        let _: () = server
            .query(&["SET", "dock-7", "a token", "EX", "3600"])
            .unwrap();
        let writes = |server: &Server| {
            let calls = server.calls();
            ["set", "del", "pexpire"].map(|command| calls[command])
        };
        // Of a key that came and went, this tells.
        let changes = |server: &Server| field(server, "rdb_changes_since_last_save");
        let before = (server.keys(), writes(server), changes(server));
        let ended = doctor(&with_user(&servers[number..=number], rules), options);
        ended.expect_code(0);
        let after = (server.keys(), writes(server), changes(server));
        assert_eq!((before.0, before.2), (after.0, after.2));
        // Who may ask does not even try.
        // But for a SET that sets nothing: whether writes are taken.
        let [sets, others @ ..] = [0, 1, 2].map(|command| after.1[command] - before.1[command]);
        assert_eq!((sets, number == 0), (tried, others == [0, 0]));
        // Who tries subscribes for a moment.
        eventually("no subscription", || {
            let channels: Vec<String> = server.query(&["PUBSUB", "CHANNELS"]).unwrap();
            channels.is_empty()
        });
    }
}

type Change = fn(&Server);

const SETTINGS: &str = "60000:250:60000";

/// A quarantine of 4 s.
const SHORT: &str = "2000:250:1000";
const SHORT_OPTIONS: [&str; 3] = ["--max-ttl=2s", "--window=250ms", "--step-back=1s"];

/// Servers about which there is nothing to say, for locks of a second.
pub(crate) fn healthy(count: usize) -> Servers {
    let servers = unvouched(count);
    for server in &servers[..] {
        set(server, "appendfsync", "always");
        set(server, "appendonly", "yes");
    }
    aged(&servers);
    servers
}

/// Waits until each runs for longer than a lock of a second lasts on any clock; of an uptime, a second may
/// not have passed.
fn aged(servers: &[Server]) {
    eventually("an uptime of three seconds", || {
        servers.iter().all(|server| {
            let uptime = field(server, "uptime_in_seconds").parse::<u64>();
            uptime.unwrap() >= 3
        })
    });
}

pub(crate) fn end_of_command(mut command: Command, urls: &[String]) -> Option<i32> {
    command.env("REDLOCK_NODES", urls.join(","));
    end_of(command).code
}

fn doctor(urls: &[String], options: &[&str]) -> Ended {
    end_of(examination(urls, options))
}

/// Of locks of a second, if `options` name no other TTL.
pub(crate) fn examination(urls: &[String], options: &[&str]) -> Command {
    let mut command = redlock(&["doctor", "--seconds=1"]);
    if !options.iter().any(|option| option.starts_with("--ttl")) {
        command.arg("--ttl=1s");
    }
    be_patient(&mut command, options);
    command.args(options).env("REDLOCK_NODES", urls.join(","));
    command
}

/// What --json printed.
pub(crate) struct Report {
    pub(crate) code: Option<i32>,
    pub(crate) document: Value,
}

impl Report {
    pub(crate) fn of(urls: &[String], options: &[&str]) -> Self {
        Self::read(&doctor(urls, &[options, &["--json"]].concat()))
    }

    pub(crate) fn read(ended: &Ended) -> Self {
        assert_eq!(ended.stderr, "");
        Self {
            code: ended.code,
            document: ended.stdout.parse().unwrap(),
        }
    }

    fn node(&self, server: &Server) -> &Value {
        let nodes = self.document["nodes"].as_array().unwrap();
        let node = nodes.iter().find(|node| node["node"] == name(server));
        &node.unwrap()["checks"]
    }

    pub(crate) fn check(&self, server: &Server, name: &str) -> &Value {
        check(self.node(server), name)
    }

    pub(crate) fn message(&self, server: &Server, name: &str) -> &str {
        self.check(server, name)["message"].as_str().unwrap()
    }

    #[track_caller]
    pub(crate) fn expect_message(&self, server: &Server, name: &str, text: &str) {
        let message = self.message(server, name);
        assert!(message.contains(text), "{message}");
    }

    fn fleet(&self, name: &str) -> &Value {
        check(&self.document["fleet"]["checks"], name)
    }

    /// These checks of these nodes and of the fleet are bad, and no others.
    fn expect_bad(&self, servers: &[Server], nodes: &[(usize, &str)], fleet: &[&str]) {
        let bad_of = |checks: &Value| -> Vec<String> {
            let checks = checks.as_array().unwrap().iter();
            let bad = checks.filter(|check| check["verdict"] == "bad");
            bad.map(|check| check["check"].as_str().unwrap().to_owned())
                .collect()
        };
        let mut bad = Vec::new();
        for (number, server) in servers.iter().enumerate() {
            bad.extend(
                bad_of(self.node(server))
                    .into_iter()
                    .map(|check| (number, check)),
            );
        }
        let expected = nodes
            .iter()
            .map(|(number, check)| (*number, (*check).to_owned()));
        assert_eq!(bad, expected.collect::<Vec<_>>(), "{:#}", self.document);
        assert_eq!(
            bad_of(&self.document["fleet"]["checks"]),
            fleet,
            "{:#}",
            self.document
        );
        let code = i32::from(!nodes.is_empty() || !fleet.is_empty());
        assert_eq!(self.code, Some(code));
    }
}

fn check<'a>(checks: &'a Value, name: &str) -> &'a Value {
    let checks = checks.as_array().unwrap();
    let check = checks.iter().find(|check| check["check"] == name);
    check.unwrap_or_else(|| panic!("no {name}"))
}

/// The URLs of the servers, of which the first is used as the user `app` with these rules.
fn with_user(servers: &[Server], rules: &str) -> Vec<String> {
    let mut urls: Vec<String> = servers.iter().map(Server::url).collect();
    urls[0] = user_of(&servers[0], "app", rules);
    urls
}

fn evict(server: &Server) {
    set(server, "maxmemory", "100mb");
    set(server, "maxmemory-policy", "allkeys-lru");
}
