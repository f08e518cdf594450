//! All spans, events and metrics of a process, in a file.

#![expect(clippy::expect_used, reason = "what fails here fails a test")]

use std::env;
use std::fs::File;
use std::io::Write;
use std::sync::{Mutex, Once, PoisonError};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    set_global_recorder,
};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::FmtSpan;

/// The environment variable with the path of the file. Without it, nothing is recorded.
pub const FILE: &str = "REDLOCK_TELEMETRY";

/// Records from now on, if the environment asks for it: everything that any library of this process tells, at TRACE.
///
/// # Panics
///
/// If the file cannot be opened.
pub(crate) fn record_if_asked() {
    static ONCE: Once = Once::new();

    let Some(path) = env::var_os(FILE) else {
        return;
    };
    ONCE.call_once(|| {
        let open = || File::options().create(true).append(true).open(&path);
        let file = open().expect("a file for the telemetry");
        tracing_subscriber::fmt()
            .with_max_level(LevelFilter::TRACE)
            .with_span_events(FmtSpan::FULL)
            .with_ansi(false)
            .with_writer(Mutex::new(file))
            .init();
        let file = open().expect("a file for the telemetry");
        let is_set = set_global_recorder(Series(Mutex::new(file)));
        is_set.expect("the only recorder");
    });
}

/// Writes down each series that is registered.
#[derive(Debug)]
struct Series(Mutex<File>);

impl Series {
    fn write(&self, text: &str) {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(file, "METRIC {text}").expect("room for the telemetry");
    }
}

impl Recorder for Series {
    fn describe_counter(&self, _key: KeyName, _unit: Option<Unit>, _text: SharedString) {}

    fn describe_gauge(&self, _key: KeyName, _unit: Option<Unit>, _text: SharedString) {}

    fn describe_histogram(&self, _key: KeyName, _unit: Option<Unit>, _text: SharedString) {}

    fn register_counter(&self, key: &Key, _metadata: &Metadata<'_>) -> Counter {
        self.write(&key.to_string());
        Counter::noop()
    }

    fn register_gauge(&self, key: &Key, _metadata: &Metadata<'_>) -> Gauge {
        self.write(&key.to_string());
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _metadata: &Metadata<'_>) -> Histogram {
        self.write(&key.to_string());
        Histogram::noop()
    }
}
