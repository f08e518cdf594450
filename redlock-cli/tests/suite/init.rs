//! `redlock init`: what it writes, what it leaves alone, and when it writes nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use redlock_tests::{Server, Servers};

use crate::process::{Ended, Process, be_patient, end_of, eventually, redlock, run};
use crate::server::{
    fail_back, field, guard, guard_of_another_run, name, now_ms, record, replicate, run_id, set,
    unvouched, user_of, write_guard,
};

#[test]
fn the_first_start_writes_a_record_of_this_run_and_data_set_whose_vote_counts_at_once() {
    let servers = unvouched(3);
    let ended = init(&servers.urls(), &[]);
    ended.expect_code(0);
    let line = "written: its vote counts now; there was no record";
    assert_eq!(
        ended
            .stdout
            .lines()
            .filter(|told| told.ends_with(line))
            .count(),
        3
    );
    for server in &servers[..] {
        assert_counts_at_once(server, SETTINGS);
        let ttl: i64 = server.query(&["PTTL", "redlock:guard"]).unwrap();
        assert_eq!(ttl, -1, "it is there until the node loses it");
    }
}

#[test]
fn the_settings_are_the_operator_s() {
    let servers = unvouched(1);
    let options = ["--max-ttl=2m", "--window=1500ms", "--step-back=1s"];
    assert_eq!(init(&servers.urls(), &options).code, Some(0));
    assert_counts_at_once(&servers[0], "120000:1500:1000");
}

#[test]
fn where_every_record_is_sound_there_is_nothing_to_do() {
    let servers = unvouched(3);
    assert_eq!(init(&servers.urls(), &[]).code, Some(0));
    let until = now_ms(&servers[2]) + 30_000;
    guard(&servers[2], until, SETTINGS);
    let before: Vec<_> = servers.iter().map(record).collect();
    // The vote of the third one does not count yet.
    for (options, code) in [(&[][..], 2), (&["--repair"], 0)] {
        let ended = init(&servers.urls(), options);
        ended.expect_code(code);
        for (line, told) in ended.stdout.lines().zip([
            "nothing to do: a record, its vote counts (max TTL 1m, window 250ms, step back 1m)",
            "nothing to do: a record, its vote counts (max TTL 1m, window 250ms, step back 1m)",
            "nothing to do: a record, its vote counts in 2",
        ]) {
            assert!(line.contains(told), "{line}");
        }
    }
    assert_eq!(servers.iter().map(record).collect::<Vec<_>>(), before);

    // The clock of the node was ahead when it was written: the next client cuts it.
    guard(&servers[2], until + 86_400_000, SETTINGS);
    let ended = init(&servers.urls(), &[]);
    ended.expect_code(2);
    let told = "its vote counts 1 min 2 s after the next fenced acquire";
    assert_told(&ended, &servers[2], told);
}

#[test]
fn a_node_that_was_flushed_while_a_lease_is_out_gets_its_vote_back_from_clients_only() {
    let servers = unvouched(3);
    assert_eq!(init(&servers.urls(), &[]).code, Some(0));
    let holder = holder(&servers);
    let _: () = servers[1].query(&["FLUSHALL"]).unwrap();
    let ended = expect_no_write(&servers.urls(), &servers, &[]);
    let why = "refused: no record: the next fenced acquire that a quorum and this node answer restores it, and its vote \
               counts 1 min 2 s later";
    assert_told(&ended, &servers[1], why);
    assert_told(&ended, &servers[0], "there is a record, its vote counts");
    expect_held(&servers.urls(), holder);
}

#[test]
fn nodes_that_restarted_empty_while_a_lease_is_out_get_their_votes_back_from_clients_only() {
    let mut servers = unvouched(3);
    assert_eq!(init(&servers.urls(), &[]).code, Some(0));
    let holder = holder(&servers);
    servers[0].restart();
    servers[1].restart();
    let ended = expect_no_write(&servers.urls(), &servers, &[]);
    for server in &servers[..2] {
        assert_told(
            &ended,
            server,
            "refused: no record: the next fenced acquire that a quorum and this node answer restores it",
        );
    }
    expect_held(&servers.urls(), holder);
}

#[test]
fn a_node_that_failed_over_and_back_while_a_lease_is_out_gets_its_vote_back_from_clients_only() {
    let servers = unvouched(4);
    let (nodes, replica) = (&servers[..3], &servers[3]);
    // The first replica changes the replication ID, so it comes first.
    replicate(&nodes[0], replica);
    let urls = &servers.urls()[..3];
    assert_eq!(init(urls, &[]).code, Some(0));
    eventually("the record on the replica", || record(replica).is_some());
    let _: () = replica.query(&["REPLICAOF", "NO", "ONE"]).unwrap();
    let holder = Process::ready(holding(urls));
    eventually("the lock on the node", || nodes[0].key_count() == 1);

    let run = run_id(&nodes[0]);
    fail_back(&nodes[0], replica);
    assert_eq!((run_id(&nodes[0]), nodes[0].key_count()), (run, 0));
    assert!(record(&nodes[0]).is_some(), "it came back");
    let ended = expect_no_write(urls, nodes, &[]);
    let why = "refused: a record of another data set (max TTL 1m, window 250ms, step back 1m): the next fenced acquire";
    assert_told(&ended, &nodes[0], why);
    expect_held(urls, holder);
}

