//! What SECURITY.md grants, what `redlock doctor` asks for, and what clients send, are the same.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread::{self, JoinHandle};

use redlock_tests::{Server, Servers};
use rustix::process::Signal;
use serde_json::Value;

use crate::process::{Process, eventually, redlock};
use crate::server::{guard, user_of};

/// Granted for a URL with a database, and for tools; no client needs them otherwise.
const FOR_OTHERS: [&str; 2] = ["select", "ping"];

#[test]
fn doctor_never_ends_with_0_where_run_cannot_lock_whichever_permission_is_missing() {
    let servers = vouched();
    let granted = Acl::documented();
    let mut trials = Vec::new();
    for (number, missing) in granted.rules.iter().enumerate() {
        let rules: Vec<&str> = granted.rules.iter().map(String::as_str).collect();
        let rules: Vec<&str> = rules.into_iter().filter(|rule| rule != missing).collect();
        let rules = format!("resetkeys resetchannels -@all {}", rules.join(" "));
        let url = user_of(&servers[0], &format!("user-{number}"), &rules);
        let plain = outcome(client(&url, &[], &format!("lock:plain-{number}"), "true"));
        let fenced = client(
            &url,
            &["--fenced"],
            &format!("lock:fenced-{number}"),
            "true",
        );
        trials.push((missing, doctor(&url), plain, outcome(fenced)));
    }
    for (missing, doctor, plain, fenced) in trials {
        let (plain, fenced) = (plain.join().unwrap(), fenced.join().unwrap());
        let ended = doctor.end();
        let report: Value = serde_json::from_str(&ended.stdout).unwrap();
        let told = || format!("without {missing}: {report} {plain:?} {fenced:?}");
        let check = |name: &str| {
            let checks = report["nodes"][0]["checks"].as_array().unwrap();
            checks.iter().find(|check| check["check"] == name).unwrap()
        };
        let verdict = |name: &str| check(name)["verdict"].as_str().unwrap().to_owned();
        // Where it ends with 0, locks can be taken. Where it does not, some can be taken, and not given back.
        let is_fine = ended.code == Some(0);
        assert!(!is_fine || plain.0 == Some(0), "{}", told());
        // A user with every permission for locks gets fenced ones too.
        let is_well = verdict("permissions") == "ok";
        assert!(!is_well || fenced.0 == Some(0), "{}", told());
        // `run` says that it is no matter of nodes that are down.
        assert!(!plain.1.contains("these nodes are up"), "{}", told());
        // Nothing is granted for nothing.
        let rule = missing.trim_start_matches('+');
        if !FOR_OTHERS.contains(&rule) {
            let is_missed = !is_well || verdict("line") != "ok";
            assert!(is_missed, "{}", told());
        }
    }
}

#[test]
fn a_run_whose_release_most_nodes_refuse_says_that_the_lock_stays_held() {
    let servers = vouched();
    for (rules, is_told) in [("+@all", false), ("+@all -del", true)] {
        let url = user_of(&servers[0], "app", rules);
        let key = format!("lock:{is_told}");
        let (code, told) = outcome(client(&url, &[], &key, "exit 3")).join().unwrap();
        assert_eq!(code, Some(3), "{told}");
        let words = "1 of 1 nodes have refused the release (127.0.0.1";
        assert_eq!(told.contains(words), is_told, "{told}");
        // Nothing is said of a `--min-hold` that no node keeps.
        let key = format!("lock:kept-{is_told}");
        let rules = format!("{rules} -pexpire");
        let url = user_of(&servers[0], "keeper", &rules);
        let run = client(&url, &["--min-hold=500ms"], &key, "true");
        let (code, told) = outcome(run).join().unwrap();
        assert_eq!(code, Some(0), "{told}");
        let owner: Option<String> = servers[0]
            .query(&["GET", &format!("redlock:owner:{key}")])
            .unwrap();
        assert_eq!(owner, None);
    }
}

#[test]
fn doctor_asks_for_what_is_documented_and_for_nothing_else() {
    let servers = vouched();
    let nothing = user_of(&servers[0], "nothing", "resetkeys resetchannels -@all");
    let ended = doctor(&nothing).end();
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let checks = report["nodes"][0]["checks"].as_array().unwrap();
    let mut asked = BTreeSet::new();
    for check in checks {
        let denied = check["denied"].as_array();
        asked.extend(
            denied
                .into_iter()
                .flatten()
                .map(|name| name.as_str().unwrap()),
        );
    }
    let granted = Acl::documented();
    let mut granted = granted.commands();
    granted.retain(|command| {
        // A subcommand is granted with its command.
        !FOR_OTHERS.contains(command)
    });
    let asked: BTreeSet<&str> = asked.iter().map(|name| first(name, &granted)).collect();
    assert_eq!(asked, granted);
}

