//! Processes that wait for one lock: `redlock-std` with its waiting line, without it, and `rslock`, on the same five servers in
//! the same run. Ratios count, not times.
//!
//! `cargo bench -p redlock-tests --bench processes`, or with the names of some scenes behind `--`.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]
#![expect(clippy::float_arithmetic, reason = "ratios, for people")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot run stops")]

mod commands;
mod hand_over;
mod mishaps;
mod split;
mod uncontended;

use redlock_tests::contender::{Arguments, Contender, Kind};
use tokio::runtime::{Builder, Runtime};

/// The program that is one of the processes.
const PROGRAM: &str = env!("CARGO_BIN_EXE_redlock-tests");

/// A scene and its name.
type Scene = (&'static str, fn());

const SCENES: [Scene; 5] = [
    ("hand-over", hand_over::near),
    ("far", hand_over::far),
    ("uncontended", uncontended::run),
    ("split", split::run),
    ("mishaps", mishaps::run),
];

fn main() {
    let wanted: Vec<_> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    for (name, run) in SCENES {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            println!("\n# {name}\n");
            run();
        }
    }
}

/// Processes that are connected.
fn processes(count: usize, kind: Kind, urls: &[String]) -> Vec<Contender> {
    let arguments = Arguments {
        kind,
        ttl: 10_000,
        node_timeout: 50,
        nodes: urls.to_vec(),
    };
    (0..count)
        .map(|_| Contender::start(PROGRAM, &arguments))
        .collect()
}

/// The value below which `share` percent of the values are.
fn percentile(values: &mut [u64], share: usize) -> u64 {
    values.sort_unstable();
    let index = (values.len() * share / 100).min(values.len().saturating_sub(1));
    values.get(index).copied().unwrap_or(0)
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().enable_all().build().unwrap()
}
