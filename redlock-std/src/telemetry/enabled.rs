//! The telemetry of acquires and leases.
//!
//! The items in `disabled.rs` must have the same signatures.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redlock_core::{AcquireOutcome, Clock, Fence, HoldEnd, Instant};

#[cfg(feature = "metrics")]
use super::instruments::{self, Instruments};
use super::kinds;
use crate::error::{AcquireError, ExtendError, LossCause};
use crate::lock_clock::LockClock;

/// The telemetry of one handle and its clones.
#[derive(Clone)]
pub(crate) struct Telemetry {
    clock: LockClock,
    unlabelled: Arc<Lock>,
    labels: Option<Labels>,
}

/// What the locks with one label tell.
#[derive(Debug)]
struct Lock {
    #[cfg_attr(
        not(feature = "tracing"),
        expect(dead_code, reason = "the instruments have it too")
    )]
    label: Option<&'static str>,
    #[cfg(feature = "metrics")]
    instruments: Instruments,
}

/// The application's function from keys to labels.
type Labelling = dyn Fn(&[u8]) -> Option<&'static str> + Send + Sync;

#[derive(Clone)]
struct Labels {
    label: Arc<Labelling>,
    /// As many as the function returns different labels.
    locks: Arc<Mutex<HashMap<&'static str, Arc<Lock>>>>,
}

impl Telemetry {
    pub(crate) fn new(clock: LockClock) -> Self {
        #[cfg(feature = "metrics")]
        instruments::describe();
        Self {
            clock,
            unlabelled: Arc::new(Lock::new(None)),
            labels: None,
        }
    }

    /// The same telemetry, with a label for some keys.
    pub(crate) fn with_label(
        &self,
        label: impl Fn(&[u8]) -> Option<&'static str> + Send + Sync + 'static,
    ) -> Self {
        Self {
            labels: Some(Labels {
                label: Arc::new(label),
                locks: Arc::default(),
            }),
            ..self.clone()
        }
    }

    /// Begins an acquire that waits since `since`.
    pub(crate) fn acquire(&self, key: &[u8], since: Instant) -> AcquireScope {
        Self::begin(self.lock(key), since, self.clock)
    }

    /// Begins an acquire with a key that is that of no lock.
    pub(crate) fn acquire_unlabelled(&self, since: Instant) -> AcquireScope {
        Self::begin(Arc::clone(&self.unlabelled), since, self.clock)
    }

    fn begin(lock: Arc<Lock>, since: Instant, clock: LockClock) -> AcquireScope {
        #[cfg(feature = "metrics")]
        lock.instruments.waiting.increment(1.0);
        #[cfg(feature = "tracing")]
        let span = tracing::info_span!(
            "redlock.acquire",
            lock = lock.label,
            outcome = tracing::field::Empty,
            tries = tracing::field::Empty,
            fence = tracing::field::Empty,
        );
        AcquireScope {
            lock,
            clock,
            since,
            turn_at: None,
            was_called: false,
            tries: 0,
            has_ended: false,
            #[cfg(feature = "tracing")]
            span,
        }
    }

    /// The telemetry of a lease that is to be adopted.
    pub(crate) fn adoption(&self, key: &[u8]) -> AdoptionScope {
        AdoptionScope {
            lock: self.lock(key),
            clock: self.clock,
        }
    }

    fn lock(&self, key: &[u8]) -> Arc<Lock> {
        let labels = self.labels.as_ref();
        // The function of the application runs before the mutex is locked.
        let label = labels.and_then(|labels| (labels.label)(key).map(|label| (label, labels)));
        let Some((label, labels)) = label else {
            return Arc::clone(&self.unlabelled);
        };
        let mut locks = labels.locks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(label) {
            return Arc::clone(lock);
        }
        drop(locks);
        // The recorder is the application's too. If two tasks are here at once, their instruments are the same.
        let lock = Arc::new(Lock::new(Some(label)));
        locks = labels.locks.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(locks.entry(label).or_insert(lock))
    }
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

impl Lock {
    #[cfg_attr(
        not(feature = "metrics"),
        expect(clippy::missing_const_for_fn, reason = "with metrics it is none")
    )]
    fn new(label: Option<&'static str>) -> Self {
        Self {
            label,
            #[cfg(feature = "metrics")]
            instruments: Instruments::new(label),
        }
    }
}

