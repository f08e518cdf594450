//! `redlock conformance` on servers that serve every kind of lock, and on servers that do not.

use redlock_tests::{Impostor, Server};
use serde_json::{Value, json};

use crate::process::{Ended, Process, be_patient, eventually, redlock};
use crate::server::{replicate, set, user_of};

#[test]
fn redis_and_valkey_serve_every_kind_of_lock_and_no_key_of_a_trial_is_left() {
    let (redis, valkey) = (Server::start(), Server::start_valkey());
    let mut verdicts = Vec::new();
    for (server, product) in [(&redis, "redis"), (&valkey, "valkey")] {
        let before = server.keys();
        let (code, node) = examined(&server.url(), &[]);
        assert_eq!(code, Some(0), "{node:#}");
        assert_eq!(node["product"], product);
        assert_eq!(server.keys(), before);
        verdicts.push(verdicts_of(&node));
    }
    assert_eq!(verdicts[0], verdicts[1]);
    let all = ["plain", "guard", "fenced", "line"].map(|kind| verdicts[0][kind].clone());
    assert_eq!(all, [true, true, true, true].map(Value::from));
}

#[test]
fn where_scripts_may_not_call_info_or_time_plain_locks_without_the_restart_guard_are_served() {
    for command in ["INFO", "TIME"] {
        let renamed = Server::start_without(command);
        let server = Server::start();
        let rules = format!("+@all -{} allchannels", command.to_lowercase());
        for url in [renamed.url(), user_of(&server, "app", &rules)] {
            let (code, node) = examined(&url, &[]);
            assert_eq!(code, Some(1), "{node:#}");
            let kinds = [&node["plain"], &node["guard"], &node["fenced"]];
            assert_eq!(kinds, [true, false, false], "{node:#}");
            let why = format!("scripts may not call {command} ");
            expect_no(&node, "identity", &why);
            assert_eq!(examined(&url, &["--require=plain"]).0, Some(0));

            // It is as the verdict says.
            let run = |options: &[&str]| {
                let mut command =
                    redlock(&["run", "--ttl=1s", "--no-wait", "--node-timeout=400ms"]);
                command.args(options).args(["dock-7", "--", "true"]);
                command.env("REDLOCK_NODES", &url);
                Process::start(command).end()
            };
            let refused = run(&[]);
            assert_eq!(refused.code, Some(69), "{refused:?}");
            let words = "does not tell its identity; grant +eval +info +time ~redlock:guard, or disable the restart guard";
            assert!(refused.stderr.contains(words), "{}", refused.stderr);
            assert_eq!(run(&["--no-restart-guard"]).code, Some(0));
            assert_eq!(run(&["--fenced"]).code, Some(69));
        }
    }
}

#[test]
fn a_server_that_may_evict_keys_serves_no_fenced_locks() {
    let server = Server::start();
    set(&server, "maxmemory-policy", "allkeys-lru");
    let (code, node) = examined(&server.url(), &[]);
    assert_eq!(code, Some(1));
    assert_eq!([&node["plain"], &node["fenced"]], [true, false], "{node:#}");
    expect_no(
        &node,
        "noeviction",
        "its maxmemory-policy is not noeviction",
    );
    expect_no(&node, "fences", "set its maxmemory-policy to noeviction");
}

#[test]
fn a_user_without_channels_has_locks_and_no_line_and_one_with_restricted_keys_needs_the_prefix() {
    let server = Server::start();
    let rules = "resetkeys resetchannels ~lock:* ~redlock:guard ~redlock:fence:lock:* ~redlock:queue:lock:* +@all";
    let url = user_of(&server, "app", rules);
    let (code, node) = examined(&url, &["--prefix=lock:"]);
    assert_eq!(code, Some(1));
    let kinds = [
        &node["plain"],
        &node["guard"],
        &node["fenced"],
        &node["line"],
    ];
    assert_eq!(kinds, [true, true, true, false], "{node:#}");
    expect_no(
        &node,
        "line",
        "a client cannot be called through its mailbox",
    );

    let (_, node) = examined(&url, &[]);
    assert_eq!(node["plain"], false, "{node:#}");
    expect_no(&node, "set", "NOPERM");
}

#[test]
fn a_user_with_the_permissions_of_plain_locks_is_served_plain_locks() {
    let server = Server::start();
    let rules = "resetchannels +set +get +del +pexpire +evalsha +eval +script|load +info +time -@dangerous +info";
    let (_, node) = examined(&user_of(&server, "app", rules), &[]);
    let kinds = [&node["plain"], &node["guard"], &node["fenced"]];
    assert_eq!(kinds, [true, true, false], "{node:#}");
}

#[test]
fn a_server_that_cannot_call_a_client_that_waits_serves_no_line() {
    let line = "resetchannels &redlock:mail:* +@all";
    for (command, denied) in [
        ("PUBLISH", "-publish"),
        ("PUBSUB", "-pubsub"),
        ("SUBSCRIBE", "-subscribe"),
    ] {
        let renamed = Server::start_without(command);
        let server = Server::start();
        let user = user_of(&server, "app", &format!("{line} {denied}"));
        for url in [renamed.url(), user] {
            let (code, node) = examined(&url, &[]);
            assert_eq!(code, Some(1), "{node:#}");
            let kinds = [&node["plain"], &node["fenced"], &node["line"]];
            assert_eq!(kinds, [true, true, false], "{command} {node:#}");
            expect_no(&node, "line", "cannot be called through its mailbox");
        }
    }
    let without_info = Server::start_without("INFO");
    assert_eq!(examined(&without_info.url(), &[]).1["line"], true);
}

