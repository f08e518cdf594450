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

#[test]
fn a_client_that_does_not_come_and_keeps_its_place_leaves_the_lock_idle() {
    assert_eq!(found(Assumption::KeptHead), Promise::Idle);
}

#[test]
fn a_turn_that_does_not_end_leaves_the_lock_idle() {
    assert_eq!(found(Assumption::EndlessTurn), Promise::Idle);
}

#[test]
fn clients_that_sleep_for_long_after_a_split_vote_leave_the_lock_idle() {
    assert_eq!(found(Assumption::LongTimer), Promise::Idle);
}

#[test]
fn clients_that_draw_a_ticket_for_each_try_overtake_others() {
    assert_eq!(found(Assumption::TicketPerTry), Promise::Fairness);
}

#[test]
fn nodes_that_take_an_error_for_the_end_of_a_client_let_others_overtake_it() {
    assert_eq!(found(Assumption::ErrorIsDeath), Promise::Fairness);
}

#[test]
fn a_clean_up_that_calls_the_client_that_cleans_up_lets_it_try_without_a_rest() {
    assert_eq!(found(Assumption::CallsItself), Promise::Restraint);
}

#[test]
fn clients_that_try_when_the_first_node_calls_are_found() {
    assert_eq!(found(Assumption::FirstCall), Promise::Restraint);
}

#[test]
fn a_client_that_has_left_and_stays_in_the_line_is_found() {
    assert_eq!(found(Assumption::KeptPlace), Promise::Line);
}

#[test]
fn a_lost_round_that_costs_a_client_its_place_is_found() {
    found(Assumption::LostPlace);
}
