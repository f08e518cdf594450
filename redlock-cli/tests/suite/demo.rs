//! `redlock demo`.

use std::process::{Command, Stdio};

use crate::process::{Process, end_of, redlock};

#[test]
fn the_demo_ends_with_a_summary_and_no_count_is_lost() {
    let ended = end_of(redlock(&["demo", "--seconds=3"]));
    ended.expect_code(0);
    for text in [
        "5 nodes in memory, 4 workers",
        "--seed",
        "worker   acquired",
        "overlaps     0",
        "OK: no two workers held the lock at once, and no count was lost",
    ] {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
    ended.expect_not_in_stdout("VIOLATION");
}

#[test]
fn the_demo_tells_who_holds_the_lock_on_which_nodes_and_what_fails() {
    let mut command = redlock(&[
        "demo",
        "--seconds=3",
        "--nodes=3",
        "--workers=2",
        "--seed=7",
    ]);
    command.stderr(Stdio::null());
    let ended = end_of(command);
    ended.expect_code(0);
    for text in ["holds the lock, on nodes", "node 1 ", "is back", "--seed 7"] {
        assert!(ended.stdout.contains(text), "{text}: {}", ended.stdout);
    }
}

#[test]
fn most_workers_and_most_nodes_work() {
    let arguments = ["demo", "--seconds=2", "--nodes=9", "--workers=16"];
    let ended = end_of(redlock(&arguments));
    ended.expect_code(0);
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let mut pipe = Command::new("sh");
    let demo = env!("CARGO_BIN_EXE_redlock");
    let script = format!("({demo} demo --seconds=1; echo code $? >&2) | head -1");
    pipe.args(["-c", &script]);
    let ended = Process::start(pipe).end();
    assert_eq!(ended.stderr, "code 0\n");
}