#[test]
fn a_node_that_wants_a_password_says_so() {
    let servers = unvouched(3);
    let wants = ["CONFIG", "SET", "requirepass", "secret"];
    let _: () = servers[2].query(&wants).unwrap();
    let ended = init(&servers.urls(), &[]);
    ended.expect_code(1);
    assert_told(
        &ended,
        &servers[2],
        "refused: NOAUTH Authentication required",
    );
}

#[test]
fn a_node_that_restarted_with_its_data_is_left_to_clients() {
    let servers = unvouched(3);
    assert_eq!(init(&servers.urls(), &[]).code, Some(0));
    guard_of_another_run(&servers[2], SETTINGS);
    let ended = expect_no_write(&servers.urls(), &servers, &[]);
    let why = "refused: a record of another run of the server (max TTL 1m, ";
    assert_told(&ended, &servers[2], why);
}

#[test]
fn a_record_of_an_older_version_is_left_to_clients_or_repaired_with_a_quarantine() {
    let servers = unvouched(3);
    for server in &servers[..] {
        write_guard(server, &format!("{}:0:{SETTINGS}", run_id(server)));
    }
    let ended = expect_no_write(&servers.urls(), &servers, &[]);
    let why = "refused: a record of an older version (max TTL 1m, window 250ms, step back 1m): the next fenced acquire";
    assert_told(&ended, &servers[0], why);
    repair(&servers.urls(), &[]);
    for server in &servers[..] {
        expect_quarantine(server, SETTINGS, 62_000);
    }
}

#[test]
fn a_fleet_that_was_flushed_whole_while_a_lease_is_out_is_no_new_one() {
    let servers = unvouched(3);
    assert_eq!(init(&servers.urls(), &[]).code, Some(0));
    for server in &servers[..] {
        let _: () = server.query(&["FLUSHALL"]).unwrap();
    }
    let ended = expect_no_write(&servers.urls(), &servers, &[]);
    assert_told(
        &ended,
        &servers[0],
        "flushed, evicted a key, was a replica, or has loaded a dump of a server with replicas, since it started: it may have lost a lock",
    );
}

#[test]
fn a_node_that_has_evicted_a_key_may_have_forgotten_a_lock() {
    let servers = unvouched(3);
    let _: () = servers[1].query(&["SET", "dock-7", "a token"]).unwrap();
    set(&servers[1], "maxmemory-policy", "allkeys-lru");
    set(&servers[1], "maxmemory", "1");
    eventually("an eviction", || field(&servers[1], "evicted_keys") != "0");
    set(&servers[1], "maxmemory", "0");
    set(&servers[1], "maxmemory-policy", "noeviction");
    let ended = expect_no_write(&servers.urls(), &servers, &[]);
    let why = "flushed, evicted a key, was a replica, or has loaded a dump of a server with replicas, since it started: it may have lost a lock";
    assert_told(&ended, &servers[1], why);
    assert_told(&ended, &servers[0], "not written: there is no record");
}

#[test]
fn a_key_with_a_ttl_may_be_a_lock_and_forbids_a_first_start() {
    for set in [
        "redis.call('SET', 'dock-7', 'abcdefghijklmnopqrst', 'PX', 60000)",
        "redis.call('SELECT', 3); redis.call('SET', 'dock-7', 'abcdefghijklmnopqrst', 'PX', 60000)",
    ] {
        let servers = unvouched(3);
        let _: () = servers[2].query(&["EVAL", set, "0"]).unwrap();
        let ended = expect_no_write(&servers.urls(), &servers, &[]);
        assert_told(&ended, &servers[2], "1 key with a TTL: it may be a lock");
        ended.expect_stderr("1 min 2 s after the first fenced acquire");
    }
    // One without a TTL is none.
    let servers = unvouched(1);
    let _: () = servers[0].query(&["SET", "note", "value"]).unwrap();
    assert_eq!(init(&servers.urls(), &[]).code, Some(0));
}

#[test]
fn how_long_everything_must_have_stood_still_is_told_by_the_given_settings_and_those_of_the_records()
 {
    let servers = unvouched(1);
    let urls = servers.urls();
    let told = |options: &[&str]| {
        let ended = init(&urls, options);
        ended.expect_code(0);
        ended.stderr
    };
    let line = |time| format!("{}\n", safe_only(time, None));
    // Without a record, nothing tells those that clients have had.
    let first = format!("{}\n", safe_only("1 min 2 s", Some(AT_LEAST)));
    assert_eq!(told(&[]), first);
    assert_eq!(told(&[]), "", "nothing to do");
    // The settings that a lease may still have count too.
    let shorter = [
        "--force",
        "--max-ttl=2s",
        "--window=250ms",
        "--step-back=1s",
    ];
    assert_eq!(told(&shorter), line("1 min 2 s"));
    assert_eq!(told(&shorter), line("4.0 s"));
    assert_eq!(
        told(&["--force", "--step-back=10m"]),
        line("10 min 2 s"),
        "the step back is longer than any TTL"
    );
}

#[test]
fn nodes_whose_clocks_never_go_back_have_records_that_say_so() {
    let servers = Servers::start(3);
    for server in &servers[..2] {
        guard(server, 0, "2000:250:0");
    }
    guard(&servers[2], 0, "2000:100:0");
    // What `doctor` advises.
    let mut command = redlock(&["doctor", "--ttl=1s", "--seconds=1"]);
    command.env("REDLOCK_NODES", servers.urls().join(","));
    let ended = end_of(command);
    let report = ended
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let advice = "redlock init --repair --max-ttl=2s --window=250ms --step-back=0s";
    assert!(report.contains(advice), "{report}");
    let options: Vec<_> = advice.split(' ').skip(2).collect();
    let ended = init(&servers.urls(), &options);
    ended.expect_code(0);
    expect_quarantine(&servers[2], "2000:250:0", 4_000);
    // Clients take them.
    let options = [
        "--fenced",
        "--ttl=1s",
        "--max-ttl=2s",
        "--step-back=0s",
        "--no-wait",
    ];
    assert_eq!(
        end_of(run(&servers, &options, "dock-7", "exit 7")).code,
        Some(7)
    );
}

