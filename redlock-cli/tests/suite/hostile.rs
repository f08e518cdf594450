//! Nodes in the wrong hands, and URLs that are written wrongly.

use std::process::Command;

use redlock_tests::{Impostor, Servers};

use crate::process::{Process, end_of, redlock, run};
use crate::server::{field, run_id, write_guard};

/// Each is endless: what it begins with, and what comes again and again.
const FLOODS: [(&[u8], &[u8]); 4] = [
    (b"+OK\r\n", b"+OK\r\n"),
    (b"*1000000000\r\n", b"_\r\n"),
    (b"$9000000000000000000\r\n", b"x"),
    (b"*1\r\n", b"*1\r\n"),
];

#[test]
fn a_node_that_sends_without_an_end_neither_bloats_nor_hangs_those_who_look_at_it() {
    for (answer, flood) in FLOODS {
        for on in ["CLIENT", "INFO", "EVAL"] {
            let impostor = Impostor::flooding(on, answer, flood);
            for arguments in [
                &["doctor", "--seconds=1"][..],
                &["conformance"],
                &["inspect", "dock-7"],
                &["init"],
            ] {
                let ended = end_of(with_little_memory(arguments, &impostor));
                let told = format!("{arguments:?} {}{}", ended.stdout, ended.stderr);
                // Not 0, not that of a process that had no memory left.
                assert!(matches!(ended.code, Some(0 | 1 | 69)), "{told}");
                assert!(!told.contains("memory allocation"), "{told}");
            }
        }
    }
}

/// So little that it is gone within the time that a node has to answer, if all is kept that it can send in it.
fn with_little_memory(arguments: &[&str], impostor: &Impostor) -> Command {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "ulimit -v 120000; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_redlock"))
        .args(arguments)
        .env("REDLOCK_NODES", impostor.url());
    shell
}

#[test]
fn what_a_node_says_cannot_write_into_the_terminal_of_the_operator() {
    const INFO: &str = "redis_version:7\x1b[2J\rFAKE\r\nrun_id:\x1b]0;title\x07\r\nrole:slave\r\n\
                        master_host:\u{202e}host\x1b[31m\r\nmaster_port:\x08\r\nmaxmemory:0\r\n\
                        maxmemory_policy:\x1b[5mx\r\nredis_mode:\u{200b}mode\r\n";

    let bulk = format!("${}\r\n{INFO}\r\n", INFO.len());
    let error = "-ERR foo\nFAKE LINE\x1b[2J\u{202e}\r\n".to_owned();
    let foreign = "*5\r\n$8\r\nli\x1b[2Jst\r\n$9\r\n\x1b\x1b\x1b\x1b\x1b\x1b\x1b\x1b\x1b\r\n$0\r\n\r\n:5\r\n$0\r\n\r\n".to_owned();
    for (on, answer) in [
        ("INFO", &bulk),
        ("INFO", &error),
        ("CONFIG", &error),
        ("ACL", &bulk),
        ("EVAL", &error),
        ("EVAL", &foreign),
        ("GET", &bulk),
        ("SELECT", &error),
    ] {
        for (arguments, told) in told_of_impostor(on, answer) {
            assert!(is_clean(&told), "{on} {arguments:?} {told:?}");
            assert!(!told.lines().any(|line| line.starts_with("FAKE")), "{told}");
        }
    }
}

/// Whether nothing in it moves a cursor, begins a line that looks like another program's, or is invisible.
pub(crate) fn is_clean(told: &str) -> bool {
    let is_clean = |character: char| {
        character == '\n'
            || !(character.is_control()
                || ['\u{202e}', '\u{200b}', '\u{3164}', '\u{2800}'].contains(&character))
    };
    told.chars().all(is_clean)
}

#[test]
fn no_message_tells_a_password() {
    for nodes in [
        "redis://me:secret",
        "redis://me:se,cret-secret@127.0.0.1:1",
        "redis://me:12,34secret@127.0.0.1:1",
        "redis://me:1234#secret@127.0.0.1:1",
        "redis+unix:///run/r.sock?pass=secret&db=x",
        "redis+unix:///run/r.sock&pass=secret",
        "http://me:secret@127.0.0.1:1",
        "redis://me:secret@127.0.0.1:1,redis://me:secret@127.0.0.1:1",
        "redis://me:secret@127.0.0.1:1/secret",
        "redis://me:secret@127.0.0.1:1?protocol=secret",
    ] {
        for arguments in [
            &["doctor"][..],
            &["conformance"],
            &["inspect", "dock-7"],
            &["init"],
            &["run", "--no-wait", "dock-7", "--", "true"],
        ] {
            let mut command = redlock(arguments);
            command.env("REDLOCK_NODES", nodes);
            let ended = end_of(command);
            assert_eq!(ended.code, Some(64), "{nodes} {}", ended.stderr);
            assert!(!ended.stderr.contains("cret"), "{nodes}: {}", ended.stderr);
        }
    }
}

