//! `redlock init`: what it writes, what it leaves alone, and when it writes nothing.

use redlock_tests::Server;

use crate::process::{Ended, end_of, redlock};
use crate::server::{guard, replicate, run_id, unvouched, user_of};

#[test]
fn the_first_start_writes_a_record_of_this_run_whose_vote_counts_at_once() {
    let servers = unvouched(3);
    let ended = init(&servers.urls(), &[]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
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
        assert_eq!(
            record(server),
            format!("{}:0:60000:250:60000", run_id(server))
        );
        let ttl: i64 = server.query(&["PTTL", "redlock:guard"]).unwrap();
        assert_eq!(ttl, -1, "it is there until the node loses it");
    }
}

#[test]
fn the_settings_are_the_operator_s() {
    let servers = unvouched(1);
    let options = ["--max-ttl=2m", "--window=1500ms", "--step-back=1s"];
    assert_eq!(init(&servers.urls(), &options).code, Some(0));
    assert_eq!(
        record(&servers[0]),
        format!("{}:0:120000:1500:1000", run_id(&servers[0]))
    );
}

#[test]
fn a_record_that_is_there_is_kept_and_told() {
    let servers = unvouched(4);
    let until = 4_102_444_800_000;
    guard(&servers[0], &run_id(&servers[0]), 7, SETTINGS);
    guard(&servers[1], &run_id(&servers[1]), until, SETTINGS);
    guard(&servers[2], "0123456789abcdef", 0, SETTINGS);
    let before: Vec<_> = servers[..3].iter().map(record).collect();
    let ended = init(&servers.urls(), &[]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let after: Vec<_> = servers[..3].iter().map(record).collect();
    assert_eq!(before, after);
    for (line, told) in ended.stdout.lines().zip([
        "kept: there is a record of this run, its vote counts (max TTL 1m, window 250ms, step back 1m)",
        "kept: there is a record of this run, in quarantine for ",
        "kept: there is a record of another run of the server",
        "written: its vote counts now; there was no record",
    ]) {
        assert!(line.contains(told), "{line}");
    }
}

#[test]
fn force_writes_over_whatever_is_there_and_tells_it() {
    let servers = unvouched(4);
    guard(
        &servers[0],
        &run_id(&servers[0]),
        4_102_444_800_000,
        SETTINGS,
    );
    guard(&servers[1], "0123456789abcdef", 0, "1:2:3");
    let _: () = servers[2]
        .query(&["SET", "redlock:guard", "a note"])
        .unwrap();
    let _: () = servers[3]
        .query(&["RPUSH", "redlock:guard", "a list"])
        .unwrap();
    let ended = init(&servers.urls(), &["--force"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    for server in &servers[..] {
        assert_eq!(record(server), format!("{}:0:{SETTINGS}", run_id(server)));
    }
    for (line, told) in ended.stdout.lines().zip([
        "there was a record of this run, in quarantine for ",
        "there was a record of another run of the server (max TTL 1ms, window 2ms, step back 3ms)",
        "there was something that is no record",
        "there was something that is no record",
    ]) {
        assert!(line.contains(told), "{line}");
    }
}

#[test]
fn nothing_is_written_when_a_node_cannot_be_reached() {
    let mut servers = unvouched(3);
    servers[1].kill();
    expect_refusal(&servers.urls(), &servers, "refused: connection refused");
}

#[test]
fn nothing_is_written_when_a_node_hangs() {
    let servers = unvouched(3);
    servers[1].pause();
    expect_refusal(&servers.urls(), &servers[..1], "within 1.0 s");
}

#[test]
fn nothing_is_written_when_a_node_is_a_replica() {
    let servers = unvouched(3);
    replicate(&servers[0], &servers[2]);
    let why = format!("refused: a replica of 127.0.0.1:{}", servers[0].port());
    expect_refusal(&servers.urls(), &servers, &why);
}

#[test]
fn nothing_is_written_when_two_nodes_are_one_server() {
    let servers = unvouched(2);
    let urls = [servers[0].url(), servers[1].url(), servers[0].socket_url()];
    let why = format!(
        "refused: the same server as 127.0.0.1:{}",
        servers[0].port()
    );
    expect_refusal(&urls, &servers, &why);
}

#[test]
fn nothing_is_written_when_a_user_may_not_write() {
    let servers = unvouched(2);
    let urls = [servers[0].url(), user_of(&servers[1], "app", "+@all -set")];
    expect_refusal(&urls, &servers, "redlock doctor says which");
}

#[test]
fn nothing_is_written_when_a_record_has_other_settings_unless_by_force() {
    let servers = unvouched(2);
    guard(&servers[1], &run_id(&servers[1]), 0, "60000:100:60000");
    let ended = init(&servers.urls(), &[]);
    assert_eq!(ended.code, Some(1));
    assert!(
        ended.stdout.contains(
            "refused: has a record with other settings (max TTL 1m, window 100ms, step back 1m)"
        ),
        "{}",
        ended.stdout
    );
    assert!(servers[0].keys().is_empty());

    let ended = init(&servers.urls(), &["--force"]);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(
        record(&servers[1]),
        format!("{}:0:{SETTINGS}", run_id(&servers[1]))
    );
}

#[test]
fn nothing_is_written_when_something_else_is_in_the_place_of_a_record() {
    let servers = unvouched(2);
    let _: () = servers[1]
        .query(&["SET", "redlock:guard", "a note"])
        .unwrap();
    let ended = init(&servers.urls(), &[]);
    assert_eq!(ended.code, Some(1));
    assert!(
        ended
            .stdout
            .contains("refused: redlock:guard is no guard record"),
        "{}",
        ended.stdout
    );
    assert!(servers[0].keys().is_empty());
    assert_eq!(record(&servers[1]), "a note");
}

const SETTINGS: &str = "60000:250:60000";

/// Neither with --force nor without it is anything written to `servers`.
fn expect_refusal(urls: &[String], servers: &[Server], why: &str) {
    for options in [&[][..], &["--force"]] {
        let ended = init(urls, options);
        assert_eq!(ended.code, Some(1), "{}", ended.stdout);
        assert!(ended.stdout.contains(why), "{}", ended.stdout);
        assert!(
            ended.stderr.contains("nothing was written"),
            "{}",
            ended.stderr
        );
        for server in servers {
            // One that is down has nothing either.
            let keys: usize = server.query(&["DBSIZE"]).unwrap_or_default();
            assert_eq!(keys, 0, "{}", ended.stdout);
        }
    }
}

fn init(urls: &[String], options: &[&str]) -> Ended {
    let mut command = redlock(&["init"]);
    command.args(options).env("REDLOCK_NODES", urls.join(","));
    end_of(command)
}

fn record(server: &Server) -> String {
    server.query(&["GET", "redlock:guard"]).unwrap()
}
