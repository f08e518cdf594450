//! The metrics, by their names.

use std::array;
use std::sync::OnceLock;
use std::time::Duration;

use metrics::{
    Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use redlock_core::{AcquireOutcome, HoldEnd};

use super::kinds;
use crate::node::{NODE_FAILURES, NODE_UP};

const ACQUIRE_DURATION: &str = "redlock.client.acquire.duration";
const ACQUIRE_TRIES: &str = "redlock.client.acquire.tries";
const EXTEND_FAILURES: &str = "redlock.client.extend.failures";
const HANDOFF_DURATION: &str = "redlock.client.handoff.duration";
const HELD: &str = "redlock.client.held";
const HOLD_DURATION: &str = "redlock.client.hold.duration";
const LOST: &str = "redlock.client.lost";
const WAITING: &str = "redlock.client.waiting";

/// Tells the recorder what the metrics are.
pub(super) fn describe() {
    describe_histogram!(
        ACQUIRE_DURATION,
        Unit::Seconds,
        "How long an acquire took, with all its waits"
    );
    describe_histogram!(
        ACQUIRE_TRIES,
        Unit::Count,
        "How many times an acquire asked the nodes"
    );
    describe_counter!(
        EXTEND_FAILURES,
        Unit::Count,
        "Extensions that failed; the lock may still be held"
    );
    describe_histogram!(
        HANDOFF_DURATION,
        Unit::Seconds,
        "From the moment when it was the turn of an acquire until it had the lock"
    );
    describe_gauge!(HELD, Unit::Count, "Locks that are held");
    describe_histogram!(HOLD_DURATION, Unit::Seconds, "How long a lock was held");
    describe_counter!(
        LOST,
        Unit::Count,
        "Locks that were found lost before they were released"
    );
    describe_counter!(
        NODE_FAILURES,
        Unit::Count,
        "Rounds in which a node failed, or its vote was denied, before the round was decided"
    );
    describe_gauge!(
        NODE_UP,
        Unit::Count,
        "Handles that are connected to the node, and that it answers"
    );
    describe_gauge!(WAITING, Unit::Count, "Acquires that have not ended");
}

/// The metrics of the locks with one label. A histogram is registered when it gets its first value.
#[derive(Debug)]
pub(super) struct Instruments {
    label: Option<&'static str>,
    pub(super) waiting: Gauge,
    pub(super) held: Gauge,
    acquire_duration: Each<Histogram, { AcquireOutcome::ALL.len() }>,
    acquire_tries: Each<Histogram, { AcquireOutcome::ALL.len() }>,
    hold_duration: Each<Histogram, { HoldEnd::ALL.len() }>,
    handoff_duration: Each<Histogram, 2>,
}

/// One metric for each value of an attribute.
type Each<M, const N: usize> = [OnceLock<M>; N];

impl Instruments {
    pub(super) fn new(label: Option<&'static str>) -> Self {
        let counters = [
            (LOST, "cause", &kinds::OF_LOSSES[..]),
            (EXTEND_FAILURES, "error.type", &kinds::OF_EXTENSIONS),
        ];
        for (name, attribute, values) in counters {
            for value in values {
                // A monitoring system sees the first count only if the series was there before it, at zero.
                counter!(name, labels(label, [(attribute, *value)])).increment(0);
            }
        }
        Self {
            label,
            waiting: gauge!(WAITING, labels(label, [])),
            held: gauge!(HELD, labels(label, [])),
            acquire_duration: array::from_fn(|_| OnceLock::new()),
            acquire_tries: array::from_fn(|_| OnceLock::new()),
            hold_duration: array::from_fn(|_| OnceLock::new()),
            handoff_duration: array::from_fn(|_| OnceLock::new()),
        }
    }

    pub(super) fn acquire_ended(&self, outcome: AcquireOutcome, took: Duration, tries: u32) {
        let position = AcquireOutcome::ALL.iter().position(|one| *one == outcome);
        let Some(position) = position else {
            return;
        };
        let attributes = || labels(self.label, [("outcome", outcome.as_str())]);
        if let Some(duration) = self.acquire_duration.get(position) {
            duration
                .get_or_init(|| histogram!(ACQUIRE_DURATION, attributes()))
                .record(took);
        }
        if let Some(counts) = self.acquire_tries.get(position) {
            counts
                .get_or_init(|| histogram!(ACQUIRE_TRIES, attributes()))
                .record(tries);
        }
    }

    pub(super) fn handed_off(&self, is_called: bool, took: Duration) {
        let via = if is_called { "line" } else { "process" };
        let attributes = || labels(self.label, [("via", via)]);
        if let Some(duration) = self.handoff_duration.get(usize::from(is_called)) {
            duration
                .get_or_init(|| histogram!(HANDOFF_DURATION, attributes()))
                .record(took);
        }
    }

    pub(super) fn hold_ended(&self, end: HoldEnd, held: Duration) {
        let attributes = || labels(self.label, [("end", end.as_str())]);
        let position = HoldEnd::ALL.iter().position(|one| *one == end);
        if let Some(duration) = position.and_then(|at| self.hold_duration.get(at)) {
            duration
                .get_or_init(|| histogram!(HOLD_DURATION, attributes()))
                .record(held);
        }
    }

    pub(super) fn lost(&self, cause: &'static str) {
        self.count(LOST, ("cause", cause));
    }

    pub(super) fn not_extended(&self, error: &'static str) {
        self.count(EXTEND_FAILURES, ("error.type", error));
    }

    fn count(&self, name: &'static str, attribute: (&'static str, &'static str)) {
        counter!(name, labels(self.label, [attribute])).increment(1);
    }
}

fn labels<const N: usize>(
    label: Option<&'static str>,
    attributes: [(&'static str, &'static str); N],
) -> Vec<Label> {
    let lock = label.map(|label| ("lock", label));
    let all = attributes.into_iter().chain(lock);
    all.map(|(name, value)| Label::from_static_parts(name, value))
        .collect()
}
