//! `redlock doctor --key` and users whose selectors allow a command with some keys only. What it advises is pasted into a server.

use redlock_tests::Server;
use serde_json::json;

use crate::doctor::{Report, end_of_command, examination, healthy};
use crate::process::{Process, redlock};
use crate::server::{guard, user_of};

/// A user who has all keys of the lock `dock-7` and its permissions, but not `command` with keys like `redlock:{initial}..`.
fn user_without(server: &Server, command: &str, initial: char, more: &str) -> (String, String) {
    let user = format!("without-{command}-{initial}{}", more.trim());
    let rules = format!(
        "resetkeys ~dock-7 ~redlock:* &* +@all -{command} {more} (+{command} ~dock-7 ~redlock:[^{initial}]*)"
    );
    let url = user_of(server, &user, &rules);
    (user, url)
}

/// Gives `user` what the message advises, in words that redis-cli takes as they are.
#[track_caller]
fn paste(server: &Server, message: &str, user: &str) {
    let (_, rules) = message.split_once("ACL SETUSER ").unwrap();
    assert!(!rules.contains(['"', '\'']), "{message}");
    let rules = rules.split(' ').skip(1);
    let command: Vec<&str> = ["ACL", "SETUSER", user].into_iter().chain(rules).collect();
    let _: () = server.query(&command).unwrap();
}

/// What `doctor` finds for each of these URLs and locks, all at once.
fn reports<'a>(users: impl IntoIterator<Item = (&'a str, &'a str)>) -> Vec<Report> {
    let examine = |(url, key): (&str, &str)| {
        let options = [&format!("--key={key}"), "--json"];
        Process::start(examination(&[url.to_owned()], &options))
    };
    let examinations: Vec<Process> = users.into_iter().map(examine).collect();
    let ended = examinations.into_iter().map(Process::end);
    ended.map(|ended| Report::read(&ended)).collect()
}

#[test]
fn doctor_finds_each_command_that_the_user_may_not_run_with_the_line_of_the_lock() {
    const COMMANDS: [&str; 9] = [
        "exists", "pexpire", "pttl", "zadd", "zcard", "zrange", "zrank", "zrem", "zscore",
    ];
    const QUEUE: &str = "redlock:queue:dock-7";
    let servers = healthy(1);
    let server = &servers[0];
    // Clients stand in the line.
    let _: i64 = server
        .query(&["ZADD", QUEUE, "7", "0123456789abcdef"])
        .unwrap();
    let line = || -> (Vec<String>, i64) {
        let members = server.query(&["ZRANGE", QUEUE, "0", "-1", "WITHSCORES"]);
        (members.unwrap(), server.query(&["PTTL", QUEUE]).unwrap())
    };
    let before = line();
    let mut users = Vec::new();
    // Who may not ask what it may do tries.
    for more in ["", "-acl"] {
        for command in COMMANDS {
            let (user, url) = user_without(server, command, 'q', more);
            users.push((command, QUEUE, user, url));
        }
        let rules = format!("+@all &* -exists {more} (+exists ~redlock:*)");
        let user = format!("lock{more}");
        let url = user_of(server, &user, &rules);
        users.push(("exists", "dock-7", user, url));
    }
    let reports = || reports(users.iter().map(|user| (&*user.3, "dock-7")));
    for ((command, key, user, _), report) in users.iter().zip(reports()) {
        let check = report.check(server, "line");
        assert_eq!(check["verdict"], "warn", "{user}: {check}");
        assert_eq!(check["denied"], json!([command]), "{user}");
        let told = format!(
            "the user may not run {command} with the key {key}, so this node keeps no line for this lock"
        );
        report.expect_message(server, "line", &told);
        paste(server, report.message(server, "line"), user);
    }
    for ((_, _, user, _), report) in users.iter().zip(reports()) {
        let check = report.check(server, "line");
        assert_eq!(check["verdict"], "ok", "{user}: {check}");
        assert_eq!(check["denied"], json!([]), "{user}");
    }
    assert_eq!(line(), before);
}

#[test]
fn doctor_without_a_key_says_that_the_line_needs_each_command_with_the_key_of_each_line() {
    let servers = healthy(1);
    let url = user_of(&servers[0], "app", "+@all &* -zadd (+zadd ~other)");
    let report = Report::of(&[url], &[]);
    let told = "the user may not run zadd with the keys redlock:queue:*, so this node keeps no line for the lock KEY unless";
    report.expect_message(&servers[0], "line", told);
    paste(&servers[0], report.message(&servers[0], "line"), "app");
}