/// A span. Without the feature `tracing`, nothing.
#[derive(Debug)]
pub(crate) struct Trace {
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl Trace {
    /// Runs the future in the span.
    #[cfg(feature = "tracing")]
    pub(crate) fn run<F: Future>(self, future: F) -> tracing::instrument::Instrumented<F> {
        tracing::Instrument::instrument(future, self.span)
    }

    #[cfg(not(feature = "tracing"))]
    pub(crate) fn run<F: Future>(self, future: F) -> F {
        future
    }
}

/// An adoption in progress.
#[derive(Debug)]
pub(crate) struct AdoptionScope {
    lock: Arc<Lock>,
    clock: LockClock,
}

impl AdoptionScope {
    /// Begins the lease, which was adopted a moment ago.
    pub(crate) fn hold(self) -> HoldScope {
        HoldScope::begin(self.lock, self.clock)
    }
}

/// An acquire in progress. If it is dropped before its end, its future was dropped.
#[derive(Debug)]
pub(crate) struct AcquireScope {
    lock: Arc<Lock>,
    clock: LockClock,
    since: Instant,
    /// Since when no other task or client is ahead, after a wait for this.
    turn_at: Option<Instant>,
    /// Whether the nodes have called it.
    was_called: bool,
    tries: u32,
    has_ended: bool,
    #[cfg(feature = "tracing")]
    span: tracing::Span,
}

impl AcquireScope {
    /// The span of the acquire.
    pub(crate) fn trace(&self) -> Trace {
        Trace {
            #[cfg(feature = "tracing")]
            span: self.span.clone(),
        }
    }

    /// The span of the attempt that begins.
    pub(crate) fn trace_round(&self) -> Trace {
        Trace {
            #[cfg(feature = "tracing")]
            span: tracing::debug_span!("redlock.round", number = self.tries),
        }
    }

    /// Records that the tasks ahead in this process are done.
    pub(crate) fn got_its_turn(&mut self) {
        self.turn_at = Some(self.clock.now());
    }

    /// Records that another attempt begins, maybe because the nodes have called.
    pub(crate) fn tried(&mut self, was_called: bool) {
        self.tries = self.tries.saturating_add(1);
        if was_called && !self.was_called {
            self.was_called = true;
            self.turn_at = Some(self.clock.now());
        }
    }

    /// Records that the first attempt has failed with this error, and that the acquire waits.
    pub(crate) fn waits(&self, _error: &AcquireError) {
        #[cfg(feature = "tracing")]
        if _error.is_unreachable() {
            tracing::info!(
                parent: &self.span,
                lock = self.lock.label,
                error = %kinds::failures(_error),
                "an acquire waits: too few nodes have given a vote"
            );
        }
    }

    /// Begins the lease, which was granted a moment ago.
    pub(crate) fn hold(&self) -> HoldScope {
        HoldScope::begin(Arc::clone(&self.lock), self.clock)
    }

    /// Ends the acquire, with the fence of the lease if it has one.
    pub(crate) fn end(mut self, acquired: Result<Option<Fence>, &AcquireError>) {
        let outcome = acquired.map_or_else(kinds::outcome, |_| AcquireOutcome::Acquired);
        #[cfg(feature = "tracing")]
        if let Ok(Some(fence)) = acquired {
            self.span.record("fence", fence.as_u64());
        }
        self.report(outcome);
    }

