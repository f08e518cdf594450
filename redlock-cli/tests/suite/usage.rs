//! Arguments, before any server is asked.

use std::process::Command;

use redlock_tests::Servers;

use crate::hostile::is_clean;
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
            "It is long enough if --max-ttl, --window and --step-back are at least those that the clients have had",
        ),
        (
            &["init", "--help"],
            "It is safe while locks are held, if --max-ttl, --window and --step-back are at least",
        ),
        (
            &["init", "--help"],
            "all clients have been stopped, and all nodes have been running",
        ),
        (
            &["run", "--help"],
            "held it when the wait was over - 69 no quorum of nodes reached",
        ),
        (
            &["doctor", "--help"],
            "is lost when a majority of the nodes has restarted since it was granted",
        ),
        (
            &["doctor", "--help"],
            "since they restarted, counts the time without a vote from its next connection",
        ),
        (&["inspect", "--help"], "counts (whether this state counts)"),
        (
            &["lock", "--help"],
            "With every code but 0, the lock is not held, unless a command of a plain acquire reaches the nodes after the end of \
             redlock: then it is held for one TTL",
        ),
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
        (&["locks"], "unrecognized subcommand"),
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
            "--ttl 99ms: the TTL is too short, because the command must end before the lease ends: use at least 100ms",
        ),
        (
            &["run", NODE, "--ttl=60d", "key", "--", "true"],
            "--ttl: the time is too long",
        ),
        (
            &["run", NODE, "--min-hold=60d", "key", "--", "true"],
            "--min-hold: the time is too long",
        ),
        (
            &["run", NODE, "--max-ttl=60d", "key", "--", "true"],
            "--max-ttl: the time is too long",
        ),
        (
            &[
                "run",
                NODE,
                "--fenced",
                "--max-ttl=60d",
                "key",
                "--",
                "true",
            ],
            "--max-ttl: the time is too long",
        ),
        (
            &["run", NODE, "--node-timeout=30s", "key", "--", "true"],
            "node timeout",
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
            "--ttl 2m is longer than the default of --max-ttl, 1m: set --max-ttl",
        ),
        (&["run", NODE, "-E256", "key", "--", "true"], "256"),
        (
            &["lock", NODE, "--lease-file=/no/such", "-E0", "key"],
            "--conflict-exit-code 0: the exit code 0 of redlock lock says that the lock is held: use another one",
        ),
        (
            &[
                "lock",
                NODE,
                "--lease-file=/no/such",
                "--conflict-exit-code=0",
                "key",
            ],
            "--conflict-exit-code 0: the exit code 0 of redlock lock",
        ),
        (
            &["run", "--node=http://host", "key", "--", "true"],
            "no scheme of a node",
        ),
        (
            &["run", NODE, NODE, "key", "--", "true"],
            "127.0.0.1:1 is named twice",
        ),
        (
            &["run", NODE, "-n", "key", "--", "true"],
            "-n of flock is --no-wait here",
        ),
        (
            &["run", NODE, "key", "true"],
            "the command stands behind --: redlock run KEY -- COMMAND",
        ),
        (
            &["run", "-n", "key", "name", "--", "true"],
            "-n of flock is --no-wait here",
        ),
        (
            &["run", NODE, "-c", "true", "key", "--", "true"],
            "cannot be used with",
        ),
        (
            &["run", NODE, "--adopt=/no/such/file", "--", "true"],
            "the lease file /no/such/file: there is none",
        ),
        (
            &["run", NODE, "--adopt=f", "key", "--", "true"],
            "cannot be used with",
        ),
        (
            &["unlock", NODE, "--lease-file=/no/such/file"],
            "the lease file /no/such/file: there is none",
        ),
        (
            &["run", "--nodes-file=/no/such/file", "key", "--", "true"],
            "--nodes-file /no/such/file cannot be read: No such file",
        ),
        (
            &["run", NODE, "--nodes-file=f", "key", "--", "true"],
            "--node cannot be used with --nodes-file",
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
            "--max-ttl: the time is too long",
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
            "--max-ttl: the time is too long",
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
        (
            &["init", NODE, "--window=0s"],
            "--window: the window must be",
        ),
        (
            &["init", NODE, "--window=2h"],
            "--window: the window must be",
        ),
        (
            &["init", NODE, "--step-back=60d"],
            "--step-back: step_back is too long",
        ),
        (
            &["init", NODE, "--step-back=4294966s"],
            "--step-back: the quarantine, max(max_ttl, step_back) + 4 window + 1 s, is too long",
        ),
        (
            &["init", NODE, "--max-ttl=4294966s"],
            "--max-ttl: the quarantine",
        ),
        (
            &[
                "run",
                NODE,
                "--fenced",
                "--max-ttl=4294966s",
                "key",
                "--",
                "true",
            ],
            "the quarantine, max(max_ttl, step_back) + 4 window + 1 s, is too long",
        ),
        (
            &[
                "run",
                NODE,
                "--fenced",
                "--min-hold=61s",
                "key",
                "--",
                "true",
            ],
            "use a shorter --min-hold",
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
        ended.expect_code(64);
        let why = "redlock: a key of 65537 bytes is too long: at most 65536; use a digest of it\n";
        assert_eq!(ended.stderr, why);
    }
    // One that is as long as it may be gets as far as the nodes.
    let longest = "k".repeat(65_536);
    let arguments = ["run", "--no-wait", "--node=redis://127.0.0.1:1", &longest];
    let ended = end_of(redlock(&[&arguments[..], &["--", "true"]].concat()));
    ended.expect_code(69);
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
        ended.expect_code(64);
        ended.expect_stderr("at most 9");
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
        &["conformance", "--json"],
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

#[test]
fn help_does_not_print_the_environment() {
    const PEM: &str = "-----BEGIN PRIVATE KEY-----\nsecret\x1b[2J\n-----END PRIVATE KEY-----";
    for arguments in [
        &[][..],
        &["run"],
        &["inspect"],
        &["doctor"],
        &["init"],
        &["demo"],
    ] {
        for help in ["-h", "--help"] {
            let mut command = redlock(arguments);
            command
                .arg(help)
                .env("REDLOCK_NODES", "redis://me:secret@127.0.0.1:1")
                .env("REDLOCK_TLS_CA", PEM)
                .env("REDLOCK_TLS_CERT", PEM)
                .env("REDLOCK_TLS_KEY", PEM);
            let ended = end_of(command);
            assert_eq!(ended.code, Some(0), "{arguments:?} {help}");
            ended.expect_not_in_stdout("secret");
            assert!(is_clean(&ended.stdout), "{}", ended.stdout);
        }
    }
}

#[test]
fn a_url_that_stands_in_the_wrong_place_is_not_repeated() {
    const URL: &str = "redis://me:secret@127.0.0.1:1";
    const NODE: &str = "--node=redis://127.0.0.1:1";
    let behind = |option: &str| format!("{option}{URL}");
    let (long, flag, number, short, misspelt, help) = (
        behind("--ttl="),
        behind("--json="),
        behind("--seconds="),
        behind("-E"),
        behind("--nod="),
        behind("--help="),
    );
    for arguments in [
        &[URL][..],
        &["help", URL],
        &["--node", URL, "doctor"],
        &[&misspelt, "doctor"],
        &["run", NODE, "key", URL, "--", "true"],
        &["run", NODE, "--wait", URL, "key", "--", "true"],
        &["run", NODE, &short, "key", "--", "true"],
        &["run", &misspelt, "key", "--", "true"],
        &["run", "-xredis://me:secret@host", "key", "--", "true"],
        &["inspect", NODE, "--max-ttl", URL, "key"],
        &["doctor", URL],
        &["doctor", NODE, URL, URL],
        &["doctor", &long],
        &["doctor", &flag],
        &["doctor", &number],
        &["doctor", &help],
        &["init", NODE, URL],
        &["init", NODE, "--window", URL],
        &["init", NODE, "--repair", "--", URL],
        &["demo", URL],
        &["demo", "--seed", URL],
        // A space divides it.
        &["doctor", NODE, "secret@127.0.0.1:1"],
        &["run", "-n", "redis://me:x", "key", "secret@127.0.0.1:1"],
    ] {
        let ended = end_of(redlock(arguments));
        assert_eq!(ended.code, Some(64), "{arguments:?} {}", ended.stderr);
        assert_eq!(ended.stdout, "");
        assert!(ended.stderr.starts_with("error: "), "{}", ended.stderr);
        for part in ["secret", "me:", "://"] {
            ended.expect_not_in_stderr(part);
        }
    }
    // As a command or a file, too.
    let servers = Servers::start(1);
    let ended = end_of(under_lock(&servers, URL));
    ended.expect_code(127);
    ended.expect_not_in_stderr("secret");
}

#[test]
fn a_url_in_place_of_the_key_is_64_and_not_repeated() {
    const URL: &str = "redis://me:secret@127.0.0.1:1";
    const NODE: &str = "--node=redis://127.0.0.1:1";
    let list = format!("b:2,{URL}");
    for arguments in [
        &["run", NODE, URL, "--", "true"][..],
        &["run", NODE, "--json", URL, "--", "true"],
        &["inspect", NODE, URL],
        &["inspect", NODE, "--json", URL],
        &["run", NODE, &list, "--", "true"],
        &["inspect", "--node", "redis://a:1", &list],
    ] {
        let ended = end_of(redlock(arguments));
        assert_eq!(ended.code, Some(64), "{arguments:?} {}", ended.stderr);
        assert_eq!(ended.stdout, "");
        ended.expect_stderr("write it as --node=URL");
        ended.expect_not_in_stderr("me:");
    }
}

#[test]
fn what_may_be_a_password_in_an_argument_that_is_out_of_place_is_not_told() {
    for arguments in [
        &["run", "dock-7", "PGPASSWORD=s3cret", "pg_dump"][..],
        &["run", "dock-7", "mysqldump -ps3cret db"],
        &["doctor", "me:s3cret"],
        &["inspect", "dock-7", "me:s3cret:host"],
        &["run", "--unknown=s3cret", "dock-7", "--", "true"],
        &["inspect", "--auth:s3cret", "dock-7"],
    ] {
        let ended = end_of(redlock(arguments));
        assert_eq!(ended.code, Some(64), "{arguments:?} {}", ended.stderr);
        ended.expect_not_in_stderr("s3cret");
    }
}

#[test]
fn of_a_command_that_cannot_be_run_no_argument_is_told() {
    let servers = Servers::start(1);
    for (program, told) in [
        (
            "mysqldump-7 --password=secret db",
            "cannot run mysqldump-7..: ",
        ),
        ("PASSWORD=secret", "cannot run PASSWORD..: "),
    ] {
        let ended = end_of(under_lock(&servers, program));
        ended.expect_code(127);
        ended.expect_stderr(told);
        ended.expect_stderr("as separate words");
        ended.expect_not_in_stderr("secret");
    }
}

#[test]
fn what_the_operator_writes_cannot_write_into_the_terminal() {
    const TEXT: &str = "a\x1b[2J\nFAKE LINE\r\u{9b}2J\u{202e}\u{3164}\u{2800}";
    const NODE: &str = "--node=redis://127.0.0.1:1";

    let option = format!("--{TEXT}");
    let node = format!("--node=redis://{TEXT}");
    let socket = format!("--node=unix:///{TEXT}");
    let ttl = format!("--ttl={TEXT}");
    let unit = format!("--ttl=5{}", "\u{202e}".repeat(3));
    let mut commands: Vec<_> = [
        &[TEXT][..],
        &["doctor", NODE, TEXT],
        &["doctor", NODE, &option],
        &["doctor", NODE, &ttl],
        &["doctor", NODE, &unit],
        &["doctor", "--seconds=1", &node],
        &["doctor", "--seconds=1", &socket],
        &["doctor", "--seconds=1", "--json", &socket],
        &["inspect", NODE, TEXT],
        &["inspect", NODE, "--json", TEXT],
        &["run", NODE, "--no-wait", TEXT, "--", "true"],
        &["run", NODE, "--no-wait", "--json", TEXT, "--", "true"],
        &["demo", "--seed", TEXT],
    ]
    .map(redlock)
    .into();
    let servers = Servers::start(1);
    commands.push(under_lock(&servers, TEXT));
    let mut json = under_lock(&servers, TEXT);
    json.env("REDLOCK_NODES", servers[0].url());
    commands.push(json);
    if cfg!(feature = "tls") {
        for file in ["REDLOCK_TLS_CA", "REDLOCK_TLS_CERT"] {
            let mut command = redlock(&["doctor", NODE]);
            command.env(file, TEXT).env("REDLOCK_TLS_KEY", TEXT);
            commands.push(command);
        }
    }
    for command in commands {
        let name = format!("{command:?}");
        let ended = end_of(command);
        let told = ended.stdout + &ended.stderr;
        assert_ne!(ended.code, Some(0), "{name} {told:?}");
        assert!(is_clean(&told), "{name} {told:?}");
        let is_faked = told.lines().any(|line| line.starts_with("FAKE"));
        assert!(!is_faked, "{name} {told:?}");
    }
}

#[test]
fn what_the_operator_writes_is_cut_before_it_is_repeated() {
    let long = "x".repeat(100_000);
    let option = format!("--{long}");
    let unit = format!("--ttl=5{long}");
    for arguments in [
        &[&*long][..],
        &["doctor", &long],
        &["doctor", &option],
        &["doctor", &unit],
        &["doctor", "--seconds", &long],
    ] {
        let ended = end_of(redlock(arguments));
        ended.expect_code(64);
        let beginning: String = ended.stderr.chars().take(3_000).collect();
        assert!(ended.stderr.len() < 3_000, "{beginning}");
    }
    let ended = end_of(under_lock(&Servers::start(1), &long));
    ended.expect_code(126);
    assert!(ended.stderr.len() < 1_000);
}

/// Runs `program`.
fn under_lock(servers: &Servers, program: &str) -> Command {
    let mut command = redlock(&["run", "key", "--", program]);
    command.env("REDLOCK_NODES", servers.urls().join(","));
    command
}

#[cfg(not(feature = "tls"))]
#[test]
fn a_build_without_tls_says_how_to_get_one_with_it() {
    let ended = end_of(redlock(&["run", "-nrediss://host", "key", "--", "true"]));
    ended.expect_code(64);
    ended.expect_stderr("--features tls");
}