#[test]
fn doctor_finds_each_command_that_the_user_may_not_run_with_a_key_beside_the_lock() {
    let servers = healthy(1);
    let server = &servers[0];
    guard(server, 0, "60000:250:60000");
    let mut users = Vec::new();
    for more in ["", "-acl"] {
        for (key, commands) in [
            ("redlock:guard", &["get", "set", "del"][..]),
            ("redlock:fence:dock-7", &["get", "set", "pttl"]),
            ("redlock:owner:dock-7", &["get", "set", "del", "eval"]),
        ] {
            let initial = key.split(':').nth(1).unwrap().chars().next().unwrap();
            for command in commands {
                let (user, url) = user_without(server, command, initial, more);
                users.push((*command, key, user, url));
            }
        }
    }
    let reports = || reports(users.iter().map(|user| (&*user.3, "dock-7")));
    let fenced = |url: &str| {
        let mut command = redlock(&["run", "--fenced", "--ttl=1s", "--no-wait"]);
        command.args(["--node-timeout=400ms", "dock-7", "--", "true"]);
        end_of_command(command, &[url.to_owned()])
    };
    for ((command, key, user, url), report) in users.iter().zip(reports()) {
        let check = report.check(server, "permissions");
        assert_eq!(
            (report.code, &check["verdict"]),
            (Some(0), &"warn".into()),
            "{user}: {check}"
        );
        assert_eq!(check["denied"], json!([]), "{user}");
        let denied = json!([{ "key": key, "commands": [command] }]);
        assert_eq!(check["denied_with"], denied, "{user}");
        let told = format!("the user may not run {command} with the key {key}, which ");
        report.expect_message(server, "permissions", &told);
        let (_, purpose) = report
            .message(server, "permissions")
            .split_once(", which ")
            .unwrap();
        let is_for_fences = purpose.starts_with("fenced locks need: ");
        assert_eq!(is_for_fences, !key.contains("owner"), "{purpose}");
        // It is as `doctor` says. Without PTTL, only an extension fails; with a record, SET and DEL are not called.
        if [
            ("get", "redlock:guard"),
            ("get", "redlock:fence:dock-7"),
            ("set", "redlock:fence:dock-7"),
        ]
        .contains(&(command, key))
        {
            assert_eq!(fenced(url), Some(69), "{user}");
        }
        paste(server, report.message(server, "permissions"), user);
    }
    for ((_, _, user, url), report) in users.iter().zip(reports()) {
        let check = report.check(server, "permissions");
        assert_eq!(check["verdict"], "ok", "{user}: {check}");
        assert_eq!(check["denied_with"], json!([]), "{user}");
        assert_eq!(fenced(url), Some(0), "{user}");
    }
}

#[test]
fn doctor_finds_that_a_server_that_lacks_a_script_may_not_be_sent_its_text_with_the_lock() {
    let servers = healthy(1);
    let server = &servers[0];
    let rules = "+@all ~* &* -eval (+eval ~redlock:*)";
    let url = user_of(server, "app", rules);
    let report = reports([(&*url, "dock-7")]).remove(0);
    assert_eq!(report.code, Some(1), "{}", report.document);
    let told =
        "the user may not run eval with the key dock-7, so it cannot release or extend this lock";
    report.expect_message(server, "permissions", told);
    paste(server, report.message(server, "permissions"), "app");
    let report = reports([(&*url, "dock-7")]).remove(0);
    assert_eq!(report.code, Some(0), "{}", report.document);
}

/// Gives `user` the last rule that the message advises.
#[track_caller]
fn paste_the_last(server: &Server, message: &str, user: &str) {
    let at = message.rfind("ACL SETUSER ").unwrap();
    paste(server, &message[at..], user);
}