#[test]
fn clients_send_what_is_documented_and_nothing_else() {
    let servers = vouched();
    let granted = Acl::documented();
    let rules = format!("resetkeys resetchannels -@all {}", granted.rules.join(" "));
    let url = user_of(&servers[0], "locker", &rules);
    let _: () = servers[0].query(&["CONFIG", "RESETSTAT"]).unwrap();
    for options in [&[][..], &["--fenced"]] {
        let holder = Process::start(client(&url, options, "lock:7", "echo ready; exec sleep 60"));
        holder.expect_line("ready");
        // A lease of a second, extended a few times; and another client in the line.
        let next = Process::start(client(&url, options, "lock:7", "sleep 1"));
        let line = ["ZCARD", "redlock:queue:lock:7"];
        eventually("a client in the line", || {
            servers[0].query::<usize>(&line).unwrap() == 1
        });
        holder.signal(Signal::TERM);
        next.end().expect_code(0);
    }
    let sent = sent(&servers[0]);
    let documented = granted.commands();
    let sent: BTreeSet<&str> = sent.iter().map(|name| first(name, &documented)).collect();
    // The login, which needs no permission, and the test itself.
    let own = [
        "config",
        "config|resetstat",
        "hello",
        "auth",
        "client",
        "client|setinfo",
        "quit",
    ];
    let unknown: Vec<_> = sent
        .difference(&documented)
        .filter(|name| !own.contains(name))
        .collect();
    assert!(unknown.is_empty(), "sent, but not granted: {unknown:?}");
    let unsent: Vec<_> = documented
        .difference(&sent)
        .filter(|name| !FOR_OTHERS.contains(name))
        .collect();
    assert!(unsent.is_empty(), "granted, but not sent: {unsent:?}");
}

/// The rules of SECURITY.md.
struct Acl {
    rules: Vec<String>,
}

impl Acl {
    fn documented() -> Self {
        let document = include_str!("../../../SECURITY.md");
        let (_, from) = document.split_once("ACL SETUSER locker").unwrap();
        let (block, _) = from.split_once("```").unwrap();
        let rules = block.split_whitespace();
        let is_grant = |rule: &&str| rule.starts_with(['+', '~', '&']);
        let rules: Vec<String> = rules.filter(is_grant).map(str::to_owned).collect();
        assert!(rules.len() > 20, "{rules:?}");
        Self { rules }
    }

    fn commands(&self) -> BTreeSet<&str> {
        let rules = self.rules.iter();
        rules.filter_map(|rule| rule.strip_prefix('+')).collect()
    }
}

/// The granted command that covers this one: a subcommand is granted by itself, or with its command.
fn first<'a>(name: &'a str, granted: &BTreeSet<&'a str>) -> &'a str {
    let command = name.split('|').next().unwrap_or(name);
    if granted.contains(name) || !granted.contains(command) {
        name
    } else {
        command
    }
}

/// The commands that were run since the statistics were reset.
fn sent(server: &Server) -> Vec<String> {
    let info: String = server.query(&["INFO", "commandstats"]).unwrap();
    let lines = info
        .lines()
        .filter_map(|line| line.strip_prefix("cmdstat_"));
    let calls = lines.filter_map(|line| line.split_once(":calls="));
    let run = calls.filter(|(_, fields)| !fields.starts_with("0,"));
    run.map(|(name, _)| name.to_owned()).collect()
}

/// One server, whose vote counts for fenced locks too.
fn vouched() -> Servers {
    let servers = Servers::start(1);
    guard(&servers[0], 0, "60000:250:60000");
    servers
}

/// Asks about one lock.
fn doctor(url: &str) -> Process {
    let mut command = redlock(&[
        "doctor",
        "--seconds=1",
        "--ttl=1s",
        "--json",
        "--key=lock:7",
        "--node-timeout=5s",
    ]);
    command.env("REDLOCK_NODES", url);
    Process::start(command)
}

/// The exit code and the messages. They may quote a server that names scripts by their hashes, which look like secrets.
fn outcome(mut command: Command) -> JoinHandle<(Option<i32>, String)> {
    thread::spawn(move || {
        let output = command.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), told)
    })
}

fn client(url: &str, options: &[&str], key: &str, script: &str) -> Command {
    let mut command = redlock(&["run", "--ttl=1s", "--node-timeout=400ms"]);
    command
        .args(options)
        .args([key, "--", "sh", "-c", script])
        .env("REDLOCK_NODES", url);
    command
}
