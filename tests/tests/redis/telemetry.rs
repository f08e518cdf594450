//! What the tests of this suite tell metrics and traces.

use std::env;
use std::fs;

use redlock_tests::{child, expect_no_secret, telemetry};

#[test]
fn no_span_event_or_metric_of_this_suite_tells_a_token_a_password_or_a_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("telemetry");
    // All that have to do with passwords, permissions, errors and lines, and those that acquire in all other ways.
    let tests = [
        "adopt::",
        "connection::",
        "fences::",
        "hostile::",
        "line::",
        "lock::",
        "permissions::",
        "status::",
        "unwell::",
        "a_server_that_wants_a_password",
    ];
    let mut command = child::bound(env::current_exe().unwrap());
    command.args(tests).args(["--test-threads", "2"]);
    command.env(telemetry::FILE, &file);
    let output = command.output().unwrap();
    // Whether they pass is not the question here: they are run beside this one too.
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("test result"), "{said}");

    let told = fs::read_to_string(&file).unwrap();
    for expected in [
        "redlock.acquire",
        "redlock.round",
        "redlock.release",
        "redlock.extend",
        "outcome=\"unreachable\"",
        "a node gave no vote",
        "a node is not reached any more",
        "a node is not reached server.address",
        "an acquire waits: too few nodes have given a vote",
        "METRIC Key(redlock.client.acquire.duration",
        "METRIC Key(redlock.client.node.failures",
    ] {
        assert!(told.contains(expected), "{expected} is not told");
    }
    for line in told.lines() {
        expect_no_secret(&without_script_hash(line));
        assert!(!line.contains("dock-7"), "a key: {line}");
    }
}

/// An error of a script ends with the hash of the script, which is no secret, and is as long as a token. A line may have the errors of
/// several nodes.
fn without_script_hash(line: &str) -> String {
    const DIGITS: usize = 40;

    let mut parts = line.split("script: ");
    let before = parts.next().unwrap_or_default();
    let after = parts.map(|part| part.get(DIGITS..).unwrap_or(part));
    [before].into_iter().chain(after).collect()
}
