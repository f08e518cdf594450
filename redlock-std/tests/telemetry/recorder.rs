//! Recorders of metrics and of traces.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex, Once, PoisonError};

use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The metrics of one test. Its runtime has one thread, so no other test is heard.
pub(crate) struct Metrics {
    snapshotter: Snapshotter,
    _recorder: metrics::LocalRecorderGuard<'static>,
    known: Mutex<BTreeMap<String, Vec<f64>>>,
}

impl Metrics {
    pub(crate) fn install() -> Self {
        Router::install();
        let recorder = DebuggingRecorder::new();
        let snapshotter = recorder.snapshotter();
        Self {
            snapshotter,
            _recorder: metrics::set_default_local_recorder(Box::leak(Box::new(recorder))),
            known: Mutex::default(),
        }
    }

    /// All series by `name{attribute=value,..}`: a counter, a gauge, or the values of a histogram.
    pub(crate) fn series(&self) -> BTreeMap<String, Vec<f64>> {
        let snapshot = self.snapshotter.snapshot().into_vec();
        let mut known = self.known.lock().unwrap();
        // A snapshot takes the values away.
        for (key, _unit, _text, value) in snapshot {
            let key = key.key();
            let mut labels: Vec<_> = key
                .labels()
                .map(|label| format!("{}={}", label.key(), label.value()))
                .collect();
            labels.sort();
            let name = format!("{}{{{}}}", key.name(), labels.join(","));
            let values = known.entry(name).or_default();
            let mut add = |change| *values = vec![values.first().unwrap_or(&0.0) + change];
            match value {
                DebugValue::Counter(count) => add(f64::from(u32::try_from(count).unwrap())),
                DebugValue::Gauge(value) => add(*value),
                DebugValue::Histogram(new) => values.extend(new.into_iter().map(|value| *value)),
            }
        }
        known.clone()
    }

    /// The units by name.
    pub(crate) fn units(&self) -> BTreeMap<String, Option<&'static str>> {
        let snapshot = self.snapshotter.snapshot().into_vec();
        let units = snapshot.into_iter().map(|(key, unit, text, _value)| {
            assert!(text.is_some(), "{key:?} is not described");
            (key.key().name().to_owned(), unit.map(|unit| unit.as_str()))
        });
        units.collect()
    }

    /// The values of one series. None if there is no such series.
    pub(crate) fn values(&self, name: &str) -> Vec<f64> {
        self.series().remove(name).unwrap_or_default()
    }
}

/// Gives what a thread traces to the recorder of its test. One subscriber for the process, before anything is traced: with one for each
/// thread, tracing may have cached by then that an event interests none.
struct Router;

thread_local! {
    static TRACES: RefCell<Option<Traces>> = const { RefCell::new(None) };
}

/// While it exists, its thread is recorded.
pub(crate) struct Recording(());

impl Drop for Recording {
    fn drop(&mut self) {
        TRACES.take();
    }
}

impl Router {
    fn install() {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| tracing::subscriber::set_global_default(Self).unwrap());
    }

    fn with<R>(&self, told: impl FnOnce(&Traces) -> R) -> Option<R> {
        TRACES.with_borrow(|traces| traces.as_ref().map(told))
    }
}

impl Subscriber for Router {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("redlock")
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let id = self.with(|traces| traces.new_span(attributes));
        id.unwrap_or_else(|| Id::from_u64(u64::MAX))
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        self.with(|traces| traces.record(span, values));
    }

    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.with(|traces| traces.event(event));
    }

    fn enter(&self, _span: &Id) {}

    fn exit(&self, _span: &Id) {}

    fn try_close(&self, span: Id) -> bool {
        self.with(|traces| traces.close(&span)).unwrap_or_default()
    }
}

/// What a subscriber at TRACE was told, as text.
#[derive(Debug, Clone, Default)]
pub(crate) struct Traces(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    spans: Vec<Span>,
    events: Vec<String>,
}

#[derive(Debug)]
struct Span {
    text: String,
    is_open: bool,
}

impl Traces {
    pub(crate) fn install() -> (Self, Recording) {
        Router::install();
        let traces = Self::default();
        TRACES.set(Some(traces.clone()));
        (traces, Recording(()))
    }

    /// The spans so far: `name field=value ..`.
    pub(crate) fn spans(&self) -> Vec<String> {
        let state = self.state();
        state.spans.iter().map(|span| span.text.clone()).collect()
    }

    pub(crate) fn open_spans(&self) -> usize {
        self.state()
            .spans
            .iter()
            .filter(|span| span.is_open)
            .count()
    }

    /// The events so far: `LEVEL field=value ..`.
    pub(crate) fn events(&self) -> Vec<String> {
        self.state().events.clone()
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the router passes on.
impl Traces {
    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let mut text = Text(attributes.metadata().name().to_owned());
        attributes.record(&mut text);
        let mut state = self.state();
        state.spans.push(Span {
            text: text.0,
            is_open: true,
        });
        Id::from_u64(state.spans.len() as u64)
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        let mut text = Text(String::new());
        values.record(&mut text);
        self.change(span, |span| span.text.push_str(&text.0));
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(event.metadata().level().to_string());
        event.record(&mut text);
        self.state().events.push(text.0);
    }

    fn close(&self, span: &Id) -> bool {
        // Clones are counted by no test: the last close is the end.
        self.change(span, |span| span.is_open = false);
        true
    }

    /// A span that began before the recording is not known.
    fn change(&self, span: &Id, change: impl FnOnce(&mut Span)) {
        let index = usize::try_from(span.into_u64()).unwrap() - 1;
        if let Some(span) = self.state().spans.get_mut(index) {
            change(span);
        }
    }
}

struct Text(String);

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        write!(self.0, " {}={value}", field.name()).unwrap();
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}