#[test]
fn force_writes_over_whatever_is_there_and_tells_it() {
    let servers = unvouched(4);
    guard(&servers[0], now_ms(&servers[0]) + 30_000, SETTINGS);
    guard_of_another_run(&servers[1], "1:2:3");
    write_guard(&servers[2], "a note");
    let _: () = servers[3]
        .query(&["RPUSH", "redlock:guard", "a list"])
        .unwrap();
    let ended = init(&servers.urls(), &["--force"]);
    ended.expect_code(0);
    for server in &servers[..] {
        assert_counts_at_once(server, SETTINGS);
    }
    for (line, told) in ended.stdout.lines().zip([
        "its vote counts now; there was a record, its vote counts in 29",
        "there was a record of another run of the server (max TTL 1ms, window 2ms, step back 3ms)",
        "there was something at redlock:guard that is no record",
        "there was something at redlock:guard that is no record",
    ]) {
        assert!(line.contains(told), "{line}");
    }
}

#[test]
fn repair_ends_a_race_of_two_sets_of_rules_and_its_votes_count_after_the_quarantine() {
    let servers = unvouched(3);
    guard(&servers[0], 0, SHORT);
    guard(&servers[1], 0, "1000:250:500");
    let before = record(&servers[0]);
    let ended = expect_no_write(&servers.urls(), &servers, &SHORT_OPTIONS);
    assert_told(&ended, &servers[1], "has a record with other settings");
    let why = "refused: no record: no client restores it: run redlock init --repair";
    assert_told(&ended, &servers[2], why);
    // Which of the two are the fleet's, only its operator knows.
    let ended = expect_no_write(&servers.urls(), &servers, &["--repair"]);
    ended.expect_stderr("--max-ttl=2s --window=250ms --step-back=1s");

    let ended = repair(&servers.urls(), &SHORT_OPTIONS);
    ended.expect_not_in_stderr("safe only if");
    assert_eq!(record(&servers[0]), before, "it was sound");
    for server in &servers[1..] {
        expect_quarantine(server, SHORT, 4_000);
    }
    expect_votes_after_the_quarantine(&servers);
}

#[test]
fn repair_begins_again_where_all_nodes_that_answer_were_wiped_while_one_is_down() {
    let mut servers = unvouched(3);
    assert_eq!(init(&servers.urls(), &SHORT_OPTIONS).code, Some(0));
    servers[2].kill();
    for server in &servers[..2] {
        let _: () = server.query(&["FLUSHALL"]).unwrap();
    }
    let ended = expect_no_write(&servers.urls(), &servers[..2], &SHORT_OPTIONS);
    ended.expect_stderr("stay away, run redlock init --repair");
    let ended = repair(&servers.urls(), &SHORT_OPTIONS);
    assert_told(&ended, &servers[2], "not written: connection refused");
    let told = format!(
        "redlock: this was safe only if {AT_LEAST}; run it again when the missing nodes are back, because they may have \
         records with other settings: {}\n",
        name(&servers[2])
    );
    assert!(ended.stderr.starts_with(&told), "{}", ended.stderr);
    for server in &servers[..2] {
        expect_quarantine(server, SHORT, 4_000);
    }
    expect_votes_after_the_quarantine(&servers);
}

#[test]
fn a_change_of_settings_by_repair_needs_all_nodes() {
    const OLD: &str = "1000:250:500";
    let change = [&["--repair"], &SHORT_OPTIONS[..]].concat();
    let servers = unvouched(3);
    servers[2].pause();
    // One record is enough, of whatever run.
    let states: [fn(&[Server]); 3] = [
        |nodes| nodes.iter().for_each(|node| guard(node, 0, OLD)),
        |nodes| guard(&nodes[1], 0, SHORT),
        |nodes| guard_of_another_run(&nodes[0], OLD),
    ];
    for damage in states {
        damage(&servers[..2]);
        let ended = expect_no_write(&servers.urls(), &servers[..2], &change);
        assert_told(&ended, &servers[2], "refused: ");
        assert_told(&ended, &servers[0], "not written: there is a record");
        let advice = format!("bring {} back", name(&servers[2]));
        for told in ["a change of settings needs all nodes", &advice] {
            ended.expect_stderr(told);
        }
    }
    // Without a change, a minority may be away.
    guard(&servers[1], 0, OLD);
    let ended = repair(
        &servers.urls(),
        &["--max-ttl=1s", "--window=250ms", "--step-back=500ms"],
    );
    ended.expect_not_in_stderr("safe only if");

    servers[2].resume();
    repair(&servers.urls(), &SHORT_OPTIONS);
    for server in &servers[..] {
        expect_quarantine(server, SHORT, 4_000);
    }
}