/// The operator means a holder that is gone. The node shows the digits of that holder with the digest of another one.
#[test]
fn a_node_that_lies_about_a_token_makes_break_delete_no_key_of_another_holder() {
    const LIVE: &str = "bbbbbbbbbbbbbbbbbbbb";

    let servers = Servers::start(2);
    let digest: String = servers[0]
        .query(&["EVAL", "return redis.sha1hex(ARGV[1])", "0", LIVE])
        .unwrap();
    for server in servers.iter() {
        let _: () = server
            .query(&["SET", "dock-7", LIVE, "PX", "60000"])
            .unwrap();
        let record = format!("{digest}:web-1");
        let _: () = server
            .query(&["SET", "redlock:owner:dock-7", &record])
            .unwrap();
    }
    let answer = format!(
        "*8\r\n$6\r\nstring\r\n$4\r\naaaa\r\n$40\r\n{digest}\r\n:60000\r\n$0\r\n\r\n$0\r\n\r\n$2\r\n-1\r\n:0\r\n"
    );
    let impostor = Impostor::answering("EVAL", answer.leak().as_bytes());
    let nodes = [impostor.url(), servers.urls().join(",")].join(",");
    let on_all = |arguments: &[&str]| {
        let mut command = redlock(arguments);
        command.env("REDLOCK_NODES", &nodes);
        end_of(command)
    };
    let ended = on_all(&["break", "--token-prefix=61616161", "dock-7"]);
    ended.expect_stdout("held     61616161..");
    ended.expect_not_in_stdout("deleted");
    for server in servers.iter() {
        let left: usize = server
            .query(&["EXISTS", "dock-7", "redlock:owner:dock-7"])
            .unwrap();
        assert_eq!(left, 2, "{}", ended.stdout);
    }
    let ended = on_all(&["break", "--token-prefix=62626262", "dock-7"]);
    ended.expect_stdout("deleted");
    for server in servers.iter() {
        let left: usize = server
            .query(&["EXISTS", "dock-7", "redlock:owner:dock-7"])
            .unwrap();
        assert_eq!(left, 0, "{}", ended.stdout);
    }
}

#[test]
fn the_command_does_not_find_the_nodes_in_its_environment() {
    let servers = Servers::start(1);
    let script = "echo \"${REDLOCK_NODES-none} $REDLOCK_KEY\"";
    let ended = end_of(run(&servers, &[], "dock-7", script));
    assert_eq!(ended.stdout, "none dock-7\n", "{}", ended.stderr);
}

#[test]
fn a_value_that_is_far_too_long_for_a_guard_record_is_none_and_is_repaired() {
    let servers = Servers::start(1);
    let id = run_id(&servers[0]);
    let data = field(&servers[0], "master_replid");
    for record in [
        "x".repeat(20_000_000),
        format!("{id}:0:60000:250:60000:{data}{}", "f".repeat(20_000_000)),
        format!("{}:0:60000:250:60000:{data}", "f".repeat(200_000)),
    ] {
        write_guard(&servers[0], &record);
        for (arguments, code, why) in [
            (
                &["inspect", "dock-7", "--node-timeout=3s"][..],
                69,
                "its value at redlock:guard is no guard record",
            ),
            (
                &["inspect", "dock-7", "--node-timeout=3s", "--json"],
                69,
                "its value at redlock:guard is no guard record",
            ),
            (
                &["doctor", "--seconds=1", "--node-timeout=3s"],
                1,
                "redlock:guard is no guard record",
            ),
            (
                &["doctor", "--seconds=1", "--node-timeout=3s", "--json"],
                1,
                "\"foreign\"",
            ),
            (&["init"], 1, "something at redlock:guard that is no record"),
            (&["init", "--repair"], 0, "written: its vote counts in"),
        ] {
            let mut command = redlock(arguments);
            command.env("REDLOCK_NODES", servers[0].url());
            let ended = end_of(command);
            let told = ended.stdout + &ended.stderr;
            assert!(told.contains(why), "{arguments:?} {}", beginning(&told));
            assert!(told.len() < MOST_TOLD, "{}", beginning(&told));
            assert_eq!(ended.code, Some(code), "{arguments:?} {told}");
        }
    }
}

