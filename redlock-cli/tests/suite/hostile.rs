//! Nodes in the wrong hands, and URLs that are written wrongly.

use std::process::Command;
use std::time::Duration;

use redlock_tests::{Impostor, Mischief, Servers};

use crate::process::{end_of, redlock, run};

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
            let impostor = Impostor::start(Mischief {
                on,
                answer,
                flood,
                pause: Duration::ZERO,
            });
            for arguments in [
                &["doctor", "--seconds=1"][..],
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
        let impostor = Impostor::start(Mischief {
            on,
            answer: answer.clone().leak().as_bytes(),
            flood: b"",
            pause: Duration::ZERO,
        });
        let url = impostor.url() + "/1";
        for arguments in [
            &["doctor", "--seconds=1"][..],
            &["doctor", "--seconds=1", "--json"],
            &["inspect", "dock-7"],
            &["inspect", "--json", "dock-7"],
            &["init"],
            &["run", "--no-wait", "dock-7", "--", "true"],
        ] {
            let mut command = redlock(arguments);
            command.env("REDLOCK_NODES", &url);
            let ended = end_of(command);
            let told = ended.stdout + &ended.stderr;
            let is_clean = |character: char| {
                character == '\n'
                    || !(character.is_control() || ['\u{202e}', '\u{200b}'].contains(&character))
            };
            assert!(told.chars().all(is_clean), "{on} {arguments:?} {told:?}");
            assert!(!told.lines().any(|line| line.starts_with("FAKE")), "{told}");
        }
    }
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

#[test]
fn the_command_does_not_find_the_nodes_in_its_environment() {
    let servers = Servers::start(1);
    let script = "echo \"${REDLOCK_NODES-none} $REDLOCK_KEY\"";
    let ended = end_of(run(&servers, &[], "dock-7", script));
    assert_eq!(ended.stdout, "none dock-7\n", "{}", ended.stderr);
}