#[test]
fn a_first_start_that_records_of_two_rules_forbid_while_a_node_is_away_waits_for_it() {
    let mut servers = unvouched(3);
    guard(&servers[0], 0, SETTINGS);
    guard(&servers[1], 0, SHORT);
    servers[2].kill();
    let ended = expect_no_write(&servers.urls(), &servers[..2], &[]);
    let advice = "bring the missing nodes back, give all clients the same settings, then run redlock init \
                  --repair";
    ended.expect_stderr(advice);
}

#[test]
fn repair_takes_the_place_of_a_foreign_value_and_leaves_sound_records_alone() {
    let servers = unvouched(5);
    guard(&servers[0], 0, SETTINGS);
    guard(&servers[1], now_ms(&servers[1]) + 30_000, SETTINGS);
    guard_of_another_run(&servers[2], SETTINGS);
    write_guard(&servers[3], "a note");
    let _: () = servers[4]
        .query(&["RPUSH", "redlock:guard", "a list"])
        .unwrap();
    let before: Vec<_> = servers[..2].iter().map(record).collect();
    let ended = init(&servers.urls(), &[]);
    ended.expect_code(1);
    let why = "refused: something at redlock:guard that is no record: no client restores it: run redlock init --repair";
    for server in &servers[3..] {
        assert_told(&ended, server, why);
    }
    repair(&servers.urls(), &[]);
    assert_eq!(servers[..2].iter().map(record).collect::<Vec<_>>(), before);
    for server in &servers[2..] {
        expect_quarantine(server, SETTINGS, 62_000);
    }
}

#[test]
fn a_repair_that_would_shorten_the_quarantine_is_refused() {
    for (old, new, least) in [
        (
            "120000:250:60000",
            "--max-ttl=1m",
            "--max-ttl=2m --window=250ms --step-back=1m",
        ),
        (
            "1000:250:500000",
            "--step-back=1m",
            "--max-ttl=1m --window=250ms --step-back=8m20s",
        ),
        (
            "60000:500:60000",
            "--window=250ms",
            "--max-ttl=1m --window=500ms --step-back=1m",
        ),
    ] {
        let servers = unvouched(3);
        guard(&servers[0], 0, SETTINGS);
        guard(&servers[1], 0, old);
        let ended = expect_no_write(&servers.urls(), &servers, &["--repair", new]);
        let why = "refused: has a record with a longer quarantine (max TTL ";
        assert_told(&ended, &servers[1], why);
        assert_told(&ended, &servers[0], "not written: there is a record");
        for told in [
            &format!("give at least {least}; or stop all clients for "),
            "redlock init --force --max-ttl=1m",
        ] {
            ended.expect_stderr(told);
        }
        // A node that restarted has granted leases by its record all the same.
        guard_of_another_run(&servers[1], old);
        expect_no_write(&servers.urls(), &servers, &["--repair", new]);
        // What it asks for is enough.
        let least: Vec<&str> = least.split(' ').collect();
        repair(&servers.urls(), &least);
    }
}

/// Fences may be as far ahead of the clocks as the old window, and the clocks may be set back by as much as the old limit.
#[test]
fn a_repair_does_not_narrow_the_window_although_the_quarantine_is_longer() {
    for narrow in ["--window=1ms", "--step-back=0s"] {
        let servers = unvouched(3);
        guard(&servers[0], 0, SETTINGS);
        guard(&servers[1], 0, SETTINGS);
        let ended = expect_no_write(
            &servers.urls(),
            &servers,
            &["--repair", "--max-ttl=2m", narrow],
        );
        let why = "refused: has a record with a longer window or step back (max TTL 1m";
        assert_told(&ended, &servers[1], why);
        ended.expect_stderr("give at least --max-ttl=1m --window=250ms --step-back=1m; or stop");
    }
}

/// That of a majority may be longer than that of the record with the longest quarantine.
#[test]
fn a_repair_of_records_that_differ_shortens_none_of_their_settings() {
    let servers = unvouched(3);
    guard(&servers[0], 0, "60000:250:100000");
    for server in &servers[1..] {
        guard(server, 0, "60000:10000:1000");
    }
    let longest = [
        "--repair",
        "--max-ttl=1m",
        "--window=250ms",
        "--step-back=1m40s",
    ];
    let ended = expect_no_write(&servers.urls(), &servers, &longest);
    let why = "refused: has a record with a longer window or step back (max TTL 1m, window 10s";
    assert_told(&ended, &servers[1], why);
    let least = "--max-ttl=1m --window=10s --step-back=1m40s";
    // The longest quarantine of a record, not that of the settings together.
    let stopped = format!("give at least {least}; or stop all clients for 1 min 42 s, and ");
    ended.expect_stderr(&stopped);
    // What it names if no settings are given is not refused.
    let ended = expect_no_write(&servers.urls(), &servers, &["--repair"]);
    let why = "refused: the records have different settings (max TTL 1m, window 10s";
    assert_told(&ended, &servers[1], why);
    ended.expect_stderr(&format!(
        "give all clients the same settings, then run redlock init --repair {least}; if a node"
    ));
    repair(&servers.urls(), &least.split(' ').collect::<Vec<_>>());
    for server in &servers[..] {
        expect_quarantine(server, "60000:10000:100000", 141_000);
    }
}

