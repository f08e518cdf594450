//! One task that acquires and releases a free lock, to count the instructions of a cycle with and without telemetry.
//!
//! `REDLOCK_NODES=redis://127.0.0.1:7001,.. cargo bench -p redlock-std --bench cycle [--features metrics,tracing] -- CYCLES`. With
//! the features, a subscriber and a recorder are there that drop everything. `docs/observing.md` compares the two under callgrind, by
//! the difference between two numbers of cycles.

#![expect(clippy::print_stdout, reason = "a benchmark prints")]
#![expect(clippy::unwrap_used, reason = "a benchmark that cannot run stops")]

use std::env;
use std::time::{Duration, Instant};

use redlock_std::{Options, Redlock};
use tokio::runtime::Builder;

const CYCLES: u32 = 2_000;

fn main() {
    let cycles = env::args().find_map(|argument| argument.parse().ok());
    let cycles = cycles.unwrap_or(CYCLES);
    #[cfg(all(feature = "metrics", feature = "tracing"))]
    dropping::install();
    let urls = env::var("REDLOCK_NODES").unwrap_or_default();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = Options::new(Duration::from_secs(10)).unwrap();
        // Under callgrind everything takes fifty times as long.
        let options = options.node_timeout(Duration::from_secs(2)).unwrap();
        let redlock = Redlock::connect(urls.split(','), options.restart_guard(false)).unwrap();
        let cycle = async || {
            redlock.acquire("dock-7").await.unwrap().release().await;
        };
        cycle().await;
        let start = Instant::now();
        for _ in 0..cycles {
            cycle().await;
        }
        let each = start.elapsed() / cycles.max(1);
        println!("{cycles} cycles, {} us each", each.as_micros());
        redlock.close().await;
    });
}

/// A subscriber and a recorder that drop everything.
#[cfg(all(feature = "metrics", feature = "tracing"))]
mod dropping {
    use metrics::NoopRecorder;
    use tracing::span::{Attributes, Id, Record};
    use tracing::{Event, Metadata, Subscriber};

    pub(crate) fn install() {
        tracing::subscriber::set_global_default(Nothing).unwrap();
        metrics::set_global_recorder(NoopRecorder).unwrap();
    }

    struct Nothing;

    impl Subscriber for Nothing {
        fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
            false
        }

        fn new_span(&self, _attributes: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _span: &Id, _values: &Record<'_>) {}

        fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

        fn event(&self, _event: &Event<'_>) {}

        fn enter(&self, _span: &Id) {}

        fn exit(&self, _span: &Id) {}
    }
}
