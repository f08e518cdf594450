//! What a device logs of its lock.

use std::sync::Mutex;

use embassy_sync::blocking_mutex::raw::NoopRawMutex;
use log::{LevelFilter, Log, Metadata, Record};
use redlock_embassy::{LogObserver, Shared};

use crate::fleet::*;
use crate::wire::Who;
use crate::world::*;

/// The log of this thread's test.
static LINES: Mutex<Vec<(std::thread::ThreadId, String)>> = Mutex::new(Vec::new());

struct Lines;

impl Log for Lines {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = format!("{} {}", record.level(), record.args());
        LINES
            .lock()
            .unwrap()
            .push((std::thread::current().id(), line));
    }

    fn flush(&self) {}
}

fn listen() {
    // Another test may have done so.
    let _is_set = log::set_logger(&Lines);
    log::set_max_level(LevelFilter::Trace);
}

fn heard() -> Vec<String> {
    let this = std::thread::current().id();
    let lines = LINES.lock().unwrap();
    let of_this = lines.iter().filter(|(thread, _)| *thread == this);
    of_this.map(|(_, line)| line.clone()).collect()
}

#[test]
fn a_device_logs_its_locks_in_the_names_of_the_metrics_without_key_or_token() {
    listen();
    let world = &World::default();
    let servers = fleet::<3>(world, Who::default());
    let redlock = lock(servers.each_ref(), 1, one_round());
    let shared = Shared::<NoopRawMutex, _, _, _, 3, _>::new(redlock.with_observer(LogObserver));
    let token = world.run(async {
        let lease = shared.acquire("dock-7").await.unwrap();
        let _refused = shared.try_acquire("dock-7").await.unwrap_err();
        let token = *lease.token();
        shared.release(lease).await;
        token
    });
    let heard = heard();
    let has = |level: &str, words: &[&str]| {
        let matching = |line: &&String| {
            line.starts_with(level) && words.iter().all(|word| line.contains(word))
        };
        heard.iter().any(|line| matching(&line))
    };
    let acquire = "redlock.client.acquire.duration=";
    assert!(
        has("DEBUG", &[acquire, "outcome=acquired tries=1"]),
        "{heard:#?}"
    );
    assert!(has("WARN", &[acquire, "outcome=held"]), "{heard:#?}");
    assert!(
        has("DEBUG", &["redlock.client.hold.duration=", "end=released"]),
        "{heard:#?}"
    );
    let all = heard.join("\n");
    let hex: String = token
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert!(!all.contains("dock-7") && !all.contains(&hex[..8]), "{all}");
}