    fn report(&mut self, outcome: AcquireOutcome) {
        self.has_ended = true;
        let now = self.clock.now();
        let took = now.saturating_duration_since(self.since);
        #[cfg(feature = "tracing")]
        {
            self.span.record("outcome", outcome.as_str());
            self.span.record("tries", self.tries);
            tracing::debug!(
                parent: &self.span,
                lock = self.lock.label,
                outcome = outcome.as_str(),
                tries = self.tries,
                took_s = took.as_secs_f64(),
                "an acquire has ended"
            );
        }
        #[cfg(feature = "metrics")]
        {
            let instruments = &self.lock.instruments;
            instruments.waiting.decrement(1.0);
            instruments.acquire_ended(outcome, took, self.tries);
            if let Some(turn_at) = self.turn_at.filter(|_| outcome == AcquireOutcome::Acquired) {
                let took = now.saturating_duration_since(turn_at);
                instruments.handed_off(self.was_called, took);
            }
        }
    }
}

impl Drop for AcquireScope {
    fn drop(&mut self) {
        if !self.has_ended {
            self.report(AcquireOutcome::Dropped);
        }
    }
}

/// A lease that is held. Its end is reported once: the first one counts.
#[derive(Debug)]
pub(crate) struct HoldScope {
    lock: Arc<Lock>,
    clock: LockClock,
    since: Instant,
    has_ended: AtomicBool,
}

impl HoldScope {
    /// Runs no code of the application but its recorder: the lease has no guard yet, which would release it if that panicked.
    fn begin(lock: Arc<Lock>, clock: LockClock) -> Self {
        #[cfg(feature = "metrics")]
        lock.instruments.held.increment(1.0);
        Self {
            lock,
            clock,
            since: clock.now(),
            has_ended: AtomicBool::new(false),
        }
    }

    /// The span of an extension that the caller has asked for.
    pub(crate) fn trace_extension(&self) -> Trace {
        Trace {
            #[cfg(feature = "tracing")]
            span: tracing::debug_span!("redlock.extend", lock = self.lock.label),
        }
    }

    /// The span of the release.
    pub(crate) fn trace_release(&self) -> Trace {
        Trace {
            #[cfg(feature = "tracing")]
            span: tracing::info_span!("redlock.release", lock = self.lock.label),
        }
    }

    /// Records that a task in the background has extended the lease.
    pub(crate) fn extended(&self) {
        #[cfg(feature = "tracing")]
        tracing::debug!(lock = self.lock.label, "extended");
    }

    /// Records an extension that failed.
    pub(crate) fn not_extended(&self, error: &ExtendError) {
        self.report_extension(kinds::of_extension(error));
    }

    /// Records an extension in the background that no quorum has answered, and that is tried again.
    pub(crate) fn unreachable(&self) {
        self.report_extension("unreachable");
    }

    /// Records the extension in the background by which the lock was found lost, if it was one.
    pub(crate) fn kept_in_vain(&self, cause: &LossCause) {
        if matches!(cause, LossCause::Lost(_) | LossCause::NotAsked { .. }) {
            self.report_extension(kinds::of_loss(cause));
        }
    }

    fn report_extension(&self, error: &'static str) {
        #[cfg(feature = "metrics")]
        self.lock.instruments.not_extended(error);
        #[cfg(feature = "tracing")]
        tracing::warn!(lock = self.lock.label, error.r#type = error, "not extended");
    }

    /// Ends the lease. `lose` is for one that is lost.
    pub(crate) fn end(&self, end: HoldEnd) {
        if end == HoldEnd::Expired {
            self.lose(&LossCause::Expired);
        } else if let Some(_held) = self.finish(end) {
            #[cfg(feature = "tracing")]
            tracing::debug!(
                lock = self.lock.label,
                end = end.as_str(),
                held_s = _held.as_secs_f64(),
                "a lock is not held any more"
            );
        }
    }

    /// Ends a lease that is lost.
    pub(crate) fn lose(&self, cause: &LossCause) {
        let end = match cause {
            LossCause::Expired => HoldEnd::Expired,
            _ => HoldEnd::Lost,
        };
        if let Some(_held) = self.finish(end) {
            #[cfg(feature = "metrics")]
            self.lock.instruments.lost(kinds::of_loss(cause));
            #[cfg(feature = "tracing")]
            tracing::warn!(
                lock = self.lock.label,
                cause = kinds::of_loss(cause),
                held_s = _held.as_secs_f64(),
                "a lock is lost"
            );
        }
    }

    /// Returns for how long the lease was held, at its first end.
    fn finish(&self, end: HoldEnd) -> Option<Duration> {
        if self.has_ended.swap(true, Ordering::Relaxed) {
            return None;
        }
        let held = self.clock.now().saturating_duration_since(self.since);
        let _end = end;
        #[cfg(feature = "metrics")]
        {
            self.lock.instruments.held.decrement(1.0);
            self.lock.instruments.hold_ended(end, held);
        }
        Some(held)
    }
}
