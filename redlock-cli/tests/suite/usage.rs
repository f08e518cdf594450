//! Arguments, before any server is asked.

use crate::process::{end_of, redlock};

#[test]
fn help_and_version_are_no_error() {
    for (arguments, text) in [
        (&["--help"][..], "Usage: redlock <COMMAND>"),
        (&["--version"], env!("CARGO_PKG_VERSION")),
        (&["run", "--help"], "REDLOCK_NODES"),
        (&["demo", "--help"], "--seed"),
        (&["inspect", "--help"], "REDLOCK_NODES"),
        (&["doctor", "--help"], "counts_in_ms"),
        (&["init", "--help"], "looks like a new one"),
        (&["init", "--help"], "CONFIG RESETSTAT"),
        (
            &["init", "--help"],
            "has stood still for a whole quarantine",
        ),
        (
            &["run", "--help"],
            "the wait was over while another held it; 69 no quorum of nodes reached",
        ),
        (
            &["doctor", "--help"],
            "is lost when a majority of the nodes has restarted since it was granted",
        ),
        (
            &["doctor", "--help"],
            "A client that had no connection meanwhile counts from its next one",
        ),
        (&["inspect", "--help"], "counts (whether this state counts)"),
    ] {
        let ended = end_of(redlock(arguments));
        assert_eq!(ended.code, Some(0), "{arguments:?}");
        let told = ended
            .stdout
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(told.contains(text), "{}", ended.stdout);
        assert_eq!(ended.stderr, "");
    }
}

#[test]
fn arguments_that_make_no_sense_exit_with_64_and_say_why() {
    const NODE: &str = "--node=redis://127.0.0.1:1";
    for (arguments, why) in [
        (&[][..], "Usage"),
        (&["lock"], "unrecognized subcommand"),
        (&["run", NODE, "key"], "<CMD>"),
        (&["run", "key", "--", "true"], "--node"),
        (&["run", "--node=", "key", "--", "true"], "no node"),
        (
            &["run", NODE, "--ttl=soon", "key", "--", "true"],
            "write 30s",
        ),
        (
            &["run", NODE, "--ttl=2ms", "key", "--", "true"],
            "TTL is too short",
        ),
        (
            &["run", NODE, "--ttl=99ms", "key", "--", "true"],
            "--ttl 99ms: the TTL is too short for a command, which must have ended before the lease does: at least 100ms",
        ),
        (
            &["run", NODE, "--ttl=60d", "key", "--", "true"],
            "TTL is too long",
        ),
        (
            &["run", NODE, "--node-timeout=30s", "key", "--", "true"],
            "node time-out",
        ),
        (
            &[
                "run",
                NODE,
                "--ttl=1s",
                "--kill-after=445ms",
                "key",
                "--",
                "true",
            ],
            "at most 444 ms",
        ),
        (
            &["run", NODE, "--no-wait", "--wait=1s", "key", "--", "true"],
            "cannot be used with",
        ),
        (
            &["run", NODE, "--window=1s", "key", "--", "true"],
            "--fenced",
        ),
        (
            &[
                "run",
                NODE,
                "--fenced",
                "--ttl=2m",
                "--max-ttl=1m",
                "key",
                "--",
                "true",
            ],
            "--ttl 2m is longer than --max-ttl 1m",
        ),
        (
            &["run", NODE, "--fenced", "--ttl=2m", "key", "--", "true"],
            "--ttl 2m is longer than the default of --max-ttl, 1m: give --max-ttl",
        ),
        (&["run", NODE, "-E256", "key", "--", "true"], "256"),
        (
            &["run", "--node=http://host", "key", "--", "true"],
            "no scheme of a node",
        ),
        (
            &["run", NODE, NODE, "key", "--", "true"],
            "127.0.0.1:1 is named twice",
        ),
        (&["doctor"], "--node"),
        (&["doctor", "--node="], "no node"),
        (&["doctor", NODE, NODE], "127.0.0.1:1 is named twice"),
        (&["doctor", NODE, "--ttl=2ms"], "TTL is too short"),
        (
            &["doctor", NODE, "--ttl=2m", "--max-ttl=1m"],
            "--ttl 2m is longer than --max-ttl 1m",
        ),
        (
            &["doctor", NODE, "--max-ttl=60d"],
            "--max-ttl: the TTL is too long",
        ),
        (&["doctor", NODE, "--seconds=0"], "0 is not in 1..=3600"),
        (&["doctor", "--node=http://host"], "no scheme of a node"),
        (&["inspect", NODE], "<KEY>"),
        (&["inspect", "key"], "--node"),
        (
            &["inspect", NODE, "--node-timeout=soon", "key"],
            "write 30s",
        ),
        (
            &["inspect", NODE, "--max-ttl=60d", "key"],
            "--max-ttl: the TTL is too long",
        ),
        (
            &["inspect", NODE, "redlock:guard"],
            "keys that begin with \"redlock:\" are reserved",
        ),
        (&["inspect", NODE, ""], "the key is empty"),
        (
            &["run", NODE, "redlock:fence:dock-7", "--", "true"],
            "keys that begin with \"redlock:\" are reserved",
        ),
        (&["run", NODE, "", "--", "true"], "the key is empty"),
        (&["init"], "--node"),
        (
            &["init", NODE, "--repair", "--force"],
            "cannot be used with",
        ),
        (&["init", NODE, "--max-ttl=1ms"], "--max-ttl: the TTL is"),
        (&["init", NODE, "--window=0s"], "--window is not between"),
        (
            &["init", NODE, "--step-back=60d"],
            "--step-back is not between",
        ),
        (&["demo", "--nodes=2"], "2 is not in 3..=9"),
        (&["demo", "--workers=0"], "0 is not in 1..=16"),
    ] {
        let ended = end_of(redlock(arguments));
        assert_eq!(ended.code, Some(64), "{arguments:?}: {}", ended.stderr);
        assert!(
            ended.stderr.contains(why),
            "{arguments:?}: {}",
            ended.stderr
        );
        assert_eq!(ended.stdout, "");
    }
}

