//! What a run comes to.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Output;

use redlock_tests::child::{expect_words, words};
use tempfile::TempDir;

use crate::chaos;

#[test]
fn the_lock_keeps_its_promises_and_what_happened_is_drawn() {
    let directory = TempDir::new().unwrap();
    let plot = directory.path().join("chaos.svg");
    let plot_name = plot.display().to_string();
    let output = chaos(&[
        "--plain",
        "--seconds=16",
        "--ttl-ms=800",
        "--plot",
        &plot_name,
    ])
    .output();
    let words = words_of(&output.unwrap(), true);
    expect_words(
        &words,
        &[
            "nodes killed",
            "nodes failed over and back",
            "nodes evicted keys",
            "keeping 1",
            "overlaps     0",
            &plot_name,
        ],
    );
    let picture = fs::read_to_string(plot).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("hasty 1"));
}

#[test]
fn fences_grow_where_nodes_forget_and_clocks_are_stepped_and_counters_of_nodes_do_not() {
    let output = chaos(&["--fenced", "--seconds=24", "--ttl-ms=800"]).output();
    let words = words_of(&output.unwrap(), true);
    expect_words(
        &words,
        &[
            "clocks of nodes stepped",
            "nodes failed over and back",
            "operator     redlock doctor",
            "overlaps     0",
        ],
    );
    let order = |whose: &str| -> Vec<u64> {
        let mut lines = words.lines().map(|line| line.trim_start_matches("order"));
        let line = lines.find_map(|line| line.trim().strip_prefix(whose));
        let numbers = line.unwrap().split(|letter: char| !letter.is_ascii_digit());
        numbers.filter_map(|number| number.parse().ok()).collect()
    };
    let [fences, counters] = ["fences:", "INCR:"].map(order);
    assert!(fences[2] > 20 && counters[2] > 20, "{words}");
    assert_eq!(fences[..2], [0, 0], "{words}");
    assert!(counters[0] > 0 && counters[1] > 0, "{words}");
}

#[test]
fn two_that_hold_at_once_are_noticed_when_nodes_forget() {
    let arguments = ["--seconds=6", "--ttl-ms=3000", "--break=forget"];
    // In a few seconds it may be that no client came for what was forgotten, and the run says so.
    let noticed = (0..12)
        .map(|_| chaos(&arguments).output().unwrap())
        .find(|output| output.status.success());
    let words = words_of(&noticed.unwrap(), true);
    expect_words(&words, &["while", "two held the lock at once"]);
}

#[test]
fn where_no_network_can_be_cut_it_says_so_and_does_the_rest() {
    // All programs but those that make networks.
    let directory = TempDir::new().unwrap();
    for program in ["redis-server", "setpriv", "sh"] {
        let path = env::var_os("PATH").unwrap();
        let mut places = env::split_paths(&path).map(|place| place.join(program));
        let place = places.find(|place| place.exists()).unwrap();
        symlink(place, directory.path().join(program)).unwrap();
    }
    let mut command = chaos(&["--plain", "--seconds=16", "--ttl-ms=800"]);
    let words = words_of(
        &command.env("PATH", directory.path()).output().unwrap(),
        true,
    );
    expect_words(&words, &["!! NO NETWORK IS CUT"]);
    assert!(!words.contains("cut: "), "{words}");
}

#[test]
fn a_run_that_is_too_short_for_its_leases_does_not_begin() {
    let output = chaos(&["--seconds=1", "--ttl-ms=60000"]).output().unwrap();
    let words = words_of(&output, false);
    expect_words(&words, &["1 s are too short for leases of 60s"]);
}

/// What a run has printed, which is good or not.
fn words_of(output: &Output, is_good: bool) -> String {
    let words = words(output);
    assert_eq!(output.status.success(), is_good, "{words}");
    words
}
