//! Keys that another program has written in the place of those of a lock.

use redlock_tests::Servers;

use crate::doctor::{Report, healthy};
use crate::process::{end_of, run};

#[test]
fn a_key_that_another_program_has_written_is_not_said_to_be_held() {
    let servers = Servers::start(3);
    let values = [
        ("list", &["RPUSH", "list", "x"][..]),
        ("value", &["SET", "value", "x"]),
    ];
    for (key, write) in values {
        for (number, server) in servers.iter().enumerate() {
            let ended = end_of(run(&servers, &["--no-wait", "-E", "0"], key, "echo ran"));
            // A minority of such nodes costs only their votes.
            if number < 2 {
                ended.expect_code(0);
                ended.expect_stdout("ran");
            } else {
                ended.expect_code(69);
                let told = "another program has written it on 2 of 3 nodes";
                ended.expect_stderr(told);
                ended.expect_not_in_stderr("held");
            }
            let _: () = server.query(write).unwrap();
        }
        // By a client, it is held, as long as a majority of nodes says so.
        for server in &servers[..2] {
            let _: () = server.query(&["DEL", key]).unwrap();
            let _: () = server
                .query(&["SET", key, "01234567890123456789", "PX", "60000"])
                .unwrap();
        }
        let ended = end_of(run(&servers, &["--no-wait"], key, "echo ran"));
        ended.expect_code(75);
        ended.expect_stderr("is held by another client");
    }
}

#[test]
fn doctor_finds_keys_that_another_program_has_written() {
    let servers = healthy(1);
    let server = &servers[0];
    for (key, write, verdict, told) in [
        ("none", &["PING"][..], "ok", "none is free"),
        (
            "list",
            &["RPUSH", "list", "x"],
            "bad",
            "no client can acquire the key list, because it is a list",
        ),
        (
            "value",
            &["SET", "value", "x"],
            "bad",
            "because it has a value without a TTL",
        ),
        (
            "fenced",
            &["SET", "redlock:fence:fenced", "junk"],
            "bad",
            "the value at redlock:fence:fenced is no fence record",
        ),
        (
            "held",
            &["SET", "held", "01234567890123456789", "PX", "60000"],
            "ok",
            "held is held",
        ),
    ] {
        server.query::<redis::Value>(write).unwrap();
        let report = Report::of(&servers.urls(), &["--key", key]);
        let check = report.check(server, "lock");
        assert_eq!(check["verdict"], verdict, "{check}");
        report.expect_message(server, "lock", told);
        assert_eq!(report.code, Some(i32::from(verdict == "bad")));
    }
}
