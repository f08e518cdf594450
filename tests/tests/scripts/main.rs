//! The Lua scripts on a real Redis and the node in memory, which is the same in Rust. Asked the same, by
//! clocks that show the same to the microsecond, they answer the same and remember the same.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails a test"
)]

mod step;
mod twins;

use std::collections::BTreeMap;

use fastrand::Rng;
use redlock_core::mock::MockClock;
use redlock_tests::{Server, scripts};

use crate::step::Step;
use crate::twins::Twins;

#[test]
fn what_is_sent_is_made_of_the_commented_scripts() {
    for made in scripts::all().unwrap() {
        let sent = scripts::sent(made.name).unwrap();
        let how = "run `cargo run -p redlock-tests -- scripts`";
        assert_eq!(sent, (made.text, made.sha1), "{}: {how}", made.name);
    }
}

#[test]
fn the_scripts_and_the_node_in_memory_agree_reply_by_reply() {
    const SEEDS: u64 = 60;
    const STEPS: usize = 200;

    let server = Server::start_with_clock();
    let mut met = BTreeMap::<String, usize>::new();
    for seed in 0..SEEDS {
        let mut random = Rng::with_seed(seed);
        let clock = MockClock::new();
        let mut twins = Twins::begin(&server, &clock);
        let mut done = Vec::new();
        for _ in 0..STEPS {
            let step = Step::draw(&mut random, &twins);
            done.push(format!("{} {step:?}", twins.wall()));
            let last = done.len().saturating_sub(12);
            let context = || format!("seed {seed}: .. {:#?}", &done[last..]);
            if let Some(reply) = twins.take(&step, context) {
                *met.entry(reply).or_default() += 1;
            }
        }
    }
    // What was never answered, nobody has compared.
    for reply in [
        "Acquired",
        "Acquired fenced",
        "Held",
        "Held fenced",
        "Stale",
        "TooOld",
        "TooNew",
        "Quarantined",
        "FencingMismatch",
        "Unguarded",
        "Unguarded, with a record",
        "Extended",
        "Extended, key made again",
        "NotMine",
        "Released",
    ] {
        let times = met.get(reply).copied().unwrap_or_default();
        assert!(times >= 20, "{reply} only {times} times, of {met:#?}");
    }
}