#[test]
fn a_server_with_thousands_of_kinds_of_errors_is_looked_at_like_any_other() {
    let servers = Servers::start(1);
    let client = redis::Client::open(servers[0].url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut errors = redis::pipe();
    for number in 0..10_000 {
        errors
            .cmd("EVAL")
            .arg("return redis.error_reply(ARGV[1])")
            .arg(0)
            .arg(format!("E{number} not found"));
    }
    assert!(errors.exec(&mut connection).is_err());
    let info: String = servers[0].query(&["INFO"]).unwrap();
    assert!(
        info.contains("errorstat_E9999:"),
        "this server counts kinds"
    );
    for (arguments, code) in [
        (&["init", "--force"][..], 0),
        (&["inspect", "dock-7"], 0),
        (&["doctor", "--seconds=1"], 0),
    ] {
        let mut command = redlock(arguments);
        command.env("REDLOCK_NODES", servers[0].url());
        let ended = end_of(command);
        assert_eq!(
            ended.code,
            Some(code),
            "{arguments:?} {}{}",
            ended.stdout,
            ended.stderr
        );
    }
}

/// What a command tells of one node at the most: some dozen lines, of which a few repeat 256 bytes of the node's text.
const MOST_TOLD: usize = 12_000;

fn beginning(told: &str) -> String {
    told.chars().take(2_000).collect()
}

#[test]
fn of_what_a_node_says_no_more_than_some_lines_are_told() {
    const LENGTH: usize = 200_000;

    let long = "x".repeat(LENGTH);
    let text = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let bulk = text(&long);
    let error = format!("-ERR {long}\r\n");
    let code = format!("-{}\r\n", long.to_uppercase());
    let no_permission = format!("-NOPERM {long} key\r\n");
    let pair = format!("*2\r\n{bulk}{bulk}");
    let role =
        "role:master\r\nrun_id:ab12\r\nmaster_replid:cd34\r\nmaxmemory_policy:noeviction\r\n";
    let server = text(&format!(
        "{role}redis_version:{long}\r\nredis_mode:{}\r\nmaxmemory:0\r\n",
        &long[..1_000]
    ));
    let replica = text(&format!(
        "role:slave\r\nrun_id:{long}\r\nmaster_host:{0}\r\nmaster_port:{0}\r\nmaxmemory_policy:{0}\r\n",
        &long[..1_000]
    ));
    let nothing = text("");
    let lock = format!("*5\r\n{bulk}{nothing}{nothing}:5\r\n{nothing}");
    let piece = text(&long[..60_000]);
    let token = format!("*5\r\n{}{piece}{piece}:5\r\n{nothing}", text("string"));
    let init = format!("*4\r\n{}{}{bulk}:1\r\n", text("seen"), text("string"));
    for (on, answer) in [
        ("INFO", &bulk),
        ("INFO", &server),
        ("INFO", &replica),
        ("INFO", &error),
        ("INFO", &code),
        ("CONFIG", &pair),
        ("CONFIG", &error),
        ("ACL", &bulk),
        ("ACL", &no_permission),
        ("SET", &no_permission),
        ("SET", &error),
        ("TIME", &pair),
        ("TIME", &error),
        ("EVAL", &bulk),
        ("EVAL", &error),
        ("EVAL", &code),
        ("EVAL", &lock),
        ("EVAL", &token),
        ("EVAL", &init),
        ("EVALSHA", &error),
        ("SUBSCRIBE", &error),
        ("PUBLISH", &no_permission),
        ("SCRIPT", &error),
        ("HELLO", &error),
        ("CLIENT", &error),
        ("SELECT", &error),
    ] {
        for (arguments, told) in told_of_impostor(on, answer) {
            let beginning = beginning(&told);
            assert!(told.len() < MOST_TOLD, "{on} {arguments:?} {beginning}");
            assert!(!told.contains(&"x".repeat(300)), "{on} {beginning}");
        }
    }
}

/// What each command tells of a node that answers `on` with `answer`. They run side by side.
fn told_of_impostor(on: &'static str, answer: &str) -> Vec<(&'static [&'static str], String)> {
    let impostor = Impostor::answering(on, answer.to_owned().leak().as_bytes());
    let started = COMMANDS.map(|arguments| {
        let mut command = redlock(arguments);
        command.env("REDLOCK_NODES", impostor.url() + "/1");
        (arguments, Process::start(command))
    });
    let told = started.into_iter().map(|(arguments, process)| {
        let ended = process.end();
        (arguments, ended.stdout + &ended.stderr)
    });
    told.collect()
}

/// All that look at nodes, in all forms in which they tell of them.
const COMMANDS: [&[&str]; 11] = [
    &["conformance"],
    &["conformance", "--json"],
    &["doctor", "--seconds=1"],
    &["doctor", "--seconds=1", "--json"],
    &["inspect", "dock-7"],
    &["inspect", "--json", "dock-7"],
    &["init"],
    &["init", "--repair"],
    &["init", "--force"],
    &["run", "--no-wait", "dock-7", "--", "true"],
    &["run", "--no-wait", "--json", "dock-7", "--", "true"],
];