#[test]
fn doctor_advises_a_selector_for_a_user_whose_locks_are_those_of_selectors() {
    let servers = healthy(1);
    let server = &servers[0];
    guard(server, 0, "60000:250:60000");
    let all = "+set +get +del +pexpire +pttl +evalsha +eval";
    for (user, keys) in [("without-guard", ""), ("without-fence", "~redlock:guard")] {
        let rules = format!(
            "resetkeys &* -@all +ping +select +script|load +info +time ({all} ~dock-7 {keys})"
        );
        let url = user_of(server, user, &rules);
        let report = reports([(&*url, "dock-7")]).remove(0);
        let message = report.message(server, "permissions");
        assert!(message.contains("if the user has selectors: "), "{message}");
        paste_the_last(server, message, user);
        let report = reports([(&*url, "dock-7")]).remove(0);
        let check = report.check(server, "permissions");
        assert_eq!(check["verdict"], "ok", "{check}");
    }

    // The channels, too.
    let rules = "+@all ~* &* -publish (+publish ~other)";
    let url = user_of(server, "mute", rules);
    let report = reports([(&*url, "dock-7")]).remove(0);
    paste_the_last(server, report.message(server, "line"), "mute");
    let report = reports([(&*url, "dock-7")]).remove(0);
    assert_eq!(report.check(server, "line")["verdict"], "ok");
}

#[test]
fn a_database_that_the_user_may_not_use_is_told_by_doctor_and_by_run_at_once() {
    let server = Server::start_valkey();
    let url = user_of(&server, "app", "+@all ~* &* resetdbs db=1");
    let report = Report::of(std::slice::from_ref(&url), &[]);
    assert_eq!(report.code, Some(1), "{}", report.document);
    let told = "the user may not use the database that the URL of the node names";
    report.expect_message(&server, "permissions", told);
    let of_database = format!("{url}/1");
    let report = Report::of(&[of_database], &[]);
    assert_eq!(report.check(&server, "permissions")["verdict"], "ok");
    let mut command = redlock(&["run", "dock-7", "--", "true"]);
    command.env("REDLOCK_NODES", &url);
    let ended = Process::start(command).end();
    ended.expect_code(69);
    ended.expect_stderr("name another database in its URL");
    ended.expect_not_in_stderr("grant");
}

#[test]
fn doctor_refers_to_no_other_call_of_doctor() {
    let servers = healthy(1);
    let url = user_of(&servers[0], "app", "+@all -get");
    let report = Report::of(&[url], &[]);
    report.expect_message(
        &servers[0],
        "guard",
        "unknown: ERR The user executing the script can't run this",
    );
    let told = report.document.to_string();
    assert!(!told.contains("says which"), "{told}");
}

#[test]
fn doctor_advises_a_rule_that_allows_the_lock_and_no_other() {
    let servers = healthy(1);
    let server = &servers[0];
    let mut users = Vec::new();
    // Beside each key, one that the same characters would allow as a pattern, or as several words.
    for (key, other) in [
        ("dock-7", "dock-8"),
        ("+@all", "@all"),
        ("a*b", "aXb"),
        ("a?b", "aXb"),
        ("a[xX]b", "aXb"),
        ("a[", "aX"),
        ("a\\b", "ab"),
        ("(a)", "a"),
        ("Z\u{fc}rich", "Zurich"),
        // A rule holds no space, so it allows any byte there.
        ("a b", "a"),
        ("a\"b'", "ab"),
        ("a\u{1b}[2J\u{202e}", "a"),
    ] {
        // One user may not use the key, the other may not run one command with it.
        for rules in [
            "resetkeys ~redlock:* ~other",
            "-get (+get ~redlock:* ~other)",
        ] {
            let user = format!("user-{}", users.len());
            let rules = format!("+@all &* {rules}");
            let url = user_of(server, &user, &rules);
            users.push((user, key, other, url));
        }
    }
    let reports = || reports(users.iter().map(|user| (&*user.3, user.1)));
    for ((user, key, other, _), report) in users.iter().zip(reports()) {
        assert_eq!(report.code, Some(1), "{key:?}");
        let message = report.message(server, "permissions");
        assert!(!message.contains(['\u{1b}', '\u{202e}']), "{message:?}");
        paste(server, message, user);
        let may_get = |key: &str| -> bool {
            let answer: String = server.query(&["ACL", "DRYRUN", user, "GET", key]).unwrap();
            answer == "OK"
        };
        assert!(may_get(key), "{message}");
        assert!(!may_get(other), "{message}");
        assert!(!may_get(&format!("{key}x")), "{message}");
    }
    for ((_, key, _, _), report) in users.iter().zip(reports()) {
        let check = report.check(server, "permissions");
        assert_eq!(check["verdict"], "ok", "{key:?}: {check}");
    }
}
