//! Extends the lease while the command runs.

use core::cell::{Cell, RefCell};
use core::time::Duration;

use redlock_core::Clock;
use redlock_std::{ExtendError, Guard, Instant, Options, SystemClock};

use super::journal::{Event, Journal};

/// The current end of the lease, also readable while an extension is in flight.
#[derive(Debug)]
pub(crate) struct Validity {
    until: Cell<Instant>,
    /// When the extension that is in flight began.
    asked_at: Cell<Option<Instant>>,
    /// Why the last extension failed. `None` if it did not.
    failure: RefCell<Option<String>>,
    /// What was told last. An extension that succeeds after SIGTERM changes nothing about it.
    told: RefCell<Option<String>>,
}

impl Validity {
    pub(crate) fn new(guard: &Guard) -> Self {
        Self {
            until: Cell::new(guard.valid_until()),
            asked_at: Cell::new(None),
            failure: RefCell::new(None),
            told: RefCell::new(None),
        }
    }

    pub(crate) const fn until(&self) -> Instant {
        self.until.get()
    }

    /// Why the command must end.
    pub(crate) fn trouble(&self) -> String {
        let failure = self.failure.borrow().clone();
        let earlier = self.told.take();
        let why = failure.or(earlier).unwrap_or_else(|| self.delay());
        self.told.replace(Some(why.clone()));
        why
    }

    /// Why no extension has succeeded or failed in time.
    fn delay(&self) -> String {
        let now = SystemClock.now();
        // While this process runs, SIGTERM comes before the end of the lease.
        let asked_at = self.asked_at.get().filter(|_| now < self.until.get());
        asked_at.map_or_else(
            || "the lease was not extended in time, because this process was paused".to_owned(),
            |asked_at| {
                let waited = now.saturating_duration_since(asked_at).as_millis();
                format!(
                    "the lease was not extended: no quorum of nodes has answered within {waited} ms"
                )
            },
        )
    }

    fn left(&self) -> Duration {
        self.until
            .get()
            .saturating_duration_since(SystemClock.now())
    }
}

/// Extends the lease each time a third of its validity has passed, until it is lost. Returns the cause.
///
/// This replaces [`Guard::keep_alive`], because an operator needs to know which node failed while there is still time to
/// repair it.
pub(crate) async fn keep(
    guard: &mut Guard,
    options: &Options,
    validity: &Validity,
    journal: &Journal,
) -> ExtendError {
    let third = options.validity() / 3;
    let pause = (third / 10).min(Duration::from_secs(1));
    let mut due = guard.valid_until().saturating_sub(third * 2);
    let mut is_first = true;
    loop {
        SystemClock.sleep_until(due).await;
        validity.asked_at.set(Some(SystemClock.now()));
        let extended = guard.extend().await;
        validity.asked_at.set(None);
        match extended {
            Ok(()) => {
                validity.until.set(guard.valid_until());
                validity.failure.replace(None);
                is_first = true;
                due = guard.valid_until().saturating_sub(third * 2);
                journal.write(&Event::Extended {
                    valid: validity.left(),
                });
            }
            Err(error) if error.is_retryable() => {
                let why = error.to_string();
                validity.failure.replace(Some(why.clone()));
                journal.write(&Event::NotExtended {
                    why,
                    valid: validity.left(),
                    is_first,
                });
                is_first = false;
                due = SystemClock.now().saturating_add(pause);
            }
            Err(error) => return error,
        }
    }
}
