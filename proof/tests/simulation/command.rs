//! What the command prints, and with which exit code it ends.

use std::process::{Command, Output};

fn simulate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_redlock-proof"));
    command.arg("simulate").args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn what_is_found_comes_with_the_command_that_shows_it_again() {
    let output = simulate(&["--seeds", "300", "--break", "drift", "--threads", "1"]);
    assert!(output.status.success(), "{output:?}");
    let printed = text(&output);
    let command = printed
        .lines()
        .find(|line| line.contains("cargo run"))
        .unwrap();
    let (_, arguments) = command.split_once("simulate ").unwrap();
    let breach = printed
        .lines()
        .find(|line| line.starts_with("Exclusion broken"))
        .unwrap();

    let again: Vec<_> = arguments.split_whitespace().collect();
    let replay = simulate(&again);
    assert!(replay.status.success(), "{replay:?}");
    assert!(text(&replay).lines().any(|line| line == breach), "{breach}");
    assert_eq!(replay, simulate(&again));
}

#[test]
fn a_run_in_which_a_fault_never_was_is_no_success() {
    let output = simulate(&["--seeds", "1", "--threads", "1"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("never happened: "), "{output:?}");
}

#[test]
fn a_broken_assumption_that_is_not_found_is_no_success() {
    let output = simulate(&["--seeds", "0", "--break", "forget"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output).contains("nothing was found"), "{output:?}");
}

#[test]
fn a_seed_is_shown_from_its_first_to_its_last_event() {
    let output = simulate(&["--seed", "3"]);
    assert!(output.status.success(), "{output:?}");
    let printed = text(&output);
    assert!(printed.starts_with("node 0: runs at "), "{printed}");
    assert!(
        printed.contains("calls acquire after the faults"),
        "{printed}"
    );
}