#[test]
fn a_repair_keeps_the_settings_of_the_records_that_are_not_given() {
    let servers = unvouched(3);
    for server in &servers[..] {
        guard(server, 0, "1000:100:0");
    }
    let ended = repair(&servers.urls(), &["--max-ttl=2s"]);
    for server in &servers[..] {
        expect_quarantine(server, "2000:100:0", 3_400);
    }
    let all = "--max-ttl=2s --window=100ms --step-back=0s";
    let told = format!("give all fenced clients {all}: what was not given is from the records\n");
    ended.expect_stderr(&told);
    // Clients that have the window of before have a vote again.
    let options: Vec<_> = all.split(' ').chain(["--fenced", "--ttl=1s"]).collect();
    let fenced = |wait| {
        let options = [&options[..], &[wait]].concat();
        end_of(run(&servers, &options, "dock-7", "exit 7")).code
    };
    assert_eq!(fenced("--wait=25s"), Some(7));

    // The longest of all records; all of them are known only if all nodes answer.
    guard(&servers[1], 0, "2000:150:0");
    guard_of_another_run(&servers[2], "1000:100:500");
    repair(&servers.urls(), &["--max-ttl=3s"]);
    for server in &servers[..] {
        expect_quarantine(server, "3000:150:500", 4_600);
    }
}

#[test]
fn a_repair_without_settings_takes_those_on_which_the_records_agree() {
    let mut servers = unvouched(3);
    guard_of_another_run(&servers[0], SHORT);
    write_guard(&servers[1], "a note");
    servers[2].kill();
    let ended = repair(&servers.urls(), &[]);
    for server in &servers[..2] {
        expect_quarantine(server, SHORT, 4_000);
    }
    // They are not changed, so the clients have them.
    ended.expect_not_in_stderr("fenced clients");
}

#[test]
fn a_repair_never_takes_settings_from_a_record_that_no_client_can_have() {
    let servers = unvouched(3);
    // Of two days, which is more than any window.
    guard(&servers[1], 0, "60000:172800000:60000");
    for options in [&["--repair"][..], &["--repair", "--max-ttl=2m"]] {
        let ended = expect_no_write(&servers.urls(), &servers, options);
        let why = "refused: has a record (max TTL 1m, window 2days, step back 1m)";
        assert_told(&ended, &servers[1], why);
        ended.expect_stderr("take nodes down whose settings no client has");
    }
}

#[test]
fn a_repair_does_not_lower_the_longest_ttl_although_the_quarantine_is_as_long() {
    let servers = unvouched(3);
    servers.iter().for_each(|server| guard(server, 0, SETTINGS));
    let ended = expect_no_write(
        &servers.urls(),
        &servers,
        &[
            "--repair",
            "--max-ttl=10s",
            "--window=250ms",
            "--step-back=1m",
        ],
    );
    let why =
        "refused: has a record with a longer max TTL (max TTL 1m, window 250ms, step back 1m)";
    assert_told(&ended, &servers[0], why);
    let advice = "give at least --max-ttl=1m --window=250ms --step-back=1m; or stop all clients for 1 min 2 s, ";
    ended.expect_stderr(advice);
    // More is safe.
    repair(
        &servers.urls(),
        &["--max-ttl=2m", "--window=250ms", "--step-back=1m"],
    );
}

#[test]
fn the_quarantine_of_a_repair_is_not_cut_by_the_next_fenced_acquire() {
    const LONG: [&str; 3] = ["--max-ttl=1m", "--window=250ms", "--step-back=1m"];
    for (old, new) in [(SETTINGS, SHORT_OPTIONS), (SHORT, LONG)] {
        let servers = unvouched(3);
        guard(&servers[0], 0, old);
        let ended = init(&servers.urls(), &[&["--repair"], &new[..]].concat());
        let before: Vec<_> = servers.iter().map(record).collect();
        let options = [&new[..], &["--fenced", "--ttl=1s", "--wait=1s"]].concat();
        assert_eq!(
            end_of(run(&servers, &options, "dock-7", "exit 7")).code,
            Some(69)
        );
        assert_eq!(servers.iter().map(record).collect::<Vec<_>>(), before);
        ended.expect_code(i32::from(old == SETTINGS));
    }
}

#[test]
fn a_record_from_a_clock_that_was_ahead_is_repaired_with_one_quarantine() {
    let servers = unvouched(1);
    guard(&servers[0], now_ms(&servers[0]) + 31_536_000_000, SETTINGS);
    repair(&servers.urls(), &[]);
    expect_quarantine(&servers[0], SETTINGS, 62_000);
}

#[test]
fn a_repair_needs_a_quorum_of_nodes() {
    let mut servers = unvouched(3);
    guard_of_another_run(&servers[0], SETTINGS);
    servers[1].kill();
    servers[2].kill();
    let ended = expect_no_write(&servers.urls(), &servers[..1], &["--repair"]);
    assert_told(&ended, &servers[1], "refused: connection refused");
}

#[test]
fn nothing_is_written_when_a_node_cannot_be_reached() {
    let mut servers = unvouched(3);
    servers[1].kill();
    expect_refusal(
        &servers.urls(),
        &servers,
        &WITHOUT_REPAIR,
        "refused: connection refused",
    );
}

#[test]
fn nothing_is_written_when_a_node_hangs() {
    let servers = unvouched(3);
    servers[1].pause();
    expect_refusal(
        &servers.urls(),
        &servers[..1],
        &WITHOUT_REPAIR,
        "within 3.0 s",
    );
}

#[test]
fn nothing_is_written_when_a_node_is_a_replica() {
    let servers = unvouched(3);
    replicate(&servers[0], &servers[2]);
    let why = format!("refused: a replica of {}", name(&servers[0]));
    expect_refusal(&servers.urls(), &servers, &EACH_MODE, &why);
}