#[test]
fn a_key_that_no_lock_can_have_for_its_length_is_64_at_once() {
    let too_long = "k".repeat(65_537);
    for arguments in [
        &["run", "--node=redis://127.0.0.1:1", &too_long, "--", "true"][..],
        &["inspect", "--node=redis://127.0.0.1:1", &too_long],
    ] {
        let ended = end_of(redlock(arguments));
        assert_eq!(ended.code, Some(64), "{}", ended.stderr);
        let why = "redlock: a key of 65537 bytes is too long: at most 65536; use a digest of it\n";
        assert_eq!(ended.stderr, why);
    }
    // One that is as long as it may be gets as far as the nodes.
    let longest = "k".repeat(65_536);
    let arguments = ["run", "--no-wait", "--node=redis://127.0.0.1:1", &longest];
    let ended = end_of(redlock(&[&arguments[..], &["--", "true"]].concat()));
    assert_eq!(ended.code, Some(69), "{}", ended.stderr);
}

#[test]
fn ten_nodes_are_too_many() {
    let nodes: Vec<_> = (1..=10)
        .map(|port| format!("redis://127.0.0.1:{port}"))
        .collect();
    for arguments in [&["run", "key", "--", "true"][..], &["doctor"]] {
        let mut command = redlock(arguments);
        command.env("REDLOCK_NODES", nodes.join(","));
        let ended = end_of(command);
        assert_eq!(ended.code, Some(64));
        assert!(ended.stderr.contains("at most 9"), "{}", ended.stderr);
    }
}

#[test]
fn a_password_is_never_told() {
    let good = "redis://:secret@127.0.0.1:1,redis://me:secret@127.0.0.1:2";
    let bad = "redis://:secret@127.0.0.1:1,http://me:secret@host,redis://:secret@127.0.0.1:2";
    for arguments in [
        &["inspect", "key"][..],
        &["inspect", "--json", "key"],
        &["doctor"],
        &["doctor", "--json"],
        &["init"],
    ] {
        for nodes in [good, bad] {
            let mut command = redlock(arguments);
            command.env("REDLOCK_NODES", nodes);
            let ended = end_of(command);
            let told = ended.stdout + &ended.stderr;
            assert!(!told.contains("secret"), "{told}");
            assert!(!told.is_empty());
        }
    }
    let nodes = bad;
    for arguments in [
        &["run", "--help"][..],
        &["run", "key", "--", "true"],
        &["run", "--json", "-v", "key", "--", "true"],
        &["run", "--nonsense"],
    ] {
        let mut command = redlock(arguments);
        command.env("REDLOCK_NODES", nodes);
        let ended = end_of(command);
        let told = ended.stdout + &ended.stderr;
        assert!(!told.contains("secret"), "{told}");
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn a_build_without_tls_says_how_to_get_one_with_it() {
    let ended = end_of(redlock(&["run", "-nrediss://host", "key", "--", "true"]));
    assert_eq!(ended.code, Some(64));
    assert!(ended.stderr.contains("--features tls"), "{}", ended.stderr);
}
