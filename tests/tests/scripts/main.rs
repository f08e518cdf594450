//! The Lua scripts on a real Redis and the server of the test kit, which is the same in Rust: the nodes of tests, of the
//! simulation and of the model. Asked the same, by clocks that show the same to the microsecond, they answer the same and
//! remember the same.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what fails here fails a test"
)]

mod line;
mod step;
mod twins;

use std::collections::BTreeMap;

use fastrand::Rng;
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

/// Another client that may run scripts can replace the methods of strings on servers without the fix of CVE-2025-46818, and
/// can replace no function of the library `string` since Redis 6.2.7.
#[test]
fn no_script_calls_what_another_client_may_have_replaced_for_strings() {
    let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let mut folders = vec![
        format!("{crates}/redlock-core/src").into(),
        std::path::PathBuf::from(format!("{crates}/redlock-cli/src")),
    ];
    let mut scripts = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "lua") {
                scripts += 1;
                for line in std::fs::read_to_string(&path).unwrap().lines() {
                    let code = line.split_once("--").map_or(line, |(code, _)| code);
                    // Every second part is a string.
                    let has_method = code.split('\'').step_by(2).any(|part| part.contains(':'));
                    assert!(!has_method, "{}: {line}", path.display());
                    // It calls __tostring of their metatable.
                    assert!(!code.contains("tostring("), "{}: {line}", path.display());
                }
            }
        }
    }
    assert!(scripts >= 16, "{scripts}");
}

#[test]
fn the_scripts_and_the_server_in_memory_agree_reply_by_reply() {
    const SEEDS: u64 = 240;
    const STEPS: usize = 200;

    let servers = [false, true].map(|may_fail_back| (Server::start_with_clock(), may_fail_back));
    let mut met = BTreeMap::<String, usize>::new();
    for (seed, (server, may_fail_back)) in (0..SEEDS).zip(servers.iter().cycle()) {
        let mut random = Rng::with_seed(seed);
        let mut twins = Twins::begin(server, *may_fail_back);
        // In every second pair of seeds, clients wait in lines. In half of these, there are only plain locks.
        twins.has_fences = seed % 8 > 1;
        if seed % 4 < 2 {
            twins.begin_lines();
        }
        let mut done = Vec::new();
        for _ in 0..STEPS {
            let step = Step::draw(&mut random, &twins);
            done.push(format!("{} {step:?}", twins.wall()));
            let last = done.len().saturating_sub(12);
            let context = || format!("seed {seed}: .. {:#?}", &done[last..]);
            for name in twins.take(&step, context) {
                *met.entry(name).or_default() += 1;
            }
        }
    }
    // What was never answered was not compared.
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
        "ReleasedWithWaiters",
        "Waiting, Held",
        "Waiting, Ahead",
        "Waiting, Held, fenced",
        "Waiting, Ahead, fenced",
        "Called",
        "Called, with a deputy",
        "Turn passed",
        "Known",
        "Known, may evict",
        "Initialized",
        "Refused",
        "Repaired",
    ] {
        let times = met.get(reply).copied().unwrap_or_default();
        assert!(times >= 20, "{reply} only {times} times, of {met:#?}");
    }
}