#[test]
fn nothing_is_written_when_two_nodes_are_one_server() {
    let servers = unvouched(2);
    let urls = [servers[0].url(), servers[1].url(), servers[0].socket_url()];
    let why = format!("refused: the same server as {}", name(&servers[0]));
    expect_refusal(&urls, &servers, &EACH_MODE, &why);
}

#[test]
fn nothing_is_written_when_a_node_may_evict() {
    let servers = unvouched(3);
    set(&servers[1], "maxmemory-policy", "volatile-ttl");
    let why = "refused: the node may evict locks, so fenced clients give it no vote: set maxmemory-policy noeviction";
    expect_refusal(&servers.urls(), &servers, &EACH_MODE, why);
}

#[test]
fn nothing_is_written_when_a_user_may_not_write() {
    let servers = unvouched(2);
    let urls = [servers[0].url(), user_of(&servers[1], "app", "+@all -set")];
    expect_refusal(&urls, &servers, &EACH_MODE, "redlock doctor says which");
}

#[test]
fn nothing_is_written_when_the_records_have_other_settings() {
    let servers = unvouched(3);
    for server in &servers[..] {
        guard(server, 0, "60000:100:60000");
    }
    let ended = expect_no_write(&servers.urls(), &servers, &[]);
    let why = "refused: has a record with other settings (max TTL 1m, window 100ms, step back 1m)";
    assert_told(&ended, &servers[1], why);
    let advice = "give --max-ttl=1m --window=100ms --step-back=1m";
    ended.expect_stderr(advice);
}

#[test]
fn nothing_is_written_when_something_else_is_in_the_place_of_a_record() {
    let servers = unvouched(2);
    write_guard(&servers[1], "a note");
    let ended = expect_no_write(&servers.urls(), &servers, &[]);
    assert_told(&ended, &servers[1], "refused: something at redlock:guard");
}

#[test]
fn the_nodes_that_were_written_are_named_when_another_one_fails() {
    for mode in EACH_MODE {
        let servers = unvouched(3);
        let word = mode.strip_prefix("--").unwrap_or("start");
        let urls = [
            servers[0].url(),
            servers[1].url(),
            way_to(&servers[2], word, None),
        ];
        let ended = init(&urls, &[mode]);
        ended.expect_code(1);
        assert!(record(&servers[2]).is_none());
        ended.expect_stdout("the record may have been written");
        let written: Vec<String> = servers[..2]
            .iter()
            .filter(|server| record(server).is_some())
            .map(name)
            .collect();
        // A first start ends at the first node that fails; their order is the same for every client.
        let told = match written.as_slice() {
            [] => "redlock: no record was written".to_owned(),
            written => {
                let rest = if mode == "--repair" {
                    "; run it again until all nodes have one"
                } else {
                    ""
                };
                format!(
                    "redlock: a record was written only on {}{rest}",
                    written.join(", ")
                )
            }
        };
        let mut lines = ended.stderr.lines();
        assert_eq!(lines.next(), Some(&*told));
        // Votes that count at once are on the operator, and so are settings that no record tells.
        let told = if mode == "--repair" {
            format!("redlock: this was safe only if {AT_LEAST}")
        } else {
            safe_only("1 min 2 s", Some(AT_LEAST))
        };
        let last = Some(&*told).filter(|_| !written.is_empty());
        assert_eq!(lines.next(), last);
        assert!(mode.is_empty() || written.len() == 2, "{}", ended.stdout);
    }
}

#[test]
fn what_a_client_writes_in_between_is_not_written_over() {
    const KEY: &str = "SET dock-7 abcdefghijklmnopqrst PX 60000";
    const RECORD: &str = "SET redlock:guard 0123456789abcdef:0:60000:250:60000:fedcba98";
    for (mode, word, command, told) in [
        (
            "",
            "start",
            KEY,
            "failed: a client has just written a key that expires",
        ),
        (
            "",
            "start",
            RECORD,
            "failed: a client has just written a record of another run",
        ),
        (
            "--repair",
            "repair",
            RECORD,
            "failed: a client has just written a record of another run",
        ),
        (
            "",
            "start",
            "CONFIG SET maxmemory-policy allkeys-lru",
            "failed: the node may evict locks",
        ),
        (
            "",
            "start",
            "REPLICAOF 127.0.0.1 1",
            "failed: the node has just restarted or failed over",
        ),
    ] {
        let servers = unvouched(1);
        let ended = init(&[way_to(&servers[0], word, Some(command))], &[mode]);
        ended.expect_code(1);
        ended.expect_stdout(told);
        assert_eq!(ended.stderr, "redlock: no record was written\n");
        let there = record(&servers[0]).unwrap_or_default();
        assert!(there.is_empty() || RECORD.ends_with(&there), "{there}");
    }
}

#[test]
fn a_record_that_another_init_overwrites_is_noticed() {
    let servers = unvouched(3);
    let mut order: Vec<&Server> = servers.iter().collect();
    // That of the writes.
    order.sort_by_key(|server| run_id(server));
    let (first, last) = (order[0], order[2]);
    let other = record_of(first, now_ms(first), "120000:250:60000");
    let (target, command) = (name(first), format!("SET redlock:guard {other}"));
    let way = watched_way_to(last, "force", move || {
        tell(&target, &command);
        true
    });
    let ended = init(&[first.url(), order[1].url(), way], &["--force"]);
    ended.expect_code(1);
    assert_told(&ended, first, "failed: the record was overwritten");
    assert_told(&ended, first, "max TTL 2m");
    assert_told(&ended, order[1], "written: its vote counts now");
}