#[test]
fn a_replica_and_a_server_of_a_cluster_serve_no_locks() {
    let (master, replica) = (Server::start(), Server::start());
    replicate(&master, &replica);
    let (code, node) = examined(&replica.url(), &[]);
    assert_eq!((code, &node["plain"]), (Some(1), &json!(false)), "{node:#}");
    expect_no(&node, "set", "READONLY");
    // It takes writes, and loses them with the next synchronization.
    let () = replica
        .query(&["CONFIG", "SET", "replica-read-only", "no"])
        .unwrap();
    let (code, node) = examined(&replica.url(), &["--require=plain"]);
    assert_eq!((code, &node["plain"]), (Some(1), &json!(false)), "{node:#}");
    expect_no(&node, "role", "it is a replica");

    for start in [Server::start_with, Server::start_valkey_with] {
        // As it starts: no slot is assigned, so it refuses every key.
        let cluster = start(&["--cluster-enabled", "yes"]);
        let (code, node) = examined(&cluster.url(), &[]);
        assert_eq!((code, &node["plain"]), (Some(1), &json!(false)), "{node:#}");
        expect_no(&node, "set", "CLUSTERDOWN");
        expect_no(&node, "server", "it is in cluster mode");

        // It serves all slots, so that it could serve a lock alone.
        let _: () = cluster
            .query(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])
            .unwrap();
        eventually("a cluster", || {
            let info: String = cluster.query(&["CLUSTER", "INFO"]).unwrap();
            info.contains("cluster_state:ok")
        });
        let (code, node) = examined(&cluster.url(), &[]);
        assert_eq!((code, &node["plain"]), (Some(1), &json!(false)), "{node:#}");
        expect_no(&node, "server", "it is in cluster mode");
    }
}

#[test]
fn a_user_without_evalsha_is_not_told_that_it_lacks_a_key() {
    let server = Server::start();
    let url = user_of(&server, "app", "+@all -evalsha allkeys allchannels");
    let (_, node) = examined(&url, &[]);
    let capabilities = node["capabilities"].as_array().unwrap();
    let identity = capabilities
        .iter()
        .find(|its| its["capability"] == "identity");
    assert!(
        !identity
            .unwrap()
            .to_string()
            .contains("may not use the key"),
        "{node:#}"
    );
}

#[test]
fn a_server_that_answers_and_does_nothing_serves_no_locks() {
    let impostor = Impostor::answering("EVAL", b":1\r\n");
    let (code, node) = examined(&impostor.url(), &[]);
    assert_ne!(code, Some(0));
    for kind in ["plain", "guard", "fenced", "line"] {
        assert_eq!(node[kind], false, "{node:#}");
    }
}

#[test]
fn a_server_that_cannot_be_reached_is_not_examined_and_the_text_says_so() {
    let mut server = Server::start();
    let url = server.url();
    server.kill();
    let ended = conformance(&url, &[]);
    assert_eq!(ended.code, Some(69));
    assert!(
        ended
            .stdout
            .contains("not examined to the end: connection refused"),
        "{}",
        ended.stdout
    );
    let ended = conformance(&url, &["--require=all", "--node", &url]);
    assert_eq!(ended.code, Some(64));
    // They are no text of the operator, which may hold a password if one argument is a URL.
    assert!(
        ended.stderr.contains("possible values: plain"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_server_that_cannot_answer_for_a_while_or_wants_a_password_is_not_examined_to_the_end() {
    let paused = Server::start();
    let pause = ["CLIENT", "PAUSE", "60000", "WRITE"];
    assert_eq!(paused.query::<String>(&pause).unwrap(), "OK");
    let loading = Impostor::answering(
        "EVAL",
        b"-LOADING Redis is loading the dataset in memory\r\n",
    );
    let locked = Server::start();
    let wants = ["CONFIG", "SET", "requirepass", "secret"];
    assert_eq!(locked.query::<String>(&wants).unwrap(), "OK");
    for (url, why) in [
        (paused.url(), "no answer"),
        (loading.url(), "LOADING"),
        (locked.url(), "NOAUTH"),
    ] {
        let (code, node) = examined(&url, &[]);
        assert_eq!(code, Some(69), "{node:#}");
        let error = node["error"].as_str().unwrap();
        assert!(error.contains(why), "{node:#}");
        assert!(!node.to_string().contains("may not call"), "{node:#}");
        let text = conformance(&url, &[]).stdout;
        assert!(text.contains("not examined to the end: "), "{text}");
    }
}

/// The exit code, and what the document says about the server.
fn examined(url: &str, options: &[&str]) -> (Option<i32>, Value) {
    let ended = conformance(url, &[options, &["--json"]].concat());
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    assert_eq!(report["conforms"], ended.code == Some(0), "{report:#}");
    (ended.code, report["nodes"][0].clone())
}

fn conformance(url: &str, options: &[&str]) -> Ended {
    let mut command = redlock(&["conformance"]);
    command.args(options).env("REDLOCK_NODES", url);
    be_patient(&mut command, options);
    Process::start(command).end()
}

fn verdicts_of(node: &Value) -> Value {
    let capabilities = node["capabilities"].as_array().unwrap().iter();
    let each: Vec<_> = capabilities
        .map(|capability| json!([capability["capability"], capability["yes"]]))
        .collect();
    json!({
        "plain": node["plain"], "guard": node["guard"], "fenced": node["fenced"], "line": node["line"],
        "capabilities": each,
    })
}

fn expect_no(node: &Value, name: &str, why: &str) {
    let mut capabilities = node["capabilities"].as_array().unwrap().iter();
    let capability = capabilities.find(|capability| capability["capability"] == name);
    let capability = capability.unwrap();
    assert_eq!(capability["yes"], false, "{capability}");
    let message = capability["message"].as_str().unwrap();
    assert!(message.contains(why), "{message}");
}