#[test]
fn an_init_that_comes_while_another_one_writes_the_same_waits_for_it() {
    let servers = unvouched(3);
    guard(&servers[0], now_ms(&servers[0]), SETTINGS);
    let writes: Vec<_> = servers[1..]
        .iter()
        .map(|server| {
            let record = record_of(server, now_ms(server), SETTINGS);
            (name(server), format!("SET redlock:guard {record}"))
        })
        .collect();
    let looks = AtomicUsize::new(0);
    let way = watched_way_to(&servers[2], "look", move || {
        // At the second look, the other one goes on.
        if looks.fetch_add(1, Ordering::Relaxed) == 1 {
            writes
                .iter()
                .for_each(|(target, command)| tell(target, command));
        }
        true
    });
    let ended = init(&[servers[0].url(), servers[1].url(), way], &[]);
    ended.expect_code(0);
    assert_told(
        &ended,
        &servers[1],
        "nothing to do: a record, its vote counts",
    );
}

#[test]
fn nothing_is_written_when_a_clock_is_outside_of_the_window() {
    let servers = Servers::start_with_clocks(3);
    servers.iter().for_each(Server::disown);
    servers[1].step_clock(10_000_000);
    let told = "refused: its clock is ";
    expect_refusal(&servers.urls(), &servers, &EACH_MODE, told);
    let ended = init(&servers.urls(), &[]);
    assert_told(&ended, &servers[1], "s ahead of the median of the nodes (±");
    assert_told(&ended, &servers[1], "outside of the window of 250 ms");
    assert_told(&ended, &servers[0], "not written: there is no record");
    // Within the window, it may be off.
    servers[1].step_clock(0);
    init(&servers.urls(), &["--window=1h"]).expect_code(0);
}

#[test]
fn nothing_is_written_when_two_clocks_are_further_apart_than_the_window() {
    let servers = Servers::start_with_clocks(3);
    servers.iter().for_each(Server::disown);
    // Each of them is within the window of the median.
    servers[0].step_clock(-300_500_000);
    servers[2].step_clock(400_000_000);
    let expect_refusal = |mode| {
        let ended = expect_no_write(&servers.urls(), &servers, &["--window=10m", mode]);
        assert_told(&ended, &servers[2], "refused: its clock is 6 min ");
        assert_told(&ended, &servers[2], " ahead of the median of the nodes (±");
        let apart = format!("and 11 min 40 s from that of {} (±", name(&servers[0]));
        assert_told(&ended, &servers[2], &apart);
        assert_told(&ended, &servers[2], "further than the window of 10 min 0 s");
        assert_told(&ended, &servers[1], "not written: there is no record");
    };
    EACH_MODE.into_iter().for_each(expect_refusal);
    init(&servers.urls(), &["--window=12m"]).expect_code(0);
}

#[test]
fn a_repair_says_that_its_votes_do_not_count_yet() {
    let servers = unvouched(3);
    // Nothing is written the second time.
    for _ in 0..2 {
        let ended = repair(&servers.urls(), &[]);
        let last = ended.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("redlock: the votes count in "), "{last}");
        let until = "until then, redlock doctor and redlock init end with 1 or 2";
        assert!(last.ends_with(until), "{last}");
    }
    init(&servers.urls(), &[]).expect_code(2);
}

const SETTINGS: &str = "60000:250:60000";

/// A quarantine of 4 s.
const SHORT: &str = "2000:250:1000";
const SHORT_OPTIONS: [&str; 3] = ["--max-ttl=2s", "--window=250ms", "--step-back=1s"];

/// What is said when votes count at once.
fn safe_only(time: &str, condition: Option<&str>) -> String {
    let are_idle = format!(
        "these nodes are new, or they have been running for {time} (a whole quarantine) without a client that held a lock"
    );
    let conditions = match condition {
        Some(condition) => format!("both are true: (1) {are_idle}; (2) {condition}"),
        None => are_idle,
    };
    format!("redlock: this was safe only if {conditions}; if not, stop all clients now, for {time}")
}

/// What is said where no record tells the settings of the clients.
const AT_LEAST: &str =
    "--max-ttl, --window and --step-back are at least those that the clients have had";

/// The empty one is no option at all.
const EACH_MODE: [&str; 3] = ["", "--force", "--repair"];
const WITHOUT_REPAIR: [&str; 2] = ["", "--force"];

/// In none of these modes is anything written to empty `servers`.
fn expect_refusal(urls: &[String], servers: &[Server], modes: &[&str], why: &str) {
    for mode in modes {
        let ended = expect_no_write(urls, servers, &[mode]);
        ended.expect_stdout(why);
        for server in servers {
            // One that is down has nothing either.
            let keys: usize = server.query(&["DBSIZE"]).unwrap_or_default();
            assert_eq!(keys, 0, "{}", ended.stdout);
        }
    }
}

/// It exits with 1, says that nothing was written, and nothing was.
fn expect_no_write(urls: &[String], servers: &[Server], options: &[&str]) -> Ended {
    let dump = |server: &Server| {
        server
            .query::<Option<Vec<u8>>>(&["DUMP", "redlock:guard"])
            .ok()
    };
    let before: Vec<_> = servers.iter().map(dump).collect();
    let ended = init(urls, options);
    ended.expect_code(1);
    let told = "nothing was written on any node";
    ended.expect_stderr(told);
    assert_eq!(servers.iter().map(dump).collect::<Vec<_>>(), before);
    ended
}

fn repair(urls: &[String], options: &[&str]) -> Ended {
    let ended = init(urls, &[&["--repair"], options].concat());
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    ended
}

/// There is a record of this run and data set, whose vote does not count for a while yet.
fn expect_quarantine(server: &Server, settings: &str, quarantine_ms: u64) {
    let record = record(server).unwrap();
    let until: u64 = record.split(':').nth(1).unwrap().parse().unwrap();
    assert_eq!(record, record_of(server, until, settings));
    let left = until.saturating_sub(now_ms(server));
    assert!((1..=quarantine_ms).contains(&left), "{left}");
    // No test machine stands still for that long.
    assert!(left > quarantine_ms.saturating_sub(20_000), "{left}");
}

/// No client gets a fenced lock at once, and one that waits gets it.
fn expect_votes_after_the_quarantine(servers: &Servers) {
    let fenced = |wait| {
        let options = [&SHORT_OPTIONS[..], &["--fenced", "--ttl=1s", wait]].concat();
        end_of(run(servers, &options, "dock-7", "exit 7")).code
    };
    assert_eq!(fenced("--no-wait"), Some(69));
    assert_eq!(fenced("--wait=25s"), Some(7));
}

/// A lock that is held until it is dropped, without an owner record, which would be a second key.
fn holder(servers: &Servers) -> Process {
    let script = "echo ready; sleep 60";
    let holder = Process::ready(run(servers, &["--fenced", "--owner="], "dock-7", script));
    eventually("the lock on each node", || servers.key_count() == 3);
    holder
}

/// No other client gets the lock of `holder`.
fn expect_held(urls: &[String], holder: Process) {
    let mut command = redlock(&["run", "--fenced", "--no-wait", "dock-7", "--", "true"]);
    command.env("REDLOCK_NODES", urls.join(","));
    let code = end_of(command).code;
    assert!(code == Some(75) || code == Some(69), "{code:?}");
    drop(holder);
}

/// The same on some of them.
fn holding(urls: &[String]) -> std::process::Command {
    let mut command = redlock(&["run", "--fenced", "--owner=", "dock-7", "--"]);
    command.args(["sh", "-c", "echo ready; sleep 60"]);
    command.env("REDLOCK_NODES", urls.join(","));
    command
}

/// The URL of a way to `server` that is watched for a message in which `word` stands. Before that goes on, the server gets
/// `command`; if there is none, the way ends there.
fn way_to(server: &Server, word: &'static str, command: Option<&'static str>) -> String {
    let target = name(server);
    watched_way_to(server, word, move || {
        if let Some(command) = command {
            tell(&target, command);
        }
        command.is_some()
    })
}

/// The URL of a way to `server` that is watched for messages in which `word` stands. Before each goes on, `hook` is called; if it
/// returns `false`, the way ends there.
fn watched_way_to(
    server: &Server,
    word: &'static str,
    hook: impl Fn() -> bool + Send + Sync + 'static,
) -> String {
    let target = name(server);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let hook = Arc::new(hook);
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let (target, hook) = (target.clone(), Arc::clone(&hook));
            thread::spawn(move || go(client, &target, word, &*hook));
        }
    });
    url
}

fn go(mut client: TcpStream, target: &str, word: &str, hook: &dyn Fn() -> bool) {
    let mut node = TcpStream::connect(target).unwrap();
    let (mut answers, mut back) = (node.try_clone().unwrap(), client.try_clone().unwrap());
    thread::spawn(move || std::io::copy(&mut answers, &mut back));
    let argument = format!("\r\n{word}\r\n");
    let mut buffer = [0; 65_536];
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        let message = &buffer[..count];
        let mut windows = message.windows(argument.len());
        if windows.any(|window| window == argument.as_bytes()) && !hook() {
            break;
        }
        node.write_all(message).unwrap();
    }
    let _closed = client.shutdown(std::net::Shutdown::Both);
    let _closed = node.shutdown(std::net::Shutdown::Both);
}

/// Sends a command to the server with this name, over a connection of its own.
fn tell(target: &str, command: &str) {
    let mut other = TcpStream::connect(target).unwrap();
    write!(other, "{command}\r\n").unwrap();
    let mut answer = [0; 5];
    other.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+OK\r\n");
}

fn init(urls: &[String], options: &[&str]) -> Ended {
    let mut command = redlock(&["init"]);
    be_patient(&mut command, options);
    let options = options.iter().filter(|option| !option.is_empty());
    command.args(options).env("REDLOCK_NODES", urls.join(","));
    end_of(command)
}

fn record_of(server: &Server, until_ms: u64, settings: &str) -> String {
    let (run_id, data) = (run_id(server), field(server, "master_replid"));
    format!("{run_id}:{until_ms}:{settings}:{data}")
}

/// The record is of the server as it is, and its quarantine is over, unless the clock goes back.
fn assert_counts_at_once(server: &Server, settings: &str) {
    let found = record(server).unwrap();
    let until_ms = found.split(':').nth(1).unwrap().parse().unwrap();
    assert_eq!(found, record_of(server, until_ms, settings));
    let now = now_ms(server);
    assert!(
        until_ms <= now && until_ms + 60_000 > now,
        "{until_ms}, {now}"
    );
}

fn assert_told(ended: &Ended, server: &Server, told: &str) {
    let name = name(server);
    let mut lines = ended.stdout.lines();
    let line = lines
        .find(|line| line.starts_with(&name))
        .unwrap_or_default();
    assert!(line.contains(told), "{}", ended.stdout);
}
